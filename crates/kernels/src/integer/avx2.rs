//! Integer products with `vpmaddwd`: sixteen products of 16 bits, added in pairs into eight lanes,
//! never saturated.
//!
//! For few rows of activations, the packed weights are unpacked in registers (`few`). For many
//! rows, a tile of weights is unpacked once for all of them (`tile`).
#![expect(unsafe_code, reason = "calling and loading for a detected instruction set")]
#![expect(
    clippy::needless_range_loop,
    reason = "indices name tokens, rows and groups alike, and iterators' closures would be compiled without the set"
)]

mod codes;
mod few;
mod scales;
mod tile;

use std::arch::x86_64::*;
use std::ops::Range;

use jackalope_simd::{Avx2, QuantFormat, QuantMatrix, QuantMode};

use self::codes::{Codes, Fields, SignedNibbles, Spread};
use super::rounding::Rounded;
use crate::terms::{ANCHOR, AWAY, Results};

/// Declares functions compiled for the instruction set.
macro_rules! for_avx2 {
    ($($item:item)*) => {
        $(
            #[target_feature(enable = "avx2,fma,f16c,bmi2")]
            $item
        )*
    };
}
use for_avx2;

/// Number of columns of a multiplication.
const LANES: usize = 16;

/// Number of rows of activations above which weights are unpacked into tiles.
const FEW_TOKENS: usize = 16;

/// Activations that are multiplied at once. They do not cross a cache line, where loading would take twice as long.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Register([i16; LANES]);

/// Rounded activations of few rows, in the order in which weights are unpacked: `[tokens, loads,
/// registers]`, with zeros for the padding of groups.
pub(super) struct Ordered {
    values: Vec<Register>,
}

impl Ordered {
    /// Orders the activations of few rows; empty if there are many rows, which need no other order.
    pub(super) fn new(x: &Rounded, format: QuantFormat) -> Ordered {
        let stride = x.padded_groups * x.group_size / LANES;
        let tokens = if x.tokens <= FEW_TOKENS { x.tokens } else { 0 };
        let mut values = vec![Register([0; LANES]); tokens * stride];
        for (token, to) in values.chunks_mut(stride).enumerate() {
            let from = &x.values[token * x.input..][..x.input];
            with_codes(format, OrderRow { from, to });
        }
        Ordered { values }
    }
}

/// A computation that is compiled for the codes of each format; see [`with_codes`].
trait WithCodes {
    /// Runs the computation. A group is the sum of `LOADS` loads, in `SUM_LANES` lanes of 32 bits.
    fn run<C: Codes, const LOADS: usize, const SUM_LANES: usize>(self);
}

/// Runs `work` compiled for the codes of `format`.
fn with_codes(format: QuantFormat, work: impl WithCodes) {
    match (format.mode, format.bits, format.group_size) {
        (QuantMode::Affine, 2, 32) => work.run::<Fields<2>, 1, 2>(),
        (QuantMode::Affine, 2, 64) => work.run::<Fields<2>, 1, 4>(),
        (QuantMode::Affine, 2, _) => work.run::<Fields<2>, 1, 8>(),
        (QuantMode::Affine, 4, 32) => work.run::<Fields<4>, 1, 4>(),
        (QuantMode::Affine, 4, 64) => work.run::<Fields<4>, 1, 8>(),
        (QuantMode::Affine, 4, _) => work.run::<Fields<4>, 2, 8>(),
        (QuantMode::Affine, 8, 32) => work.run::<Fields<8>, 1, 8>(),
        (QuantMode::Affine, 8, 64) => work.run::<Fields<8>, 2, 8>(),
        (QuantMode::Affine, 8, _) => work.run::<Fields<8>, 4, 8>(),
        (QuantMode::Affine, 3, _) => with_spread_codes::<3>(format, work),
        (QuantMode::Affine, 5, _) => with_spread_codes::<5>(format, work),
        (QuantMode::Affine, ..) => with_spread_codes::<6>(format, work),
        (QuantMode::Nvfp4, ..) => work.run::<SignedNibbles, 1, 2>(),
        _ => work.run::<SignedNibbles, 1, 4>(),
    }
}

fn with_spread_codes<const BITS: usize>(format: QuantFormat, work: impl WithCodes) {
    match format.group_size {
        32 => work.run::<Spread<BITS>, 2, 8>(),
        64 => work.run::<Spread<BITS>, 4, 8>(),
        _ => work.run::<Spread<BITS>, 8, 8>(),
    }
}

struct OrderRow<'a> {
    from: &'a [i16],
    to: &'a mut [Register],
}

impl WithCodes for OrderRow<'_> {
    fn run<C: Codes, const LOADS: usize, const SUM_LANES: usize>(self) {
        let load_columns = LANES * C::REGISTERS;
        for (from, to) in self.from.chunks(load_columns).zip(self.to.chunks_exact_mut(C::REGISTERS))
        {
            let mut padded = [0; 8 * LANES];
            padded[..from.len()].copy_from_slice(from);
            for (register, Register(to)) in to.iter_mut().enumerate() {
                for (lane, to) in to.iter_mut().enumerate() {
                    *to = padded[lane * C::REGISTERS + register];
                }
            }
        }
    }
}

/// See [`super::Prepared::multiply_rows`].
pub(super) fn multiply_rows<R: Results>(
    ordered: &Ordered,
    x: &Rounded,
    matrix: &QuantMatrix<'_>,
    rows: Range<usize>,
    out: &mut [R],
) {
    let Avx2 { .. } = Avx2::detect().expect("`Threads` asserts its set");
    if x.tokens <= FEW_TOKENS {
        with_codes(
            matrix.format,
            few::Multiply { job: few::Job { ordered, x, matrix, rows }, out },
        );
    } else {
        // SAFETY: just detected.
        unsafe { tile::multiply(x, matrix, rows, out) }
    }
}

/// Eight sums on the grid; see [`crate::divisible`].
#[derive(Clone, Copy)]
struct GridSums([__m256d; 2]);

for_avx2! {
    /// Eight sums without any term.
    #[inline]
    fn no_terms() -> GridSums {
        GridSums([_mm256_set1_pd(ANCHOR); 2])
    }

    /// Adds one term to each sum.
    #[inline]
    fn add_terms(GridSums([low, high]): GridSums, terms: __m256) -> GridSums {
        let away = _mm256_set1_pd(AWAY);
        let low_terms = _mm256_cvtps_pd(_mm256_castps256_ps128(terms));
        let high_terms = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(terms));
        GridSums([
            _mm256_fmadd_pd(low_terms, away, low),
            _mm256_fmadd_pd(high_terms, away, high),
        ])
    }

    /// The terms of eight groups, each in the lane of its first group; zeros in the other lanes.
    #[inline]
    fn terms_of(groups: __m256, groups_per_term: usize) -> __m256 {
        let mut terms = groups;
        if 2 <= groups_per_term {
            terms = _mm256_add_ps(terms, _mm256_permute_ps::<0b10_11_00_01>(terms));
        }
        if 4 <= groups_per_term {
            terms = _mm256_add_ps(terms, _mm256_permute_ps::<0b01_00_11_10>(terms));
        }
        if 8 <= groups_per_term {
            terms = _mm256_add_ps(terms, _mm256_permute2f128_ps::<1>(terms, terms));
        }
        let zeros = _mm256_setzero_ps();
        match groups_per_term {
            1 => terms,
            2 => _mm256_blend_ps::<0b0101_0101>(zeros, terms),
            4 => _mm256_blend_ps::<0b0001_0001>(zeros, terms),
            _ => _mm256_blend_ps::<0b0000_0001>(zeros, terms),
        }
    }

    /// The eight sums.
    #[inline]
    fn on_grid(GridSums([low, high]): GridSums) -> [f64; 8] {
        let anchor = _mm256_set1_pd(ANCHOR);
        let mut sums = [0.0; 8];
        // SAFETY: twice four values.
        unsafe {
            _mm256_storeu_pd(sums.as_mut_ptr(), _mm256_sub_pd(low, anchor));
            _mm256_storeu_pd(sums.as_mut_ptr().add(4), _mm256_sub_pd(high, anchor));
        }
        sums
    }

    /// The total of the eight sums.
    #[inline]
    fn total_on_grid(GridSums([low, high]): GridSums) -> f64 {
        let anchor = _mm256_set1_pd(ANCHOR);
        let four = _mm256_add_pd(_mm256_sub_pd(low, anchor), _mm256_sub_pd(high, anchor));
        let two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd::<1>(four));
        _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
    }
}
