//! A model that answers, and what a request holds of it.

use std::sync::Arc;

use jackalope_engine::{EngineHandle, Limits, SamplingOptions};
use jackalope_text::ModelText;
use jackalope_text::grammar::{CompiledGrammar, Constraint, GrammarError};

use crate::ServerState;
use crate::error::ApiError;
use crate::ids::unix_seconds;
use crate::models::Lease;

/// A model that answers: its id, its engine, its text.
#[derive(Clone, Debug)]
pub struct Model {
    /// What answers call it, and `/v1/models` lists.
    pub id: String,
    /// Further names that requests may use. `default` is one of the default model's.
    pub aliases: Vec<String>,
    /// Who computes.
    pub engine: EngineHandle,
    /// Words to tokens and back; of the same checkpoint.
    pub text: Arc<ModelText>,
    /// Whether it thinks aloud for requests that do not say; the template decides if absent.
    pub enable_thinking: Option<bool>,
    /// How tokens are drawn for requests that do not say. `seed` and `logit_bias` are not read.
    pub sampling_defaults: SamplingOptions,
    /// When it began to be served, in seconds since 1970.
    pub created: u64,
    /// What is known of its checkpoint.
    pub details: Option<ModelDetails>,
}

/// What lists of models tell of a checkpoint.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ModelDetails {
    /// `model_type` of its configuration.
    pub family: String,
    /// Weights, as far as their bytes tell.
    pub num_parameters: u64,
    /// Bits of most weights.
    pub weight_bits: Option<u32>,
    /// Bytes of all weights.
    pub weights_bytes: u64,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// When its directory was changed last, in seconds since 1970.
    pub modified: u64,
}

impl Model {
    /// A model without aliases, drawn from as it is.
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

/// A model at work for one request, and the server around it. It stays loaded until this, its clones
/// and their leases are gone, so whoever streams an answer holds one of them until its end.
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

    /// Keeps the model loaded for as long as it is held.
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

    /// A grammar of this model's tokens. Takes long for a large one that was not asked for lately.
    pub(crate) fn compile(
        &self,
        constraint: &Constraint,
    ) -> Result<Arc<CompiledGrammar>, GrammarError> {
        self.state.grammars().compile(constraint, &self.model)
    }

    /// What requests are checked against.
    pub(crate) fn engine_limits(&self) -> Result<Limits, ApiError> {
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

    /// Runs `work`, which may take long, on a thread of its own: rendering and tokenising a long
    /// prompt must not hold up the streams of others.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Serving) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let serving = self.clone();
        self.state.on_a_worker(move || work(&serving)).await
    }
}
