//! Granite 3 with experts (Granite team 2024): factors of embeddings, of what a block adds, of scores
//! and of logits.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{
    self, ExpertCounts, ExpertNames, ExpertSizes, FusedNames, FusedOrder, experts,
};
use super::decoder::{DecoderConfig, Description, LayerBuilder};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, factor, parse};
use jackalope_spec::{AttentionSpec, FusedForm, LogitsSpec, RouterScores, RouterSpec};

const NAMES: ExpertNames = ExpertNames {
    router: "router.layer",
    fused: &[FusedNames {
        gate_up: "input_linear.weight",
        down: "output_linear.weight",
        form: FusedForm::Rows,
        order: FusedOrder::Halves,
    }],
    ..ExpertNames::QWEN
};

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    num_key_value_heads: u32,
    attention_bias: bool,
    num_local_experts: u32,
    num_experts_per_tok: u32,
    logits_scaling: f32,
    attention_multiplier: f32,
    embedding_multiplier: f32,
    residual_multiplier: f32,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let sizes = config.decoder.sizes()?;
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let head_dim = sizes.head_dim();
    let rope = config.decoder.rope.spec(head_dim, None)?;
    let attention = AttentionSpec {
        has_qkv_bias: config.attention_bias,
        has_output_bias: config.attention_bias,
        scale: factor("attention_multiplier", config.attention_multiplier)?,
        ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
    };
    let counts = ExpertCounts::local(config.num_local_experts, config.num_experts_per_tok)?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let router = RouterSpec { scores: RouterScores::SoftmaxOfChosen, ..RouterSpec::SOFTMAX };
    let spec = ExpertSizes::plain(counts, inner, router);
    let residual_factor = factor("residual_multiplier", config.residual_multiplier)?;
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let block = experts(&format!("{prefix}.block_sparse_moe"), sizes.hidden, &NAMES, spec);
        let module = format!("{prefix}.self_attn");
        let mixer = blocks::attention(&module, sizes.hidden, attention.clone());
        let layer = LayerBuilder::pre_norm(prefix, sizes.hidden);
        LayerBuilder { residual_factor, ..layer }.build(mixer, block)
    });
    let layers = layers.collect();
    let scale = 1.0 / factor("logits_scaling", config.logits_scaling)?;
    Ok(Description {
        embedding_scale: Some(factor("embedding_multiplier", config.embedding_multiplier)?),
        logits: LogitsSpec { scale, soft_cap: None },
        ..config.decoder.with_layers(sizes, layers)
    })
}
