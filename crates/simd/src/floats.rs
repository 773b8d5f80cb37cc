//! Buffers of floats whose element type is known only at run time.

use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};

use crate::elements::{Elements, ElementsMut, Float};

/// A buffer of floats.
#[derive(Clone, Debug)]
pub enum Floats {
    /// Single precision.
    F32(Vec<f32>),
    /// Half precision.
    F16(Vec<f16>),
    /// bfloat16.
    Bf16(Vec<bf16>),
}

impl Floats {
    /// Creates `len` zeros.
    pub fn zeros(float: Float, len: usize) -> Floats {
        match float {
            Float::F32 => Floats::F32(vec![0.0; len]),
            Float::F16 => Floats::F16(vec![f16::ZERO; len]),
            Float::Bf16 => Floats::Bf16(vec![bf16::ZERO; len]),
        }
    }

    /// Copies rows of `width` elements, in the order of `rows`.
    pub fn of_rows(from: Elements<'_>, rows: &[usize], width: usize) -> Floats {
        fn together<T: Copy>(values: &[T], rows: &[usize], width: usize) -> Vec<T> {
            rows.iter().flat_map(|row| &values[row * width..(row + 1) * width]).copied().collect()
        }
        match from {
            Elements::F32(values) => Floats::F32(together(values, rows, width)),
            Elements::F16(values) => Floats::F16(together(values, rows, width)),
            Elements::Bf16(values) => Floats::Bf16(together(values, rows, width)),
        }
    }

    /// Returns a read-only view.
    #[inline]
    pub fn elements(&self) -> Elements<'_> {
        match self {
            Floats::F32(values) => Elements::F32(values),
            Floats::F16(values) => Elements::F16(values),
            Floats::Bf16(values) => Elements::Bf16(values),
        }
    }

    /// Returns a mutable view.
    #[inline]
    pub fn elements_mut(&mut self) -> ElementsMut<'_> {
        match self {
            Floats::F32(values) => ElementsMut::F32(values),
            Floats::F16(values) => ElementsMut::F16(values),
            Floats::Bf16(values) => ElementsMut::Bf16(values),
        }
    }

    /// Rounds `values` into the elements from `start` on.
    #[inline]
    pub fn store(&mut self, start: usize, values: &[f32]) {
        let range = start..start + values.len();
        match self {
            Floats::F32(floats) => floats[range].copy_from_slice(values),
            Floats::F16(floats) => floats[range].convert_from_f32_slice(values),
            Floats::Bf16(floats) => floats[range].convert_from_f32_slice(values),
        }
    }

    /// Rounds `values` into the elements `start`, `start + step`, ….
    pub fn store_strided(&mut self, start: usize, step: usize, values: &[f32]) {
        match self {
            Floats::F32(floats) => {
                let places = floats[start..].iter_mut().step_by(step);
                places.zip(values).for_each(|(place, value)| *place = *value);
            }
            Floats::F16(floats) => {
                let places = floats[start..].iter_mut().step_by(step);
                places.zip(values).for_each(|(place, value)| *place = f16::from_f32(*value));
            }
            Floats::Bf16(floats) => {
                let places = floats[start..].iter_mut().step_by(step);
                places.zip(values).for_each(|(place, value)| *place = bf16::from_f32(*value));
            }
        }
    }
}
