//! MLX's fused operations.

use crate::array::{Array, built, optional, refs};
use crate::ffi::bridge;

/// Applies root-mean-square normalisation over the last dimension.
#[track_caller]
pub fn rms_norm(x: &Array, weight: Option<&Array>, eps: f32) -> Array {
    built("rms_norm", bridge::rms_norm(&x.0, &optional(weight), eps))
}

/// Applies layer normalisation over the last dimension.
#[track_caller]
pub fn layer_norm(x: &Array, weight: Option<&Array>, bias: Option<&Array>, eps: f32) -> Array {
    built("layer_norm", bridge::layer_norm(&x.0, &optional(weight), &optional(bias), eps))
}

/// The parameters of [`rope`].
#[derive(Debug, Clone, Copy)]
pub struct Rope<'a> {
    /// Number of elements of each head that are rotated.
    pub dims: i32,
    /// Whether pairs are neighbouring elements, instead of one element from each half.
    pub traditional: bool,
    /// Base of the frequencies; `None` if and only if `freqs` is given.
    pub base: Option<f32>,
    /// Scale of the positions.
    pub scale: f32,
    /// Position of the first row of each sequence.
    pub offset: RopeOffset<'a>,
    /// Reciprocals of the frequencies, f32 `[dims / 2]`.
    pub freqs: Option<&'a Array>,
}

/// Position of the first row of each sequence.
#[derive(Debug, Clone, Copy)]
pub enum RopeOffset<'a> {
    /// One offset for all sequences.
    First(i32),
    /// One for each, i32 `[batch]`.
    Each(&'a Array),
}

/// Applies rotary position embedding to `x` `[batch, heads, seq, head_dim]`, with row `i` at
/// position `offset + i`.
#[track_caller]
pub fn rope(x: &Array, rope: Rope<'_>) -> Array {
    let (offset, offsets) = match rope.offset {
        RopeOffset::First(offset) => (offset, None),
        RopeOffset::Each(offsets) => (0, Some(offsets)),
    };
    let spec = bridge::RopeSpec {
        dims: rope.dims,
        traditional: rope.traditional,
        has_base: rope.base.is_some(),
        base: rope.base.unwrap_or_default(),
        scale: rope.scale,
        offset,
    };
    built("rope", bridge::rope(&x.0, &spec, &optional(rope.freqs), &optional(offsets)))
}

/// The keys that a query sees.
#[derive(Debug, Clone, Copy)]
pub enum Mask<'a> {
    /// All keys.
    None,
    /// The keys at its own position and before; the last query is at the last key's position.
    Causal,
    /// An array that is added to the scores, or, if boolean, is true for the keys that a query
    /// sees.
    Array(&'a Array),
}

/// The scores of attention's soft-max.
#[derive(Debug, Clone, Copy)]
pub struct AttentionScores<'a> {
    /// Factor of the products of queries and keys.
    pub scale: f32,
    /// The keys that a query sees.
    pub mask: Mask<'a>,
    /// Scores that take part in the soft-max without having a value, one for each head, `[heads]`, in
    /// the type of the queries.
    pub sinks: Option<&'a Array>,
}

/// Computes `softmax(scale * q kᵀ + mask) v` with `q` `[batch, heads, seq, head_dim]` and `k`, `v`
/// `[batch, kv_heads, seq, head_dim]`; `heads` must be a multiple of `kv_heads`.
#[track_caller]
pub fn scaled_dot_product_attention(
    q: &Array,
    k: &Array,
    v: &Array,
    scores: AttentionScores<'_>,
) -> Array {
    let (mode, array) = match scores.mask {
        Mask::None => ("", None),
        Mask::Causal => ("causal", None),
        Mask::Array(array) => ("array", Some(array)),
    };
    let [mask, sinks] = [array, scores.sinks].map(optional);
    let node = bridge::attention(&refs(&[q, k, v]), scores.scale, mode, &mask, &sinks);
    built("scaled_dot_product_attention", node)
}
