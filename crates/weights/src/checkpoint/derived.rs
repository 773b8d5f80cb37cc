//! Computes the bytes of tensors that an original does not store as conversions do: any run of bytes, so that
//! ranks read parts of these tensors as they read parts of stored ones.

use half::{bf16, f16};
use jackalope_simd::e4m3;
use jackalope_spec::ElementType;
use jackalope_spec::quantized_originals::{Derived, FactorBlocks};

use super::files::Pieces;
use super::readers::{NUM_READERS, in_parallel};
use super::tensors::TensorEntry;
use crate::error::LoadError;

/// Size of the bf16 elements of a dequantised tensor.
const BF16_BYTES: usize = 2;

/// Fills `target` with pieces of the tensor, whose rows have so many columns.
pub(super) fn read(
    from: &Derived<TensorEntry>,
    columns: usize,
    pieces: Pieces,
    target: &mut [u8],
) -> Result<(), LoadError> {
    if target.is_empty() {
        return Ok(());
    }
    match from {
        Derived::Multiplied { source, factor } => {
            let offset = source.offset + pieces.offset;
            source.file.read(Pieces { offset, ..pieces }, target)?;
            multiply(&source.header.element_type, *factor, target);
            Ok(())
        }
        Derived::RowsRepeated { source, times } => {
            let rows = stored_bytes(source)?;
            let repeated = Repeated { rows: &rows, columns, times: *times };
            for_each_piece(pieces, target, |start, piece| repeated.fill(start, piece));
            Ok(())
        }
        Derived::Dequantized { codes, factors, blocks } => {
            let values = floats(&factors.header.element_type, &stored_bytes(factors)?);
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
fn stored_bytes(entry: &TensorEntry) -> Result<Vec<u8>, LoadError> {
    let num_bytes = usize::try_from(entry.num_bytes).expect("a tensor fits into memory");
    let mut bytes = vec![0; num_bytes];
    entry.file.read_at(entry.offset, &mut bytes)?;
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
    match element_type {
        ElementType::F32 => {
            for (target, product) in bytes.chunks_exact_mut(4).zip(products) {
                target.copy_from_slice(&product.to_le_bytes());
            }
        }
        ElementType::F16 => {
            for (target, product) in bytes.chunks_exact_mut(2).zip(products) {
                target.copy_from_slice(&f16::from_f32(product).to_le_bytes());
            }
        }
        _ => {
            for (target, product) in bytes.chunks_exact_mut(2).zip(products) {
                target.copy_from_slice(&bf16::from_f32(product).to_le_bytes());
            }
        }
    }
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
struct Dequantized<'a> {
    codes: &'a TensorEntry,
    /// The value of each code.
    code_values: [f32; 256],
    /// One for each block of each matrix, in rows of blocks.
    factors: &'a [f32],
    blocks: FactorBlocks,
    columns: usize,
}

impl Dequantized<'_> {
    /// Fills `target` with pieces of the products, in bf16.
    fn read(&self, pieces: Pieces, target: &mut [u8]) -> Result<(), LoadError> {
        let mut codes = vec![0; target.len() / BF16_BYTES];
        let piece_codes = pieces.piece_bytes / BF16_BYTES;
        let of_codes = Pieces {
            offset: self.codes.offset + pieces.offset / BF16_BYTES as u64,
            piece_bytes: piece_codes,
            stride_bytes: pieces.stride_bytes / BF16_BYTES as u64,
        };
        self.codes.file.read(of_codes, &mut codes)?;
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
    use std::sync::Arc;

    use jackalope_spec::quantized_originals::OriginalTensor as _;
    use jackalope_spec::{ElementType, TensorHeader};

    use super::*;
    use crate::checkpoint::files::local;
    use crate::checkpoint::tensors::TensorFile;

    /// A file with tensors one after another, and an entry for each.
    struct Stored {
        dir: std::path::PathBuf,
        entries: Vec<TensorEntry>,
    }

    impl Stored {
        /// Writes tensors of these types and dimensions.
        fn write(name: &str, tensors: &[(ElementType, &[usize], &[u8])]) -> Stored {
            let dir = std::env::temp_dir().join(format!("jackalope-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let content: Vec<u8> =
                tensors.iter().flat_map(|(_, _, bytes)| bytes.to_vec()).collect();
            std::fs::write(dir.join("model.safetensors"), content).unwrap();
            let file = TensorFile::stored(&local(&dir), "model.safetensors".to_owned());
            let file = Arc::new(file);
            let mut offset = 0;
            let entries = tensors.iter().map(|(element_type, shape, bytes)| {
                let header =
                    TensorHeader { element_type: element_type.clone(), shape: shape.to_vec() };
                let (file, num_bytes) = (Arc::clone(&file), bytes.len() as u64);
                offset += num_bytes;
                TensorEntry { file, offset: offset - num_bytes, header, num_bytes }
            });
            let entries = entries.collect();
            Stored { dir, entries }
        }
    }

    impl Drop for Stored {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }

    /// Checks that all runs, and columns of all widths, have the bytes of the whole.
    fn check_parts(entry: &TensorEntry, element_bytes: usize, row_bytes: usize) -> Vec<u8> {
        let read = |pieces: Pieces, len: usize| {
            let mut target = vec![0; len];
            entry
                .file
                .read(Pieces { offset: entry.offset + pieces.offset, ..pieces }, &mut target)
                .unwrap();
            target
        };
        let len = entry.num_bytes as usize;
        let whole = read(Pieces::run(0, len), len);
        for start in (0..len).step_by(element_bytes) {
            for end in (start..=len).step_by(7 * element_bytes) {
                let found = read(Pieces::run(start as u64, end - start), end - start);
                assert!(found == whole[start..end], "{start}..{end}");
            }
        }
        for width in (element_bytes..=row_bytes).step_by(element_bytes) {
            for first in (0..=row_bytes - width).step_by(element_bytes) {
                let stride_bytes = row_bytes as u64;
                let pieces = Pieces { offset: first as u64, piece_bytes: width, stride_bytes };
                let rows = whole.chunks(row_bytes);
                let expected: Vec<u8> =
                    rows.flat_map(|row| &row[first..first + width]).copied().collect();
                assert!(read(pieces, expected.len()) == expected, "{width} from {first} on");
            }
        }
        whole
    }

    fn as_bf16(bytes: &[u8]) -> Vec<f32> {
        floats(&ElementType::Bf16, bytes)
    }

    #[test]
    fn codes_are_multiplied_by_the_factors_of_their_blocks() {
        // 1, 2, -1 and the least positive number, in five rows of seven columns.
        let codes: Vec<u8> = [0x38, 0x40, 0xb8, 1].into_iter().cycle().take(35).collect();
        let factors: Vec<f32> = (1..=6).map(|it| it as f32 / 3.0).collect();
        let bytes: Vec<u8> = factors.iter().flat_map(|it| it.to_le_bytes()).collect();
        let other = ElementType::Other("F8_E4M3".to_owned());
        let stored = Stored::write(
            "blocks",
            &[
                (ElementType::U8, &[1], &[9]),
                (other, &[5, 7], &codes),
                (ElementType::F32, &[2, 3], &bytes),
            ],
        );
        let [_, codes, factors_entry] = &stored.entries[..] else { panic!("three tensors") };
        let from = factors_entry.clone();
        let blocks = FactorBlocks { matrix_rows: 5, rows: 3, columns: 3 };
        let from = Derived::Dequantized { codes: codes.clone(), factors: from, blocks };
        let header = TensorHeader { element_type: ElementType::Bf16, shape: vec![5, 7] };
        let whole = check_parts(&TensorEntry::derived(from, header), 2, 14);
        let values = [1.0, 2.0, -1.0, 1.0 / 512.0];
        let expected = (0..35).map(|idx: usize| {
            let factor = factors[idx / 7 / 3 * 3 + idx % 7 / 3];
            bf16::from_f32(values[idx % 4] * factor).to_f32()
        });
        assert_eq!(as_bf16(&whole), expected.collect::<Vec<f32>>());

        // Two matrices, of two rows and of which the second begins in the first one's last block.
        let blocks = FactorBlocks { matrix_rows: 2, rows: 3, columns: 3 };
        let (codes, factors_entry) = (codes.clone(), factors_entry.clone());
        let from = Derived::Dequantized { codes, factors: factors_entry, blocks };
        let header = TensorHeader { element_type: ElementType::Bf16, shape: vec![2, 2, 7] };
        let whole = check_parts(&TensorEntry::derived(from, header), 2, 14);
        let expected = (0..28).map(|idx: usize| {
            let factor = factors[idx / 14 * 3 + idx % 7 / 3];
            bf16::from_f32(values[idx % 4] * factor).to_f32()
        });
        assert_eq!(as_bf16(&whole), expected.collect::<Vec<f32>>());
    }

    #[test]
    fn products_are_rounded_as_the_type_demands() {
        let values = (0..1 << 16).map(|bits: u32| f32::from_bits(bits << 16 | bits));
        let infinities = [f32::INFINITY, f32::MAX, f32::MIN, f32::NEG_INFINITY];
        for value in values.filter(|it| !it.is_nan()).chain(infinities) {
            assert_eq!(rounded_to_bf16(value), bf16::from_f32(value).to_bits(), "{value:e}");
        }
        for value in [e4m3(0x7f), e4m3(0xff), f32::from_bits(u32::MAX), f32::from_bits(0x7f80_0001)]
        {
            assert!(bf16::from_bits(rounded_to_bf16(value)).is_nan());
        }
    }

    #[test]
    fn rows_of_a_tile_have_the_same_bytes() {
        let rows: Vec<u8> = (1..=9).collect();
        let stored = Stored::write("tiles", &[(ElementType::U8, &[3, 3], &rows)]);
        let from = Derived::RowsRepeated { source: stored.entries[0].clone(), times: 2 };
        let header = TensorHeader { element_type: ElementType::U8, shape: vec![5, 3] };
        let whole = check_parts(&TensorEntry::derived(from, header), 1, 3);
        assert_eq!(whole, [1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn floats_are_multiplied_in_their_own_type() {
        let values = [0.5, -1.5, 3.0, 0.25, 2.0, -4.0];
        let products = values.map(|it: f32| -8.0 * it);
        let bf16s: Vec<u8> =
            values.iter().flat_map(|it| bf16::from_f32(*it).to_le_bytes()).collect();
        let f16s: Vec<u8> = values.iter().flat_map(|it| f16::from_f32(*it).to_le_bytes()).collect();
        let f32s: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        let types = [ElementType::Bf16, ElementType::F16, ElementType::F32];
        let [first, second, third] = types.clone();
        let shape: &[usize] = &[2, 3];
        let tensors = [(first, shape, &bf16s[..]), (second, shape, &f16s), (third, shape, &f32s)];
        let stored = Stored::write("factors", &tensors);
        for (source, element_type) in stored.entries.iter().zip(types) {
            let from = Derived::Multiplied { source: source.clone(), factor: -8.0 };
            let entry = TensorEntry::derived(from, source.header.clone());
            let element_bytes = source.num_bytes as usize / 6;
            let whole = check_parts(&entry, element_bytes, 3 * element_bytes);
            assert_eq!(floats(&element_type, &whole), products);
        }
    }
}
