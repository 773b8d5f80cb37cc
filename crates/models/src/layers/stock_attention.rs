//! Attention with MLX's operations, for all layers that keep keys and values.

use jackalope_mlx::{Array, Dtype, GpuKind, dim, fast, gpu_kind};
use jackalope_protocol::KV_BLOCK_TOKENS;

use super::index_pools::IndexPools;
use super::indexer::{StockChooser, StockIndex};
use crate::step::{DecodeGroup, Reach, Step, StepSpan, VisibleKeys, WindowGroup};
use jackalope_cache::{KvArrays, SequenceCache, SlotPool};

/// Maximum size of the scores that are in memory at once where no fused operation computes them piece by
/// piece, in bytes.
const SCORES_BYTES_MAX: usize = 256 << 20;

/// Widths of the heads for which MLX's fused operation on GPUs computes many queries; smaller heads are
/// padded to them.
const FUSED_HEAD_DIMS: [i32; 3] = [64, 80, 128];

/// On CUDA, the queries of a prompt are padded to a multiple of this number.
const PADDED_QUERIES: usize = 128;

/// On CUDA, the keys of a prompt are padded to a multiple of this number; arrays of keys have as many.
const PADDED_KEYS: usize = KV_BLOCK_TOKENS as usize;

/// Queries `[tokens, heads, 1, key_dim]`, keys and values of a step's rows, after the rotation.
#[derive(Debug)]
pub(super) struct StockHeads {
    pub(super) q: Array,
    pub(super) kv: StockKv,
}

/// The keys and values of a step's rows.
#[derive(Debug)]
pub(super) enum StockKv {
    /// Keys `[tokens, kv_heads, 1, key_dim]` and values that are appended to the caches.
    New { k: Array, v: StockValues },
    /// Those that the layer of this number has appended.
    OfLayer(usize),
}

/// The values of a step's rows.
#[derive(Debug)]
pub(super) enum StockValues {
    /// Values of their own, `[tokens, kv_heads, 1, value_dim]`.
    Own(Array),
    /// The last `dim` elements of the keys; they are not rotated.
    OfKeys { dim: i32 },
}

impl StockValues {
    /// Returns some rows of values that are stored.
    fn rows(&self, rows: impl FnOnce(&Array) -> Array) -> Option<Array> {
        match self {
            StockValues::Own(v) => Some(rows(v)),
            StockValues::OfKeys { .. } => None,
        }
    }
}

impl StockKv {
    /// Returns the layer whose keys and values the layer `layer_idx` reads.
    fn layer(&self, layer_idx: usize) -> usize {
        match self {
            StockKv::New { .. } => layer_idx,
            StockKv::OfLayer(source) => *source,
        }
    }

    /// Returns the keys and values of what is held.
    fn held(&self, held: KvArrays) -> [Array; 2] {
        let KvArrays { keys, values, .. } = held;
        let values = match self {
            StockKv::New { v: StockValues::OfKeys { dim }, .. } => {
                keys.slice_axis(3, keys.dim(3) - dim, keys.dim(3))
            }
            StockKv::New { .. } | StockKv::OfLayer(_) => {
                values.expect("values of their own are stored")
            }
        };
        [keys, values]
    }
}

/// Causal attention, in which each sequence attends to its own keys and values.
#[derive(Debug)]
pub(super) struct StockAttention<'a> {
    pub(super) layer_idx: usize,
    /// Chooses the keys that a query attends to.
    pub(super) chooser: Option<&'a StockChooser<'a>>,
    /// Factor of the scores.
    pub(super) scale: f32,
    /// With a cap, a scaled score becomes `cap * tanh(score / cap)`.
    pub(super) soft_cap: Option<f32>,
    /// The positions that a query sees.
    pub(super) reach: Reach,
    /// A score for each head that takes part in the soft-max without having a value, `[heads]`.
    pub(super) sinks: Option<&'a Array>,
}

impl StockAttention<'_> {
    /// Appends keys and values to the caches, and returns the heads' results
    /// `[tokens, heads * value_dim]`.
    pub(super) fn forward(&self, heads: &StockHeads, step: &mut Step<'_, '_>) -> Array {
        if self.reach != Reach::ALL {
            return self.forward_windows(heads, step);
        }
        let plan = step.stock_plan();
        let mut outs = Vec::with_capacity(plan.groups.len() + plan.prompts.len());
        if let Some(pools) = self.index().and_then(|index| index.pools) {
            self.write_pools(pools, step);
        }
        let layer = step.caches[0].layer(self.layer_idx);
        for group in &plan.groups {
            outs.push(self.decode(heads, group, &mut plan.slots.borrow_mut(), layer));
        }
        for &idx in &plan.prompts {
            outs.push(self.prompt(heads, &step.spans[idx], step.caches[idx]));
        }
        plan.in_order(&outs)
    }

    /// Returns the layer's own indexer, if it has one.
    fn index(&self) -> Option<&StockIndex<'_>> {
        self.chooser.and_then(|chooser| chooser.index.as_ref())
    }

    /// Returns the layer's own indexer, if it keeps keys of positions.
    fn index_of_positions(&self) -> Option<&StockIndex<'_>> {
        self.index().filter(|index| index.pools.is_none())
    }

    /// Writes what the indexer's pools are computed from, and the keys of the pools that end.
    fn write_pools(&self, pools: &IndexPools, step: &mut Step<'_, '_>) {
        let Some(index) = self.index() else { return };
        let written = step.written_rows();
        let (layer, slots) = (step.caches[0].layer(self.layer_idx), step.caches[0].slots());
        let of_pools = |keys: Array| KvArrays { keys, values: None, index: None };
        let new = of_pools(index.kept.clone());
        slots.borrow_mut().blocks.write(layer, &new, &written);
        let Some(ended) = step.ended_pools(pools.kind()) else { return };
        let raw = slots.borrow().blocks.read_raw(layer, &ended.sources);
        ended.write(self.layer_idx, &of_pools(pools.stock_keys(&raw, &ended)), step.caches);
    }

    /// Computes one token of each sequence of a group, `[sequences, heads * value_dim]`.
    fn decode(
        &self,
        heads: &StockHeads,
        group: &DecodeGroup,
        slots: &mut SlotPool,
        layer: usize,
    ) -> Array {
        let q = group.rows.of(&heads.q);
        let held = match &heads.kv {
            StockKv::New { k, v } => {
                let keys = group.rows.of(k);
                let values = v.rows(|v| group.rows.of(v));
                let index = self.index_of_positions();
                let index = index.map(|it| group.rows.of(&it.kept));
                let new = KvArrays { keys, values, index };
                slots.write(group.class, layer, &new, [&group.slots, &group.rows.positions])
            }
            // Both layers are on this rank, whose layers follow one another.
            StockKv::OfLayer(source) => slots.held(group.class, layer + source - self.layer_idx),
        };
        let VisibleKeys { stop, mut mask } = group.visible();
        let held = held.rows(0, stop);
        let chosen = self.chooser.and_then(|chooser| {
            chooser.next_mask(dim(stop), |index| {
                let of_pools = index.pools.map(|pools| {
                    slots.held_pools(group.class, layer).rows(0, stop / pools.shape.len).keys
                });
                let keys = of_pools.as_ref().or(held.index.as_ref());
                let keys = keys.expect("an indexer's keys are kept");
                let by_slot = |x: &Array| group.by_slot(&group.rows.of(x));
                let weights = index.weights.as_ref().map(by_slot);
                let queries = by_slot(&index.queries);
                index.chosen([&queries, keys], weights.as_ref(), dim(stop), mask.as_ref())
            })
        });
        mask = chosen.map(|chosen| of_heads(&chosen, q.dim(1))).or(mask);
        let [keys, values] = heads.kv.held(held);
        let mask = mask.as_ref().map_or(fast::Mask::None, fast::Mask::Array);
        let q = group.by_slot(&q);
        group.by_sequence(&self.weigh(&q, &keys, &values, mask))
    }

    /// Computes the rows of one sequence, `[rows, heads * value_dim]`.
    fn prompt(&self, heads: &StockHeads, span: &StepSpan, cache: &mut SequenceCache) -> Array {
        let q = rows(&heads.q, span);
        let held = match &heads.kv {
            StockKv::New { k, v } => {
                let keys = rows(k, span);
                let values = v.rows(|v| rows(v, span));
                let index = self.index_of_positions();
                let index = index.map(|it| rows(&it.kept, span));
                cache.append(self.layer_idx, span.start, &KvArrays { keys, values, index })
            }
            StockKv::OfLayer(source) => cache.held(*source, span.start + span.rows.len()),
        };
        let chosen = self.chooser.and_then(|chooser| {
            let stop = span.positions().end;
            chooser.next_mask(dim(stop), |index| {
                let of_pools = index
                    .pools
                    .map(|pools| cache.held_pools(self.layer_idx, stop / pools.shape.len).keys);
                let keys = of_pools.as_ref().or(held.index.as_ref());
                let keys = keys.expect("an indexer's keys are kept");
                let queries = rows(&index.queries, span);
                let visible = fast::causal_mask(q.dim(2), dim(stop));
                let weights = index.weights.as_ref().map(|weights| rows(weights, span));
                index.chosen([&queries, keys], weights.as_ref(), dim(stop), Some(&visible))
            })
        });
        let [keys, values] = heads.kv.held(held);
        let Some(mask) = &chosen else {
            let width = self.fused_width(&q, &values);
            if gpu_kind() == Some(GpuKind::Cuda) && width.is_some() {
                let source = heads.kv.layer(self.layer_idx);
                let stop = span.positions().end;
                let padded = cache.held(source, stop.next_multiple_of(PADDED_KEYS));
                let [padded_keys, padded_values] = heads.kv.held(padded);
                let [q, keys, wide_values] = widened([&q, &padded_keys, &padded_values], width);
                let out = self.attend_padded(&q, &[keys, wide_values], stop);
                return in_rows(&out.slice_axis(3, 0, values.dim(3)));
            }
            return self.attend_all(&q, [keys, values], 0);
        };
        let rows_max = rows_at_once(&q, &keys);
        let out = fast::by_queries([&q, &keys, &values], rows_max, |[q, k, v], rows| {
            let mask = mask.slice_axis(-2, dim(rows.start), dim(rows.end));
            let mask = of_heads(&mask.slice_axis(-1, 0, k.dim(2)), q.dim(1));
            self.weigh(q, k, v, fast::Mask::Array(&mask))
        });
        in_rows(&out)
    }

    /// Computes [`StockAttention::forward`] in a layer whose queries see only some last positions.
    fn forward_windows(&self, heads: &StockHeads, step: &mut Step<'_, '_>) -> Array {
        assert!(self.chooser.is_none(), "no model chooses among the positions of a window");
        let (plan, written) = (step.window_plan(self.reach), step.written_rows());
        let slots = step.caches[0].slots();
        let blocks = &mut slots.borrow_mut().blocks;
        let layer = step.caches[0].layer(self.layer_idx);
        let layer = match &heads.kv {
            StockKv::New { k, v } => {
                let values = v.rows(Array::clone);
                let new = KvArrays { keys: k.clone(), values, index: None };
                blocks.write(layer, &new, &written);
                layer
            }
            StockKv::OfLayer(source) => layer + source - self.layer_idx,
        };
        let groups = plan.groups.iter().map(|group| {
            let kv = heads.kv.held(blocks.read(layer, &group.window.places));
            self.decode_window(&heads.q, kv, group)
        });
        let mut outs: Vec<Array> = groups.collect();
        for prompt in &plan.prompts {
            let kv = heads.kv.held(blocks.read(layer, &prompt.places));
            let q = rows(&heads.q, &step.spans[prompt.span_idx]);
            outs.push(self.attend_all(&q, kv, prompt.first));
        }
        plan.in_order(&outs)
    }

    /// Computes one token of each sequence of a group from what they see, `[sequences, heads * value_dim]`.
    fn decode_window(&self, q: &Array, [keys, values]: [Array; 2], group: &WindowGroup) -> Array {
        let q = group.rows.of(q);
        let mask = group.window.mask.as_ref().map_or(fast::Mask::None, fast::Mask::Array);
        self.weigh(&q, &keys, &values, mask).reshape(&[q.dim(0), -1])
    }

    /// Computes causal attention of queries to the last of `num_keys` keys, which more may follow, for lengths of
    /// which there are few: on CUDA, MLX has cuDNN prepare a plan for each pair of lengths, which takes longer than a
    /// step, and keeps it. Returns `[1, heads, queries, width]`.
    fn attend_padded(&self, q: &Array, kv: &[Array; 2], num_keys: usize) -> Array {
        let [keys, values] = kv;
        let (heads, num_queries, width) = (q.dim(1), q.dim(2), q.dim(3));
        // As many queries as keys follow, so that each query sees what it saw.
        let after = keys.dim(2) - dim(num_keys);
        let all = (num_queries + after) as usize;
        let before = dim(all.next_multiple_of(PADDED_QUERIES)) - dim(all);
        let padding = |len| Array::zeros(&[1, heads, len, width], q.dtype());
        let padded = Array::concatenate(&[&padding(before), q, &padding(after)], 2);
        let out = self.weigh(&padded, keys, values, fast::Mask::Causal);
        out.slice_axis(2, before, before + num_queries)
    }

    fn scores<'b>(&self, mask: fast::Mask<'b>) -> fast::AttentionScores<'b>
    where
        Self: 'b,
    {
        fast::AttentionScores { scale: self.scale, mask, sinks: self.sinks }
    }

    /// Returns the width to which the heads are padded so that MLX's fused operation computes many
    /// queries; `None` if it cannot.
    fn fused_width(&self, q: &Array, v: &Array) -> Option<i32> {
        // A mask of its own for each head would be large.
        if self.chooser.is_some() || self.soft_cap.is_some() {
            return None;
        }
        let has_dtype = match gpu_kind()? {
            GpuKind::Metal => true,
            GpuKind::Cuda => q.dtype() != Dtype::F32,
        };
        let width = q.dim(3).max(v.dim(3));
        FUSED_HEAD_DIMS.into_iter().find(|fused| has_dtype && width <= *fused)
    }

    /// Computes [`StockAttention::attend`] for all rows of a sequence, `[rows, heads * value_dim]`.
    fn attend_all(&self, q: &Array, [keys, values]: [Array; 2], start: usize) -> Array {
        let width = self.fused_width(q, &values).filter(|_| q.dim(2) > 1);
        self.attend_widened(q, [&keys, &values], start, width)
    }

    /// Computes [`StockAttention::attend_all`] with heads that are padded to `width`.
    fn attend_widened(
        &self,
        q: &Array,
        [keys, values]: [&Array; 2],
        start: usize,
        width: Option<i32>,
    ) -> Array {
        let rows_max = width.map_or_else(|| rows_at_once(q, keys), |_| q.dim(2));
        let [wide_q, keys, wide_values] = widened([q, keys, values], width);
        let out = fast::by_queries([&wide_q, &keys, &wide_values], rows_max, |[q, k, v], _| {
            self.attend(q, [k, v], start)
        });
        in_rows(&out.slice_axis(3, 0, values.dim(3)))
    }

    /// Computes attention; `q` belongs to the last of the positions of the keys and values `kv`, which begin
    /// at `start`.
    fn attend(&self, q: &Array, kv: [&Array; 2], start: usize) -> Array {
        let num_queries = q.dim(2);
        let end = dim(start) + kv[0].dim(2);
        let positions = (end - num_queries) as usize..end as usize;
        let firsts: Vec<i32> = positions.map(|it| dim(self.reach.first(it))).collect();
        let first_key = firsts[0];
        let [k, v] = kv.map(|x| x.slice_axis(2, first_key - dim(start), x.dim(2)));
        if num_queries == 1 {
            return self.weigh(q, &k, &v, fast::Mask::None);
        }
        if firsts.iter().all(|first| *first == first_key) {
            return self.weigh(q, &k, &v, fast::Mask::Causal);
        }
        let i = Array::arange_from(end - num_queries, end, Dtype::I32).expand_dims(1);
        let j = Array::arange_from(first_key, end, Dtype::I32).expand_dims(0);
        let firsts = Array::from_slice(&firsts, &[num_queries, 1]);
        let mask = j.less_equal(&i).logical_and(&firsts.less_equal(&j));
        self.weigh(q, &k, &v, fast::Mask::Array(&mask))
    }

    /// Returns the means of the values, weighted by the soft-max of the scores.
    fn weigh(&self, q: &Array, k: &Array, v: &Array, mask: fast::Mask<'_>) -> Array {
        let Some(cap) = self.soft_cap else {
            return fast::scaled_dot_product_attention(q, k, v, self.scores(mask));
        };
        fast::capped_attention([q, k, v], self.scale, cap, mask)
    }
}

/// Returns a mask `[sequences, sets, seq, keys]` for `heads` query heads, as many for each set, or one for
/// all heads if there is one set.
fn of_heads(mask: &Array, heads: i32) -> Array {
    match mask.dim(1) {
        1 => mask.clone(),
        sets => mask.repeat(heads / sets, 1),
    }
}

/// Returns the number of queries whose scores may be in memory at once where no fused operation computes
/// them piece by piece.
fn rows_at_once(q: &Array, k: &Array) -> i32 {
    let row_bytes = q.dim(1) as usize * k.dim(2) as usize * size_of::<f32>();
    dim((SCORES_BYTES_MAX / row_bytes.max(1)).clamp(1, q.dim(2) as usize))
}

/// Appends zeros to the heads of queries, keys and values `[1, heads, seq, dim]`, so that they are `width`
/// wide: they change neither the scores nor the values before them.
fn widened(qkv: [&Array; 3], width: Option<i32>) -> [Array; 3] {
    qkv.map(|x| {
        let missing = width.map_or(0, |width| width - x.dim(3));
        if missing == 0 {
            return x.clone();
        }
        let zeros = Array::zeros(&[x.dim(0), x.dim(1), x.dim(2), missing], x.dtype());
        Array::concatenate(&[x, &zeros], 3)
    })
}

/// Returns the results `[1, heads, seq, dim]` of one sequence as its rows, `[seq, heads * dim]`.
fn in_rows(out: &Array) -> Array {
    out.transpose(&[0, 2, 1, 3]).reshape(&[out.dim(2), -1])
}

/// Returns the rows of one sequence, `[1, heads, seq, dim]`, from those of a step, `[tokens, heads, 1, dim]`.
fn rows(x: &Array, span: &StepSpan) -> Array {
    x.slice_axis(0, dim(span.rows.start), dim(span.rows.end)).transpose(&[2, 1, 0, 3])
}

#[cfg(test)]
mod tests {
    use jackalope_mlx::memory;

    use super::*;

    fn random(shape: &[i32], seed: u32) -> Array {
        let len = shape.iter().product::<i32>() as u32;
        let value = |idx: u32| ((idx * 97 + seed * 31) % 89) as f32 / 44.5 - 1.0;
        Array::from_slice(&(0..len).map(value).collect::<Vec<_>>(), shape)
    }

    fn plain() -> StockAttention<'static> {
        StockAttention {
            layer_idx: 0,
            chooser: None,
            scale: 0.5,
            soft_cap: None,
            reach: Reach::ALL,
            sinks: None,
        }
    }

    #[track_caller]
    fn assert_close(found: &Array, expected: &Array, case: &str) {
        let [found, expected] = [found, expected].map(|it| it.to_vec::<f32>().unwrap());
        assert_eq!(found.len(), expected.len(), "{case}");
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{case}: {found} {expected}");
        }
    }

    #[test]
    fn padded_lengths_change_no_result() {
        for (num_queries, num_keys) in
            [(2, 2), (127, 127), (128, 256), (200, 300), (3, 511), (256, 257)]
        {
            let capacity = dim((num_keys as usize).next_multiple_of(PADDED_KEYS));
            let q = random(&[1, 4, num_queries, 8], 1);
            let kv = [2, 3].map(|seed| random(&[1, 2, capacity, 8], seed));
            let [k, v] = kv.each_ref().map(|x| x.slice_axis(2, 0, num_keys));
            let expected = in_rows(&plain().attend(&q, [&k, &v], 0));
            let found = in_rows(&plain().attend_padded(&q, &kv, num_keys as usize));
            assert_eq!(found.shape(), [num_queries, 32]);
            assert_close(&found, &expected, &format!("{num_queries} of {num_keys}"));
        }
    }

    #[test]
    fn padded_heads_change_no_result() {
        for (key_dim, value_dim, width) in [(12, 12, 16), (12, 8, 12), (8, 12, 16), (16, 16, 16)] {
            let q = random(&[1, 4, 9, key_dim], 1);
            let (k, v) = (random(&[1, 2, 20, key_dim], 2), random(&[1, 2, 20, value_dim], 3));
            let expected = in_rows(&plain().attend(&q, [&k, &v], 0));
            let found = plain().attend_widened(&q, [&k, &v], 0, Some(width));
            assert_eq!(found.shape(), [9, 4 * value_dim]);
            assert_close(&found, &expected, &format!("{key_dim} and {value_dim} in {width}"));
            let wide = widened([&q, &k, &v], Some(width));
            assert_eq!(wide.map(|x| x.dim(3)), [width; 3]);
        }
    }

    #[test]
    fn long_prompts_have_few_scores_in_memory() {
        let (heads, len) = (16, 4096);
        let [q, k, v] = [1, 2, 3].map(|seed| random(&[1, heads, len, 8], seed));
        memory::reset_peak();
        let before = memory::active_bytes();
        let out = plain().attend_all(&q, [k, v], 0).to_vec::<f32>().unwrap();
        let added = memory::peak_bytes().saturating_sub(before);
        assert_eq!(out.len(), (len * heads * 8) as usize);
        let all_scores = (heads * len * len) as usize * size_of::<f32>();
        assert!(3 * SCORES_BYTES_MAX < all_scores, "blocks have far fewer");
        assert!(added < 3 * SCORES_BYTES_MAX, "{added} bytes of {all_scores}");
    }

    #[test]
    fn blocks_of_queries_compute_what_all_do_at_once() {
        let (q, k, v) =
            (random(&[1, 4, 11, 8], 1), random(&[1, 2, 30, 8], 2), random(&[1, 2, 30, 8], 3));
        let window = Reach { window: Some(7), chunk: None };
        for (soft_cap, reach) in [(None, Reach::ALL), (Some(3.0), Reach::ALL), (None, window)] {
            let attention = StockAttention { soft_cap, reach, ..plain() };
            let computed = |rows_max| {
                let attend = |[q, k, v]: [&Array; 3], _| attention.attend(q, [k, v], 0);
                fast::by_queries([&q, &k, &v], rows_max, attend)
            };
            let whole = computed(11);
            for rows_max in [1, 4, 10] {
                assert_close(&computed(rows_max), &whole, &format!("{rows_max} rows"));
            }
        }
    }
}
