//! MiMo-V2-Flash (Xiaomi 2025): windows with heads, rotations and sinks of their own, values that are
//! narrower than keys, and experts.

mod config;

use serde_json::{Value, json};

use self::config::{Config, attention, router};
use super::blocks::{Block, ExpertCounts, ExpertNames, ExpertSizes, experts, mlp};
use super::decoder::{Description, pre_norm_layer};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, completed, count, dimension, parse, setting};
use jackalope_spec::{HeadTable, MlpSpec};

const NAMES: ExpertNames = ExpertNames {
    score_bias: Some("gate.e_score_correction_bias"),
    shared: "shared_experts",
    ..ExpertNames::QWEN
};

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let renames = [("layernorm_epsilon", "rms_norm_eps")];
    let config: Config = parse(&completed(config, &renames, &json!({})))?;
    setting("topk_method", Some(&config.topk_method), &["noaux_tc"])?;
    setting("scoring_func", Some(&config.scoring_func), &["sigmoid"])?;
    setting("attention_bias", config.attention_bias.then_some("true"), &["false"])?;
    config.decoder.rope.require(&["default"])?;
    let sizes = config.decoder.sizes()?;
    let lists = [
        ("hybrid_layer_pattern", &config.hybrid_layer_pattern),
        ("moe_layer_freq", &config.moe_layer_freq),
    ];
    for (field, list) in lists {
        if list.len() < sizes.num_layers {
            let expected = format!("{} entries", sizes.num_layers);
            return Err(bad_value(field, list.len(), expected));
        }
    }
    let [full, sliding] = [attention(&config, false)?, attention(&config, true)?];
    let mut layers = Vec::with_capacity(sizes.num_layers);
    for layer_idx in 0..sizes.num_layers {
        let has_window = config.hybrid_layer_pattern[layer_idx] == 1;
        let attention = if has_window { sliding.clone() } else { full.clone() };
        let block = block(&config, layer_idx)?;
        layers.push(pre_norm_layer(layer_idx, sizes.hidden, attention, block));
    }
    let description = config.decoder.with_layers(sizes, layers);
    let description = description.without(["model.mtp".to_owned()]);
    Ok(Description { head_table: HeadTable::Own, ..description })
}

fn block(config: &Config, layer_idx: usize) -> Result<Block, SpecError> {
    let hidden = config.decoder.sizes()?.hidden;
    let module = format!("model.layers.{layer_idx}.mlp");
    if config.moe_layer_freq[layer_idx] != 1 {
        let inner = dimension("intermediate_size", config.intermediate_size)?;
        return Ok(mlp(&module, hidden, MlpSpec::plain(inner)));
    }
    let counts =
        ExpertCounts::new("n_routed_experts", config.n_routed_experts, config.num_experts_per_tok)?;
    let inner = dimension("moe_intermediate_size", config.moe_intermediate_size)?;
    let plain = ExpertSizes::plain(counts, inner, router(config, counts.num_experts)?);
    let shared_inner = match config.n_shared_experts {
        Some(number) => Some(inner * count("n_shared_experts", number)?),
        None => None,
    };
    Ok(experts(&module, hidden, &NAMES, ExpertSizes { shared_inner, ..plain }))
}
