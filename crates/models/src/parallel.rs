//! Who computes: this rank's place in its group, and the code that does the mathematics.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use jackalope_kernels::{InstructionSet, InstructionSetError, Threads};
use jackalope_mlx as mlx;
use jackalope_protocol::KernelTimings;

use crate::error::LoadError;
use crate::split::Shares;

/// The group of the current epoch. All layers hold the same cell, so that a new group takes its
/// place without touching a weight.
#[derive(Clone, Debug)]
pub struct GroupCell(Rc<RefCell<mlx::Group>>);

impl GroupCell {
    /// A cell with a first group.
    pub fn new(group: mlx::Group) -> GroupCell {
        GroupCell(Rc::new(RefCell::new(group)))
    }

    /// Puts a new epoch's group in place of the old one.
    pub fn replace(&self, group: mlx::Group) {
        *self.0.borrow_mut() = group;
    }

    /// A handle to the current group.
    pub fn current(&self) -> mlx::Group {
        self.0.borrow().clone()
    }
}

/// Which code does the mathematics of the layers.
#[derive(Clone)]
pub enum Compute {
    /// Our CPU kernels, on these threads. Their results are batch-invariant: a row's bits do not
    /// depend on what else is computed.
    Kernels(Arc<Threads>),
    /// MLX's own operations, on whatever device MLX uses.
    Stock,
}

impl Compute {
    /// The kernels if MLX computes on the CPU, else MLX's own operations.
    ///
    /// # Errors
    /// When `JACKALOPE_CPU` names an instruction set that is not known or not there.
    pub fn for_device(
        device: mlx::Device,
        num_threads: usize,
    ) -> Result<Compute, InstructionSetError> {
        if device == mlx::Device::Gpu {
            return Ok(Compute::Stock);
        }
        let instructions = InstructionSet::from_environment()?;
        Ok(Compute::Kernels(Arc::new(Threads::with_instructions(num_threads, instructions))))
    }

    /// From now on, the kernels' time is measured. MLX's own operations cannot be.
    pub fn start_profile(&self) {
        if let Compute::Kernels(threads) = self {
            threads.start_profile();
        }
    }

    /// What was measured since the last call.
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

/// One rank of a model that is cut over several.
#[derive(Clone, Debug)]
pub struct TensorParallel {
    rank: usize,
    shares: Shares,
    group: GroupCell,
    compute: Compute,
}

impl TensorParallel {
    /// Rank `rank` of as many ranks as there are shares.
    ///
    /// # Errors
    /// If there is no share for this rank.
    pub fn new(
        rank: usize,
        shares: Shares,
        group: GroupCell,
        compute: Compute,
    ) -> Result<TensorParallel, LoadError> {
        let num_shares = shares.num_ranks();
        if num_shares <= rank {
            return Err(LoadError::Shares { num_shares, num_ranks: rank + 1 });
        }
        Ok(TensorParallel { rank, shares, group, compute })
    }

    /// The only rank of its group.
    pub fn single(compute: Compute) -> TensorParallel {
        let group = GroupCell::new(mlx::Group::single());
        TensorParallel { rank: 0, shares: Shares::even(1), group, compute }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.shares.num_ranks()
    }

    /// Every rank's share.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The group of the current epoch.
    pub fn group(&self) -> &GroupCell {
        &self.group
    }

    /// The code that does the mathematics.
    pub fn compute(&self) -> &Compute {
        &self.compute
    }

    /// The sum of `x` over all ranks.
    pub(crate) fn all_sum(&self, x: &mlx::Array) -> mlx::Array {
        if self.size() == 1 { x.clone() } else { self.group.current().all_sum(x) }
    }

    /// The ranks' arrays, joined along the first dimension.
    pub(crate) fn all_gather(&self, x: &mlx::Array) -> mlx::Array {
        if self.size() == 1 { x.clone() } else { self.group.current().all_gather(x) }
    }
}
