//! The mixer of a layer: attention, or a recurrence.

use jackalope_spec::{AttentionSpec, GatedDeltaSpec, HeadRows, Mixer, QkNorm};

use super::parts::LayerParts;
use crate::cache::LayerCacheShape;
use crate::error::LoadError;
use crate::layers::{
    AllHeadsNorm, Attention, AttentionParts, GatedDelta, GatedDeltaParts, HasBias, HeadNorms,
    Heads, Linear, OwnRows, Residual, RmsNorm,
};
use crate::step::{Reach, Step};
use crate::weights::{Part, Weights};

/// The mixer of a layer.
#[derive(Debug)]
pub(super) enum MixerBlock {
    Attention(Box<Attention>),
    GatedDelta(Box<GatedDelta>),
}

impl MixerBlock {
    /// Loads the mixer of the layer whose tensors are at `w`.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(super) fn load(
        w: &Weights<'_>,
        parts: &LayerParts<'_, '_>,
    ) -> Result<MixerBlock, LoadError> {
        Ok(match &parts.spec.mixer {
            Mixer::Attention(spec) => {
                MixerBlock::Attention(Box::new(attention(&w.at("self_attn"), spec, parts)?))
            }
            Mixer::GatedDelta(spec) => MixerBlock::GatedDelta(Box::new(gated_delta(spec, parts)?)),
        })
    }

    /// Returns `residual + mixer(norm(residual))`.
    pub(super) fn add_to(
        &self,
        residual: Residual,
        norm: &RmsNorm,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        match self {
            MixerBlock::Attention(attention) => attention.add_to(residual, norm, step),
            MixerBlock::GatedDelta(delta) => delta.add_to(residual, norm, step),
        }
    }

    /// Returns what the mixer keeps of a sequence on this rank.
    pub(super) fn cache_shape(&self) -> LayerCacheShape {
        match self {
            MixerBlock::Attention(attention) => attention.cache_shape(),
            MixerBlock::GatedDelta(delta) => delta.cache_shape(),
        }
    }

    /// Returns this rank's heads.
    pub(super) fn heads(&self) -> &Heads {
        match self {
            MixerBlock::Attention(attention) => attention.heads(),
            MixerBlock::GatedDelta(delta) => delta.heads(),
        }
    }

    /// Whether it is attention.
    pub(super) fn is_attention(&self) -> bool {
        matches!(self, MixerBlock::Attention(_))
    }
}

fn gated_delta(spec: &GatedDeltaSpec, parts: &LayerParts<'_, '_>) -> Result<GatedDelta, LoadError> {
    let heads = Heads::new(parts.layout.heads, spec.sizes.value_dim, parts.parallel);
    let delta = GatedDeltaParts {
        spec,
        layer_idx: parts.layer_idx,
        root: parts.root,
        hidden: parts.model.hidden_size,
        norm_eps: parts.model.norm_eps,
        parallel: parts.parallel,
    };
    GatedDelta::load(&delta, heads)
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
    let (q_proj, gate) = if spec.has_output_gate {
        let [query, gate] = query_and_gate(spec).map(|rows| OwnRows::new(&rows, &heads.cut.heads));
        let load = |rows| Linear::of_rows(&w.at("q_proj"), hidden, rows, qkv_bias);
        (load(&query)?, Some(load(&gate)?))
    } else {
        (Linear::column(&w.at("q_proj"), hidden, &heads.queries(), qkv_bias)?, None)
    };
    let queries = &heads.cut.heads;
    let sinks = spec.sinks.map(|name| w.floats(name, &[queries.full], Part::rows(queries)));
    let attention = AttentionParts {
        sinks: sinks.transpose()?,
        q_proj,
        gate,
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

/// Returns the rows of queries and of gates in `q_proj`, which alternate head by head.
fn query_and_gate(spec: &AttentionSpec) -> [HeadRows; 2] {
    let &AttentionSpec { heads, head_dim, .. } = spec;
    [0, head_dim].map(|start| HeadRows {
        module: "q_proj".to_owned(),
        num_rows: 2 * heads * head_dim,
        start,
        rows_per_head: head_dim,
        heads_per_group: 1,
        group_stride: 2 * head_dim,
    })
}
