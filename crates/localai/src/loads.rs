//! The models that LocalAI has loaded, by the names it gave them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::opener::ModelOrder;
use crate::options::LoadParams;

/// Maximum number of names; beyond it, the oldest is dropped.
const NAMES_MAX: usize = 64;

/// The models that LocalAI has loaded.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    /// The loads, the newest last.
    loads: Mutex<Vec<Load>>,
    /// Held while a model is being loaded or freed.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

/// A model that LocalAI has loaded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Load {
    /// LocalAI's name of the model.
    pub(crate) identity: String,
    /// The model's id.
    pub(crate) id: String,
    pub(crate) params: LoadParams,
    /// The order that brought the model, unless the server had it already.
    pub(crate) order: Option<ModelOrder>,
}

impl Loads {
    fn lock(&self) -> MutexGuard<'_, Vec<Load>> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn remember(&self, load: Load) {
        let mut loads = self.lock();
        loads.retain(|it| it.identity != load.identity);
        if loads.len() == NAMES_MAX {
            loads.remove(0);
        }
        loads.push(load);
    }

    pub(crate) fn forget(&self, identity: &str) {
        self.lock().retain(|it| it.identity != identity);
    }

    /// Removes and returns all loads.
    pub(crate) fn take_all(&self) -> Vec<Load> {
        std::mem::take(&mut *self.lock())
    }

    /// The load with this identity; the newest load if `identity` is empty.
    pub(crate) fn find(&self, identity: &str) -> Option<Load> {
        let loads = self.lock();
        let mut latest = loads.iter().rev();
        latest.find(|it| identity.is_empty() || it.identity == identity).cloned()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}
