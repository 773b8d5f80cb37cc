//! Files of a model: listing a directory, and writing files atomically.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::UNIX_EPOCH;

use jackalope_protocol::FilePath;
use thiserror::Error;

/// Maximum depth of folders below a model's directory.
const DEPTH_MAX: usize = 8;

/// Reason why a directory could not be listed.
#[derive(Debug, Error)]
pub enum ListError {
    /// A file or folder cannot be read; also a dangling link.
    #[error("reading {}: {source}", .path.display())]
    Read {
        /// Path of the file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A name is not UTF-8 or not a safe path.
    #[error("{} has a name that cannot be used", .path.display())]
    Name {
        /// Path of the file or folder.
        path: PathBuf,
    },
    /// Folders are nested deeper than in any model.
    #[error("{} lies deeper than {DEPTH_MAX} folders: this is no model's directory", .path.display())]
    Deep {
        /// Path of the folder.
        path: PathBuf,
    },
}

/// A file of a model, with the metadata that the system reports.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FoundFile {
    /// Path below the model's directory.
    pub path: FilePath,
    /// Path of the file itself, with all links resolved.
    pub target: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// When the file was last written, in nanoseconds since 1970.
    pub modified_ns: u128,
}

/// Lists the files below `dir`, sorted by path. Links to files are followed, because Hugging Face's
/// cache consists of them; links to folders are not. Hidden and unfinished files are skipped.
///
/// # Errors
/// [`ListError`], also for a dangling link, because the model then lacks that file.
pub fn list(dir: &Path) -> Result<Vec<FoundFile>, ListError> {
    let mut files = Vec::new();
    list_into(dir, "", 0, &mut files)?;
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

fn list_into(
    dir: &Path,
    prefix: &str,
    depth: usize,
    files: &mut Vec<FoundFile>,
) -> Result<(), ListError> {
    if DEPTH_MAX < depth {
        return Err(ListError::Deep { path: dir.to_owned() });
    }
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ListError::Read { path, source }
    };
    for entry in fs::read_dir(dir).map_err(failed(dir))? {
        let entry = entry.map_err(failed(dir))?;
        let full = entry.path();
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| ListError::Name { path: full.clone() })?;
        if is_no_part(name) {
            continue;
        }
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().map_err(failed(&full))?;
        if kind.is_dir() {
            list_into(&full, &format!("{path}/"), depth + 1, files)?;
            continue;
        }
        let metadata = fs::metadata(&full).map_err(failed(&full))?;
        if !metadata.is_file() {
            continue;
        }
        files.push(FoundFile {
            path: path.parse().map_err(|_| ListError::Name { path: full.clone() })?,
            target: fs::canonicalize(&full).map_err(failed(&full))?,
            bytes: metadata.len(),
            modified_ns: modified_ns(&metadata),
        });
    }
    Ok(())
}

/// Returns true for hidden files and for files that another program has not finished writing.
fn is_no_part(name: &str) -> bool {
    name.starts_with('.') || name.ends_with(".incomplete") || name.ends_with(".partial")
}

/// Returns when a file was last written, in nanoseconds since 1970; 0 if the system does not report
/// it.
pub fn modified_ns(metadata: &fs::Metadata) -> u128 {
    let modified = metadata.modified().ok();
    modified.and_then(|it| it.duration_since(UNIX_EPOCH).ok()).map_or(0, |it| it.as_nanos())
}

/// Writes a file atomically: readers see the old content or the new one, even after a crash.
///
/// # Errors
/// If the folder cannot be created or the file cannot be written.
pub fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let partial = dir.join(format!(".{name}.{}-{number}.partial", std::process::id()));
    let write = || {
        let mut file = File::create(&partial)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().inspect_err(|_| {
        // The file may not exist.
        fs::remove_file(&partial).ok();
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use jackalope_testing::Scratch;

    #[test]
    fn links_to_files_are_followed_and_what_is_hidden_is_no_part() {
        let dir = Scratch::new();
        dir.write("blobs/abc", b"content");
        dir.write("model/.cache/x", b"x");
        dir.write("model/sub/y.txt", b"yy");
        dir.write("model/z.incomplete", b"z");
        std::os::unix::fs::symlink("../blobs/abc", dir.path().join("model/a.txt")).unwrap();
        std::os::unix::fs::symlink("../blobs", dir.path().join("model/folder")).unwrap();
        let found = list(&dir.path().join("model")).unwrap();
        let found: Vec<_> = found.iter().map(|it| (it.path.as_str(), it.bytes)).collect();
        assert_eq!(found, [("a.txt", 7), ("sub/y.txt", 2)]);
        std::fs::remove_file(dir.path().join("blobs/abc")).unwrap();
        let err = list(&dir.path().join("model")).unwrap_err();
        assert!(err.to_string().contains("a.txt"), "{err}");
    }
}
