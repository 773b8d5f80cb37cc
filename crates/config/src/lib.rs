//! Reads values of a model's `config.json`: fields with their bounds, and what it says of rotations. Each
//! error names the field and the value found.
//!
//! It knows no families of models: which fields there are, and what a layer is, is `jackalope-spec`'s.

pub mod error;
pub mod fields;
pub mod rope;
