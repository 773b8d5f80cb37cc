//! LongCat-Flash (Meituan 2025): two latent attentions and two dense blocks in a layer, and beside the
//! second half of each layer experts, some of which return what they read.

use serde::Deserialize;
use serde_json::{Value, json};

use super::config::Config;
use super::variants::{V3, Variant};
use crate::blocks::{ExpertCounts, ExpertNames, ExpertSizes, experts, mlp};
use crate::decoder::{Description, LayerBuilder, with_second};
use crate::latent::latent_attention;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, completed, count, dimension, parse, setting};
use jackalope_spec::{BlockNorms, LatentSpec, LayerNorms, LayerSpec, MlpSpec, RouterSpec};

const VARIANT: Variant = Variant { norm_eps: Some(1e-5), ..V3 };

const NAMES: ExpertNames = ExpertNames {
    router: "router.classifier",
    score_bias: Some("router.e_score_correction_bias"),
    ..ExpertNames::QWEN
};

/// Our names of its fields.
const RENAMES: [(&str, &str); 4] = [
    ("num_layers", "num_hidden_layers"),
    ("ffn_hidden_size", "intermediate_size"),
    ("expert_ffn_hidden_size", "moe_intermediate_size"),
    ("moe_topk", "num_experts_per_tok"),
];

#[derive(Debug, Deserialize)]
struct Own {
    attention_method: String,
    zero_expert_type: String,
    zero_expert_num: u32,
    mla_scale_q_lora: bool,
    mla_scale_kv_lora: bool,
    #[serde(default)]
    router_bias: bool,
}

pub(crate) fn read(config: &Value) -> Result<Description, SpecError> {
    let own: Own = parse(config)?;
    setting("attention_method", Some(&own.attention_method), &["MLA"])?;
    setting("zero_expert_type", Some(&own.zero_expert_type), &["identity"])?;
    let config: Config = parse(&completed(config, &RENAMES, &json!({})))?;
    let sizes = config.decoder.sizes()?;
    let latent = latent(&config, &own, sizes.hidden)?;
    let sparse = expert_sizes(&config, &own)?;
    let inner = dimension("ffn_hidden_size", config.intermediate_size)?;
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let half = |idx: usize| half(&prefix, idx, sizes.hidden, &latent, inner);
        let experts = experts(&format!("{prefix}.mlp"), sizes.hidden, &NAMES, sparse);
        with_second(half(0), half(1), experts)
    });
    let layers = layers.collect();
    let description = config.decoder.with_layers(sizes, layers).with_stored_head();
    Ok(description.without(["model.mtp".to_owned()]))
}

/// Returns one of the two halves of a layer, each with a mixer and a dense MLP.
fn half(prefix: &str, idx: usize, hidden: usize, latent: &LatentSpec, inner: usize) -> LayerSpec {
    let norm =
        |name: &str| BlockNorms { input: Some(format!("{prefix}.{name}.{idx}")), output: None };
    let norms = LayerNorms {
        mixer: norm("input_layernorm"),
        feed_forward: norm("post_attention_layernorm"),
        eps: None,
    };
    let module = format!("{prefix}.self_attn.{idx}");
    let mixer = latent_attention(&module, hidden, latent.clone(), VARIANT.form);
    let block = mlp(&format!("{prefix}.mlps.{idx}"), hidden, MlpSpec::plain(inner));
    LayerBuilder { norms, ..LayerBuilder::pre_norm(prefix.to_owned(), hidden) }.build(mixer, block)
}

/// Returns the attention: queries and latents are brought to the length of the residual stream.
fn latent(config: &Config, own: &Own, hidden: usize) -> Result<LatentSpec, SpecError> {
    for (field, is_scaled) in
        [("mla_scale_q_lora", own.mla_scale_q_lora), ("mla_scale_kv_lora", own.mla_scale_kv_lora)]
    {
        if !is_scaled {
            return Err(bad_value(field, false, "true"));
        }
    }
    let spec = config.latent(&config.decoder.sizes()?, &VARIANT, None)?;
    let Some(q_rank) = spec.q_rank else {
        return Err(bad_value("q_lora_rank", "absent", "a number"));
    };
    let factor = |rank: usize| (hidden as f64 / rank as f64).sqrt();
    let (scale, latent_factor) = (spec.scale * factor(q_rank), factor(spec.kv_rank) as f32);
    Ok(LatentSpec { scale, latent_factor, ..spec })
}

fn expert_sizes(config: &Config, own: &Own) -> Result<ExpertSizes, SpecError> {
    let num_experts = count("n_routed_experts", config.n_routed_experts.unwrap_or(0))?;
    // There may be none.
    let number = own.zero_expert_num;
    let num_identity = if number == 0 { 0 } else { count("zero_expert_num", number)? };
    let experts_per_token = match count("moe_topk", config.num_experts_per_tok.unwrap_or(0))? {
        number if number <= num_experts + num_identity => number,
        number => {
            let expected = format!("at most {}", num_experts + num_identity);
            return Err(bad_value("moe_topk", number, expected));
        }
    };
    let counts = ExpertCounts { num_experts, experts_per_token };
    let inner = dimension("expert_ffn_hidden_size", config.moe_intermediate_size.unwrap_or(0))?;
    let is_normalized = config.norm_topk_prob.unwrap_or(false);
    let router = RouterSpec {
        has_bias: own.router_bias,
        normalization_eps: is_normalized.then_some(1e-20),
        scale: config.routed_scaling_factor.unwrap_or(1.0),
        ..RouterSpec::SOFTMAX
    };
    Ok(ExpertSizes { num_identity, ..ExpertSizes::plain(counts, inner, router) })
}
