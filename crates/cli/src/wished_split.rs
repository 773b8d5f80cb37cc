//! Parses how the user wants a model to be split.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use jackalope_placement::{LinkKind, Links, ModelFacts, NodeOffer, SplitKind, Wishes, place};
use jackalope_protocol::Backend;
use jackalope_protocol::split::{Shares, Split, stages};

use crate::args::{RankArgs, SplitArg};

impl From<SplitArg> for SplitKind {
    fn from(arg: SplitArg) -> SplitKind {
        match arg {
            SplitArg::Tensor => SplitKind::Tensor,
            SplitArg::Pipeline => SplitKind::Pipeline,
        }
    }
}

/// Returns the kind of split, if it was given or the transport leaves no choice.
///
/// # Errors
/// If a pipeline was requested that the transport cannot carry.
pub(crate) fn kind(args: &RankArgs, backend: Backend) -> anyhow::Result<Option<SplitKind>> {
    over(backend, asked(args))
}

/// Like [`kind`], for a requested kind.
pub(crate) fn over(
    backend: Backend,
    asked: Option<SplitKind>,
) -> anyhow::Result<Option<SplitKind>> {
    match (backend.no_pipeline(), asked) {
        (None, asked) => Ok(asked),
        (Some(_), None | Some(SplitKind::Tensor)) => Ok(Some(SplitKind::Tensor)),
        (Some(reason), Some(SplitKind::Pipeline)) => bail!(
            "a pipeline cannot use {}, which {reason}\n\
             hint: pass `--backend tcp`, or `--split tensor`",
            backend.name()
        ),
    }
}

fn asked(args: &RankArgs) -> Option<SplitKind> {
    let by_numbers = match (args.share.is_empty(), args.layers.is_empty()) {
        (false, _) => Some(SplitKind::Tensor),
        (true, false) => Some(SplitKind::Pipeline),
        (true, true) => None,
    };
    by_numbers.or(args.split.map(Into::into))
}

/// Returns the split that `--share` or `--layers` gives, if one of them is present.
///
/// # Errors
/// As in [`kind`], and if the split does not fit the number of ranks, the model, or `--split`.
pub(crate) fn given(
    args: &RankArgs,
    model_dir: &Path,
    (num_ranks, backend): (usize, Backend),
) -> anyhow::Result<Option<Split>> {
    kind(args, backend)?;
    let (numbers, flag) = match (args.share.is_empty(), args.layers.is_empty()) {
        (true, true) => return Ok(None),
        (false, _) => (&args.share, "--share"),
        (true, false) => (&args.layers, "--layers"),
    };
    let wished = args.split.map(SplitKind::from);
    ensure!(
        wished.is_none_or(|wished| Some(wished) == asked(args)),
        "`{flag}` cannot be combined with `--split {}`\nhint: leave one of them out",
        wished.map_or("", SplitKind::name)
    );
    ensure!(
        numbers.len() == num_ranks,
        "`{flag}` names {} ranks, there are {num_ranks}\nhint: give one number for each rank",
        numbers.len()
    );
    ensure!(
        numbers.iter().all(|&number| 0 < number),
        "`{flag}` has a zero\nhint: give each rank a positive number, or use fewer ranks"
    );
    if flag == "--share" {
        return Ok(Some(Split::Tensor(numbers.clone())));
    }
    let num_layers = ModelFacts::read(model_dir)?.layers.len();
    ensure!(
        stages(numbers, num_layers).is_some(),
        "`--layers` adds up to {} layers, the model has {num_layers}\n\
         hint: give numbers that add up to {num_layers}",
        numbers.iter().map(|&number| u64::from(number)).sum::<u64>()
    );
    Ok(Some(Split::Pipeline(numbers.clone())))
}

/// Returns the split that was given, or equal parts.
///
/// # Errors
/// As in [`given`], and if a model has fewer layers than requested stages.
pub(crate) fn given_or_even(
    args: &RankArgs,
    model_dir: &Path,
    (num_ranks, backend): (usize, Backend),
) -> anyhow::Result<Split> {
    match given(args, model_dir, (num_ranks, backend))? {
        Some(split) => Ok(split),
        None if asked(args) == Some(SplitKind::Pipeline) && 1 < num_ranks => {
            even_stages(&ModelFacts::read(model_dir)?, num_ranks)
        }
        None => Ok(Split::Tensor(vec![1; num_ranks])),
    }
}

/// Returns stages of about the same size.
fn even_stages(model: &ModelFacts, num_ranks: usize) -> anyhow::Result<Split> {
    let offer = |rank: usize| NodeOffer::new(rank.to_string(), u64::MAX);
    let offers: Vec<NodeOffer> = (0..num_ranks).map(offer).collect();
    let links = Links::usual(num_ranks, LinkKind::Loopback);
    let split = Some(SplitKind::Pipeline);
    let wishes = Wishes { num_machines: Some(num_ranks), split, ..Wishes::default() };
    let placement = place(model, &offers, &links, wishes).context("cutting the model")?;
    Ok(placement.split)
}

/// Returns the split for some of the ranks for which a split was given: the numbers keep their
/// proportions.
pub(crate) fn for_some(split: &Split, ranks: &[usize]) -> Split {
    let numbers = |all: &[u32]| ranks.iter().map(|&rank| all[rank]).collect::<Vec<u32>>();
    match split {
        Split::Tensor(shares) => Split::Tensor(numbers(shares)),
        Split::Pipeline(layers) if ranks.len() == layers.len() => split.clone(),
        Split::Pipeline(layers) => {
            let num_layers: u32 = layers.iter().sum();
            let shares = Shares::new(numbers(layers)).expect("every rank has layers");
            let cut = shares.cut(num_layers as usize).into_iter();
            let len = |it: std::ops::Range<usize>| u32::try_from(it.len()).expect("a part of u32");
            Split::Pipeline(cut.map(len).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pipeline_goes_over_a_transport_that_cannot_carry_it() {
        use SplitKind::{Pipeline, Tensor};
        for asked in [None, Some(Tensor), Some(Pipeline)] {
            assert_eq!(over(Backend::Tcp, asked).unwrap(), asked);
            assert_eq!(over(Backend::Ring, asked).unwrap(), asked);
        }
        for backend in [Backend::Jaccl, Backend::Nccl] {
            assert_eq!(over(backend, None).unwrap(), Some(Tensor));
            let refusal = over(backend, Some(Pipeline)).unwrap_err().to_string();
            assert!(refusal.contains(backend.name()) && refusal.contains("hint:"), "{refusal}");
        }
    }

    #[test]
    fn who_is_left_holds_what_was_given_to_all() {
        let tensor = Split::Tensor(vec![3, 1, 2]);
        assert_eq!(for_some(&tensor, &[0, 2]), Split::Tensor(vec![3, 2]));
        let pipeline = Split::Pipeline(vec![20, 8, 4]);
        assert_eq!(for_some(&pipeline, &[0, 1, 2]), pipeline);
        assert_eq!(for_some(&pipeline, &[0, 2]), Split::Pipeline(vec![27, 5]));
        assert_eq!(for_some(&pipeline, &[1]), Split::Pipeline(vec![32]));
    }
}
