//! Falcon-H1 (Zuo et al. 2025): attention and a state space beside each other, then a dense block.
//!
//! Conversions hold products of the weights with the factors that the configuration states, which
//! loading computes for originals; only the factor of the logits of a shared table is left.

mod config;
mod originals;

use serde_json::Value;

use self::config::{Config, attention, defaults, space};
use self::originals::original_numbers;
use super::blocks::mlp;
use super::decoder::{DecoderNames, Description, LayerBuilder};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, completed, dimension, factor, parse};
use jackalope_spec::{AttentionModules, AttentionSpec, BlockNorms, HeadTable, LogitsSpec, MlpSpec};

const MODULES: DecoderNames = DecoderNames { norm: "model.final_layernorm", ..DecoderNames::LLAMA };

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(&completed(config, &[], &defaults()))?;
    let sizes = config.decoder.sizes()?;
    let attention = attention(&config, sizes)?;
    let space = space(&config)?;
    if !config.mamba_use_mlp {
        return Err(bad_value("mamba_use_mlp", false, "true"));
    }
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let dense = MlpSpec { has_bias: config.mlp_bias, ..MlpSpec::plain(inner) };
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let modules = AttentionModules::at(&format!("{prefix}.self_attn"));
        let attention = AttentionSpec { modules, ..attention.clone() };
        let mixer = space.beside(&format!("{prefix}.mamba"), sizes.hidden, attention);
        let block = mlp(&format!("{prefix}.feed_forward"), sizes.hidden, dense.clone());
        let input = Some(format!("{prefix}.pre_ff_layernorm"));
        let mut layer = LayerBuilder::pre_norm(prefix, sizes.hidden);
        layer.norms.feed_forward = BlockNorms { input, output: None };
        layer.build(mixer, block)
    });
    let layers = layers.collect();
    let head = factor("lm_head_multiplier", config.lm_head_multiplier)?;
    let embedding = factor("embedding_multiplier", config.embedding_multiplier)?;
    let (head_table, scale) = if config.tie_word_embeddings {
        (HeadTable::Tied, head / embedding)
    } else {
        (HeadTable::Own, 1.0)
    };
    Ok(Description {
        modules: MODULES,
        head_table,
        logits: LogitsSpec { scale, soft_cap: None },
        original_numbers: Some(original_numbers(&config, &space)?),
        ..config.decoder.with_layers(sizes, layers)
    })
}
