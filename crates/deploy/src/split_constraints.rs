//! What is required of the split of a model.

use std::path::Path;

use jackalope_placement::{
    LinkKind, Links, NodeOffer, PlacementConstraints, PlacementModel, SplitKind, place,
};
use jackalope_protocol::Backend;
use jackalope_protocol::split::{Shares, Split, stages};

use crate::error::SplitError;

/// Constraints on the split of a model over ranks.
#[derive(Clone, Debug, Default)]
pub struct SplitConstraints {
    /// Whether ranks hold a part of every layer or whole layers; absent: what is expected to answer
    /// sooner.
    pub kind: Option<SplitKind>,
    /// How much each rank holds of every layer, relative to the others; empty: not given.
    pub shares: Vec<u32>,
    /// Number of layers of each rank; empty: not given.
    pub layers: Vec<u32>,
}

/// Returns the kind of split over a transport: the requested one, unless the transport leaves no
/// choice.
///
/// # Errors
/// If a pipeline was requested that the transport cannot carry.
pub fn kind_over(
    backend: Backend,
    asked: Option<SplitKind>,
) -> Result<Option<SplitKind>, SplitError> {
    match (backend.no_pipeline(), asked) {
        (None, asked) => Ok(asked),
        (Some(_), None | Some(SplitKind::Tensor)) => Ok(Some(SplitKind::Tensor)),
        (Some(reason), Some(SplitKind::Pipeline)) => Err(SplitError::Pipeline { backend, reason }),
    }
}

impl SplitConstraints {
    /// Returns the kind of split, if it is required or the transport leaves no choice.
    ///
    /// # Errors
    /// If a pipeline is required that the transport cannot carry.
    pub fn kind_over(&self, backend: Backend) -> Result<Option<SplitKind>, SplitError> {
        kind_over(backend, self.required_kind())
    }

    fn required_kind(&self) -> Option<SplitKind> {
        let by_numbers = match (self.shares.is_empty(), self.layers.is_empty()) {
            (false, _) => Some(SplitKind::Tensor),
            (true, false) => Some(SplitKind::Pipeline),
            (true, true) => None,
        };
        by_numbers.or(self.kind)
    }

    /// Returns the split that the numbers give, if there are any.
    ///
    /// # Errors
    /// As in [`SplitConstraints::kind_over`], and if the split does not fit the number of ranks, the
    /// model, or the required kind.
    pub fn given(
        &self,
        model_dir: &Path,
        num_ranks: usize,
        backend: Backend,
    ) -> Result<Option<Split>, SplitError> {
        self.kind_over(backend)?;
        let (numbers, flag) = match (self.shares.is_empty(), self.layers.is_empty()) {
            (true, true) => return Ok(None),
            (false, _) => (&self.shares, "--share"),
            (true, false) => (&self.layers, "--layers"),
        };
        if let Some(kind) = self.kind.filter(|kind| Some(*kind) != self.required_kind()) {
            return Err(SplitError::Kind { flag, kind });
        }
        if numbers.len() != num_ranks {
            return Err(SplitError::NumRanks { flag, num_numbers: numbers.len(), num_ranks });
        }
        if numbers.contains(&0) {
            return Err(SplitError::Zero { flag });
        }
        if flag == "--share" {
            return Ok(Some(Split::Tensor(numbers.clone())));
        }
        let model = PlacementModel::read(model_dir)?;
        let num_layers = model.num_layers();
        if stages(numbers, num_layers).is_none() {
            let sum = numbers.iter().map(|&number| u64::from(number)).sum();
            return Err(SplitError::NumLayers { sum, num_layers });
        }
        let split = Split::Pipeline(numbers.clone());
        match model.layout.shards(&split) {
            Some(_) => Ok(Some(split)),
            // Layers of some models read the caches of earlier ones.
            None => Err(SplitError::SharedCaches { cuts: cuts(&model) }),
        }
    }

    /// Returns the split that the numbers give, or equal parts.
    ///
    /// # Errors
    /// As in [`SplitConstraints::given`], and if a model has fewer layers than required stages.
    pub fn given_or_even(
        &self,
        model_dir: &Path,
        num_ranks: usize,
        backend: Backend,
    ) -> Result<Split, SplitError> {
        match self.given(model_dir, num_ranks, backend)? {
            Some(split) => Ok(split),
            None if self.required_kind() == Some(SplitKind::Pipeline) && 1 < num_ranks => {
                even_stages(&PlacementModel::read(model_dir)?, num_ranks)
            }
            None => Ok(Split::Tensor(vec![1; num_ranks])),
        }
    }
}

/// Returns stages of about the same size.
fn even_stages(model: &PlacementModel, num_ranks: usize) -> Result<Split, SplitError> {
    let offer = |rank: usize| NodeOffer::new(rank.to_string(), u64::MAX);
    let offers: Vec<NodeOffer> = (0..num_ranks).map(offer).collect();
    let links = Links::usual(num_ranks, LinkKind::Loopback);
    let split = Some(SplitKind::Pipeline);
    let constraints = PlacementConstraints {
        num_machines: Some(num_ranks),
        split,
        ..PlacementConstraints::default()
    };
    Ok(place(model, &offers, &links, constraints)?.split)
}

/// Returns the layers before which a pipeline may be cut, in order.
fn cuts(model: &PlacementModel) -> Vec<usize> {
    let layout = &model.layout;
    (1..layout.layers.len()).filter(|&layer| layout.can_begin_stage(layer)).collect()
}

/// A split that the user gave for all ranks.
#[derive(Debug)]
pub(crate) struct GivenSplit {
    split: Split,
    /// Layers before which a pipeline may be cut, in order; empty for other splits.
    cuts: Vec<usize>,
}

impl GivenSplit {
    /// Combines a split with what it divides.
    ///
    /// # Errors
    /// If the checkpoint cannot be read.
    pub(crate) fn of_model(split: Split, model_dir: &Path) -> Result<GivenSplit, SplitError> {
        let cuts = match &split {
            Split::Tensor(_) => Vec::new(),
            Split::Pipeline(_) => cuts(&PlacementModel::read(model_dir)?),
        };
        Ok(GivenSplit { split, cuts })
    }

    /// Returns the split for some of the ranks: the numbers keep their proportions, as far as the
    /// layers can be cut there.
    pub(crate) fn for_some(&self, ranks: &[usize]) -> Split {
        let numbers = |all: &[u32]| ranks.iter().map(|&rank| all[rank]).collect::<Vec<u32>>();
        match &self.split {
            Split::Tensor(shares) => Split::Tensor(numbers(shares)),
            Split::Pipeline(layers) if ranks.len() == layers.len() => self.split.clone(),
            Split::Pipeline(layers) => {
                let num_layers = layers.iter().sum::<u32>() as usize;
                let shares = Shares::new(numbers(layers)).expect("every rank has layers");
                let mut end = num_layers;
                // Rank 0 has the last layers.
                let starts = shares.cut(num_layers).into_iter().map(|part| {
                    end -= part.len();
                    end
                });
                let mut wanted: Vec<usize> = starts.filter(|&start| 0 < start).collect();
                wanted.reverse();
                let starts = nearest(&wanted, &self.cuts);
                let mut end = num_layers;
                let stages = starts.into_iter().rev().chain([0]).map(|start| {
                    let len = end - start;
                    end = start;
                    u32::try_from(len).expect("a part of u32")
                });
                Split::Pipeline(stages.collect())
            }
        }
    }
}

/// Returns for each of `wanted`, in order, the nearest of `allowed`, the lower of two, so that no two
/// are the same.
///
/// # Panics
/// If fewer are allowed than wanted.
fn nearest(wanted: &[usize], allowed: &[usize]) -> Vec<usize> {
    let (mut rest, num_wanted) = (allowed, wanted.len());
    let found = wanted.iter().enumerate().map(|(idx, wanted)| {
        let num_later = num_wanted - idx - 1;
        let nearest = (0..rest.len() - num_later).min_by_key(|&it| rest[it].abs_diff(*wanted));
        let nearest = nearest.expect("a split for more ranks has as many cuts");
        let cut = rest[nearest];
        rest = &rest[nearest + 1..];
        cut
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pipeline_goes_over_a_transport_that_cannot_carry_it() {
        use SplitKind::{Pipeline, Tensor};
        for asked in [None, Some(Tensor), Some(Pipeline)] {
            assert_eq!(kind_over(Backend::Tcp, asked).unwrap(), asked);
            assert_eq!(kind_over(Backend::Ring, asked).unwrap(), asked);
        }
        for backend in [Backend::Jaccl, Backend::Nccl] {
            assert_eq!(kind_over(backend, None).unwrap(), Some(Tensor));
            let refusal = kind_over(backend, Some(Pipeline)).unwrap_err().to_string();
            assert!(refusal.contains(backend.name()) && refusal.contains("hint:"), "{refusal}");
        }
    }

    #[test]
    fn remaining_ranks_keep_the_proportions_of_the_given_split() {
        let given = |split: &Split| GivenSplit { split: split.clone(), cuts: (1..32).collect() };
        let tensor = Split::Tensor(vec![3, 1, 2]);
        assert_eq!(given(&tensor).for_some(&[0, 2]), Split::Tensor(vec![3, 2]));
        let pipeline = Split::Pipeline(vec![20, 8, 4]);
        assert_eq!(given(&pipeline).for_some(&[0, 1, 2]), pipeline);
        assert_eq!(given(&pipeline).for_some(&[0, 2]), Split::Pipeline(vec![27, 5]));
        assert_eq!(given(&pipeline).for_some(&[1]), Split::Pipeline(vec![32]));
    }

    #[test]
    fn remaining_ranks_keep_layers_that_share_a_cache_together() {
        // Layers from 18 on read the caches of layers 16 and 17, as in Gemma 3n.
        let split = Split::Pipeline(vec![16, 10, 6]);
        let given = GivenSplit { split, cuts: (1..=16).collect() };
        assert_eq!(given.for_some(&[1, 2]), Split::Pipeline(vec![20, 12]));
        assert_eq!(given.for_some(&[0, 2]), Split::Pipeline(vec![24, 8]));
        let split = Split::Pipeline(vec![16, 1, 15]);
        let given = GivenSplit { split, cuts: (1..=16).collect() };
        // In proportion, rank 1 would have 2 layers, 30 being before the cut.
        assert_eq!(given.for_some(&[1, 2]), Split::Pipeline(vec![16, 16]));
        let few = GivenSplit { split: Split::Pipeline(vec![28, 1, 1, 2]), cuts: vec![2, 3, 4] };
        assert_eq!(few.for_some(&[1, 2, 3]), Split::Pipeline(vec![28, 1, 3]));
        assert_eq!(few.for_some(&[0, 3]), Split::Pipeline(vec![30, 2]));
    }
}
