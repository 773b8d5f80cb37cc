//! The rank's position in its group, and the code that computes the layers.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use jackalope_kernels::{InstructionSet, InstructionSetError, TermColumns, Threads};
use jackalope_mlx as mlx;
use jackalope_protocol::KernelTimings;
use jackalope_spec::{ModelLayout, RankShard};

use jackalope_protocol::split::{Shares, Split, stages};
use jackalope_weights::LoadError;

/// The group of the current epoch. All layers share this cell, so that a new group replaces the old
/// one without any change to the weights.
#[derive(Clone, Debug)]
pub struct GroupCell(Rc<RefCell<mlx::Group>>);

impl GroupCell {
    /// Creates a cell with a first group.
    pub fn new(group: mlx::Group) -> GroupCell {
        GroupCell(Rc::new(RefCell::new(group)))
    }

    /// Replaces the group by that of a new epoch.
    pub fn replace(&self, group: mlx::Group) {
        *self.0.borrow_mut() = group;
    }

    /// Returns a handle to the current group.
    pub fn current(&self) -> mlx::Group {
        self.0.borrow().clone()
    }
}

/// The code that computes the layers.
#[derive(Clone)]
pub enum Compute {
    /// Our CPU kernels, on these threads. Their results are batch-invariant: the bits of a row do
    /// not depend on what else is computed.
    Kernels(Arc<Threads>),
    /// MLX's own operations, on whatever device MLX uses.
    Stock,
}

impl Compute {
    /// Value of [`InstructionSet::VARIABLE`] that chooses MLX's own operations on the CPU too.
    pub const STOCK: &'static str = "stock";

    /// Returns the kernels if MLX computes on the CPU, else MLX's own operations; also those if
    /// `JACKALOPE_CPU` is [`Compute::STOCK`].
    ///
    /// # Errors
    /// Fails if `JACKALOPE_CPU` names an instruction set that is unknown or not available.
    pub fn for_device(
        device: mlx::Device,
        num_threads: usize,
    ) -> Result<Compute, InstructionSetError> {
        if device == mlx::Device::Gpu {
            return Ok(Compute::Stock);
        }
        let instructions = match InstructionSet::from_environment() {
            Err(InstructionSetError::Unknown(name)) if name == Compute::STOCK => {
                return Ok(Compute::Stock);
            }
            instructions => instructions?,
        };
        Ok(Compute::Kernels(Arc::new(Threads::with_instructions(num_threads, instructions))))
    }

    /// Starts measuring the time of the kernels. MLX's own operations cannot be measured.
    pub fn start_profile(&self) {
        if let Compute::Kernels(threads) = self {
            threads.start_profile();
        }
    }

    /// Returns the measurements since the last call.
    pub fn take_profile(&self) -> Vec<KernelTimings> {
        let Compute::Kernels(threads) = self else { return Vec::new() };
        let timings = threads.take_profile().into_iter().map(|it| KernelTimings {
            name: it.name.to_owned(),
            calls: it.calls,
            time_ns: u64::try_from(it.time.as_nanos()).unwrap_or(u64::MAX),
            bytes: it.bytes,
        });
        timings.collect()
    }
}

impl Compute {
    /// Returns what `arrange` makes of weights for our kernels; `None` if MLX computes.
    pub fn arranged<W>(&self, arrange: impl FnOnce() -> W) -> Option<Arc<W>> {
        matches!(self, Compute::Kernels(_)).then(|| Arc::new(arrange()))
    }
}

impl fmt::Debug for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compute::Kernels(threads) => {
                let set = threads.instructions().name();
                write!(f, "Kernels({set}, {} threads)", threads.count())
            }
            Compute::Stock => f.write_str("Stock"),
        }
    }
}

/// One rank's position among the ranks that compute a model together: which layers it has, and
/// which part of them.
#[derive(Clone, Debug)]
pub struct Parallel {
    /// Index among the ranks that hold parts of the same layers.
    rank: usize,
    shares: Shares,
    /// Set if other ranks have other layers.
    stage: Option<Stage>,
    group: GroupCell,
    compute: Compute,
    sums: Sums,
}

/// How CPU kernels add the ranks' parts of a product. MLX's own operations round each part to the
/// model's type.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Sums {
    /// Each part is exact, so the sum has the same bits for any number of ranks and any shares.
    #[default]
    Exact,
    /// Each rank rounds its part to f32: faster, but the last bits of the sum depend on the split.
    Rounded,
}

/// A rank's position in a pipeline. Activations go from the last rank, which has the first layers,
/// to rank 0, which has the last ones.
#[derive(Clone, Debug)]
struct Stage {
    rank: usize,
    /// Number of layers of each rank.
    layers: Vec<u32>,
}

impl Parallel {
    /// Creates the position of rank `rank` in a model with this split.
    ///
    /// # Errors
    /// Fails if the split has no part for this rank, or an empty part.
    pub fn new(
        rank: usize,
        split: &Split,
        group: GroupCell,
        compute: Compute,
    ) -> Result<Parallel, LoadError> {
        let num_parts = split.num_ranks();
        if num_parts <= rank {
            return Err(LoadError::Split { num_parts, num_ranks: rank + 1 });
        }
        let numbers = split.numbers().to_vec();
        let sums = Sums::default();
        let even = Shares::new(numbers).ok_or(LoadError::EmptyPart)?;
        Ok(match split {
            Split::Tensor(_) => Parallel { rank, shares: even, stage: None, group, compute, sums },
            Split::Pipeline(layers) => {
                let stage = Some(Stage { rank, layers: layers.clone() });
                Parallel { rank: 0, shares: Shares::even(1), stage, group, compute, sums }
            }
        })
    }

    /// Creates the position of the only rank of a group.
    pub fn single(compute: Compute) -> Parallel {
        let group = GroupCell::new(mlx::Group::single());
        let (shares, sums) = (Shares::even(1), Sums::default());
        Parallel { rank: 0, shares, stage: None, group, compute, sums }
    }

    /// Returns this position with another kind of sums.
    #[must_use]
    pub fn with_sums(self, sums: Sums) -> Parallel {
        Parallel { sums, ..self }
    }

    /// Returns the group of the current epoch.
    pub fn group(&self) -> &GroupCell {
        &self.group
    }

    /// Returns the code that computes the layers.
    pub fn compute(&self) -> &Compute {
        &self.compute
    }

    /// Returns this rank's index among those that hold parts of the same layers.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks that hold parts of the same layers.
    pub fn size(&self) -> usize {
        self.shares.num_ranks()
    }

    /// Returns the share of each of these ranks.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Returns the terms of sums over products whose columns are divided in units of `unit`.
    pub fn terms(&self, unit: usize) -> TermColumns {
        match self.sums {
            Sums::Exact => TermColumns::Divided(unit),
            Sums::Rounded => TermColumns::Whole,
        }
    }

    /// Returns the sum of `x` over all ranks that hold parts of the same layers.
    pub fn all_sum(&self, x: &mlx::Array) -> mlx::Array {
        if self.size() == 1 { x.clone() } else { self.group.current().all_sum(x) }
    }

    /// Returns the sums over these ranks for custom kernels; `None` if the group sums only arrays.
    pub fn kernel_sums(&self) -> Option<mlx::KernelSums> {
        if self.size() == 1 {
            return Some(mlx::KernelSums::none());
        }
        self.group.current().kernel_sums()
    }

    /// Returns the arrays of these ranks, concatenated along the first dimension.
    pub fn all_gather(&self, x: &mlx::Array) -> mlx::Array {
        if self.size() == 1 { x.clone() } else { self.group.current().all_gather(x) }
    }

    /// Returns the layers of this rank.
    ///
    /// # Errors
    /// Fails if the pipeline is for another number of layers.
    pub fn layers(&self, num_layers: usize) -> Result<Range<usize>, LoadError> {
        let Some(Stage { rank, layers }) = &self.stage else { return Ok(0..num_layers) };
        match stages(layers, num_layers) {
            Some(stages) => Ok(stages[*rank].clone()),
            None => Err(LoadError::Stages { layers: layers.clone(), num_layers }),
        }
    }

    /// Returns what this rank holds of a model.
    ///
    /// # Errors
    /// Fails if the pipeline is for another number of layers, or separates a layer from the one whose
    /// cache it reads.
    pub fn shard(&self, layout: &ModelLayout) -> Result<RankShard, LoadError> {
        if let Some(Stage { layers, .. }) = &self.stage {
            let own = self.layers(layout.layers.len())?;
            let mut reads = layout.layers.iter().enumerate();
            let separated = reads.find_map(|(reader, layer)| {
                let source_layer = layer.source_layer?;
                (own.contains(&reader) != own.contains(&source_layer))
                    .then_some((reader, source_layer))
            });
            if let Some((reader, source_layer)) = separated {
                let layers = layers.clone();
                return Err(LoadError::Separated { layers, reader, source_layer });
            }
            return Ok(layout.stage_shard(own));
        }
        Ok(layout.tensor_shards(&self.shares).swap_remove(self.rank))
    }

    /// Whether this rank has the first layer, where tokens are embedded.
    pub fn has_first_layer(&self) -> bool {
        self.stage.as_ref().is_none_or(|stage| stage.rank + 1 == stage.layers.len())
    }

    /// Whether this rank has the last layer, which is followed by the head.
    pub fn has_last_layer(&self) -> bool {
        self.stage.as_ref().is_none_or(|stage| stage.rank == 0)
    }

    /// Receives an array of this shape from the rank with the layers before ours.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    pub fn receive(&self, shape: &[i32], dtype: mlx::Dtype) -> mlx::Array {
        let stage = self.stage.as_ref().expect("only stages receive");
        self.group.current().recv(shape, dtype, stage.rank + 1)
    }

    /// Returns `x`, which is sent to the rank with the layers after ours when it is evaluated.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    pub fn send(&self, x: &mlx::Array) -> mlx::Array {
        let stage = self.stage.as_ref().expect("only stages send");
        self.group.current().send(x, stage.rank - 1)
    }
}
