//! Destination of the files of a pull: Hugging Face's cache, or a directory of their own.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use jackalope_protocol::ContentHash;

use super::choice::{RemoteFile, is_weights};
use super::error::{PullError, failed};
use crate::{BlobId, FileEntry, HubCache, HubRepo, Manifest, Record, RepoId, Revision};

/// Subdirectory for files that are being fetched.
const PARTIAL_DIR: &str = ".jackalope";

/// Free space in bytes that a disk must have in addition to the files.
const ROOM_BYTES: u64 = 64 << 20;

/// Destination of files.
#[derive(Clone, Debug)]
pub enum Destination {
    /// A cache, in which files are named by content, with links from a snapshot.
    Cache(HubRepo),
    /// A directory, in which files have their own names.
    Directory(PathBuf),
}

/// One file to fetch.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) file: RemoteFile,
    /// Path of the part downloaded so far.
    pub(crate) partial: PathBuf,
    /// Path of the complete file, once it is verified.
    pub(crate) done: PathBuf,
    /// Lock file that a process holds while it writes the file.
    pub(crate) lock: PathBuf,
}

impl Job {
    fn missing_bytes(&self) -> u64 {
        let len = |path: &Path| std::fs::metadata(path).map(|it| it.len()).ok();
        if len(&self.done) == Some(self.file.bytes) {
            return 0;
        }
        self.file.bytes.saturating_sub(len(&self.partial).unwrap_or(0))
    }
}

impl Destination {
    /// Returns the cache at `root`, as an absolute path.
    ///
    /// # Errors
    /// If the working directory is unknown.
    pub fn cache(root: &Path, repo: &RepoId) -> Result<Destination, PullError> {
        let root = absolute(root)?;
        Ok(Destination::Cache(HubCache::new(root).repo(repo)))
    }

    /// Returns the directory of the model after the pull.
    pub(crate) fn dir(&self, commit: &str) -> PathBuf {
        match self {
            Destination::Cache(repo) => repo.snapshot(commit).dir,
            Destination::Directory(dir) => dir.clone(),
        }
    }

    /// Returns the files to fetch; of several files with the same content in a cache, only one.
    pub(crate) fn jobs(&self, files: &[RemoteFile]) -> Vec<Job> {
        let mut seen = BTreeSet::new();
        let jobs = files.iter().filter_map(|file| {
            let (partial, done, lock) = match self {
                Destination::Cache(repo) => {
                    if !seen.insert(file.blob) {
                        return None;
                    }
                    let done = repo.blob(&file.blob);
                    let partial = done.with_extension("incomplete");
                    let lock = repo.locks_dir().join(format!("{}.lock", file.blob));
                    (partial, done, lock)
                }
                Destination::Directory(dir) => {
                    let name = file.path.as_str().replace('/', "%2F");
                    let beside = |end: &str| dir.join(PARTIAL_DIR).join(format!("{name}.{end}"));
                    let partial = beside(&format!("{}.incomplete", file.blob));
                    (partial, file.path.below(dir), beside("lock"))
                }
            };
            Some(Job { file: file.clone(), partial, done, lock })
        });
        jobs.collect()
    }

    /// Fails if the directory holds another model, or weights that would be read beside the fetched
    /// ones.
    pub(crate) fn check_owner(&self, repo: &RepoId, files: &[RemoteFile]) -> Result<(), PullError> {
        let Destination::Directory(dir) = self else { return Ok(()) };
        let is_other = match Record::read(dir) {
            Some(record) => record.repo != repo.as_str(),
            None => {
                let own = |name: &str| files.iter().find(|file| file.path.as_str() == name);
                let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
                let names = entries.filter_map(|it| it.file_name().into_string().ok());
                let mut weights = names.filter(|name| is_weights(name));
                let is_other_config = own("config.json").is_some_and(|file| {
                    let found = file.blob.of_file_like_this(&dir.join("config.json"), &|_| ());
                    found.is_ok_and(|found| found != file.blob)
                });
                is_other_config || weights.any(|name| own(&name).is_none())
            }
        };
        if is_other { Err(PullError::OtherModel { dir: dir.clone() }) } else { Ok(()) }
    }

    /// Fails if the files do not fit on the disk, before anything is fetched.
    pub(crate) fn check_room(&self, jobs: &[Job]) -> Result<(), PullError> {
        let root = match self {
            Destination::Cache(repo) => repo.dir(),
            Destination::Directory(dir) => absolute(dir)?,
        };
        let at = root.ancestors().find(|it| it.is_dir()).unwrap_or(Path::new("/"));
        let missing_bytes =
            jobs.iter().fold(0, |sum: u64, job| sum.saturating_add(job.missing_bytes()));
        let disk = rustix::fs::statvfs(at);
        let disk = disk.map_err(|err| failed("checking the free space at", at)(err.into()))?;
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        if missing_bytes == 0 || missing_bytes.saturating_add(ROOM_BYTES) <= free_bytes {
            return Ok(());
        }
        Err(PullError::NoRoom { missing_bytes, free_bytes, at: at.to_owned() })
    }

    /// Turns the files, which are all present, into a model that other programs find.
    pub(crate) fn finish(
        &self,
        id: &RepoId,
        revision: &Revision,
        commit: &str,
        files: &[RemoteFile],
    ) -> Result<(), PullError> {
        match self {
            Destination::Cache(repo) => {
                for file in files {
                    let path = Path::new(file.path.as_str());
                    repo.link(commit, &file.path, &file.blob).map_err(failed("linking", path))?;
                }
                // Done last, so that a branch always refers to a complete snapshot.
                if revision.as_str() != commit {
                    let path = Path::new(revision.as_str());
                    let recorded = repo.set_commit_of(revision, commit);
                    recorded.map_err(failed("recording the revision", path))?;
                }
                Ok(())
            }
            Destination::Directory(dir) => {
                let entries = files.iter().map(|file| entry(dir, file));
                let manifest = Manifest::new(entries.collect::<Result<_, PullError>>()?)?;
                remove_former(dir, &manifest)?;
                let (repo, commit) = (id.as_str().to_owned(), commit.to_owned());
                let record = Record { repo, commit, manifest };
                record.write(dir).map_err(failed("recording the files of", dir))
            }
        }
    }
}

/// Removes files of an earlier revision that this one does not have.
fn remove_former(dir: &Path, manifest: &Manifest) -> Result<(), PullError> {
    let former = Record::read(dir).map(|it| it.manifest).unwrap_or_default();
    for file in former.files().iter().filter(|file| manifest.file(&file.path).is_none()) {
        let path = file.path.below(dir);
        match std::fs::remove_file(&path) {
            Err(err) if err.kind() == ErrorKind::NotFound => {}
            removed => removed.map_err(failed("removing", &path))?,
        }
    }
    Ok(())
}

fn absolute(path: &Path) -> Result<PathBuf, PullError> {
    std::path::absolute(path).map_err(failed("finding", path))
}

fn entry(dir: &Path, file: &RemoteFile) -> Result<FileEntry, PullError> {
    let path = file.path.clone();
    let sha256 = match file.blob {
        BlobId::Content(hash) => hash,
        BlobId::Git(_) => {
            let path = path.below(dir);
            ContentHash::of_file(&path, &|_| ()).map_err(failed("reading", &path))?
        }
    };
    Ok(FileEntry { path, bytes: file.bytes, sha256 })
}
