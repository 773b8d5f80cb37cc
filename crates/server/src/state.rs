//! The state shared by all handlers.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use jackalope_serving::auth::ApiKeys;
use jackalope_serving::jobs::{Copier, Copies};
use jackalope_serving::journal::{Journal, RequestLog, SpanExporter};
use jackalope_serving::limits::ServerLimits;
use jackalope_serving::model::RunningModel;
use jackalope_serving::models::Models;
use jackalope_serving::puller::Puller;
use jackalope_serving::state::ServingState;
use jackalope_web::{Activity, ClusterDoctor};

use crate::monitor::samples::Samples;
use crate::openai::responses::kept::KeptResponses;
use crate::tls::Tls;
use jackalope_serving::origin::{AllowedHosts, AllowedOrigins};

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
    /// Copies models to other machines; if absent, requests to copy are refused.
    pub copier: Option<Arc<dyn Copier>>,
    /// Diagnoses the machines; if absent, the request is refused.
    pub doctor: Option<Arc<dyn ClusterDoctor>>,
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

/// A server's models and configuration. Cheap to clone. The parts that are needed to answer
/// requests are in [`ServingState`], to which it dereferences.
#[derive(Clone, Debug)]
pub struct ServerState {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    serving: ServingState,
    config: ServerConfig,
    kept_responses: Arc<KeptResponses>,
    samples: Samples,
    activity: Activity,
    copies: Copies,
    /// The port of the first listener; unset until the server listens.
    port: OnceLock<u16>,
}

impl Deref for ServerState {
    type Target = ServingState;

    fn deref(&self) -> &ServingState {
        &self.shared.serving
    }
}

impl ServerState {
    /// Serves one model, whose engine the caller manages.
    pub fn new(model: RunningModel, config: ServerConfig) -> ServerState {
        ServerState::with_models(Models::fixed(model), config)
    }

    /// Serves these models.
    pub fn with_models(models: Models, config: ServerConfig) -> ServerState {
        ServerState::reporting(models, config, Reporting::default())
    }

    /// Serves these models, and reports ended answers.
    pub fn reporting(models: Models, config: ServerConfig, reporting: Reporting) -> ServerState {
        let limits = config.limits.clone();
        let kept_responses = KeptResponses::new(limits.kept_responses, limits.kept_response_bytes);
        let journal = Journal::new(reporting.request_log, reporting.spans);
        let shared = Shared {
            serving: ServingState::new(models, limits, journal),
            kept_responses: Arc::new(kept_responses),
            copies: Copies::new(config.copier.clone()),
            config,
            samples: Samples::default(),
            activity: Activity::default(),
            port: OnceLock::new(),
        };
        ServerState { shared: Arc::new(shared) }
    }

    /// The responses kept for later requests.
    pub(crate) fn kept_responses(&self) -> &Arc<KeptResponses> {
        &self.shared.kept_responses
    }

    pub(crate) fn puller(&self) -> Option<&Arc<dyn Puller>> {
        self.shared.config.puller.as_ref()
    }

    pub(crate) fn api_keys(&self) -> &ApiKeys {
        &self.shared.config.api_keys
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        &self.shared.config
    }

    /// Returns the port of the server's first listener; none until the server listens.
    pub(crate) fn port(&self) -> Option<u16> {
        self.shared.port.get().copied()
    }

    pub(crate) fn listens_on(&self, port: u16) {
        // The first port is kept: a second listener only adds another way to the same server.
        self.shared.port.set(port).ok();
    }

    /// Recent samples of tokens per second and of queue lengths, and the latest losses of ranks.
    pub(crate) fn activity(&self) -> &Activity {
        &self.shared.activity
    }

    /// The copies to other machines.
    pub(crate) fn copies(&self) -> &Copies {
        &self.shared.copies
    }

    /// Recent memory samples.
    pub(crate) fn samples(&self) -> &Samples {
        &self.shared.samples
    }
}
