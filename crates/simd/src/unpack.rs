//! Unpacks codes to f32 weights.

use std::ops::Range;

use crate::elements::Elements;
use crate::matrix::Matrix;
use crate::quant::{QuantMatrix, QuantMode, Scales};
use crate::simd::{LANES, Lanes, Simd, e4m3};

/// Maximum number of groups that are unpacked in one call.
pub const GROUPS_MAX: usize = 32;

/// The values of the four-bit float: sign, two bits of exponent (bias 1), one of mantissa (OCP microscaling formats
/// 1.0, section 5.3.3).
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Factor that makes the values of [`E2M1`] integers.
pub const E2M1_FACTOR: f32 = 2.0;

/// Offset that makes [`E2M1_INTEGERS`] unsigned.
pub const E2M1_OFFSET: i32 = 12;

/// The values of [`E2M1`] times [`E2M1_FACTOR`].
pub const E2M1_INTEGERS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Part of a matrix.
#[derive(Clone, Debug)]
pub struct Region {
    /// Rows of the matrix.
    pub rows: Range<usize>,
    /// First column; a multiple of the group size of a quantised matrix.
    pub start: usize,
    /// Number of columns; a multiple of the group size of a quantised matrix, and at most [`GROUPS_MAX`] groups.
    pub width: usize,
}

/// Unpacks the weights of a region to `out`, `[rows, stride]`, whose stride is in whole vectors and
/// holds the region's width.
#[inline(always)]
pub fn unpack<S: Simd>(simd: S, matrix: &QuantMatrix<'_>, region: &Region, out: &mut [f32]) {
    let packed = Packed { matrix, region };
    let out = out.as_chunks_mut().0;
    let format = matrix.format;
    match (matrix.scales, matrix.biases) {
        (Scales::Elements(scales), Some(biases)) => match format.bits {
            2 => unpack_affine::<S, 2>(simd, packed, scales, biases, out),
            3 => unpack_affine::<S, 3>(simd, packed, scales, biases, out),
            4 => unpack_affine::<S, 4>(simd, packed, scales, biases, out),
            5 => unpack_affine::<S, 5>(simd, packed, scales, biases, out),
            6 => unpack_affine::<S, 6>(simd, packed, scales, biases, out),
            8 => unpack_affine::<S, 8>(simd, packed, scales, biases, out),
            _ => unreachable!("checked at the entry of every kernel"),
        },
        (Scales::Bytes(scales), _) => match format.mode {
            QuantMode::Mxfp4 => unpack_e2m1(simd, packed, scales, e8m0, out),
            QuantMode::Nvfp4 => {
                unpack_e2m1(simd, packed, scales, |code| e4m3(u32::from(code)), out)
            }
            QuantMode::Mxfp8 => unpack_e4m3(simd, packed, scales, out),
            QuantMode::Affine => unreachable!("checked at the entry of every kernel"),
        },
        _ => unreachable!("checked at the entry of every kernel"),
    }
}

impl Matrix<'_> {
    /// Writes the weights of a region to `out`, `[rows, stride]`, where `stride` is the width
    /// padded to whole vectors; the padding becomes zero.
    #[inline(always)]
    pub fn unpack<S: Simd>(&self, simd: S, region: &Region, out: &mut [f32]) {
        match self {
            Matrix::Quantized(matrix) => unpack(simd, matrix, region, out),
            Matrix::Dense(matrix) => {
                let rows = out.chunks_exact_mut(region.width.next_multiple_of(LANES));
                for (row, out) in region.rows.clone().zip(rows) {
                    let (values, padding) = out.split_at_mut(region.width);
                    matrix.values.load(row * matrix.input + region.start, values);
                    padding.fill(0.0);
                }
            }
        }
    }
}

/// A matrix of packed codes, and the region of it that is unpacked.
#[derive(Clone, Copy)]
struct Packed<'a> {
    matrix: &'a QuantMatrix<'a>,
    region: &'a Region,
}

impl<'a> Packed<'a> {
    /// Returns the words of a row, and the range of its scales.
    #[inline(always)]
    fn row(&self, row: usize) -> (&'a [u32], Range<usize>) {
        let QuantMatrix { format, input, words, .. } = *self.matrix;
        let Region { start, width, .. } = *self.region;
        let words_start = row * format.words_per_row(input) + format.words_per_row(start);
        let groups_start = row * format.groups_per_row(input) + format.groups_per_row(start);
        (
            &words[words_start..][..format.words_per_row(width)],
            groups_start..groups_start + format.groups_per_row(width),
        )
    }

    #[inline(always)]
    fn rows(&self) -> Range<usize> {
        self.region.rows.clone()
    }

    #[inline(always)]
    fn group_size(&self) -> usize {
        self.matrix.format.group_size as usize
    }
}

/// Unpacks affine codes of `BITS` bits, of which thirty-two are `BITS` whole words.
#[inline(always)]
fn unpack_affine<S: Simd, const BITS: usize>(
    simd: S,
    packed: Packed<'_>,
    all_scales: Elements<'_>,
    all_biases: Elements<'_>,
    out: &mut [Lanes],
) {
    let (mut scales, mut biases) = ([0.0; GROUPS_MAX], [0.0; GROUPS_MAX]);
    let stride = out.len() / packed.rows().len();
    for (row, out) in packed.rows().zip(out.chunks_exact_mut(stride)) {
        let (words, groups) = packed.row(row);
        let (scales, biases) = (&mut scales[..groups.len()], &mut biases[..groups.len()]);
        all_scales.load(groups.start, scales);
        all_biases.load(groups.start, biases);
        let mut units = words.as_chunks::<BITS>().0.iter().zip(out.as_chunks_mut::<4>().0);
        for (scale, bias) in scales.iter().zip(biases) {
            let (scale, bias) = (simd.splat(*scale), simd.splat(*bias));
            for (words, out) in units.by_ref().take(packed.group_size() / 32) {
                for (eight, out) in out.iter_mut().enumerate() {
                    let bit = eight * LANES * BITS;
                    let low = bits_from(words, bit);
                    let high = if BITS <= 4 { 0 } else { bits_from(words, bit + 4 * BITS) };
                    let codes = simd.to_floats(simd.codes::<BITS>(low, high));
                    simd.store(simd.mul_add(codes, scale, bias), out);
                }
            }
        }
    }
}

/// Returns 32 bits from `bit` on, with zeros beyond the last word.
#[inline(always)]
pub fn bits_from<const WORDS: usize>(words: &[u32; WORDS], bit: usize) -> u32 {
    let low = u64::from(words[bit / 32]);
    let high = words.get(bit / 32 + 1).map_or(0, |word| u64::from(*word));
    ((high << 32 | low) >> (bit % 32)) as u32
}

/// Unpacks E2M1 codes, of which eight are a word.
#[inline(always)]
fn unpack_e2m1<S: Simd>(
    simd: S,
    packed: Packed<'_>,
    scales: &[u8],
    scale_value: impl Fn(u8) -> f32,
    out: &mut [Lanes],
) {
    let stride = out.len() / packed.rows().len();
    for (row, out) in packed.rows().zip(out.chunks_exact_mut(stride)) {
        let (words, groups) = packed.row(row);
        let mut units = words.iter().zip(out);
        for scale in &scales[groups] {
            let scale = simd.splat(scale_value(*scale));
            for (word, out) in units.by_ref().take(packed.group_size() / LANES) {
                let values = simd.look_up(&E2M1, simd.codes::<4>(*word, 0));
                simd.store(simd.mul(values, scale), out);
            }
        }
    }
}

/// Unpacks E4M3 codes, of which eight are two words.
#[inline(always)]
fn unpack_e4m3<S: Simd>(simd: S, packed: Packed<'_>, scales: &[u8], out: &mut [Lanes]) {
    let stride = out.len() / packed.rows().len();
    for (row, out) in packed.rows().zip(out.chunks_exact_mut(stride)) {
        let (words, groups) = packed.row(row);
        let mut units = words.as_chunks().0.iter().zip(out);
        for scale in &scales[groups] {
            let scale = simd.splat(e8m0(*scale));
            for ([low, high], out) in units.by_ref().take(packed.group_size() / LANES) {
                let values = simd.e4m3(*low, *high);
                simd.store(simd.mul(values, scale), out);
            }
        }
    }
}

/// Returns the value of an eight-bit scale.
#[inline(always)]
pub fn scale_value(mode: QuantMode, code: u8) -> f32 {
    if mode == QuantMode::Nvfp4 { e4m3(u32::from(code)) } else { e8m0(code) }
}

/// Two to the power `code - 127`; 255, which the format calls not a number, is infinite as in MLX.
#[inline(always)]
pub fn e8m0(code: u8) -> f32 {
    // The smallest power is a subnormal f32.
    if code == 0 { f32::from_bits(1 << 22) } else { f32::from_bits(u32::from(code) << 23) }
}
