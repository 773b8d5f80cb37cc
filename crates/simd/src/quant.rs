//! MLX's quantised weight matrices, in the format of checkpoints.
//!
//! A row of codes is one little-endian stream of bits, code `i` at bit `i * bits`, divided into u32
//! words; a group has an integral number of words. Compared with MLX 0.32.4 for every format by
//! `crates/kernels/tests/data/make.py`.

use std::ops::Range;

use crate::elements::Elements;

/// How codes and scales are interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantMode {
    /// `scale * code + bias`, with a scale and a bias per group in a float type.
    Affine,
    /// E2M1 codes, E8M0 scales, groups of 32 (OCP microscaling formats 1.0).
    Mxfp4,
    /// E2M1 codes, E4M3 scales, groups of 16.
    Nvfp4,
    /// E4M3 codes, E8M0 scales, groups of 32 (OCP microscaling formats 1.0).
    Mxfp8,
}

/// A mode, with the width of its codes and the size of its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantFormat {
    /// Interpretation of codes and scales.
    pub mode: QuantMode,
    /// Bits of a code.
    pub bits: u32,
    /// Codes that share a scale.
    pub group_size: u32,
}

impl QuantFormat {
    /// Returns whether MLX supports this combination and these kernels compute it.
    #[inline]
    pub fn is_supported(&self) -> bool {
        match self.mode {
            QuantMode::Affine => {
                matches!(self.bits, 2 | 3 | 4 | 5 | 6 | 8)
                    && matches!(self.group_size, 32 | 64 | 128)
            }
            QuantMode::Mxfp4 => (self.bits, self.group_size) == (4, 32),
            QuantMode::Nvfp4 => (self.bits, self.group_size) == (4, 16),
            QuantMode::Mxfp8 => (self.bits, self.group_size) == (8, 32),
        }
    }

    /// Returns the number of u32 words of a row of `input` codes.
    #[inline]
    pub fn words_per_row(&self, input: usize) -> usize {
        input * self.bits as usize / 32
    }

    /// Returns the number of groups, and thus of scales, of a row of `input` codes.
    #[inline]
    pub fn groups_per_row(&self, input: usize) -> usize {
        debug_assert!(self.group_size.is_power_of_two());
        // A division would be measurable, because this is called for every row.
        input >> self.group_size.trailing_zeros()
    }
}

/// The scales of a matrix, `[out, input / group_size]`.
#[derive(Clone, Copy, Debug)]
pub enum Scales<'a> {
    /// Affine scales.
    Elements(Elements<'a>),
    /// Eight-bit floats: E8M0 for mxfp4 and mxfp8, E4M3 for nvfp4.
    Bytes(&'a [u8]),
}

/// A quantised matrix `[out, input]`; it multiplies as its transpose.
#[derive(Clone, Copy, Debug)]
pub struct QuantMatrix<'a> {
    /// Format of the codes and scales.
    pub format: QuantFormat,
    /// Output features: rows of the matrix.
    pub out: usize,
    /// Input features: columns; a multiple of the group size.
    pub input: usize,
    /// Packed codes, `[out, input * bits / 32]`.
    pub words: &'a [u32],
    /// Scales, `[out, input / group_size]`.
    pub scales: Scales<'a>,
    /// Biases of an affine matrix, `[out, input / group_size]`; the other modes have none.
    pub biases: Option<Elements<'a>>,
}

impl<'a> QuantMatrix<'a> {
    /// Returns some rows as a matrix.
    #[inline]
    pub fn rows(&self, rows: Range<usize>) -> QuantMatrix<'a> {
        let QuantMatrix { format, input, words, .. } = *self;
        let row_words = format.words_per_row(input);
        let num_groups = format.groups_per_row(input);
        let groups = rows.start * num_groups..rows.end * num_groups;
        QuantMatrix {
            format,
            out: rows.len(),
            input,
            words: &words[rows.start * row_words..rows.end * row_words],
            scales: match self.scales {
                Scales::Elements(scales) => Scales::Elements(scales.part(groups.clone())),
                Scales::Bytes(scales) => Scales::Bytes(&scales[groups.clone()]),
            },
            biases: self.biases.map(|biases| biases.part(groups)),
        }
    }

    /// Returns the size of codes, scales and biases in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        let scales = match self.scales {
            Scales::Elements(scales) => scales.bytes(),
            Scales::Bytes(scales) => scales.len(),
        };
        size_of_val(self.words) + scales + self.biases.map_or(0, |biases| biases.bytes())
    }

    /// Panics, at the caller's line, unless format and lengths agree.
    #[track_caller]
    pub fn assert_valid(&self) {
        let format = self.format;
        assert!(format.is_supported(), "no such quantisation: {format:?}");
        assert!(
            self.input.is_multiple_of(format.group_size as usize)
                && (self.input * format.bits as usize).is_multiple_of(32),
            "input {} is not a whole number of groups and words of {format:?}",
            self.input
        );
        assert_eq!(
            self.words.len(),
            self.out * format.words_per_row(self.input),
            "words of {format:?}"
        );
        let num_groups = self.out * format.groups_per_row(self.input);
        match (format.mode, self.scales, self.biases) {
            (QuantMode::Affine, Scales::Elements(scales), Some(biases)) => {
                assert_eq!(scales.len(), num_groups, "scales of {format:?}");
                assert_eq!(biases.len(), num_groups, "biases of {format:?}");
            }
            (QuantMode::Affine, ..) => panic!("an affine matrix has float scales and biases"),
            (_, Scales::Bytes(scales), None) => {
                assert_eq!(scales.len(), num_groups, "scales of {format:?}");
            }
            _ => panic!("{format:?} has eight-bit scales and no biases"),
        }
    }
}
