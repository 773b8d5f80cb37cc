//! Keys and values for MLX's operations: arrays, updated in place by donation. An operation that
//! updates takes its arrays by value, so that MLX writes into their memory if there is no other
//! handle to it.

use jackalope_mlx::{Array, Dtype, dim};

use super::{KvShape, LayerCacheShape};

/// What one layer keeps of the positions of some sequences.
#[derive(Clone, Debug)]
pub struct KvArrays {
    /// Keys `[sequences, kv_heads, capacity, key_dim]`.
    pub keys: Array,
    /// Values `[sequences, kv_heads, capacity, value_dim]`; `None` if they are parts of the keys.
    pub values: Option<Array>,
    /// What an indexer keeps, `[sequences, 1, capacity, index_dim]`.
    pub index: Option<Array>,
}

impl KvArrays {
    /// Creates room for `sequences` sequences of `capacity` positions; `None` for a layer that keeps
    /// no positions.
    pub(super) fn zeros(
        shape: &LayerCacheShape,
        sequences: usize,
        capacity: usize,
        dtype: Dtype,
    ) -> Option<KvArrays> {
        let KvShape { kv_heads, key_dim, value_dim, index_dim, .. } = shape.positions()?;
        let zeros = |heads, width| {
            Array::zeros(&[dim(sequences), dim(heads), dim(capacity), dim(width)], dtype)
        };
        let values = (0 < value_dim).then(|| zeros(kv_heads, value_dim));
        let index = (0 < index_dim).then(|| zeros(1, index_dim));
        Some(KvArrays { keys: zeros(kv_heads, key_dim), values, index })
    }

    /// Returns handles to all arrays.
    pub(super) fn handles(&self) -> Vec<Array> {
        [&self.keys].into_iter().chain(&self.values).chain(&self.index).cloned().collect()
    }

    /// Returns `held`, grown to `capacity`, with `new` from `start` on, for one sequence.
    pub(super) fn updated(
        held: Option<KvArrays>,
        new: &KvArrays,
        start: usize,
        capacity: usize,
    ) -> KvArrays {
        let append = |held, new: &Array| updated(held, new, dim(start), dim(capacity));
        match held {
            Some(held) => held.with(new, |held, new| append(Some(held), new)),
            None => new.map(|new| append(None, new)),
        }
    }

    /// Returns views of positions `start..stop`.
    pub fn positions(&self, start: usize, stop: usize) -> KvArrays {
        self.map(|array| array.slice_axis(2, dim(start), dim(stop)))
    }

    /// Returns copies of the first `capacity` positions, or of all if there are fewer.
    pub(super) fn fork(&self, capacity: usize) -> KvArrays {
        let stop = dim(capacity).min(self.keys.dim(2));
        self.map(|array| array.slice_axis(2, 0, stop).contiguous())
    }

    /// Returns views of sequences `start..stop`.
    pub(super) fn slots(&self, start: usize, stop: usize) -> KvArrays {
        self.map(|array| array.slice_axis(0, dim(start), dim(stop)))
    }

    /// Returns copies of the sequences at `indices`.
    pub(super) fn picked(self, indices: &Array) -> KvArrays {
        self.map(|array| array.take(indices, 0))
    }

    /// Returns these sequences followed by `others`.
    pub(super) fn joined(self, others: &KvArrays) -> KvArrays {
        self.with(others, |held, others| Array::concatenate(&[&held, others], 0))
    }

    /// Returns these arrays with the positions of `own`, at most `capacity`, in one slot, and zeros after
    /// them: a mask hides what an earlier sequence has left there, but not if that is no number.
    pub(super) fn with_slot(self, slot: usize, own: &KvArrays, capacity: usize) -> KvArrays {
        self.with(own, |all, own| {
            let (kv_heads, width) = (own.dim(1), own.dim(3));
            let (len, all_len) = (own.dim(2).min(dim(capacity)), dim(capacity));
            let mut own = own.slice_axis(2, 0, len);
            if len < all_len {
                let rest = Array::zeros(&[1, kv_heads, all_len - len, width], own.dtype());
                own = Array::concatenate(&[&own, &rest], 2);
            }
            all.slice_update(
                &own,
                &[dim(slot), 0, 0, 0],
                &[dim(slot) + 1, kv_heads, all_len, width],
            )
        })
    }

    /// Returns these arrays with one new position of several sequences, `[rows, kv_heads, 1, dim]`,
    /// at the given slots and positions, `[rows]` each.
    pub(super) fn scattered(self, new: &KvArrays, at: [&Array; 2]) -> KvArrays {
        self.with(new, |all, new| {
            let update = new.reshape(&[new.dim(0), 1, new.dim(1), 1, new.dim(3)]);
            all.scatter(at, [0, 2], &update)
        })
    }

    /// Combines the arrays with those of `other`, which have the same kinds.
    fn with(self, other: &KvArrays, combine: impl Fn(Array, &Array) -> Array) -> KvArrays {
        let both = |held: Option<Array>, other: &Option<Array>| {
            held.zip(other.as_ref()).map(|(held, other)| combine(held, other))
        };
        KvArrays {
            keys: combine(self.keys, &other.keys),
            values: both(self.values, &other.values),
            index: both(self.index, &other.index),
        }
    }

    fn map(&self, view: impl Fn(&Array) -> Array) -> KvArrays {
        let [values, index] = [&self.values, &self.index].map(|it| it.as_ref().map(&view));
        KvArrays { keys: view(&self.keys), values, index }
    }
}

/// As [`KvArrays::updated`], for keys or values alone.
fn updated(held: Option<Array>, new: &Array, start: i32, capacity: i32) -> Array {
    let (kv_heads, len, head_dim) = (new.dim(1), new.dim(2), new.dim(3));
    let held_len = held.as_ref().map_or(0, |held| held.dim(2));
    let room = |len| Array::zeros(&[1, kv_heads, len, head_dim], new.dtype());
    let grown = match held {
        Some(held) if capacity <= held_len => held,
        Some(held) => Array::concatenate(&[&held, &room(capacity - held_len)], 2),
        None => room(capacity),
    };
    grown.slice_update(new, &[0, 0, start, 0], &[1, kv_heads, start + len, head_dim])
}
