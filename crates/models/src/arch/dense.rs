//! A dense decoder layer: grouped-query attention and a SwiGLU MLP, each after a norm.

use jackalope_spec::{
    AttentionSpec, FeedForward, LayerLayout, LayerSpec, Mixer, ModelSpec, QkNorm,
};

use crate::error::LoadError;
use crate::layers::{
    Attention, AttentionParts, Bias, Heads, Linear, Mlp, Residual, RmsNorm, Ropes,
};
use crate::parallel::Parallel;
use crate::split::Cut;
use crate::step::Step;
use crate::weights::Weights;

/// What a layer is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerParts<'a> {
    pub(super) layer_idx: usize,
    pub(super) spec: &'a LayerSpec,
    pub(super) layout: &'a LayerLayout,
    pub(super) model: &'a ModelSpec,
    pub(super) ropes: &'a Ropes,
    pub(super) parallel: &'a Parallel,
}

impl LayerParts<'_> {
    /// Loads the norm at `w`, of vectors of `width` elements.
    pub(super) fn norm(&self, w: &Weights<'_>, width: usize) -> Result<RmsNorm, LoadError> {
        RmsNorm::load(w, width, self.model.norm_eps, self.parallel)
    }
}

/// A dense decoder layer.
#[derive(Debug)]
pub(super) struct DenseLayer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

impl DenseLayer {
    /// Loads the layer whose tensors are at `w`.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(super) fn load(w: &Weights<'_>, parts: &LayerParts<'_>) -> Result<DenseLayer, LoadError> {
        let hidden = parts.model.hidden_size;
        let Mixer::Attention(spec) = &parts.spec.mixer;
        let FeedForward::Mlp(mlp) = &parts.spec.feed_forward else {
            panic!("a computed family has dense feed-forward blocks, found {:?}", parts.spec)
        };
        Ok(DenseLayer {
            input_layernorm: parts.norm(&w.at("input_layernorm"), hidden)?,
            self_attn: attention(&w.at("self_attn"), spec, parts)?,
            post_attention_layernorm: parts.norm(&w.at("post_attention_layernorm"), hidden)?,
            mlp: Mlp::load(&w.at("mlp"), hidden, mlp, parts.layout, parts.parallel)?,
        })
    }

    /// Adds the layer's output to the residual stream.
    pub(super) fn forward(&self, x: Residual, step: &mut Step<'_, '_>) -> Residual {
        let h = self.self_attn.add_to(x, &self.input_layernorm, step);
        self.mlp.add_to(h, &self.post_attention_layernorm)
    }

    /// Returns this rank's part of the inner dimension of the feed-forward block.
    pub(super) fn inner(&self) -> &Cut {
        &self.mlp.inner
    }

    /// Returns this rank's attention heads.
    pub(super) fn heads(&self) -> &Heads {
        self.self_attn.heads()
    }
}

fn attention(
    w: &Weights<'_>,
    spec: &AttentionSpec,
    parts: &LayerParts<'_>,
) -> Result<Attention, LoadError> {
    let (hidden, parallel) = (parts.model.hidden_size, parts.parallel);
    let heads = Heads::new(parts.layout.heads, spec.head_dim, parallel);
    let qkv_bias = Bias::when(spec.has_qkv_bias);
    let head_norm = |name| parts.norm(&w.at(name), spec.head_dim);
    let head_norms = match spec.qk_norm {
        None => None,
        Some(QkNorm::PerHead) => Some((head_norm("q_norm")?, head_norm("k_norm")?)),
        Some(QkNorm::AllHeads) => panic!("no computed family normalises all heads together"),
    };
    let attention = AttentionParts {
        q_proj: Linear::column(&w.at("q_proj"), hidden, &heads.queries(), qkv_bias, parallel)?,
        k_proj: Linear::column(&w.at("k_proj"), hidden, &heads.keys(), qkv_bias, parallel)?,
        v_proj: Linear::column(&w.at("v_proj"), hidden, &heads.keys(), qkv_bias, parallel)?,
        o_proj: heads.o_proj(
            &w.at("o_proj"),
            hidden,
            Bias::when(spec.has_output_bias),
            parallel,
        )?,
        head_norms,
        rope: parts.ropes.of(&spec.rope),
        heads,
        window: spec.window,
    };
    Ok(Attention::new(attention, parts.layer_idx, w.dtype(), parallel))
}
