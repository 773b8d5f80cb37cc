//! Kimi Linear (Kimi team 2025) and Kimi K3 (2026): Kimi delta attention, with latent attention that
//! rotates nothing in some layers; dense layers first, then experts with some that every token passes.

mod config;
mod experts;
mod newest;
mod residuals;

use serde_json::{Value, json};

use self::config::Config;
use super::blocks::{Block, ExpertNames, MixerBlock, experts, mlp};
use super::decoder::{Description, Sizes, mixed_layer};
use super::gated_delta::{KimiForm, kimi};
use super::latent::{ExpansionForm, latent_attention};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, completed, count, dimension, parse};
use jackalope_config::names::TensorNames;
use jackalope_spec::{LatentSpec, LayerSpec, MlpSpec};

pub(super) use self::newest::read as read_k3;

const NAMES: ExpertNames = ExpertNames {
    score_bias: Some("e_score_correction_bias"),
    shared: "shared_experts",
    projections: ["w1", "w3", "w2"],
    ..ExpertNames::QWEN
};

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let renames = [("model_max_length", "max_position_embeddings")];
    let config: Config = parse(&completed(config, &renames, &json!({})))?;
    let sizes = config.decoder.sizes()?;
    if let Some(rank) = config.q_lora_rank {
        return Err(bad_value("q_lora_rank", rank, "null"));
    }
    let linear = &config.linear_attn_config;
    if let Some(found) = linear.gate_lower_bound {
        return Err(bad_value("linear_attn_config.gate_lower_bound", found, "null"));
    }
    if linear.use_full_rank_gate {
        return Err(bad_value("linear_attn_config.use_full_rank_gate", true, "false"));
    }
    let sparse = config.experts()?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let block = |module: &str, is_sparse| match sparse {
        Some(sparse) if is_sparse => experts(module, sizes.hidden, &NAMES, sparse),
        _ => mlp(module, sizes.hidden, MlpSpec::plain(inner)),
    };
    let layers = layers(&config, sizes, &config.latent(&sizes)?, KimiForm::LINEAR, block)?;
    Ok(config
        .decoder
        .with_layers(sizes, layers)
        .without(["model.mtp".to_owned()])
        .with_names(TensorNames::KIMI))
}

/// Returns the layers; `block` returns a feed-forward block, of experts or dense.
fn layers(
    config: &Config,
    sizes: Sizes,
    latent: &LatentSpec,
    form: KimiForm,
    block: impl Fn(&str, bool) -> Block,
) -> Result<Vec<LayerSpec>, SpecError> {
    let delta = config.delta()?;
    let frequency = count("moe_layer_freq", config.moe_layer_freq.unwrap_or(1))?;
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let module = format!("{prefix}.self_attn");
        let mixer: MixerBlock = if config.is_linear(layer_idx) {
            kimi(&module, sizes.hidden, delta, form)
        } else {
            latent_attention(&module, sizes.hidden, latent.clone(), ExpansionForm::Either)
        };
        let is_late = config.first_k_dense_replace <= layer_idx;
        let block = block(&format!("{prefix}.mlp"), is_late && layer_idx.is_multiple_of(frequency));
        mixed_layer(prefix, sizes.hidden, mixer, block)
    });
    Ok(layers.collect())
}
