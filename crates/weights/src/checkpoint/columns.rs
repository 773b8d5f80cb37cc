//! Matrices whose makers store inputs in rows: transposes them, and computes biases from zero points.

use std::ops::Range;

use jackalope_spec::ElementType;
use jackalope_spec::quantized_originals::{ColumnFormat, ColumnOrder, InputGroups};

use super::files::Pieces;
use super::readers::{NUM_READERS, in_parallel};
use super::stored::{StoredBytes, all_bytes, bytes_of_floats, floats, for_each_piece};
use crate::error::LoadError;
use crate::transposing::Transposing;

/// Codes of a word of 4 bits.
const CODES: usize = 8;

/// Bits of these codes.
const CODE_BITS: usize = 4;

/// Size of a word of codes, in bytes.
const WORD_BYTES: usize = 4;

/// Words of a line of the processor's cache.
const LINE_WORDS: usize = 16;

/// Which codes of a word AutoAWQ's outputs have, in their order.
const AWQ_PLACES: [usize; CODES] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The part of a matrix that holds all elements of some pieces.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Window {
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Window {
    /// Returns the part for pieces of `num_bytes` in all of a matrix with such rows.
    fn of(pieces: Pieces, num_bytes: usize, columns: usize, element_bytes: usize) -> Window {
        let count = |bytes: u64| usize::try_from(bytes).expect("a matrix fits into memory");
        let num_pieces = num_bytes.div_ceil(pieces.piece_bytes);
        let last_start = (num_pieces - 1) as u64 * pieces.stride_bytes + pieces.offset;
        let last_bytes = num_bytes - (num_pieces - 1) * pieces.piece_bytes;
        let first = count(pieces.offset) / element_bytes;
        let end = (count(last_start) + last_bytes) / element_bytes;
        let rows = first / columns..end.div_ceil(columns);
        let (start, width) = (first % columns, pieces.piece_bytes.min(num_bytes) / element_bytes);
        let row_bytes = (columns * element_bytes) as u64;
        let is_in_rows = num_pieces == 1 || pieces.stride_bytes.is_multiple_of(row_bytes);
        let columns = match start + width <= columns && is_in_rows {
            true => start..start + width,
            false => 0..columns,
        };
        Window { rows, columns }
    }

    /// Copies pieces from the elements of the window, which lie row after row.
    fn copy(&self, from: &[u8], pieces: Pieces, columns: usize, target: &mut [u8]) {
        let width = self.columns.len();
        let element_bytes = from.len() / (self.rows.len() * width);
        for_each_piece(pieces, target, |start, mut piece| {
            let first = start / element_bytes;
            let (mut row, mut column) = (first / columns, first % columns);
            while !piece.is_empty() {
                let len = (self.columns.end - column).min(piece.len() / element_bytes);
                let first = (row - self.rows.start) * width + column - self.columns.start;
                let (own, rest) = piece.split_at_mut(len * element_bytes);
                own.copy_from_slice(&from[first * element_bytes..][..own.len()]);
                (piece, row, column) = (rest, row + 1, self.columns.start);
            }
        });
    }
}

/// Returns a part of a stored matrix whose rows have so many columns.
fn read_window(
    stored: &impl StoredBytes,
    window: &Window,
    columns: usize,
    element_bytes: usize,
) -> Result<Vec<u8>, LoadError> {
    let piece_bytes = window.columns.len() * element_bytes;
    let first = window.rows.start * columns + window.columns.start;
    let pieces = Pieces {
        offset: (first * element_bytes) as u64,
        piece_bytes,
        stride_bytes: (columns * element_bytes) as u64,
    };
    let mut bytes = vec![0; window.rows.len() * piece_bytes];
    stored.read(pieces, &mut bytes)?;
    Ok(bytes)
}

/// Fills `target` with pieces of the transposed matrix, whose rows have so many columns.
pub(super) fn read_transposed<T: StoredBytes>(
    source: &T,
    groups: Option<&InputGroups<T>>,
    columns: usize,
    pieces: Pieces,
    target: &mut [u8],
) -> Result<(), LoadError> {
    if let Some(groups) = groups {
        check_order(groups)?;
    }
    let element_bytes = element_bytes(source.element_type());
    let num_elements = usize::try_from(source.num_bytes()).expect("fits") / element_bytes;
    in_parallel(pieces.parts(target), NUM_READERS, |(pieces, target)| {
        let window = Window::of(pieces, target.len(), columns, element_bytes);
        let stored = Window { rows: window.columns.clone(), columns: window.rows.clone() };
        let bytes = read_window(source, &stored, num_elements / columns, element_bytes)?;
        let mut turned = vec![0; bytes.len()];
        let transposing = Transposing {
            stored: &bytes,
            span: window.rows.len(),
            row_step: 1,
            num_columns: window.columns.len(),
            element_bytes,
        };
        transposing.write(&mut turned);
        window.copy(&turned, pieces, columns, target);
        Ok(())
    })
}

/// Fills `target` with pieces of words of inputs, from AutoAWQ's words of outputs.
pub(super) fn read_repacked(
    words: &impl StoredBytes,
    columns: usize,
    pieces: Pieces,
    target: &mut [u8],
) -> Result<(), LoadError> {
    let num_words = usize::try_from(words.num_bytes()).expect("fits") / WORD_BYTES;
    in_parallel(pieces.parts(target), NUM_READERS, |(pieces, target)| {
        let mut window = Window::of(pieces, target.len(), columns, WORD_BYTES);
        // All outputs of a word.
        window.rows.start -= window.rows.start % CODES;
        window.rows.end = window.rows.end.next_multiple_of(CODES);
        let stored = Window {
            rows: window.columns.start * CODES..window.columns.end * CODES,
            columns: window.rows.start / CODES..window.rows.end / CODES,
        };
        let bytes = read_window(words, &stored, num_words / (columns * CODES), WORD_BYTES)?;
        let repacked = repacked(&bytes, stored.columns.len());
        window.copy(&repacked, pieces, columns, target);
        Ok(())
    })
}

/// Returns words of inputs, output after output, from rows of so many words of outputs.
fn repacked(bytes: &[u8], num_words: usize) -> Vec<u8> {
    let words = bytes.as_chunks::<WORD_BYTES>().0;
    let num_columns = words.len() / num_words / CODES;
    let mut turned = vec![0; bytes.len()];
    let rows = turned.as_chunks_mut::<WORD_BYTES>().0;
    let blocks = rows.chunks_mut(num_columns * CODES * LINE_WORDS);
    for (block, rows) in blocks.enumerate() {
        let first_word = block * LINE_WORDS;
        let in_block = LINE_WORDS.min(num_words - first_word);
        for column in 0..num_columns {
            for word in 0..in_block {
                let input = |idx| words[(column * CODES + idx) * num_words + first_word + word];
                let inputs = std::array::from_fn(|idx| u32::from_le_bytes(input(idx)));
                let by_place = codes_exchanged(inputs);
                for (output, place) in AWQ_PLACES.into_iter().enumerate() {
                    let row = word * CODES + output;
                    rows[row * num_columns + column] = by_place[place].to_le_bytes();
                }
            }
        }
    }
    turned
}

/// Returns words whose code `b` of word `a` was code `a` of word `b`, as Hacker's Delight (chapter 7-3) transposes bits.
fn codes_exchanged(mut words: [u32; CODES]) -> [u32; CODES] {
    for (step, mask) in [(4, 0x0000_ffff), (2, 0x00ff_00ff), (1, 0x0f0f_0f0f)] {
        let shift = step * CODE_BITS;
        for low in (0..CODES).filter(|idx| idx & step == 0) {
            let exchanged = ((words[low] >> shift) ^ words[low + step]) & mask;
            words[low + step] ^= exchanged;
            words[low] ^= exchanged << shift;
        }
    }
    words
}

/// Biases: the negated products of scales and zero points.
pub(super) struct Biases<'a, T> {
    /// Words of zero points, `[groups, outputs * bits / 32]`.
    pub(super) zeros: &'a T,
    /// The scales, `[groups, outputs]`.
    pub(super) scales: &'a T,
    pub(super) format: ColumnFormat,
}

impl<T: StoredBytes> Biases<'_, T> {
    /// Fills `target` with pieces of the biases, `[outputs, groups]`.
    pub(super) fn read(
        &self,
        groups: usize,
        pieces: Pieces,
        target: &mut [u8],
    ) -> Result<(), LoadError> {
        let zeros = all_bytes(self.zeros)?;
        let zeros: Vec<u32> =
            zeros.as_chunks().0.iter().map(|it| u32::from_le_bytes(*it)).collect();
        let element_type = self.scales.element_type();
        let scales = floats(element_type, &all_bytes(self.scales)?);
        let outputs = scales.len() / groups;
        let biases = (0..scales.len()).map(|idx| {
            let stored = idx % groups * outputs + idx / groups;
            -(self.zero(&zeros, stored) as f32) * scales[stored]
        });
        let bytes = bytes_of_floats(element_type, biases);
        let all = Window { rows: 0..outputs, columns: 0..groups };
        all.copy(&bytes, pieces, groups, target);
        Ok(())
    }

    /// Returns the zero point for the scale `idx`. The words of a group have all its outputs.
    fn zero(&self, words: &[u32], idx: usize) -> u32 {
        let ColumnFormat { order, bits, zero_offset, .. } = self.format;
        let per_word = (u32::BITS / bits) as usize;
        let place = match order {
            ColumnOrder::Awq => AWQ_PLACES[idx % per_word],
            ColumnOrder::Gptq => idx % per_word,
        };
        let code = words[idx / per_word] >> (place * bits as usize);
        // The sum wraps, as GPTQ's packing does: with an offset of 1, 15 is stored for 0.
        code.wrapping_add(zero_offset) & ((1 << bits) - 1)
    }
}

/// Checks that groups have the inputs that follow one another.
fn check_order<T: StoredBytes>(groups: &InputGroups<T>) -> Result<(), LoadError> {
    let bytes = all_bytes(&groups.indices)?;
    let mut indices = bytes.as_chunks().0.iter().map(|it| i32::from_le_bytes(*it)).enumerate();
    let other = indices.find(|(input, group)| *group != (input / groups.group_size) as i32);
    match other {
        None => Ok(()),
        Some((input, group)) => Err(LoadError::InputOrder { input, group }),
    }
}

fn element_bytes(element_type: &ElementType) -> usize {
    match element_type {
        ElementType::F16 | ElementType::Bf16 => 2,
        _ => 4,
    }
}
