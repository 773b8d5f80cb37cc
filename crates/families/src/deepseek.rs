//! DeepSeek V2 and V3, and what is built like them: Kimi K2, GLM-4.7 Flash, Mistral 4. Latent
//! attention; dense layers first, then experts with some that every token passes.

mod config;
mod growth;
mod indexer;
mod longcat;
mod next;
mod sparse;
mod variants;

use serde_json::{Value, json};

use self::config::Config;
use self::growth::growth;
use self::variants::{
    GLM_DSA, GLM_LITE, MISTRAL, V2, V3, V32, Variant, glm_lite_defaults, with_defaults,
};
use super::blocks::{ExpertNames, experts, mlp};
use super::decoder::{Description, mixed_layer};
use super::latent::latent_attention;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{count, defaulted, dimension, parse};
use jackalope_config::names::TensorNames;
use jackalope_config::rope_parameters::from_parameters_alone;
use jackalope_spec::{LatentSpec, MlpSpec};

pub(super) use self::longcat::read as read_longcat;
pub(super) use self::next::read as read_glm_next;

/// Reads DeepSeek V2, in which mlx-lm takes every extension of the context for `YaRN`.
pub(super) fn read_v2(config: &Value) -> Result<Description, SpecError> {
    let mut config = with_defaults(config, &json!({}));
    let scaling = config.get_mut("rope_scaling").and_then(Value::as_object_mut);
    if let Some(scaling) = scaling.filter(|scaling| scaling.contains_key("factor")) {
        scaling.insert("type".to_owned(), "yarn".into());
    }
    describe(&config, &V2)
}

/// Reads DeepSeek V3 and Kimi K2.
pub(super) fn read_v3(config: &Value) -> Result<Description, SpecError> {
    describe(&with_defaults(config, &json!({"num_experts_per_tok": 1})), &V3)
}

/// Reads DeepSeek V3.2, whose queries attend to chosen positions only.
pub(super) fn read_v32(config: &Value) -> Result<Description, SpecError> {
    let own = json!({
        "num_experts_per_tok": 1, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048,
    });
    describe(&with_defaults(config, &own), &V32)
}

/// Reads GLM-5.
pub(super) fn read_glm_dsa(config: &Value) -> Result<Description, SpecError> {
    describe(&from_parameters_alone(config, None), &GLM_DSA)
}

/// Reads GLM-4.7 Flash, with mlx-lm's defaults.
pub(super) fn read_glm_lite(config: &Value) -> Result<Description, SpecError> {
    describe(&defaulted(config, &glm_lite_defaults()), &GLM_LITE)
}

/// Reads Mistral 4, whose queries grow with their position.
pub(super) fn read_mistral(config: &Value) -> Result<Description, SpecError> {
    describe(&from_parameters_alone(config, Some(MISTRAL.default_theta)), &MISTRAL)
}

/// Reads the language model in a configuration of Kimi K2.5 or Kimi VL.
pub(super) fn read_kimi_k25(config: &Value) -> Result<Description, SpecError> {
    let Some(text) = config.get("text_config") else {
        return Err(SpecError::Malformed { reason: "missing field `text_config`".to_owned() });
    };
    Ok(read_v3(text)?.with_names(TensorNames::WRAPPED))
}

fn describe(value: &Value, variant: &Variant) -> Result<Description, SpecError> {
    let config: Config = parse(value)?;
    let sizes = config.decoder.sizes()?;
    // Mistral 4, the only family that does not name its scores.
    let growth = variant.scoring.is_none().then(|| growth(value)).transpose()?;
    let latent = config.latent(&sizes, variant, growth)?;
    let choices = variant
        .indexer
        .map(|it| sparse::choices(value, &latent, &vec![true; sizes.num_layers], it));
    let choices = choices.transpose()?;
    let sparse = config.experts(variant)?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let names = ExpertNames {
        score_bias: variant.has_score_bias.then_some("gate.e_score_correction_bias"),
        shared: "shared_experts",
        fused: variant.fused,
        ..ExpertNames::QWEN
    };
    let frequency = count("moe_layer_freq", config.moe_layer_freq.unwrap_or(1))?;
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let is_sparse =
            config.first_k_dense_replace <= layer_idx && layer_idx.is_multiple_of(frequency);
        let module = format!("{prefix}.mlp");
        let block = match sparse {
            Some(sparse) if is_sparse => experts(&module, sizes.hidden, &names, sparse),
            _ => mlp(&module, sizes.hidden, MlpSpec::plain(inner)),
        };
        let module = format!("{prefix}.self_attn");
        let choice = choices.as_ref().and_then(|choices| choices[layer_idx].clone());
        let latent = LatentSpec { choice, ..latent.clone() };
        let mixer = latent_attention(&module, sizes.hidden, latent, variant.form);
        mixed_layer(prefix, sizes.hidden, mixer, block)
    });
    let layers = layers.collect();
    // Layers of multi-token prediction are not used; conversions drop the first one.
    let (num_layers, num_predicting) = (sizes.num_layers, config.num_nextn_predict_layers);
    let description = config.decoder.with_layers(sizes, layers);
    let description = description.without_prediction(num_layers, num_predicting);
    if variant.may_be_tied { Ok(description) } else { Ok(description.with_stored_head()) }
}
