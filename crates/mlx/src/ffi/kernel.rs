//! The closures of custom kernels, with their inputs and outputs.

use std::fmt;

use super::bridge::{KernelInput, KernelOutput};
use super::{slice, slice_mut};
use crate::dtype::{ArrayType, Dtype, Element, num_elements, values_of, values_of_mut};

/// An input of a custom kernel: row-contiguous values.
#[derive(Debug)]
pub struct Buffer<'a> {
    bytes: &'a [u8],
    array_type: &'a ArrayType,
}

/// An output of a custom kernel: row-contiguous; its values are undefined until written.
#[derive(Debug)]
pub struct BufferMut<'a> {
    bytes: &'a mut [u8],
    array_type: &'a ArrayType,
}

impl<'a> Buffer<'a> {
    /// Returns the length of every dimension.
    pub fn shape(&self) -> &'a [i32] {
        &self.array_type.shape
    }

    /// Returns the element type.
    pub fn dtype(&self) -> Dtype {
        self.array_type.dtype
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
        values_of(self.bytes, self.array_type.dtype)
    }
}

impl<'a> BufferMut<'a> {
    /// Returns the length of every dimension.
    pub fn shape(&self) -> &'a [i32] {
        &self.array_type.shape
    }

    /// Returns the element type.
    pub fn dtype(&self) -> Dtype {
        self.array_type.dtype
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
        values_of_mut(self.bytes, self.array_type.dtype)
    }
}

type Work = Box<dyn Fn(&[Buffer<'_>], &mut [BufferMut<'_>]) + Send>;

/// A closure with the types of its declared inputs and outputs. Owned by a graph node.
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    pub(crate) inputs: Vec<ArrayType>,
    pub(crate) outputs: Vec<ArrayType>,
    pub(crate) work: Work,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Kernel {
    /// Runs the closure.
    ///
    /// # Safety
    /// There must be one pointer per declared input and output, in order. Each input must be
    /// readable at every index of its shape (through its strides, if given), each output must be a
    /// distinct writable buffer of the declared size, and no other code may access them meanwhile.
    pub(super) unsafe fn run(
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
            .map(|(input, array_type)| unsafe { pack(input, array_type) })
            .collect();
        let buffers: Vec<Buffer<'_>> = inputs
            .iter()
            .zip(&self.inputs)
            .zip(&packed)
            .map(|((input, array_type), packed)| {
                let data =
                    if packed.is_empty() { input.data } else { packed.as_ptr().cast::<u8>() };
                // SAFETY: guaranteed by the caller, or the copy just made.
                Buffer { bytes: unsafe { slice(data, array_type.nbytes()) }, array_type }
            })
            .collect();
        let mut results: Vec<BufferMut<'_>> = outputs
            .iter()
            .zip(&self.outputs)
            .map(|(output, array_type)| {
                // SAFETY: guaranteed by the caller.
                let bytes = unsafe { slice_mut(output.data, array_type.nbytes()) };
                BufferMut { bytes, array_type }
            })
            .collect();
        (self.work)(&buffers, &mut results);
        Ok(())
    }
}

/// Returns a row-contiguous copy of a strided input; empty if the input is row-contiguous already.
///
/// # Safety
/// `input.data` must be readable at every index of its shape through `input.strides`.
unsafe fn pack(input: &KernelInput, array_type: &ArrayType) -> Vec<u64> {
    let nbytes = array_type.nbytes();
    if input.strides.is_empty() || nbytes == 0 {
        return Vec::new();
    }
    let mut packed = vec![0_u64; nbytes.div_ceil(size_of::<u64>())];
    let element_bytes = array_type.dtype.size_bytes();
    let mut index = vec![0; array_type.shape.len()];
    let target = packed.as_mut_ptr().cast::<u8>();
    for position in 0..num_elements(&array_type.shape) {
        let offset: i64 = index.iter().zip(&input.strides).map(|(i, stride)| i * stride).sum();
        let offset = isize::try_from(offset).expect("an offset fits the address space");
        // SAFETY: `index` lies within the shape, so the element is readable; `position` counts
        // elements, so it lies within `packed`.
        unsafe {
            let source = input.data.offset(offset * element_bytes.cast_signed());
            let target = target.add(position * element_bytes);
            std::ptr::copy_nonoverlapping(source, target, element_bytes);
        }
        advance(&mut index, &array_type.shape);
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
