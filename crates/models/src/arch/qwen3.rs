//! Qwen3, dense (Yang et al. 2025): each query and key head is normalised before its rotation.
//! Sliding windows, which no published checkpoint uses, are not used either, as in mlx-lm.

use std::rc::Rc;

use jackalope_mlx::Array;
use jackalope_protocol::TokenId;
use serde::Deserialize;

use super::{Dimensions, Network, check_activation, is_tied};
use crate::checkpoint::Checkpoint;
use crate::error::LoadError;
use crate::layers::{
    Attention, AttentionParts, Bias, Embedding, Head, Heads, Linear, Mlp, Residual, RmsNorm, Rope,
    RopeConfig, Stack, vocabulary,
};
use crate::parallel::Parallel;
use crate::step::Step;
use crate::weights::Weights;

#[derive(Debug, Deserialize)]
struct Config {
    hidden_size: u32,
    num_hidden_layers: u32,
    intermediate_size: u32,
    num_attention_heads: u32,
    num_key_value_heads: u32,
    head_dim: u32,
    vocab_size: u32,
    rms_norm_eps: f32,
    hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
    #[serde(flatten)]
    rope: RopeConfig,
}

/// Everything above one layer's weights that loading a layer needs.
struct Plan<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a Config,
    hidden: usize,
    heads: Heads,
    rope: Rc<Rope>,
    parallel: &'a Parallel,
}

#[derive(Debug)]
struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

/// The network.
#[derive(Debug)]
pub(super) struct Qwen3 {
    embed_tokens: Embedding,
    layers: Stack<Layer>,
    norm: RmsNorm,
    lm_head: Head,
    hidden_size: usize,
    context_tokens: u32,
    heads: Heads,
}

impl Qwen3 {
    pub(super) fn load(
        w: &Weights<'_>,
        checkpoint: &Checkpoint,
        parallel: &Parallel,
    ) -> Result<Qwen3, LoadError> {
        let config: Config = checkpoint.config()?;
        check_activation(checkpoint, config.hidden_act.as_deref())?;
        let hidden = checkpoint.dimension("hidden_size", config.hidden_size)?;
        let vocab = checkpoint.dimension("vocab_size", config.vocab_size)?;
        let num_layers = checkpoint.dimension("num_hidden_layers", config.num_hidden_layers)?;
        let model = w.at("model");
        let plan = Plan::new(checkpoint, &config, hidden, (&model, parallel))?;
        let head = (!is_tied(w, config.tie_word_embeddings)).then(|| w.at("lm_head"));
        let (embed_tokens, lm_head) =
            vocabulary(&model.at("embed_tokens"), head.as_ref(), (vocab, hidden), parallel)?;
        let load = |w: &Weights<'_>, layer_idx| Layer::load(w, &plan, layer_idx);
        let layers = Stack::load(&model.at("layers"), (num_layers, hidden), parallel, load)?;
        Ok(Qwen3 {
            embed_tokens,
            layers,
            norm: RmsNorm::load(&model.at("norm"), hidden, config.rms_norm_eps, parallel)?,
            lm_head,
            hidden_size: hidden,
            context_tokens: config.rope.context_tokens(),
            heads: plan.heads,
        })
    }
}

impl<'a> Plan<'a> {
    fn new(
        checkpoint: &'a Checkpoint,
        config: &'a Config,
        hidden: usize,
        (model, parallel): (&Weights<'_>, &'a Parallel),
    ) -> Result<Plan<'a>, LoadError> {
        let heads = checkpoint.dimension("num_attention_heads", config.num_attention_heads)?;
        let kv_heads = checkpoint.dimension("num_key_value_heads", config.num_key_value_heads)?;
        let head_dim = checkpoint.dimension("head_dim", config.head_dim)?;
        let o_proj = model.at("layers.0.self_attn.o_proj");
        let heads = Heads::new(checkpoint, (heads, kv_heads, head_dim), &o_proj, parallel)?;
        let rope = Rope::new(checkpoint, &config.rope, head_dim, None)?;
        Ok(Plan { checkpoint, config, hidden, heads, rope, parallel })
    }
}

impl Layer {
    fn load(w: &Weights<'_>, plan: &Plan<'_>, layer_idx: usize) -> Result<Layer, LoadError> {
        let Plan { config, hidden, parallel, .. } = *plan;
        let norm = |name| RmsNorm::load(&w.at(name), hidden, config.rms_norm_eps, parallel);
        let inner = plan.checkpoint.dimension("intermediate_size", config.intermediate_size)?;
        Ok(Layer {
            input_layernorm: norm("input_layernorm")?,
            self_attn: attention(&w.at("self_attn"), plan, layer_idx)?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp: Mlp::load(&w.at("mlp"), (hidden, inner), Bias::Absent, parallel)?,
        })
    }

    fn forward(&self, x: Residual, step: &mut Step<'_, '_>) -> Residual {
        let h = self.self_attn.add_to(x, &self.input_layernorm, step);
        self.mlp.add_to(h, &self.post_attention_layernorm)
    }
}

fn attention(w: &Weights<'_>, plan: &Plan<'_>, layer_idx: usize) -> Result<Attention, LoadError> {
    let Plan { hidden, heads, parallel, .. } = plan;
    let bias = Bias::Absent;
    let head_dim = heads.head_dim;
    let norm = |name| RmsNorm::load(&w.at(name), head_dim, plan.config.rms_norm_eps, parallel);
    let parts = AttentionParts {
        q_proj: Linear::column(&w.at("q_proj"), *hidden, &heads.queries(), bias, parallel)?,
        k_proj: Linear::column(&w.at("k_proj"), *hidden, &heads.keys(), bias, parallel)?,
        v_proj: Linear::column(&w.at("v_proj"), *hidden, &heads.keys(), bias, parallel)?,
        o_proj: heads.o_proj(&w.at("o_proj"), *hidden, bias, parallel)?,
        head_norms: Some((norm("q_norm")?, norm("k_norm")?)),
        rope: Rc::clone(&plan.rope),
        heads: heads.clone(),
        window: None,
    };
    Ok(Attention::new(parts, layer_idx, w.dtype(), parallel))
}

impl Network for Qwen3 {
    fn forward(&self, tokens: &[TokenId], step: &mut Step<'_, '_>) -> Array {
        let embed = || self.embed_tokens.forward(tokens);
        self.layers.forward(tokens.len(), embed, |h, layer| layer.forward(h, step))
    }

    fn norm(&self, h: &Array) -> Array {
        self.norm.forward(h)
    }

    fn head(&self, h: &Array) -> Array {
        self.lm_head.forward(h)
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions {
            num_layers: self.layers.num_layers(),
            layers: self.layers.range(),
            hidden_size: self.hidden_size,
            context_tokens: self.context_tokens,
            heads: self.heads.clone(),
            mlp: self.layers.first().mlp.inner.clone(),
            vocab: self.lm_head.rows(&self.embed_tokens),
        }
    }
}
