//! GLM-5 Next (Z.ai 2026): streams with hyper-connections; Kimi delta attention, and in some layers
//! latent attention without rotation to pools that indexers choose; dense layers first, then experts.

mod config;
mod kinds;

use serde_json::{Value, json};

use self::config::Own;
use super::config::Config;
use super::sparse;
use super::variants::{V3, Variant};
use crate::blocks::{ExpertNames, ExpertSizes, SharedProjections, dense, experts};
use crate::decoder::{Description, mixed_layer};
use crate::gated_delta::kimi_either;
use crate::hyper::{connections, with_hyper_connections};
use crate::latent::{ExpansionForm, latent_attention};
use crate::text_part::text_config;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, completed, count, dimension, factor, parse};
use jackalope_config::names::TensorNames;
use jackalope_spec::{Activation, ConnectionsEnd, LatentSpec, MlpModules, MlpSpec, StreamsSpec};

const VARIANT: Variant = Variant { normalization_eps: Some(1e-20), norm_eps: None, ..V3 };

const NAMES: ExpertNames = ExpertNames {
    score_bias: Some("gate.e_score_correction_bias"),
    shared: "shared_experts",
    shared_projections: SharedProjections::Either(GATE_UP),
    ..ExpertNames::QWEN
};

const GATE_UP: &str = "gate_up_proj";

/// Reads the language model of `glm5_next`. What is not stated has the value of mlx-vlm.
pub(crate) fn read(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({
        "attention_bias": false, "mla_use_nope": true, "n_group": 1, "swiglu_limit": 10.0,
        "linear_head_dim": 128, "linear_num_heads": 64, "linear_conv_kernel_dim": 4,
        "linear_lower_bound": -5.0, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20,
        "index_kpool": 16, "first_k_dense_replace": 3, "norm_topk_prob": true,
        "routed_scaling_factor": 2.5, "qk_rope_head_dim": 0,
    });
    let text = text_config(config);
    if text.get("linear_lower_bound").is_some_and(Value::is_null) {
        return Err(bad_value("linear_lower_bound", "null", "a negative number"));
    }
    let text = &completed(text, &[], &defaults);
    let (own, config): (Own, Config) = (parse(text)?, parse(text)?);
    let sizes = config.decoder.sizes()?;
    let latent = own.latent(sizes.heads, config.decoder.rms_norm_eps)?;
    let attend = own.attend(sizes.num_layers)?;
    let choices = sparse::choices(text, &latent, &attend, false)?;
    let limit = factor("swiglu_limit", own.swiglu_limit)?;
    let activation = Activation::limited_silu(limit);
    let sparse = config.experts(&VARIANT)?.map(|sizes| ExpertSizes {
        activation,
        shared_activation: Some(activation),
        ..sizes
    });
    let are_sparse = own.are_sparse(sizes.num_layers, config.first_k_dense_replace)?;
    let (delta, log_decay_min) = own.delta()?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let num_streams = count("hc_mult", own.hc_mult)?;
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let module = format!("{prefix}.self_attn");
        let mixer = if attend[layer_idx] {
            let latent = LatentSpec { choice: choices[layer_idx].clone(), ..latent.clone() };
            latent_attention(&module, sizes.hidden, latent, ExpansionForm::Either)
        } else {
            kimi_either(&module, sizes.hidden, delta, log_decay_min)
        };
        let module = format!("{prefix}.mlp");
        let block = match sparse {
            Some(sparse) if are_sparse[layer_idx] => experts(&module, sizes.hidden, &NAMES, sparse),
            _ => {
                let modules = MlpModules::either_at(&module, GATE_UP);
                dense(sizes.hidden, MlpSpec { activation, modules, ..MlpSpec::plain(inner) })
            }
        };
        let connections = connections(&prefix, own.hc_sinkhorn_iters, own.hc_eps)?;
        let layer = mixed_layer(prefix, sizes.hidden, mixer, block);
        Ok(with_hyper_connections(layer, connections, num_streams, sizes.hidden))
    });
    let layers = layers.collect::<Result<_, SpecError>>()?;
    let num_predicting = Some(config.num_nextn_predict_layers.unwrap_or(1).max(1));
    let description = config.decoder.with_layers(sizes, layers);
    let description = description.without_prediction(sizes.num_layers, num_predicting);
    let streams = Some(StreamsSpec::HyperConnections { num_streams, end: ConnectionsEnd::Mean });
    Ok(Description { streams, ..description.with_names(TensorNames::GLM_NEXT) })
}
