//! The kernels against MLX's own values, against double precision, and against themselves in other company.

mod attention;
mod block_choice;
mod bounds;
mod codes;
mod divisible;
mod embedding;
mod experts;
mod fixtures;
mod heads;
mod logits;
mod matmul;
mod pools;
mod recurrence;
mod router;
mod rowwise;
mod selection;
mod squares;
mod support;
