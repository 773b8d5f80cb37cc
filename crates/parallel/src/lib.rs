//! What layers are built from: matrices, norms, rotations and heads, of which each rank holds its part.
//! Each knows how it is divided among the ranks, how its weights are stored, and how to compute itself with
//! our CPU kernels or with MLX's own operations.
//!
//! ```text
//!   weights ─▶ kernel (MLX primitives over our kernels) ─▶ linear, norm, head_matrix, … ─▶ the layers
//!   split ───▶ parallel (this rank, its group)  ──────────┘
//! ```

pub mod activation;
pub mod codes;
pub mod convolution;
pub mod cutoff;
pub mod fused_qkv;
pub mod group_norm;
pub mod head_matrix;
pub mod head_norms;
pub mod heads;
pub mod kernel;
pub mod linear;
pub mod ngram_hash;
pub mod norm;
pub mod output;
mod parallel;
pub mod rope;
pub mod wide_matrix;

pub use parallel::{Compute, GroupCell, Parallel, Sums};
