//! The array: a handle to a node of MLX's lazy graph. Creates, evaluates and reads arrays.

use std::fmt;

use cxx::UniquePtr;

use crate::counters;
use crate::dtype::{ArrayType, Dtype, Element, bytes_of, num_elements};
use crate::error::Error;
use crate::ffi::bridge::{self, ArrayRef, RawArray};
use crate::ffi::{slice, slice_mut};

/// Number of times that a failed evaluation asks the streams for further errors of the same graph:
/// an error left behind would be attributed to the next evaluation. Each stream keeps its first
/// error only.
const DRAIN_ATTEMPTS: usize = 8;

/// A node of MLX's lazy graph. A clone is another handle to the same node and copies no data.
///
/// Not `Send`: MLX's streams belong to the thread that created them.
///
/// ```compile_fail,E0277
/// fn needs_send<T: Send>() {}
/// needs_send::<jackalope_mlx::Array>();
/// ```
pub struct Array(pub(crate) UniquePtr<RawArray>);

impl Clone for Array {
    fn clone(&self) -> Array {
        Array(bridge::copy(&self.0))
    }
}

impl fmt::Debug for Array {
    /// Writes shape and element type; the values may not have been computed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = bridge::shape(&self.0).iter().map(ToString::to_string).collect();
        write!(f, "Array[{}] {:?}", dims.join(", "), self.dtype())
    }
}

/// Converts a length to MLX's type of dimensions and indices.
///
/// # Panics
/// Panics if it does not fit into 31 bits; configurations and the limits of a step bound every length.
#[track_caller]
pub fn dim(len: usize) -> i32 {
    i32::try_from(len).expect("configurations and the limits of a step bound every length")
}

/// Creation of arrays.
impl Array {
    /// Creates an array with a copy of `values` in row order.
    ///
    /// # Panics
    /// Panics if `values` does not fill `shape`.
    #[track_caller]
    pub fn from_slice<T: Element>(values: &[T], shape: &[i32]) -> Array {
        assert_eq!(
            values.len(),
            num_elements(shape),
            "from_slice: the values do not fill {shape:?}"
        );
        Array::from_bytes(shape, T::DTYPE, |bytes| bytes.copy_from_slice(bytes_of(values)))
    }

    /// Creates an array in freshly allocated MLX memory, written once by `fill` in row order. The
    /// bytes that `fill` receives have no particular value.
    #[track_caller]
    pub fn from_bytes(shape: &[i32], dtype: Dtype, fill: impl FnOnce(&mut [u8])) -> Array {
        let nbytes = num_elements(shape) * dtype.size_bytes();
        counters::count(|it| it.bytes_written += nbytes as u64);
        let array = built("allocate", bridge::allocate(shape, dtype.code()));
        // SAFETY: the array was just allocated with this size and has one handle, so no other code
        // reads or writes its memory.
        fill(unsafe { slice_mut(bridge::data(&array.0), nbytes) });
        array
    }

    /// Creates an f32 array of one value and no dimensions.
    #[track_caller]
    pub fn scalar(value: f32) -> Array {
        Array::scalar_of(value, Dtype::F32)
    }

    /// Creates an array of one value and no dimensions.
    #[track_caller]
    pub fn scalar_of(value: f32, dtype: Dtype) -> Array {
        built("scalar", bridge::scalar(value, dtype.code()))
    }

    /// Creates an array that repeats one value.
    #[track_caller]
    pub fn full(shape: &[i32], value: f32, dtype: Dtype) -> Array {
        built("full", bridge::full(shape, value, dtype.code()))
    }

    /// Creates an array of zeros.
    #[track_caller]
    pub fn zeros(shape: &[i32], dtype: Dtype) -> Array {
        Array::full(shape, 0.0, dtype)
    }

    /// Creates an array of the numbers `0, 1, …, len - 1`.
    #[track_caller]
    pub fn arange(len: i32, dtype: Dtype) -> Array {
        Array::arange_from(0, len, dtype)
    }

    /// Creates an array of the numbers `start, start + 1, …, stop - 1`.
    #[track_caller]
    pub fn arange_from(start: i32, stop: i32, dtype: Dtype) -> Array {
        built("arange", bridge::arange(start.into(), stop.into(), dtype.code()))
    }

    /// Loads the array in an `.npy` file.
    ///
    /// # Errors
    /// Fails if the file is missing or not an `.npy` file.
    pub fn load(path: &str) -> Result<Array, Error> {
        bridge::load(path)
            .map(Array)
            .map_err(|err| Error::Load { path: path.to_owned(), message: err.what().to_owned() })
    }
}

/// Properties that are known without computing.
impl Array {
    /// Returns the length of every dimension.
    pub fn shape(&self) -> Vec<i32> {
        bridge::shape(&self.0).to_vec()
    }

    /// Returns the length of one dimension; negative axes count from the end.
    ///
    /// # Panics
    /// Panics if there is no such dimension.
    #[track_caller]
    pub fn dim(&self, axis: i32) -> i32 {
        let shape = bridge::shape(&self.0);
        let idx = if axis < 0 { axis + self.ndim() } else { axis };
        let Some(dim) = usize::try_from(idx).ok().and_then(|idx| shape.get(idx)) else {
            panic!("dim: axis {axis} of an array of shape {shape:?}")
        };
        *dim
    }

    /// Returns the number of dimensions.
    pub fn ndim(&self) -> i32 {
        i32::try_from(bridge::shape(&self.0).len()).expect("MLX counts dimensions in 32 bits")
    }

    /// Returns the number of elements.
    pub fn size(&self) -> usize {
        num_elements(bridge::shape(&self.0))
    }

    /// Returns the size of all elements in bytes; a view may keep a larger buffer alive.
    pub fn nbytes(&self) -> usize {
        self.size() * self.dtype().size_bytes()
    }

    /// Returns shape and element type.
    pub fn array_type(&self) -> ArrayType {
        ArrayType { shape: self.shape(), dtype: self.dtype() }
    }

    /// Returns the element type.
    #[track_caller]
    pub fn dtype(&self) -> Dtype {
        Dtype::from_code(bridge::dtype(&self.0))
    }
}

/// Evaluation and reading.
impl Array {
    /// Computes this array and waits for it.
    ///
    /// # Errors
    /// Returns the error that the device, a custom kernel or a group operation in the graph
    /// reported.
    pub fn eval(&self) -> Result<(), Error> {
        eval(&[self])
    }

    /// Whether the values are computed, so that reading them does not wait.
    pub fn is_available(&self) -> bool {
        bridge::is_available(&self.0)
    }

    /// Computes this array and copies its values to the host, in row order.
    ///
    /// # Errors
    /// Fails if the elements are not `T`, or computing fails.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        let found = self.dtype();
        if found != T::DTYPE {
            return Err(Error::WrongDtype { asked: T::DTYPE, found });
        }
        self.eval()?;
        counters::count(|it| it.bytes_read += self.nbytes() as u64);
        if bridge::row_contiguous(&self.0) {
            return Ok(T::decode(self.bytes()));
        }
        let packed = self.contiguous();
        packed.eval()?;
        Ok(T::decode(packed.bytes()))
    }

    /// Computes an array with one element and returns its value.
    ///
    /// # Errors
    /// As for [`Array::to_vec`].
    ///
    /// # Panics
    /// Panics if the array does not have exactly one element.
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T, Error> {
        assert_eq!(self.size(), 1, "item: an array of shape {:?}", self.shape());
        Ok(self.to_vec::<T>()?[0])
    }

    /// Returns the memory of an evaluated, row-contiguous array.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the array is evaluated and row-contiguous (the callers ensure this), so its data
        // is `nbytes` long; evaluated data is never written again while a handle exists.
        unsafe { slice(bridge::data(&self.0), self.nbytes()) }
    }
}

/// Computes arrays together and waits for them.
///
/// # Errors
/// Returns the error that the device, a custom kernel or a group operation in the graph reported.
/// The arrays then hold no valid values, but other arrays can be evaluated.
pub fn eval(arrays: &[&Array]) -> Result<(), Error> {
    if !arrays.iter().all(|array| array.is_available()) {
        counters::count(|it| it.waits += 1);
    }
    bridge::eval(&refs(arrays)).map_err(|err| {
        drain();
        Error::Evaluation { message: err.what().to_owned() }
    })
}

/// Returns the number of nodes to compute in the graph of the arrays that `build` returns, as it
/// would be on a GPU: each fused operation ([`crate::fast`]) is one node, even where MLX builds
/// several in its place.
pub fn count_nodes(build: impl FnOnce() -> Vec<Array>) -> usize {
    bridge::begin_counting();
    let arrays = build();
    bridge::num_nodes(&refs(&arrays.iter().collect::<Vec<_>>()))
}

/// Returns the names of the nodes in the graph of the arrays whose results have no elements. Some of MLX's
/// operations fail on GPUs if there is nothing to compute.
pub fn nodes_of_nothing(arrays: &[&Array]) -> Vec<String> {
    bridge::nodes_of_nothing(&refs(arrays))
}

/// Starts computing arrays. A failure is reported when they are waited for.
///
/// # Errors
/// Returns an error that was reported while the work was submitted.
pub fn async_eval(arrays: &[&Array]) -> Result<(), Error> {
    counters::count(|it| it.submissions += 1);
    bridge::async_eval(&refs(arrays)).map_err(|err| {
        drain();
        Error::Evaluation { message: err.what().to_owned() }
    })
}

/// Waits for all submitted work, and drops the errors that it reports.
pub fn drain() {
    for _ in 0..DRAIN_ATTEMPTS {
        if bridge::synchronize().is_ok() {
            return;
        }
    }
}

pub(crate) fn refs<'a>(arrays: &[&'a Array]) -> Vec<ArrayRef<'a>> {
    arrays.iter().map(|array| ArrayRef { array: &array.0 }).collect()
}

/// Returns a list of zero or one array, the bridge's form of an optional one.
pub(crate) fn optional(array: Option<&Array>) -> Vec<ArrayRef<'_>> {
    array.map(|array| ArrayRef { array: &array.0 }).into_iter().collect()
}

/// Returns the built node, or panics at the line that built it.
#[track_caller]
pub(crate) fn built(op: &str, result: Result<UniquePtr<RawArray>, cxx::Exception>) -> Array {
    match result {
        Ok(raw) => {
            counters::count(|it| it.nodes += 1);
            Array(raw)
        }
        Err(err) => panic!("{op}: {err}"),
    }
}

/// Returns the built nodes, or panics at the line that built them.
#[track_caller]
pub(crate) fn built_all(
    op: &str,
    result: Result<UniquePtr<cxx::CxxVector<RawArray>>, cxx::Exception>,
) -> Vec<Array> {
    match result {
        Ok(raw) => {
            counters::count(|it| it.nodes += 1);
            unpacked(&raw)
        }
        Err(err) => panic!("{op}: {err}"),
    }
}

/// Returns handles to the arrays of a list.
pub(crate) fn unpacked(arrays: &cxx::CxxVector<RawArray>) -> Vec<Array> {
    (0..arrays.len()).map(|idx| Array(bridge::pick(arrays, idx))).collect()
}
