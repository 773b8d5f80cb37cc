//! The mixer of a layer: attention, grouped-query or latent, or a recurrence.

use std::rc::Rc;

use jackalope_mlx::choice::Blocks;
use jackalope_spec::{
    AttentionSpec, BlockChoice, HeadRows, IndexerSpec, LatentSpec, LightningSpec, Mixer, NormKind,
    OutputGate, PoolChoice, PositionChoice, QkNorm, QkvModules, StackedModule, ValueKind,
};

use super::parts::LayerParts;
use super::pooled::pooled;
use crate::layers::{
    AllHeadsNorm, Attention, AttentionParts, BlockFrame, Chooser, GatedDelta, GroupNorm, HasBias,
    HeadMatrix, HeadNorms, Heads, IndexPools, IndexWeights, Indexer, IndexerSizes, KeyValues,
    LatentAttention, LatentParts, LatentQueries, LatentSizes, Lightning, LightningParts, Linear,
    Norm, NormSettings, OwnKeyValues, OwnRows, ParallelMixers, PooledAttention, RecurrentParts,
    Residual, ShortConv, StateSpace,
};
use crate::split::{Cut, HeadCounts, HeadCut};
use crate::step::{Reach, Step};
use jackalope_cache::{LayerCacheShape, PoolShape};
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

/// The mixer of a layer.
#[derive(Debug)]
pub(super) enum MixerBlock {
    Attention(Box<Attention>),
    GatedDelta(Box<GatedDelta>),
    ShortConv(Box<ShortConv>),
    Latent(Box<LatentAttention>),
    Pooled(Box<PooledAttention>),
    StateSpace(Box<StateSpace>),
    Lightning(Box<Lightning>),
    Parallel(Box<ParallelMixers>),
}

impl MixerBlock {
    /// Loads a mixer of a layer; `None` if it mixes nothing.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(super) fn load(
        spec: &Mixer,
        parts: &LayerParts<'_, '_>,
    ) -> Result<Option<MixerBlock>, LoadError> {
        let own = recurrent(parts, parts.layout.heads);
        Ok(Some(match spec {
            Mixer::Attention(spec) => MixerBlock::Attention(Box::new(attention(spec, parts)?)),
            Mixer::GatedDelta(spec) => {
                MixerBlock::GatedDelta(Box::new(GatedDelta::load(spec, &own)?))
            }
            Mixer::ShortConv(spec) => MixerBlock::ShortConv(Box::new(ShortConv::load(spec, &own)?)),
            Mixer::Latent(spec) => MixerBlock::Latent(Box::new(latent(spec, parts)?)),
            Mixer::Pooled(spec) => MixerBlock::Pooled(Box::new(pooled(spec, parts)?)),
            Mixer::StateSpace(spec) => {
                MixerBlock::StateSpace(Box::new(StateSpace::load(spec, &own)?))
            }
            Mixer::Lightning(spec) => MixerBlock::Lightning(Box::new(lightning(spec, parts)?)),
            Mixer::Parallel(spec) => {
                let counts = parts.layout.state_heads.expect("the state space has heads");
                let space = StateSpace::load(&spec.space, &recurrent(parts, counts))?;
                let attention = attention(&spec.attention, parts)?;
                let mixers = ParallelMixers::new(attention, space, parts.parallel);
                MixerBlock::Parallel(Box::new(mixers))
            }
            Mixer::None => return Ok(None),
        }))
    }

    /// Adds the mixer to the stream.
    pub(super) fn add_to(
        &self,
        residual: Residual,
        frame: &BlockFrame,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        match self {
            MixerBlock::Attention(attention) => attention.add_to(residual, frame, step),
            MixerBlock::GatedDelta(delta) => delta.add_to(residual, frame, step),
            MixerBlock::ShortConv(conv) => conv.add_to(residual, frame, step),
            MixerBlock::Latent(latent) => latent.add_to(residual, frame, step),
            MixerBlock::Pooled(pooled) => pooled.add_to(residual, frame, step),
            MixerBlock::StateSpace(space) => space.add_to(residual, frame, step),
            MixerBlock::Lightning(it) => it.add_to(residual, frame, step),
            MixerBlock::Parallel(mixers) => mixers.add_to(residual, frame, step),
        }
    }

    /// Returns what the mixer keeps of a sequence on this rank.
    pub(super) fn cache_shape(&self) -> LayerCacheShape {
        match self {
            MixerBlock::Attention(attention) => attention.cache_shape(),
            MixerBlock::GatedDelta(delta) => delta.cache_shape(),
            MixerBlock::ShortConv(conv) => conv.cache_shape(),
            MixerBlock::Latent(latent) => latent.cache_shape(),
            MixerBlock::Pooled(pooled) => pooled.cache_shape(),
            MixerBlock::StateSpace(space) => space.cache_shape(),
            MixerBlock::Lightning(it) => it.cache_shape(),
            MixerBlock::Parallel(mixers) => mixers.cache_shape(),
        }
    }

    /// Returns this rank's heads.
    pub(super) fn heads(&self) -> &Heads {
        match self {
            MixerBlock::Attention(attention) => attention.heads(),
            MixerBlock::GatedDelta(delta) => delta.heads(),
            MixerBlock::ShortConv(conv) => conv.heads(),
            MixerBlock::Latent(latent) => latent.heads(),
            MixerBlock::Pooled(pooled) => pooled.heads(),
            MixerBlock::StateSpace(space) => space.heads(),
            MixerBlock::Lightning(it) => it.heads(),
            MixerBlock::Parallel(mixers) => mixers.heads(),
        }
    }

    /// Whether it is attention.
    pub(super) fn is_attention(&self) -> bool {
        matches!(
            self,
            MixerBlock::Attention(_)
                | MixerBlock::Latent(_)
                | MixerBlock::Pooled(_)
                | MixerBlock::Parallel(_)
        )
    }
}

/// Returns what mixers with states are loaded from, which are divided by `counts`.
fn recurrent<'a, 'w>(parts: &LayerParts<'a, 'w>, counts: HeadCounts) -> RecurrentParts<'a, 'w> {
    RecurrentParts {
        layer_idx: parts.cache_idx,
        root: parts.root,
        hidden: parts.model.hidden_size,
        norm_eps: parts.model.norm_eps,
        counts,
        parallel: parts.parallel,
    }
}

fn lightning(spec: &LightningSpec, parts: &LayerParts<'_, '_>) -> Result<Lightning, LoadError> {
    let LayerParts { root, parallel, .. } = *parts;
    let (hidden, counts) = (parts.model.hidden_size, parts.layout.heads);
    let heads = Heads::new(counts, spec.head_dim, parallel);
    let own = &heads.cut.heads;
    let qkv_bias = HasBias::when(spec.has_qkv_bias);
    let inward = |rows: &HeadRows| {
        Linear::of_rows(&root.at(&rows.module), hidden, &OwnRows::new(rows, own), qkv_bias)
    };
    let [queries, keys, values] = spec.projections.each_ref().map(inward);
    let gates = Linear::column(&root.at(&spec.gates), hidden, &heads.queries(), HasBias::No)?;
    let norm = |module: &String| parts.norm(&root.at(module), spec.head_dim);
    let qk_norms = match &spec.qk_norms {
        Some([queries, keys]) => Some([norm(queries)?, norm(keys)?]),
        None => None,
    };
    let lightning = LightningParts {
        projections: [queries?, keys?, values?, gates],
        qk_norms,
        rope: parts.ropes.of(&spec.rope),
        decays: spec.log_decays[own.own.clone()].iter().map(|decay| decay.exp()).collect(),
        norm: GroupNorm::load(&spec.norm, &heads, counts, root, parallel)?,
        dense: heads.o_proj(&root.at(&spec.output), hidden, HasBias::No)?,
        heads,
    };
    Ok(Lightning::new(lightning, parts.cache_idx, root.dtype(), parallel))
}

fn attention(spec: &AttentionSpec, parts: &LayerParts<'_, '_>) -> Result<Attention, LoadError> {
    let LayerParts { root, parallel, .. } = *parts;
    let hidden = parts.model.hidden_size;
    let heads = Heads::new(parts.layout.heads, spec.head_dim, parallel);
    let heads = heads.with_values(spec.value_dim, parallel);
    let qkv_bias = HasBias::when(spec.has_qkv_bias);
    let [q, k, v] = qkv_weights(root, spec);
    let key_values = match spec.source_layer {
        Some(source) => KeyValues::OfLayer(source),
        None => {
            let load = |w, cut: &Cut| Linear::column(w, hidden, cut, qkv_bias);
            let (eps, dtype) = (parts.model.norm_eps, root.dtype());
            let v_norm = (spec.values != ValueKind::Projected)
                .then(|| Norm::unweighted(spec.value_dim, eps, dtype, parallel));
            let has_values = spec.values != ValueKind::NormalizedKeys;
            let v_proj = has_values.then(|| load(&v, &heads.values())).transpose()?;
            let k_proj = load(&k, &heads.keys())?;
            KeyValues::Own(Box::new(OwnKeyValues { k_proj, v_proj, v_norm }))
        }
    };
    let whole = || Linear::column(&q, hidden, &heads.queries(), qkv_bias);
    let gate = |name: &str, width: usize| {
        let module = root.at(&spec.modules.block).at(name);
        Linear::column(&module, hidden, &heads.cut.heads.scaled(width), HasBias::No)
    };
    let (q_proj, gate) = match spec.output_gate {
        None => (whole()?, None),
        Some(OutputGate::Elements) => {
            let own = query_and_gate(spec).map(|rows| OwnRows::new(&rows, &heads.cut.heads));
            let [query, gate] = own.map(|rows| Linear::of_rows(&q, hidden, &rows, qkv_bias));
            (query?, Some(gate?))
        }
        Some(OutputGate::Heads(name) | OutputGate::SoftplusHeads(name)) => {
            (whole()?, Some(gate(name, 1)?))
        }
        Some(OutputGate::Apart(name)) => (whole()?, Some(gate(name, spec.value_dim)?)),
    };
    let output_bias = HasBias::when(spec.has_output_bias);
    let (block, queries) = (root.at(&spec.modules.block), &heads.cut.heads);
    let sinks = spec.sinks.map(|name| block.floats(name, &[queries.full], Part::rows(queries)));
    let chooser = match (&spec.blocks, &spec.pools) {
        (Some(choice), _) => Some(block_chooser(choice, &block, &heads, parts)?),
        (None, Some(choice)) => Some(pool_chooser(choice, &block.at("indexer"), parts)?),
        (None, None) => None,
    };
    let attention = AttentionParts {
        chooser,
        sinks: sinks.transpose()?,
        q_proj,
        gate,
        has_softplus_gate: matches!(spec.output_gate, Some(OutputGate::SoftplusHeads(_))),
        key_values,
        value_scale: spec.value_scale,
        o_proj: heads.o_proj(&root.at(&spec.modules.output), hidden, output_bias)?,
        head_norms: head_norms(spec, &heads, parts)?,
        rope: parts.ropes.of(&spec.rope),
        heads,
        reach: Reach { window: spec.window, chunk: spec.chunk },
        query_growth: spec.query_growth,
        scale: spec.scale,
        soft_cap: spec.soft_cap,
    };
    Attention::new(attention, parts.cache_idx, root.dtype(), parallel)
}

/// Loads what chooses blocks of positions for attention at `w`.
fn block_chooser(
    choice: &BlockChoice,
    w: &Weights<'_>,
    heads: &Heads,
    parts: &LayerParts<'_, '_>,
) -> Result<Chooser, LoadError> {
    let &BlockChoice { heads: all, head_dim, len, num_chosen, num_local, ref rope } = choice;
    let hidden = parts.model.hidden_size;
    let own = if all == 1 { Cut::of_all_ranks(1) } else { heads.cut.kv_heads.clone() };
    let linear = |name, output: &Cut| Linear::column(&w.at(name), hidden, output, HasBias::No);
    let num_positions = num_chosen * len;
    Ok(Chooser::Indexer(Box::new(Indexer {
        queries: linear("index_q_proj", &own.scaled(head_dim))?,
        query_norm: Some(parts.norm(&w.at("index_q_norm"), head_dim)?),
        keys: linear("index_k_proj", &Cut::of_all_ranks(head_dim))?,
        key_norm: Some(parts.norm(&w.at("index_k_norm"), head_dim)?),
        weights: IndexWeights::None,
        rope: Some(parts.ropes.of(rope)),
        pools: None,
        blocks: Some(Blocks { len, num_chosen, num_local }),
        sizes: IndexerSizes {
            heads: own.len(),
            head_dim,
            num_chosen: num_positions,
            attended_max: num_positions,
            kept_dim: head_dim,
        },
    })))
}

/// Loads what chooses pools of positions for attention, at `w`.
fn pool_chooser(
    choice: &PoolChoice,
    w: &Weights<'_>,
    parts: &LayerParts<'_, '_>,
) -> Result<Chooser, LoadError> {
    let &PoolChoice { heads, head_dim, len, num_chosen, ref rope } = choice;
    let hidden = parts.model.hidden_size;
    let rows = |first: usize, num: usize| {
        let rows = HeadRows::window(String::new(), first..first + num, (heads + 1) * head_dim);
        let own = OwnRows::new(&rows, &Cut::of_all_ranks(1));
        Linear::of_rows(&w.at("index_qk_proj"), hidden, &own, HasBias::No)
    };
    let rope = parts.ropes.of(rope);
    let key_norm = parts.norm(&w.at("k_layernorm"), head_dim)?;
    let pools = IndexPools::of_means(PoolShape { len, dim: head_dim }, key_norm, Rc::clone(&rope));
    let num_positions = num_chosen * len;
    Ok(Chooser::Indexer(Box::new(Indexer {
        queries: rows(0, heads * head_dim)?,
        query_norm: Some(parts.norm(&w.at("q_layernorm"), head_dim)?),
        keys: rows(heads * head_dim, head_dim)?,
        key_norm: None,
        weights: IndexWeights::Constant((head_dim as f64).powf(-0.5) as f32),
        rope: Some(rope),
        pools: Some(pools),
        blocks: None,
        sizes: IndexerSizes {
            heads,
            head_dim,
            num_chosen: num_positions,
            attended_max: num_positions + len - 1,
            kept_dim: head_dim,
        },
    })))
}

/// Returns the projections to queries, keys and values.
fn qkv_weights<'a>(root: &Weights<'a>, spec: &AttentionSpec) -> [Weights<'a>; 3] {
    let &AttentionSpec { heads, kv_heads, head_dim, value_dim, .. } = spec;
    let (queries, keys, values) = (heads * head_dim, kv_heads * head_dim, kv_heads * value_dim);
    let total = queries + keys + values;
    match &spec.modules.qkv {
        QkvModules::Apart(modules) => modules.each_ref().map(|module| root.at(module)),
        QkvModules::Stacked(module) => [(0, queries), (queries, keys), (queries + keys, values)]
            .map(|(first, len)| {
                root.rows(HeadRows::window(module.clone(), first..first + len, total))
            }),
        QkvModules::Grouped(module) => {
            let (run, stride) = (queries / kv_heads, total / kv_heads);
            let views = [(0, run), (run, head_dim), (run + head_dim, value_dim)];
            views.map(|(start, run)| {
                root.rows(HeadRows {
                    module: module.clone(),
                    num_rows: total,
                    start,
                    rows_per_head: run,
                    heads_per_group: 1,
                    group_stride: stride,
                })
            })
        }
    }
}

/// Loads the norms of queries and of keys.
fn head_norms(
    spec: &AttentionSpec,
    heads: &Heads,
    parts: &LayerParts<'_, '_>,
) -> Result<Option<HeadNorms>, LoadError> {
    let LayerParts { root, parallel, .. } = *parts;
    let [q_norm, k_norm] = &spec.modules.qk_norms;
    let in_order = if spec.norm_follows_rotation { HeadNorms::Rotated } else { HeadNorms::PerHead };
    let unweighted = |eps| Norm::unweighted(spec.head_dim, eps, root.dtype(), parallel);
    Ok(Some(match spec.qk_norm {
        None => return Ok(None),
        Some(QkNorm::PerHead) => {
            let load = |module: &String| parts.norm(&root.at(module), spec.head_dim);
            let keys = if spec.source_layer.is_some() {
                // The layer that keeps the keys has normalised them; there are none here.
                unweighted(parts.model.norm_eps)
            } else {
                load(k_norm)?
            };
            in_order([load(q_norm)?, keys])
        }
        Some(QkNorm::OfSharedKeys) => {
            let weights = [q_norm, k_norm].map(|module| root.at(module));
            let settings = parts.vector_settings();
            let queries = Norm::of_product(&weights, spec.head_dim, settings, parallel)?;
            HeadNorms::Rotated([queries, unweighted(settings.eps)])
        }
        Some(QkNorm::OwnWeights) => {
            assert!(!spec.norm_follows_rotation, "no family has such norms after the rotation");
            let load = |module: &String, cut: &Cut| {
                let each = [format!("{module}."), String::new()];
                let stacked = StackedModule { stacked: module.clone(), each, fused: Vec::new() };
                let w = root.experts(&stacked, cut.full);
                Norm::load_heads(&w, spec.head_dim, cut, parts.vector_settings(), parallel)
            };
            let HeadCut { heads, kv_heads } = &heads.cut;
            in_order([load(q_norm, heads)?, load(k_norm, kv_heads)?])
        }
        Some(QkNorm::RotatedUnweighted { eps }) => {
            HeadNorms::Rotated([unweighted(eps), unweighted(eps)])
        }
        Some(QkNorm::AllHeads) => {
            let block = root.at(&spec.modules.block);
            HeadNorms::AllHeads(AllHeadsNorm::load(&block, heads, parts.model.norm_eps, parallel)?)
        }
    }))
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

fn latent(spec: &LatentSpec, parts: &LayerParts<'_, '_>) -> Result<LatentAttention, LoadError> {
    let (hidden, parallel) = (parts.model.hidden_size, parts.parallel);
    let w = &parts.root.at(&spec.module);
    let &LatentSpec { nope_dim, rope_dim, value_dim, kv_rank, .. } = spec;
    let sizes = LatentSizes { nope: nope_dim, rope: rope_dim, value: value_dim, rank: kv_rank };
    let heads = Heads::new(parts.layout.heads, value_dim, parallel);
    let own = &heads.cut.heads;
    let (bias, queries) = (HasBias::when(spec.has_bias), own.scaled(sizes.query()));
    let settings = NormSettings { kind: NormKind::default(), eps: spec.norm_eps };
    let norm = |name, width| Norm::load(&w.at(name), width, settings, parallel);
    let q_rank = spec.q_rank.unwrap_or(0);
    let (joint, kv_dim) = (w.at("qkv_a_proj"), kv_rank + rope_dim);
    let down = |name, first, width| {
        if !joint.has("weight") {
            return Linear::column(&w.at(name), hidden, &Cut::of_all_ranks(width), bias);
        }
        let rows = HeadRows::window(String::new(), first..first + width, q_rank + kv_dim);
        Linear::of_rows(&joint, hidden, &OwnRows::new(&rows, &Cut::of_all_ranks(1)), bias)
    };
    let queries = match spec.q_rank {
        None => {
            LatentQueries::Direct(Linear::column(&w.at("q_proj"), hidden, &queries, HasBias::No)?)
        }
        Some(rank) => LatentQueries::LowRank {
            down: down("q_a_proj", 0, rank)?,
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
    let gate = spec
        .gate_width
        .map(|width| Linear::column(&w.at("g_proj"), hidden, &own.scaled(width), HasBias::No));
    let latent = LatentParts {
        queries,
        kv_down: down("kv_a_proj_with_mqa", q_rank, kv_dim)?,
        kv_norm: norm("kv_a_layernorm", kv_rank)?,
        embed,
        unembed,
        gate: gate.transpose()?,
        o_proj: heads.o_proj(&parts.root.at(&spec.output), hidden, bias)?,
        rope: spec.rope.as_ref().map(|rope| parts.ropes.of(rope)),
        chooser: chooser(w, spec, parts)?,
        query_growth: spec.query_growth,
        sizes,
        scale: spec.scale as f32,
        latent_factor: spec.latent_factor,
        heads,
    };
    Ok(LatentAttention::new(latent, parts.cache_idx, w.dtype(), parallel))
}

/// Loads what chooses positions for latent attention at `w`, if they are chosen.
fn chooser(
    w: &Weights<'_>,
    spec: &LatentSpec,
    parts: &LayerParts<'_, '_>,
) -> Result<Option<Chooser>, LoadError> {
    let (Some(choice), Some(rank)) = (&spec.choice, spec.q_rank) else { return Ok(None) };
    let indexer = match choice {
        PositionChoice::Indexer(indexer) => indexer,
        &PositionChoice::OfLayer { num_chosen, .. } => {
            return Ok(Some(Chooser::Earlier { num_chosen }));
        }
    };
    let (w, hidden) = (w.at("indexer"), parts.model.hidden_size);
    let &IndexerSpec { heads, head_dim, num_chosen, pool, ref rope, norm_eps } = indexer;
    let pools = pool.map(|len| IndexPools::load(&w, len, head_dim, hidden));
    let (attended_max, kept_dim) = (indexer.attended_max(), indexer.kept_dim());
    let linear = |name, input, output| {
        Linear::column(&w.at(name), input, &Cut::of_all_ranks(output), HasBias::No)
    };
    let kind = NormKind { is_centred: true, has_bias: true, ..NormKind::default() };
    let settings = NormSettings { kind, eps: norm_eps };
    Ok(Some(Chooser::Indexer(Box::new(Indexer {
        queries: linear("wq_b", rank, heads * head_dim)?,
        query_norm: None,
        keys: linear("wk", hidden, head_dim)?,
        key_norm: Some(Norm::load(&w.at("k_norm"), head_dim, settings, parts.parallel)?),
        weights: IndexWeights::Projected(linear("weights_proj", hidden, heads)?),
        rope: rope.as_ref().map(|rope| parts.ropes.of(rope)),
        pools: pools.transpose()?,
        blocks: None,
        sizes: IndexerSizes { heads, head_dim, num_chosen, attended_max, kept_dim },
    }))))
}
