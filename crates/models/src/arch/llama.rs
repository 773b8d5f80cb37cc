//! Llama 1 to 3.x (Touvron et al. 2023, Grattafiori et al. 2024) and Mistral (Jiang et al. 2023).

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

/// Base of the rotations in checkpoints from before there was a field for it.
const LLAMA1_ROPE_THETA: f64 = 10_000.0;

#[derive(Debug, Deserialize)]
struct Config {
    hidden_size: u32,
    num_hidden_layers: u32,
    intermediate_size: u32,
    num_attention_heads: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    vocab_size: u32,
    rms_norm_eps: f32,
    hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    layer_types: Option<Vec<String>>,
    sliding_window: Option<u32>,
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
pub(super) struct Llama {
    embed_tokens: Embedding,
    layers: Stack<Layer>,
    norm: RmsNorm,
    lm_head: Head,
    hidden_size: usize,
    context_tokens: u32,
    heads: Heads,
}

impl Llama {
    pub(super) fn load(
        w: &Weights<'_>,
        checkpoint: &Checkpoint,
        parallel: &Parallel,
    ) -> Result<Llama, LoadError> {
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
        Ok(Llama {
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
        let kv_heads = match config.num_key_value_heads {
            Some(kv_heads) => checkpoint.dimension("num_key_value_heads", kv_heads)?,
            None => heads,
        };
        let head_dim = match config.head_dim {
            Some(head_dim) => checkpoint.dimension("head_dim", head_dim)?,
            None => hidden / heads,
        };
        let o_proj = model.at("layers.0.self_attn.o_proj");
        let heads = Heads::new(checkpoint, (heads, kv_heads, head_dim), &o_proj, parallel)?;
        let rope = Rope::new(checkpoint, &config.rope, head_dim, Some(LLAMA1_ROPE_THETA))?;
        if let Some(types) = &config.layer_types
            && types.len() != config.num_hidden_layers as usize
        {
            let expected = format!("{} entries", config.num_hidden_layers);
            return Err(checkpoint.bad_value("layer_types", types.len(), &expected));
        }
        Ok(Plan { checkpoint, config, hidden, heads, rope, parallel })
    }

    /// Positions that a query of the layer sees. A window without `layer_types` is not used, as in
    /// mlx-lm.
    fn window(&self, layer_idx: usize) -> Result<Option<usize>, LoadError> {
        let Some(types) = &self.config.layer_types else { return Ok(None) };
        match types[layer_idx].as_str() {
            "full_attention" => Ok(None),
            "sliding_attention" => {
                let window = self.config.sliding_window.unwrap_or(0);
                self.checkpoint.dimension("sliding_window", window).map(Some)
            }
            other => {
                let supported = &["full_attention", "sliding_attention"];
                Err(self.checkpoint.unsupported("layer type", other, supported))
            }
        }
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
            mlp: Mlp::load(&w.at("mlp"), (hidden, inner), Bias::when(config.mlp_bias), parallel)?,
        })
    }

    fn forward(&self, x: Residual, step: &mut Step<'_, '_>) -> Residual {
        let h = self.self_attn.add_to(x, &self.input_layernorm, step);
        self.mlp.add_to(h, &self.post_attention_layernorm)
    }
}

fn attention(w: &Weights<'_>, plan: &Plan<'_>, layer_idx: usize) -> Result<Attention, LoadError> {
    let Plan { hidden, heads, parallel, .. } = plan;
    let bias = Bias::when(plan.config.attention_bias);
    let parts = AttentionParts {
        q_proj: Linear::column(&w.at("q_proj"), *hidden, &heads.queries(), bias, parallel)?,
        k_proj: Linear::column(&w.at("k_proj"), *hidden, &heads.keys(), bias, parallel)?,
        v_proj: Linear::column(&w.at("v_proj"), *hidden, &heads.keys(), bias, parallel)?,
        o_proj: heads.o_proj(&w.at("o_proj"), *hidden, bias, parallel)?,
        head_norms: None,
        rope: Rc::clone(&plan.rope),
        heads: heads.clone(),
        window: plan.window(layer_idx)?,
    };
    Ok(Attention::new(parts, layer_idx, w.dtype(), parallel))
}

impl Network for Llama {
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
