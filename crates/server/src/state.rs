//! The state shared by all handlers.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::ApiKeys;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::grammars::Grammars;
use crate::journal::{Journal, RequestLog};
use crate::limits::ServerLimits;
use crate::localai::{Loads, ModelOpener};
use crate::models::{ModelStatus, Models};
use crate::monitor::Samples;
use crate::ollama::Puller;
use crate::openai::responses::KeptResponses;
use crate::origin::{AllowedHosts, AllowedOrigins};
use crate::otlp::SpanExporter;
use crate::prompt_workers::PromptWorkers;
use crate::registry::{Model, Serving};
use crate::tls::Tls;

/// The configuration of a server apart from its models. The default requires no keys and has the
/// default limits.
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    /// Limits on what clients may request.
    pub limits: ServerLimits,
    /// The accepted keys; without any, no key is required.
    pub api_keys: ApiKeys,
    /// Fetches models for clients; if absent, requests to fetch a model that is not served are
    /// refused.
    pub puller: Option<Arc<dyn Puller>>,
    /// Brings models that LocalAI names; if absent, only the server's own models can be named.
    pub opener: Option<Arc<dyn ModelOpener>>,
    /// Whether models can be loaded and unloaded by `/model/load`, `/model/unload` and `/model/gc`.
    /// If keys are required, only administrators may do so.
    pub model_control: bool,
    /// Origins whose pages may read answers.
    pub origins: AllowedOrigins,
    /// Host names that the server answers to.
    pub hosts: AllowedHosts,
    /// Certificate for HTTPS; plain HTTP if absent.
    pub tls: Option<Tls>,
    /// Returns the number of log lines dropped because the log's queue was full, for `/metrics`.
    pub log_lines_dropped: Option<fn() -> u64>,
}

/// Where a server reports ended answers, in addition to its own endpoints.
#[derive(Debug, Default)]
pub struct Reporting {
    /// Log with one line per ended answer.
    pub request_log: Option<RequestLog>,
    /// Exporter of one span per ended answer.
    pub spans: Option<SpanExporter>,
}

/// A server's models and configuration. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServerState {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    models: Models,
    grammars: Grammars,
    config: ServerConfig,
    limits: Arc<ServerLimits>,
    open_streams: Arc<Semaphore>,
    prompt_workers: PromptWorkers,
    kept_responses: Arc<KeptResponses>,
    loads: Loads,
    journal: Arc<Journal>,
    samples: Samples,
    /// The port that the server listens on, once it does.
    port: OnceLock<u16>,
}

impl ServerState {
    /// Serves one model, whose engine the caller manages.
    pub fn new(model: Model, config: ServerConfig) -> ServerState {
        ServerState::with_models(Models::fixed(model), config)
    }

    /// Serves these models.
    pub fn with_models(models: Models, config: ServerConfig) -> ServerState {
        ServerState::reporting(models, config, Reporting::default())
    }

    /// Serves these models, and reports ended answers.
    pub fn reporting(models: Models, config: ServerConfig, reporting: Reporting) -> ServerState {
        let limits = Arc::new(config.limits.clone());
        let shared = Shared {
            models,
            grammars: Grammars::default(),
            open_streams: Arc::new(Semaphore::new(limits.open_streams)),
            prompt_workers: PromptWorkers::new(&limits),
            kept_responses: Arc::new(KeptResponses::new(
                limits.kept_responses,
                limits.kept_response_bytes,
            )),
            limits,
            config,
            loads: Loads::default(),
            journal: Arc::new(Journal::new(reporting.request_log, reporting.spans)),
            samples: Samples::default(),
            port: OnceLock::new(),
        };
        ServerState { shared: Arc::new(shared) }
    }

    /// All models, loaded or not.
    pub(crate) fn models(&self) -> &Models {
        &self.shared.models
    }

    /// Opens the model of a request, or the default one if `name` is absent. Waits at most
    /// `load_wait` while the model loads.
    pub(crate) async fn open(&self, name: Option<&str>) -> Result<Serving, ApiError> {
        let (model, lease) = self.models().open(name, self.limits()).await?;
        Ok(Serving::new(self.clone(), model, lease))
    }

    /// The status of the default model.
    pub(crate) fn default_model(&self) -> ModelStatus {
        self.models().status("default").expect("one model is the default")
    }

    pub(crate) fn grammars(&self) -> &Grammars {
        &self.shared.grammars
    }

    pub(crate) fn limits(&self) -> &Arc<ServerLimits> {
        &self.shared.limits
    }

    /// The responses kept for later requests.
    pub(crate) fn kept_responses(&self) -> &Arc<KeptResponses> {
        &self.shared.kept_responses
    }

    /// The models that LocalAI has loaded.
    pub(crate) fn loads(&self) -> &Loads {
        &self.shared.loads
    }

    pub(crate) fn puller(&self) -> Option<&Arc<dyn Puller>> {
        self.shared.config.puller.as_ref()
    }

    pub(crate) fn api_keys(&self) -> &ApiKeys {
        &self.shared.config.api_keys
    }

    pub(crate) fn started_at(&self) -> Instant {
        self.shared.journal.started
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        &self.shared.config
    }

    /// The port that the server listens on, once it does.
    pub(crate) fn port(&self) -> Option<u16> {
        self.shared.port.get().copied()
    }

    pub(crate) fn listens_on(&self, port: u16) {
        // The first port is kept: a second listener only adds another way to the same server.
        self.shared.port.set(port).ok();
    }

    /// Recent memory samples.
    pub(crate) fn samples(&self) -> &Samples {
        &self.shared.samples
    }

    /// Records and totals of the answers.
    pub(crate) fn journal(&self) -> &Arc<Journal> {
        &self.shared.journal
    }

    /// Number of generation requests that are open now.
    pub(crate) fn num_open_streams(&self) -> usize {
        self.limits().open_streams - self.shared.open_streams.available_permits()
    }

    /// Takes a slot for a generation request, which is released when the result is dropped.
    pub(crate) fn open_stream(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let limit = self.limits().open_streams;
        Arc::clone(&self.shared.open_streams)
            .try_acquire_owned()
            .map_err(|_| ApiError::TooManyStreams { limit })
    }

    /// Runs `work`, which may take long, on a worker thread.
    pub(crate) async fn on_a_worker<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let caller = Caller::current();
        let place = self.shared.prompt_workers.acquire(caller.body_bytes()).await;
        let working = tokio::task::spawn_blocking(move || {
            let _place = place;
            caller.scope_blocking(work)
        });
        working.await.unwrap_or_else(|err| {
            Err(ApiError::Internal { what: format!("preparing the prompt failed: {err}") })
        })
    }
}
