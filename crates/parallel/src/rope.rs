//! Rotary position embedding (Su et al. 2021) with the context extensions that checkpoints use.

use std::cell::RefCell;
use std::f64::consts::PI;
use std::rc::Rc;

use jackalope_kernels::Rotation;
use jackalope_mlx::{Array, dim, fast};
use jackalope_spec::{RopeScaling, RopeSpec};

/// The rotations of a model. Layers with the same description share one, whose table a step computes
/// once.
#[derive(Debug, Default)]
pub struct Ropes(RefCell<Vec<(RopeSpec, Rc<Rope>)>>);

impl Ropes {
    /// Returns the rotations of a description.
    pub fn of(&self, spec: &RopeSpec) -> Rc<Rope> {
        let mut known = self.0.borrow_mut();
        if let Some((_, rope)) = known.iter().find(|(known, _)| known == spec) {
            return Rc::clone(rope);
        }
        let rope = Rc::new(Rope::new(spec));
        known.push((spec.clone(), Rc::clone(&rope)));
        rope
    }
}

/// Rotates heads by their position.
#[derive(Debug)]
pub struct Rope {
    /// Number of elements of a head that are rotated, the first ones.
    dims: usize,
    is_traditional: bool,
    /// Radians per position, for each pair of elements.
    radians: Vec<f64>,
    /// Factor by which rotated elements are multiplied.
    magnitude: f64,
    /// Positions per radian, for MLX.
    freqs: Array, // [dims / 2] f32
}

impl Rope {
    fn new(spec: &RopeSpec) -> Rope {
        let (periods, magnitude) = periods(spec);
        let freqs: Vec<f32> = periods.iter().map(|&period| period as f32).collect();
        Rope {
            dims: spec.dims,
            is_traditional: spec.is_traditional,
            radians: periods.iter().map(|period| 1.0 / period).collect(),
            magnitude,
            freqs: Array::from_slice(&freqs, &[dim(freqs.len())]),
        }
    }

    /// Computes cosines and sines for the rows of a step at `positions`.
    pub fn table(&self, positions: impl Iterator<Item = usize>) -> RotationTable {
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in positions {
            for radians in &self.radians {
                let (s, c) = (position as f64 * radians).sin_cos();
                cos.push((c * self.magnitude) as f32);
                sin.push((s * self.magnitude) as f32);
            }
        }
        let Rope { dims, is_traditional, .. } = *self;
        RotationTable { pairs: dims / 2, is_traditional, cos, sin }
    }

    /// Rotates the first elements of each head with MLX: `x` and the result are
    /// `[sequences, heads, seq, …]`, with the first row of each sequence at its `offset`.
    pub fn stock(&self, x: &Array, offset: fast::RopeOffset<'_>) -> Array {
        if self.dims == 0 {
            return x.clone();
        }
        let scaled = if self.magnitude == 1.0 { x.clone() } else { x.mul(&self.factors(x)) };
        let rope = fast::RopeParameters {
            dims: dim(self.dims),
            traditional: self.is_traditional,
            base: None,
            scale: 1.0,
            offset,
            freqs: Some(&self.freqs),
        };
        fast::rope(&scaled, rope)
    }

    /// Returns the factor of each element of a head of `x`, `[head_dim]`: only those that are
    /// rotated are multiplied.
    fn factors(&self, x: &Array) -> Array {
        let head_dim = x.dim(-1);
        let mut factors = vec![1.0; head_dim as usize];
        factors[..self.dims].fill(self.magnitude as f32);
        Array::from_slice(&factors, &[head_dim]).astype(x.dtype())
    }
}

/// The cosines and sines of a step's rows.
#[derive(Debug)]
pub struct RotationTable {
    /// Number of pairs of elements that are rotated.
    pairs: usize,
    is_traditional: bool,
    cos: Vec<f32>, // [tokens, pairs]
    sin: Vec<f32>,
}

impl RotationTable {
    /// Returns the table in the form that the kernels take, for heads of `head_dim` elements.
    pub fn rotation(&self, head_dim: usize) -> Rotation<'_> {
        let RotationTable { pairs, is_traditional, .. } = *self;
        Rotation { cos: &self.cos, sin: &self.sin, head_dim, pairs, is_traditional }
    }
}

/// Returns positions per radian of each pair, and the factor of the rotated elements, as mlx-lm
/// computes them.
fn periods(spec: &RopeSpec) -> (Vec<f64>, f64) {
    let plain = plain_periods(spec);
    match &spec.scaling {
        RopeScaling::None => (plain, 1.0),
        RopeScaling::Linear { factor } => {
            (plain.into_iter().map(|period| period * factor).collect(), 1.0)
        }
        RopeScaling::Proportional { rotated_dims, factor } => {
            // Pairs with an infinite period are not rotated.
            let stretched = plain.into_iter().enumerate().map(|(pair, period)| {
                if 2 * pair < *rotated_dims { period * factor } else { f64::INFINITY }
            });
            (stretched.collect(), 1.0)
        }
        RopeScaling::Llama3 { .. } => (llama3(plain, &spec.scaling), 1.0),
        RopeScaling::Yarn { .. } => yarn(plain, spec),
        RopeScaling::LongRope { factors, magnitude } => {
            let periods = plain.into_iter().zip(factors).map(|(period, factor)| period * factor);
            (periods.collect(), *magnitude)
        }
    }
}

fn plain_periods(spec: &RopeSpec) -> Vec<f64> {
    let dims = spec.dims as f64;
    let exponents = (0..spec.dims).step_by(2).map(|idx| idx as f64 / dims);
    exponents.map(|exponent| spec.theta.powf(exponent)).collect()
}

/// Stretches long waves, keeps short ones, and blends those in between.
fn llama3(plain: Vec<f64>, scaling: &RopeScaling) -> Vec<f64> {
    let &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } =
        scaling
    else {
        return plain;
    };
    let (low, high, original) = (low_freq_factor, high_freq_factor, original_context);
    let stretched = plain.into_iter().map(|period| {
        let wave = 2.0 * PI * period;
        if original / low < wave {
            return period * factor;
        }
        if wave <= original / high {
            return period;
        }
        let smooth = (original / wave - low) / (high - low);
        period / ((1.0 - smooth) / factor + smooth)
    });
    stretched.collect()
}

/// Computes YaRN (Peng et al. 2023), with mlx-lm's rounding of the borders.
fn yarn(plain: Vec<f64>, spec: &RopeSpec) -> (Vec<f64>, f64) {
    let &RopeScaling::Yarn {
        factor,
        original_context: original,
        beta_fast,
        beta_slow,
        mscale,
        mscale_all_dim,
    } = &spec.scaling
    else {
        return (plain, 1.0);
    };
    let dims = spec.dims as f64;
    let border =
        |rotations: f64| dims * (original / (rotations * 2.0 * PI)).ln() / (2.0 * spec.theta.ln());
    let low = border(beta_fast).floor().max(0.0);
    let high = border(beta_slow).ceil().min(dims - 1.0);
    let high = if low == high { high + 0.001 } else { high };
    let periods = plain.into_iter().enumerate().map(|(idx, period)| {
        let ramp = ((idx as f64 - low) / (high - low)).clamp(0.0, 1.0);
        let (inner, keep) = (factor * period, 1.0 - ramp);
        inner * period / (inner * keep + period * (1.0 - keep))
    });
    let magnitude =
        |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
    (periods.collect(), magnitude(mscale) / magnitude(mscale_all_dim))
}
