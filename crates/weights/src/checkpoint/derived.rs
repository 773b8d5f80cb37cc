//! Computes the bytes of tensors that an original does not store as conversions do: any run of bytes, so that
//! ranks read parts of these tensors as they read parts of stored ones.

use half::{bf16, f16};
use jackalope_simd::e4m3;
use jackalope_spec::ElementType;
use jackalope_spec::quantized_originals::{Derived, FactorBlocks};

use super::files::Pieces;
use super::readers::{NUM_READERS, in_parallel};
use crate::error::LoadError;

/// A stored tensor.
pub(super) trait StoredBytes: Sync {
    /// Type of its elements.
    fn element_type(&self) -> &ElementType;

    /// Its length in bytes.
    fn num_bytes(&self) -> u64;

    /// Fills `target` with pieces of it.
    fn read(&self, pieces: Pieces, target: &mut [u8]) -> Result<(), LoadError>;
}

/// Size of the bf16 elements of a dequantised tensor.
const BF16_BYTES: usize = 2;

/// Fills `target` with pieces of the tensor, whose rows have so many columns.
pub(super) fn read<T: StoredBytes>(
    from: &Derived<T>,
    columns: usize,
    pieces: Pieces,
    target: &mut [u8],
) -> Result<(), LoadError> {
    if target.is_empty() {
        return Ok(());
    }
    match from {
        Derived::Multiplied { source, factor } => {
            source.read(pieces, target)?;
            multiply(source.element_type(), *factor, target);
            Ok(())
        }
        Derived::RowsRepeated { source, times } => {
            let rows = all_bytes(source)?;
            let repeated = Repeated { rows: &rows, columns, times: *times };
            for_each_piece(pieces, target, |start, piece| repeated.fill(start, piece));
            Ok(())
        }
        Derived::Dequantized { codes, factors, blocks } => {
            let values = floats(factors.element_type(), &all_bytes(factors)?);
            let code_values: [f32; 256] = std::array::from_fn(|code| e4m3(code as u32));
            let matrix =
                Dequantized { codes, code_values, factors: &values, blocks: *blocks, columns };
            in_parallel(pieces.parts(target), NUM_READERS, |(pieces, target)| {
                matrix.read(pieces, target)
            })
        }
    }
}

/// Returns all bytes of a tensor.
fn all_bytes(stored: &impl StoredBytes) -> Result<Vec<u8>, LoadError> {
    let num_bytes = usize::try_from(stored.num_bytes()).expect("a tensor fits into memory");
    let mut bytes = vec![0; num_bytes];
    stored.read(Pieces::run(0, num_bytes), &mut bytes)?;
    Ok(bytes)
}

/// Calls `fill` for each piece with its offset in the tensor, in bytes.
fn for_each_piece(pieces: Pieces, target: &mut [u8], mut fill: impl FnMut(usize, &mut [u8])) {
    let mut offset = pieces.offset;
    for piece in target.chunks_mut(pieces.piece_bytes) {
        fill(usize::try_from(offset).expect("a tensor fits into memory"), piece);
        offset += pieces.stride_bytes;
    }
}

/// Returns the values of floats in memory.
///
/// # Panics
/// Panics if the elements are no floats.
fn floats(element_type: &ElementType, bytes: &[u8]) -> Vec<f32> {
    let half = |pair: &[u8]| [pair[0], pair[1]];
    match element_type {
        ElementType::F32 => bytes
            .chunks_exact(4)
            .map(|it| f32::from_le_bytes(it.try_into().expect("four bytes")))
            .collect(),
        ElementType::F16 => {
            bytes.chunks_exact(2).map(|it| f16::from_le_bytes(half(it)).to_f32()).collect()
        }
        ElementType::Bf16 => {
            bytes.chunks_exact(2).map(|it| bf16::from_le_bytes(half(it)).to_f32()).collect()
        }
        other => panic!("the description expects floats, found {other:?}"),
    }
}

/// Multiplies floats in memory by a factor, rounding each product to their type.
///
/// # Panics
/// Panics if the elements are no floats.
fn multiply(element_type: &ElementType, factor: f32, bytes: &mut [u8]) {
    let products = floats(element_type, bytes).into_iter().map(|value| value * factor);
    let products: Vec<u8> = match element_type {
        ElementType::F32 => products.flat_map(f32::to_le_bytes).collect(),
        ElementType::F16 => products.flat_map(|it| f16::from_f32(it).to_le_bytes()).collect(),
        _ => products.flat_map(|it| bf16::from_f32(it).to_le_bytes()).collect(),
    };
    bytes.copy_from_slice(&products);
}

/// Rows of bytes, each of which stands for several.
struct Repeated<'a> {
    /// The rows, one after another.
    rows: &'a [u8],
    columns: usize,
    times: usize,
}

impl Repeated<'_> {
    /// Fills `target` with the bytes from `start` on.
    fn fill(&self, start: usize, target: &mut [u8]) {
        let (mut row, mut column, mut rest) = (start / self.columns, start % self.columns, target);
        while !rest.is_empty() {
            let len = rest.len().min(self.columns - column);
            let (own, others) = rest.split_at_mut(len);
            let first = row / self.times * self.columns + column;
            own.copy_from_slice(&self.rows[first..first + len]);
            (row, column, rest) = (row + 1, 0, others);
        }
    }
}

/// E4M3 codes and the factors of their blocks.
struct Dequantized<'a, T> {
    codes: &'a T,
    /// The value of each code.
    code_values: [f32; 256],
    /// One for each block of each matrix, in rows of blocks.
    factors: &'a [f32],
    blocks: FactorBlocks,
    columns: usize,
}

impl<T: StoredBytes> Dequantized<'_, T> {
    /// Fills `target` with pieces of the products, in bf16.
    fn read(&self, pieces: Pieces, target: &mut [u8]) -> Result<(), LoadError> {
        let mut codes = vec![0; target.len() / BF16_BYTES];
        let piece_codes = pieces.piece_bytes / BF16_BYTES;
        let of_codes = Pieces {
            offset: pieces.offset / BF16_BYTES as u64,
            piece_bytes: piece_codes,
            stride_bytes: pieces.stride_bytes / BF16_BYTES as u64,
        };
        self.codes.read(of_codes, &mut codes)?;
        let mut codes = codes.chunks(piece_codes);
        for_each_piece(pieces, target, |start, products| {
            let codes = codes.next().expect("as many pieces of codes");
            self.multiply(start / BF16_BYTES, codes, products);
        });
        Ok(())
    }

    /// Writes the products of the codes from element `first` on.
    fn multiply(&self, first: usize, mut codes: &[u8], mut products: &mut [u8]) {
        let FactorBlocks { matrix_rows, rows, columns } = self.blocks;
        let (down, across) = (matrix_rows.div_ceil(rows), self.columns.div_ceil(columns));
        let (mut row, mut column) = (first / self.columns, first % self.columns);
        while !codes.is_empty() {
            // Up to the end of the block or of the row.
            let end = ((column / columns + 1) * columns).min(self.columns);
            let len = codes.len().min(end - column);
            let block_row = row / matrix_rows * down + row % matrix_rows / rows;
            let factor = self.factors[block_row * across + column / columns];
            let (own_codes, other_codes) = codes.split_at(len);
            let (own, others) = products.split_at_mut(len * BF16_BYTES);
            for (target, code) in own.chunks_exact_mut(BF16_BYTES).zip(own_codes) {
                let product = rounded_to_bf16(self.code_values[usize::from(*code)] * factor);
                target.copy_from_slice(&product.to_le_bytes());
            }
            (codes, products) = (other_codes, others);
            (row, column) = if end == self.columns { (row + 1, 0) } else { (row, end) };
        }
    }
}

/// Returns the bits of the nearest bf16, of two the even one.
fn rounded_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return bf16::NAN.to_bits();
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tensor in memory.
    struct InMemory {
        element_type: ElementType,
        bytes: Vec<u8>,
    }

    impl StoredBytes for InMemory {
        fn element_type(&self) -> &ElementType {
            &self.element_type
        }

        fn num_bytes(&self) -> u64 {
            self.bytes.len() as u64
        }

        fn read(&self, pieces: Pieces, target: &mut [u8]) -> Result<(), LoadError> {
            for_each_piece(pieces, target, |start, piece| {
                piece.copy_from_slice(&self.bytes[start..start + piece.len()]);
            });
            Ok(())
        }
    }

    fn stored(element_type: ElementType, bytes: Vec<u8>) -> InMemory {
        InMemory { element_type, bytes }
    }

    /// Returns the bytes of a tensor of `rows` with so many columns. Checks that all runs, and columns of all widths,
    /// have the same.
    fn checked(
        from: &Derived<InMemory>,
        [rows, columns]: [usize; 2],
        element_bytes: usize,
    ) -> Vec<u8> {
        let read_part = |pieces: Pieces, len: usize| {
            let mut target = vec![0; len];
            read(from, columns, pieces, &mut target).unwrap();
            target
        };
        let row_bytes = columns * element_bytes;
        let len = rows * row_bytes;
        let whole = read_part(Pieces::run(0, len), len);
        for start in (0..len).step_by(element_bytes) {
            for end in (start..=len).step_by(7 * element_bytes) {
                let found = read_part(Pieces::run(start as u64, end - start), end - start);
                assert!(found == whole[start..end], "{start}..{end}");
            }
        }
        for width in (element_bytes..=row_bytes).step_by(element_bytes) {
            for first in (0..=row_bytes - width).step_by(element_bytes) {
                let stride_bytes = row_bytes as u64;
                let pieces = Pieces { offset: first as u64, piece_bytes: width, stride_bytes };
                let parts = whole.chunks(row_bytes).flat_map(|row| &row[first..first + width]);
                let expected: Vec<u8> = parts.copied().collect();
                assert!(read_part(pieces, expected.len()) == expected, "{width} from {first} on");
            }
        }
        whole
    }

    #[test]
    fn codes_are_multiplied_by_the_factors_of_their_blocks() {
        // 1, 2, -1 and the least positive number.
        let values = [1.0, 2.0, -1.0, 1.0 / 512.0];
        let codes = |len: usize| -> Vec<u8> {
            [0x38, 0x40, 0xb8, 1].into_iter().cycle().take(len).collect()
        };
        let factors: Vec<f32> = (1..=6).map(|it| it as f32 / 3.0).collect();
        let factor_bytes: Vec<u8> = factors.iter().flat_map(|it| it.to_le_bytes()).collect();
        let products = |matrix_rows: usize, rows: usize| {
            let other = ElementType::Other("F8_E4M3".to_owned());
            let from = Derived::Dequantized {
                codes: stored(other, codes(rows * 7)),
                factors: stored(ElementType::F32, factor_bytes.clone()),
                blocks: FactorBlocks { matrix_rows, rows: 3, columns: 3 },
            };
            floats(&ElementType::Bf16, &checked(&from, [rows, 7], 2))
        };
        let expected = |factor_of: fn(usize) -> usize, len: usize| -> Vec<f32> {
            let product = |idx: usize| values[idx % 4] * factors[factor_of(idx)];
            (0..len).map(|idx| bf16::from_f32(product(idx)).to_f32()).collect()
        };
        // One matrix of five rows, and two of two rows.
        assert_eq!(products(5, 5), expected(|idx| idx / 7 / 3 * 3 + idx % 7 / 3, 35));
        assert_eq!(products(2, 4), expected(|idx| idx / 14 * 3 + idx % 7 / 3, 28));
    }

    #[test]
    fn products_are_rounded_as_the_type_demands() {
        let values = (0..1 << 16).map(|bits: u32| f32::from_bits(bits << 16 | bits));
        let infinities = [f32::INFINITY, f32::MAX, f32::MIN, f32::NEG_INFINITY];
        for value in values.filter(|it| !it.is_nan()).chain(infinities) {
            assert_eq!(rounded_to_bf16(value), bf16::from_f32(value).to_bits(), "{value:e}");
        }
        for bits in [e4m3(0x7f).to_bits(), e4m3(0xff).to_bits(), u32::MAX, 0x7f80_0001] {
            assert!(bf16::from_bits(rounded_to_bf16(f32::from_bits(bits))).is_nan());
        }
    }

    #[test]
    fn rows_of_a_tile_have_the_same_bytes() {
        let source = stored(ElementType::U8, (1..=9).collect());
        let whole = checked(&Derived::RowsRepeated { source, times: 2 }, [5, 3], 1);
        assert_eq!(whole, [1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn floats_are_multiplied_in_their_own_type() {
        let values: [f32; 6] = [0.5, -1.5, 3.0, 0.25, 2.0, -4.0];
        let bf16s = values.iter().flat_map(|it| bf16::from_f32(*it).to_le_bytes()).collect();
        let f16s = values.iter().flat_map(|it| f16::from_f32(*it).to_le_bytes()).collect();
        let f32s = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        for (element_type, element_bytes, bytes) in [
            (ElementType::Bf16, 2, bf16s),
            (ElementType::F16, 2, f16s),
            (ElementType::F32, 4, f32s),
        ] {
            let source = stored(element_type.clone(), bytes);
            let whole =
                checked(&Derived::Multiplied { source, factor: -8.0 }, [2, 3], element_bytes);
            assert_eq!(floats(&element_type, &whole), values.map(|it| -8.0 * it));
        }
    }
}
