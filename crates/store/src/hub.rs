//! The layout of Hugging Face's cache, so that other programs find the models that we fetch and we
//! find theirs.
//!
//! ```text
//!   models--org--name/refs/main               the commit of a branch or tag when fetched
//!                    /snapshots/COMMIT/FILE   a link to ../../blobs/ID
//!                    /blobs/ID                content, named by its hash
//!                    /blobs/ID.incomplete     content on its way
//!   .locks/models--org--name/ID.lock          held by the process that writes that blob
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jackalope_protocol::FilePath;

use super::blob::BlobId;
use super::files::write_whole;
use super::name::{RepoId, Revision};

/// Prefix of a model's folder.
const PREFIX: &str = "models--";

/// A cache in Hugging Face's layout.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HubCache {
    root: PathBuf,
}

/// One repository in a cache; it need not exist.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HubRepo {
    /// Name of the repository.
    pub id: RepoId,
    cache: PathBuf,
}

/// A revision in a cache.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Snapshot {
    /// The commit.
    pub commit: String,
    /// Directory with the files of the commit.
    pub dir: PathBuf,
}

impl HubCache {
    /// Returns the cache at `root`, which need not exist.
    pub fn new(root: PathBuf) -> HubCache {
        HubCache { root }
    }

    /// Returns the repository with this name.
    pub fn repo(&self, id: &RepoId) -> HubRepo {
        HubRepo { id: id.clone(), cache: self.root.clone() }
    }

    /// Returns all repositories of models, sorted by folder. Empty if the cache does not exist.
    ///
    /// # Errors
    /// If the cache cannot be read.
    pub fn repos(&self) -> io::Result<Vec<HubRepo>> {
        let names = folders(&self.root)?;
        let ids = names.iter().filter_map(|name| repo_of_folder(name));
        Ok(ids.map(|id| self.repo(&id)).collect())
    }

    /// Returns the repository and the snapshot whose directory `dir`, a path below this cache, is.
    pub fn owner(&self, dir: &Path) -> Option<(HubRepo, Snapshot)> {
        let inside = dir.strip_prefix(&self.root).ok()?;
        let parts: Option<Vec<&str>> = inside.iter().map(|it| it.to_str()).collect();
        let [folder, "snapshots", commit] = parts?[..] else { return None };
        let repo = self.repo(&repo_of_folder(folder)?);
        let snapshot = repo.snapshot(commit);
        Some((repo, snapshot))
    }
}

impl HubRepo {
    /// Returns the folder of the repository.
    pub fn dir(&self) -> PathBuf {
        self.cache.join(self.folder())
    }

    /// Returns the folder with the locks of the repository's blobs.
    pub fn locks_dir(&self) -> PathBuf {
        self.cache.join(".locks").join(self.folder())
    }

    /// Returns the path of a blob.
    pub fn blob(&self, id: &BlobId) -> PathBuf {
        self.dir().join("blobs").join(id.to_string())
    }

    /// Returns the commit to which a branch or tag pointed when it was fetched.
    pub fn commit_of(&self, revision: &Revision) -> Option<String> {
        let text = fs::read_to_string(self.dir().join("refs").join(revision.as_str())).ok()?;
        // The content of the file becomes part of a path, so it is validated.
        let commit: Revision = text.trim().parse().ok()?;
        (!commit.as_str().contains('/')).then(|| commit.as_str().to_owned())
    }

    /// Records the commit to which a branch or tag points.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn set_commit_of(&self, revision: &Revision, commit: &str) -> io::Result<()> {
        write_whole(&self.dir().join("refs").join(revision.as_str()), commit.as_bytes())
    }

    /// Returns the snapshot of a commit, which need not exist.
    pub fn snapshot(&self, commit: &str) -> Snapshot {
        let dir = self.dir().join("snapshots").join(commit);
        Snapshot { commit: commit.to_owned(), dir }
    }

    /// Returns all snapshots, sorted by commit.
    ///
    /// # Errors
    /// If the snapshots cannot be listed.
    pub fn snapshots(&self) -> io::Result<Vec<Snapshot>> {
        let commits = folders(&self.dir().join("snapshots"))?;
        Ok(commits.iter().map(|commit| self.snapshot(commit)).collect())
    }

    /// Returns the files below `refs` that point to this commit.
    pub fn refs_to(&self, commit: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut dirs = vec![self.dir().join("refs")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                    Ok(_)
                        if fs::read_to_string(entry.path()).is_ok_and(|it| it.trim() == commit) =>
                    {
                        found.push(entry.path());
                    }
                    _ => {}
                }
            }
        }
        found
    }

    /// Links `file` of a snapshot to a blob.
    ///
    /// # Errors
    /// If the link cannot be created.
    pub fn link(&self, commit: &str, file: &FilePath, blob: &BlobId) -> io::Result<()> {
        let link = file.below(&self.snapshot(commit).dir);
        let target = format!("{}blobs/{blob}", "../".repeat(file.depth() + 2));
        if fs::read_link(&link).is_ok_and(|found| found == Path::new(&target)) {
            return Ok(());
        }
        fs::create_dir_all(link.parent().expect("a file lies in a folder"))?;
        let partial = link.with_file_name(format!(".{blob}.{}.partial", std::process::id()));
        std::os::unix::fs::symlink(&target, &partial)?;
        fs::rename(&partial, &link)
    }

    fn folder(&self) -> String {
        format!("{PREFIX}{}", self.id.as_str().replace('/', "--"))
    }
}

fn repo_of_folder(folder: &str) -> Option<RepoId> {
    folder.strip_prefix(PREFIX)?.replacen("--", "/", 1).parse().ok()
}

/// Returns the names of the folders in `dir`, sorted; empty if it does not exist.
fn folders(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(err) => return Err(err),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let (true, Ok(name)) = (entry.path().is_dir(), entry.file_name().into_string()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jackalope_testing::Scratch;

    const COMMIT: &str = "0123456789012345678901234567890123456789";

    #[test]
    fn a_link_leads_to_its_blob_from_any_depth_and_a_ref_to_its_commit() {
        let dir = Scratch::new();
        let cache = HubCache::new(dir.path().to_owned());
        let repo = cache.repo(&"org/name".parse().unwrap());
        let blob: BlobId = COMMIT.parse().unwrap();
        dir.write(&format!("models--org--name/blobs/{COMMIT}"), b"content");
        for file in ["a.json", "x/y/b.jinja"] {
            let file: FilePath = file.parse().unwrap();
            for _ in 0..2 {
                repo.link(COMMIT, &file, &blob).unwrap();
            }
            let found = fs::canonicalize(file.below(&repo.snapshot(COMMIT).dir)).unwrap();
            assert_eq!(found, repo.blob(&blob));
        }
        let revision: Revision = "refs/pr/1".parse().unwrap();
        repo.set_commit_of(&revision, COMMIT).unwrap();
        assert_eq!(repo.commit_of(&revision).as_deref(), Some(COMMIT));
        assert_eq!(repo.refs_to(COMMIT).len(), 1);
        assert_eq!(cache.repos().unwrap(), std::slice::from_ref(&repo));
        let snapshot = repo.snapshots().unwrap().remove(0);
        assert_eq!(cache.owner(&snapshot.dir), Some((repo, snapshot)));
    }

    #[test]
    fn a_ref_that_leads_elsewhere_is_none() {
        let dir = Scratch::new();
        let repo = HubCache::new(dir.path().to_owned()).repo(&"org/name".parse().unwrap());
        for text in ["../../../x", "a/b", "", ".."] {
            dir.write("models--org--name/refs/main", text.as_bytes());
            assert_eq!(repo.commit_of(&Revision::default()), None, "{text}");
        }
    }
}
