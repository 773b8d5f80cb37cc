//! What llama.cpp's loaders expect of a model: its metadata and its tensors, from a `config.json`.
//!
//! Source: `src/models/*.cpp` and `src/llama-arch.cpp` of llama.cpp.

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::{Kind, Metadata, Tensor};

/// A model as llama.cpp loads it.
#[derive(Debug)]
pub(super) struct Architecture {
    pub(super) metadata: Vec<(String, Metadata)>,
    pub(super) tensors: Vec<Tensor>,
    /// The part of the experts that computes a token; 1 without experts.
    chosen: f64,
}

impl Architecture {
    /// Reads the dimensions of `config`.
    pub(super) fn of(config: &Value) -> anyhow::Result<Architecture> {
        match config["model_type"].as_str() {
            None | Some("qwen3") => qwen3(config),
            Some("qwen3_moe") => qwen3_moe(config),
            Some("qwen3_next") => qwen3_next(config),
            Some("gpt_oss") => gpt_oss(config),
            Some("deepseek_v3") => deepseek_v3(config),
            Some(other) => bail!(
                "no GGUF is written for {other}\n\
                 hint: take qwen3, qwen3_moe, qwen3_next, gpt_oss or deepseek_v3"
            ),
        }
    }

    /// Returns the fraction of the weights' bytes that decoding reads for one token: of a mixture the
    /// chosen experts, and one row of an embedding that is not also the output matrix.
    pub(super) fn active_part(&self) -> f64 {
        let is_untied = self.tensors.iter().any(|it| it.name == "output.weight");
        let (mut all, mut unread) = (0.0, 0.0);
        for tensor in &self.tensors {
            let bytes = tensor.bytes() as f64;
            all += bytes;
            if tensor.name.contains("_exps.") {
                unread += bytes * (1.0 - self.chosen);
            } else if is_untied && tensor.name == "token_embd.weight" {
                unread += bytes;
            }
        }
        1.0 - unread / all
    }
}

/// Collects the metadata and tensors of an architecture.
struct Builder<'a> {
    config: &'a Value,
    architecture: &'static str,
    hidden: u64,
    made: Architecture,
}

impl<'a> Builder<'a> {
    /// Begins with what all architectures have; `head_dim` is the width of a cached key.
    fn new(
        config: &'a Value,
        architecture: &'static str,
        head_dim: u64,
    ) -> anyhow::Result<Builder<'a>> {
        let metadata = vec![
            ("general.architecture".to_owned(), Metadata::Text(architecture)),
            ("general.file_type".to_owned(), Metadata::U32(2)),
            ("tokenizer.ggml.model".to_owned(), Metadata::Text("no_vocab")),
        ];
        let made = Architecture { metadata, tensors: Vec::new(), chosen: 1.0 };
        let hidden = number(config, "hidden_size")?;
        let mut builder = Builder { config, architecture, hidden, made };
        let vocab = number(config, "vocab_size")?;
        builder.numbers(&[
            ("block_count", number(config, "num_hidden_layers")?),
            ("context_length", number(config, "max_position_embeddings")?),
            ("embedding_length", hidden),
            ("feed_forward_length", number(config, "intermediate_size")?),
            ("attention.head_count", number(config, "num_attention_heads")?),
            ("attention.key_length", head_dim),
            ("vocab_size", vocab),
        ])?;
        builder.float("attention.layer_norm_rms_epsilon", "rms_norm_eps")?;
        builder.float("rope.freq_base", "rope_theta")?;
        builder.matrix("token_embd.weight", hidden, vocab);
        builder.vector("output_norm.weight", hidden);
        if config["tie_word_embeddings"] != true {
            builder.matrix("output.weight", hidden, vocab);
        }
        Ok(builder)
    }

    fn number(&self, key: &str) -> anyhow::Result<u64> {
        number(self.config, key)
    }

    fn numbers(&mut self, numbers: &[(&str, u64)]) -> anyhow::Result<()> {
        for (key, number) in numbers {
            let number = Metadata::U32(u32::try_from(*number)?);
            self.made.metadata.push((format!("{}.{key}", self.architecture), number));
        }
        Ok(())
    }

    fn float(&mut self, key: &str, field: &str) -> anyhow::Result<()> {
        let value = self.config[field].as_f64().with_context(|| format!("no number {field}"))?;
        let value = Metadata::F32(value as f32);
        self.made.metadata.push((format!("{}.{key}", self.architecture), value));
        Ok(())
    }

    fn matrix(&mut self, name: &str, input: u64, out: u64) {
        self.tensor(name, &[input, out], Kind::Q4_0);
    }

    fn vector(&mut self, name: &str, len: u64) {
        self.tensor(name, &[len], Kind::F32);
    }

    fn tensor(&mut self, name: &str, dims: &[u64], kind: Kind) {
        let (name, dims) = (name.to_owned(), dims.to_vec());
        self.made.tensors.push(Tensor { name, dims, kind });
    }

    /// Adds `heads` of `head_dim` and the key and value heads; returns the width of all heads.
    fn attention(&mut self, layer: u64, head_dim: u64, query_parts: u64) -> anyhow::Result<u64> {
        let hidden = self.hidden;
        let heads = self.number("num_attention_heads")? * head_dim;
        let kv_heads = self.number("num_key_value_heads")? * head_dim;
        self.matrix(&format!("blk.{layer}.attn_q.weight"), hidden, heads * query_parts);
        self.matrix(&format!("blk.{layer}.attn_k.weight"), hidden, kv_heads);
        self.matrix(&format!("blk.{layer}.attn_v.weight"), hidden, kv_heads);
        self.matrix(&format!("blk.{layer}.attn_output.weight"), heads, hidden);
        Ok(heads)
    }

    fn head_norms(&mut self, layer: u64, head_dim: u64) {
        self.vector(&format!("blk.{layer}.attn_q_norm.weight"), head_dim);
        self.vector(&format!("blk.{layer}.attn_k_norm.weight"), head_dim);
    }

    /// Adds a feed-forward block; `part` is empty or names shared experts.
    fn mlp(&mut self, layer: u64, part: &str, inner: u64) {
        let hidden = self.hidden;
        self.matrix(&format!("blk.{layer}.ffn_gate{part}.weight"), hidden, inner);
        self.matrix(&format!("blk.{layer}.ffn_up{part}.weight"), hidden, inner);
        self.matrix(&format!("blk.{layer}.ffn_down{part}.weight"), inner, hidden);
    }

    /// Adds the metadata of experts.
    fn experts_metadata(&mut self, experts: Experts) -> anyhow::Result<()> {
        self.made.chosen = experts.chosen as f64 / experts.count as f64;
        self.numbers(&[
            ("expert_count", experts.count),
            ("expert_used_count", experts.chosen),
            ("expert_feed_forward_length", experts.inner),
        ])
    }

    /// Adds the router and the experts of a layer.
    fn experts(&mut self, layer: u64, experts: Experts) {
        let Experts { count, inner, .. } = experts;
        let hidden = self.hidden;
        self.tensor(&format!("blk.{layer}.ffn_gate_inp.weight"), &[hidden, count], Kind::F32);
        for (part, dims) in [
            ("gate", [hidden, inner, count]),
            ("up", [hidden, inner, count]),
            ("down", [inner, hidden, count]),
        ] {
            self.tensor(&format!("blk.{layer}.ffn_{part}_exps.weight"), &dims, Kind::Q4_0);
        }
    }

    /// Returns the numbers of the layers.
    fn layers(&self) -> anyhow::Result<std::ops::Range<u64>> {
        Ok(0..self.number("num_hidden_layers")?)
    }
}

/// The experts of a layer.
#[derive(Clone, Copy)]
struct Experts {
    count: u64,
    chosen: u64,
    inner: u64,
}

impl Experts {
    /// Reads the number of experts from the field `count`, and their inner width from `inner`.
    fn read(config: &Value, count: &str, inner: &str) -> anyhow::Result<Experts> {
        Ok(Experts {
            count: number(config, count)?,
            chosen: number(config, "num_experts_per_tok")?,
            inner: number(config, inner)?,
        })
    }
}

pub(in super::super) fn number(config: &Value, key: &str) -> anyhow::Result<u64> {
    config[key].as_u64().with_context(|| format!("config.json has no number {key}"))
}

fn check_experts_everywhere(config: &Value) -> anyhow::Result<()> {
    let is_everywhere = config["decoder_sparse_step"] == 1
        && config["mlp_only_layers"].as_array().is_none_or(Vec::is_empty);
    ensure!(is_everywhere, "llama.cpp has experts in every layer of this architecture");
    Ok(())
}

/// Begins an architecture whose attention is that of Qwen3.
fn grouped<'a>(config: &'a Value, architecture: &'static str) -> anyhow::Result<Builder<'a>> {
    let head_dim = number(config, "head_dim")?;
    let mut builder = Builder::new(config, architecture, head_dim)?;
    builder.numbers(&[
        ("attention.value_length", head_dim),
        ("attention.head_count_kv", number(config, "num_key_value_heads")?),
    ])?;
    Ok(builder)
}

/// `qwen3.cpp`.
fn qwen3(config: &Value) -> anyhow::Result<Architecture> {
    let mut builder = grouped(config, "qwen3")?;
    let (head_dim, inner) = (builder.number("head_dim")?, builder.number("intermediate_size")?);
    for layer in builder.layers()? {
        builder.vector(&format!("blk.{layer}.attn_norm.weight"), builder.hidden);
        builder.attention(layer, head_dim, 1)?;
        builder.head_norms(layer, head_dim);
        builder.vector(&format!("blk.{layer}.ffn_norm.weight"), builder.hidden);
        builder.mlp(layer, "", inner);
    }
    Ok(builder.made)
}

/// `qwen3moe.cpp`.
fn qwen3_moe(config: &Value) -> anyhow::Result<Architecture> {
    check_experts_everywhere(config)?;
    let mut builder = grouped(config, "qwen3moe")?;
    let head_dim = builder.number("head_dim")?;
    let experts = Experts::read(config, "num_experts", "moe_intermediate_size")?;
    builder.experts_metadata(experts)?;
    for layer in builder.layers()? {
        builder.vector(&format!("blk.{layer}.attn_norm.weight"), builder.hidden);
        builder.attention(layer, head_dim, 1)?;
        builder.head_norms(layer, head_dim);
        builder.vector(&format!("blk.{layer}.ffn_norm.weight"), builder.hidden);
        builder.experts(layer, experts);
    }
    Ok(builder.made)
}

/// `qwen3next.cpp`.
fn qwen3_next(config: &Value) -> anyhow::Result<Architecture> {
    check_experts_everywhere(config)?;
    let mut builder = grouped(config, "qwen3next")?;
    let head_dim = builder.number("head_dim")?;
    let experts = Experts::read(config, "num_experts", "moe_intermediate_size")?;
    builder.experts_metadata(experts)?;
    let shared = builder.number("shared_expert_intermediate_size")?;
    let rotated = config["partial_rotary_factor"].as_f64().unwrap_or(1.0) * head_dim as f64;
    let interval = builder.number("full_attention_interval")?;
    let [key_heads, value_heads] =
        [builder.number("linear_num_key_heads")?, builder.number("linear_num_value_heads")?];
    let state = builder.number("linear_key_head_dim")?;
    let taps = builder.number("linear_conv_kernel_dim")?;
    ensure!(
        builder.number("linear_value_head_dim")? == state,
        "llama.cpp's qwen3next has one width of keys and values"
    );
    let (keys, values) = (key_heads * state, value_heads * state);
    builder.numbers(&[
        ("expert_shared_feed_forward_length", shared),
        ("rope.dimension_count", rotated as u64),
        ("full_attention_interval", interval),
        ("ssm.conv_kernel", taps),
        ("ssm.inner_size", values),
        ("ssm.state_size", state),
        ("ssm.time_step_rank", value_heads),
        ("ssm.group_count", key_heads),
    ])?;
    let hidden = builder.hidden;
    for layer in builder.layers()? {
        let name = |part: &str| format!("blk.{layer}.{part}");
        builder.vector(&name("attn_norm.weight"), hidden);
        builder.vector(&name("post_attention_norm.weight"), hidden);
        if (layer + 1).is_multiple_of(interval) {
            builder.attention(layer, head_dim, 2)?;
            builder.head_norms(layer, head_dim);
        } else {
            let channels = 2 * keys + values;
            builder.matrix(&name("attn_qkv.weight"), hidden, channels);
            builder.matrix(&name("attn_gate.weight"), hidden, values);
            builder.tensor(&name("ssm_conv1d.weight"), &[taps, channels], Kind::F32);
            builder.vector(&name("ssm_dt.bias"), value_heads);
            builder.vector(&name("ssm_a"), value_heads);
            builder.matrix(&name("ssm_ba.weight"), hidden, 2 * value_heads);
            builder.vector(&name("ssm_norm.weight"), state);
            builder.matrix(&name("ssm_out.weight"), values, hidden);
        }
        builder.experts(layer, experts);
        builder.vector(&name("ffn_gate_inp_shexp.weight"), hidden);
        builder.mlp(layer, "_shexp", shared);
    }
    Ok(builder.made)
}

/// `openai-moe.cpp`.
fn gpt_oss(config: &Value) -> anyhow::Result<Architecture> {
    let mut builder = grouped(config, "gpt-oss")?;
    let head_dim = builder.number("head_dim")?;
    let experts = Experts::read(config, "num_local_experts", "intermediate_size")?;
    builder.experts_metadata(experts)?;
    builder.numbers(&[("attention.sliding_window", builder.number("sliding_window")?)])?;
    let (hidden, heads) = (builder.hidden, builder.number("num_attention_heads")?);
    let kv_width = builder.number("num_key_value_heads")? * head_dim;
    for layer in builder.layers()? {
        let name = |part: &str| format!("blk.{layer}.{part}");
        builder.vector(&name("attn_norm.weight"), hidden);
        builder.vector(&name("post_attention_norm.weight"), hidden);
        let width = builder.attention(layer, head_dim, 1)?;
        for (part, len) in [("q", width), ("k", kv_width), ("v", kv_width), ("output", hidden)] {
            builder.vector(&name(&format!("attn_{part}.bias")), len);
        }
        builder.vector(&name("attn_sinks.weight"), heads);
        builder.experts(layer, experts);
        builder.vector(&name("ffn_gate_inp.bias"), experts.count);
        for (part, len) in [("gate", experts.inner), ("up", experts.inner), ("down", hidden)] {
            let dims = [len, experts.count];
            builder.tensor(&name(&format!("ffn_{part}_exps.bias")), &dims, Kind::F32);
        }
    }
    Ok(builder.made)
}

/// `deepseek2.cpp`, with compressed queries.
fn deepseek_v3(config: &Value) -> anyhow::Result<Architecture> {
    let (latent, rotated) = (number(config, "kv_lora_rank")?, number(config, "qk_rope_head_dim")?);
    let mut builder = Builder::new(config, "deepseek2", latent + rotated)?;
    let experts = Experts::read(config, "n_routed_experts", "moe_intermediate_size")?;
    builder.experts_metadata(experts)?;
    let num_shared = builder.number("n_shared_experts")?;
    let num_dense = builder.number("first_k_dense_replace")?;
    let query_rank = builder.number("q_lora_rank")?;
    let (plain, value_dim) = (builder.number("qk_nope_head_dim")?, builder.number("v_head_dim")?);
    let (hidden, heads) = (builder.hidden, builder.number("num_attention_heads")?);
    let inner = builder.number("intermediate_size")?;
    /// llama.cpp's number of the logistic function.
    const SIGMOID: u64 = 2;
    builder.numbers(&[
        ("attention.head_count_kv", 1),
        ("attention.value_length", latent),
        ("attention.key_length_mla", plain + rotated),
        ("attention.value_length_mla", value_dim),
        ("attention.q_lora_rank", query_rank),
        ("attention.kv_lora_rank", latent),
        ("rope.dimension_count", rotated),
        ("leading_dense_block_count", num_dense),
        ("expert_shared_count", num_shared),
        ("expert_gating_func", SIGMOID),
    ])?;
    builder.float("expert_weights_scale", "routed_scaling_factor")?;
    for layer in builder.layers()? {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        builder.vector(&name("attn_norm"), hidden);
        builder.vector(&name("attn_q_a_norm"), query_rank);
        builder.vector(&name("attn_kv_a_norm"), latent);
        builder.matrix(&name("attn_q_a"), hidden, query_rank);
        builder.matrix(&name("attn_q_b"), query_rank, heads * (plain + rotated));
        builder.matrix(&name("attn_kv_a_mqa"), hidden, latent + rotated);
        builder.tensor(&name("attn_k_b"), &[plain, latent, heads], Kind::Q4_0);
        builder.tensor(&name("attn_v_b"), &[latent, value_dim, heads], Kind::Q4_0);
        builder.matrix(&name("attn_output"), heads * value_dim, hidden);
        builder.vector(&name("ffn_norm"), hidden);
        if layer < num_dense {
            builder.mlp(layer, "", inner);
        } else {
            builder.experts(layer, experts);
            builder.vector(&format!("blk.{layer}.exp_probs_b.bias"), experts.count);
            builder.mlp(layer, "_shexp", experts.inner * num_shared);
        }
    }
    Ok(builder.made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::gguf::q4_0_bytes;

    #[test]
    fn of_a_mixture_a_token_reads_the_chosen_experts() {
        let config = serde_json::json!({
            "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 3, "head_dim": 32, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": 128, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": true,
            "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
            "decoder_sparse_step": 1, "mlp_only_layers": [],
        });
        let model = Architecture::of(&config).unwrap();
        assert_eq!(model.tensors.len(), 2 + 3 * 12);
        let of_experts = model.tensors.iter().filter(|it| it.name.contains("_exps."));
        let experts: u64 = of_experts.map(Tensor::bytes).sum();
        assert_eq!(experts, q4_0_bytes(3 * 3 * 16 * 64 * 32));
        let all: u64 = model.tensors.iter().map(Tensor::bytes).sum();
        let read = all as f64 - experts as f64 * 0.75;
        assert!((model.active_part() - read / all as f64).abs() < 1e-12);
        assert!(model.metadata.iter().any(|(key, _)| key == "qwen3moe.expert_used_count"));
        let mut untied = config;
        untied["tie_word_embeddings"] = false.into();
        let untied = Architecture::of(&untied).unwrap();
        let embedding = q4_0_bytes(64 * 128) as f64;
        let all = all as f64 + embedding;
        assert!((untied.active_part() - read / all).abs() < 1e-12);
        let other = serde_json::json!({"model_type": "mamba"});
        assert!(Architecture::of(&other).unwrap_err().to_string().contains("hint:"));
    }

    #[test]
    fn every_shape_has_its_tensors() {
        let names = |config: &str| -> Vec<String> {
            let config = serde_json::from_str(config).unwrap();
            let model = Architecture::of(&config).unwrap();
            model.tensors.into_iter().map(|it| it.name).collect()
        };
        for (config, expected) in [
            (include_str!("../shapes/gpt-oss.json"), "blk.11.ffn_down_exps.bias"),
            (include_str!("../shapes/qwen3-next.json"), "blk.6.ssm_ba.weight"),
            (include_str!("../shapes/deepseek.json"), "blk.11.attn_k_b.weight"),
        ] {
            let names = names(config);
            assert!(names.iter().any(|name| name == expected), "{names:?}");
        }
    }
}
