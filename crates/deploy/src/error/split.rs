//! Why a split is impossible.

use jackalope_placement::{CheckpointError, PlacementRefusal, SplitKind};
use jackalope_protocol::{Backend, counted};
use thiserror::Error;

/// Why a split is impossible.
#[derive(Debug, Error)]
pub enum SplitError {
    /// The transport cannot carry a pipeline.
    #[error(
        "a pipeline cannot use {}, which {reason}\n\
         hint: pass `--backend tcp`, or `--split tensor`",
        .backend.name()
    )]
    Pipeline {
        /// The transport.
        backend: Backend,
        /// Reason why the transport cannot carry a pipeline.
        reason: &'static str,
    },
    /// The numbers are for another kind of split.
    #[error("`{flag}` cannot be combined with `--split {}`\nhint: leave one of them out", .kind.name())]
    Kind {
        /// The option with the numbers.
        flag: &'static str,
        /// The kind that is also required.
        kind: SplitKind,
    },
    /// There is not one number for each rank.
    #[error(
        "`{flag}` has {} for {}\nhint: give one number for each rank",
        counted(*num_numbers, "number"), counted(*num_ranks, "rank")
    )]
    NumRanks {
        /// The option with the numbers.
        flag: &'static str,
        /// Number of numbers that were given.
        num_numbers: usize,
        /// Number of ranks.
        num_ranks: usize,
    },
    /// A rank would hold nothing.
    #[error("`{flag}` has a zero\nhint: give each rank a positive number, or use fewer ranks")]
    Zero {
        /// The option with the numbers.
        flag: &'static str,
    },
    /// The model has another number of layers.
    #[error(
        "`--layers` adds up to {}, the model has {num_layers}\n\
         hint: give numbers that add up to {num_layers}",
        counted(*sum, "layer")
    )]
    NumLayers {
        /// Sum of the numbers.
        sum: u64,
        /// Number of layers of the model.
        num_layers: usize,
    },
    /// Layers that share a cache would be on different ranks.
    #[error(
        "`--layers` separates layers from those whose keys and values they read\n\
         hint: give the last {num_together} layers to rank 0"
    )]
    SharedCaches {
        /// Number of layers that must be on one rank.
        num_together: usize,
    },
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model has too few layers.
    #[error("cutting the model: {0}")]
    TooFewLayers(#[from] PlacementRefusal),
}
