//! Determines what is removed together with a model, and what must stay: blobs that another
//! snapshot needs, and directories that hold no model.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::hub::{HubCache, HubRepo, Snapshot};
use super::name::ModelRef;
use super::store::{ResolveError, StoreKind, Stores};

/// The files that a removal would delete. Nothing is deleted before [`Removal::carry_out`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Removal {
    /// Name of the model.
    pub name: String,
    /// Directory of the model.
    pub dir: PathBuf,
    /// Disk space in bytes that the removal frees.
    pub bytes: u64,
    /// True if the directory lies in one of the machine's stores.
    pub is_in_store: bool,
    /// Files and folders, in the order in which they are deleted.
    paths: Vec<PathBuf>,
}

/// Reason why nothing is removed.
#[derive(Debug, Error)]
pub enum StoreRemoveError {
    /// There is no such model.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The directory is not a model's.
    #[error("{} is no model's directory: {reason}\nhint: look into it and remove it by hand", .dir.display())]
    NoModel {
        /// The directory.
        dir: PathBuf,
        /// Why the directory does not count as a model's.
        reason: &'static str,
    },
    /// The system refuses to read or delete a file.
    #[error("removing {}: {source}", .path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl Removal {
    /// Plans the removal of a model by name. In a cache of the hub that means all its revisions,
    /// unless one is named.
    ///
    /// # Errors
    /// [`StoreRemoveError`] if there is no such model.
    pub fn of_name(stores: &Stores, wanted: &ModelRef) -> Result<Removal, StoreRemoveError> {
        for place in stores.places().iter().filter(|it| it.kind == StoreKind::HubCache) {
            let repo = HubCache::new(place.root.clone()).repo(&wanted.repo);
            if wanted.revision.is_none() && repo.dir().is_dir() {
                return of_repo(&repo);
            }
        }
        let found = stores.resolve(wanted)?;
        Removal::of_dir(stores, &found.dir)
    }

    /// Plans the removal of a model's directory. In a cache of the hub that means the directory's
    /// revision.
    ///
    /// # Errors
    /// [`StoreRemoveError`] if the directory does not exist or is not a model's.
    pub fn of_dir(stores: &Stores, dir: &Path) -> Result<Removal, StoreRemoveError> {
        let dir = fs::canonicalize(dir).map_err(failed(dir))?;
        let owner = stores.owner(&dir);
        if let Some(found) = owner.as_ref().filter(|it| it.place.kind == StoreKind::HubCache) {
            let root = &found.place.root;
            let cache = HubCache::new(fs::canonicalize(root).map_err(failed(root))?);
            let (repo, snapshot) = cache.owner(&dir).expect("its owner is this place");
            return of_snapshot(&repo, &snapshot);
        }
        check_is_model(stores, &dir)?;
        let name = owner.as_ref().map_or_else(|| dir.display().to_string(), |it| it.name.clone());
        let bytes = disk_bytes(&dir)?;
        Ok(Removal { name, bytes, is_in_store: owner.is_some(), paths: vec![dir.clone()], dir })
    }

    /// Deletes the files.
    ///
    /// # Errors
    /// [`StoreRemoveError::Io`]. Files that were deleted before the error stay deleted; calling
    /// this again continues.
    pub fn carry_out(&self) -> Result<(), StoreRemoveError> {
        for path in &self.paths {
            let removed = match fs::symlink_metadata(path) {
                Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
                Ok(_) => fs::remove_file(path),
                Err(err) => Err(err),
            };
            match removed {
                Err(err) if err.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(failed(path))?,
            }
        }
        Ok(())
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> StoreRemoveError {
    let path = path.to_owned();
    move |source| StoreRemoveError::Io { path, source }
}

fn of_repo(repo: &HubRepo) -> Result<Removal, StoreRemoveError> {
    let dir = repo.dir();
    Ok(Removal {
        name: repo.id.as_str().to_owned(),
        bytes: disk_bytes(&dir)?,
        is_in_store: true,
        paths: vec![dir.clone(), repo.locks_dir()],
        dir,
    })
}

/// Plans the removal of a revision, with the blobs that no other revision uses.
fn of_snapshot(repo: &HubRepo, snapshot: &Snapshot) -> Result<Removal, StoreRemoveError> {
    let dir = repo.dir();
    let mut shared = BTreeSet::new();
    let snapshots = repo.snapshots().map_err(failed(&dir))?;
    if let [only] = &snapshots[..]
        && only == snapshot
    {
        return of_repo(repo);
    }
    for other in snapshots.iter().filter(|it| *it != snapshot) {
        blobs_of(&other.dir, &mut shared)?;
    }
    let mut own = BTreeSet::new();
    blobs_of(&snapshot.dir, &mut own)?;
    let blobs_dir = dir.join("blobs");
    let freed: Vec<PathBuf> = own
        .into_iter()
        .filter(|blob| !shared.contains(blob) && blob.starts_with(&blobs_dir))
        .collect();
    let mut bytes = 0;
    for blob in &freed {
        bytes += fs::metadata(blob).map_err(failed(blob))?.len();
    }
    let mut paths = repo.refs_to(&snapshot.commit);
    paths.push(snapshot.dir.clone());
    paths.extend(freed);
    let name = format!("{}@{}", repo.id, snapshot.commit);
    Ok(Removal { name, dir: snapshot.dir.clone(), bytes, is_in_store: true, paths })
}

/// Collects the blobs to which the links in `dir` lead.
fn blobs_of(dir: &Path, blobs: &mut BTreeSet<PathBuf>) -> Result<(), StoreRemoveError> {
    for entry in fs::read_dir(dir).map_err(failed(dir))? {
        let entry = entry.map_err(failed(dir))?;
        let path = entry.path();
        match entry.file_type().map_err(failed(&path))? {
            kind if kind.is_dir() => blobs_of(&path, blobs)?,
            kind if kind.is_symlink() => {
                // A dangling link uses no blob.
                blobs.extend(fs::canonicalize(&path).ok());
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks that a directory holds a model and that no store lies in it, so that it may be removed.
fn check_is_model(stores: &Stores, dir: &Path) -> Result<(), StoreRemoveError> {
    let refuse = |reason| Err(StoreRemoveError::NoModel { dir: dir.to_owned(), reason });
    let entries = fs::read_dir(dir).map_err(failed(dir))?;
    let names: Vec<String> =
        entries.flatten().filter_map(|it| it.file_name().into_string().ok()).collect();
    if !names.iter().any(|name| name == "config.json") {
        return refuse("it holds no config.json");
    }
    if !names.iter().any(|name| name.ends_with(".safetensors")) {
        return refuse("it holds no *.safetensors");
    }
    if names.iter().any(|name| name == ".git") {
        return refuse("it is a repository of git");
    }
    let holds_place = |root: &PathBuf| fs::canonicalize(root).is_ok_and(|it| it.starts_with(dir));
    if stores.places().iter().any(|place| holds_place(&place.root)) {
        return refuse("other models lie below it");
    }
    Ok(())
}

/// Returns the size of the files below `dir` in bytes. Does not follow links.
fn disk_bytes(dir: &Path) -> Result<u64, StoreRemoveError> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).map_err(failed(dir))? {
        let path = entry.map_err(failed(dir))?.path();
        let metadata = fs::symlink_metadata(&path).map_err(failed(&path))?;
        bytes += match metadata.is_dir() {
            true => disk_bytes(&path)?,
            false if metadata.is_file() => metadata.len(),
            false => 0,
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ModelStore;
    use jackalope_testing::Scratch;

    const SHARED: &str = "1111111111111111111111111111111111111111";
    const OLD: &str = "2222222222222222222222222222222222222222";

    /// Two revisions that share one blob.
    fn hub() -> (Scratch, Stores) {
        let dir = Scratch::new();
        let place =
            |kind, name: &str| ModelStore { kind, root: dir.path().join(name), origin: "default" };
        let stores =
            Stores::new([place(StoreKind::HubCache, "hub"), place(StoreKind::Folder, "folder")]);
        let repo = HubCache::new(dir.path().join("hub")).repo(&"o/n".parse().unwrap());
        dir.write(&format!("hub/models--o--n/blobs/{SHARED}"), b"shared");
        dir.write(&format!("hub/models--o--n/blobs/{OLD}"), b"old!");
        let link = |commit, file: &str, blob: &str| {
            repo.link(commit, &file.parse().unwrap(), &blob.parse().unwrap()).unwrap();
        };
        link("aaa", "x.json", SHARED);
        link("aaa", "sub/y.json", OLD);
        link("bbb", "x.json", SHARED);
        repo.set_commit_of(&"v1".parse().unwrap(), "aaa").unwrap();
        repo.set_commit_of(&"main".parse().unwrap(), "bbb").unwrap();
        (dir, stores)
    }

    #[test]
    fn a_revision_takes_its_own_contents_along_and_leaves_those_of_others() {
        let (dir, stores) = hub();
        let removal = Removal::of_name(&stores, &"o/n@v1".parse().unwrap()).unwrap();
        assert_eq!((removal.bytes, removal.is_in_store), (4, true));
        removal.carry_out().unwrap();
        removal.carry_out().unwrap();
        let repo = dir.path().join("hub/models--o--n");
        assert_eq!(fs::read(repo.join("snapshots/bbb/x.json")).unwrap(), b"shared");
        assert!(!repo.join("snapshots/aaa").exists() && !repo.join("refs/v1").exists());
        assert!(!repo.join("blobs").join(OLD).exists());

        let last = Removal::of_name(&stores, &"o/n@main".parse().unwrap()).unwrap();
        last.carry_out().unwrap();
        assert!(!repo.exists());
    }

    #[test]
    fn a_repository_goes_as_a_whole() {
        let (dir, stores) = hub();
        let removal = Removal::of_name(&stores, &"o/n".parse().unwrap()).unwrap();
        assert_eq!(removal.bytes, 10 + 2 * "aaa".len() as u64);
        removal.carry_out().unwrap();
        assert!(!dir.path().join("hub/models--o--n").exists());
        let again = Removal::of_name(&stores, &"o/n".parse().unwrap());
        assert!(matches!(again, Err(StoreRemoveError::Resolve(_))));
    }

    #[test]
    fn only_a_models_directory_goes() {
        let (dir, stores) = hub();
        let no_model = |path: &str| {
            let result = Removal::of_dir(&stores, &dir.path().join(path));
            assert!(matches!(result, Err(StoreRemoveError::NoModel { .. })), "{path}: {result:?}");
        };
        no_model("hub");
        no_model("hub/models--o--n");
        dir.write("notes/a.txt", b"");
        no_model("notes");
        dir.model("");
        no_model("");
        let inside = Removal::of_dir(&stores, &dir.model("folder/x")).unwrap();
        let outside = Removal::of_dir(&stores, &dir.model("elsewhere/x")).unwrap();
        assert!(inside.is_in_store && !outside.is_in_store);
        dir.write("elsewhere/x/.git/HEAD", b"");
        no_model("elsewhere/x");
    }
}
