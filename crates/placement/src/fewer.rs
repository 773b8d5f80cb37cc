//! Finds a smaller number of machines that is expected to answer sooner than a placement.

use std::fmt;

use jackalope_protocol::counted;

use super::model::PlacementModel;
use super::speed::{Links, USUAL_ANSWER_TOKENS, USUAL_PROMPT_TOKENS};
use super::{
    Candidates, NodeOffer, Placement, PlacementConstraints, PlacementOption, SplitKind, kinds,
};

/// An option with fewer machines than a placement, which holds the model and is expected to answer
/// a usual request sooner.
#[derive(Clone, Debug, PartialEq)]
pub struct FewerMachines {
    /// The option.
    pub option: PlacementOption,
    /// Names of its machines, in the order of the hostfile.
    pub names: Vec<String>,
    /// Expected time of a usual request with this option, in seconds.
    pub usual_request_s: f64,
    /// Number of machines of the placement.
    pub placed_machines: usize,
    /// Expected time of a usual request with the placement, in seconds.
    pub placed_request_s: f64,
}

impl FewerMachines {
    /// Returns what the user can do.
    pub fn hint(&self) -> String {
        format!("leave out the other machines: `--hosts {}`", self.names.join(","))
    }
}

impl fmt::Display for FewerMachines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FewerMachines { names, usual_request_s, placed_machines, placed_request_s, .. } = self;
        let (names, verb) = match names.as_slice() {
            [name] => (format!("{name} alone"), "is"),
            names => (names.join(", "), "are"),
        };
        write!(
            f,
            "{names} {verb} expected to be faster than these {}: {} instead of {} for a prompt of \
             {USUAL_PROMPT_TOKENS} tokens and an answer of {USUAL_ANSWER_TOKENS}",
            counted(placed_machines, "machine"),
            seconds(*usual_request_s),
            seconds(*placed_request_s),
        )
    }
}

/// Formats a duration for people, in the unit that fits.
fn seconds(seconds: f64) -> String {
    if seconds < 0.1 { format!("{:.1} ms", 1e3 * seconds) } else { format!("{seconds:.1} s") }
}

/// Returns the option with fewer machines that holds the model and is expected to answer a usual
/// request soonest; `None` if the placement is expected to answer as soon, or if speeds are unknown.
///
/// The options are each machine alone, and those that [`place`](super::place) would consider for
/// fewer machines under the same constraints.
///
/// # Panics
/// If `links` joins fewer machines than are offered.
pub fn faster_with_fewer(
    model: &PlacementModel,
    offers: &[NodeOffer],
    links: &Links,
    constraints: PlacementConstraints,
    placement: &Placement,
) -> Option<FewerMachines> {
    let placed_request_s = placement.speed?.usual_request_s();
    let placed_machines = placement.ranks.len();
    if placed_machines < 2 {
        return None;
    }
    let candidates = Candidates { model, offers, links, context_tokens: placement.context_tokens };
    let alone = (0..offers.len()).filter_map(|idx| candidates.on(vec![idx], SplitKind::Tensor));
    let several = (2..placed_machines)
        .flat_map(|size| kinds(size, constraints.split).map(move |kind| (size, kind)));
    let several = several.filter_map(|(size, kind)| candidates.best(size, kind));
    let timed = alone.chain(several).filter(PlacementOption::fits).filter_map(|option| {
        let usual_request_s = option.speed?.usual_request_s();
        Some((usual_request_s, option))
    });
    let (usual_request_s, option) = timed.min_by(|a, b| a.0.total_cmp(&b.0))?;
    if placed_request_s <= usual_request_s {
        return None;
    }
    let names = option.offer_idxs.iter().map(|&idx| offers[idx].name.clone()).collect();
    Some(FewerMachines { option, names, usual_request_s, placed_machines, placed_request_s })
}
