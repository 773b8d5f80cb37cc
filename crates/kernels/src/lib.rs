//! CPU kernels on plain slices: the mathematics that stock MLX does in scalar code on a machine without a GPU.
//!
//! Every kernel is *batch-invariant*: the bits of a result depend only on the row (token, query) it was computed
//! for and on the weights or keys it meets, never on the other rows, on how a prompt was cut into chunks, or on the
//! number of threads. Each dot product therefore has one fixed order of operations (see `dot`, `attention`, and
//! `integer` for 16-bit activations with packed weights), and work is only ever split between results, or in places
//! that are always the same (the spans of `attention`). Between instruction sets the bits may differ (fused
//! multiply-add).
//!
//! Few rows stream their weights from memory as they lie there (`integer`, `dense`, `float8`); many rows meet tiles that were
//! unpacked for all of them (`integer`, `panel`).
//!
//! Shapes are the caller's promise: a wrong length is a bug and panics at the caller's line. Nothing here knows of
//! MLX, models or files.

mod attention;
mod dense;
mod divisible;
mod dot;
mod elements;
mod embedding;
mod float8;
mod floats;
mod gather;
mod integer;
pub mod logits;
mod machine;
mod matmul;
mod memory;
mod panel;
mod profile;
mod quant;
mod rowwise;
mod simd;
mod threads;
mod unpack;

pub use attention::{
    AttentionConfig, KEY_TILE, KeyPlace, KvPage, SequenceKv, attention, key_place,
};
pub use divisible::{GRID, divisible_matmul};
pub use elements::{Elements, ElementsMut, Float};
pub use embedding::{embedding, quantized_embedding};
pub use floats::Floats;
pub use gather::{Choice, gathered_matmul, gathered_quantized_matmul};
pub use machine::{Limits, limits};
pub use matmul::{DenseMatrix, Matrix, Product, matmul, matmul_each, quantized_matmul};
pub use memory::{advise_huge_pages, move_into_huge_pages};
pub use profile::{KernelTime, Span};
pub use quant::{QuantFormat, QuantMatrix, QuantMode, Scales};
pub use rowwise::{HeadNorm, Rotation, Terms, add_bias, add_terms, place_heads, rms_norm, swiglu};
pub use simd::{InstructionSet, InstructionSetError};
pub use threads::Threads;
