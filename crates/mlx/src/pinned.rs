//! The memory of a computed array, outside the graph and for every thread.

use std::fmt;
use std::sync::Arc;

use cxx::UniquePtr;

use crate::array::Array;
use crate::custom::values_of;
use crate::dtype::{Dtype, Element};
use crate::error::Error;
use crate::ffi::bridge::{self, RawArray};
use crate::ffi::slice;

/// Values that do not change any more, for kernels that take them without an edge of the graph: weights, of which a
/// model has too many to hand them to each node anew.
#[derive(Clone)]
pub struct Pinned(Arc<Held>);

struct Held {
    /// Keeps the memory.
    _array: UniquePtr<RawArray>,
    data: *const u8,
    nbytes: usize,
    dtype: Dtype,
}

// SAFETY: the memory is never written again while a handle to the evaluated array exists, and this is one; the handle
// itself is only dropped, which touches atomic counts and MLX's allocator, as MLX's own worker threads do.
unsafe impl Send for Held {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Held {}

impl Array {
    /// Computes this array and holds on to its memory.
    ///
    /// # Errors
    /// If computing fails.
    pub fn pin(&self) -> Result<Pinned, Error> {
        self.eval()?;
        let array = if bridge::row_contiguous(&self.0) { self.clone() } else { self.contiguous() };
        array.eval()?;
        let (data, nbytes, dtype) = (bridge::data(&array.0), array.nbytes(), array.dtype());
        Ok(Pinned(Arc::new(Held { _array: array.0, data, nbytes, dtype })))
    }
}

impl Pinned {
    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.0.dtype
    }

    /// The values in row order.
    ///
    /// # Panics
    /// If the elements are not `T`. Booleans are read as bytes.
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
