//! `MiniCPM3` (OpenBMB 2024): the factors of `MiniCPM` around latent attention, whose rotations are
//! stretched pair by pair.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::mlp;
use super::decoder::{DecoderConfig, Description, LayerBuilder};
use super::latent::{ExpansionForm, latent_attention};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, factor, parse};
use jackalope_config::rope::RopeSpec;
use jackalope_spec::{HeadTable, LatentSpec, LogitsSpec, MlpSpec};

/// Base of the rotations in checkpoints that do not state one.
const DEFAULT_ROPE_THETA: f64 = 1e6;

/// Epsilon of the norms of low-rank vectors: MLX's default, which mlx-lm leaves.
const LOW_RANK_NORM_EPS: f32 = 1e-5;

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    q_lora_rank: u32,
    kv_lora_rank: u32,
    qk_nope_head_dim: u32,
    qk_rope_head_dim: u32,
    #[serde(default)]
    attention_bias: bool,
    dim_model_base: f32,
    scale_depth: f32,
    scale_emb: f32,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let sizes = config.decoder.sizes()?;
    let latent = latent(&config)?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let depth = factor("scale_depth", config.scale_depth)?;
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let at = |name: &str| format!("{prefix}.{name}");
        let form = ExpansionForm::Joint;
        let mixer = latent_attention(&at("self_attn"), sizes.hidden, latent.clone(), form);
        let block = mlp(&at("mlp"), sizes.hidden, MlpSpec::plain(inner));
        let builder = LayerBuilder::pre_norm(prefix, sizes.hidden);
        let residual_factor = depth / (sizes.num_layers as f32).sqrt();
        LayerBuilder { residual_factor, ..builder }.build(mixer, block)
    });
    let layers = layers.collect();
    let description = config.decoder.with_layers(sizes, layers);
    let base = factor("dim_model_base", config.dim_model_base)?;
    // Only a table of its own scales what the head reads.
    let (head_table, scale) = match description.head_table {
        HeadTable::Tied => (HeadTable::Tied, 1.0),
        HeadTable::Own | HeadTable::IfPresent => (HeadTable::Own, base / sizes.hidden as f32),
    };
    Ok(Description {
        head_table,
        embedding_scale: Some(factor("scale_emb", config.scale_emb)?),
        logits: LogitsSpec { scale, soft_cap: None },
        ..description
    })
}

fn latent(config: &Config) -> Result<LatentSpec, SpecError> {
    let sizes = config.decoder.sizes()?;
    // mlx-lm stretches the rotations whatever the type is called.
    config.decoder.rope.require(&["longrope", "su"])?;
    let nope_dim = dimension("qk_nope_head_dim", config.qk_nope_head_dim)?;
    let rope_dim = dimension("qk_rope_head_dim", config.qk_rope_head_dim)?;
    let rope = config.decoder.rope.spec(rope_dim, Some(DEFAULT_ROPE_THETA))?;
    Ok(LatentSpec {
        heads: sizes.heads,
        nope_dim,
        rope_dim,
        value_dim: sizes.head_dim(),
        kv_rank: dimension("kv_lora_rank", config.kv_lora_rank)?,
        q_rank: Some(dimension("q_lora_rank", config.q_lora_rank)?),
        has_bias: config.attention_bias,
        norm_eps: LOW_RANK_NORM_EPS,
        scale: 1.0 / ((nope_dim + rope_dim) as f64).sqrt(),
        rope: Some(RopeSpec { is_traditional: false, ..rope }),
        query_growth: None,
        latent_factor: 1.0,
        may_join_down: false,
        choice: None,
        gate_width: None,
        module: String::new(),
        output: "o_proj".to_owned(),
    })
}
