//! Laguna (Poolside 2026): windows with a rotation of their own, layers with other numbers of heads, a gate
//! for each head, and experts with one that every token passes.

mod config;

use serde_json::Value;

use self::config::{Config, with_lists};
use super::blocks::{ExpertNames, experts, mlp};
use super::decoder::{Description, pre_norm_layer};
use super::windows::windows;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension, parse, setting};
use jackalope_config::names::TensorNames;
use jackalope_spec::{AttentionSpec, MlpSpec};

const NAMES: ExpertNames = ExpertNames {
    router: "gate.proj",
    score_bias: Some("gate.e_score_correction_bias"),
    ..ExpertNames::QWEN
};

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let fields = &with_lists(config);
    if fields["swa_attention_sink_enabled"].as_bool() == Some(true) {
        return Err(bad_value("swa_attention_sink_enabled", true, "false"));
    }
    let config: Config = parse(fields)?;
    let sizes = config.decoder.sizes()?;
    let lists = [
        ("num_attention_heads_per_layer", config.num_attention_heads_per_layer.len()),
        ("mlp_layer_types", config.mlp_layer_types.len()),
    ];
    if let Some((field, len)) = lists.into_iter().find(|(_, len)| *len != sizes.num_layers) {
        return Err(bad_value(field, len, format!("{} entries", sizes.num_layers)));
    }
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let sparse = config.experts()?;
    let windows = windows(&config.layer_types, config.sliding_window, sizes.num_layers)?;
    let mut layers = Vec::with_capacity(sizes.num_layers);
    for (layer_idx, window) in windows.into_iter().enumerate() {
        let rope = config.rope(fields, &config.layer_types[layer_idx])?;
        let attention = config.attention(sizes, layer_idx, rope)?;
        let module = format!("model.layers.{layer_idx}.mlp");
        let kind = &config.mlp_layer_types[layer_idx];
        setting("type of block", Some(kind), &["dense", "sparse"])?;
        let block = match kind.as_str() {
            "sparse" => experts(&module, sizes.hidden, &NAMES, sparse),
            _ => mlp(&module, sizes.hidden, MlpSpec::plain(inner)),
        };
        let attention = AttentionSpec { window, ..attention };
        layers.push(pre_norm_layer(layer_idx, sizes.hidden, attention, block));
    }
    Ok(config.decoder.with_layers(sizes, layers).with_names(TensorNames::LAGUNA))
}
