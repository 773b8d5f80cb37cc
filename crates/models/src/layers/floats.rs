//! Floats of the model's type outside MLX's arrays.

use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use jackalope_kernels::{Elements, ElementsMut};
use jackalope_mlx::Dtype;

/// A buffer of floats.
#[derive(Clone, Debug)]
pub(crate) enum Floats {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Floats {
    pub(crate) fn zeros(dtype: Dtype, len: usize) -> Floats {
        match dtype {
            Dtype::F16 => Floats::F16(vec![f16::ZERO; len]),
            Dtype::Bf16 => Floats::Bf16(vec![bf16::ZERO; len]),
            _ => Floats::F32(vec![0.0; len]),
        }
    }

    pub(crate) fn elements(&self) -> Elements<'_> {
        match self {
            Floats::F32(values) => Elements::F32(values),
            Floats::F16(values) => Elements::F16(values),
            Floats::Bf16(values) => Elements::Bf16(values),
        }
    }

    pub(crate) fn elements_mut(&mut self) -> ElementsMut<'_> {
        match self {
            Floats::F32(values) => ElementsMut::F32(values),
            Floats::F16(values) => ElementsMut::F16(values),
            Floats::Bf16(values) => ElementsMut::Bf16(values),
        }
    }

    /// Rounds `values` into the elements from `start` on.
    pub(crate) fn store(&mut self, start: usize, values: &[f32]) {
        let range = start..start + values.len();
        match self {
            Floats::F32(floats) => floats[range].copy_from_slice(values),
            Floats::F16(floats) => floats[range].convert_from_f32_slice(values),
            Floats::Bf16(floats) => floats[range].convert_from_f32_slice(values),
        }
    }

    /// Rounds `values` into the elements `start`, `start + step`, ….
    pub(crate) fn store_strided(&mut self, start: usize, step: usize, values: &[f32]) {
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
