//! Keys and values for MLX's operations: arrays, updated in place by donation. An operation that
//! updates takes its arrays by value, so that MLX writes into their memory if there is no other
//! handle to it.

use jackalope_mlx::{Array, Dtype, dim};

use super::{KvShape, LayerCacheShape};

/// What arrays keep of some positions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct ArrayShape {
    /// Number of positions of a row: 1, or that of a pool.
    row_len: usize,
    kv_heads: usize,
    key_dim: usize,
    value_dim: usize,
    index_dim: usize,
}

impl ArrayShape {
    /// Returns what arrays of their own keep of each position and of each pool of a sequence.
    pub(super) fn of_sequence(shape: &LayerCacheShape) -> [Option<ArrayShape>; 2] {
        let Some(positions) = shape.positions() else { return [None; 2] };
        let has_window = matches!(shape, LayerCacheShape::Window { .. });
        let index_dim = if positions.pools.is_some() { 0 } else { positions.index_dim };
        let of_positions = ArrayShape { index_dim, ..ArrayShape::all(positions) };
        let of_pools = positions.pools.filter(|pools| 0 < pools.dim).map(|pools| {
            // Beside a window, keys of pools take the place of those of positions.
            let key_dim = if has_window { positions.key_dim } else { pools.dim };
            ArrayShape {
                row_len: pools.len,
                kv_heads: 1,
                key_dim,
                value_dim: 0,
                index_dim: pools.dim - key_dim,
            }
        });
        let has_elements = |it: &ArrayShape| 0 < it.kv_heads * it.key_dim;
        [Some(of_positions).filter(|it| !has_window && has_elements(it)), of_pools]
    }

    /// Returns what blocks keep of a position; `None` if nothing.
    pub(super) fn in_blocks(shape: &LayerCacheShape) -> Option<ArrayShape> {
        let positions = shape.positions()?;
        let has_window = matches!(shape, LayerCacheShape::Window { .. });
        let of_pools = KvShape { kv_heads: 1, key_dim: positions.index_dim, ..KvShape::default() };
        let kept = match positions.pools {
            _ if has_window => positions,
            Some(_) => of_pools,
            None => return None,
        };
        Some(ArrayShape::all(kept)).filter(|it| 0 < it.kv_heads * it.key_dim)
    }

    fn all(positions: KvShape) -> ArrayShape {
        let KvShape { kv_heads, key_dim, value_dim, index_dim, .. } = positions;
        ArrayShape { row_len: 1, kv_heads, key_dim, value_dim, index_dim }
    }

    /// Returns the number of heads of keys and values.
    pub(super) fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Returns the number of rows for the first `num_positions` positions: those that are whole.
    pub(super) fn num_rows(&self, num_positions: usize) -> usize {
        num_positions / self.row_len
    }
}

/// What one layer keeps of some sequences: of each position, or of each pool.
#[derive(Clone, Debug)]
pub struct KvArrays {
    /// Keys `[sequences, kv_heads, rows, key_dim]`.
    pub keys: Array,
    /// Values `[sequences, kv_heads, rows, value_dim]`; `None` if they are parts of the keys.
    pub values: Option<Array>,
    /// What an indexer keeps, `[sequences, 1, rows, index_dim]`.
    pub index: Option<Array>,
}

impl KvArrays {
    /// Creates arrays of zeros; `shape_of` returns the shape for a number of heads and a width.
    pub(super) fn zeros(
        shape: &ArrayShape,
        dtype: Dtype,
        shape_of: impl Fn(i32, i32) -> Vec<i32>,
    ) -> KvArrays {
        let &ArrayShape { kv_heads, key_dim, value_dim, index_dim, .. } = shape;
        let zeros = |heads, width| Array::zeros(&shape_of(dim(heads), dim(width)), dtype);
        KvArrays {
            keys: zeros(kv_heads, key_dim),
            values: (0 < value_dim).then(|| zeros(kv_heads, value_dim)),
            index: (0 < index_dim).then(|| zeros(1, index_dim)),
        }
    }

    /// Returns handles to all arrays.
    pub(super) fn handles(&self) -> Vec<Array> {
        [&self.keys].into_iter().chain(&self.values).chain(&self.index).cloned().collect()
    }

    /// Returns `held`, grown to `num_rows`, with `new` from `start` on, for one sequence.
    pub(super) fn updated(
        held: Option<KvArrays>,
        new: &KvArrays,
        start: usize,
        num_rows: usize,
    ) -> KvArrays {
        let append = |held, new: &Array| updated(held, new, dim(start), dim(num_rows));
        match held {
            Some(held) => held.with(new, |held, new| append(Some(held), new)),
            None => new.map(|new| append(None, new)),
        }
    }

    /// Returns views of rows `start..stop`.
    pub fn rows(&self, start: usize, stop: usize) -> KvArrays {
        self.map(|array| array.slice_axis(2, dim(start), dim(stop)))
    }

    /// Returns copies of the first `num_rows` rows, or of all if there are fewer.
    pub(super) fn fork(&self, num_rows: usize) -> KvArrays {
        let stop = dim(num_rows).min(self.keys.dim(2));
        self.map(|array| array.slice_axis(2, 0, stop).contiguous())
    }

    /// Returns views of sequences `start..stop`.
    pub fn sequences(&self, start: usize, stop: usize) -> KvArrays {
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

    /// Returns these arrays with the rows of `own`, as many as fit, in one slot, and zeros after them: a
    /// mask hides what an earlier sequence has left there, but not a NaN.
    pub(super) fn with_slot(self, slot: usize, own: &KvArrays) -> KvArrays {
        self.with(own, |all, own| {
            let (kv_heads, all_len, width) = (own.dim(1), all.dim(2), own.dim(3));
            let len = own.dim(2).min(all_len);
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

    /// Returns these arrays with one new row of several sequences, `[sequences, kv_heads, 1, dim]`,
    /// at the given slots and rows, `[sequences]` each.
    pub(super) fn scattered(self, new: &KvArrays, at: [&Array; 2]) -> KvArrays {
        self.with(new, |all, new| {
            let update = new.reshape(&[new.dim(0), 1, new.dim(1), 1, new.dim(3)]);
            all.scatter(at, [0, 2], &update)
        })
    }

    /// Combines the arrays with those of `other`, which have the same kinds.
    pub(super) fn with(
        self,
        other: &KvArrays,
        combine: impl Fn(Array, &Array) -> Array,
    ) -> KvArrays {
        let both = |held: Option<Array>, other: &Option<Array>| {
            held.zip(other.as_ref()).map(|(held, other)| combine(held, other))
        };
        KvArrays {
            keys: combine(self.keys, &other.keys),
            values: both(self.values, &other.values),
            index: both(self.index, &other.index),
        }
    }

    pub(super) fn map(&self, view: impl Fn(&Array) -> Array) -> KvArrays {
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
