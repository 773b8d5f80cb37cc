//! Operations on arrays. Each builds one node; a wrong shape or dtype panics at the caller's line.
//!
//! Axes may be negative and then count from the end. Binary operations broadcast as NumPy does.

use std::ops;

use crate::array::{Array, built, built_all, refs};
use crate::dtype::Dtype;
use crate::ffi::bridge;

/// Conversion of types and shapes.
impl Array {
    /// Converts the elements to the type `dtype`.
    #[track_caller]
    pub fn astype(&self, dtype: Dtype) -> Array {
        if self.dtype() == dtype {
            return self.clone();
        }
        built("astype", bridge::astype(&self.0, dtype.code()))
    }

    /// Returns the bits of the elements as elements of the type `dtype`; the last dimension changes with
    /// their size.
    #[track_caller]
    pub fn view(&self, dtype: Dtype) -> Array {
        built("view", bridge::view(&self.0, dtype.code()))
    }

    /// Returns the same elements in another shape; one dimension may be -1.
    #[track_caller]
    pub fn reshape(&self, shape: &[i32]) -> Array {
        built("reshape", bridge::reshape(&self.0, shape))
    }

    /// Reorders the dimensions.
    #[track_caller]
    pub fn transpose(&self, axes: &[i32]) -> Array {
        built("transpose", bridge::transpose(&self.0, axes))
    }

    /// Exchanges two dimensions.
    #[track_caller]
    pub fn swapaxes(&self, first: i32, second: i32) -> Array {
        built("swapaxes", bridge::swapaxes(&self.0, first, second))
    }

    /// Merges dimensions `start..=end` into one.
    #[track_caller]
    pub fn flatten(&self, start: i32, end: i32) -> Array {
        built("flatten", bridge::flatten(&self.0, start, end))
    }

    /// Inserts a dimension of length 1.
    #[track_caller]
    pub fn expand_dims(&self, axis: i32) -> Array {
        built("expand_dims", bridge::expand_dims(&self.0, axis))
    }

    /// Removes a dimension of length 1.
    #[track_caller]
    pub fn squeeze(&self, axis: i32) -> Array {
        built("squeeze", bridge::squeeze(&self.0, axis))
    }

    /// Repeats the array, without a copy, to `shape`.
    #[track_caller]
    pub fn broadcast_to(&self, shape: &[i32]) -> Array {
        built("broadcast_to", bridge::broadcast_to(&self.0, shape))
    }

    /// Returns elements `start..stop` of every dimension, as a view.
    #[track_caller]
    pub fn slice(&self, start: &[i32], stop: &[i32]) -> Array {
        built("slice", bridge::slice(&self.0, start, stop))
    }

    /// Returns elements `start..stop` of one dimension, as a view.
    ///
    /// # Panics
    /// Panics if the range does not lie within the dimension.
    #[track_caller]
    pub fn slice_axis(&self, axis: i32, start: i32, stop: i32) -> Array {
        let len = self.dim(axis);
        assert!(
            0 <= start && start <= stop && stop <= len,
            "slice_axis: {start}..{stop} of axis {axis} of {self:?}"
        );
        let mut starts = vec![0; bridge::shape(&self.0).len()];
        let mut stops = self.shape();
        let axis = if axis < 0 { axis + self.ndim() } else { axis };
        let axis = usize::try_from(axis).expect("dim accepted the axis");
        starts[axis] = start;
        stops[axis] = stop;
        self.slice(&starts, &stops)
    }

    /// Returns this array with elements `start..stop` replaced; in place if this is the last
    /// handle.
    #[track_caller]
    pub fn slice_update(&self, update: &Array, start: &[i32], stop: &[i32]) -> Array {
        built("slice_update", bridge::slice_update(&self.0, &update.0, start, stop))
    }

    /// Returns this array with slices replaced, in place if this is the last handle: slice `i` is at
    /// `indices[k][i]` of `axes[k]` and holds `update[i]`, which has length 1 along these axes.
    /// Indices are i32 `[slices]`.
    #[track_caller]
    pub fn scatter<const AXES: usize>(
        &self,
        indices: [&Array; AXES],
        axes: [i32; AXES],
        update: &Array,
    ) -> Array {
        built("scatter", bridge::scatter(&self.0, &refs(&indices), &axes, &update.0))
    }

    /// Returns the same values in row order without gaps, in a buffer of exactly their size.
    #[track_caller]
    pub fn contiguous(&self) -> Array {
        built("contiguous", bridge::contiguous(&self.0))
    }

    /// Concatenates arrays along an existing dimension.
    #[track_caller]
    pub fn concatenate(arrays: &[&Array], axis: i32) -> Array {
        built("concatenate", bridge::concatenate(&refs(arrays), axis))
    }

    /// Stacks arrays along a new dimension.
    #[track_caller]
    pub fn stack(arrays: &[&Array], axis: i32) -> Array {
        built("stack", bridge::stack(&refs(arrays), axis))
    }

    /// Splits one dimension into equal sections.
    #[track_caller]
    pub fn split(&self, sections: i32, axis: i32) -> Vec<Array> {
        built_all("split", bridge::split(&self.0, sections, axis))
    }

    /// Repeats each element of one dimension `times` times in a row.
    #[track_caller]
    pub fn repeat(&self, times: i32, axis: i32) -> Array {
        built("repeat", bridge::repeat(&self.0, times, axis))
    }
}

/// Indexing.
impl Array {
    /// Returns the slices of `axis` at `indices`.
    #[track_caller]
    pub fn take(&self, indices: &Array, axis: i32) -> Array {
        built("take", bridge::take(&self.0, &indices.0, axis))
    }

    /// Returns one element per position of `indices`, looked up along `axis`.
    #[track_caller]
    pub fn take_along_axis(&self, indices: &Array, axis: i32) -> Array {
        built("take_along_axis", bridge::take_along_axis(&self.0, &indices.0, axis))
    }

    /// Returns `a` where `condition` is true, else `b`.
    #[track_caller]
    pub fn where_(condition: &Array, a: &Array, b: &Array) -> Array {
        built("where", bridge::where_(&condition.0, &a.0, &b.0))
    }

    /// Returns the same values, computed after `dependencies`.
    #[track_caller]
    pub fn after(&self, dependencies: &[&Array]) -> Array {
        built("depends", bridge::depends(&self.0, &refs(dependencies)))
    }
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $raw:ident;)*) => {
        /// Element-wise operations on two arrays.
        impl Array {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self, rhs: &Array) -> Array {
                built(stringify!($name), bridge::$raw(&self.0, &rhs.0))
            }
        )*}
    };
}

binary! {
    /// Returns `self + rhs`.
    add => add;
    /// Returns `self - rhs`.
    sub => subtract;
    /// Returns `self * rhs`.
    mul => multiply;
    /// Returns `self / rhs`.
    div => divide;
    /// Returns `self` to the power `rhs`.
    power => power;
    /// Returns the larger of both elements.
    maximum => maximum;
    /// Returns `log(exp(self) + exp(rhs))`.
    logaddexp => logaddexp;
    /// Returns the smaller of both elements.
    minimum => minimum;
    /// Returns whether `self > rhs`.
    greater => greater;
    /// Returns whether `self >= rhs`.
    greater_equal => greater_equal;
    /// Returns whether `self < rhs`.
    less => less;
    /// Returns whether `self <= rhs`.
    less_equal => less_equal;
    /// Returns whether both elements are equal.
    equal => equal;
    /// Returns whether both elements are true.
    logical_and => logical_and;
    /// Returns whether at least one element is true.
    logical_or => logical_or;
    /// Returns the matrix product over the last two dimensions.
    matmul => matmul;
    /// Returns `self << rhs`, for integers.
    left_shift => left_shift;
    /// Returns `self` shifted right by `rhs` bits, for integers.
    right_shift => right_shift;
    /// Returns the bitwise AND of both integers.
    bitwise_and => bitwise_and;
    /// Returns the bitwise exclusive OR of both integers.
    bitwise_xor => bitwise_xor;
    /// Returns the remainder of `self` by `rhs`, with the sign of `rhs`.
    remainder => remainder;
    /// Returns `self / rhs`, rounded down.
    floor_divide => floor_divide;
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $raw:ident;)*) => {
        /// Element-wise operations on one array.
        impl Array {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self) -> Array {
                built(stringify!($name), bridge::$raw(&self.0))
            }
        )*}
    };
}

unary! {
    /// Returns `-self`.
    neg => negative;
    /// Returns whether the element is false.
    logical_not => logical_not;
    /// Returns the absolute value.
    abs => abs;
    /// Returns `e` to the power `self`.
    exp => exp;
    /// Returns the natural logarithm.
    log => log;
    /// Returns the sine.
    sin => sin;
    /// Returns the cosine.
    cos => cos;
    /// Returns the hyperbolic tangent.
    tanh => tanh;
    /// Returns the error function.
    erf => erf;
    /// Returns `1 / (1 + exp(-self))`.
    sigmoid => sigmoid;
    /// Returns the nearest whole number, of two the even one.
    round => round;
    /// Returns `self * self`.
    square => square;
    /// Returns the square root.
    sqrt => sqrt;
    /// Returns one over the square root.
    rsqrt => rsqrt;
}

impl Array {
    /// Returns `self * sigmoid(self)`.
    #[track_caller]
    pub fn silu(&self) -> Array {
        self.mul(&self.sigmoid())
    }
}

/// Reductions, sums and sorting along one dimension.
impl Array {
    /// Returns the sum.
    #[track_caller]
    pub fn sum(&self, axis: i32, keepdims: bool) -> Array {
        built("sum", bridge::sum(&self.0, axis, keepdims))
    }

    /// Returns the mean.
    #[track_caller]
    pub fn mean(&self, axis: i32, keepdims: bool) -> Array {
        built("mean", bridge::mean(&self.0, axis, keepdims))
    }

    /// Returns the largest element.
    #[track_caller]
    pub fn max(&self, axis: i32, keepdims: bool) -> Array {
        built("max", bridge::max(&self.0, axis, keepdims))
    }

    /// Returns the smallest element.
    #[track_caller]
    pub fn min(&self, axis: i32, keepdims: bool) -> Array {
        built("min", bridge::min(&self.0, axis, keepdims))
    }

    /// Returns `log(sum(exp(self)))`.
    #[track_caller]
    pub fn logsumexp(&self, axis: i32, keepdims: bool) -> Array {
        built("logsumexp", bridge::logsumexp(&self.0, axis, keepdims))
    }

    /// Returns whether all elements are true.
    #[track_caller]
    pub fn all(&self, axis: i32, keepdims: bool) -> Array {
        built("all", bridge::all(&self.0, axis, keepdims))
    }

    /// Returns the index of the largest element (the first of equal ones), u32.
    #[track_caller]
    pub fn argmax(&self, axis: i32) -> Array {
        built("argmax", bridge::argmax(&self.0, axis))
    }

    /// Returns `exp(self) / sum(exp(self))`, accumulated in f32.
    #[track_caller]
    pub fn softmax(&self, axis: i32) -> Array {
        built("softmax", bridge::softmax(&self.0, axis))
    }

    /// Returns the running sums along the dimension; each includes the element at its position.
    #[track_caller]
    pub fn cumsum(&self, axis: i32) -> Array {
        built("cumsum", bridge::cumsum(&self.0, axis))
    }

    /// Returns the indices that sort the elements, u32, smallest first.
    #[track_caller]
    pub fn argsort(&self, axis: i32) -> Array {
        built("argsort", bridge::argsort(&self.0, axis))
    }

    /// Returns the indices, u32, of the elements in an order in which element `kth` is where
    /// sorting would put it, and no element before it is larger.
    #[track_caller]
    pub fn argpartition(&self, kth: i32, axis: i32) -> Array {
        built("argpartition", bridge::argpartition(&self.0, kth, axis))
    }
}

macro_rules! operator {
    ($($trait:ident $method:ident),*) => {$(
        operator!(@impl $trait $method, &Array, &Array, |a, b| Array::$method(a, b));
        operator!(@impl $trait $method, &Array, Array, |a, b| Array::$method(a, &b));
        operator!(@impl $trait $method, Array, &Array, |a, b| Array::$method(&a, b));
        operator!(@impl $trait $method, Array, Array, |a, b| Array::$method(&a, &b));
        operator!(@impl $trait $method, &Array, f32, |a, b| Array::$method(a, &a.constant(b)));
        operator!(@impl $trait $method, Array, f32, |a, b| Array::$method(&a, &a.constant(b)));
    )*};
    (@impl $trait:ident $method:ident, $lhs:ty, $rhs:ty, |$a:ident, $b:ident| $body:expr) => {
        impl ops::$trait<$rhs> for $lhs {
            type Output = Array;
            #[track_caller]
            fn $method(self, rhs: $rhs) -> Array {
                let ($a, $b) = (self, rhs);
                $body
            }
        }
    };
}

operator!(Add add, Sub sub, Mul mul, Div div);

impl ops::Neg for &Array {
    type Output = Array;
    #[track_caller]
    fn neg(self) -> Array {
        Array::neg(self)
    }
}

impl Array {
    /// Creates a scalar of this array's element type, so that arithmetic with a number keeps the
    /// type.
    #[track_caller]
    fn constant(&self, value: f32) -> Array {
        Array::scalar_of(value, self.dtype())
    }
}
