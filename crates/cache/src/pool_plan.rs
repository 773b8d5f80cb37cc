//! Pools of positions that a step completes, for MLX's operations. Their vectors are computed once, from
//! what blocks keep of their positions, and written beside those of earlier pools.

use std::ops::Range;

use super::{BlockRows, KvArrays, SequenceCache};
use jackalope_mlx::{Array, dim};

use super::span::StepSpan;
use super::stock_plan::{StockPlan, indices};

/// Which pools a layer has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PoolKind {
    /// Number of positions of a pool.
    pub len: usize,
    /// Whether the vector of a pool is also computed from the pool before it.
    pub overlaps: bool,
}

/// The pools that end at positions of a step; at least one.
#[derive(Debug)]
pub struct EndedPools {
    /// Positions that each pool's vector is computed from; if pools overlap, those of the pool
    /// before it come first. A sequence's first pool has none before it: arbitrary positions stand
    /// in for them, which `has_earlier` masks.
    pub sources: BlockRows, // [pools, positions]
    /// Whether there is a pool before each one, boolean `[pools, 1, 1]`; `None` if each has one.
    pub has_earlier: Option<Array>,
    /// First position of each pool, `[pools]` i32.
    firsts: Array,
    /// Where the pools are written, in order.
    targets: Vec<Target>,
}

/// Where some pools are written.
#[derive(Debug)]
struct Target {
    place: PoolLocation,
    /// Number of pools.
    len: usize,
}

#[derive(Debug)]
enum PoolLocation {
    /// One pool of each of some sequences.
    Slots {
        class: usize,
        slots: Array, // [pools] i32
        pools: Array, // [pools] i32
    },
    /// Pools of one sequence.
    Sequence { span_idx: usize, first_pool: usize },
}

impl EndedPools {
    /// Returns `None` if no pool ends.
    pub fn new(
        spans: &[StepSpan],
        caches: &[&mut SequenceCache],
        plan: &StockPlan,
        kind: PoolKind,
    ) -> Option<EndedPools> {
        let (mut pools, mut targets) = (Vec::new(), Vec::new());
        for group in &plan.groups {
            let ended = group.members.iter().filter_map(|member| {
                let pool = ended(&spans[member.span_idx], kind.len).next()?;
                Some((member, pool))
            });
            let ended: Vec<_> = ended.collect();
            pools.extend(ended.iter().map(|(member, pool)| (member.span_idx, *pool)));
            let slots: Vec<i32> = ended.iter().map(|(member, _)| dim(member.slot)).collect();
            let numbers: Vec<i32> = ended.iter().map(|(_, pool)| dim(*pool)).collect();
            let [slots, numbers] = [slots, numbers].map(|it| indices(&it));
            let place = PoolLocation::Slots { class: group.class, slots, pools: numbers };
            targets.push(Target { place, len: ended.len() });
        }
        for &span_idx in &plan.prompts {
            let ended = ended(&spans[span_idx], kind.len);
            let (first_pool, len) = (ended.start, ended.len());
            pools.extend(ended.map(|pool| (span_idx, pool)));
            targets.push(Target { place: PoolLocation::Sequence { span_idx, first_pool }, len });
        }
        targets.retain(|target| 0 < target.len);
        if pools.is_empty() {
            return None;
        }
        let mut sources = Vec::new();
        for &(span_idx, pool) in &pools {
            let earlier = (pool.max(1) - 1) * kind.len..pool.max(1) * kind.len;
            let own = pool * kind.len..(pool + 1) * kind.len;
            for positions in kind.overlaps.then_some(earlier).into_iter().chain([own]) {
                caches[span_idx].append_block_rows(positions, &mut sources);
            }
        }
        let count = dim(pools.len());
        let has_earlier = pools.iter().map(|&(_, pool)| i32::from(0 < pool));
        let has_earlier: Vec<i32> = has_earlier.collect();
        let mask = || {
            Array::from_slice(&has_earlier, &[count, 1, 1]).greater(&Array::from_slice(&[0], &[1]))
        };
        Some(EndedPools {
            sources: BlockRows::new(Array::from_slice(
                &sources,
                &[count, dim(sources.len()) / count],
            )),
            has_earlier: has_earlier.contains(&0).then(mask),
            firsts: indices(
                &pools.iter().map(|&(_, pool)| dim(pool * kind.len)).collect::<Vec<_>>(),
            ),
            targets,
        })
    }

    /// Writes what a layer keeps of the pools, `[pools, 1, 1, dim]`.
    pub fn write(&self, layer_idx: usize, pools: &KvArrays, caches: &mut [&mut SequenceCache]) {
        let mut next = 0;
        for Target { place, len } in &self.targets {
            let own = pools.sequences(next, next + len);
            next += len;
            match place {
                PoolLocation::Slots { class, slots, pools } => {
                    let (layer, all) = (caches[0].layer(layer_idx), caches[0].slots());
                    all.borrow_mut().write_pools(*class, layer, &own, [slots, pools]);
                }
                PoolLocation::Sequence { span_idx, first_pool } => {
                    caches[*span_idx].append_pools(layer_idx, *first_pool, &own);
                }
            }
        }
    }

    /// Returns the positions as which vectors of the pools are rotated, `[pools]` i32.
    pub fn positions(&self) -> &Array {
        &self.firsts
    }
}

/// Returns the numbers of the pools that end within a span.
fn ended(span: &StepSpan, len: usize) -> Range<usize> {
    span.start / len..span.positions().end / len
}
