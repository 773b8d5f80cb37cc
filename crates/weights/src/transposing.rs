//! Transposes matrices whose elements have two or four bytes.

/// Number of rows and columns that are transposed together, so that both sides stay in the cache.
const TILE: usize = 32;

/// Columns `[columns, span]`, of which every `row_step`-th element is a row's.
pub(crate) struct Transposing<'a> {
    pub(crate) stored: &'a [u8],
    pub(crate) span: usize,
    pub(crate) row_step: usize,
    pub(crate) num_columns: usize,
    pub(crate) element_bytes: usize,
}

impl Transposing<'_> {
    /// Writes the rows `[rows, columns]`.
    ///
    /// # Panics
    /// Panics if elements have neither two nor four bytes.
    pub(crate) fn write(&self, target: &mut [u8]) {
        match self.element_bytes {
            2 => self.write_elements::<2>(target),
            4 => self.write_elements::<4>(target),
            other => panic!("elements of {other} bytes"),
        }
    }

    fn write_elements<const BYTES: usize>(&self, target: &mut [u8]) {
        let (stored, _) = self.stored.as_chunks::<BYTES>();
        let (target, _) = target.as_chunks_mut::<BYTES>();
        for (tile, rows) in target.chunks_mut(TILE * self.num_columns).enumerate() {
            for first in (0..self.num_columns).step_by(TILE) {
                let columns = first..(first + TILE).min(self.num_columns);
                for (row, target) in rows.chunks_mut(self.num_columns).enumerate() {
                    let place = (tile * TILE + row) * self.row_step;
                    for column in columns.clone() {
                        target[column] = stored[column * self.span + place];
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_rows_at_any_size() {
        for (num_rows, num_columns, row_step) in [(1, 1, 1), (3, 70, 1), (40, 33, 2), (65, 5, 2)] {
            let span = (num_rows - 1) * row_step + 1;
            let value = |row: usize, column: usize| (row * 1000 + column) as u32;
            let stored = (0..num_columns).flat_map(|column| {
                (0..span).map(move |place: usize| match place.is_multiple_of(row_step) {
                    true => value(place / row_step, column),
                    false => u32::MAX,
                })
            });
            let stored: Vec<u8> = stored.flat_map(u32::to_le_bytes).collect();
            let mut target = vec![0; num_rows * num_columns * 4];
            let transposing =
                Transposing { stored: &stored, span, row_step, num_columns, element_bytes: 4 };
            transposing.write(&mut target);
            let expected = (0..num_rows)
                .flat_map(|row| (0..num_columns).map(move |column| value(row, column)));
            let expected: Vec<u8> = expected.flat_map(u32::to_le_bytes).collect();
            assert!(target == expected, "{num_rows} rows of {num_columns}, {row_step} apart");
        }
    }
}
