//! The memory that caches will take on ranks, computed before the ranks have loaded.

use std::path::Path;

use jackalope_placement::{CheckpointError, PlacementModel};
use jackalope_protocol::CacheCost;
use jackalope_protocol::split::Split;
use tracing::{debug, info, warn};

/// Memory that caches take on the ranks of any split, computed from the description of a
/// checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedCosts {
    /// `None` if the coordinator has no weights to read.
    model: Option<PlacementModel>,
}

impl ExpectedCosts {
    /// Reads the description of the checkpoint in `dir`.
    pub(crate) fn read(dir: &Path) -> ExpectedCosts {
        let model = PlacementModel::read(dir);
        if let Err(reason) = &model {
            let what = "the memory that ranks need for caches is not compared";
            match reason {
                CheckpointError::NoWeights { .. } => warn!(%reason, "{what}"),
                // Loading the model fails for this reason, and reports it.
                _ => debug!(%reason, "{what}"),
            }
        }
        let model = model.ok();
        for unused in model.iter().flat_map(|model| &model.layout.unused) {
            info!("{}", unused.describe(jackalope_placement::size));
        }
        ExpectedCosts { model }
    }

    /// Returns the memory that caches take on each rank of a split, by rank; empty if that is
    /// unknown.
    pub(crate) fn of(&self, split: &Split) -> Vec<CacheCost> {
        let shards = self.model.as_ref().and_then(|model| model.layout.shards(split));
        shards.unwrap_or_default().into_iter().map(|shard| shard.cache).collect()
    }
}
