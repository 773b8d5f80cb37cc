//! The fields of Nemotron-H's configurations, and what they say of mixers and dense blocks.

use crate::blocks::{Block, dense};
use crate::decoder::{DecoderConfig, Sizes};
use crate::state_space::{StateSpaceConfig, StateSpaceLayer};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension};
use jackalope_config::rope::RopeSpec;
use jackalope_spec::{Activation, AttentionSpec, GroupNormSpec, MlpModules, MlpSpec};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) hybrid_override_pattern: Option<Pattern>,
    pub(super) layers_block_type: Option<Vec<String>>,
    pub(super) layer_types: Option<Vec<String>>,
    pub(super) intermediate_size: u32,
    pub(super) num_key_value_heads: u32,
    pub(super) head_dim: Option<u32>,
    pub(super) attention_bias: bool,
    pub(super) mlp_bias: bool,
    pub(super) mlp_hidden_act: Option<String>,
    pub(super) moe_intermediate_size: Option<u32>,
    pub(super) moe_shared_expert_intermediate_size: Option<u32>,
    pub(super) moe_latent_size: Option<u32>,
    pub(super) n_routed_experts: Option<u32>,
    pub(super) n_shared_experts: Option<u32>,
    pub(super) num_experts_per_tok: Option<u32>,
    pub(super) norm_topk_prob: Option<bool>,
    pub(super) routed_scaling_factor: Option<f32>,
    pub(super) n_group: Option<u32>,
    pub(super) topk_group: Option<u32>,
    #[serde(flatten)]
    pub(super) space: StateSpaceConfig,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

/// The letters of the layers, in one string or one by one.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected letters in one string or in a list")]
pub(super) enum Pattern {
    Text(String),
    Letters(Vec<String>),
}

impl Config {
    /// Returns a letter for each layer: `M`, `*`, `-` or `E`, or what else the configuration states.
    pub(super) fn letters(&self) -> Result<Vec<String>, SpecError> {
        let types = self.layers_block_type.as_ref().filter(|types| !types.is_empty());
        match (&self.hybrid_override_pattern, types.or(self.layer_types.as_ref())) {
            (Some(Pattern::Text(text)), _) => Ok(text.chars().map(String::from).collect()),
            (Some(Pattern::Letters(letters)), _) => Ok(letters.clone()),
            (None, Some(types)) => Ok(types.iter().map(|kind| letter(kind)).collect()),
            (None, None) => {
                let field = "hybrid_override_pattern";
                Err(bad_value(field, "absent", "a letter for each layer"))
            }
        }
    }

    /// Returns the state spaces, in which each group of heads is normalised separately.
    pub(super) fn space(&self) -> Result<StateSpaceLayer, SpecError> {
        let layer = self.space.layer(self.decoder.rms_norm_eps, [0.0, f64::INFINITY])?;
        let groups = layer.sizes.groups;
        let norm = layer.norm.map(|norm| GroupNormSpec { groups, ..norm });
        Ok(StateSpaceLayer { norm, ..layer })
    }

    pub(super) fn attention(&self, sizes: Sizes) -> Result<AttentionSpec, SpecError> {
        let kv_heads = sizes.kv_heads(self.num_key_value_heads)?;
        let head_dim = sizes.head_dim_or(self.head_dim)?;
        Ok(AttentionSpec {
            has_qkv_bias: self.attention_bias,
            has_output_bias: self.attention_bias,
            ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, RopeSpec::NONE)
        })
    }

    pub(super) fn dense(&self, module: &str, hidden: usize) -> Result<Block, SpecError> {
        let inner = dimension("intermediate_size", self.intermediate_size)?;
        let modules = MlpModules::ungated_at(module);
        let activation = Activation::ReluSquared;
        let plain = MlpSpec::plain(inner);
        Ok(dense(hidden, MlpSpec { has_bias: self.mlp_bias, activation, modules, ..plain }))
    }
}

/// Returns the letter of a layer's type.
pub(super) fn letter(kind: &str) -> String {
    let letter = match kind {
        "mamba" | "conv" | "linear_attention" => "M",
        "attention" | "full_attention" => "*",
        "mlp" => "-",
        "moe" => "E",
        other => other,
    };
    letter.to_owned()
}
