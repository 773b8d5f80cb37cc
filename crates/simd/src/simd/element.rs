//! Element types, whose vectors are converted to f32 when they are loaded.

use half::{bf16, f16};

use super::{LANES, Lanes, Simd, Wide};

/// An element type of matrices, keys and values in memory.
pub trait VectorElement: Copy {
    /// Zero.
    const ZERO: Self;

    /// Loads a vector of eight lanes; exact.
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::Floats;

    /// Loads the vector that `from` begins with.
    fn load_wide<W: Wide>(simd: W, from: &[Self]) -> W::Floats;

    /// Loads the two vectors that `from` begins with; the order of their lanes depends on the type.
    #[inline(always)]
    fn load_pair<W: Wide>(simd: W, from: &[Self]) -> [W::Floats; 2] {
        [Self::load_wide(simd, from), Self::load_wide(simd, &from[W::LANES..])]
    }

    /// Loads two vectors of sums, with lanes in the order of [`VectorElement::load_pair`].
    #[inline(always)]
    fn load_sums<W: Wide>(simd: W, from: &[f32]) -> [W::Floats; 2] {
        [simd.load_f32(from), simd.load_f32(&from[W::LANES..])]
    }

    /// Stores two vectors of sums that [`VectorElement::load_sums`] has loaded, in the order of memory.
    #[inline(always)]
    fn store_sums<W: Wide>(simd: W, sums: [W::Floats; 2], to: &mut [f32]) {
        simd.store(sums[0], to);
        simd.store(sums[1], &mut to[W::LANES..]);
    }
}

impl VectorElement for f32 {
    const ZERO: f32 = 0.0;

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &Lanes) -> S::Floats {
        simd.load(from)
    }

    #[inline(always)]
    fn load_wide<W: Wide>(simd: W, from: &[f32]) -> W::Floats {
        simd.load_f32(from)
    }
}

impl VectorElement for f16 {
    const ZERO: f16 = f16::ZERO;

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[f16; LANES]) -> S::Floats {
        Simd::load_f16(simd, from)
    }

    #[inline(always)]
    fn load_wide<W: Wide>(simd: W, from: &[f16]) -> W::Floats {
        simd.load_f16(from)
    }
}

impl VectorElement for bf16 {
    const ZERO: bf16 = bf16::ZERO;

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[bf16; LANES]) -> S::Floats {
        Simd::load_bf16(simd, from)
    }

    #[inline(always)]
    fn load_wide<W: Wide>(simd: W, from: &[bf16]) -> W::Floats {
        simd.load_bf16(from)
    }

    #[inline(always)]
    fn load_pair<W: Wide>(simd: W, from: &[bf16]) -> [W::Floats; 2] {
        simd.load_bf16_pair(from)
    }

    #[inline(always)]
    fn load_sums<W: Wide>(simd: W, from: &[f32]) -> [W::Floats; 2] {
        simd.split_pair([simd.load_f32(from), simd.load_f32(&from[W::LANES..])])
    }

    #[inline(always)]
    fn store_sums<W: Wide>(simd: W, sums: [W::Floats; 2], to: &mut [f32]) {
        let [first, second] = simd.join_pair(sums);
        simd.store(first, to);
        simd.store(second, &mut to[W::LANES..]);
    }
}
