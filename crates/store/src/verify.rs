//! Checks whether the files of a model still have the content that was fetched.

use std::io;
use std::path::{Path, PathBuf};

use jackalope_protocol::FilePath;
use thiserror::Error;

use super::blob::BlobId;
use super::check::Problem;
use super::files::{self, ListError};
use super::hashes::Hashing;
use super::manifest::Record;
use super::parallel::side_by_side;

/// A file, and its expected content if that is known.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Expectation {
    /// Path below the model's directory.
    pub path: FilePath,
    /// Path of the file itself, with all links resolved.
    pub target: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// Expected content: from the record in the directory, or from the name of the blob.
    pub blob: Option<BlobId>,
}

/// Reason why files could not be verified.
#[derive(Debug, Error)]
pub enum VerifyError {
    /// The directory cannot be listed.
    #[error(transparent)]
    List(#[from] ListError),
    /// A file cannot be read.
    #[error("reading {}: {source}", .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Returns the files of `dir` with their expected contents, as far as these are known.
///
/// # Errors
/// [`VerifyError::List`].
pub fn expectations(dir: &Path) -> Result<Vec<Expectation>, VerifyError> {
    let record = Record::read(dir);
    let recorded = |path: &FilePath| record.as_ref()?.manifest.file(path).map(|it| it.sha256);
    let files = files::list(dir)?.into_iter();
    let files = files.map(|file| {
        let blob = recorded(&file.path).map(BlobId::Content).or_else(|| blob_of(&file.target));
        Expectation { path: file.path, target: file.target, bytes: file.bytes, blob }
    });
    Ok(files.collect())
}

/// Returns the hash in a file's name, if the file is a blob in a cache of the hub.
fn blob_of(target: &Path) -> Option<BlobId> {
    let is_blob = target.parent()?.file_name()? == "blobs";
    is_blob.then(|| target.file_name()?.to_str()?.parse().ok())?
}

/// Reads every file whose content is known, and returns those that differ.
///
/// # Errors
/// [`VerifyError::Read`].
pub fn verify(files: &[Expectation], hashing: Hashing<'_>) -> Result<Vec<Problem>, VerifyError> {
    let compare = |idx: usize| -> Result<Option<Problem>, VerifyError> {
        let Expectation { path, target, blob, .. } = &files[idx];
        let Some(wanted) = blob else { return Ok(None) };
        let found = wanted
            .of_file_like_this(target, hashing.on_bytes)
            .map_err(|source| VerifyError::Read { path: target.clone(), source })?;
        Ok((found != *wanted).then(|| Problem::Content { name: path.as_str().to_owned() }))
    };
    let found = side_by_side(files.len(), hashing.num_threads, compare)?;
    Ok(found.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{FileEntry, Manifest};
    use jackalope_protocol::ContentHash;
    use jackalope_testing::Scratch;

    #[test]
    fn a_changed_byte_is_found_where_the_content_is_known() {
        let dir = Scratch::new();
        let name = ContentHash::of(b"content").to_string();
        dir.write(&format!("blobs/{name}"), b"content");
        dir.write("model/b.txt", b"recorded");
        dir.write("model/c.txt", b"unknown");
        let model = dir.path().join("model");
        std::os::unix::fs::symlink(format!("../blobs/{name}"), model.join("a.txt")).unwrap();
        let sha256 = ContentHash::of(b"recorded");
        let entry = FileEntry { path: "b.txt".parse().unwrap(), bytes: 8, sha256 };
        let manifest = Manifest::new(vec![entry]).unwrap();
        Record { repo: String::new(), commit: String::new(), manifest }.write(&model).unwrap();
        let problems = || verify(&expectations(&model).unwrap(), Hashing::new(&|_| ())).unwrap();
        assert_eq!(problems(), []);
        let content = |name: &str| Problem::Content { name: name.to_owned() };
        dir.write("model/b.txt", b"recordeD");
        assert_eq!(problems(), [content("b.txt")]);
        dir.write(&format!("blobs/{name}"), b"Content");
        assert_eq!(problems(), [content("a.txt"), content("b.txt")]);
        assert_eq!(expectations(&model).unwrap()[2].blob, None);
    }
}
