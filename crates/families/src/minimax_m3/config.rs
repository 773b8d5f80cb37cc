//! The fields of `MiniMax` M3's configurations, and what they say of a layer.

use serde::Deserialize;

use crate::blocks::{ExpertCounts, ExpertSizes};
use crate::decoder::{DecoderConfig, Sizes};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, factor};
use jackalope_spec::{Activation, AttentionSpec, QkNorm, RouterScores, RouterSpec};

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) intermediate_size: u32,
    pub(super) dense_intermediate_size: u32,
    pub(super) shared_intermediate_size: u32,
    pub(super) num_key_value_heads: u32,
    pub(super) head_dim: u32,
    pub(super) rotary_dim: Option<u32>,
    pub(super) num_local_experts: u32,
    pub(super) num_experts_per_tok: u32,
    pub(super) routed_scaling_factor: f32,
    pub(super) use_qk_norm: bool,
    pub(super) use_gemma_norm: bool,
    pub(super) swiglu_alpha: f32,
    pub(super) swiglu_limit: f32,
    pub(super) mlp_layer_types: Option<Vec<String>>,
    pub(super) moe_layer_freq: Option<Vec<u32>>,
    pub(super) layer_types: Option<Vec<String>>,
    pub(super) sparse_attention_freq: Option<Vec<u32>>,
    pub(super) index_n_heads: Option<u32>,
    pub(super) index_head_dim: Option<u32>,
    pub(super) index_block_size: Option<u32>,
    pub(super) index_topk_blocks: Option<u32>,
    pub(super) index_local_blocks: usize,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

impl Config {
    pub(super) fn activation(&self) -> Result<[f32; 2], SpecError> {
        let alpha = factor("swiglu_alpha", self.swiglu_alpha)?;
        Ok([alpha, factor("swiglu_limit", self.swiglu_limit)?])
    }

    pub(super) fn attention(&self, sizes: Sizes) -> Result<AttentionSpec, SpecError> {
        let head_dim = dimension("head_dim", self.head_dim)?;
        let rope = &self.decoder.rope;
        let rotated = match self.rotary_dim {
            Some(dims) => dimension("rotary_dim", dims)?,
            None => rope.rotated_dims(head_dim, None)?,
        };
        let (kv_heads, rope) =
            (sizes.kv_heads(self.num_key_value_heads)?, rope.spec(rotated, None)?);
        Ok(AttentionSpec {
            qk_norm: self.use_qk_norm.then_some(QkNorm::PerHead),
            ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
        })
    }

    pub(super) fn experts(&self, activation: Activation) -> Result<ExpertSizes, SpecError> {
        let counts = ExpertCounts::local(self.num_local_experts, self.num_experts_per_tok)?;
        let inner = dimension("intermediate_size", self.intermediate_size)?;
        let shared = dimension("shared_intermediate_size", self.shared_intermediate_size)?;
        let router = RouterSpec {
            scores: RouterScores::Sigmoid,
            normalization_eps: Some(1e-20),
            scale: self.routed_scaling_factor,
            ..RouterSpec::SOFTMAX
        };
        Ok(ExpertSizes {
            shared_inner: Some(shared),
            shared_activation: Some(activation),
            activation,
            ..ExpertSizes::plain(counts, inner, router)
        })
    }
}
