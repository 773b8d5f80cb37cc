//! Qwen2 and Qwen2.5, dense (Yang et al. 2024): biases on queries, keys and values.
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
    RopeConfig,
};
use crate::parallel::TensorParallel;
use crate::step::Step;
use crate::weights::Weights;

#[derive(Debug, Deserialize)]
struct Config {
    hidden_size: u32,
    num_hidden_layers: u32,
    intermediate_size: u32,
    num_attention_heads: u32,
    num_key_value_heads: u32,
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
    tp: &'a TensorParallel,
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
pub(super) struct Qwen2 {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    lm_head: Head,
    hidden_size: usize,
    context_tokens: u32,
    heads: Heads,
}

impl Qwen2 {
    pub(super) fn load(
        w: &Weights<'_>,
        checkpoint: &Checkpoint,
        tp: &TensorParallel,
    ) -> Result<Qwen2, LoadError> {
        let config: Config = checkpoint.config()?;
        check_activation(checkpoint, config.hidden_act.as_deref())?;
        let hidden = checkpoint.dimension("hidden_size", config.hidden_size)?;
        let vocab = checkpoint.dimension("vocab_size", config.vocab_size)?;
        let num_layers = checkpoint.dimension("num_hidden_layers", config.num_hidden_layers)?;
        let model = w.at("model");
        let plan = Plan::new(checkpoint, &config, hidden, (&model, tp))?;
        let embed_tokens = Embedding::load(&model.at("embed_tokens"), vocab, hidden, tp)?;
        let layers = (0..num_layers)
            .map(|idx| Layer::load(&model.at("layers").at(idx), &plan, idx))
            .collect::<Result<Vec<_>, _>>()?;
        let lm_head = if is_tied(w, config.tie_word_embeddings) {
            Head::tied(&embed_tokens)
        } else {
            Head::load(&w.at("lm_head"), vocab, hidden, tp)?
        };
        Ok(Qwen2 {
            embed_tokens,
            layers,
            norm: RmsNorm::load(&model.at("norm"), hidden, config.rms_norm_eps, tp)?,
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
        (model, tp): (&Weights<'_>, &'a TensorParallel),
    ) -> Result<Plan<'a>, LoadError> {
        let heads = checkpoint.dimension("num_attention_heads", config.num_attention_heads)?;
        let kv_heads = checkpoint.dimension("num_key_value_heads", config.num_key_value_heads)?;
        let head_dim = hidden / heads;
        let o_proj = model.at("layers.0.self_attn.o_proj");
        let heads = Heads::new(checkpoint, (heads, kv_heads, head_dim), &o_proj, tp)?;
        let rope = Rope::new(checkpoint, &config.rope, head_dim, None)?;
        Ok(Plan { checkpoint, config, hidden, heads, rope, tp })
    }
}

impl Layer {
    fn load(w: &Weights<'_>, plan: &Plan<'_>, layer_idx: usize) -> Result<Layer, LoadError> {
        let Plan { config, hidden, tp, .. } = *plan;
        let norm = |name| RmsNorm::load(&w.at(name), hidden, config.rms_norm_eps, tp);
        let inner = plan.checkpoint.dimension("intermediate_size", config.intermediate_size)?;
        Ok(Layer {
            input_layernorm: norm("input_layernorm")?,
            self_attn: attention(&w.at("self_attn"), plan, layer_idx)?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp: Mlp::load(&w.at("mlp"), (hidden, inner), Bias::Absent, tp)?,
        })
    }

    fn forward(&self, x: Residual, step: &mut Step<'_, '_>) -> Residual {
        let h = self.self_attn.add_to(x, &self.input_layernorm, step);
        self.mlp.add_to(h, &self.post_attention_layernorm)
    }
}

fn attention(w: &Weights<'_>, plan: &Plan<'_>, layer_idx: usize) -> Result<Attention, LoadError> {
    let Plan { hidden, heads, tp, .. } = plan;
    let bias = Bias::Present;
    let parts = AttentionParts {
        q_proj: Linear::column(&w.at("q_proj"), *hidden, &heads.queries(), bias, tp)?,
        k_proj: Linear::column(&w.at("k_proj"), *hidden, &heads.keys(), bias, tp)?,
        v_proj: Linear::column(&w.at("v_proj"), *hidden, &heads.keys(), bias, tp)?,
        o_proj: Linear::row(&w.at("o_proj"), &heads.queries(), *hidden, Bias::Absent, tp)?,
        head_norms: None,
        rope: Rc::clone(&plan.rope),
        heads: heads.clone(),
        window: None,
    };
    Ok(Attention::new(parts, layer_idx, w.dtype(), tp))
}

impl Network for Qwen2 {
    fn forward(&self, tokens: &[TokenId], step: &mut Step<'_, '_>) -> Array {
        let embedded = self.embed_tokens.forward(tokens);
        self.layers.iter().fold(embedded, |h, layer| layer.forward(h, step)).finish()
    }

    fn norm(&self, h: &Array) -> Array {
        self.norm.forward(h)
    }

    fn head(&self, h: &Array) -> Array {
        self.lm_head.forward(h)
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions {
            num_layers: self.layers.len(),
            hidden_size: self.hidden_size,
            context_tokens: self.context_tokens,
            heads: self.heads.clone(),
            mlp: self.layers[0].mlp.inner.clone(),
            vocab: self.embed_tokens.cut().clone(),
        }
    }
}
