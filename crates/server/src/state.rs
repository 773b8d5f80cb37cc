//! What every handler shares.

use std::sync::Arc;
use std::time::Instant;

use jackalope_engine::{EngineHandle, Limits, SamplingOptions};
use jackalope_text::ModelText;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::ApiKeys;
use crate::error::ApiError;
use crate::grammars::Grammars;
use crate::ids::unix_seconds;
use crate::limits::ServerLimits;

/// The names of the model that is served.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ServedModel {
    /// What answers call it, and `/v1/models` lists.
    pub id: String,
    /// Further names that requests may use. `default` always is one.
    pub aliases: Vec<String>,
}

impl ServedModel {
    /// True if a request for `name` is for this model.
    pub(crate) fn answers_to(&self, name: &str) -> bool {
        name == self.id || name == "default" || self.aliases.iter().any(|alias| alias == name)
    }
}

/// Everything about a server but the engine and the text.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The model's names.
    pub model: ServedModel,
    /// What clients may ask for.
    pub limits: ServerLimits,
    /// Who may ask; with none, everybody may.
    pub api_keys: ApiKeys,
    /// Whether models that can think aloud do, for requests that do not say; the template decides if
    /// absent.
    pub enable_thinking: Option<bool>,
    /// How tokens are drawn for requests that do not say. `seed` and `logit_bias` are not read.
    pub sampling_defaults: SamplingOptions,
}

impl ServerConfig {
    /// Serves a model to everybody, with the usual limits.
    pub fn new(model_id: impl Into<String>) -> ServerConfig {
        ServerConfig {
            model: ServedModel { id: model_id.into(), aliases: Vec::new() },
            limits: ServerLimits::default(),
            api_keys: ApiKeys::default(),
            enable_thinking: None,
            sampling_defaults: SamplingOptions::default(),
        }
    }
}

/// A server's engine, text and configuration. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServerState {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: EngineHandle,
    text: Arc<ModelText>,
    grammars: Grammars,
    config: ServerConfig,
    limits: Arc<ServerLimits>,
    open_streams: Arc<Semaphore>,
    prompt_workers: Arc<Semaphore>,
    started_at: Instant,
    started_unix_seconds: u64,
}

impl ServerState {
    /// Serves what `engine` computes; `text` is of the same checkpoint.
    pub fn new(engine: EngineHandle, text: Arc<ModelText>, config: ServerConfig) -> ServerState {
        let limits = Arc::new(config.limits.clone());
        let shared = Shared {
            engine,
            text,
            grammars: Grammars::default(),
            open_streams: Arc::new(Semaphore::new(limits.open_streams)),
            prompt_workers: Arc::new(Semaphore::new(limits.prompt_workers)),
            limits,
            config,
            started_at: Instant::now(),
            started_unix_seconds: unix_seconds(),
        };
        ServerState { shared: Arc::new(shared) }
    }

    pub(crate) fn engine(&self) -> &EngineHandle {
        &self.shared.engine
    }

    pub(crate) fn text(&self) -> &ModelText {
        &self.shared.text
    }

    pub(crate) fn grammars(&self) -> &Grammars {
        &self.shared.grammars
    }

    pub(crate) fn model(&self) -> &ServedModel {
        &self.shared.config.model
    }

    pub(crate) fn limits(&self) -> &Arc<ServerLimits> {
        &self.shared.limits
    }

    pub(crate) fn api_keys(&self) -> &ApiKeys {
        &self.shared.config.api_keys
    }

    pub(crate) fn enable_thinking(&self) -> Option<bool> {
        self.shared.config.enable_thinking
    }

    pub(crate) fn sampling_defaults(&self) -> &SamplingOptions {
        &self.shared.config.sampling_defaults
    }

    pub(crate) fn started_at(&self) -> Instant {
        self.shared.started_at
    }

    pub(crate) fn started_unix_seconds(&self) -> u64 {
        self.shared.started_unix_seconds
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

    /// What requests are checked against.
    pub(crate) fn engine_limits(&self) -> Result<Limits, ApiError> {
        let loading = || ApiError::Unavailable { reason: "the model is loading".to_owned() };
        self.engine().limits().ok_or_else(loading)
    }

    /// Runs `work`, which may take long, on a thread of its own: rendering and tokenising a long
    /// prompt must not hold up the streams of others.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ServerState) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let workers = Arc::clone(&self.shared.prompt_workers);
        let place = workers.acquire_owned().await.expect("the semaphore is never closed");
        let state = self.clone();
        let working = tokio::task::spawn_blocking(move || {
            let _place = place;
            work(&state)
        });
        working.await.unwrap_or_else(|err| {
            Err(ApiError::Internal { what: format!("preparing the prompt failed: {err}") })
        })
    }
}
