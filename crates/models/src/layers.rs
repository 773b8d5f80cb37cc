//! The layers that models are composed of. Each knows how it is divided among the ranks, how its
//! weights are stored, and how to compute itself with our CPU kernels or with MLX's own operations;
//! model files know none of this.

mod attention;
mod embedding;
mod kernel;
mod linear;
mod mlp;
mod norm;
mod residual;
mod rope;
mod stack;

pub(crate) use attention::{Attention, AttentionParts, Heads};
pub(crate) use embedding::{Embedding, Head, vocabulary};
pub(crate) use kernel::{dim, float};
pub(crate) use linear::{Bias, Linear};
pub(crate) use mlp::Mlp;
pub(crate) use norm::RmsNorm;
pub(crate) use residual::Residual;
pub(crate) use rope::{Rope, Ropes, RotationTable};
pub(crate) use stack::Stack;
