//! The models that a server can start.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::MODELS_MAX;
use crate::served_models::ServedModel;

/// The models that can be started; models can be added and removed. Each keeps its position,
/// because ports follow from it.
#[derive(Clone, Debug)]
pub struct ModelRegistry(Arc<Mutex<Vec<ServedModel>>>);

impl ModelRegistry {
    /// Creates a registry of these models.
    pub(crate) fn new(models: Vec<ServedModel>) -> ModelRegistry {
        ModelRegistry(Arc::new(Mutex::new(models)))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ServedModel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the position and the model with this id.
    ///
    /// # Panics
    /// If there is no such model: a server starts only models of its registry.
    pub fn model(&self, id: &str) -> (u16, ServedModel) {
        let models = self.lock();
        let at = models.iter().position(|it| it.id == id).expect("the server knows only these");
        (u16::try_from(at).unwrap_or(u16::MAX), models[at].clone())
    }

    /// Adds a model, or replaces the one with the same id, which may have been removed. Returns
    /// false if there are too many.
    pub fn add(&self, model: ServedModel) -> bool {
        let mut models = self.lock();
        let at = models.iter().position(|it| it.id == model.id);
        match at {
            Some(at) => models[at] = model,
            None if models.len() < MODELS_MAX => models.push(model),
            None => return false,
        }
        true
    }
}
