//! The machine that a deployment is started on: its directories, the hub to fetch models from, and
//! how progress is shown.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jackalope_fleet::home::Home;
use jackalope_store::exchange::Library;
use jackalope_store::progress::{Progress, Silent};
use jackalope_store::pull::{Destination, HubAccess, PullConfig};
use jackalope_store::{ModelStore, RepoId, StoreKind, Stores};

use crate::error::DeployError;
use crate::models::FixedLibrary;

/// Shows people what happens.
pub trait Observer: Progress {
    /// Shows a message about progress, or about a problem that ends nothing.
    fn note(&self, text: &str);
}

impl Observer for Silent {
    /// Only logs the message.
    fn note(&self, text: &str) {
        tracing::info!("{text}");
    }
}

/// The directories of this machine, the hub that it fetches models from, and the observer that
/// shows people what happens.
#[derive(Clone, Debug)]
pub struct LocalContext {
    /// Jackalope's own directory.
    pub home: Option<PathBuf>,
    /// Directories of models, in the order in which they are searched.
    pub places: Vec<ModelStore>,
    /// Directory for files that can be computed or fetched again.
    pub cache_dir: Option<PathBuf>,
    /// The hub to fetch models from.
    pub hub: HubAccess,
    /// Shows progress and messages.
    pub observer: Arc<dyn Observer>,
    /// The library that this process has opened on a chosen port.
    pub fixed_library: FixedLibrary,
}

impl LocalContext {
    /// Creates a context with `home` as jackalope's own directory. The context has no directories
    /// of models and no hub, and shows nothing.
    pub fn new(home: impl Into<PathBuf>) -> LocalContext {
        LocalContext {
            home: Some(home.into()),
            places: Vec::new(),
            cache_dir: None,
            hub: HubAccess::default(),
            observer: Arc::new(Silent),
            fixed_library: FixedLibrary::default(),
        }
    }

    /// Returns jackalope's own directory on this machine.
    ///
    /// # Errors
    /// If the directory is unknown.
    pub fn home(&self) -> Result<Home, DeployError> {
        self.home.clone().map(Home::new).ok_or(DeployError::NoHome)
    }

    /// Returns the directories that are searched for models.
    pub fn stores(&self) -> Stores {
        Stores::new(self.places.iter().cloned())
    }

    /// Returns the library that offers this machine's models to others. Copies from other machines
    /// go into the directory of models.
    pub fn library(&self) -> Library {
        let stores = self.stores();
        let folder = stores.places().iter().find(|place| place.kind == StoreKind::Folder);
        let copies_dir = folder.map(|place| place.root.clone());
        Library::new(stores, self.hashes_path(), copies_dir).with_trees(self.trees_dir())
    }

    /// Returns the cache that models are pulled into.
    pub fn pull_cache(&self) -> Option<&Path> {
        let cache = self.places.iter().find(|place| place.kind == StoreKind::HubCache);
        cache.map(|place| place.root.as_path())
    }

    /// Returns the directory of the cached block hashes of checkpoints.
    pub fn trees_dir(&self) -> Option<PathBuf> {
        self.home.as_ref().map(|home| home.join("trees"))
    }

    /// Returns the file in which hashes of files are cached.
    pub fn hashes_path(&self) -> Option<PathBuf> {
        self.cache_dir.as_ref().map(|dir| dir.join("hashes.json"))
    }

    /// Returns the configuration of pulls.
    pub fn pull_config(&self) -> PullConfig {
        PullConfig {
            hashes_path: self.hashes_path(),
            trees_dir: self.trees_dir(),
            progress: Arc::<dyn Observer>::clone(&self.observer),
            ..PullConfig::new(self.hub.clone())
        }
    }

    /// Returns the default destination of a pull: Hugging Face's cache, which other programs share.
    ///
    /// # Errors
    /// If there is no such cache.
    pub fn pull_destination(&self, repo: &RepoId) -> Result<Destination, DeployError> {
        match self.pull_cache() {
            Some(root) => Ok(Destination::cache(root, repo)?),
            None => Err(DeployError::NoModelsDir),
        }
    }
}
