//! CPU kernels on plain slices, for the operations that stock MLX computes in scalar code on a
//! machine without a GPU.
//!
//! Every kernel is *batch-invariant*: the bits of a result depend only on its row (token, query)
//! and on the weights or keys that the row uses, never on the other rows, on the chunks of a
//! prompt, or on the number of threads. Each dot product therefore has one fixed order of
//! operations (see `dot`, `attention`, and `integer` for 16-bit activations with packed weights),
//! and work is only divided between results, or at fixed positions (the spans of `attention`). The
//! bits may differ between instruction sets (fused multiply-add).
//!
//! For few rows, the packed weights are streamed from memory (`integer`, `dense`, `float8`). For
//! many rows, weights are unpacked into tiles once for all of them (`integer`, `panel`).
//!
//! Callers must pass valid shapes: a wrong length is a bug and panics with the caller's location.
//! This crate knows nothing about MLX, models or files.

mod activation;
mod attention;
mod block_choice;
mod codes;
mod dense;
mod divisible;
mod dot;
mod embedding;
mod experts;
mod float8;
mod heads;
mod integer;
pub mod logits;
mod machine;
mod matmul;
mod norm;
mod panel;
mod pools;
mod recurrence;
mod rotation;
mod router;
mod rowwise;
mod selection;
mod squares;
mod streams;
mod terms;

pub use jackalope_simd::{
    DenseMatrix, Elements, ElementsMut, Float, Floats, InstructionSet, InstructionSetError,
    KernelTime, Matrix, ProfileSpan, QuantFormat, QuantMatrix, QuantMode, Scales, Threads,
    advise_huge_pages,
};

pub use activation::{ActivationFunction, activate, clamp, gated, scale_logits, swiglu};
pub use attention::{
    AttentionConfig, KEY_TILE, KeyPlace, KvPage, SequenceKv, attention, key_place,
};
pub use block_choice::BlockQueries;
pub use codes::CodeFormat;
pub use divisible::divisible_matmul;
pub use embedding::{embedding, quantized_embedding};
pub use experts::{
    ExpertRows, add_expert_bias, add_scaled_rows, add_weighted_biases, clamp_gates,
    divisible_expert_matmul, expert_matmul, scale_rows,
};
pub use heads::{HeadMatrices, HeadResults, head_matmul, head_matmul_untransposed, heads_apart};
pub use machine::{Limits, limits};
pub use matmul::{Product, TermColumns, matmul, matmul_each, quantized_matmul};
pub use norm::{NormParameters, normalize, rms_norm};
pub use pools::PoolRule;
pub use recurrence::{
    ConvBiases, ConvKernels, DecayWeights, OutputGates, RecurrenceInputs, RecurrenceRule,
    RecurrenceSizes, RecurrenceWeights, SequenceState, ShortConvInputs, ShortConvWeights,
    gated_norm, recurrence, short_convolution, sigmoid_gate, silu_gate,
};
pub use rotation::{Angles, Rotation, RotationTable, place_heads};
pub use router::{ExpertGroups, RouterConfig, Scores, route, sigmoid, softplus};
pub use rowwise::{Terms, add_bias, add_terms};
pub use selection::{
    ChosenPositions, IndexBlocks, IndexQueries, choose_positions, choose_with_blocks,
    gather_joined, gather_keys,
};
pub use squares::{DividedNorm, SQUARE_SUMS, norm_divided, square_sums, square_total};
pub use streams::{StreamWeights, WeightRule};
pub use terms::GRID;
