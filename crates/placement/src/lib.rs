//! Decides which machines compute a model and how much of it each of them holds. Pure, apart from
//! [`PlacementModel::read`]: it queries no machine and reads no tensor.
//!
//! Ranks hold a part of every layer (tensor parallel) or whole layers (pipeline parallel), cut as
//! `jackalope_spec` cuts them when the model is loaded.
//!
//! ```text
//!   checkpoint ─▶ model ─▶ dealing (bytes of each rank) ─▶ search (splits that fit)
//!                                └─▶ speed (what to expect) ─┘
//! ```

mod checkpoint;
mod dealing;
mod fewer;
mod model;
pub mod reach;
mod refusal;
mod search;
mod speed;
#[cfg(test)]
mod tests;

use std::fmt;

use jackalope_protocol::split::Split;
use jackalope_protocol::{Device, counted};

pub use checkpoint::CheckpointError;
pub use dealing::{RankNeed, needs};
pub use fewer::{FewerMachines, faster_with_fewer};
pub use jackalope_spec::TensorRole;
pub use model::PlacementModel;
pub use refusal::{NodeShortage, PlacementRefusal};
pub use speed::{BATCH_SEQUENCES, LinkKind, LinkSource, LinkSpeed, Links, Speed};

use jackalope_protocol::machine::NodeFacts;

/// Part of a machine's free memory that is left to the system and to other programs.
pub const RESERVE_BYTES: u64 = 512 << 20;

/// Context length to plan for if none is requested; enough for a conversation.
pub const DEFAULT_CONTEXT_TOKENS: u32 = 8192;

/// The resources that a machine offers to one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeOffer {
    /// Name of the machine, for messages.
    pub name: String,
    /// Memory that the rank may use, in bytes.
    pub usable_bytes: u64,
    /// Memory bandwidth, if known.
    pub memory_bytes_per_s: Option<u64>,
    /// Device on which the rank computes.
    pub device: Device,
}

impl NodeOffer {
    /// Creates an offer of the free memory less [`RESERVE_BYTES`], on the CPU.
    pub fn new(name: impl Into<String>, free_bytes: u64) -> NodeOffer {
        NodeOffer {
            name: name.into(),
            usable_bytes: free_bytes.saturating_sub(RESERVE_BYTES),
            memory_bytes_per_s: None,
            device: Device::Cpu,
        }
    }

    /// Creates the offer of one rank: what the machine reports, divided among its `num_ranks`
    /// ranks.
    pub fn from_facts(name: impl Into<String>, facts: &NodeFacts, num_ranks: u64) -> NodeOffer {
        let num_ranks = num_ranks.max(1);
        let is_apple = facts.os.starts_with("macOS") && facts.arch == "aarch64";
        let mut offer = NodeOffer::new(name, facts.free_bytes);
        offer.usable_bytes /= num_ranks;
        offer.memory_bytes_per_s = facts.memory_bytes_per_s.map(|speed| speed / num_ranks);
        offer.device = if is_apple { Device::Gpu } else { Device::Cpu };
        offer
    }
}

/// The constraints that the user sets on a placement.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PlacementConstraints {
    /// Longest context; if absent, the model's own, but at most [`DEFAULT_CONTEXT_TOKENS`].
    pub context_tokens: Option<u32>,
    /// Number of machines; if absent, the fewest that fit.
    pub num_machines: Option<usize>,
    /// How to divide the model; if absent, the kind that is expected to answer sooner.
    pub split: Option<SplitKind>,
}

impl PlacementConstraints {
    /// Returns the numbers of machines to try, ascending.
    fn sizes(self, num_offers: usize) -> impl Iterator<Item = usize> {
        let sizes = match self.num_machines {
            Some(requested) => requested.min(num_offers)..=requested.min(num_offers),
            None => 1..=num_offers,
        };
        sizes.filter(|&size| 0 < size)
    }
}

/// How a model is divided among ranks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SplitKind {
    /// Each rank holds a part of every layer.
    Tensor,
    /// Each rank holds whole layers.
    Pipeline,
}

impl SplitKind {
    /// Both kinds; the first one is taken if no speeds are known.
    const ALL: [SplitKind; 2] = [SplitKind::Tensor, SplitKind::Pipeline];

    /// Returns the kind of a split.
    pub fn of(split: &Split) -> SplitKind {
        match split {
            Split::Tensor(_) => SplitKind::Tensor,
            Split::Pipeline(_) => SplitKind::Pipeline,
        }
    }

    /// Returns the kind's name, as users type it on a command line.
    pub fn name(self) -> &'static str {
        match self {
            SplitKind::Tensor => "tensor",
            SplitKind::Pipeline => "pipeline",
        }
    }
}

/// A placement that fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Context length that the placement is made for.
    pub context_tokens: u32,
    /// Longest context that the same split could hold.
    pub context_tokens_max: u32,
    /// How the model is divided among the ranks.
    pub split: Split,
    /// The ranks, in the order of the hostfile.
    pub ranks: Vec<RankPlan>,
    /// Expected speed, if the memory bandwidth of every machine is known.
    pub speed: Option<Speed>,
    /// Why this number of machines was chosen.
    pub reason: Reason,
    /// Every number of machines and kind of split that was considered, including the chosen one.
    pub options: Vec<PlacementOption>,
}

/// One rank of a placement.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RankPlan {
    /// Position of the rank's machine among the offers.
    pub offer_idx: usize,
    /// Name of the rank's machine.
    pub name: String,
    /// The rank's number in the split: its share of each layer, or its number of layers.
    pub number: u32,
    /// Memory that the rank needs.
    pub need: RankNeed,
    /// Memory that the rank may use, in bytes.
    pub usable_bytes: u64,
}

/// Why a number of machines was chosen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// Fewer machines do not hold the model.
    FewestThatFit {
        /// Number of machines used.
        num_machines: usize,
        /// Number of machines offered.
        num_offers: usize,
    },
    /// The user asked for this number.
    Requested {
        /// Number of machines used.
        num_machines: usize,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Reason::FewestThatFit { num_machines: 1, .. } => f.write_str("one machine holds it"),
            Reason::FewestThatFit { num_machines, num_offers } if num_machines == num_offers => {
                write!(f, "fewer than {num_machines} machines do not hold it")
            }
            Reason::FewestThatFit { num_machines, num_offers } => {
                write!(f, "{num_machines} of {num_offers} machines are the fewest that hold it")
            }
            Reason::Requested { num_machines } => {
                write!(f, "the command asks for {}", counted(num_machines, "machine"))
            }
        }
    }
}

/// One combination of a number of machines and a kind of split.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementOption {
    /// Indexes of the offers of the machines with the most memory, in the order of the hostfile.
    pub offer_idxs: Vec<usize>,
    /// How the model is divided among these machines.
    pub split: Split,
    /// Memory that the rank on each machine needs, in the order of `offer_idxs`.
    pub needs: Vec<RankNeed>,
    /// Memory in bytes that the machines lack together; 0 if the model fits.
    pub missing_bytes: u64,
    /// Expected speed, if the memory bandwidth of every machine is known.
    pub speed: Option<Speed>,
}

impl PlacementOption {
    /// Returns true if no machine needs more memory than it may use.
    pub fn fits(&self) -> bool {
        self.missing_bytes == 0
    }
}

/// Formats a size for people, in the unit that fits.
pub fn size(bytes: u64) -> String {
    const KIB: f64 = 1024.0;
    match bytes as f64 / (KIB * KIB) {
        mib if mib < 0.1 => format!("{:.1} KiB", mib * KIB),
        mib if mib < KIB => format!("{mib:.1} MiB"),
        mib => format!("{:.2} GiB", mib / KIB),
    }
}

/// Places a model.
///
/// Uses the fewest machines that hold the model at the requested context, prefers those with the
/// most memory, and keeps the order of `offers`. Of the kinds of split that fit on them, it takes
/// the one that is expected to answer a usual request sooner, or [`SplitKind::Tensor`] if no speeds
/// are known. Shares are proportional to usable memory. If that would give a rank more than it may
/// use, they are proportional to the memory that is left beside the parts that every rank holds.
/// Pipeline stages are cut so that the fullest machine keeps the most memory free.
///
/// If more machines are requested than are offered, all of them are used.
///
/// # Errors
/// [`PlacementRefusal`] if nothing fits.
///
/// # Panics
/// If `links` joins fewer machines than are offered.
pub fn place(
    model: &PlacementModel,
    offers: &[NodeOffer],
    links: &Links,
    constraints: PlacementConstraints,
) -> Result<Placement, PlacementRefusal> {
    let context_tokens = context_of(model, constraints);
    let sizes = constraints.sizes(offers.len());
    let candidates = Candidates { model, offers, links, context_tokens };
    let options =
        sizes.flat_map(|size| kinds(size, constraints.split).map(move |kind| (size, kind)));
    let options: Vec<PlacementOption> =
        options.filter_map(|(size, kind)| candidates.best(size, kind)).collect();
    let Some(chosen) = choose(&options) else {
        return Err(refusal::refuse(&candidates, &options, constraints));
    };
    let num_machines = chosen.offer_idxs.len();
    let reason = match constraints.num_machines {
        Some(_) => Reason::Requested { num_machines },
        None => Reason::FewestThatFit { num_machines, num_offers: offers.len() },
    };
    let ranks = chosen.offer_idxs.iter().zip(chosen.split.numbers()).zip(&chosen.needs);
    let ranks = ranks.map(|((&offer_idx, &number), need)| RankPlan {
        offer_idx,
        name: offers[offer_idx].name.clone(),
        number,
        need: *need,
        usable_bytes: offers[offer_idx].usable_bytes,
    });
    let caps = caps(offers, &chosen.offer_idxs);
    let fits = |tokens| search::fits(&dealing::needs(model, &chosen.split, tokens), &caps);
    Ok(Placement {
        context_tokens,
        context_tokens_max: refusal::longest(model, fits)
            .unwrap_or(context_tokens)
            .max(context_tokens),
        split: chosen.split.clone(),
        ranks: ranks.collect(),
        speed: chosen.speed,
        reason,
        options,
    })
}

fn context_of(model: &PlacementModel, constraints: PlacementConstraints) -> u32 {
    let tokens = constraints.context_tokens.unwrap_or(DEFAULT_CONTEXT_TOKENS);
    tokens.clamp(1, model.context_tokens.max(1))
}

/// Returns the kinds of split to try on `size` machines. A single machine holds the whole model
/// with either kind.
fn kinds(size: usize, requested: Option<SplitKind>) -> impl Iterator<Item = SplitKind> {
    let is_tried = move |kind: &SplitKind| match requested {
        Some(requested) if 1 < size => *kind == requested,
        _ => 1 < size || *kind == SplitKind::Tensor,
    };
    SplitKind::ALL.into_iter().filter(is_tried)
}

/// Returns the option with the fewest machines that fits; among several, the one that is expected
/// to answer sooner.
fn choose(options: &[PlacementOption]) -> Option<&PlacementOption> {
    let fitting = || options.iter().filter(|option| option.fits());
    let fewest = fitting().map(|option| option.offer_idxs.len()).min()?;
    let seconds =
        |option: &PlacementOption| option.speed.map_or(f64::INFINITY, |it| it.usual_request_s());
    let fitting = fitting().filter(|option| option.offer_idxs.len() == fewest);
    fitting.min_by(|a, b| seconds(a).total_cmp(&seconds(b)))
}

/// A model, and the machines on which it could run.
struct Candidates<'a> {
    model: &'a PlacementModel,
    offers: &'a [NodeOffer],
    links: &'a Links,
    context_tokens: u32,
}

impl Candidates<'_> {
    /// Returns the best option of `size` machines and one kind of split; `None` if there are too
    /// many machines for it.
    fn best(&self, size: usize, kind: SplitKind) -> Option<PlacementOption> {
        self.on(largest(self.offers, size), kind)
    }

    /// Returns the best option of these machines and one kind of split; `None` if there are too
    /// many machines for it.
    fn on(&self, offer_idxs: Vec<usize>, kind: SplitKind) -> Option<PlacementOption> {
        let Candidates { model, offers, links, context_tokens } = *self;
        let caps = caps(offers, &offer_idxs);
        let (split, needs) = search::best(model, kind, &caps, context_tokens)?;
        let nodes: Vec<&NodeOffer> = offer_idxs.iter().map(|&idx| &offers[idx]).collect();
        let links = links.among(&offer_idxs);
        let speed = speed::predict(model, &split, &nodes, &links, context_tokens);
        let missing = needs.iter().zip(&caps).map(|(need, cap)| need.total().saturating_sub(*cap));
        let missing_bytes = missing.sum();
        Some(PlacementOption { offer_idxs, split, needs, missing_bytes, speed })
    }
}

fn caps(offers: &[NodeOffer], offer_idxs: &[usize]) -> Vec<u64> {
    offer_idxs.iter().map(|&idx| offers[idx].usable_bytes).collect()
}

/// Returns the indexes of the `size` machines with the most memory, ascending. In a tie the earlier
/// machine wins.
fn largest(offers: &[NodeOffer], size: usize) -> Vec<usize> {
    let mut idxs: Vec<usize> = (0..offers.len()).collect();
    idxs.sort_by_key(|&idx| std::cmp::Reverse(offers[idx].usable_bytes));
    idxs.truncate(size);
    idxs.sort_unstable();
    idxs
}
