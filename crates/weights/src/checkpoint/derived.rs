//! Computes the bytes of tensors that an original does not store as conversions do: any run of bytes, so that
//! ranks read parts of these tensors as they read parts of stored ones.

use half::bf16;
use jackalope_simd::e4m3;
use jackalope_spec::ElementType;
use jackalope_spec::quantized_originals::{Derived, FactorBlocks};

use super::columns;
use super::files::Pieces;
use super::readers::{NUM_READERS, in_parallel};
use super::stored::{StoredBytes, all_bytes, bytes_of_floats, floats, for_each_piece};
use crate::error::LoadError;

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
        Derived::Transposed { source, groups } => {
            columns::read_transposed(source, groups.as_ref(), columns, pieces, target)
        }
        Derived::Repacked { words } => columns::read_repacked(words, columns, pieces, target),
        Derived::Biases { zeros, scales, format } => {
            let biases = columns::Biases { zeros, scales, format: *format };
            biases.read(columns, pieces, target)
        }
    }
}

/// Multiplies floats in memory by a factor, rounding each product to their type.
///
/// # Panics
/// Panics if the elements are no floats.
fn multiply(element_type: &ElementType, factor: f32, bytes: &mut [u8]) {
    let products = floats(element_type, bytes).into_iter().map(|value| value * factor);
    bytes.copy_from_slice(&bytes_of_floats(element_type, products));
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
    use half::f16;
    use jackalope_spec::quantized_originals::{ColumnFormat, ColumnOrder, InputGroups};

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

    fn words(values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|it| it.to_le_bytes()).collect()
    }

    #[test]
    fn rows_and_columns_are_exchanged() {
        let bytes: Vec<u8> = (0..24).collect();
        let transposed = |element_type: ElementType, columns, element_bytes| {
            let source = stored(element_type, bytes.clone());
            let from = Derived::Transposed { source, groups: None };
            checked(&from, [24 / columns / element_bytes, columns], element_bytes)
        };
        assert_eq!(transposed(ElementType::U32, 3, 4)[..8], [0, 1, 2, 3, 8, 9, 10, 11]);
        let expected = [0, 1, 8, 9, 16, 17, 2, 3, 10, 11, 18, 19];
        assert_eq!(transposed(ElementType::F16, 3, 2)[..12], expected);
    }

    #[test]
    fn groups_in_another_order_are_refused() {
        let read_with = |indices: [u32; 4]| {
            let source = stored(ElementType::U32, words(&[1, 2, 3, 4]));
            let indices = stored(ElementType::Other("I32".to_owned()), words(&indices));
            let groups = Some(InputGroups { indices, group_size: 2 });
            let from = Derived::Transposed { source, groups };
            read(&from, 4, Pieces::run(0, 16), &mut [0; 16])
        };
        read_with([0, 0, 1, 1]).unwrap();
        let err = read_with([0, 1, 0, 1]).unwrap_err();
        assert!(
            err.to_string().starts_with("g_idx of a matrix puts input 1 into group 1"),
            "{err}"
        );
    }

    /// Packs the codes of eight outputs as AutoAWQ does.
    fn awq_word(code: impl Fn(usize) -> u32) -> u32 {
        let places = [0, 4, 1, 5, 2, 6, 3, 7];
        places.into_iter().enumerate().fold(0, |word, (idx, place)| word | code(idx) << (4 * place))
    }

    #[test]
    fn words_of_outputs_become_words_of_inputs() {
        const INPUTS: usize = 24;
        // Less and more than the outputs of a line of the cache.
        for outputs in [16, 136] {
            let code =
                |input: usize, output: usize| (input * 7 + output * 3 + input / 8) as u32 % 16;
            let packed: Vec<u32> = (0..INPUTS * outputs / 8)
                .map(|idx| (idx / (outputs / 8), idx % (outputs / 8)))
                .map(|(input, word)| awq_word(|idx| code(input, word * 8 + idx)))
                .collect();
            let expected: Vec<u32> = (0..outputs * INPUTS / 8)
                .map(|idx| (idx / (INPUTS / 8), idx % (INPUTS / 8)))
                .map(|(output, word)| {
                    (0..8).fold(0, |all, idx| all | code(word * 8 + idx, output) << (4 * idx))
                })
                .collect();
            let from = Derived::Repacked { words: stored(ElementType::U32, words(&packed)) };
            assert_eq!(checked(&from, [outputs, INPUTS / 8], 4), words(&expected));
        }
    }

    #[test]
    fn biases_are_zero_points_times_scales() {
        // Three groups of eight outputs.
        let scales: Vec<f32> = (1..=24).map(|it| it as f32 / 3.0).collect();
        let zero = |group: usize, output: usize| (group * 5 + output * 3) as u32 % 16;
        let in_order = |group| (0..8).fold(0, |word, idx| word | zero(group, idx) << (4 * idx));
        let ways = [
            (ColumnOrder::Awq, 4, 0, [0, 1, 2].map(|group| awq_word(|idx| zero(group, idx)))),
            (ColumnOrder::Gptq, 4, 1, [0, 1, 2].map(in_order)),
        ];
        for (order, bits, zero_offset, zeros) in ways {
            let scale_bytes: Vec<u8> =
                scales.iter().flat_map(|it| f16::from_f32(*it).to_le_bytes()).collect();
            let from = Derived::Biases {
                zeros: stored(ElementType::U32, words(&zeros)),
                scales: stored(ElementType::F16, scale_bytes),
                format: ColumnFormat { order, bits, group_size: None, zero_offset },
            };
            let found = floats(&ElementType::F16, &checked(&from, [8, 3], 2));
            let expected = (0..24).map(|idx| {
                let (output, group) = (idx / 3, idx % 3);
                let scale = f16::from_f32(scales[group * 8 + output]).to_f32();
                let zero = (zero(group, output) + zero_offset) % 16;
                f16::from_f32(-(zero as f32) * scale).to_f32()
            });
            assert_eq!(found, expected.collect::<Vec<f32>>(), "{order:?}");
        }
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
