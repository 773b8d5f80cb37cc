//! How rows are divided among threads.

use std::ops::Range;

/// Number of elements below which the calling thread computes alone.
pub const PIECE_ELEMENTS: usize = 1 << 13;

/// Number of elements that are converted at a time.
pub const CHUNK: usize = 256;

/// The number of rows of a piece of a matrix is a multiple of this: the rows of a tile in integer products.
const TILE_ROWS: usize = 32;

/// Minimum number of multiplications of a piece of a matrix; they take some microseconds.
const PIECE_MACS_MIN: usize = 1 << 15;

/// Returns the number of rows of a piece of work.
#[inline]
pub fn piece_rows(width: usize) -> usize {
    PIECE_ELEMENTS.div_ceil(width)
}

/// Divides the rows of a matrix, each of which takes `row_macs` multiplications, into pieces of work. The
/// first pieces are large, because memory is fastest in long sequential reads; the last ones are small, so
/// that a slow core does not delay the others; none is too small to be worth waking a thread. `rows_after`
/// rows are computed in the same job.
pub fn cut_matrix_rows(
    num_rows: usize,
    rows_after: usize,
    row_macs: usize,
    num_threads: usize,
) -> Vec<Range<usize>> {
    if num_threads == 1 {
        return std::iter::once(0..num_rows).collect();
    }
    let worthwhile = PIECE_MACS_MIN.div_ceil(row_macs);
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < num_rows {
        // A round of pieces, one per thread, has four fifths of the remaining rows.
        let left = num_rows - start + rows_after;
        let share = (left * 4 / 5).div_ceil(num_threads);
        let len = share.max(worthwhile).next_multiple_of(TILE_ROWS);
        for _ in 0..num_threads {
            let end = (start + len).min(num_rows);
            if start < end {
                pieces.push(start..end);
            }
            start = end;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::{TILE_ROWS, cut_matrix_rows};

    #[test]
    fn pieces_cover_all_rows_in_order_and_begin_at_tiles() {
        for num_rows in [1, 31, 32, 1024, 3072, 151_936] {
            for num_threads in 1..9 {
                let pieces = cut_matrix_rows(num_rows, num_rows % 7, 1024, num_threads);
                let mut next = 0;
                for rows in pieces {
                    assert_eq!(rows.start, next);
                    assert!(rows.start.is_multiple_of(TILE_ROWS) && !rows.is_empty());
                    next = rows.end;
                }
                assert_eq!(next, num_rows);
            }
        }
    }
}
