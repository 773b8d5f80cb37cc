//! The kernels against MLX's own values, against double precision, and against themselves in other company.

mod attention;
mod divisible;
mod embedding;
mod experts;
mod fixtures;
mod heads;
mod matmul;
mod recurrence;
mod rowwise;
mod support;
