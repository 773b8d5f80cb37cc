//! Attention to a window and to pools.

use jackalope_mlx::Dtype;
use jackalope_spec::{NormKind, PoolIndexerSpec, PoolSpec, PooledSpec};
use jackalope_weights::{LoadError, Part, Weights};

use super::parts::LayerParts;
use crate::layers::{
    HasBias, HeadMatrix, Heads, Linear, Norm, NormSettings, PoolIndexer, PoolSettings, PoolVectors,
    PooledAttention, PooledParts, PooledPools, PooledSizes, RopePlace,
};
use crate::split::Cut;

/// Loads attention to a window and to pools.
///
/// # Errors
/// Fails if a tensor cannot be read.
pub(super) fn pooled(
    spec: &PooledSpec,
    parts: &LayerParts<'_, '_>,
) -> Result<PooledAttention, LoadError> {
    let (hidden, parallel) = (parts.model.hidden_size, parts.parallel);
    let w = &parts.root.at(&spec.module);
    let &PooledSpec { head_dim, q_rank, group_dim, norm_eps, .. } = spec;
    let heads_per_group = spec.heads / spec.groups;
    let groups = Heads::new(parts.layout.heads, group_dim, parallel);
    let own = groups.cut.heads.scaled(heads_per_group);
    let settings = NormSettings { kind: NormKind::default(), eps: norm_eps };
    let norm = |name, width| Norm::load(&w.at(name), width, settings, parallel);
    let linear =
        |name, input, output: &Cut| Linear::column(&w.at(name), input, output, HasBias::No);
    let first = head_dim - spec.rope.dims;
    let rope = |is_inverse| parts.ropes.at(&spec.rope, RopePlace { first, is_inverse });
    let pools = spec.pools.as_ref().map(|pools| load_pools(w, spec, pools, parts));
    let layers = PooledParts {
        q_down: linear("wq_a", hidden, &Cut::of_all_ranks(q_rank))?,
        q_norm: norm("q_norm", q_rank)?,
        q_up: linear("wq_b", q_rank, &own.scaled(head_dim))?,
        kv: linear("wkv", hidden, &Cut::of_all_ranks(head_dim))?,
        kv_norm: norm("kv_norm", head_dim)?,
        sinks: w.floats_as(Dtype::F32, "attn_sink", &[spec.heads], Part::rows(&own))?,
        pools: pools.transpose()?,
        groups: HeadMatrix::load(
            &w.at("wo_a"),
            &groups.cut.heads,
            [group_dim, heads_per_group * head_dim],
        )?,
        output: groups.o_proj(&w.at("wo_b"), hidden, HasBias::No)?,
        rope: rope(false),
        inverse: rope(true),
        sizes: PooledSizes {
            heads_per_group,
            head_dim,
            group_dim,
            window: spec.window,
            kept_positions: spec.kept_positions(),
            norm_eps,
        },
        heads: groups,
    };
    Ok(PooledAttention::new(layers, parts.cache_idx, w.dtype(), parallel))
}

fn load_pools(
    w: &Weights<'_>,
    spec: &PooledSpec,
    pools: &PoolSpec,
    parts: &LayerParts<'_, '_>,
) -> Result<PooledPools, LoadError> {
    let hidden = parts.model.hidden_size;
    let rope = |dim: usize| {
        let place = RopePlace { first: dim - spec.rope.dims, is_inverse: false };
        parts.ropes.at(&spec.rope, place)
    };
    let vectors = |w: Weights<'_>, dim| {
        let settings = PoolSettings { hidden, dim, norm_eps: spec.norm_eps, rope: rope(dim) };
        PoolVectors::load(&w, pools, settings, parts.parallel)
    };
    let indexer = pools.indexer.as_ref().map(|indexer| {
        let &PoolIndexerSpec { heads, head_dim, num_chosen } = indexer;
        let w = w.at("indexer");
        let linear = |name, input, output| {
            Linear::column(&w.at(name), input, &Cut::of_all_ranks(output), HasBias::No)
        };
        Ok::<_, LoadError>(PoolIndexer {
            queries: linear("wq_b", spec.q_rank, heads * head_dim)?,
            weights: linear("weights_proj", hidden, heads)?,
            vectors: vectors(w.at("compressor"), head_dim)?,
            rope: rope(head_dim),
            heads,
            num_chosen,
        })
    });
    Ok(PooledPools {
        len: pools.len,
        overlaps: pools.overlaps,
        vectors: vectors(w.at("compressor"), spec.head_dim)?,
        indexer: indexer.transpose()?,
    })
}
