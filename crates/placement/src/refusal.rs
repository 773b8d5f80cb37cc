//! Reports what is missing where a model does not fit, and what would fit.

use std::fmt;

use jackalope_protocol::{KV_BLOCK_TOKENS, counted};
use thiserror::Error;

use super::{
    Candidates, PlacementConstraints, PlacementModel, PlacementOption, SplitKind, caps, dealing,
    search, size,
};

/// Reports that the machines cannot hold the model.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub struct PlacementRefusal {
    /// Context length that was requested.
    pub context_tokens: u32,
    /// The machines of the best attempt.
    pub nodes: Vec<NodeShortage>,
    /// Memory in bytes that the machines lack together.
    pub missing_bytes: u64,
    /// Longest context that would fit; `None` if not even the shortest does.
    pub context_tokens_max: Option<u32>,
    /// The kind of split that fits at this context, if another kind was requested.
    pub fitting_split: Option<SplitKind>,
    /// Number of stages into which the model's layers can be cut, if a pipeline was requested over more
    /// machines than that.
    pub too_few_stages: Option<usize>,
}

/// How much memory a machine lacks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeShortage {
    /// Name of the machine.
    pub name: String,
    /// Memory that the machine's part of the model needs, in bytes.
    pub needed_bytes: u64,
    /// Memory that the rank on the machine may use, in bytes.
    pub usable_bytes: u64,
}

impl NodeShortage {
    /// Returns the memory in bytes that the machine lacks; 0 if its part of the model fits.
    pub fn missing_bytes(&self) -> u64 {
        self.needed_bytes.saturating_sub(self.usable_bytes)
    }
}

impl fmt::Display for PlacementRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlacementRefusal { context_tokens, nodes, missing_bytes, .. } = self;
        if let Some(num_stages) = self.too_few_stages {
            return write!(
                f,
                "more machines than stages into which the layers can be cut, of which there are \
                 {num_stages}\n\
                 hint: use at most {num_stages} of them, or `--split tensor`"
            );
        }
        if nodes.is_empty() {
            return f.write_str("there is no machine to place the model on\nhint: name one");
        }
        let missing = size(*missing_bytes);
        let context = counted(context_tokens, "token");
        write!(f, "a context of {context} does not fit: {missing} are missing")?;
        for node in nodes.iter().filter(|node| 0 < node.missing_bytes()) {
            let NodeShortage { name, needed_bytes, usable_bytes } = node;
            let (needed, usable) = (size(*needed_bytes), size(*usable_bytes));
            let missing = size(node.missing_bytes());
            write!(f, "\n  {name}: needs {needed}, may take {usable}, {missing} are missing")?;
        }
        if let Some(kind) = self.fitting_split {
            return write!(f, "\nhint: pass `--split {}`, with which it fits", kind.name());
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

/// Returns the refusal of a model that fits with none of `options`, which are ordered by their number
/// of machines.
pub(super) fn refuse(
    candidates: &Candidates<'_>,
    options: &[PlacementOption],
    constraints: PlacementConstraints,
) -> PlacementRefusal {
    let Candidates { model, offers, context_tokens, .. } = *candidates;
    let fitting_split = SplitKind::ALL.into_iter().find(|kind| {
        let is_other = constraints.split.is_some_and(|requested| requested != *kind);
        let mut options = constraints
            .sizes(offers.len())
            .filter(|&size| 1 < size)
            .filter_map(|size| candidates.best(size, *kind));
        is_other && options.any(|option| option.fits())
    });
    let largest = options.last().map(|option| option.offer_idxs.len());
    let largest = || options.iter().filter(|option| Some(option.offer_idxs.len()) == largest);
    let Some(best) = largest().min_by_key(|option| option.missing_bytes) else {
        return PlacementRefusal {
            context_tokens,
            nodes: Vec::new(),
            missing_bytes: 0,
            context_tokens_max: None,
            fitting_split: None,
            too_few_stages: (!offers.is_empty()).then_some(model.layout.num_stages_max()),
        };
    };
    let nodes = best.offer_idxs.iter().zip(&best.needs).map(|(&idx, need)| NodeShortage {
        name: offers[idx].name.clone(),
        needed_bytes: need.total(),
        usable_bytes: offers[idx].usable_bytes,
    });
    PlacementRefusal {
        context_tokens,
        nodes: nodes.collect(),
        missing_bytes: best.missing_bytes,
        context_tokens_max: largest().filter_map(|it| longest_of_any_parts(candidates, it)).max(),
        fitting_split,
        too_few_stages: None,
    }
}

/// Returns the longest context that was found to fit on an option's machines with its kind of split,
/// whatever the parts of the ranks.
fn longest_of_any_parts(candidates: &Candidates<'_>, option: &PlacementOption) -> Option<u32> {
    let model = candidates.model;
    let (kind, caps) = (SplitKind::of(&option.split), caps(candidates.offers, &option.offer_idxs));
    let best = |tokens| {
        let found = search::best(model, kind, &caps, tokens);
        found.filter(|(_, needs)| search::fits(needs, &caps))
    };
    let tokens = longest(model, |tokens| best(tokens).is_some())?;
    // The best parts differ with the context, so these may hold more than the search has found.
    let (split, _) = best(tokens)?;
    let fits = |tokens| search::fits(&dealing::needs(model, &split, tokens), &caps);
    longest(model, fits).max(Some(tokens))
}

/// Returns the longest context that fits, in whole KV blocks.
pub(super) fn longest(model: &PlacementModel, fits: impl Fn(u32) -> bool) -> Option<u32> {
    let tokens = |blocks: u32| (blocks * KV_BLOCK_TOKENS).min(model.context_tokens);
    let (mut fitting, mut failing) = (0, model.context_tokens.div_ceil(KV_BLOCK_TOKENS) + 1);
    while fitting + 1 < failing {
        let middle = fitting + (failing - fitting) / 2;
        if fits(tokens(middle)) { fitting = middle } else { failing = middle }
    }
    (0 < fitting).then(|| tokens(fitting))
}
