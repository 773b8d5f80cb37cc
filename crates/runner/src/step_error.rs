//! Why a step ends early, and which peers are at fault.

use jackalope_transport::{AbsenceReason, TransportError};
use thiserror::Error;

/// Why a step ended early.
#[derive(Debug, Error)]
pub(crate) enum StepError {
    /// A peer or the link failed; the shard is intact.
    #[error("{message}")]
    Group {
        message: String,
        /// The ranks that did not respond.
        peers: Vec<u32>,
    },
    /// The device failed.
    #[error("computing failed: {0}")]
    Device(String),
    /// The plan contradicts the state of this rank: coordinator and rank are out of step.
    #[error("the plan does not fit this rank: {0}")]
    Plan(String),
}

/// Returns the peers whose connection is missing, closed or silent. Peers that only wait for
/// others, or that reported an error of their own, are not included.
pub(crate) fn lost_peers(err: &TransportError) -> Vec<u32> {
    use AbsenceReason::{Closed, NeverConnected, NoConnection, Silent, Unreachable};
    let ranks: Vec<usize> = match err.first_cause() {
        TransportError::PeerLost { rank, .. } => vec![*rank],
        TransportError::Deadline { waiting, .. } => waiting.iter().map(|(rank, _)| *rank).collect(),
        TransportError::JoinTimeout { absent, .. } => {
            let is_lost = |reason| {
                matches!(reason, Closed | NeverConnected | NoConnection | Silent | Unreachable(_))
            };
            let lost = absent.ranks.iter().filter(|absence| is_lost(absence.reason));
            lost.map(|absence| absence.rank).collect()
        }
        _ => Vec::new(),
    };
    ranks.into_iter().filter_map(|rank| u32::try_from(rank).ok()).collect()
}
