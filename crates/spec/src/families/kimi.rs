//! Kimi Linear (Kimi team 2025): Kimi delta attention, with latent attention that rotates nothing in
//! some layers; dense layers first, then experts with some that every token passes.

mod config;
mod experts;

use serde_json::{Value, json};

use self::config::Config;
use super::blocks::{ExpertNames, experts, mlp};
use super::decoder::{Description, mixed_layer};
use super::gated_delta::kimi;
use super::latent::{ExpansionForm, latent_attention};
use crate::config::{completed, count, dimension, parse};
use crate::error::SpecError;
use crate::model::MlpSpec;
use crate::names::TensorNames;

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
    let (delta, latent) = (config.delta()?, config.latent(&sizes)?);
    let sparse = config.experts()?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let frequency = count("moe_layer_freq", config.moe_layer_freq.unwrap_or(1))?;
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let module = format!("{prefix}.self_attn");
        let mixer = if config.is_linear(layer_idx) {
            kimi(&module, sizes.hidden, delta)
        } else {
            latent_attention(&module, sizes.hidden, latent.clone(), ExpansionForm::Either)
        };
        let module = format!("{prefix}.mlp");
        let is_late = config.first_k_dense_replace <= layer_idx;
        let block = match sparse {
            Some(sparse) if is_late && layer_idx.is_multiple_of(frequency) => {
                experts(&module, sizes.hidden, &NAMES, sparse)
            }
            _ => mlp(&module, sizes.hidden, MlpSpec::plain(inner)),
        };
        mixed_layer(prefix, sizes.hidden, mixer, block)
    });
    let layers = layers.collect();
    Ok(config
        .decoder
        .with_layers(sizes, layers)
        .without(["model.mtp".to_owned()])
        .with_names(TensorNames::KIMI))
}
