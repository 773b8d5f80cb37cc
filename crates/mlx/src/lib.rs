//! Bindings to libmlx: the only crate with C++ and FFI.
//!
//! MLX is lazy, which separates two kinds of failure. Building a graph fails only because of a bug
//! in the caller (a wrong shape, a wrong dtype): it **panics at the caller's line**. Evaluating,
//! reading files and joining groups depend on the environment: they return [`Error`].
//!
//! An [`Array`] belongs to the thread that created it, so it is not `Send`. All work of this
//! crate's own (custom kernels, the native group) runs on the CPU stream's worker thread, in graph
//! order.
//!
//! This crate knows nothing of models, requests or processes.

mod array;
mod backend;
pub mod choice;
mod compiled;
mod counters;
mod custom;
mod device;
mod dtype;
mod error;
pub mod fast;
#[expect(unreachable_pub, reason = "cxx writes the bridge's items")]
mod ffi;
mod group;
mod kernel_sums;
mod link;
pub mod memory;
mod ops;
mod pinned;
pub mod quant;

pub use array::{Array, async_eval, count_nodes, dim, drain, eval, nodes_of_nothing};
pub use backend::Backend;
pub use compiled::CompiledFunction;
pub use counters::{HostCounters, host_counters};
pub use custom::custom;
pub use device::{Device, GpuKind, device, exit_now, gpu_available, gpu_kind, set_device, version};
pub use dtype::{ArrayType, Dtype, Element};
pub use error::Error;
pub use ffi::kernel::{Buffer, BufferMut};
pub use group::Group;
pub use kernel_sums::KernelSums;
pub use pinned::Pinned;
