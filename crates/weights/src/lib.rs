//! Weights of a model: a checkpoint's files and the headers of its tensors, and the part of each tensor
//! that a rank holds, loaded into arrays.
//!
//! ```text
//!   config.json, model*.safetensors ─▶ checkpoint ─▶ weights ─▶ the layers
//!                                          (pure)
//! ```

pub mod checkpoint;
mod error;
mod transposing;
mod weights;

pub use error::LoadError;
pub use weights::{LoadCounters, LoadProgress, Loader, Part, Weights};
