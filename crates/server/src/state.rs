//! What every handler shares.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::ApiKeys;
use crate::error::ApiError;
use crate::limits::ServerLimits;
use crate::models::Models;
use crate::registry::{Model, Serving};

/// Everything about a server but its models. The default serves everybody, with the usual limits.
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    /// What clients may ask for.
    pub limits: ServerLimits,
    /// Who may ask; with none, everybody may.
    pub api_keys: ApiKeys,
    /// Who may load and unload models.
    pub model_control: ModelControl,
}

/// Who may load and unload models by `/model/load`, `/model/unload` and `/model/gc`.
#[derive(Clone, Debug, Default)]
pub enum ModelControl {
    /// Nobody.
    #[default]
    Nobody,
    /// Whoever may use the server.
    Everybody,
    /// Those who present one of these keys, which have to be among [`ServerConfig::api_keys`] if there
    /// are any.
    Keys(ApiKeys),
}

/// A server's models and configuration. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServerState {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    models: Models,
    config: ServerConfig,
    limits: Arc<ServerLimits>,
    open_streams: Arc<Semaphore>,
    prompt_workers: Arc<Semaphore>,
    started_at: Instant,
}

impl ServerState {
    /// Serves one model, whose engine is the caller's.
    pub fn new(model: Model, config: ServerConfig) -> ServerState {
        ServerState::with_models(Models::fixed(model), config)
    }

    /// Serves these models.
    pub fn with_models(models: Models, config: ServerConfig) -> ServerState {
        let limits = Arc::new(config.limits.clone());
        let shared = Shared {
            models,
            open_streams: Arc::new(Semaphore::new(limits.open_streams)),
            prompt_workers: Arc::new(Semaphore::new(limits.prompt_workers)),
            limits,
            config,
            started_at: Instant::now(),
        };
        ServerState { shared: Arc::new(shared) }
    }

    /// All models, loaded or not.
    pub(crate) fn models(&self) -> &Models {
        &self.shared.models
    }

    /// The model that a request is for, or the default one if it does not say. Waits while it is
    /// loaded, within bounds.
    pub(crate) async fn open(&self, name: Option<&str>) -> Result<Serving, ApiError> {
        let (model, lease) = self.models().open(name, self.limits()).await?;
        Ok(Serving::new(self.clone(), model, lease))
    }

    pub(crate) fn model_control(&self) -> &ModelControl {
        &self.shared.config.model_control
    }

    pub(crate) fn limits(&self) -> &Arc<ServerLimits> {
        &self.shared.limits
    }

    pub(crate) fn api_keys(&self) -> &ApiKeys {
        &self.shared.config.api_keys
    }

    pub(crate) fn started_at(&self) -> Instant {
        self.shared.started_at
    }

    /// Generation requests that are open now.
    pub(crate) fn num_open_streams(&self) -> usize {
        self.limits().open_streams - self.shared.open_streams.available_permits()
    }

    /// Takes one of the places for generation requests until the result is dropped.
    pub(crate) fn open_stream(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let limit = self.limits().open_streams;
        Arc::clone(&self.shared.open_streams)
            .try_acquire_owned()
            .map_err(|_| ApiError::TooManyStreams { limit })
    }

    /// Runs `work`, which may take long, on a thread of its own.
    pub(crate) async fn on_a_worker<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let workers = Arc::clone(&self.shared.prompt_workers);
        let place = workers.acquire_owned().await.expect("the semaphore is never closed");
        let working = tokio::task::spawn_blocking(move || {
            let _place = place;
            work()
        });
        working.await.unwrap_or_else(|err| {
            Err(ApiError::Internal { what: format!("preparing the prompt failed: {err}") })
        })
    }
}
