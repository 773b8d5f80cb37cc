//! Activations as 16-bit integers.
//!
//! The unit of a group is the power of two `u` with `max |x| <= 32639 * u` and `max |x| > 32639 / 2 * u`; then
//! `q = x / u` to the nearest integer, ties to even. So the error of an element is at most `u / 2`, below
//! `max |x| / 32639`. Because the unit is a power of two, an element is *exact* when its last significant bit is worth
//! `u` or more: every bf16 of at least a 128th of its group's maximum, and every f16 of at least a 16th (f16 has
//! three bits more). The bound 32639 = 127 * 256 + 127 lets `q` be cut into two signed bytes, `q = 256 * h + l`.
//!
//! A row is not rounded, and takes the exact path in f32, if an element is not finite or a group's
//! maximum is beyond `2^±100`. So the rules of IEEE 754 hold for infinities and NaN, and no unit or
//! product of a unit with a sensible scale leaves the range of f32. If the columns of a product are
//! divided, no machine has whole rows, and this is decided for each group separately.

use jackalope_simd::{E2M1_FACTOR, Elements, QuantMatrix, QuantMode, Simd, Threads, dispatched};

/// Number of partial sums of a result.
pub(super) const SUMS: usize = 16;

/// The largest `q`.
pub(super) const Q_MAX: f32 = 32639.0;

/// Bits of the smallest and largest maximum of a group: `2^-100` and `2^100`.
const MAX_BITS_LOW: u32 = (127 - 100) << 23;
const MAX_BITS_HIGH: u32 = (127 + 100) << 23;

/// Number of elements of a piece of work.
const PIECE_ELEMENTS: usize = 1 << 15;

/// Rounded activations.
pub(super) struct Rounded {
    pub(super) tokens: usize,
    /// Number of columns.
    pub(super) input: usize,
    /// Number of elements of a group.
    pub(super) group_size: usize,
    /// Number of groups of a row, padded with zeros to a multiple of [`SUMS`].
    pub(super) padded_groups: usize,
    /// `[tokens, input]`.
    pub(super) values: Vec<i16>,
    /// Values of each group, `[tokens, padded_groups]`.
    pub(super) groups: Groups,
    /// Whether a group is left to the exact path, `[tokens, padded_groups]`. The group, or its row,
    /// is zero here.
    unrounded: Vec<bool>,
    pub(super) columns: InputColumns,
}

/// Whether a product has all columns of the activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputColumns {
    /// All columns. A row with a group that cannot be rounded takes the exact path.
    Whole,
    /// A part of the columns, or all of them with the same result as the parts together. Only a
    /// group that cannot be rounded takes the exact path.
    Divided {
        /// Groups that are added in f32 before their sum is rounded: 1, 2, 4 or
        /// [`crate::terms::GROUPS_PER_TERM_MAX`].
        groups_per_term: usize,
    },
}

impl InputColumns {
    /// Groups of a term; one if the columns are not divided.
    pub(super) fn groups_per_term(self) -> usize {
        match self {
            InputColumns::Whole => 1,
            InputColumns::Divided { groups_per_term } => groups_per_term,
        }
    }
}

/// Values of each group.
#[derive(Default)]
pub(super) struct Groups {
    /// The unit, divided by the factor that makes the weights' codes integers.
    pub(super) units: Vec<f32>,
    /// `unit * sum of q`, exact.
    pub(super) sums: Vec<f32>,
    /// `sum of q`.
    pub(super) totals: Vec<i32>,
}

impl Rounded {
    /// Rounds `x` `[tokens, matrix.input]` in the groups of `matrix`.
    pub(super) fn new(
        x: Elements<'_>,
        matrix: &QuantMatrix<'_>,
        columns: InputColumns,
        threads: &Threads,
    ) -> Rounded {
        let (input, group_size) = (matrix.input, matrix.format.group_size as usize);
        let tokens = x.len() / input;
        let padded_groups = (input / group_size).next_multiple_of(SUMS);
        let mut values = vec![0; tokens * input];
        let num_groups = tokens * padded_groups;
        let mut groups = Groups {
            units: vec![0.0; num_groups],
            sums: vec![0.0; num_groups],
            totals: vec![0; num_groups],
        };
        let mut unrounded = vec![false; num_groups];
        let factor = match matrix.format.mode {
            QuantMode::Affine => 1.0,
            _ => 1.0 / E2M1_FACTOR,
        };
        let piece_tokens = PIECE_ELEMENTS.div_ceil(input);
        let pieces = values
            .chunks_mut(piece_tokens * input)
            .zip(groups.units.chunks_mut(piece_tokens * padded_groups))
            .zip(groups.sums.chunks_mut(piece_tokens * padded_groups))
            .zip(groups.totals.chunks_mut(piece_tokens * padded_groups))
            .zip(unrounded.chunks_mut(piece_tokens * padded_groups))
            .enumerate()
            .map(|(piece, ((((values, units), sums), totals), unrounded))| {
                let first_token = piece * piece_tokens;
                Piece {
                    first_token,
                    input,
                    group_size,
                    padded_groups,
                    columns,
                    factor,
                    values,
                    units,
                    sums,
                    totals,
                    unrounded,
                }
            });
        threads.for_each(pieces.collect(), |mut piece| {
            round_rows(threads.instructions(), x, &mut piece);
        });
        Rounded { tokens, input, group_size, padded_groups, values, groups, unrounded, columns }
    }

    /// Returns the groups that are left to the exact path, as pairs of token and group.
    pub(super) fn unrounded_groups(&self) -> impl Iterator<Item = (usize, usize)> {
        let found = self.unrounded.iter().enumerate().filter(|(_, is_unrounded)| **is_unrounded);
        found.map(|(idx, _)| (idx / self.padded_groups, idx % self.padded_groups))
    }

    /// Returns the number of groups of a row, without padding.
    pub(super) fn num_groups(&self) -> usize {
        self.input / self.group_size
    }
}

/// Rows of activations that one thread rounds, and the destination of the results.
struct Piece<'a> {
    first_token: usize,
    input: usize,
    group_size: usize,
    padded_groups: usize,
    columns: InputColumns,
    factor: f32,
    values: &'a mut [i16],
    units: &'a mut [f32],
    sums: &'a mut [f32],
    totals: &'a mut [i32],
    unrounded: &'a mut [bool],
}

dispatched! { fn round_rows(x: Elements<'_>, piece: &mut Piece<'_>) = round_rows_with }

#[inline(always)]
fn round_rows_with<S: Simd>(_simd: S, x: Elements<'_>, piece: &mut Piece<'_>) {
    let Piece { input, group_size, padded_groups, columns, factor, .. } = *piece;
    let mut row = vec![0.0; input];
    for offset in 0..piece.values.len() / input {
        x.load((piece.first_token + offset) * input, &mut row);
        let values = &mut piece.values[offset * input..][..input];
        let first_group = offset * padded_groups;
        let mut is_ordinary = true;
        for (group, (x, q)) in
            row.chunks_exact(group_size).zip(values.chunks_exact_mut(group_size)).enumerate()
        {
            let (unit, total, is_group_ordinary) = round_group(x, q);
            is_ordinary &= is_group_ordinary;
            piece.unrounded[first_group + group] = !is_group_ordinary;
            piece.units[first_group + group] = unit * factor;
            piece.sums[first_group + group] = unit * total as f32;
            piece.totals[first_group + group] = total;
        }
        if !is_ordinary && columns == InputColumns::Whole {
            values.fill(0);
            for group in first_group..first_group + padded_groups {
                piece.units[group] = 0.0;
                piece.sums[group] = 0.0;
                piece.totals[group] = 0;
            }
        }
    }
}

/// Rounds the group `x` to `q`. Returns the unit, the sum of the rounded values, and whether the
/// group could be rounded; if not, `q` is zero.
#[inline(always)]
fn round_group(x: &[f32], q: &mut [i16]) -> (f32, i32, bool) {
    // Magnitudes have the same order as their bits, and NaN is above infinity.
    let max_bits = x.iter().fold(0, |max, x| (x.to_bits() & 0x7fff_ffff).max(max));
    if max_bits == 0 {
        q.fill(0);
        return (0.0, 0, true);
    }
    if !(MAX_BITS_LOW..=MAX_BITS_HIGH).contains(&max_bits) {
        q.fill(0);
        return (0.0, 0, false);
    }
    // A maximum of `m * 2^e`, `1 <= m < 2`, has the unit `2^(e - 14)`, or twice that for the few `m` just below two.
    let raised = f32::from_bits(max_bits) * (32768.0 / Q_MAX);
    let exponent = raised.to_bits() >> 23;
    let unit = f32::from_bits((exponent - 14) << 23);
    let inverse = f32::from_bits((254 + 14 - exponent) << 23);
    // Adding 1.5 * 2^23 rounds to an integer, ties to even, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let mut total = 0;
    for (x, q) in x.iter().zip(q) {
        let rounded = (x * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
        *q = rounded as i16;
        total += rounded;
    }
    (unit, total, true)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{Q_MAX, round_group};

    /// Checks one group: the range, the error, and which values are exact.
    fn check(x: &[f32], exact_share: f32) {
        let mut q = vec![0; x.len()];
        let (unit, total, is_ordinary) = round_group(x, &mut q);
        assert!(is_ordinary);
        assert_eq!(total, q.iter().map(|q| i32::from(*q)).sum::<i32>());
        let max = x.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
        for (x, q) in x.iter().zip(q) {
            assert!(f32::from(q).abs() <= Q_MAX, "{x} became {q}");
            let error = (f32::from(q) * unit - x).abs();
            assert!(error <= unit / 2.0 && unit * Q_MAX <= 2.0 * max, "{x} is {q} times {unit}");
            assert!(error == 0.0 || x.abs() < max / exact_share, "{x} of {max} was rounded");
        }
    }

    #[test]
    fn every_maximum_fits_and_large_values_are_exact() {
        for bits in 0x3f00..0x4100_u16 {
            let max = bf16::from_bits(bits);
            let smaller = (0..128).map(|less| -bf16::from_bits(bits - 7 * less).to_f32());
            check(&[max.to_f32()].into_iter().chain(smaller).collect::<Vec<_>>(), 128.0);
        }
        for bits in (0x3000..0x7c00_u16).step_by(3) {
            let max = f16::from_bits(bits);
            let smaller = (0..128).map(|less| f16::from_bits(bits - 90 * less).to_f32());
            check(&[-max.to_f32()].into_iter().chain(smaller).collect::<Vec<_>>(), 16.0);
        }
    }

    #[test]
    fn what_cannot_be_rounded_is_left_to_the_exact_path() {
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e31, 1e-31, 1e-40] {
            assert!(!round_group(&[0.0, strange], &mut [0; 2]).2, "{strange}");
        }
        assert_eq!(round_group(&[0.0, -0.0], &mut [1; 2]), (0.0, 0, true));
        assert!(round_group(&[1e-40, 1.0], &mut [0; 2]).2);
    }
}
