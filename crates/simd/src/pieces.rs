//! How rows are divided among threads.

/// Number of elements below which the calling thread computes alone.
pub const PIECE_ELEMENTS: usize = 1 << 13;

/// Number of elements that are converted at a time.
pub const CHUNK: usize = 256;

/// Returns the number of rows of a piece of work.
#[inline]
pub fn piece_rows(width: usize) -> usize {
    PIECE_ELEMENTS.div_ceil(width)
}
