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
         hint: {}",
        cuts_hint(cuts)
    )]
    SharedCaches {
        /// Layers before which the model can be cut, in order.
        cuts: Vec<usize>,
    },
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model has too few layers.
    #[error("cutting the model: {0}")]
    TooFewLayers(#[from] PlacementRefusal),
}

/// Says where a model can be cut: runs of neighbours as `1 to 18`.
fn cuts_hint(cuts: &[usize]) -> String {
    let runs = cuts.chunk_by(|layer, next| layer + 1 == *next).flat_map(|run| match run {
        [first, _, .., last] => vec![format!("{first} to {last}")],
        few => few.iter().map(ToString::to_string).collect(),
    });
    let runs: Vec<String> = runs.collect();
    let Some((last, others)) = runs.split_last() else {
        return "the layers of this model cannot be cut; pass `--split tensor`".to_owned();
    };
    let numbers =
        if others.is_empty() { last } else { &format!("{} or {last}", others.join(", ")) };
    format!("cut it after {numbers} layers; the last number of `--layers` is for the first layers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_that_separates_shared_caches_is_refused_with_the_cuts_that_do_not() {
        let refusal = |cuts: &[usize]| SplitError::SharedCaches { cuts: cuts.to_vec() }.to_string();
        let cuts: Vec<usize> = (1..=18).collect();
        assert!(refusal(&cuts).contains("hint: cut it after 1 to 18 layers;"));
        // DeepSeek V4.1.
        let found = refusal(&[1, 2, 8, 14, 20]);
        assert!(found.contains("hint: cut it after 1, 2, 8, 14 or 20 layers;"), "{found}");
        assert!(refusal(&[]).contains("--split tensor"));
    }
}
