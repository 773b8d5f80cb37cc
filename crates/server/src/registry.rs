//! A served model, and a request's hold on it.

use std::sync::Arc;

use jackalope_engine::{EngineHandle, RequestLimits, SamplingOptions};
use jackalope_text::ModelText;
use jackalope_text::grammar::{CompiledGrammar, Constraint, GrammarError};

use crate::ServerState;
use crate::error::ApiError;
use crate::ids::unix_seconds;
use crate::models::Lease;

/// A served model: its id, its engine and its text processing.
#[derive(Clone, Debug)]
pub struct Model {
    /// Id of the model in answers and in `/v1/models`.
    pub id: String,
    /// Other names that requests may use. The default model can also be named `default`.
    pub aliases: Vec<String>,
    /// Handle of the engine that computes.
    pub engine: EngineHandle,
    /// Tokenizer and chat template of the same checkpoint.
    pub text: Arc<ModelText>,
    /// Default of whether to reason, for requests that do not say; the template decides if absent.
    pub enable_thinking: Option<bool>,
    /// Default sampling parameters. `seed` and `logit_bias` are not used.
    pub sampling_defaults: SamplingOptions,
    /// Time since when the model is served, in seconds since 1970.
    pub created: u64,
    /// Properties of the checkpoint, if known.
    pub details: Option<ModelDetails>,
}

/// Properties of a checkpoint, for lists of models.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ModelDetails {
    /// `model_type` of its configuration.
    pub family: String,
    /// Number of parameters, estimated from the size of the weights.
    pub num_parameters: u64,
    /// Number of bits of most weights.
    pub weight_bits: Option<u32>,
    /// Size of all weights in bytes.
    pub weights_bytes: u64,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Time of the directory's last change, in seconds since 1970.
    pub modified: u64,
}

impl Model {
    /// Creates a model without aliases and with default sampling parameters.
    pub fn new(id: impl Into<String>, engine: EngineHandle, text: Arc<ModelText>) -> Model {
        Model {
            id: id.into(),
            aliases: Vec::new(),
            engine,
            text,
            enable_thinking: None,
            sampling_defaults: SamplingOptions::default(),
            created: unix_seconds(),
            details: None,
        }
    }
}

/// A model that is open for one request, and the server's state. The model stays loaded until this
/// value, its clones and their leases are dropped, so a streamed answer keeps one of them until its
/// end.
#[derive(Clone, Debug)]
pub(crate) struct Serving {
    state: ServerState,
    model: Arc<Model>,
    lease: Arc<Lease>,
}

impl Serving {
    pub(crate) fn new(state: ServerState, model: Arc<Model>, lease: Lease) -> Serving {
        Serving { state, model, lease: Arc::new(lease) }
    }

    /// A lease that keeps the model loaded until it is dropped.
    pub(crate) fn lease(&self) -> Arc<Lease> {
        Arc::clone(&self.lease)
    }

    pub(crate) fn state(&self) -> &ServerState {
        &self.state
    }

    pub(crate) fn id(&self) -> &str {
        &self.model.id
    }

    pub(crate) fn engine(&self) -> &EngineHandle {
        &self.model.engine
    }

    pub(crate) fn text(&self) -> &ModelText {
        &self.model.text
    }

    pub(crate) fn enable_thinking(&self) -> Option<bool> {
        self.model.enable_thinking
    }

    pub(crate) fn sampling_defaults(&self) -> &SamplingOptions {
        &self.model.sampling_defaults
    }

    /// Compiles a constraint for this model's vocabulary. Takes long for a large one that is not
    /// cached.
    pub(crate) fn compile(
        &self,
        constraint: &Constraint,
    ) -> Result<Arc<CompiledGrammar>, GrammarError> {
        self.state.grammars().compile(constraint, &self.model)
    }

    /// The engine's limits, which requests are checked against.
    pub(crate) fn engine_limits(&self) -> Result<RequestLimits, ApiError> {
        let loading = || ApiError::Unavailable { reason: "the model is loading".to_owned() };
        self.engine().limits().ok_or_else(loading)
    }

    /// Rejects a text that has more tokens than a prompt may have under any tokenisation, without
    /// tokenising it.
    pub(crate) fn check_length(&self, text: &str, param: &'static str) -> Result<(), ApiError> {
        let limits = self.engine_limits()?;
        let limit_tokens = limits.max_prompt_tokens.min(limits.context_tokens);
        let fewest_tokens = self.text().tokenizer.fewest_tokens(text);
        if limit_tokens as usize <= fewest_tokens {
            let prompt_bytes = text.len();
            return Err(ApiError::PromptBytes { param, prompt_bytes, fewest_tokens, limit_tokens });
        }
        Ok(())
    }

    /// Runs `work`, which may take long, on a worker thread, because rendering and tokenising a
    /// long prompt must not delay other streams.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Serving) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let serving = self.clone();
        self.state.on_a_worker(move || work(&serving)).await
    }
}
