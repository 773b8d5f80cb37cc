//! Products of 16-bit activations with packed weights, in integers.
//!
//! Each row of activations is rounded group by group (the groups of the weights) to whole multiples of a power of two,
//! `x ≈ unit * q` with `q` of 16 bits; see [`rounding`]. A quantised weight is a small integer `c` under a scale
//! (and a bias), so the sum of a group,
//!
//! ```text
//!   sum over the group of x * (scale * c + bias)  ≈  unit * scale * (sum of q * c) + bias * (unit * sum of q),
//! ```
//!
//! needs one exact sum of integers, which has the same value in whatever order it is added. What is left in f32
//! has one fixed order ([`Lanes16`]): sixteen partial sums, sum `l` over the groups `l, l + 16, l + 32, …` from left to
//! right, for each group first the product and then the bias; in the end the sixteen are added halves onto halves. So
//! a result has the same bits whether its row was computed alone from the packed weights or among hundreds from an
//! unpacked tile.
//!
//! If the columns of a product are divided (`divisible`), a term consists of one, two, four or eight
//! groups. Their contributions are computed starting from zero and added in f32, neighbours first:
//! `((g0 + g1) + (g2 + g3)) + ((g4 + g5) + (g6 + g7))`. Only this sum is added to sums on the grid.
//!
//! A row that is not finite, or whose magnitudes are far from one, is computed by the exact path in f32 (see
//! [`rounding`]); which path a row takes depends on that row alone.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod rounding;

use std::ops::Range;

use jackalope_simd::{
    Elements, Float, InstructionSet, QuantFormat, QuantMatrix, QuantMode, Threads,
};

pub(crate) use self::rounding::InputColumns;
use self::rounding::{Rounded, SUMS};
use crate::terms::Results;

/// The partial sums of a result.
type Lanes16 = [f32; SUMS];

/// Returns whether these kernels compute products of such activations with such a matrix.
///
/// Activations in f32 keep their precision, eight-bit floats are not small integers, and on ARM
/// only `sdot` is faster than f32.
pub(crate) fn is_supported(
    x: Float,
    matrix: &QuantMatrix<'_>,
    instructions: InstructionSet,
) -> bool {
    #[cfg(target_arch = "aarch64")]
    let is_fast = instructions != InstructionSet::Neon || neon::is_available();
    #[cfg(not(target_arch = "aarch64"))]
    let is_fast = instructions != InstructionSet::Neon;
    is_fast && x != Float::F32 && matrix.format.mode != QuantMode::Mxfp8
}

/// Returns whether activations become lines, in which form AVX-512 multiplies them.
#[cfg(target_arch = "x86_64")]
fn has_lines(instructions: InstructionSet, format: QuantFormat) -> bool {
    instructions == InstructionSet::Avx512 && avx512::is_supported(format)
}

/// Activations of which products choose some rows.
pub(crate) struct PreparedRows {
    instructions: InstructionSet,
    format: QuantFormat,
    rounded: Rounded,
    #[cfg(target_arch = "x86_64")]
    lines: Option<avx512::RowLines>,
}

impl PreparedRows {
    /// Prepares `x` `[tokens, matrix.input]` for products with matrices of the format of `matrix`.
    pub(crate) fn new(
        x: Elements<'_>,
        matrix: &QuantMatrix<'_>,
        columns: InputColumns,
        threads: &Threads,
    ) -> PreparedRows {
        let (instructions, format) = (threads.instructions(), matrix.format);
        let rounded = Rounded::new(x, matrix, columns, threads);
        #[cfg(target_arch = "x86_64")]
        let lines = has_lines(instructions, format)
            .then(|| avx512::RowLines::new(&rounded, format, threads));
        PreparedRows {
            instructions,
            format,
            rounded,
            #[cfg(target_arch = "x86_64")]
            lines,
        }
    }

    /// Returns the rows with these indices, in this order.
    pub(crate) fn choose(&self, rows: &[usize]) -> Prepared {
        let PreparedRows { instructions, format, rounded, .. } = self;
        #[cfg(target_arch = "x86_64")]
        if let Some(lines) = &self.lines {
            let rounded = rounded.choose(rows, false);
            let lines = Some(lines.choose(rows, &rounded, *format));
            return Prepared { instructions: *instructions, rounded, lines, ordered: None };
        }
        Prepared::of_rounded(rounded.choose(rows, true), *format, *instructions)
    }
}

/// Activations ready for products with matrices of one format.
pub(crate) struct Prepared {
    instructions: InstructionSet,
    rounded: Rounded,
    #[cfg(target_arch = "x86_64")]
    lines: Option<avx512::Lines>,
    #[cfg(target_arch = "x86_64")]
    ordered: Option<avx2::Ordered>,
    #[cfg(target_arch = "aarch64")]
    halves: Option<neon::Halves>,
}

impl Prepared {
    /// Prepares `x` `[tokens, matrix.input]` for products with matrices of the format of `matrix`.
    pub(crate) fn new(
        x: Elements<'_>,
        matrix: &QuantMatrix<'_>,
        columns: InputColumns,
        threads: &Threads,
    ) -> Prepared {
        let instructions = threads.instructions();
        let rounded = Rounded::new(x, matrix, columns, threads);
        #[cfg(target_arch = "x86_64")]
        if has_lines(instructions, matrix.format) {
            let lines = Some(avx512::Lines::new(&rounded, matrix.format, threads));
            return Prepared { instructions, rounded, lines, ordered: None };
        }
        Prepared::of_rounded(rounded, matrix.format, instructions)
    }

    /// Orders rounded activations for the instruction set; AVX-512 has lines instead.
    fn of_rounded(rounded: Rounded, format: QuantFormat, instructions: InstructionSet) -> Prepared {
        #[cfg(target_arch = "x86_64")]
        let ordered = matches!(instructions, InstructionSet::Avx2 | InstructionSet::Avx512)
            .then(|| avx2::Ordered::new(&rounded, format));
        #[cfg(target_arch = "aarch64")]
        let halves = (instructions == InstructionSet::Neon).then(|| neon::Halves::new(&rounded));
        #[cfg(target_arch = "aarch64")]
        let _ = format;
        Prepared {
            instructions,
            rounded,
            #[cfg(target_arch = "x86_64")]
            lines: None,
            #[cfg(target_arch = "x86_64")]
            ordered,
            #[cfg(target_arch = "aarch64")]
            halves,
        }
    }

    /// Returns the groups whose terms the exact path has to add, as pairs of token and group.
    pub(crate) fn unrounded_groups(&self) -> impl Iterator<Item = (usize, usize)> {
        self.rounded.unrounded_groups()
    }

    /// Returns the rows that the exact path must compute.
    pub(crate) fn unrounded_tokens(&self) -> Vec<usize> {
        let mut tokens: Vec<usize> = self.unrounded_groups().map(|(token, _)| token).collect();
        tokens.dedup();
        tokens
    }

    /// Computes the results of all tokens for the weight rows `rows`; `out` has one view of
    /// `rows.len()` elements per token. The caller overwrites the results for
    /// [`Prepared::unrounded_tokens`], or adds the terms of [`Prepared::unrounded_groups`] to them.
    pub(crate) fn multiply_rows<R: Results>(
        &self,
        matrix: &QuantMatrix<'_>,
        rows: Range<usize>,
        out: &mut [R],
    ) {
        #[cfg(target_arch = "x86_64")]
        if let Some(lines) = &self.lines {
            return avx512::multiply_rows(lines, &self.rounded, matrix, rows, out);
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(ordered) = &self.ordered {
            return avx2::multiply_rows(ordered, &self.rounded, matrix, rows, out);
        }
        #[cfg(target_arch = "aarch64")]
        if let Some(halves) = &self.halves {
            return neon::multiply_rows(halves, &self.rounded, matrix, rows, out);
        }
        portable::multiply_rows(self.instructions, &self.rounded, matrix, rows, out);
    }
}

/// Runs only the multiplication instruction for 16-bit activations and codes, and returns the
/// number of multiplications.
#[cfg(target_arch = "x86_64")]
pub(crate) fn avx512_peak_macs() -> usize {
    avx512::peak_macs()
}

/// Adds sixteen partial sums, halves onto halves.
#[inline(always)]
fn total(sums: &Lanes16) -> f32 {
    let mut sums = *sums;
    let mut half = SUMS / 2;
    while half > 0 {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
        half /= 2;
    }
    sums[0]
}
