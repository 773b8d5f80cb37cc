//! The widest vectors of an instruction set, for kernels in which every lane computes a separate
//! result, so that results do not depend on the width.

use half::{bf16, f16};

use super::{InstructionSet, LANES, Simd};

/// Number of lanes of the widest vectors of all sets; a multiple of the others.
pub const WIDEST: usize = 16;

/// Operations on the widest vectors of an instruction set. A slice that is loaded from or stored to has at least
/// [`Wide::LANES`] elements; the others are left alone.
pub trait Wide: Copy {
    /// The same instruction set with vectors of eight lanes.
    type Narrow: Simd;
    /// [`Wide::LANES`] f32.
    type Floats: Copy;

    /// The set's name.
    const INSTRUCTIONS: InstructionSet;

    /// Number of lanes of a vector.
    const LANES: usize;

    /// Loads a vector.
    fn load_f32(self, from: &[f32]) -> Self::Floats;

    /// Loads a vector; exact.
    fn load_bf16(self, from: &[bf16]) -> Self::Floats;

    /// Loads a vector; exact.
    fn load_f16(self, from: &[f16]) -> Self::Floats;

    /// Stores a vector.
    fn store(self, values: Self::Floats, to: &mut [f32]);

    /// Returns a vector with `value` in every lane.
    fn splat(self, value: f32) -> Self::Floats;

    /// `a * b + c`, rounded as [`Simd::mul_add`] rounds.
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// Loads two vectors, in the order that is cheapest: that of [`Wide::split_pair`].
    #[inline(always)]
    fn load_bf16_pair(self, from: &[bf16]) -> [Self::Floats; 2] {
        [self.load_bf16(from), self.load_bf16(&from[Self::LANES..])]
    }

    /// Brings the lanes of two vectors from the order of memory into that of
    /// [`Wide::load_bf16_pair`].
    #[inline(always)]
    fn split_pair(self, pair: [Self::Floats; 2]) -> [Self::Floats; 2] {
        pair
    }

    /// Undoes [`Wide::split_pair`].
    #[inline(always)]
    fn join_pair(self, pair: [Self::Floats; 2]) -> [Self::Floats; 2] {
        pair
    }

    /// Prefetches memory that is read soon.
    fn prefetch_soon<T>(self, from: &T);
}

/// Sets whose widest vectors are those of [`Simd`].
impl<S: Simd> Wide for S {
    type Narrow = S;
    type Floats = S::Floats;

    const INSTRUCTIONS: InstructionSet = <S as Simd>::INSTRUCTIONS;
    const LANES: usize = LANES;

    #[inline(always)]
    fn load_f32(self, from: &[f32]) -> S::Floats {
        self.load(first(from))
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16]) -> S::Floats {
        Simd::load_bf16(self, first(from))
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16]) -> S::Floats {
        Simd::load_f16(self, first(from))
    }

    #[inline(always)]
    fn store(self, values: S::Floats, to: &mut [f32]) {
        Simd::store(self, values, to.first_chunk_mut().expect("a whole vector"));
    }

    #[inline(always)]
    fn splat(self, value: f32) -> S::Floats {
        Simd::splat(self, value)
    }

    #[inline(always)]
    fn mul_add(self, a: S::Floats, b: S::Floats, c: S::Floats) -> S::Floats {
        Simd::mul_add(self, a, b, c)
    }

    #[inline(always)]
    fn prefetch_soon<T>(self, from: &T) {
        Simd::prefetch(self, from, 0);
    }
}

/// Returns the first elements of a slice, as many as a vector has.
#[inline(always)]
fn first<T, const LANES: usize>(from: &[T]) -> &[T; LANES] {
    from.first_chunk().expect("a whole vector")
}
