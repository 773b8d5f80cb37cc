//! The models of a machine, as other machines find them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use jackalope_protocol::ExpectedContent;

use crate::content::{ContentError, Hasher};
use crate::files::{self, FoundFile};
use crate::{HashCache, Hashing, Manifest, ModelRef, Record, Stores};

/// The models of a machine. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Library {
    /// Stores that are searched for models.
    pub stores: Stores,
    /// File in which hashes of files are cached.
    pub hashes_path: Option<PathBuf>,
    /// Directory in which hashes of blocks are cached.
    pub trees_dir: Option<PathBuf>,
    /// Folder for copies; if absent, no copies are made.
    pub copies_dir: Option<PathBuf>,
    /// Directories that copies are being written to.
    busy: Arc<Mutex<HashSet<PathBuf>>>,
}

/// A model in a store, and its files.
pub(super) struct ListedModel {
    pub(super) name: String,
    pub(super) commit: Option<String>,
    pub(super) dir: PathBuf,
    pub(super) files: Vec<FoundFile>,
}

impl Library {
    /// Creates a library of these stores. Hashes of blocks are not cached.
    pub fn new(
        stores: Stores,
        hashes_path: Option<PathBuf>,
        copies_dir: Option<PathBuf>,
    ) -> Library {
        Library { stores, hashes_path, copies_dir, trees_dir: None, busy: Arc::default() }
    }

    /// Sets the directory in which hashes of blocks are cached.
    pub fn with_trees(self, trees_dir: Option<PathBuf>) -> Library {
        Library { trees_dir, ..self }
    }

    /// Hashes the files of a model that ranks would read.
    pub(super) fn content(
        &self,
        dir: &Path,
        on_bytes: &(dyn Fn(u64) + Sync),
        is_cancelled: &AtomicBool,
    ) -> Result<ExpectedContent, ContentError> {
        let hasher = Hasher::new(self.trees_dir.as_deref(), on_bytes);
        Ok(hasher.cancelled_by(is_cancelled).hash_dir(dir)?.into())
    }

    /// Hashes the files in a directory whose hashes are not cached.
    pub(super) fn manifest(
        &self,
        dir: &Path,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<Manifest, String> {
        let mut known = self.hashes_path.as_deref().map(HashCache::load).unwrap_or_default();
        let manifest = Manifest::of_dir(dir, &mut known, Hashing::new(on_bytes));
        if let (Ok(_), Some(path)) = (&manifest, &self.hashes_path) {
            // If this fails, the files are read again next time.
            known.save(path).ok();
        }
        manifest.map_err(|err| err.to_string())
    }

    pub(super) fn find(&self, model: &str) -> Result<ListedModel, String> {
        let (name, commit, dir) = if model.starts_with('/') {
            self.at_path(Path::new(model))?
        } else {
            let wanted: ModelRef = model.parse().map_err(|err| format!("{err}"))?;
            let found = self.stores.resolve(&wanted).map_err(|err| err.to_string())?;
            (found.name, found.commit, found.dir)
        };
        let files = files::list(&dir).map_err(|err| err.to_string())?;
        Ok(ListedModel { name, commit, dir, files })
    }

    /// Returns the name, the commit and the directory of the model in `dir`, which must contain a
    /// `config.json`.
    fn at_path(&self, dir: &Path) -> Result<(String, Option<String>, PathBuf), String> {
        if !dir.join("config.json").is_file() {
            return Err(format!("there is no model at {}", dir.display()));
        }
        if let Some(found) = self.stores.owner(dir) {
            return Ok((found.name, found.commit, found.dir));
        }
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, Record::read(dir).map(|it| it.commit), dir.to_owned()))
    }
}

/// Marks a directory as being filled while this value lives.
pub(super) struct Busy<'a> {
    library: &'a Library,
    dir: PathBuf,
}

impl<'a> Busy<'a> {
    /// Marks `dir`; returns `None` if another copy is being written there.
    pub(super) fn mark(library: &'a Library, dir: &Path) -> Option<Busy<'a>> {
        let mut busy = library.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.insert(dir.to_owned()).then(|| Busy { library, dir: dir.to_owned() })
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.library.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.dir);
    }
}
