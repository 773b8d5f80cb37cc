//! The decoder layer: grouped-query attention, then a dense block or a mixture of experts, each
//! after a norm.

use jackalope_spec::{AttentionSpec, Mixer, QkNorm};

use super::feed_forward::FeedForwardBlock;
use super::parts::LayerParts;
use crate::cache::LayerCacheShape;
use crate::error::LoadError;
use crate::layers::{
    AllHeadsNorm, Attention, AttentionParts, HasBias, HeadNorms, Heads, Linear, Residual, RmsNorm,
};
use crate::split::Cut;
use crate::step::{Reach, Step};
use crate::weights::{Part, Weights};

/// A decoder layer with attention.
#[derive(Debug)]
pub(super) struct AttentionLayer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    feed_forward: FeedForwardBlock,
}

impl AttentionLayer {
    /// Loads the layer whose tensors are at `w`.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(super) fn load(
        w: &Weights<'_>,
        parts: &LayerParts<'_, '_>,
    ) -> Result<AttentionLayer, LoadError> {
        let hidden = parts.model.hidden_size;
        let spec = match &parts.spec.mixer {
            Mixer::Attention(spec) => spec,
            Mixer::GatedDelta(_) => panic!("no computed family has a gated delta net"),
        };
        Ok(AttentionLayer {
            input_layernorm: parts.norm(&w.at("input_layernorm"), hidden)?,
            self_attn: attention(&w.at("self_attn"), spec, parts)?,
            post_attention_layernorm: parts.norm(&w.at("post_attention_layernorm"), hidden)?,
            feed_forward: FeedForwardBlock::load(w, parts)?,
        })
    }

    /// Adds the layer's output to the residual stream.
    pub(super) fn forward(&self, x: Residual, step: &mut Step<'_, '_>) -> Residual {
        let h = self.self_attn.add_to(x, &self.input_layernorm, step);
        self.feed_forward.add_to(h, &self.post_attention_layernorm)
    }

    /// Returns this rank's part of the inner dimension of the feed-forward block.
    pub(super) fn inner(&self) -> &Cut {
        self.feed_forward.inner()
    }

    /// Returns what the layer keeps of a sequence on this rank.
    pub(super) fn cache_shape(&self) -> LayerCacheShape {
        self.self_attn.cache_shape()
    }

    /// Returns this rank's attention heads.
    pub(super) fn heads(&self) -> &Heads {
        self.self_attn.heads()
    }
}

fn attention(
    w: &Weights<'_>,
    spec: &AttentionSpec,
    parts: &LayerParts<'_, '_>,
) -> Result<Attention, LoadError> {
    let (hidden, parallel) = (parts.model.hidden_size, parts.parallel);
    let heads = Heads::new(parts.layout.heads, spec.head_dim, parallel);
    let qkv_bias = HasBias::when(spec.has_qkv_bias);
    let head_norm = |name| parts.norm(&w.at(name), spec.head_dim);
    let head_norms = match spec.qk_norm {
        None => None,
        Some(QkNorm::PerHead) => {
            Some(HeadNorms::PerHead([head_norm("q_norm")?, head_norm("k_norm")?]))
        }
        Some(QkNorm::RotatedUnweighted { eps }) => {
            let norm = || RmsNorm::unweighted(spec.head_dim, eps, w.dtype(), parallel);
            Some(HeadNorms::Rotated([norm(), norm()]))
        }
        Some(QkNorm::AllHeads) => {
            let norm = AllHeadsNorm::load(w, &heads, parts.model.norm_eps, parallel)?;
            Some(HeadNorms::AllHeads(norm))
        }
    };
    let queries = &heads.cut.heads;
    let sinks = spec.sinks.map(|name| w.floats(name, &[queries.full], Part::rows(queries)));
    let attention = AttentionParts {
        sinks: sinks.transpose()?,
        q_proj: Linear::column(&w.at("q_proj"), hidden, &heads.queries(), qkv_bias)?,
        k_proj: Linear::column(&w.at("k_proj"), hidden, &heads.keys(), qkv_bias)?,
        v_proj: Linear::column(&w.at("v_proj"), hidden, &heads.keys(), qkv_bias)?,
        o_proj: heads.o_proj(&w.at("o_proj"), hidden, HasBias::when(spec.has_output_bias))?,
        head_norms,
        rope: parts.ropes.of(&spec.rope),
        heads,
        reach: Reach { window: spec.window, chunk: spec.chunk },
        query_growth: spec.query_growth,
    };
    Ok(Attention::new(attention, parts.layer_idx, w.dtype(), parallel))
}
