//! The array: a handle to a node of MLX's lazy graph. Making, evaluating and reading it.

use std::fmt;

use cxx::UniquePtr;

use crate::dtype::{Dtype, Element, bytes_of};
use crate::error::Error;
use crate::ffi::bridge::{self, ArrayRef, RawArray};
use crate::ffi::{slice, slice_mut};

/// How often a failed evaluation asks the streams for further errors of the same graph: leaving one
/// behind would blame the next evaluation for it. Each stream keeps its first error only.
const DRAIN_ATTEMPTS: usize = 8;

/// A node of MLX's lazy graph. Cloning makes another handle to the same node and copies no data.
///
/// Not `Send`: MLX's streams belong to the thread that made them.
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
    /// Shape and element type; the values may not have been computed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = bridge::shape(&self.0).iter().map(ToString::to_string).collect();
        write!(f, "Array[{}] {:?}", dims.join(", "), self.dtype())
    }
}

/// Making arrays.
impl Array {
    /// An array holding a copy of `values` in row order.
    ///
    /// # Panics
    /// If `values` does not fill `shape`.
    #[track_caller]
    pub fn from_slice<T: Element>(values: &[T], shape: &[i32]) -> Array {
        assert_eq!(
            values.len(),
            num_elements(shape),
            "from_slice: the values do not fill {shape:?}"
        );
        Array::from_bytes(shape, T::DTYPE, |bytes| bytes.copy_from_slice(bytes_of(values)))
    }

    /// An array in freshly allocated MLX memory, written once by `fill` in row order. The bytes
    /// `fill` receives have no particular value.
    #[track_caller]
    pub fn from_bytes(shape: &[i32], dtype: Dtype, fill: impl FnOnce(&mut [u8])) -> Array {
        let nbytes = num_elements(shape) * dtype.size_bytes();
        let array = built("allocate", bridge::allocate(shape, dtype.code()));
        // SAFETY: the array was just allocated with this size and has one handle, so nobody else
        // reads or writes its memory.
        fill(unsafe { slice_mut(bridge::data(&array.0), nbytes) });
        array
    }

    /// An array of one value and no dimensions, f32.
    #[track_caller]
    pub fn scalar(value: f32) -> Array {
        Array::scalar_of(value, Dtype::F32)
    }

    /// An array of one value and no dimensions.
    #[track_caller]
    pub fn scalar_of(value: f32, dtype: Dtype) -> Array {
        built("scalar", bridge::scalar(value, dtype.code()))
    }

    /// An array of one repeated value.
    #[track_caller]
    pub fn full(shape: &[i32], value: f32, dtype: Dtype) -> Array {
        built("full", bridge::full(shape, value, dtype.code()))
    }

    /// An array of zeros.
    #[track_caller]
    pub fn zeros(shape: &[i32], dtype: Dtype) -> Array {
        Array::full(shape, 0.0, dtype)
    }

    /// The numbers `0, 1, …, len - 1`.
    #[track_caller]
    pub fn arange(len: i32, dtype: Dtype) -> Array {
        Array::arange_from(0, len, dtype)
    }

    /// The numbers `start, start + 1, …, stop - 1`.
    #[track_caller]
    pub fn arange_from(start: i32, stop: i32, dtype: Dtype) -> Array {
        built("arange", bridge::arange(start.into(), stop.into(), dtype.code()))
    }

    /// The array in an `.npy` file.
    ///
    /// # Errors
    /// If the file is missing or is not one.
    pub fn load(path: &str) -> Result<Array, Error> {
        bridge::load(path)
            .map(Array)
            .map_err(|err| Error::Load { path: path.to_owned(), message: err.what().to_owned() })
    }
}

/// What is known without computing.
impl Array {
    /// The length of every dimension.
    pub fn shape(&self) -> Vec<i32> {
        bridge::shape(&self.0).to_vec()
    }

    /// The length of one dimension; negative axes count from the end.
    ///
    /// # Panics
    /// If there is no such dimension.
    #[track_caller]
    pub fn dim(&self, axis: i32) -> i32 {
        let shape = bridge::shape(&self.0);
        let idx = if axis < 0 { axis + self.ndim() } else { axis };
        let Some(dim) = usize::try_from(idx).ok().and_then(|idx| shape.get(idx)) else {
            panic!("dim: axis {axis} of an array of shape {shape:?}")
        };
        *dim
    }

    /// The number of dimensions.
    pub fn ndim(&self) -> i32 {
        i32::try_from(bridge::shape(&self.0).len()).expect("MLX counts dimensions in 32 bits")
    }

    /// The number of elements.
    pub fn size(&self) -> usize {
        num_elements(bridge::shape(&self.0))
    }

    /// The bytes of all elements; a view may keep a larger buffer alive.
    pub fn nbytes(&self) -> usize {
        self.size() * self.dtype().size_bytes()
    }

    /// The element type.
    #[track_caller]
    pub fn dtype(&self) -> Dtype {
        Dtype::from_code(bridge::dtype(&self.0))
    }
}

/// Computing and reading.
impl Array {
    /// Computes this array and waits for it.
    ///
    /// # Errors
    /// What the device, a custom kernel or a group operation in the graph reported.
    pub fn eval(&self) -> Result<(), Error> {
        eval(&[self])
    }

    /// Computes this array and copies its values to the host, in row order.
    ///
    /// # Errors
    /// If the elements are not `T`, or computing fails.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        let found = self.dtype();
        if found != T::DTYPE {
            return Err(Error::WrongDtype { asked: T::DTYPE, found });
        }
        self.eval()?;
        if bridge::row_contiguous(&self.0) {
            return Ok(T::decode(self.bytes()));
        }
        let packed = self.contiguous();
        packed.eval()?;
        Ok(T::decode(packed.bytes()))
    }

    /// The value of an array with one element.
    ///
    /// # Errors
    /// As [`Array::to_vec`].
    ///
    /// # Panics
    /// If the array does not have exactly one element.
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T, Error> {
        assert_eq!(self.size(), 1, "item: an array of shape {:?}", self.shape());
        Ok(self.to_vec::<T>()?[0])
    }

    /// The memory of an evaluated, row-contiguous array.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the array is evaluated and row-contiguous (the callers see to it), so its data
        // is `nbytes` long; evaluated data is never written again while a handle exists.
        unsafe { slice(bridge::data(&self.0), self.nbytes()) }
    }
}

/// Computes arrays together and waits for them.
///
/// # Errors
/// What the device, a custom kernel or a group operation in the graph reported. The arrays then hold
/// nothing of use, and others can be evaluated.
pub fn eval(arrays: &[&Array]) -> Result<(), Error> {
    bridge::eval(&refs(arrays)).map_err(|err| {
        drain();
        Error::Evaluation { message: err.what().to_owned() }
    })
}

/// Starts computing arrays. A failure is reported when they are waited for.
///
/// # Errors
/// What was reported while the work was handed out.
pub fn async_eval(arrays: &[&Array]) -> Result<(), Error> {
    bridge::async_eval(&refs(arrays)).map_err(|err| {
        drain();
        Error::Evaluation { message: err.what().to_owned() }
    })
}

/// Waits for what still runs of a failed graph, while the caller's handles keep its buffers alive.
fn drain() {
    for _ in 0..DRAIN_ATTEMPTS {
        if bridge::synchronize().is_ok() {
            return;
        }
    }
}

/// The elements of a shape.
///
/// # Panics
/// On a negative dimension.
#[track_caller]
pub(crate) fn num_elements(shape: &[i32]) -> usize {
    let dims = shape.iter().map(|&dim| usize::try_from(dim));
    let Ok(product) = dims.product::<Result<usize, _>>() else {
        panic!("a shape has a negative dimension: {shape:?}")
    };
    product
}

pub(crate) fn refs<'a>(arrays: &[&'a Array]) -> Vec<ArrayRef<'a>> {
    arrays.iter().map(|array| ArrayRef { array: &array.0 }).collect()
}

/// A list of zero or one array, as the bridge passes optional ones.
pub(crate) fn optional(array: Option<&Array>) -> Vec<ArrayRef<'_>> {
    array.map(|array| ArrayRef { array: &array.0 }).into_iter().collect()
}

/// A built node, or a panic at the line that built it.
#[track_caller]
pub(crate) fn built(op: &str, result: Result<UniquePtr<RawArray>, cxx::Exception>) -> Array {
    match result {
        Ok(raw) => Array(raw),
        Err(err) => panic!("{op}: {err}"),
    }
}

/// Built nodes, or a panic at the line that built them.
#[track_caller]
pub(crate) fn built_all(
    op: &str,
    result: Result<UniquePtr<cxx::CxxVector<RawArray>>, cxx::Exception>,
) -> Vec<Array> {
    match result {
        Ok(raw) => (0..raw.len()).map(|idx| Array(bridge::pick(&raw, idx))).collect(),
        Err(err) => panic!("{op}: {err}"),
    }
}
