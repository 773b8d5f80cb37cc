//! Activations as 16-bit integers, group by group as [`round_group`] rounds them.
//!
//! A row is not rounded, and takes the exact path in f32, if one of its groups cannot be rounded. So the
//! rules of IEEE 754 hold for infinities and NaN, and no unit or product of a unit with a sensible scale
//! leaves the range of f32. If the columns of a product are divided, no machine has whole rows, and this is
//! decided for each group separately.

use jackalope_simd::{
    E2M1_FACTOR, Elements, QuantMatrix, QuantMode, Simd, Threads, dispatched, round_group,
};

/// Number of partial sums of a result.
pub(super) const SUMS: usize = 16;

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
    /// `[tokens, input]`; empty if they are in the lines of AVX-512 alone.
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
        assert!(group_size.is_power_of_two(), "groups of every format have a power of two");
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

    /// Returns the rows with these indices, in this order; without their values if these are elsewhere.
    pub(super) fn choose(&self, rows: &[usize], has_values: bool) -> Rounded {
        let Rounded { input, group_size, padded_groups, columns, .. } = *self;
        let Groups { units, sums, totals } = &self.groups;
        Rounded {
            tokens: rows.len(),
            input,
            group_size,
            padded_groups,
            values: if has_values { choose_rows(&self.values, input, rows) } else { Vec::new() },
            groups: Groups {
                units: choose_rows(units, padded_groups, rows),
                sums: choose_rows(sums, padded_groups, rows),
                totals: choose_rows(totals, padded_groups, rows),
            },
            unrounded: choose_rows(&self.unrounded, padded_groups, rows),
            columns,
        }
    }

    /// Returns the groups that are left to the exact path, as pairs of token and group.
    pub(super) fn unrounded_groups(&self) -> impl Iterator<Item = (usize, usize)> {
        let found = self.unrounded.iter().enumerate().filter(|(_, is_unrounded)| **is_unrounded);
        found.map(|(idx, _)| (idx / self.padded_groups, idx % self.padded_groups))
    }

    /// Returns the number of groups of a row, without padding.
    pub(super) fn num_groups(&self) -> usize {
        // A power of two. A division would be measurable, because this is called for every row.
        self.input >> self.group_size.trailing_zeros()
    }
}

/// Copies some rows of `values` `[rows, width]`.
fn choose_rows<T: Copy>(values: &[T], width: usize, rows: &[usize]) -> Vec<T> {
    let mut chosen = Vec::with_capacity(rows.len() * width);
    rows.iter().for_each(|row| chosen.extend_from_slice(&values[row * width..(row + 1) * width]));
    chosen
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
