//! Sums over the ranks in the middle of a custom kernel.

use crate::dtype::{Dtype, bytes_of_mut};
use crate::link::Link;

/// What a kernel unwinds with if its group has failed: the group's error.
pub(crate) struct SumFailure(pub(crate) String);

/// A group's sums for [`custom`](crate::custom()) kernels. They run on the CPU stream's worker, as the
/// group's own operations do, so that all have one order.
#[derive(Clone, Debug)]
pub struct KernelSums {
    /// `None` if no other rank takes part.
    link: Option<Link>,
}

impl KernelSums {
    /// Creates the sums of a single rank, which leave values as they are.
    pub fn none() -> KernelSums {
        KernelSums { link: None }
    }

    pub(crate) fn of(link: Link) -> KernelSums {
        KernelSums { link: Some(link) }
    }

    /// Replaces values by their sums over all ranks, as [`Group::all_sum`](crate::Group::all_sum) does in
    /// f64. Every rank must have as many values.
    ///
    /// # Panics
    /// Unwinds with the group's error, which `eval` returns for the kernel.
    pub fn add_up(&self, values: &mut [f64]) {
        let Some(link) = &self.link else { return };
        if let Err(message) = link.all_sum(bytes_of_mut(values), Dtype::F64.code()) {
            // Not a fault of the program, so the panic hook should not report it.
            std::panic::resume_unwind(Box::new(SumFailure(message)));
        }
    }
}
