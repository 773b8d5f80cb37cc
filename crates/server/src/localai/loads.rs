//! The models that LocalAI has loaded, by the names it gave them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::opener::ModelOrder;
use super::options::Drawing;
use jackalope_serving::error::ApiError;
use jackalope_serving::models::Models;

/// Maximum number of names; beyond it, the oldest is dropped.
const NAMES_MAX: usize = 64;

/// The loads of a server.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    /// The newest last.
    loads: Mutex<Vec<Load>>,
    /// Held while a model is being loaded or freed.
    pub(super) changing: tokio::sync::Mutex<()>,
}

/// A model that LocalAI has loaded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Load {
    /// LocalAI's name of the model.
    pub(super) identity: String,
    /// The model's id.
    pub(super) id: String,
    pub(super) drawing: Drawing,
    /// The order that brought the model, unless the server had it already.
    pub(super) order: Option<ModelOrder>,
}

impl Loads {
    fn lock(&self) -> MutexGuard<'_, Vec<Load>> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn remember(&self, load: Load) {
        let mut loads = self.lock();
        loads.retain(|it| it.identity != load.identity);
        if loads.len() == NAMES_MAX {
            loads.remove(0);
        }
        loads.push(load);
    }

    pub(super) fn forget(&self, identity: &str) {
        self.lock().retain(|it| it.identity != identity);
    }

    /// Removes and returns all loads.
    pub(super) fn take_all(&self) -> Vec<Load> {
        std::mem::take(&mut *self.lock())
    }

    /// The load with this identity; the newest one if `identity` is empty.
    pub(super) fn find(&self, identity: &str) -> Option<Load> {
        let loads = self.lock();
        let mut latest = loads.iter().rev();
        latest.find(|it| identity.is_empty() || it.identity == identity).cloned()
    }

    /// The model that a call refers to, and its sampling options. A server's own models can be
    /// called by their names without a load, if it has any.
    pub(super) fn meant(
        &self,
        identity: &str,
        models: &Models,
        has_own_models: bool,
    ) -> Result<(Option<String>, Drawing), ApiError> {
        if let Some(load) = self.find(identity) {
            return Ok((Some(load.id), load.drawing));
        }
        let is_served = has_own_models && (identity.is_empty() || models.is_known(identity));
        match is_served {
            true => Ok(((!identity.is_empty()).then(|| identity.to_owned()), Drawing::default())),
            false if self.lock().is_empty() => {
                Err(ApiError::NotLoaded { model: identity.to_owned() })
            }
            false => {
                Err(ApiError::UnknownModel { found: identity.to_owned(), served: models.served() })
            }
        }
    }
}
