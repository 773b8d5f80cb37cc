//! Custom primitives: graph nodes whose work is a Rust closure on the CPU stream.

use crate::array::{Array, built_all, refs};
use crate::dtype::ArrayType;
use crate::ffi::bridge::{self, OutputSpec};
use crate::ffi::kernel::{Buffer, BufferMut, Kernel};

/// Creates a graph node that runs `kernel` on the CPU stream's worker thread when it is evaluated.
///
/// `outputs` declares the type of each result. The kernel receives the inputs
/// row-contiguous, in order; views with gaps are copied first, so a kernel that needs only a part
/// of a large array should take the whole array and the bounds of the part. A panic in the kernel
/// becomes an [`Error`](crate::Error) at `eval`.
#[track_caller]
pub fn custom(
    inputs: &[&Array],
    outputs: &[ArrayType],
    name: &'static str,
    kernel: impl Fn(&[Buffer<'_>], &mut [BufferMut<'_>]) + Send + 'static,
) -> Vec<Array> {
    let kernel = Box::new(Kernel {
        name,
        inputs: inputs.iter().map(|a| a.array_type()).collect(),
        outputs: outputs.to_vec(),
        work: Box::new(kernel),
    });
    let specs: Vec<OutputSpec<'_>> =
        outputs.iter().map(|it| OutputSpec { shape: &it.shape, dtype: it.dtype.code() }).collect();
    built_all(name, bridge::custom(&refs(inputs), &specs, name, kernel))
}
