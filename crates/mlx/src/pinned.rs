//! The memory of a computed array, accessible outside the graph and from every thread.

use std::fmt;
use std::sync::Arc;

use cxx::UniquePtr;

use crate::array::Array;
use crate::counters;
use crate::dtype::{Dtype, Element, values_of};
use crate::error::Error;
use crate::ffi::bridge::{self, RawArray};
use crate::ffi::slice;

/// The values of a computed array, for kernels that read them without having the array as an input
/// in the graph: weights, of which a model has too many to pass them to each node. A clone is
/// another handle to the same memory.
#[derive(Clone)]
pub struct Pinned(Arc<Held>);

struct Held {
    /// Keeps the memory alive.
    _array: UniquePtr<RawArray>,
    data: *const u8,
    nbytes: usize,
    dtype: Dtype,
}

// SAFETY: the memory is never written again while a handle to the evaluated array exists, and this
// is one; the handle itself is only dropped, which only changes atomic counts and MLX's allocator,
// as MLX's own worker threads do.
unsafe impl Send for Held {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Held {}

impl Array {
    /// Computes this array and returns a handle to its values in row order, which keeps their
    /// memory alive.
    ///
    /// # Errors
    /// Fails if computing fails.
    pub fn pin(&self) -> Result<Pinned, Error> {
        self.eval()?;
        let array = if bridge::row_contiguous(&self.0) { self.clone() } else { self.contiguous() };
        array.eval()?;
        counters::count(|it| it.bytes_read += array.nbytes() as u64);
        let (data, nbytes, dtype) = (bridge::data(&array.0), array.nbytes(), array.dtype());
        Ok(Pinned(Arc::new(Held { _array: array.0, data, nbytes, dtype })))
    }
}

impl Pinned {
    /// Returns the element type.
    pub fn dtype(&self) -> Dtype {
        self.0.dtype
    }

    /// Returns the values in row order.
    ///
    /// # Panics
    /// Panics if the elements are not `T`. Booleans are read as bytes.
    #[track_caller]
    pub fn values<T: Element>(&self) -> &[T] {
        // SAFETY: the array was evaluated and row-contiguous, so its data is `nbytes` long; see `Held`.
        let bytes = unsafe { slice(self.0.data, self.0.nbytes) };
        values_of(bytes, self.0.dtype)
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned[{} bytes] {:?}", self.0.nbytes, self.0.dtype)
    }
}
