//! Ling 2.5 and Ring 2.5 (Ant Group 2026), `bailing_hybrid`, and Ring-linear 2.0 before them: lightning
//! attention, and in the last layer of each group latent attention, or grouped-query attention;
//! experts as in Ling. Ling 3 has Kimi delta attention instead of lightning attention.

mod config;
mod newest;

use serde_json::{Value, json};

use self::config::{Hybrid, Latent};
use super::bailing_moe::{Config, attention_at, describe, feed_forward};
use super::blocks::MixerBlock;
use super::decoder::{Description, Sizes, mixed_layer};
use super::latent::{ExpansionForm, latent_attention};
use super::lightning::LightningLayer;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, count, parse};

/// The mixers of the layers.
struct Mixers<'a> {
    /// Returns the mixer of a layer, by its module and number.
    linear: &'a dyn Fn(&str, usize) -> MixerBlock,
    /// Returns the mixer of the last layer of a group.
    global: &'a dyn Fn(&str) -> MixerBlock,
}

/// Returns lightning attention, whose states decay less from layer to layer after the layer `first`.
fn lightning_at(
    lightning: LightningLayer,
    sizes: Sizes,
    first: usize,
) -> impl Fn(&str, usize) -> MixerBlock {
    move |module: &str, layer_idx: usize| {
        let depth = layer_idx.saturating_sub(first) as f64;
        let factor = 1.0 - depth / sizes.num_layers.saturating_sub(1).max(1) as f64 + 1e-5;
        lightning.at(module, sizes.hidden, factor)
    }
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let names = config["architectures"].as_array().into_iter().flatten();
    if names.filter_map(Value::as_str).any(|name| name == newest::ARCHITECTURE) {
        return newest::read(config);
    }
    let defaults = json!({
        "score_function": "sigmoid",
        "use_qk_norm": true,
        "norm_topk_prob": true,
        "moe_router_enable_expert_bias": true,
        "partial_rotary_factor": 0.5,
        "moe_router_enable_shared_expert": null,
        "rope_traditional": null,
    });
    let fields = completed(config, &[], &defaults);
    let mut config: Config = parse(&fields)?;
    config.excluded_score = f32::NEG_INFINITY;
    let sizes = config.sizes()?;
    let hybrid: Hybrid = parse(&fields)?;
    let head_dim = sizes.head_dim_or(config.head_dim)?;
    let lightning = hybrid.lightning(&config, sizes, head_dim)?;
    let latent = parse::<Latent>(&fields)?.latent(&config, sizes)?;
    let global = |module: &str| {
        latent_attention(module, sizes.hidden, latent.clone(), ExpansionForm::Either)
    };
    // A stated width is that of all experts that every token passes.
    let is_total = config.moe_shared_expert_intermediate_size.is_some_and(|inner| inner != 0);
    let num_shared = config.num_shared_experts as usize;
    let num_shared = if is_total { num_shared.min(1) } else { num_shared };
    let linear = lightning_at(lightning, sizes, 0);
    let mixers = Mixers { linear: &linear, global: &global };
    layers(&config, &hybrid, &mixers, config.shared_inner() * num_shared)
}

pub(super) fn read_linear(config: &Value) -> Result<Description, SpecError> {
    let fields = config;
    let config: Config = parse(fields)?;
    let sizes = config.sizes()?;
    let hybrid: Hybrid = parse(fields)?;
    let lightning = hybrid.lightning(&config, sizes, sizes.head_dim())?;
    let attention = config.attention(sizes, sizes.head_dim_or(config.head_dim)?)?;
    let global = |module: &str| attention_at(module, sizes.hidden, &attention);
    let linear = lightning_at(lightning, sizes, 1);
    let mixers = Mixers { linear: &linear, global: &global };
    let shared = config.shared_inner() * config.num_shared_experts as usize;
    layers(&config, &hybrid, &mixers, shared)
}

/// Returns the decoder; every token passes experts with `shared` inner elements.
fn layers(
    config: &Config,
    hybrid: &Hybrid,
    mixers: &Mixers<'_>,
    shared: usize,
) -> Result<Description, SpecError> {
    let sizes = config.sizes()?;
    let (hidden, num_layers) = (sizes.hidden, sizes.num_layers);
    let group = count("layer_group_size", hybrid.layer_group_size)?;
    let mut layers = Vec::with_capacity(num_layers);
    for layer_idx in 0..num_layers {
        let prefix = format!("model.layers.{layer_idx}");
        let module = format!("{prefix}.attention");
        let is_last = (layer_idx + 1).is_multiple_of(group);
        let mixer = if is_last || num_layers / group * group <= layer_idx {
            (mixers.global)(&module)
        } else {
            (mixers.linear)(&module, layer_idx)
        };
        let block = feed_forward(config, sizes, layer_idx, shared)?;
        layers.push(mixed_layer(prefix, hidden, mixer, block));
    }
    let num_predicting = Some(hybrid.num_nextn_predict_layers);
    Ok(describe(config, sizes, layers).without_prediction(num_layers, num_predicting))
}
