//! A served model.

use std::sync::Arc;

use jackalope_engine::{EngineHandle, SamplingOptions};
use jackalope_text::ModelText;

use crate::ids::unix_seconds;

/// A served model: its id, its engine and its text processing.
#[derive(Clone, Debug)]
pub struct RunningModel {
    /// Id of the model in answers and in `/v1/models`.
    pub id: String,
    /// Other names that requests may use. The default model can also be named `default`.
    pub aliases: Vec<String>,
    /// Handle of the engine that computes.
    pub engine: EngineHandle,
    /// Tokenizer and chat template of the same checkpoint.
    pub text: Arc<ModelText>,
    /// Whether the model reasons if the request leaves this open; the template decides if absent.
    pub enable_thinking: Option<bool>,
    /// Default sampling parameters. `seed` and `logit_bias` are not used.
    pub sampling_defaults: SamplingOptions,
    /// Time from which on the model is served, in seconds since 1970.
    pub created: u64,
    /// Properties of the checkpoint, if known.
    pub details: Option<ModelDetails>,
}

/// Properties of a checkpoint, for lists of models.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ModelDetails {
    /// `model_type` of the checkpoint's configuration.
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

impl RunningModel {
    /// Creates a model without aliases and with default sampling parameters.
    pub fn new(id: impl Into<String>, engine: EngineHandle, text: Arc<ModelText>) -> RunningModel {
        RunningModel {
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
