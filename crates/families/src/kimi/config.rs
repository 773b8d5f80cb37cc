//! The fields of Kimi Linear's configurations, and what they say of a layer.

use serde::Deserialize;

use crate::decoder::{DecoderConfig, Sizes};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension};
use jackalope_spec::{GatedDeltaSizes, LatentSpec};

/// Positions that a convolution sees, where their number is not stated.
const CONV_WIDTH: u32 = 4;

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) intermediate_size: u32,
    head_dim: u32,
    pub(super) linear_attn_config: Linear,
    kv_lora_rank: u32,
    pub(super) q_lora_rank: Option<u32>,
    qk_nope_head_dim: Option<u32>,
    qk_rope_head_dim: Option<u32>,
    v_head_dim: Option<u32>,
    mla_use_nope: Option<bool>,
    pub(super) num_experts: u32,
    pub(super) moe_intermediate_size: u32,
    pub(super) num_experts_per_token: Option<u32>,
    pub(super) num_shared_experts: Option<u32>,
    pub(super) moe_router_activation_func: Option<String>,
    pub(super) moe_renormalize: Option<bool>,
    pub(super) routed_scaling_factor: Option<f32>,
    #[serde(default)]
    pub(super) first_k_dense_replace: usize,
    pub(super) moe_layer_freq: Option<u32>,
    pub(super) num_expert_group: Option<u32>,
    pub(super) topk_group: Option<u32>,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

#[derive(Debug, Deserialize)]
pub(super) struct Linear {
    num_heads: u32,
    head_dim: u32,
    short_conv_kernel_size: Option<u32>,
    /// Numbers of the layers with Kimi delta attention; the first layer is 1.
    kda_layers: Vec<usize>,
    pub(super) gate_lower_bound: Option<f32>,
    #[serde(default)]
    pub(super) use_full_rank_gate: bool,
}

impl Config {
    /// Whether a layer has Kimi delta attention.
    pub(super) fn is_linear(&self, layer_idx: usize) -> bool {
        self.linear_attn_config.kda_layers.contains(&(layer_idx + 1))
    }

    pub(super) fn delta(&self) -> Result<GatedDeltaSizes, SpecError> {
        let linear = &self.linear_attn_config;
        let heads = dimension("linear_attn_config.num_heads", linear.num_heads)?;
        let head_dim = dimension("linear_attn_config.head_dim", linear.head_dim)?;
        let width = linear.short_conv_kernel_size.unwrap_or(CONV_WIDTH);
        Ok(GatedDeltaSizes {
            key_heads: heads,
            value_heads: heads,
            key_dim: head_dim,
            value_dim: head_dim,
            conv_width: dimension("linear_attn_config.short_conv_kernel_size", width)?,
        })
    }

    pub(super) fn latent(&self, sizes: &Sizes) -> Result<LatentSpec, SpecError> {
        if self.mla_use_nope == Some(false) {
            return Err(bad_value("mla_use_nope", false, "true"));
        }
        // As in mlx-lm, 0 is as good as absent.
        let or_head = |field, stated: Option<u32>| {
            dimension(field, stated.filter(|it| *it != 0).unwrap_or(self.head_dim))
        };
        let nope_dim = or_head("qk_nope_head_dim", self.qk_nope_head_dim)?;
        let rope_dim = self.qk_rope_head_dim.filter(|it| *it != 0);
        let rope_dim = rope_dim.map_or(Ok(0), |it| dimension("qk_rope_head_dim", it))?;
        Ok(LatentSpec {
            heads: sizes.heads,
            nope_dim,
            rope_dim,
            value_dim: or_head("v_head_dim", self.v_head_dim)?,
            kv_rank: dimension("kv_lora_rank", self.kv_lora_rank)?,
            q_rank: self.q_lora_rank.map(|rank| dimension("q_lora_rank", rank)).transpose()?,
            has_bias: false,
            norm_eps: self.decoder.rms_norm_eps,
            scale: 1.0 / ((nope_dim + rope_dim) as f64).sqrt(),
            latent_factor: 1.0,
            rope: None,
            query_growth: None,
            may_join_down: false,
            choice: None,
            gate_width: None,
            module: String::new(),
            output: "o_proj".to_owned(),
        })
    }
}
