//! Values computed by MLX 0.32.4; see `tests/data/make.py`.

use half::{bf16, f16};
use jackalope_kernels::{
    Elements, ElementsMut, Float, QuantFormat, QuantMode, Threads, quantized_embedding,
    quantized_matmul,
};

use crate::support::{Floats, OwnedQuant, OwnedScales, assert_close, formats, pools};

const FORMATS: &[u8] = include_bytes!("../data/formats.bin");
const CODES: &[u8] = include_bytes!("../data/codes.bin");

/// One format's record.
struct Record {
    matrix: OwnedQuant,
    scale_float: Option<Float>,
    dequantized: Vec<f32>,
    x: Vec<f32>,
    product: Vec<f32>,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(len);
        self.0 = tail;
        head
    }

    fn words(&mut self, len: usize) -> Vec<u32> {
        self.bytes(len * 4).as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    fn f32s(&mut self, len: usize) -> Vec<f32> {
        self.words(len).into_iter().map(f32::from_bits).collect()
    }

    fn floats(&mut self, float: Float, len: usize) -> Floats {
        let mut halves = |len: usize| -> Vec<u16> {
            self.bytes(len * 2).as_chunks().0.iter().map(|half| u16::from_le_bytes(*half)).collect()
        };
        match float {
            Float::F32 => Floats::F32(self.f32s(len)),
            Float::F16 => Floats::F16(halves(len).into_iter().map(f16::from_bits).collect()),
            Float::Bf16 => Floats::Bf16(halves(len).into_iter().map(bf16::from_bits).collect()),
        }
    }

    fn record(&mut self) -> Option<Record> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let header = std::str::from_utf8(self.bytes(end + 1)).expect("a line of text").trim_end();
        let [mode, bits, group_size, scale_type, out, input, tokens] =
            <[&str; 7]>::try_from(header.split(' ').collect::<Vec<_>>()).expect("seven fields");
        let [out, input, tokens]: [usize; 3] =
            [out, input, tokens].map(|n| n.parse().expect("a number"));
        let mode = match mode {
            "affine" => QuantMode::Affine,
            "mxfp4" => QuantMode::Mxfp4,
            "nvfp4" => QuantMode::Nvfp4,
            "mxfp8" => QuantMode::Mxfp8,
            other => panic!("mode {other}"),
        };
        let scale_float = match scale_type {
            "f32" => Some(Float::F32),
            "f16" => Some(Float::F16),
            "bf16" => Some(Float::Bf16),
            _ => None,
        };
        let format = QuantFormat {
            mode,
            bits: bits.parse().expect("a number"),
            group_size: group_size.parse().expect("a number"),
        };
        let words = self.words(out * format.words_per_row(input));
        let num_groups = out * format.groups_per_row(input);
        let scales = match scale_float {
            Some(float) => {
                let scales = self.floats(float, num_groups);
                OwnedScales::Affine(scales, self.floats(float, num_groups))
            }
            None => OwnedScales::Bytes(self.bytes(num_groups).to_vec()),
        };
        Some(Record {
            matrix: OwnedQuant { format, out, input, words, scales },
            scale_float,
            dequantized: self.f32s(out * input),
            x: self.f32s(tokens * input),
            product: self.f32s(tokens * out),
        })
    }
}

fn records() -> Vec<Record> {
    let mut reader = Reader(FORMATS);
    std::iter::from_fn(|| reader.record()).collect()
}

/// The whole matrix through the public door.
fn dequantize(matrix: &OwnedQuant, threads: &Threads) -> Vec<f32> {
    let ids: Vec<u32> = (0..matrix.out as u32).collect();
    let mut weights = vec![f32::NAN; matrix.out * matrix.input];
    quantized_embedding(&ids, &matrix.view(), 0, ElementsMut::F32(&mut weights), threads);
    weights
}

#[test]
fn there_is_a_record_of_every_format_and_scale_type() {
    let seen: Vec<_> = records().iter().map(|r| (r.matrix.format, r.scale_float)).collect();
    for format in formats() {
        let floats = match format.mode {
            QuantMode::Affine => vec![Some(Float::F32), Some(Float::F16), Some(Float::Bf16)],
            _ => vec![None],
        };
        for float in floats {
            assert!(seen.contains(&(format, float)), "{format:?} {float:?}");
        }
    }
}

#[test]
fn every_format_reads_as_mlx_reads_it() {
    for record in records() {
        for threads in pools(1) {
            let weights = dequantize(&record.matrix, &threads);
            for (weight, expected) in weights.iter().zip(&record.dequantized) {
                // With 16-bit scales only the last addition rounds, so the bits are MLX's.
                let tolerance = match record.scale_float {
                    Some(Float::F32) => 2.0 * f32::EPSILON * (1.0 + expected.abs()),
                    _ => 0.0,
                };
                assert!(
                    (weight - expected).abs() <= tolerance,
                    "{:?}: {weight} instead of {expected}",
                    record.matrix.format
                );
            }
        }
    }
}

#[test]
fn every_format_multiplies_as_mlx_does() {
    for record in records() {
        let OwnedQuant { out, input, .. } = record.matrix;
        for threads in pools(1) {
            let mut product = vec![f32::NAN; record.product.len()];
            let x = Elements::F32(&record.x);
            quantized_matmul(x, &record.matrix.view(), ElementsMut::F32(&mut product), &threads);
            for (idx, (value, expected)) in product.iter().zip(&record.product).enumerate() {
                let (token, row) = (idx / out, idx % out);
                let terms = record.x[token * input..][..input]
                    .iter()
                    .zip(&record.dequantized[row * input..][..input]);
                let magnitude: f64 = terms.map(|(x, w)| f64::from((x * w).abs())).sum();
                assert_close(f64::from(*value), f64::from(*expected), magnitude, Float::F32);
            }
        }
    }
}

#[test]
fn the_reference_of_these_tests_reads_every_format_as_mlx_does() {
    for record in records() {
        for (weight, expected) in record.matrix.to_f64().iter().zip(&record.dequantized) {
            let tolerance = f64::from(f32::EPSILON) * (1.0 + weight.abs());
            assert!((weight - f64::from(*expected)).abs() <= tolerance);
        }
    }
}

#[test]
fn every_small_float_has_mlx_s_value() {
    let mut reader = Reader(CODES);
    let tables: [Vec<f32>; 4] = std::array::from_fn(|_| reader.f32s(256));
    let every: Vec<u8> = (0..=255).collect();
    let matrix = |mode, bits, group_size, words, input: usize, scales| OwnedQuant {
        format: QuantFormat { mode, bits, group_size },
        out: 256,
        input,
        words,
        scales: OwnedScales::Bytes(scales),
    };
    let repeated = |byte: u8| u32::from_le_bytes([byte; 4]);
    let bytes = every.iter().flat_map(|code| [repeated(*code); 8]).collect();
    let nibbles = every.iter().flat_map(|code| [repeated((code & 15) * 0x11); 4]).collect();
    let ones = |len| vec![0x2222_2222; len];
    let matrices = [
        matrix(QuantMode::Mxfp8, 8, 32, bytes, 32, vec![127; 256]),
        matrix(QuantMode::Nvfp4, 4, 16, ones(512), 16, every.clone()),
        matrix(QuantMode::Mxfp4, 4, 32, ones(1024), 32, every.clone()),
        matrix(QuantMode::Mxfp4, 4, 32, nibbles, 32, vec![127; 256]),
    ];
    for (matrix, table) in matrices.iter().zip(&tables) {
        for threads in pools(1) {
            let weights = dequantize(matrix, &threads);
            for (code, (row, expected)) in weights.chunks(matrix.input).zip(table).enumerate() {
                for weight in row {
                    let same = weight.to_bits() == expected.to_bits();
                    let both_nan = weight.is_nan() && expected.is_nan();
                    assert!(same || both_nan, "{:?} code {code}: {weight}", matrix.format);
                }
            }
        }
    }
}
