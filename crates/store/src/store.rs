//! The places where models are stored on this machine, and the order in which they are searched.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::hub::{HubCache, HubRepo, Snapshot};
use super::manifest::Record;
use super::name::{ModelRef, Revision};

/// Layout of a place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StoreKind {
    /// Hugging Face's cache: see [`HubCache`].
    HubCache,
    /// A folder of directories `name` or `org/name`.
    Folder,
}

/// A place where models are stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ModelStore {
    /// Layout of the place.
    pub kind: StoreKind,
    /// Path of the place's root; it need not exist.
    pub root: PathBuf,
    /// Where the path comes from: the name of an environment variable, or `default`.
    pub origin: &'static str,
}

/// All places of a machine, in the order in which they are searched.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Stores {
    places: Vec<ModelStore>,
}

/// A model and the place where it is stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FoundModel {
    /// Name of the model: `org/name`, or the name of its directory.
    pub name: String,
    /// Commit, if known.
    pub commit: Option<String>,
    /// Directory of the model.
    pub dir: PathBuf,
    /// Place that contains it.
    pub place: ModelStore,
}

/// Reason why a name does not resolve to a model.
#[derive(Debug, Error)]
pub enum ResolveError {
    /// No place contains the model.
    #[error("there is no model {name} on this machine; looked in {}\nhint: jackalope pull {}", paths(.looked_in), .name.replace('@', " --revision "))]
    NotFound {
        /// Name that was requested.
        name: String,
        /// Roots of the places.
        looked_in: Vec<PathBuf>,
    },
    /// The cache contains only other revisions of the model.
    #[error(
        "this machine has only other revisions of {name}: {}\n\
         hint: jackalope pull {}, or write NAME@REVISION",
        .revisions.join(", "),
        .name.replace('@', " --revision ")
    )]
    Revision {
        /// Name that was requested.
        name: String,
        /// Revisions that exist.
        revisions: Vec<String>,
    },
    /// A place cannot be read.
    #[error("reading {}: {source}", .path.display())]
    Read {
        /// Path of the place.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

fn paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl Stores {
    /// Creates the list of these places, in this order. Duplicates are dropped.
    pub fn new(places: impl IntoIterator<Item = ModelStore>) -> Stores {
        let mut stores = Stores::default();
        for place in places {
            if stores.places.iter().all(|it| it.root != place.root) {
                stores.places.push(place);
            }
        }
        stores
    }

    /// Returns the places in order.
    pub fn places(&self) -> &[ModelStore] {
        &self.places
    }

    /// Returns the directory of a model from the first place that contains it. Files may be
    /// missing.
    ///
    /// # Errors
    /// [`ResolveError`].
    pub fn resolve(&self, wanted: &ModelRef) -> Result<FoundModel, ResolveError> {
        let mut others = Vec::new();
        for place in &self.places {
            let found = match place.kind {
                StoreKind::HubCache => {
                    let repo = HubCache::new(place.root.clone()).repo(&wanted.repo);
                    let snapshots = read(repo.snapshots(), &repo.dir())?;
                    let chosen = choose(&repo, wanted.revision.as_ref(), &snapshots);
                    others.extend(snapshots.into_iter().map(|it| it.commit));
                    chosen.map(|it| (Some(it.commit), it.dir))
                }
                StoreKind::Folder => in_folder(&place.root, wanted),
            };
            if let Some((commit, dir)) = found {
                let name = wanted.repo.as_str().to_owned();
                return Ok(FoundModel { name, commit, dir, place: place.clone() });
            }
        }
        let name = wanted.to_string();
        if others.is_empty() {
            let looked_in = self.places.iter().map(|place| place.root.clone()).collect();
            return Err(ResolveError::NotFound { name, looked_in });
        }
        Err(ResolveError::Revision { name, revisions: others })
    }

    /// Returns all models, including incomplete ones, in the order of the places and by name.
    ///
    /// # Errors
    /// [`ResolveError::Read`].
    pub fn list(&self) -> Result<Vec<FoundModel>, ResolveError> {
        let mut models = Vec::new();
        for place in &self.places {
            match place.kind {
                StoreKind::HubCache => list_hub(place, &mut models)?,
                StoreKind::Folder => list_folder(place, &mut models)?,
            }
        }
        Ok(models)
    }

    /// Returns the model whose directory `dir` is, if it lies in one of the places. Symbolic links
    /// in both paths are resolved.
    pub fn owner(&self, dir: &Path) -> Option<FoundModel> {
        let dir = fs::canonicalize(dir).ok()?;
        self.places.iter().find_map(|place| {
            let root = fs::canonicalize(&place.root).ok()?;
            let inside = dir.strip_prefix(&root).ok()?;
            let (name, commit) = match place.kind {
                StoreKind::HubCache => {
                    let (repo, snapshot) = HubCache::new(root.clone()).owner(&dir)?;
                    (repo.id.as_str().to_owned(), Some(snapshot.commit))
                }
                StoreKind::Folder => {
                    let is_model = (1..=2).contains(&inside.iter().count()) && has_config(&dir);
                    let commit = Record::read(&dir).map(|it| it.commit);
                    (is_model.then(|| inside.to_str().map(str::to_owned))??, commit)
                }
            };
            Some(FoundModel { name, commit, dir: dir.clone(), place: place.clone() })
        })
    }
}

/// Returns the wanted snapshot: by branch or tag, by commit, or the only one that exists.
fn choose(repo: &HubRepo, revision: Option<&Revision>, snapshots: &[Snapshot]) -> Option<Snapshot> {
    let of_commit = |commit: &str| snapshots.iter().find(|it| it.commit == commit).cloned();
    let named = revision.cloned().unwrap_or_default();
    let by_ref = repo.commit_of(&named).and_then(|commit| of_commit(&commit));
    let only = || match (revision, snapshots) {
        (None, [only]) => Some(only.clone()),
        _ => None,
    };
    by_ref.or_else(|| of_commit(named.as_str())).or_else(only)
}

/// Returns `org/name` or `name` below a folder. Skips directories that are recorded as another
/// repository or revision. A revision matches only a directory that is recorded as having it.
fn in_folder(root: &Path, wanted: &ModelRef) -> Option<(Option<String>, PathBuf)> {
    let dirs = [root.join(wanted.repo.as_str()), root.join(wanted.repo.name())];
    dirs.into_iter().filter(|dir| has_config(dir)).find_map(|dir| match Record::read(&dir) {
        Some(record) => {
            let repo = wanted.repo.as_str();
            let is_repo = repo == record.repo || !repo.contains('/');
            let is_commit = wanted.revision.as_ref().is_none_or(|it| it.as_str() == record.commit);
            (is_repo && is_commit).then_some((Some(record.commit), dir))
        }
        None => wanted.revision.is_none().then_some((None, dir)),
    })
}

fn has_config(dir: &Path) -> bool {
    dir.join("config.json").is_file()
}

fn read<T>(result: io::Result<T>, path: &Path) -> Result<T, ResolveError> {
    result.map_err(|source| ResolveError::Read { path: path.to_owned(), source })
}

fn list_hub(place: &ModelStore, models: &mut Vec<FoundModel>) -> Result<(), ResolveError> {
    for repo in read(HubCache::new(place.root.clone()).repos(), &place.root)? {
        for snapshot in read(repo.snapshots(), &repo.dir())? {
            models.push(FoundModel {
                name: repo.id.as_str().to_owned(),
                commit: Some(snapshot.commit),
                dir: snapshot.dir,
                place: place.clone(),
            });
        }
    }
    Ok(())
}

fn list_folder(place: &ModelStore, models: &mut Vec<FoundModel>) -> Result<(), ResolveError> {
    for (name, dir) in folders(&place.root)? {
        if has_config(&dir) {
            models.push(in_place(name, dir, place));
            continue;
        }
        for (inner, dir) in folders(&dir)?.into_iter().filter(|(_, dir)| has_config(dir)) {
            models.push(in_place(format!("{name}/{inner}"), dir, place));
        }
    }
    Ok(())
}

fn in_place(name: String, dir: PathBuf, place: &ModelStore) -> FoundModel {
    let commit = Record::read(&dir).map(|it| it.commit);
    FoundModel { name, commit, dir, place: place.clone() }
}

/// Returns the folders in `dir` that are not hidden; empty if `dir` does not exist.
fn folders(dir: &Path) -> Result<Vec<(String, PathBuf)>, ResolveError> {
    let entries = match fs::read_dir(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => read(entries, dir)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = read(entry, dir)?.path();
        let name = path.file_name().and_then(|it| it.to_str()).unwrap_or_default().to_owned();
        if path.is_dir() && !name.is_empty() && !name.starts_with('.') {
            found.push((name, path));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;
    use jackalope_testing::Scratch;

    fn stores(dir: &Scratch) -> Stores {
        let place =
            |kind, name: &str, origin| ModelStore { kind, root: dir.path().join(name), origin };
        Stores::new([
            place(StoreKind::HubCache, "hub", "HF_HUB_CACHE"),
            place(StoreKind::HubCache, "hub", "HF_HOME"),
            place(StoreKind::HubCache, "old", "default"),
            place(StoreKind::Folder, "folder", "MODELS_DIR"),
        ])
    }

    fn resolve(dir: &Scratch, name: &str) -> Result<PathBuf, String> {
        let found = stores(dir).resolve(&name.parse().unwrap());
        let inside = |it: FoundModel| it.dir.strip_prefix(dir.path()).unwrap().to_owned();
        found.map(inside).map_err(|err| err.to_string())
    }

    #[test]
    fn the_first_place_that_has_a_model_gives_it() {
        let dir = Scratch::new();
        assert_eq!(stores(&dir).places().len(), 3);
        let missing = resolve(&dir, "org/name").unwrap_err();
        assert!(missing.contains("hint: jackalope pull org/name"), "{missing}");
        dir.model("folder/name");
        assert_eq!(resolve(&dir, "org/name").unwrap(), Path::new("folder/name"));
        assert_eq!(resolve(&dir, "name").unwrap(), Path::new("folder/name"));
        dir.model("old/models--org--name/snapshots/aaa");
        assert!(resolve(&dir, "org/name").unwrap().ends_with("aaa"));
        dir.model("hub/models--org--name/snapshots/bbb");
        assert!(resolve(&dir, "org/name").unwrap().ends_with("bbb"));
        let names: Vec<String> =
            stores(&dir).list().unwrap().into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["org/name", "org/name", "name"]);
    }

    #[test]
    fn a_revision_is_a_branch_a_tag_or_a_commit_and_never_a_guess() {
        let dir = Scratch::new();
        dir.model("hub/models--org--name/snapshots/aaa");
        dir.model("hub/models--org--name/snapshots/bbb");
        let ambiguous = resolve(&dir, "org/name").unwrap_err();
        assert!(ambiguous.contains("aaa, bbb"), "{ambiguous}");
        dir.write("hub/models--org--name/refs/main", b"bbb\n");
        assert!(resolve(&dir, "org/name").unwrap().ends_with("bbb"));
        assert!(resolve(&dir, "org/name@aaa").unwrap().ends_with("aaa"));
        let other = resolve(&dir, "org/name@v1").unwrap_err();
        assert!(other.contains("pull org/name --revision v1"), "{other}");
    }

    #[test]
    fn a_folder_that_holds_another_repository_is_not_taken() {
        let dir = Scratch::new();
        let model = dir.model("folder/name");
        let manifest = Manifest::default();
        let record = Record { repo: "one/name".to_owned(), commit: "ccc".to_owned(), manifest };
        record.write(&model).unwrap();
        assert!(resolve(&dir, "one/name").is_ok());
        assert!(resolve(&dir, "one/name@ccc").is_ok());
        assert!(resolve(&dir, "one/name@ddd").is_err());
        assert!(resolve(&dir, "other/name").is_err());
    }

    #[test]
    fn a_directory_knows_what_it_is_called() {
        let dir = Scratch::new();
        let snapshot = dir.model("hub/models--org--name/snapshots/aaa");
        let folder = dir.model("folder/org/other");
        let owner = |path: &Path| stores(&dir).owner(path).map(|it| (it.name, it.commit));
        assert_eq!(owner(&snapshot), Some(("org/name".to_owned(), Some("aaa".to_owned()))));
        assert_eq!(owner(&folder), Some(("org/other".to_owned(), None)));
        assert_eq!(owner(&dir.model("elsewhere/x")), None);
        assert_eq!(owner(&dir.path().join("folder")), None);
    }
}
