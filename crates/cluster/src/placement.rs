//! Which machines compute a model, and how much of it each of them holds. Pure, apart from
//! [`ModelFacts::read`]: no machine is asked and no tensor is read.
//!
//! Ranks hold a part of every layer (tensor parallel) or whole layers (pipeline parallel), cut as
//! [`jackalope_protocol::split`] cuts them when the model is loaded.
//!
//! ```text
//!   checkpoint ─▶ model ─▶ dealing (bytes of each rank) ─▶ search (splits that fit)
//!                                └─▶ speed (what to expect) ─┘
//! ```

mod checkpoint;
mod dealing;
mod model;
pub mod reach;
mod search;
mod speed;
#[cfg(test)]
mod tests;

use std::fmt;

use jackalope_protocol::split::Split;
use jackalope_protocol::{CACHE_GRANULE_TOKENS, Device};
use thiserror::Error;

pub use checkpoint::CheckpointError;
pub use dealing::{RankNeed, needs};
pub use model::{KvShape, LayerBytes, ModelFacts, PartCut, PartKind, Quantization, WeightPart};
pub use speed::{Link, LinkKind, LinkSource, Links, Speed};

use crate::facts::NodeFacts;

/// Left to the system and to other programs of a machine, of what is free.
pub const RESERVE_BYTES: u64 = 512 << 20;

/// Context that is planned for if nothing is wished: a conversation's.
pub const DEFAULT_CONTEXT_TOKENS: u32 = 8192;

/// What a machine offers to one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeOffer {
    /// What people call it.
    pub name: String,
    /// Memory that the rank may take.
    pub usable_bytes: u64,
    /// Speed of the memory, where it is known.
    pub memory_bytes_per_s: Option<u64>,
    /// Where it computes.
    pub device: Device,
}

impl NodeOffer {
    /// Free memory without [`RESERVE_BYTES`].
    pub fn new(name: impl Into<String>, free_bytes: u64) -> NodeOffer {
        NodeOffer {
            name: name.into(),
            usable_bytes: free_bytes.saturating_sub(RESERVE_BYTES),
            memory_bytes_per_s: None,
            device: Device::Cpu,
        }
    }

    /// What a machine says of itself, divided among the ranks that run there.
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

/// What the user decides.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Wishes {
    /// Longest context; [`DEFAULT_CONTEXT_TOKENS`] at most if it is not said.
    pub context_tokens: Option<u32>,
    /// Number of machines; the fewest that fit if it is not said.
    pub num_machines: Option<usize>,
    /// How to divide the model; whatever is expected to answer sooner if it is not said.
    pub split: Option<SplitKind>,
}

/// What ranks hold of a model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SplitKind {
    /// A part of every layer.
    Tensor,
    /// Whole layers.
    Pipeline,
}

impl SplitKind {
    /// Both, the one first that is taken if nothing is known of speeds.
    const ALL: [SplitKind; 2] = [SplitKind::Tensor, SplitKind::Pipeline];

    /// The kind of a split.
    pub fn of(split: &Split) -> SplitKind {
        match split {
            Split::Tensor(_) => SplitKind::Tensor,
            Split::Pipeline(_) => SplitKind::Pipeline,
        }
    }

    /// The word people type.
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
    /// The context it is made for.
    pub context_tokens: u32,
    /// The longest context that the same split could hold.
    pub context_tokens_max: u32,
    /// What each rank holds.
    pub split: Split,
    /// In the order of the hostfile.
    pub ranks: Vec<RankPlan>,
    /// What to expect of it, if the speed of every machine's memory is known.
    pub speed: Option<Speed>,
    /// Why these machines.
    pub reason: Reason,
    /// Every number of machines and kind of split, the chosen one among them.
    pub options: Vec<PlacementOption>,
}

/// One rank of a placement.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RankPlan {
    /// The position of its machine among the offers.
    pub offer_idx: usize,
    /// Its machine.
    pub name: String,
    /// Its number in the split: a share, or layers.
    pub number: u32,
    /// The memory it takes.
    pub need: RankNeed,
    /// The memory it may take.
    pub usable_bytes: u64,
}

/// Why a number of machines was chosen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// Fewer do not hold the model.
    FewestThatFit {
        /// Machines taken.
        num_machines: usize,
        /// Machines offered.
        num_offers: usize,
    },
    /// The user wished it.
    Wished {
        /// Machines taken.
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
            Reason::Wished { num_machines: 1 } => f.write_str("one machine was wished"),
            Reason::Wished { num_machines } => write!(f, "{num_machines} machines were wished"),
        }
    }
}

/// One number of machines and one kind of split.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementOption {
    /// The machines with the most memory, in the order of the hostfile.
    pub offer_idxs: Vec<usize>,
    /// What each of them holds.
    pub split: Split,
    /// The memory each takes.
    pub needs: Vec<RankNeed>,
    /// What they lack together; 0 if it fits.
    pub missing_bytes: u64,
    /// What to expect, if the speed of every machine's memory is known.
    pub speed: Option<Speed>,
}

impl PlacementOption {
    /// True if no machine takes more than it may.
    pub fn fits(&self) -> bool {
        self.missing_bytes == 0
    }
}

/// A model that the machines do not hold.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub struct Refusal {
    /// The context that was wished.
    pub context_tokens: u32,
    /// Each machine of the best attempt.
    pub nodes: Vec<NodeShortage>,
    /// What they lack together.
    pub missing_bytes: u64,
    /// The longest context that would fit; none if not even the shortest does.
    pub context_tokens_max: Option<u32>,
    /// The model's layers, if a pipeline was wished over more machines than these.
    pub too_few_layers: Option<usize>,
}

/// What a machine lacks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeShortage {
    /// The machine.
    pub name: String,
    /// What its part of the model takes.
    pub needed_bytes: u64,
    /// What it may take.
    pub usable_bytes: u64,
}

impl NodeShortage {
    /// What it lacks; 0 if its part fits.
    pub fn missing_bytes(&self) -> u64 {
        self.needed_bytes.saturating_sub(self.usable_bytes)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { context_tokens, nodes, missing_bytes, .. } = self;
        if let Some(num_layers) = self.too_few_layers {
            return write!(
                f,
                "more machines than layers, of which there are {num_layers}\n\
                 hint: use at most {num_layers} of them, or `--split tensor`"
            );
        }
        if nodes.is_empty() {
            return f.write_str("there is no machine to place the model on\nhint: name one");
        }
        let missing = size(*missing_bytes);
        write!(f, "a context of {context_tokens} tokens does not fit: {missing} are missing")?;
        for node in nodes.iter().filter(|node| 0 < node.missing_bytes()) {
            let NodeShortage { name, needed_bytes, usable_bytes } = node;
            let (needed, usable) = (size(*needed_bytes), size(*usable_bytes));
            let missing = size(node.missing_bytes());
            write!(f, "\n  {name}: needs {needed}, may take {usable}, {missing} are missing")?;
        }
        match self.context_tokens_max {
            Some(tokens) => write!(f, "\nhint: pass --context {tokens}, or add a machine"),
            None => f.write_str(
                "\nhint: no context is short enough: add machines, free memory, or take a \
                 checkpoint with fewer bits",
            ),
        }
    }
}

/// Formats a size as people read it, in the unit that fits.
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
/// The fewest machines that hold the model at the wished context are taken, those with the most
/// memory first, and keep the order of `offers`. Of the kinds of split that fit then, the one is taken
/// that is expected to answer a usual request sooner; parts of every layer if nothing is known of
/// speeds. Shares are proportional to usable memory, unless somebody would then have more than it may
/// take; then they follow what is left beside the parts that every rank holds. Stages leave the fullest
/// machine the most.
///
/// A wished number of machines beyond those offered means all of them.
///
/// # Errors
/// [`Refusal`] if nothing fits.
///
/// # Panics
/// If `links` joins fewer machines than are offered.
pub fn place(
    model: &ModelFacts,
    offers: &[NodeOffer],
    links: &Links,
    wishes: Wishes,
) -> Result<Placement, Refusal> {
    let context_tokens = context_of(model, wishes);
    let sizes = match wishes.num_machines {
        Some(wished) => wished.min(offers.len())..=wished.min(offers.len()),
        None => 1..=offers.len(),
    };
    let sizes = sizes.filter(|&size| 0 < size);
    let options = sizes.flat_map(|size| kinds(size, wishes.split).map(move |kind| (size, kind)));
    let options: Vec<PlacementOption> = options
        .filter_map(|wished| option(model, (offers, links), wished, context_tokens))
        .collect();
    let Some(chosen) = choose(&options) else {
        let largest = options.last().map(|option| option.offer_idxs.len());
        let best = options.iter().filter(|option| Some(option.offer_idxs.len()) == largest);
        let best = best.min_by_key(|option| option.missing_bytes);
        return Err(refuse(model, offers, best, context_tokens));
    };
    let num_machines = chosen.offer_idxs.len();
    let reason = match wishes.num_machines {
        Some(_) => Reason::Wished { num_machines },
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
        context_tokens_max: longest(model, fits).unwrap_or(context_tokens).max(context_tokens),
        split: chosen.split.clone(),
        ranks: ranks.collect(),
        speed: chosen.speed,
        reason,
        options,
    })
}

fn context_of(model: &ModelFacts, wishes: Wishes) -> u32 {
    let tokens = wishes.context_tokens.unwrap_or(DEFAULT_CONTEXT_TOKENS);
    tokens.clamp(1, model.context_tokens.max(1))
}

/// The kinds that are tried on so many machines. One machine holds everything either way.
fn kinds(size: usize, wished: Option<SplitKind>) -> impl Iterator<Item = SplitKind> {
    let is_tried = move |kind: &SplitKind| match wished {
        Some(wished) if 1 < size => *kind == wished,
        _ => 1 < size || *kind == SplitKind::Tensor,
    };
    SplitKind::ALL.into_iter().filter(is_tried)
}

/// Of those that fit with the fewest machines the one that is expected to answer sooner.
fn choose(options: &[PlacementOption]) -> Option<&PlacementOption> {
    let fitting = || options.iter().filter(|option| option.fits());
    let fewest = fitting().map(|option| option.offer_idxs.len()).min()?;
    let seconds =
        |option: &PlacementOption| option.speed.map_or(f64::INFINITY, |it| it.usual_request_s());
    let fitting = fitting().filter(|option| option.offer_idxs.len() == fewest);
    fitting.min_by(|a, b| seconds(a).total_cmp(&seconds(b)))
}

/// The best that `size` machines can do in one way; none if they are too many for it.
fn option(
    model: &ModelFacts,
    (offers, links): (&[NodeOffer], &Links),
    (size, kind): (usize, SplitKind),
    context_tokens: u32,
) -> Option<PlacementOption> {
    let offer_idxs = largest(offers, size);
    let caps = caps(offers, &offer_idxs);
    let (split, needs) = search::best(model, kind, &caps, context_tokens)?;
    let chosen: Vec<&NodeOffer> = offer_idxs.iter().map(|&idx| &offers[idx]).collect();
    let speed = speed::predict(model, (&chosen, &split), &links.among(&offer_idxs), context_tokens);
    let missing = needs.iter().zip(&caps).map(|(need, cap)| need.total().saturating_sub(*cap));
    let missing_bytes = missing.sum();
    Some(PlacementOption { offer_idxs, split, needs, missing_bytes, speed })
}

fn caps(offers: &[NodeOffer], offer_idxs: &[usize]) -> Vec<u64> {
    offer_idxs.iter().map(|&idx| offers[idx].usable_bytes).collect()
}

/// The `size` machines with the most memory, in their order; the earlier one wins a tie.
fn largest(offers: &[NodeOffer], size: usize) -> Vec<usize> {
    let mut idxs: Vec<usize> = (0..offers.len()).collect();
    idxs.sort_by_key(|&idx| std::cmp::Reverse(offers[idx].usable_bytes));
    idxs.truncate(size);
    idxs.sort_unstable();
    idxs
}

fn refuse(
    model: &ModelFacts,
    offers: &[NodeOffer],
    best: Option<&PlacementOption>,
    context_tokens: u32,
) -> Refusal {
    let Some(best) = best else {
        return Refusal {
            context_tokens,
            nodes: Vec::new(),
            missing_bytes: 0,
            context_tokens_max: None,
            too_few_layers: (!offers.is_empty()).then_some(model.layers.len()),
        };
    };
    let caps = caps(offers, &best.offer_idxs);
    let kind = SplitKind::of(&best.split);
    let fits = |tokens| {
        let found = search::best(model, kind, &caps, tokens);
        found.is_some_and(|(_, needs)| search::fits(&needs, &caps))
    };
    let nodes = best.offer_idxs.iter().zip(&best.needs).map(|(&idx, need)| NodeShortage {
        name: offers[idx].name.clone(),
        needed_bytes: need.total(),
        usable_bytes: offers[idx].usable_bytes,
    });
    Refusal {
        context_tokens,
        nodes: nodes.collect(),
        missing_bytes: best.missing_bytes,
        context_tokens_max: longest(model, fits),
        too_few_layers: None,
    }
}

/// The longest context, in whole granules of the cache, that fits.
fn longest(model: &ModelFacts, fits: impl Fn(u32) -> bool) -> Option<u32> {
    let tokens = |granules: u32| (granules * CACHE_GRANULE_TOKENS).min(model.context_tokens);
    let (mut fitting, mut failing) = (0, model.context_tokens.div_ceil(CACHE_GRANULE_TOKENS) + 1);
    while fitting + 1 < failing {
        let middle = fitting + (failing - fitting) / 2;
        if fits(tokens(middle)) { fitting = middle } else { failing = middle }
    }
    (0 < fitting).then(|| tokens(fitting))
}
