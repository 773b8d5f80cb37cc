//! Tests of models: comparison with mlx-lm, metamorphic tests, and damaged checkpoints.
#![expect(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod column_originals;
mod conversions;
mod decoding;
mod embedding;
mod every_family;
mod golden;
mod loading;
mod metamorphic;
mod nodes;
mod originals;
mod quantized_originals;
mod ranks;
mod recipe;
mod run;
mod windows;
