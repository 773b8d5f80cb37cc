//! Owned buffers, random contents, and a plain reading of the formats in double precision.

use half::{bf16, f16};
use jackalope_kernels::{
    DenseMatrix, Elements, ElementsMut, Float, InstructionSet, QuantFormat, QuantMatrix, QuantMode,
    RouterConfig, Scales, Scores, Threads,
};
use proptest::prelude::*;

/// A router that chooses two experts by their soft-max, which are their weights.
pub(crate) const PLAIN_ROUTER: RouterConfig<'_> = RouterConfig {
    scores: Scores::Softmax,
    selection_bias: None,
    groups: None,
    num_chosen: 2,
    given: None,
    normalization_eps: None,
    scale: 1.0,
    expert_scales: None,
};

/// A buffer of one of the float types.
#[derive(Clone, Debug)]
pub(crate) enum Floats {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Floats {
    /// The values rounded to `float`.
    pub(crate) fn new(float: Float, values: impl IntoIterator<Item = f32>) -> Floats {
        let values = values.into_iter();
        match float {
            Float::F32 => Floats::F32(values.collect()),
            Float::F16 => Floats::F16(values.map(f16::from_f32).collect()),
            Float::Bf16 => Floats::Bf16(values.map(bf16::from_f32).collect()),
        }
    }

    /// A buffer to write results to, full of what no kernel may leave there.
    pub(crate) fn unwritten(float: Float, len: usize) -> Floats {
        Floats::new(float, std::iter::repeat_n(f32::NAN, len))
    }

    pub(crate) fn view(&self) -> Elements<'_> {
        match self {
            Floats::F32(values) => Elements::F32(values),
            Floats::F16(values) => Elements::F16(values),
            Floats::Bf16(values) => Elements::Bf16(values),
        }
    }

    pub(crate) fn view_mut(&mut self) -> ElementsMut<'_> {
        match self {
            Floats::F32(values) => ElementsMut::F32(values),
            Floats::F16(values) => ElementsMut::F16(values),
            Floats::Bf16(values) => ElementsMut::Bf16(values),
        }
    }

    /// The elements `start..end` as a buffer of their own.
    pub(crate) fn part(&self, start: usize, end: usize) -> Floats {
        match self {
            Floats::F32(values) => Floats::F32(values[start..end].to_vec()),
            Floats::F16(values) => Floats::F16(values[start..end].to_vec()),
            Floats::Bf16(values) => Floats::Bf16(values[start..end].to_vec()),
        }
    }

    /// The elements of this buffer followed by those of another buffer of the same type.
    pub(crate) fn joined(mut self, other: Floats) -> Floats {
        match (&mut self, other) {
            (Floats::F32(values), Floats::F32(other)) => values.extend(other),
            (Floats::F16(values), Floats::F16(other)) => values.extend(other),
            (Floats::Bf16(values), Floats::Bf16(other)) => values.extend(other),
            _ => panic!("buffers of two types"),
        }
        self
    }

    /// The first elements of a buffer of `len`; not a number behind them.
    pub(crate) fn resized(mut self, len: usize) -> Floats {
        match &mut self {
            Floats::F32(values) => values.resize(len, f32::NAN),
            Floats::F16(values) => values.resize(len, f16::NAN),
            Floats::Bf16(values) => values.resize(len, bf16::NAN),
        }
        self
    }

    /// Copies one element of a buffer of the same type.
    pub(crate) fn copy(&mut self, idx: usize, from: &Floats, from_idx: usize) {
        match (self, from) {
            (Floats::F32(to), Floats::F32(from)) => to[idx] = from[from_idx],
            (Floats::F16(to), Floats::F16(from)) => to[idx] = from[from_idx],
            (Floats::Bf16(to), Floats::Bf16(from)) => to[idx] = from[from_idx],
            _ => panic!("buffers of two types"),
        }
    }

    pub(crate) fn set(&mut self, idx: usize, value: f32) {
        match self {
            Floats::F32(values) => values[idx] = value,
            Floats::F16(values) => values[idx] = f16::from_f32(value),
            Floats::Bf16(values) => values[idx] = bf16::from_f32(value),
        }
    }

    pub(crate) fn to_f64(&self) -> Vec<f64> {
        match self {
            Floats::F32(values) => values.iter().map(|value| f64::from(*value)).collect(),
            Floats::F16(values) => values.iter().map(|value| value.to_f64()).collect(),
            Floats::Bf16(values) => values.iter().map(|value| value.to_f64()).collect(),
        }
    }

    /// The bits of every element, for comparisons that no rounding may blur.
    pub(crate) fn bits(&self) -> Vec<u32> {
        match self {
            Floats::F32(values) => values.iter().map(|value| value.to_bits()).collect(),
            Floats::F16(values) => values.iter().map(|value| value.to_bits().into()).collect(),
            Floats::Bf16(values) => values.iter().map(|value| value.to_bits().into()).collect(),
        }
    }
}

/// Half a unit in the last place, relative, and the smallest normal value.
fn precision(float: Float) -> (f64, f64) {
    match float {
        Float::F32 => (f64::from(f32::EPSILON) / 2.0, f64::from(f32::MIN_POSITIVE)),
        Float::F16 => (f16::EPSILON.to_f64() / 2.0, f16::MIN_POSITIVE.to_f64()),
        Float::Bf16 => (bf16::EPSILON.to_f64() / 2.0, bf16::MIN_POSITIVE.to_f64()),
    }
}

/// The largest finite value.
fn largest(float: Float) -> f64 {
    match float {
        Float::F32 => f64::from(f32::MAX),
        Float::F16 => f16::MAX.to_f64(),
        Float::Bf16 => bf16::MAX.to_f64(),
    }
}

/// Asserts that `value`, of type `float`, is `expected` up to the rounding of an f32 sum whose terms have magnitudes
/// adding up to `magnitude`, and its rounding to `float`.
pub(crate) fn assert_close(value: f64, expected: f64, magnitude: f64, float: Float) {
    Sum { expected, magnitude, input_error: 0.0 }.assert_close(value, float);
}

/// What a sum is, and how it was computed.
pub(crate) struct Sum {
    pub(crate) expected: f64,
    /// Of all terms.
    pub(crate) magnitude: f64,
    /// What rounding the inputs may change.
    pub(crate) input_error: f64,
}

impl Sum {
    /// Like [`assert_close`].
    pub(crate) fn assert_close(&self, value: f64, float: Float) {
        let Sum { expected, magnitude, input_error } = *self;
        if expected.is_nan() {
            assert!(value.is_nan(), "{value} instead of NaN");
            return;
        }
        if expected.is_infinite() {
            assert!(value == expected, "{value} instead of {expected}");
            return;
        }
        let (relative, subnormal) = precision(float);
        let rounding = 32.0 * f64::from(f32::EPSILON) * magnitude;
        let sum_error = rounding + f64::from(f32::MIN_POSITIVE) + input_error * 1.001;
        let tolerance =
            sum_error + (expected.abs() + sum_error) * relative + subnormal * relative * 2.0;
        if value.is_infinite() {
            // Where the terms all but cancel, the sum may come out beyond the type on either side.
            let farthest = value.signum() * expected + tolerance;
            assert!(farthest >= largest(float), "{value} instead of {expected} ± {tolerance}");
            return;
        }
        let error = (value - expected).abs();
        assert!(error <= tolerance, "{value} instead of {expected} ± {tolerance}");
    }
}

/// A quantised matrix that owns its tensors.
#[derive(Clone, Debug)]
pub(crate) struct OwnedQuant {
    pub(crate) format: QuantFormat,
    pub(crate) out: usize,
    pub(crate) input: usize,
    pub(crate) words: Vec<u32>,
    pub(crate) scales: OwnedScales,
}

/// Affine scales and biases, or eight-bit scales.
#[derive(Clone, Debug)]
pub(crate) enum OwnedScales {
    Affine(Floats, Floats),
    Bytes(Vec<u8>),
}

impl OwnedQuant {
    pub(crate) fn view(&self) -> QuantMatrix<'_> {
        let (scales, biases) = match &self.scales {
            OwnedScales::Affine(scales, biases) => {
                (Scales::Elements(scales.view()), Some(biases.view()))
            }
            OwnedScales::Bytes(scales) => (Scales::Bytes(scales), None),
        };
        let OwnedQuant { format, out, input, ref words, .. } = *self;
        QuantMatrix { format, out, input, words, scales, biases }
    }

    /// Every weight, `[out, input]`, read bit by bit.
    pub(crate) fn to_f64(&self) -> Vec<f64> {
        self.weights().into_iter().map(|(weight, _)| weight).collect()
    }

    /// Every weight with the magnitude of the terms it is computed from, `[out, input]`.
    pub(crate) fn weights(&self) -> Vec<(f64, f64)> {
        let words_per_row = self.format.words_per_row(self.input);
        let group_size = self.format.group_size as usize;
        let bits = self.format.bits as usize;
        let affine = match &self.scales {
            OwnedScales::Affine(scales, biases) => Some((scales.to_f64(), biases.to_f64())),
            OwnedScales::Bytes(_) => None,
        };
        let weight = |idx: usize| {
            let (row, column) = (idx / self.input, idx % self.input);
            let words = &self.words[row * words_per_row..][..words_per_row];
            let bit = |idx: usize| (words[idx / 32] >> (idx % 32)) & 1;
            let code: u32 = (0..bits).map(|i| bit(column * bits + i) << i).sum();
            let group = row * (self.input / group_size) + column / group_size;
            match (self.format.mode, &affine, &self.scales) {
                (QuantMode::Affine, Some((scales, biases)), _) => {
                    let (product, bias) = (scales[group] * f64::from(code), biases[group]);
                    (product + bias, product.abs() + bias.abs())
                }
                (mode, _, OwnedScales::Bytes(scales)) => {
                    let scale = u32::from(scales[group]);
                    let weight = match mode {
                        QuantMode::Mxfp4 => small_float(code, 2, 1, false) * power_of_two(scale),
                        QuantMode::Nvfp4 => {
                            small_float(code, 2, 1, false) * small_float(scale, 4, 3, true)
                        }
                        _ => small_float(code, 4, 3, true) * power_of_two(scale),
                    };
                    (weight, weight.abs())
                }
                _ => unreachable!("scales fit the mode"),
            }
        };
        (0..self.out * self.input).map(weight).collect()
    }
}

/// Sign, exponent and mantissa as IEEE 754 would read them, without infinities.
fn small_float(code: u32, exponent_bits: u32, mantissa_bits: u32, has_nan: bool) -> f64 {
    let magnitude = code & ((1 << (exponent_bits + mantissa_bits)) - 1);
    let sign = if code > magnitude { -1.0 } else { 1.0 };
    let bias = (1 << (exponent_bits - 1)) - 1;
    let exponent = (magnitude >> mantissa_bits) as i32;
    let fraction =
        f64::from(magnitude & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    if has_nan && magnitude == (1 << (exponent_bits + mantissa_bits)) - 1 {
        f64::NAN
    } else if exponent == 0 {
        sign * fraction * 2.0_f64.powi(1 - bias)
    } else {
        sign * (1.0 + fraction) * 2.0_f64.powi(exponent - bias)
    }
}

fn power_of_two(code: u32) -> f64 {
    if code == 255 { f64::INFINITY } else { 2.0_f64.powi(code as i32 - 127) }
}

/// A small, fast source of contents whose shapes proptest chooses (SplitMix64, Steele et al. 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform between -1 and 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(crate) fn floats(&mut self, float: Float, len: usize, factor: f32) -> Floats {
        Floats::new(float, (0..len).map(|_| self.unit() * factor))
    }

    /// `factor` multiplies the affine scales; eight-bit scales are of every finite size.
    pub(crate) fn quant(
        &mut self,
        format: QuantFormat,
        shape: (usize, usize),
        float: Float,
        factor: f32,
    ) -> OwnedQuant {
        let (out, input) = shape;
        let words = (0..out * format.words_per_row(input)).map(|_| self.next() as u32).collect();
        let num_groups = out * format.groups_per_row(input);
        let mut matrix =
            OwnedQuant { format, out, input, words, scales: OwnedScales::Bytes(Vec::new()) };
        matrix.scales = match format.mode {
            QuantMode::Affine => {
                let scales = self.floats(float, num_groups, factor);
                OwnedScales::Affine(scales, self.floats(float, num_groups, factor * 8.0))
            }
            QuantMode::Nvfp4 => {
                OwnedScales::Bytes((0..num_groups).map(|_| self.below(127) as u8).collect())
            }
            _ => OwnedScales::Bytes((0..num_groups).map(|_| 90 + self.below(70) as u8).collect()),
        };
        if format.mode == QuantMode::Mxfp8 {
            // Not a number, so tested apart.
            for word in &mut matrix.words {
                let bytes = word.to_le_bytes();
                *word = u32::from_le_bytes(
                    bytes.map(|byte| if byte & 0x7f == 0x7f { byte ^ 1 } else { byte }),
                );
            }
        }
        matrix
    }

    pub(crate) fn dense(&mut self, (out, input): (usize, usize), float: Float) -> Floats {
        self.floats(float, out * input, 0.1)
    }
}

/// A dense matrix over `values`.
pub(crate) fn dense(values: &Floats, (out, input): (usize, usize)) -> DenseMatrix<'_> {
    DenseMatrix { out, input, values: values.view() }
}

/// Every format of MLX that the kernels compute.
pub(crate) fn formats() -> Vec<QuantFormat> {
    let affine = [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| {
        [32, 64, 128].map(|group_size| QuantFormat { mode: QuantMode::Affine, bits, group_size })
    });
    let floats = [(QuantMode::Mxfp4, 4, 32), (QuantMode::Nvfp4, 4, 16), (QuantMode::Mxfp8, 8, 32)];
    let floats = floats.map(|(mode, bits, group_size)| QuantFormat { mode, bits, group_size });
    affine.chain(floats).collect()
}

pub(crate) fn any_format() -> impl Strategy<Value = QuantFormat> {
    prop::sample::select(formats())
}

pub(crate) fn any_float() -> impl Strategy<Value = Float> {
    prop::sample::select(vec![Float::F32, Float::F16, Float::Bf16])
}

/// A pool for every instruction set of this machine, scalar first.
pub(crate) fn pools(count: usize) -> Vec<Threads> {
    InstructionSet::available()
        .into_iter()
        .map(|instructions| Threads::with_instructions(count, instructions))
        .collect()
}
