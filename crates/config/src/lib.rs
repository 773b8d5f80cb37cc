//! Reads values of a model's `config.json`: fields with their bounds, rotations and quantisation. Each
//! error names the field and the value found. It also knows how checkpoints name tensors.
//!
//! It knows no layers: which fields there are, and what a layer is, is `jackalope-spec`'s.

pub mod error;
pub mod fields;
pub mod names;
pub mod normal;
pub mod original;
pub mod quantization;
pub mod rope;
pub mod rope_parameters;
