//! What all protocols share to answer requests: the models, the limits, the workers for prompts and
//! the journal; and a model that is open for one request.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use jackalope_engine::RequestLimits;
use jackalope_text::grammar::{CompiledGrammar, Constraint, GrammarError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body_memory::BodyMemory;
use crate::caller::ApiCaller;
use crate::error::ApiError;
use crate::grammars::Grammars;
use crate::jobs::{Jobs, PullJob};
use crate::journal::Journal;
use crate::limits::ServerLimits;
use crate::model::RunningModel;
use crate::models::{Lease, ModelStatus, Models};
use crate::prompt_workers::PromptWorkers;

/// Maximum length of a text whose tokens are only counted or listed, in longest prompts: a text of
/// several megabytes takes gigabytes while it is tokenised.
const COUNTED_PROMPTS_MAX: u32 = 4;

/// The models of a server, and what their requests share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServingState {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    models: Models,
    grammars: Grammars,
    limits: Arc<ServerLimits>,
    open_streams: Arc<Semaphore>,
    body_memory: BodyMemory,
    prompt_workers: PromptWorkers,
    journal: Arc<Journal>,
    pulls: Jobs<PullJob>,
}

impl ServingState {
    /// Creates the state of a server with these models and limits.
    pub fn new(models: Models, limits: ServerLimits, journal: Journal) -> ServingState {
        let limits = Arc::new(limits);
        let shared = Shared {
            models,
            grammars: Grammars::default(),
            open_streams: Arc::new(Semaphore::new(limits.open_streams)),
            body_memory: BodyMemory::new(&limits),
            prompt_workers: PromptWorkers::new(&limits),
            limits,
            journal: Arc::new(journal),
            pulls: Jobs::default(),
        };
        ServingState { shared: Arc::new(shared) }
    }

    /// The downloads that clients started.
    pub fn pulls(&self) -> &Jobs<PullJob> {
        &self.shared.pulls
    }

    /// All models, loaded or not.
    pub fn models(&self) -> &Models {
        &self.shared.models
    }

    /// Opens the model of a request, or the default one if `name` is absent. Waits at most
    /// `load_wait` while the model loads.
    pub async fn open(&self, name: Option<&str>) -> Result<Serving, ApiError> {
        let (model, lease) = self.models().open(name, self.limits()).await?;
        Ok(Serving::new(self.clone(), model, lease))
    }

    /// Like [`ServingState::open`], for clients that know only the names of another provider's models: a
    /// name with the prefix `foreign` that no model has stands for the default model, unless names are
    /// strict.
    pub async fn open_for(
        &self,
        name: Option<&str>,
        foreign: Option<&'static str>,
    ) -> Result<Serving, ApiError> {
        let is_foreign = |it: &str| foreign.is_some_and(|prefix| self.is_foreign(it, prefix));
        self.open(name.filter(|it| !is_foreign(it))).await
    }

    /// Whether a name with this prefix stands for the default model: no model has it, and names are not strict.
    pub fn is_foreign(&self, name: &str, prefix: &str) -> bool {
        let is_allowed = !self.limits().strict_model_names;
        is_allowed && name.starts_with(prefix) && !self.models().is_known(name)
    }

    /// The status of the default model.
    pub fn default_model(&self) -> ModelStatus {
        self.models().status("default").expect("one model is the default")
    }

    /// Limits on what clients may request.
    pub fn limits(&self) -> &Arc<ServerLimits> {
        &self.shared.limits
    }

    /// Time when the server was started.
    pub fn started_at(&self) -> Instant {
        self.shared.journal.started
    }

    /// Records and totals of the answers.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.shared.journal
    }

    /// Number of generation requests that are open now.
    pub fn num_open_streams(&self) -> usize {
        self.limits().open_streams - self.shared.open_streams.available_permits()
    }

    /// Takes a slot for a generation request, which is released when the result is dropped.
    pub fn open_stream(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let limit = self.limits().open_streams;
        Arc::clone(&self.shared.open_streams)
            .try_acquire_owned()
            .map_err(|_| ApiError::TooManyStreams { limit })
    }

    /// The memory for bodies that are arriving.
    pub fn body_memory(&self) -> &BodyMemory {
        &self.shared.body_memory
    }

    /// Runs `work`, which may take long, on a worker thread.
    pub async fn on_a_worker<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let caller = ApiCaller::current();
        let slot = self.shared.prompt_workers.acquire(caller.body_bytes()).await;
        let working =
            tokio::task::spawn_blocking(move || slot.hold_while(|| caller.scope_blocking(work)));
        working.await.unwrap_or_else(|err| {
            Err(ApiError::Internal { what: format!("preparing the prompt failed: {err}") })
        })
    }
}

/// A model that is open for one request, to which it dereferences, and the server's state. The model
/// stays loaded until this value, its clones and their leases are dropped, so a streamed answer keeps
/// one of them until its end.
#[derive(Clone, Debug)]
pub struct Serving {
    state: ServingState,
    model: Arc<RunningModel>,
    lease: Arc<Lease>,
}

impl Deref for Serving {
    type Target = RunningModel;

    fn deref(&self) -> &RunningModel {
        &self.model
    }
}

impl Serving {
    /// Creates the value from a model and the lease that keeps it loaded.
    pub fn new(state: ServingState, model: Arc<RunningModel>, lease: Lease) -> Serving {
        Serving { state, model, lease: Arc::new(lease) }
    }

    /// A lease that keeps the model loaded until it is dropped.
    pub fn lease(&self) -> Arc<Lease> {
        Arc::clone(&self.lease)
    }

    /// The state of the server.
    pub fn state(&self) -> &ServingState {
        &self.state
    }

    /// Compiles a constraint for this model's vocabulary. Takes long for a large constraint that is
    /// not cached.
    pub fn compile(&self, constraint: &Constraint) -> Result<Arc<CompiledGrammar>, GrammarError> {
        self.state.shared.grammars.compile(constraint, &self.model)
    }

    /// The engine's limits, which requests are checked against.
    pub fn engine_limits(&self) -> Result<RequestLimits, ApiError> {
        let loading = || ApiError::Unavailable { reason: "the model is loading".to_owned() };
        self.engine.limits().ok_or_else(loading)
    }

    /// Rejects a text that has more tokens than a prompt may have under any tokenisation, without
    /// tokenising it.
    pub fn check_length(&self, text: &str, param: &'static str) -> Result<(), ApiError> {
        self.check_length_within(1, text, param)
    }

    /// Like [`Serving::check_length`], for a text whose tokens are only counted or listed: it may have
    /// those of [`COUNTED_PROMPTS_MAX`] prompts.
    pub fn check_countable(&self, text: &str, param: &'static str) -> Result<(), ApiError> {
        self.check_length_within(COUNTED_PROMPTS_MAX, text, param)
    }

    fn check_length_within(
        &self,
        num_prompts: u32,
        text: &str,
        param: &'static str,
    ) -> Result<(), ApiError> {
        let limits = self.engine_limits()?;
        let limit_tokens = limits.max_prompt_tokens.min(limits.context_tokens);
        let fewest_tokens = self.text.tokenizer.fewest_tokens(text);
        if limit_tokens.saturating_mul(num_prompts) as usize <= fewest_tokens {
            let prompt_bytes = text.len();
            return Err(ApiError::PromptBytes { param, prompt_bytes, fewest_tokens, limit_tokens });
        }
        Ok(())
    }

    /// Runs `work`, which may take long, on a worker thread, because rendering and tokenising a
    /// long prompt must not delay other streams.
    pub async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Serving) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let serving = self.clone();
        self.state.on_a_worker(move || work(&serving)).await
    }
}
