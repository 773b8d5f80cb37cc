//! Kimi K3: Kimi delta attention with bounded decays, latent attention with gates, experts that read
//! projections of the stream, and residuals over blocks of layers.

use serde::Deserialize;
use serde_json::{Value, json};

use super::config::Config;
use super::residuals::{add_residuals, reader};
use super::{NAMES, layers};
use crate::blocks::{ExpertNames, ExpertSizes, experts, mlp};
use crate::decoder::Description;
use crate::gated_delta::{KimiForm, log_decay_min};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, completed, count, dimension, factor, parse};
use jackalope_config::names::TensorNames;
use jackalope_spec::{Activation, BlockResiduals, LatentSpec, MlpSpec};

/// Epsilon of the norms within latent attention.
const LATENT_EPS: f32 = 1e-6;

/// The fields that Kimi Linear does not have.
#[derive(Debug, Deserialize)]
struct Newest {
    activation_situ_beta: Option<f32>,
    activation_situ_linear_beta: Option<f32>,
    attn_res_block_size: Option<u32>,
    #[serde(default)]
    mla_use_output_gate: bool,
    routed_expert_hidden_size: Option<u32>,
    #[serde(default)]
    latent_moe_use_norm: bool,
}

pub(crate) fn read(config: &Value) -> Result<Description, SpecError> {
    let text = config.get("text_config").unwrap_or(config);
    let defaults = json!({
        "vocab_size": 163_840, "hidden_size": 7168, "num_hidden_layers": 93,
        "num_attention_heads": 96, "intermediate_size": 33_792, "rms_norm_eps": 1e-5,
        "head_dim": 0,
        "num_experts": 0,
        "moe_intermediate_size": 0,
        "num_experts_per_token": 16,
    });
    let fields = completed(text, &[], &defaults);
    let (config, newest): (Config, Newest) = (parse(&fields)?, parse(&fields)?);
    let sizes = config.decoder.sizes_with(&["situ"])?;
    if let Some(found) = config.moe_router_activation_func.as_ref().filter(|it| *it != "sigmoid") {
        return Err(bad_value("moe_router_activation_func", found, "sigmoid"));
    }
    let beta = newest.activation_situ_beta.filter(|beta| *beta != 0.0).unwrap_or(1.0);
    let beta = factor("activation_situ_beta", beta)?;
    let cap = newest.activation_situ_linear_beta;
    let cap = cap.map(|cap| factor("activation_situ_linear_beta", cap)).transpose()?;
    let activation = Activation::Situ { beta, cap };
    let latent_width = newest.routed_expert_hidden_size;
    let latent = latent_width.map(|it| dimension("routed_expert_hidden_size", it)).transpose()?;
    let sparse = config.experts()?.map(|sparse| ExpertSizes {
        latent,
        shared_activation: Some(activation),
        activation,
        ..sparse
    });
    let names = ExpertNames {
        latent: ["routed_expert_down_proj", "routed_expert_up_proj"],
        latent_norm: newest.latent_moe_use_norm.then_some("routed_expert_norm"),
        ..NAMES
    };
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let block = |module: &str, is_sparse| match sparse {
        Some(sparse) if is_sparse => experts(module, sizes.hidden, &names, sparse),
        _ => mlp(module, sizes.hidden, MlpSpec { activation, ..MlpSpec::plain(inner) }),
    };
    let latent = config.latent(&sizes)?;
    let gate_width = newest.mla_use_output_gate.then_some(latent.value_dim);
    let latent = LatentSpec { norm_eps: LATENT_EPS, gate_width, ..latent };
    let mut layers = layers(&config, sizes, &latent, form(&config)?, block)?;
    let block_layers = newest.attn_res_block_size;
    let block_layers = block_layers.map(|it| count("attn_res_block_size", it)).transpose()?;
    for (layer_idx, layer) in layers.iter_mut().enumerate() {
        if let Some(len) = block_layers {
            add_residuals(layer, sizes.hidden, layer_idx.is_multiple_of(len));
        }
    }
    let residuals = block_layers.map(|block_layers| BlockResiduals {
        block_layers,
        end: reader("model.output_attn_res", sizes.hidden, true),
    });
    let drafting = format!("model.layers.{}.", sizes.num_layers);
    let description = config.decoder.with_layers(sizes, layers);
    let description = description.without(["model.mtp".to_owned(), drafting]);
    Ok(Description { residuals, ..description }.with_names(TensorNames::WRAPPED))
}

/// Returns how conversions store Kimi delta attention.
fn form(config: &Config) -> Result<KimiForm, SpecError> {
    let linear = &config.linear_attn_config;
    let min = |found| log_decay_min("linear_attn_config.gate_lower_bound", found);
    let form = KimiForm {
        projections: ["qkv_proj"; 3],
        convolutions: ["qkv_conv.conv"; 3],
        log_decay_min: linear.gate_lower_bound.map(min).transpose()?,
        ..KimiForm::LINEAR
    };
    let full = KimiForm { gates: "g_proj", gates_down: None, ..form };
    Ok(if linear.use_full_rank_gate { full } else { form })
}
