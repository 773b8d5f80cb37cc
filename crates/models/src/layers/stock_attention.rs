//! Attention with MLX's operations, for all layers that keep keys and values.

use std::rc::Rc;

use jackalope_mlx::fast::RopeOffset;
use jackalope_mlx::{Array, Dtype, fast};

use super::kernel::dim;
use super::rope::Rope;
use crate::cache::{KvArrays, SequenceCache, SlotPool};
use crate::step::{DecodeGroup, Step, StepSpan, VisibleKeys};

/// Queries `[tokens, heads, key_dim]`, keys `[tokens, kv_heads, key_dim]` and values
/// `[tokens, kv_heads, value_dim]` of a step's rows, before the rotation.
#[derive(Debug)]
pub(super) struct StockHeads {
    pub(super) q: Array,
    pub(super) k: Array,
    pub(super) v: Array,
}

/// Causal attention, in which each sequence attends to its own keys and values.
#[derive(Debug)]
pub(super) struct StockAttention<'a> {
    pub(super) layer_idx: usize,
    /// Rotation of queries and keys; `None` if they have none.
    pub(super) rope: Option<&'a Rc<Rope>>,
    /// Factor of the scores.
    pub(super) scale: f32,
    /// Number of positions that a query sees, including its own; `None` if all.
    pub(super) window: Option<usize>,
}

impl StockAttention<'_> {
    /// Appends keys and values to the caches, and returns the heads' results
    /// `[tokens, heads * value_dim]`.
    pub(super) fn forward(&self, heads: &StockHeads, step: &mut Step<'_, '_>) -> Array {
        let plan = step.stock_plan();
        let mut outs = Vec::with_capacity(plan.groups.len() + plan.prompts.len());
        let layer = step.caches[0].layer(self.layer_idx);
        for group in &plan.groups {
            outs.push(self.decode(heads, group, &mut plan.slots.borrow_mut(), layer));
        }
        for &idx in &plan.prompts {
            outs.push(self.prompt(heads, &step.spans[idx], step.caches[idx]));
        }
        plan.in_order(&outs)
    }

    /// Computes one token of each sequence of a group, `[sequences, heads * value_dim]`.
    fn decode(
        &self,
        heads: &StockHeads,
        group: &DecodeGroup,
        slots: &mut SlotPool,
        layer: usize,
    ) -> Array {
        let [q, k] = [&heads.q, &heads.k].map(|x| {
            let rows = group.rows(x);
            self.rope.map_or_else(
                || rows.clone(),
                |rope| rope.stock(&rows, RopeOffset::Each(&group.positions)),
            )
        });
        let new = KvArrays { keys: k, values: group.rows(&heads.v) };
        let at = [&group.slots, &group.positions];
        let held = slots.write(group.class, layer, &new, at);
        let VisibleKeys { start, stop, mask } = group.visible(self.window);
        let KvArrays { keys, values } = held.positions(start, stop);
        let mask = mask.as_ref().map_or(fast::Mask::None, fast::Mask::Array);
        let q = group.by_slot(&q);
        let out = fast::scaled_dot_product_attention(&q, &keys, &values, self.scale, mask);
        group.by_sequence(&out)
    }

    /// Computes the rows of one sequence, `[rows, heads * value_dim]`.
    fn prompt(&self, heads: &StockHeads, span: &StepSpan, cache: &mut SequenceCache) -> Array {
        let [q, k] = [&heads.q, &heads.k].map(|x| self.rotated(&rows(x, span), span));
        let new = KvArrays { keys: k, values: rows(&heads.v, span) };
        let KvArrays { keys, values } = cache.append(self.layer_idx, span.start, &new);
        let out = self.attend(&q, &keys, &values);
        out.transpose(&[0, 2, 1, 3]).reshape(&[q.dim(2), -1])
    }

    fn rotated(&self, x: &Array, span: &StepSpan) -> Array {
        self.rope
            .map_or_else(|| x.clone(), |rope| rope.stock(x, RopeOffset::First(dim(span.start))))
    }

    /// Computes attention; `q` belongs to the last positions of `k` and `v`.
    fn attend(&self, q: &Array, k: &Array, v: &Array) -> Array {
        let (num_queries, num_keys) = (q.dim(2), k.dim(2));
        let window = self.window.map_or(num_keys, dim);
        // The first query sees the keys from `num_keys - num_queries + 1 - window` on.
        let first_key = (num_keys - num_queries + 1 - window).max(0);
        let [k, v] = [k, v].map(|x| x.slice_axis(2, first_key, num_keys));
        if num_queries == 1 {
            return fast::scaled_dot_product_attention(q, &k, &v, self.scale, fast::Mask::None);
        }
        if num_keys <= window {
            return fast::scaled_dot_product_attention(q, &k, &v, self.scale, fast::Mask::Causal);
        }
        let i = Array::arange_from(num_keys - num_queries, num_keys, Dtype::I32).expand_dims(1);
        let j = Array::arange_from(first_key, num_keys, Dtype::I32).expand_dims(0);
        let reach = j.add(&Array::from_slice(&[window], &[1]));
        let mask = j.less_equal(&i).logical_and(&i.less(&reach));
        fast::scaled_dot_product_attention(q, &k, &v, self.scale, fast::Mask::Array(&mask))
    }
}

/// Returns the rows of one sequence, `[1, heads, seq, dim]`.
fn rows(x: &Array, span: &StepSpan) -> Array {
    let rows = x.slice_axis(0, dim(span.rows.start), dim(span.rows.end));
    rows.transpose(&[1, 0, 2]).expand_dims(0)
}
