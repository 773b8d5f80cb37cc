//! Attention to a window and to pools.

use jackalope_kernels::CodeFormat;
use jackalope_mlx::Dtype;
use jackalope_spec::{
    LayerSpec, Mixer, NormKind, PoolCandidates, PoolForm, PoolIndexerSpec, PoolSelection,
    PoolSource, PoolSpec, PooledSpec,
};
use jackalope_weights::{LoadError, Part, Weights};

use super::parts::LayerParts;
use crate::layers::{
    HasBias, HeadMatrix, Heads, IndexVectors, Linear, Norm, NormSettings, OwnPools, PoolChooser,
    PoolIndexer, PoolPlace, PoolSettings, PoolVectors, PooledAttention, PooledParts, PooledPools,
    PooledSizes, ProjectedVectors, RopePlace, VectorPlace,
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
            has_query_norm: spec.has_query_norm,
            codes: spec.is_rounded.then_some(CodeFormat::E4M3),
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
    let place = match pools.source {
        PoolSource::Own(form) => PoolPlace::Own(Box::new(own_pools(w, spec, form, parts)?)),
        PoolSource::OfLayer(layer_idx) => PoolPlace::OfCache(parts.model.num_caches(0..layer_idx)),
    };
    let chooser = match &pools.choice {
        None => None,
        Some(PoolSelection::OfLayer(_)) => Some(PoolChooser::Earlier),
        Some(PoolSelection::Indexer(indexer)) => {
            let loaded = load_indexer(&w.at("indexer"), spec, indexer, parts)?;
            Some(PoolChooser::Indexer(Box::new(loaded)))
        }
    };
    Ok(PooledPools { len: pools.len, place, chooser })
}

/// Returns how vectors of `dim` elements of the pools of a layer are placed, which have these codes if they
/// are rounded.
fn vector_place(
    spec: &PooledSpec,
    [dim, len]: [usize; 2],
    codes: CodeFormat,
    parts: &LayerParts<'_, '_>,
) -> VectorPlace {
    let place = RopePlace { first: dim - spec.rope.dims, is_inverse: false };
    let codes = spec.is_rounded.then_some(codes);
    VectorPlace { rope: parts.ropes.at(&spec.rope, place), len, codes }
}

fn own_pools(
    w: &Weights<'_>,
    spec: &PooledSpec,
    form: PoolForm,
    parts: &LayerParts<'_, '_>,
) -> Result<OwnPools, LoadError> {
    let (pools, _) = spec.own_pools().expect("the layer computes its pools");
    let (hidden, norm_eps) = (parts.model.hidden_size, spec.norm_eps);
    let compressor = |w: Weights<'_>, dim, codes| {
        let place = vector_place(spec, [dim, pools.len], codes, parts);
        let settings = PoolSettings { hidden, dim, norm_eps, form, place };
        PoolVectors::load(&w.at("compressor"), settings, parts.parallel)
    };
    let index = pools.indexer().map(|&PoolIndexerSpec { head_dim, .. }| {
        let w = w.at("indexer");
        Ok::<_, LoadError>(match form {
            PoolForm::Placed { .. } => {
                IndexVectors::Compressed(compressor(w, head_dim, CodeFormat::E2M1)?)
            }
            PoolForm::Plain => {
                let place = vector_place(spec, [head_dim, pools.len], CodeFormat::E2M1, parts);
                let widths = [spec.head_dim, head_dim];
                let parallel = parts.parallel;
                IndexVectors::Projected(ProjectedVectors::load(
                    &w, widths, norm_eps, place, parallel,
                )?)
            }
        })
    });
    Ok(OwnPools {
        overlaps: form == PoolForm::Placed { overlaps: true },
        vectors: compressor(w.clone(), spec.head_dim, CodeFormat::E2M1InE4M3)?,
        index: index.transpose()?,
    })
}

fn load_indexer(
    w: &Weights<'_>,
    spec: &PooledSpec,
    indexer: &PoolIndexerSpec,
    parts: &LayerParts<'_, '_>,
) -> Result<PoolIndexer, LoadError> {
    let &PoolIndexerSpec { heads, head_dim, num_chosen, candidates } = indexer;
    let linear = |name, input, output| {
        Linear::column(&w.at(name), input, &Cut::of_all_ranks(output), HasBias::No)
    };
    let VectorPlace { rope, codes, .. } =
        vector_place(spec, [head_dim, 1], CodeFormat::E2M1, parts);
    let has_blocks = matches!(candidates, Some(PoolCandidates::Blocks { .. }));
    let is_shared = has_blocks || parts.model.layers.iter().any(shares_choice);
    Ok(PoolIndexer {
        queries: linear("wq_b", spec.q_rank, heads * head_dim)?,
        weights: linear("weights_proj", parts.model.hidden_size, heads)?,
        rope,
        codes,
        heads,
        head_dim,
        num_chosen,
        candidates,
        is_shared,
    })
}

/// Whether a layer attends to the pools that an earlier one has chosen.
fn shares_choice(layer: &LayerSpec) -> bool {
    let Mixer::Pooled(pooled) = &layer.mixer else { return false };
    let choice = pooled.pools.as_ref().and_then(|pools| pools.choice.as_ref());
    matches!(choice, Some(PoolSelection::OfLayer(_)))
}
