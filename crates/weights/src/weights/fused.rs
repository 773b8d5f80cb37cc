//! Reads a projection of all experts from a tensor that has the rows of another projection too, or
//! that is transposed: the layouts of original checkpoints.

use std::ops::Range;

use jackalope_spec::{FusedForm, FusedSource};

use crate::checkpoint::{NUM_READERS, Pieces, TensorEntry, in_parallel};
use crate::error::LoadError;
use crate::transposing::Transposing;

/// A part of a projection of all experts.
#[derive(Clone, Debug)]
pub(super) struct FusedPart<'a> {
    pub(super) source: &'a FusedSource,
    /// Whether the projection has two dimensions besides that of the experts, not one.
    pub(super) is_matrix: bool,
    /// Number of rows of the whole projection.
    pub(super) num_rows: usize,
    /// Number of elements of its rows.
    pub(super) num_columns: usize,
    pub(super) element_bytes: usize,
    /// The rows of the part.
    pub(super) rows: Range<usize>,
    /// The columns of the part.
    pub(super) columns: Range<usize>,
}

impl FusedPart<'_> {
    /// Reads the part of every expert.
    pub(super) fn read(&self, entry: &TensorEntry, target: &mut [u8]) -> Result<(), LoadError> {
        let expert_bytes = self.rows.len() * self.columns.len() * self.element_bytes;
        if expert_bytes == 0 {
            return Ok(());
        }
        if self.source.form == FusedForm::Columns && self.is_matrix {
            return self.read_columns(entry, target.chunks_exact_mut(expert_bytes));
        }
        let experts = target.chunks_exact_mut(expert_bytes).enumerate();
        in_parallel(experts, NUM_READERS, |(expert, target)| {
            entry.file.read(self.row_pieces(entry, expert), target)
        })
    }

    /// Returns where an expert's rows are, which may have those of another projection between them.
    fn row_pieces(&self, entry: &TensorEntry, expert: usize) -> Pieces {
        let FusedSource { first_row, row_step, num_projections, .. } = *self.source;
        let first = expert * num_projections * self.num_rows + first_row;
        let first = first + self.rows.start * row_step;
        let row_bytes = self.num_columns * self.element_bytes;
        let offset = first * row_bytes + self.columns.start * self.element_bytes;
        let offset = entry.offset + offset as u64;
        if row_step == 1 && self.columns.len() == self.num_columns {
            return Pieces::run(offset, self.rows.len() * row_bytes);
        }
        Pieces {
            offset,
            piece_bytes: self.columns.len() * self.element_bytes,
            stride_bytes: (row_step * row_bytes) as u64,
        }
    }

    /// Reads rows that are stored as columns.
    fn read_columns<'t>(
        &self,
        entry: &TensorEntry,
        targets: impl Iterator<Item = &'t mut [u8]>,
    ) -> Result<(), LoadError> {
        let FusedSource { first_row, row_step, num_projections, .. } = *self.source;
        let stored_rows = num_projections * self.num_rows;
        // What lies between the rows of the projection is read with them.
        let span = (self.rows.len() - 1) * row_step + 1;
        let first_row = first_row + self.rows.start * row_step;
        in_parallel(targets.enumerate(), NUM_READERS, |(expert, target)| {
            let mut stored = vec![0; self.columns.len() * span * self.element_bytes];
            let first = (expert * self.num_columns + self.columns.start) * stored_rows + first_row;
            let pieces = Pieces {
                offset: entry.offset + (first * self.element_bytes) as u64,
                piece_bytes: span * self.element_bytes,
                stride_bytes: (stored_rows * self.element_bytes) as u64,
            };
            entry.file.read(pieces, &mut stored)?;
            let transposing = Transposing {
                stored: &stored,
                span,
                row_step,
                num_columns: self.columns.len(),
                element_bytes: self.element_bytes,
            };
            transposing.write(target);
            Ok(())
        })
    }
}
