//! Element types, and how elements lie in memory.

use half::{bf16, f16};

/// The element types that Jackalope uses. The discriminants are MLX's own codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Dtype {
    /// Boolean, one byte.
    Bool = 0,
    /// Unsigned, 8 bit.
    U8 = 1,
    /// Unsigned, 16 bit.
    U16 = 2,
    /// Unsigned, 32 bit: token ids, packed quantised words.
    U32 = 3,
    /// Signed, 32 bit.
    I32 = 7,
    /// Signed, 64 bit.
    I64 = 8,
    /// IEEE half precision.
    F16 = 9,
    /// IEEE single precision.
    F32 = 10,
    /// IEEE double precision, for sums that must be exact; on CPUs only.
    F64 = 11,
    /// bfloat16: the upper half of a single-precision float.
    Bf16 = 12,
}

impl Dtype {
    const ALL: [Dtype; 10] = [
        Dtype::Bool,
        Dtype::U8,
        Dtype::U16,
        Dtype::U32,
        Dtype::I32,
        Dtype::I64,
        Dtype::F16,
        Dtype::F32,
        Dtype::F64,
        Dtype::Bf16,
    ];

    /// Returns the size of one element in bytes.
    pub fn size_bytes(self) -> usize {
        match self {
            Dtype::Bool | Dtype::U8 => 1,
            Dtype::U16 | Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::U32 | Dtype::I32 | Dtype::F32 => 4,
            Dtype::I64 | Dtype::F64 => 8,
        }
    }

    /// Whether this is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, Dtype::F16 | Dtype::F32 | Dtype::F64 | Dtype::Bf16)
    }

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// # Panics
    /// Panics on an MLX element type that Jackalope never creates (complex numbers).
    #[track_caller]
    pub(crate) fn from_code(code: u8) -> Dtype {
        let Some(dtype) = Dtype::ALL.into_iter().find(|dtype| dtype.code() == code) else {
            panic!("an array has MLX element type {code}, which has no name here")
        };
        dtype
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is an element type of MLX.
pub trait Element: Copy + sealed::Sealed + 'static {
    /// The MLX element type.
    const DTYPE: Dtype;

    /// Copies elements from their bytes in memory order.
    #[doc(hidden)]
    fn decode(bytes: &[u8]) -> Vec<Self> {
        let num_elements = bytes.len() / size_of::<Self>();
        let mut elements: Vec<Self> = Vec::with_capacity(num_elements);
        // SAFETY: the vector has room for `num_elements`; every type but `bool`, which overrides
        // this, is valid for any bits; source and destination are distinct allocations.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                elements.as_mut_ptr().cast::<u8>(),
                num_elements * size_of::<Self>(),
            );
            elements.set_len(num_elements);
        }
        elements
    }
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}

element! {
    u8 => U8, u16 => U16, u32 => U32, i32 => I32, i64 => I64, f16 => F16, f32 => F32, f64 => F64,
    bf16 => Bf16,
}

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: Dtype = Dtype::Bool;

    fn decode(bytes: &[u8]) -> Vec<bool> {
        bytes.iter().map(|&byte| byte != 0).collect()
    }
}

/// Returns the bytes of a slice of elements.
pub(crate) fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements have no padding, and any byte is a valid `u8`.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) }
}

/// Returns the bytes of f64 values for writing.
pub(crate) fn bytes_of_mut(values: &mut [f64]) -> &mut [u8] {
    // SAFETY: f64 has no padding, and any eight bytes are a valid f64.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), size_of_val(values)) }
}

/// The shape and element type of an array.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ArrayType {
    /// Length of every dimension.
    pub shape: Vec<i32>,
    /// Element type.
    pub dtype: Dtype,
}

impl ArrayType {
    pub(crate) fn nbytes(&self) -> usize {
        num_elements(&self.shape) * self.dtype.size_bytes()
    }
}

/// Returns bytes as elements.
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

/// Returns bytes as elements for writing.
///
/// # Panics
/// Panics if the elements are not `T`.
#[track_caller]
pub(crate) fn values_of_mut<T: Element>(bytes: &mut [u8], dtype: Dtype) -> &mut [T] {
    check::<T>(dtype);
    // SAFETY: as for `values_of`; every value of `T` is valid as bytes.
    let (before, values, after) = unsafe { bytes.align_to_mut::<T>() };
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

/// Returns the number of elements of a shape.
///
/// # Panics
/// Panics on a negative dimension.
#[track_caller]
pub(crate) fn num_elements(shape: &[i32]) -> usize {
    let dims = shape.iter().map(|&dim| usize::try_from(dim));
    let Ok(product) = dims.product::<Result<usize, _>>() else {
        panic!("a shape has a negative dimension: {shape:?}")
    };
    product
}
