//! One projection to queries, keys and values, for MLX's operations.

use jackalope_mlx::{Array, dim};
use jackalope_weights::LoadError;

use crate::head_norms::HeadNorms;
use crate::heads::Heads;
use crate::linear::Linear;
use crate::norm::Norm;
use crate::rope::Rope;

/// Projections to queries, keys and values whose weights are one matrix: a product, a norm and a rotation take the
/// place of three, two and two.
#[derive(Debug)]
pub struct FusedQkv {
    qkv: Linear,
    /// Norm of queries and keys.
    norm: Option<Norm>,
    /// Whether the norm follows the rotation.
    is_norm_last: bool,
    /// Number of heads of queries, and of keys.
    num_heads: [i32; 2],
    head_dim: i32,
}

impl FusedQkv {
    /// Fuses the projections to queries, keys and values, which become views of the one matrix. Returns `None` if
    /// they or their norms are of different kinds, or this rank has none of the heads.
    ///
    /// # Errors
    /// Fails if MLX cannot copy the weights.
    pub fn fuse(
        projections: [&mut Linear; 3],
        norms: Option<&HeadNorms>,
        heads: &Heads,
    ) -> Result<Option<FusedQkv>, LoadError> {
        let counts = [heads.cut.heads.len(), heads.cut.kv_heads.len()];
        let (norm, is_norm_last) = match norms {
            None => (None, false),
            Some(HeadNorms::PerHead(norms)) => (Norm::of_heads(norms, counts)?, false),
            Some(HeadNorms::Rotated(norms)) => (Norm::of_heads(norms, counts)?, true),
            Some(HeadNorms::AllHeads(_)) => (None, false),
        };
        if heads.head_dim != heads.value_dim || norms.is_some() != norm.is_some() {
            return Ok(None);
        }
        let Some(qkv) = Linear::fuse(projections)? else { return Ok(None) };
        let (num_heads, head_dim) = (counts.map(dim), dim(heads.head_dim));
        Ok(Some(FusedQkv { qkv, norm, is_norm_last, num_heads, head_dim }))
    }

    /// Computes queries, keys and values `[tokens, heads, 1, head_dim]` of rows `[tokens, hidden]` at `positions`
    /// `[tokens]`, queries and keys normalised and rotated.
    pub fn stock(&self, x: &Array, rope: &Rope, positions: &Array) -> [Array; 3] {
        let [queries, keys] = self.num_heads;
        let all = self.qkv.stock(x).reshape(&[x.dim(0), -1, 1, self.head_dim]);
        let normed = |x: Array| self.norm.as_ref().map_or(x.clone(), |norm| norm.stock(&x));
        let mut placed = all.slice_axis(1, 0, queries + keys);
        if self.is_norm_last {
            placed = normed(rope.stock(&placed, positions));
        } else {
            placed = rope.stock(&normed(placed), positions);
        }
        [
            placed.slice_axis(1, 0, queries),
            placed.slice_axis(1, queries, queries + keys),
            all.slice_axis(1, queries + keys, all.dim(1)),
        ]
    }
}
