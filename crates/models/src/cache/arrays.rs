//! Keys and values for MLX's operations: arrays, updated in place by donation.

use jackalope_mlx::Array;

use crate::layers::dim;

/// Keys `[1, kv_heads, capacity, key_dim]` and values `[1, kv_heads, capacity, value_dim]` of one
/// layer.
#[derive(Clone, Debug)]
pub(super) struct KvArrays {
    pub(super) keys: Array,
    pub(super) values: Array,
}

impl KvArrays {
    /// Returns `held`, grown to `capacity`, with `new` from `start` on. Takes `held` by value, so that
    /// MLX writes into its memory if there is no other handle to it.
    pub(super) fn updated(
        held: Option<KvArrays>,
        new: &KvArrays,
        start: usize,
        capacity: usize,
    ) -> KvArrays {
        let (keys, values) = held.map(|held| (held.keys, held.values)).unzip();
        KvArrays {
            keys: updated(keys, &new.keys, dim(start), dim(capacity)),
            values: updated(values, &new.values, dim(start), dim(capacity)),
        }
    }

    /// Returns views of the first `len` positions.
    pub(super) fn first(&self, len: usize) -> KvArrays {
        KvArrays {
            keys: self.keys.slice_axis(2, 0, dim(len)),
            values: self.values.slice_axis(2, 0, dim(len)),
        }
    }

    /// Returns copies of the first `capacity` positions.
    pub(super) fn fork(&self, capacity: usize) -> KvArrays {
        let KvArrays { keys, values } = self.first(capacity);
        KvArrays { keys: keys.contiguous(), values: values.contiguous() }
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
