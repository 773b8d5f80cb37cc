//! Custom primitives: graph nodes whose work is a Rust closure on the CPU stream.

use std::fmt;

use crate::array::{Array, built_all, num_elements, refs};
use crate::dtype::{Dtype, Element};
use crate::ffi::bridge::{self, KernelInput, KernelOutput, OutputSpec};
use crate::ffi::{slice, slice_mut};

/// An input of a custom kernel: row-contiguous values.
#[derive(Debug)]
pub struct Buffer<'a> {
    bytes: &'a [u8],
    layout: &'a Layout,
}

/// An output of a custom kernel: row-contiguous; its values are undefined until written.
#[derive(Debug)]
pub struct BufferMut<'a> {
    bytes: &'a mut [u8],
    layout: &'a Layout,
}

impl<'a> Buffer<'a> {
    /// Returns the length of every dimension.
    pub fn shape(&self) -> &'a [i32] {
        &self.layout.shape
    }

    /// Returns the element type.
    pub fn dtype(&self) -> Dtype {
        self.layout.dtype
    }

    /// Returns the bytes of the values.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the values.
    ///
    /// # Panics
    /// Panics if the elements are not `T`. Booleans are read as bytes.
    #[track_caller]
    pub fn values<T: Element>(&self) -> &'a [T] {
        values_of(self.bytes, self.layout.dtype)
    }
}

impl<'a> BufferMut<'a> {
    /// Returns the length of every dimension.
    pub fn shape(&self) -> &'a [i32] {
        &self.layout.shape
    }

    /// Returns the element type.
    pub fn dtype(&self) -> Dtype {
        self.layout.dtype
    }

    /// Returns the bytes of the values.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Returns the values for writing.
    ///
    /// # Panics
    /// Panics if the elements are not `T`. Booleans are written as bytes.
    #[track_caller]
    pub fn values_mut<T: Element>(&mut self) -> &mut [T] {
        check::<T>(self.layout.dtype);
        // SAFETY: as for `values_of`; every value of `T` is valid as bytes.
        let (before, values, after) = unsafe { self.bytes.align_to_mut::<T>() };
        assert_all(before, after);
        values
    }
}

/// Returns bytes as values.
///
/// # Panics
/// Panics if the elements are not `T`.
#[track_caller]
pub(crate) fn values_of<T: Element>(bytes: &[u8], dtype: Dtype) -> &[T] {
    check::<T>(dtype);
    // SAFETY: `check` admits only the dtype of `T`, which is valid for any bits; `align_to` ensures
    // the alignment, and `assert_all` that no bytes are left over.
    let (before, values, after) = unsafe { bytes.align_to::<T>() };
    assert_all(before, after);
    values
}

#[track_caller]
fn check<T: Element>(dtype: Dtype) {
    let stored = if dtype == Dtype::Bool { Dtype::U8 } else { dtype };
    assert_eq!(T::DTYPE, stored, "a kernel reads a buffer of {dtype:?} elements");
}

#[track_caller]
fn assert_all(before: &[u8], after: &[u8]) {
    assert!(before.is_empty() && after.is_empty(), "MLX aligns a buffer to its elements");
}

/// The shape and element type of a buffer.
#[derive(Debug)]
struct Layout {
    shape: Vec<i32>,
    dtype: Dtype,
}

impl Layout {
    fn nbytes(&self) -> usize {
        num_elements(&self.shape) * self.dtype.size_bytes()
    }
}

type Work = Box<dyn Fn(&[Buffer<'_>], &mut [BufferMut<'_>]) + Send>;

/// A closure with the layouts of its declared inputs and outputs. Owned by a graph node.
pub(crate) struct Kernel {
    name: &'static str,
    inputs: Vec<Layout>,
    outputs: Vec<Layout>,
    work: Work,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Creates a graph node that runs `kernel` on the CPU stream's worker thread when it is evaluated.
///
/// `outputs` declares shape and element type of each result. The kernel receives the inputs
/// row-contiguous, in order; views with gaps are copied first, so a kernel that needs only a part
/// of a large array should take the whole array and the bounds of the part. A panic in the kernel
/// becomes an [`Error`](crate::Error) at `eval`.
#[track_caller]
pub fn custom(
    inputs: &[&Array],
    outputs: &[(Vec<i32>, Dtype)],
    name: &'static str,
    kernel: impl Fn(&[Buffer<'_>], &mut [BufferMut<'_>]) + Send + 'static,
) -> Vec<Array> {
    let kernel = Box::new(Kernel {
        name,
        inputs: inputs.iter().map(|a| Layout { shape: a.shape(), dtype: a.dtype() }).collect(),
        outputs: outputs
            .iter()
            .map(|(shape, dtype)| Layout { shape: shape.clone(), dtype: *dtype })
            .collect(),
        work: Box::new(kernel),
    });
    let specs: Vec<OutputSpec<'_>> =
        outputs.iter().map(|(shape, dtype)| OutputSpec { shape, dtype: dtype.code() }).collect();
    built_all(name, bridge::custom(&refs(inputs), &specs, name, kernel))
}

impl Kernel {
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the closure.
    ///
    /// # Safety
    /// There must be one pointer per declared input and output, in order. Each input must be
    /// readable at every index of its shape (through its strides, if given), each output must be a
    /// distinct writable buffer of the declared size, and no other code may access them meanwhile.
    pub(crate) unsafe fn run(
        &self,
        inputs: &[KernelInput],
        outputs: &[KernelOutput],
    ) -> Result<(), String> {
        assert_eq!(inputs.len(), self.inputs.len(), "MLX passes every input");
        assert_eq!(outputs.len(), self.outputs.len(), "MLX passes every output");
        // Keeps the copies of strided inputs alive; 8-byte words align them for every dtype.
        let packed: Vec<Vec<u64>> = inputs
            .iter()
            .zip(&self.inputs)
            // SAFETY: guaranteed by the caller.
            .map(|(input, layout)| unsafe { pack(input, layout) })
            .collect();
        let buffers: Vec<Buffer<'_>> = inputs
            .iter()
            .zip(&self.inputs)
            .zip(&packed)
            .map(|((input, layout), packed)| {
                let data =
                    if packed.is_empty() { input.data } else { packed.as_ptr().cast::<u8>() };
                // SAFETY: guaranteed by the caller, or the copy just made.
                Buffer { bytes: unsafe { slice(data, layout.nbytes()) }, layout }
            })
            .collect();
        let mut results: Vec<BufferMut<'_>> = outputs
            .iter()
            .zip(&self.outputs)
            .map(|(output, layout)| {
                // SAFETY: guaranteed by the caller.
                let bytes = unsafe { slice_mut(output.data, layout.nbytes()) };
                BufferMut { bytes, layout }
            })
            .collect();
        (self.work)(&buffers, &mut results);
        Ok(())
    }
}

/// Returns a row-contiguous copy of a strided input; empty if the input is row-contiguous already.
///
/// # Safety
/// `input.data` must be readable at every index of the layout's shape through `input.strides`.
unsafe fn pack(input: &KernelInput, layout: &Layout) -> Vec<u64> {
    let nbytes = layout.nbytes();
    if input.strides.is_empty() || nbytes == 0 {
        return Vec::new();
    }
    let mut packed = vec![0_u64; nbytes.div_ceil(size_of::<u64>())];
    let element_bytes = layout.dtype.size_bytes();
    let mut index = vec![0; layout.shape.len()];
    let target = packed.as_mut_ptr().cast::<u8>();
    for position in 0..num_elements(&layout.shape) {
        let offset: i64 = index.iter().zip(&input.strides).map(|(i, stride)| i * stride).sum();
        let offset = isize::try_from(offset).expect("an offset fits the address space");
        // SAFETY: `index` lies within the shape, so the element is readable; `position` counts
        // elements, so it lies within `packed`.
        unsafe {
            let source = input.data.offset(offset * element_bytes.cast_signed());
            let target = target.add(position * element_bytes);
            std::ptr::copy_nonoverlapping(source, target, element_bytes);
        }
        advance(&mut index, &layout.shape);
    }
    packed
}

/// Advances to the next index in row order.
fn advance(index: &mut [i64], shape: &[i32]) {
    for (i, &dim) in index.iter_mut().zip(shape).rev() {
        *i += 1;
        if *i < i64::from(dim) {
            return;
        }
        *i = 0;
    }
}
