//! The fields of Gemma 3n's configurations, and what they say of a layer.

use crate::altup::StreamsConfig;
use crate::decoder::{DecoderConfig, Sizes};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension};
use jackalope_config::normal::quantile;
use jackalope_config::rope::RopeSpec;
use jackalope_spec::{Activation, AttentionSpec, MlpSpec, QkNorm, ValueKind};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub(super) intermediate_size: OneOrEach,
    pub(super) num_key_value_heads: u32,
    pub(super) head_dim: u32,
    pub(super) num_kv_shared_layers: usize,
    pub(super) vocab_size_per_layer_input: u32,
    pub(super) hidden_size_per_layer_input: u32,
    pub(super) sliding_window: u32,
    pub(super) rope_local_base_freq: f64,
    pub(super) final_logit_softcapping: Option<f32>,
    pub(super) layer_types: Vec<String>,
    pub(super) activation_sparsity_pattern: Option<Vec<f64>>,
    #[serde(default)]
    pub(super) attention_bias: bool,
    #[serde(flatten)]
    pub(super) streams: StreamsConfig,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

/// A number for all layers, or one for each.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number or a list of numbers")]
pub(super) enum OneOrEach {
    One(u32),
    Each(Vec<u32>),
}

pub(super) fn attention(
    config: &Config,
    sizes: Sizes,
    window: Option<usize>,
) -> Result<AttentionSpec, SpecError> {
    let head_dim = dimension("head_dim", config.head_dim)?;
    let global = config.decoder.rope.spec(head_dim, None)?;
    let theta = if window.is_some() { config.rope_local_base_freq } else { global.theta };
    let rope = RopeSpec { theta, is_traditional: false, ..global };
    Ok(AttentionSpec {
        qk_norm: Some(QkNorm::PerHead),
        values: ValueKind::Normalized,
        scale: 1.0,
        window,
        ..AttentionSpec::plain(
            sizes.heads,
            sizes.kv_heads(config.num_key_value_heads)?,
            head_dim,
            rope,
        )
    })
}

/// Returns the dense block of a layer.
pub(super) fn mlp(config: &Config, sizes: Sizes, layer_idx: usize) -> Result<MlpSpec, SpecError> {
    let of_layer = |field: &'static str, len: usize| {
        let expected = format!("{} numbers", sizes.num_layers);
        if len == sizes.num_layers { Ok(()) } else { Err(bad_value(field, len, expected)) }
    };
    let inner = match &config.intermediate_size {
        OneOrEach::One(inner) => *inner,
        OneOrEach::Each(each) => {
            of_layer("intermediate_size", each.len())?;
            each[layer_idx]
        }
    };
    let inner = dimension("intermediate_size", inner)?;
    let field = "activation_sparsity_pattern";
    let sparsity = match &config.activation_sparsity_pattern {
        None => 0.0,
        Some(pattern) => {
            of_layer(field, pattern.len())?;
            pattern[layer_idx]
        }
    };
    if !(0.0..1.0).contains(&sparsity) {
        return Err(bad_value(field, sparsity, "numbers from 0 to less than 1"));
    }
    // The part of a normal distribution that lies below the cutoff.
    let cutoff = (0.0 < sparsity).then(|| quantile(sparsity) as f32);
    Ok(MlpSpec { activation: Activation::GeluTanh, cutoff, ..MlpSpec::plain(inner) })
}
