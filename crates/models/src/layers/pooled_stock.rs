//! Attention to a window beside pools, with MLX's operations.

use jackalope_cache::{BlockRows, KvArrays, SequenceCache};
use jackalope_mlx::{Array, Dtype, dim, fast};

use super::pool_choice::PoolChooser;
use super::pool_choice_stock::SharedChoice;
use super::pooled::{PoolPlace, PooledAttention, PooledPools, scale};
use crate::step::{
    DecodeGroup, PoolKind, Reach, SeenPositions, Step, StepSpan, WindowGroup, WindowPrompt,
};
use jackalope_parallel::codes::stock_rounded;

/// Number of queries of a prompt whose scores are in memory at once.
const ROWS_MAX: usize = 512;

/// What is computed of the rows of a step, after the rotation.
struct StockRows {
    q: Array,  // [tokens, heads, 1, head_dim]
    kv: Array, // [tokens, 1, 1, head_dim]
    /// What pools and then those of the indexer are computed from, `[tokens, 1, 1, raw_dim]`.
    raw: Option<Array>,
    /// Queries of the indexer, `[tokens, heads, 1, head_dim]`, and their factors, `[tokens, heads, 1, 1]`.
    index: Option<[Array; 2]>,
    /// The choice of pools that the layer makes, or reads, for each part of the step.
    choice: SharedChoice,
}

/// The pools of some sequences.
struct StockPools {
    /// `[sequences, 1, pools, head_dim]`.
    vectors: Array,
    /// Which of them queries attend to, `[sequences, 1, queries, pools]`; `None` if all.
    mask: Option<Array>,
}

impl PooledAttention {
    /// Computes the groups' results `[tokens, groups * group_dim]` with MLX.
    pub(super) fn stock_groups(&self, x: &Array, step: &mut Step<'_, '_>) -> Array {
        let rows = self.stock_rows(x, step);
        self.stock_write(&rows, step);
        let plan = step.window_plan(self.reach());
        let prompts = |step: &Step<'_, '_>| {
            let of_prompt = |prompt: &WindowPrompt| {
                let span = &step.spans[prompt.span_idx];
                self.stock_prompt(&rows, prompt, span, step.caches[prompt.span_idx])
            };
            plan.prompts.iter().map(of_prompt).collect::<Vec<Array>>()
        };
        let out = if self.parts.pools.is_some() {
            let (by_slot, windows) = (step.stock_plan(), step.slot_windows(self.reach()));
            let groups = by_slot.groups.iter().zip(&*windows);
            let groups = groups.map(|(group, window)| self.stock_slots(&rows, group, window, step));
            let mut outs: Vec<Array> = groups.collect();
            outs.extend(prompts(step));
            by_slot.in_order(&outs)
        } else {
            let groups = plan.groups.iter().map(|group| self.stock_window(&rows, group, step));
            let mut outs: Vec<Array> = groups.collect();
            outs.extend(prompts(step));
            plan.in_order(&outs)
        };
        let tokens = x.dim(0);
        let out = self.parts.inverse.stock(&out.reshape(&rows.q.shape()), &step.positions());
        let groups = dim(self.parts.heads.cut.heads.len());
        let out = out.reshape(&[tokens, groups, -1]).transpose(&[1, 0, 2]);
        self.parts.groups.stock(&out).transpose(&[1, 0, 2]).reshape(&[tokens, -1])
    }

    fn stock_rows(&self, x: &Array, step: &mut Step<'_, '_>) -> StockRows {
        let parts = &self.parts;
        let (tokens, head_dim) = (x.dim(0), dim(parts.sizes.head_dim));
        let low_rank = parts.q_norm.stock(&parts.q_down.stock(x));
        let q = parts.q_up.stock(&low_rank).reshape(&[tokens, -1, 1, head_dim]);
        let pools = parts.pools.as_ref();
        let indexer = pools.and_then(|pools| pools.chooser.as_ref()?.indexer());
        let own = pools.and_then(PooledPools::own);
        let normed = || fast::rms_norm(&q, None, parts.sizes.norm_eps);
        let q = if parts.sizes.has_query_norm { normed() } else { q.clone() };
        let kv = parts.kv_norm.stock(&parts.kv.stock(x)).reshape(&[tokens, 1, 1, -1]);
        let positions = step.positions();
        StockRows {
            q: parts.rope.stock(&q, &positions),
            kv: parts.rope.stock(&kv, &positions),
            raw: own.map(|own| own.stock_raw(x).reshape(&[tokens, 1, 1, -1])),
            index: indexer.map(|indexer| {
                let shape = [tokens, -1, 1, dim(indexer.head_dim)];
                let queries = indexer.queries.stock(&low_rank).reshape(&shape);
                let queries = indexer.stock_placed(&queries, &positions);
                [queries, indexer.weights.stock(x).reshape(&[tokens, -1, 1, 1])]
            }),
            choice: SharedChoice::new(pools, step),
        }
    }

    /// Writes the keys of the step's positions and what pools are computed from, and the pools that end.
    fn stock_write(&self, rows: &StockRows, step: &mut Step<'_, '_>) {
        let parts = &self.parts;
        let written = step.written_rows();
        let (layer, slots) = (step.caches[0].layer(self.layer_idx), step.caches[0].slots());
        let new = KvArrays {
            keys: parts.sizes.codes.map_or(rows.kv.clone(), |codes| stock_rounded(codes, &rows.kv)),
            values: None,
            index: rows.raw.clone(),
        };
        slots.borrow_mut().blocks.write(layer, &new, &written);
        let Some((pools, own)) = parts.pools.as_ref().and_then(|it| Some((it, it.own()?))) else {
            return;
        };
        let kind = PoolKind { len: pools.len, overlaps: own.overlaps };
        let Some(ended) = step.ended_pools(kind) else { return };
        let raw = slots.borrow().blocks.read_raw(layer, &ended.sources);
        ended.write(self.layer_idx, &own.stock(&raw, &ended), step.caches);
    }

    /// Computes one token of each sequence of a group, `[sequences, heads * head_dim]`, in a layer without
    /// pools.
    fn stock_window(&self, rows: &StockRows, group: &WindowGroup, step: &Step<'_, '_>) -> Array {
        let q = group.rows.of(&rows.q);
        let window = self.stock_keys(&group.window.places, step.caches[0]);
        let out = self.weigh(&q, &window, group.window.mask.clone(), None);
        out.reshape(&[out.dim(0), -1])
    }

    /// Returns keys of positions, `[sequences, 1, positions, head_dim]`.
    fn stock_keys(&self, places: &BlockRows, cache: &SequenceCache) -> Array {
        cache.slots().borrow().blocks.read(cache.layer(self.layer_idx), places).keys
    }

    /// Computes one token of each sequence of a group, `[sequences, heads * head_dim]`, in a layer with pools.
    fn stock_slots(
        &self,
        rows: &StockRows,
        group: &DecodeGroup,
        window: &SeenPositions,
        step: &Step<'_, '_>,
    ) -> Array {
        let parts = &self.parts;
        let by_slot = |x: &Array| group.by_slot(&group.rows.of(x));
        let q = by_slot(&rows.q);
        let keys = self.stock_keys(&window.places, step.caches[0]);
        let pools = parts.pools.as_ref().and_then(|pools| {
            let (num_pools, seen) = group.whole_pools(pools.len);
            let (layer, slots) = (step.caches[0].layer(self.pools_at()), step.caches[0].slots());
            let held = (num_pools != 0)
                .then(|| slots.borrow().held_pools(group.class, layer).rows(0, num_pools));
            pools.stock(held, seen, &rows.choice, || {
                rows.index.as_ref().expect("an indexer has queries").each_ref().map(by_slot)
            })
        });
        let out = self.weigh(&q, &keys, window.mask.clone(), pools.as_ref());
        group.by_sequence(&out)
    }

    /// Computes the rows of one sequence, `[rows, heads * head_dim]`.
    fn stock_prompt(
        &self,
        rows: &StockRows,
        prompt: &WindowPrompt,
        span: &StepSpan,
        cache: &SequenceCache,
    ) -> Array {
        let parts = &self.parts;
        let own = |x: &Array| {
            let rows = x.slice_axis(0, dim(span.rows.start), dim(span.rows.end));
            rows.transpose(&[2, 1, 0, 3])
        };
        let q = own(&rows.q);
        let keys = self.stock_keys(&prompt.places, cache);
        let pools = parts.pools.as_ref().and_then(|pools| {
            let counts = span.positions().map(|position| dim((position + 1) / pools.len));
            let counts: Vec<i32> = counts.collect();
            let num_pools = span.positions().end / pools.len;
            let held = (num_pools != 0).then(|| cache.held_pools(self.pools_at(), num_pools));
            let numbers = Array::arange(dim(num_pools), Dtype::I32);
            let counts = Array::from_slice(&counts, &[1, 1, dim(counts.len()), 1]);
            pools.stock(held, Some(numbers.less(&counts)), &rows.choice, || {
                rows.index.as_ref().expect("an indexer has queries").each_ref().map(own)
            })
        });
        let num_rows = span.rows.len();
        let blocks = (0..num_rows).step_by(ROWS_MAX).map(|first| {
            let end = num_rows.min(first + ROWS_MAX);
            let positions = span.start + first..span.start + end;
            let start = self.reach().first(positions.start);
            let [begin, stop] = [start, positions.end].map(|it| dim(it - prompt.first));
            let window = keys.slice_axis(2, begin, stop);
            let i = Array::arange_from(dim(positions.start), dim(positions.end), Dtype::I32);
            let i = i.expand_dims(1);
            let j = Array::arange_from(dim(start), dim(positions.end), Dtype::I32).expand_dims(0);
            let after = Array::from_slice(&[dim(parts.sizes.window)], &[1, 1]);
            let mask = j.less_equal(&i).logical_and(&i.less(&j.add(&after)));
            let mask = mask.expand_dims(0).expand_dims(0);
            let pools = pools.as_ref().map(|pools| StockPools {
                vectors: pools.vectors.clone(),
                mask: pools.mask.as_ref().map(|it| it.slice_axis(2, dim(first), dim(end))),
            });
            let q = q.slice_axis(2, dim(first), dim(end));
            self.weigh(&q, &window, Some(mask), pools.as_ref())
        });
        let blocks: Vec<Array> = blocks.collect();
        let out = Array::concatenate(&blocks.iter().collect::<Vec<_>>(), 2);
        out.transpose(&[0, 2, 1, 3]).reshape(&[dim(num_rows), -1])
    }

    /// Returns the cache that keeps the pools: the layer's own, or an earlier one's.
    fn pools_at(&self) -> usize {
        match self.parts.pools.as_ref().map(|pools| &pools.place) {
            Some(PoolPlace::OfCache(cache_idx)) => *cache_idx,
            Some(PoolPlace::Own(_)) | None => self.layer_idx,
        }
    }

    fn reach(&self) -> Reach {
        Reach { window: Some(self.parts.sizes.window), chunk: None }
    }

    /// Returns the means of keys, weighted by the soft-max of the scores. `mask` says which of the window
    /// queries see; `None` if everything.
    fn weigh(
        &self,
        q: &Array,
        window: &Array,
        mask: Option<Array>,
        pools: Option<&StockPools>,
    ) -> Array {
        let (keys, mask) = match pools {
            None => (window.clone(), mask),
            Some(StockPools { vectors, mask: of_pools }) => {
                let keys = Array::concatenate(&[window, vectors], 2);
                let queries = [mask.as_ref(), of_pools.as_ref()];
                let shape = queries.into_iter().flatten().next().map(|mask| mask.shape());
                let mask = shape.map(|shape| {
                    let parts = [(mask.as_ref(), window), (of_pools.as_ref(), vectors)];
                    let parts = parts.map(|(mask, keys)| {
                        let shape = [q.dim(0), 1, shape[2], keys.dim(2)];
                        let everything =
                            || Array::full(&shape, 1.0, Dtype::F32).astype(Dtype::Bool);
                        mask.map_or_else(everything, |mask| mask.broadcast_to(&shape))
                    });
                    Array::concatenate(&[&parts[0], &parts[1]], 3)
                });
                (keys, mask)
            }
        };
        let sinks = self.parts.sinks.astype(q.dtype());
        let scores = fast::AttentionScores {
            scale: scale(self.parts.sizes.head_dim),
            mask: mask.as_ref().map_or(fast::Mask::None, fast::Mask::Array),
            sinks: Some(&sinks),
        };
        fast::scaled_dot_product_attention(q, &keys, &keys, scores)
    }
}

impl PooledPools {
    /// Returns what the next part of a step sees of pools, of which `held` is kept, `[sequences, 1, pools, dim]`;
    /// `None` if there are none. `seen` says which of them queries see; `queries` returns the rotated queries of
    /// the indexer, `[sequences, heads, queries, head_dim]`, and their factors.
    fn stock(
        &self,
        held: Option<KvArrays>,
        seen: Option<Array>,
        choice: &SharedChoice,
        queries: impl FnOnce() -> [Array; 2],
    ) -> Option<StockPools> {
        let part = choice.next_part();
        let chosen = match &self.chooser {
            None => None,
            Some(PoolChooser::Earlier) => choice.chosen(part),
            Some(PoolChooser::Indexer(indexer)) => {
                let keys = held.as_ref().map(|held| held.index.as_ref().unwrap_or(&held.keys));
                choice.choose(indexer, keys, seen.as_ref(), queries)
            }
        };
        Some(StockPools { vectors: held?.keys, mask: chosen.or(seen) })
    }
}
