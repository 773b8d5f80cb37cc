//! Whether the files of a model still hold what was fetched.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::blob::BlobId;
use super::check::Problem;
use super::files::{self, FilePath, ListError};
use super::hashes::Hashing;
use super::manifest::Record;
use super::parallel::side_by_side;

/// What the content of a file should be, where that is known.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Expectation {
    /// The file.
    pub path: FilePath,
    /// The file itself, behind all links.
    pub target: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// What is known: by the record of who filled the directory, or by the name of its blob.
    pub blob: Option<BlobId>,
}

/// Why files could not be compared with what they should be.
#[derive(Debug, Error)]
pub enum VerifyError {
    /// The directory cannot be listed.
    #[error(transparent)]
    List(#[from] ListError),
    /// A file cannot be read.
    #[error("reading {}: {source}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The files of `dir` with what is known of their contents.
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

/// In a cache of the hub, a file's name is its hash.
fn blob_of(target: &Path) -> Option<BlobId> {
    let is_blob = target.parent()?.file_name()? == "blobs";
    is_blob.then(|| target.file_name()?.to_str()?.parse().ok())?
}

/// Reads every file whose content is known and names those that hold something else.
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
    use crate::models::blob::ContentHash;
    use crate::models::manifest::{FileEntry, Manifest};
    use crate::models::scratch::Scratch;

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
