//! Llama 4 (Meta 2025), its language model: most layers see chunks of positions, every fourth one all
//! of them without a rotation; some layers have experts, whose input the router weighs.

mod config;

use serde_json::Value;

use self::config::{Config, Wrapper, attention};
use super::blocks::{self, ExpertCounts, ExpertNames, ExpertSizes, FusedNames, experts, mlp};
use super::decoder::{Description, LayerBuilder};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, count, dimension, parse};
use jackalope_config::names::TensorNames;
use jackalope_spec::{MlpSpec, RouterScores, RouterSpec};

const NAMES: ExpertNames = ExpertNames {
    router: "router",
    stacked: "experts",
    fused: &[FusedNames::COLUMNS],
    ..ExpertNames::QWEN
};

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let Wrapper { text_config } = parse(config)?;
    let config: Config = parse(&text_config)?;
    let sizes = config.decoder.sizes()?;
    if config.num_experts_per_tok != 1 {
        return Err(bad_value("num_experts_per_tok", config.num_experts_per_tok, "1"));
    }
    let step = count("interleave_moe_layer_step", config.interleave_moe_layer_step)?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let dense_inner = dimension("intermediate_size_mlp", config.intermediate_size_mlp)?;
    let counts = ExpertCounts::new("num_local_experts", config.num_local_experts, 1)?;
    let router = RouterSpec {
        scores: RouterScores::SigmoidOfChosen,
        weighs_input: true,
        ..RouterSpec::SOFTMAX
    };
    let sparse =
        ExpertSizes { shared_inner: Some(inner), ..ExpertSizes::plain(counts, inner, router) };
    let mut layers = Vec::with_capacity(sizes.num_layers);
    for layer_idx in 0..sizes.num_layers {
        let prefix = format!("model.layers.{layer_idx}");
        let module = format!("{prefix}.feed_forward");
        let block = if layer_idx % step == step - 1 {
            experts(&module, sizes.hidden, &NAMES, sparse)
        } else {
            mlp(&module, sizes.hidden, MlpSpec::plain(dense_inner))
        };
        let module = format!("{prefix}.self_attn");
        let mixer = blocks::attention(&module, sizes.hidden, attention(&config, layer_idx)?);
        layers.push(LayerBuilder::pre_norm(prefix, sizes.hidden).build(mixer, block));
    }
    let description = config.decoder.with_layers(sizes, layers).with_stored_head();
    Ok(description.with_names(TensorNames::WRAPPED))
}
