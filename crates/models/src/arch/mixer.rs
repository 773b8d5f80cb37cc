//! The mixer of a layer: attention, grouped-query or latent, or a recurrence.

use jackalope_spec::{AttentionSpec, GatedDeltaSpec, HeadRows, LatentSpec, Mixer, QkNorm};

use super::parts::LayerParts;
use crate::cache::LayerCacheShape;
use crate::error::LoadError;
use crate::layers::{
    AllHeadsNorm, Attention, AttentionParts, GatedDelta, GatedDeltaParts, HasBias, HeadMatrix,
    HeadNorms, Heads, LatentAttention, LatentParts, LatentQueries, LatentSizes, Linear, OwnRows,
    Residual, RmsNorm,
};
use crate::split::Cut;
use crate::step::{Reach, Step};
use crate::weights::{Part, Weights};

/// The mixer of a layer.
#[derive(Debug)]
pub(super) enum MixerBlock {
    Attention(Box<Attention>),
    GatedDelta(Box<GatedDelta>),
    Latent(Box<LatentAttention>),
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
            Mixer::Latent(spec) => {
                MixerBlock::Latent(Box::new(latent(&w.at("self_attn"), spec, parts)?))
            }
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
            MixerBlock::Latent(latent) => latent.add_to(residual, norm, step),
        }
    }

    /// Returns what the mixer keeps of a sequence on this rank.
    pub(super) fn cache_shape(&self) -> LayerCacheShape {
        match self {
            MixerBlock::Attention(attention) => attention.cache_shape(),
            MixerBlock::GatedDelta(delta) => delta.cache_shape(),
            MixerBlock::Latent(latent) => latent.cache_shape(),
        }
    }

    /// Returns this rank's heads.
    pub(super) fn heads(&self) -> &Heads {
        match self {
            MixerBlock::Attention(attention) => attention.heads(),
            MixerBlock::GatedDelta(delta) => delta.heads(),
            MixerBlock::Latent(latent) => latent.heads(),
        }
    }

    /// Whether it is attention.
    pub(super) fn is_attention(&self) -> bool {
        matches!(self, MixerBlock::Attention(_) | MixerBlock::Latent(_))
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

fn latent(
    w: &Weights<'_>,
    spec: &LatentSpec,
    parts: &LayerParts<'_, '_>,
) -> Result<LatentAttention, LoadError> {
    let (hidden, parallel) = (parts.model.hidden_size, parts.parallel);
    let &LatentSpec { nope_dim, rope_dim, value_dim, kv_rank, .. } = spec;
    let sizes = LatentSizes { nope: nope_dim, rope: rope_dim, value: value_dim, rank: kv_rank };
    let heads = Heads::new(parts.layout.heads, value_dim, parallel);
    let own = &heads.cut.heads;
    let (bias, queries) = (HasBias::when(spec.has_bias), own.scaled(sizes.query()));
    let norm = |name, width| RmsNorm::load(&w.at(name), width, spec.norm_eps, parallel);
    let whole = |name, width| Linear::column(&w.at(name), hidden, &Cut::of_all_ranks(width), bias);
    let queries = match spec.q_rank {
        None => {
            LatentQueries::Direct(Linear::column(&w.at("q_proj"), hidden, &queries, HasBias::No)?)
        }
        Some(rank) => LatentQueries::LowRank {
            down: whole("q_a_proj", rank)?,
            norm: norm("q_a_layernorm", rank)?,
            up: Linear::column(&w.at("q_b_proj"), rank, &queries, HasBias::No)?,
        },
    };
    let joint = "kv_b_proj";
    let [embed, unembed] = if w.has(&format!("{joint}.weight")) {
        HeadMatrix::load_joint(&w.at(joint), own, [nope_dim, value_dim], kv_rank, parallel)?
    } else {
        [
            HeadMatrix::load(&w.at("embed_q"), own, [kv_rank, nope_dim])?,
            HeadMatrix::load(&w.at("unembed_out"), own, [value_dim, kv_rank])?,
        ]
    };
    let latent = LatentParts {
        queries,
        kv_down: whole("kv_a_proj_with_mqa", kv_rank + rope_dim)?,
        kv_norm: norm("kv_a_layernorm", kv_rank)?,
        embed,
        unembed,
        o_proj: heads.o_proj(&w.at("o_proj"), hidden, bias)?,
        rope: parts.ropes.of(&spec.rope),
        query_growth: spec.query_growth,
        sizes,
        scale: spec.scale as f32,
        heads,
    };
    Ok(LatentAttention::new(latent, parts.layer_idx, w.dtype(), parallel))
}
