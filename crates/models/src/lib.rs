//! Computation of the models: their layers and networks.
//!
//! What a model consists of is read from its description (`jackalope_spec`), its tensors from a
//! checkpoint (`jackalope_weights`), and what earlier positions left behind from a cache
//! (`jackalope_cache`). The layers decide how weights are divided among the ranks, how they are
//! quantised, and whether our CPU kernels or MLX's own operations compute them. All collectives are inside layers: the sum after a row-parallel
//! product, and the gathering of the logits; in a pipeline, also the activations that the layers of
//! one rank send to those of the next.
//!
//! ```text
//!   weights ─▶ layers ─▶ arch ─▶ model ◀─ the runner
//!   split ──────┘ caches ─┘ step ─┘
//! ```

mod arch;
mod embed;
mod layers;
mod model;
mod step;

pub use jackalope_protocol::split;
pub use jackalope_protocol::split::Split;

pub use embed::Pool;
pub use jackalope_cache::SequenceCache;
pub use jackalope_parallel::{Compute, GroupCell, Parallel, Sums};
pub use jackalope_weights::{LoadError, LoadProgress};
pub use model::{Batch, Model, ModelFacts};
pub use step::Span;
