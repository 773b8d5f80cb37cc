//! Rotary position embedding (Su et al. 2021) with the context extensions that checkpoints use.

use std::f64::consts::PI;
use std::rc::Rc;

use jackalope_kernels::Rotation;
use jackalope_mlx::{Array, fast};
use serde::Deserialize;

use super::kernel::dim;
use crate::checkpoint::{Checkpoint, float};
use crate::error::LoadError;

/// Types that an error message lists.
const SUPPORTED: &[&str] =
    &["default", "linear", "dynamic", "llama3", "yarn", "longrope", "mrope (for text)"];

/// The fields of `rope_scaling`, or of `rope_parameters` in newer checkpoints.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct RopeScaling {
    #[serde(rename = "type")]
    kind: Option<String>,
    rope_type: Option<String>,
    #[serde(default, deserialize_with = "float")]
    rope_theta: Option<f64>,
    #[serde(default, deserialize_with = "float")]
    factor: Option<f64>,
    #[serde(default, deserialize_with = "float")]
    low_freq_factor: Option<f64>,
    #[serde(default, deserialize_with = "float")]
    high_freq_factor: Option<f64>,
    #[serde(default, deserialize_with = "float")]
    original_max_position_embeddings: Option<f64>,
    #[serde(default, deserialize_with = "float")]
    beta_fast: Option<f64>,
    #[serde(default, deserialize_with = "float")]
    beta_slow: Option<f64>,
    #[serde(default, deserialize_with = "float")]
    mscale: Option<f64>,
    #[serde(default, deserialize_with = "float")]
    mscale_all_dim: Option<f64>,
    long_factor: Option<Vec<f64>>,
}

impl RopeScaling {
    fn kind(&self) -> &str {
        self.kind.as_deref().or(self.rope_type.as_deref()).unwrap_or("default")
    }
}

/// The fields of `config.json` that concern positions.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RopeConfig {
    #[serde(default, deserialize_with = "float")]
    rope_theta: Option<f64>,
    rope_scaling: Option<RopeScaling>,
    rope_parameters: Option<RopeScaling>,
    #[serde(default)]
    rope_traditional: bool,
    max_position_embeddings: Option<u32>,
}

/// Context length of a checkpoint that does not state one. Limits admission, not the computation.
const DEFAULT_CONTEXT_TOKENS: u32 = 32_768;

impl RopeConfig {
    fn scaling(&self) -> RopeScaling {
        self.rope_scaling.clone().or_else(|| self.rope_parameters.clone()).unwrap_or_default()
    }

    /// Returns the maximum length of a sequence that the model was trained for, in tokens.
    pub(crate) fn context_tokens(&self) -> u32 {
        let stated = self.max_position_embeddings.unwrap_or(DEFAULT_CONTEXT_TOKENS);
        let scaling = self.scaling();
        match (scaling.kind(), scaling.original_max_position_embeddings, scaling.factor) {
            // Checkpoints state the length either before or after the extension.
            ("yarn", Some(original), Some(factor)) => stated.max((original * factor) as u32),
            _ => stated,
        }
    }
}

/// Rotates heads by their position.
#[derive(Debug)]
pub(crate) struct Rope {
    head_dim: usize,
    is_traditional: bool,
    /// Radians per position, for each pair of elements.
    radians: Vec<f64>,
    /// Factor by which rotated elements are multiplied.
    magnitude: f64,
    /// Positions per radian, for MLX.
    freqs: Array, // [head_dim / 2] f32
}

impl Rope {
    /// Creates the rotations that `config.json` describes; `default_theta` is the base of
    /// checkpoints that do not state one.
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        config: &RopeConfig,
        head_dim: usize,
        default_theta: Option<f64>,
    ) -> Result<Rc<Rope>, LoadError> {
        if !head_dim.is_multiple_of(2) || head_dim == 0 {
            return Err(checkpoint.bad_value("head_dim", head_dim, "an even number"));
        }
        let scaling = config.scaling();
        let theta = config.rope_theta.or(scaling.rope_theta).or(default_theta);
        let Some(theta) = theta.filter(|theta| 1.0 < *theta && theta.is_finite()) else {
            return Err(checkpoint.bad_value("rope_theta", theta, "a number above 1"));
        };
        let stretch = Stretch { checkpoint, scaling: &scaling, config, head_dim, theta };
        let (periods, magnitude) = stretch.periods()?;
        let freqs: Vec<f32> = periods.iter().map(|&period| period as f32).collect();
        Ok(Rc::new(Rope {
            head_dim,
            is_traditional: config.rope_traditional,
            radians: periods.iter().map(|period| 1.0 / period).collect(),
            magnitude,
            freqs: Array::from_slice(&freqs, &[dim(freqs.len())]),
        }))
    }

    /// Computes cosines and sines for the rows of a step at `positions`.
    pub(crate) fn table(&self, positions: impl Iterator<Item = usize>) -> RotationTable {
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in positions {
            for radians in &self.radians {
                let (s, c) = (position as f64 * radians).sin_cos();
                cos.push((c * self.magnitude) as f32);
                sin.push((s * self.magnitude) as f32);
            }
        }
        let Rope { head_dim, is_traditional, .. } = *self;
        RotationTable { head_dim, is_traditional, cos, sin }
    }

    /// Rotates with MLX: `x` and the result are `[1, heads, seq, head_dim]`, with the first row at
    /// position `offset`.
    pub(crate) fn stock(&self, x: &Array, offset: usize) -> Array {
        let scaled = if self.magnitude == 1.0 { x.clone() } else { x * self.magnitude as f32 };
        let rope = fast::Rope {
            dims: dim(self.head_dim),
            traditional: self.is_traditional,
            base: None,
            scale: 1.0,
            offset: dim(offset),
            freqs: Some(&self.freqs),
        };
        fast::rope(&scaled, rope)
    }
}

/// The cosines and sines of a step's rows.
#[derive(Debug)]
pub(crate) struct RotationTable {
    head_dim: usize,
    is_traditional: bool,
    cos: Vec<f32>, // [tokens, head_dim / 2]
    sin: Vec<f32>,
}

impl RotationTable {
    /// Returns the table in the form that the kernels take.
    pub(crate) fn rotation(&self) -> Rotation<'_> {
        let RotationTable { head_dim, is_traditional, .. } = *self;
        Rotation { cos: &self.cos, sin: &self.sin, head_dim, is_traditional }
    }
}

/// Computes the periods as mlx-lm does.
struct Stretch<'a> {
    checkpoint: &'a Checkpoint,
    scaling: &'a RopeScaling,
    config: &'a RopeConfig,
    head_dim: usize,
    theta: f64,
}

impl Stretch<'_> {
    /// Returns positions per radian of each pair, and the factor of the rotated elements.
    fn periods(&self) -> Result<(Vec<f64>, f64), LoadError> {
        match self.scaling.kind() {
            // `dynamic` only changes positions beyond `max_position_embeddings`, which the context
            // limit excludes.
            "default" | "mrope" | "dynamic" => Ok((self.plain(), 1.0)),
            "linear" => {
                let factor = self.factor()?;
                Ok((self.plain().into_iter().map(|period| period * factor).collect(), 1.0))
            }
            "llama3" => Ok((self.llama3()?, 1.0)),
            "yarn" => self.yarn(),
            "longrope" => self.longrope(),
            other => Err(self.checkpoint.unsupported("rope type", other, SUPPORTED)),
        }
    }

    fn plain(&self) -> Vec<f64> {
        let dims = self.head_dim as f64;
        let exponents = (0..self.head_dim).step_by(2).map(|idx| idx as f64 / dims);
        exponents.map(|exponent| self.theta.powf(exponent)).collect()
    }

    fn factor(&self) -> Result<f64, LoadError> {
        let factor = self.scaling.factor.filter(|factor| 0.0 < *factor && factor.is_finite());
        factor.ok_or_else(|| {
            let expected = "a positive number";
            self.checkpoint.bad_value("rope_scaling.factor", self.scaling.factor, expected)
        })
    }

    /// Stretches long waves, keeps short ones, and blends those in between.
    fn llama3(&self) -> Result<Vec<f64>, LoadError> {
        let factor = self.factor()?;
        let low = self.scaling.low_freq_factor.unwrap_or(1.0);
        let high = self.scaling.high_freq_factor.unwrap_or(4.0);
        let original = self.scaling.original_max_position_embeddings.unwrap_or(8192.0);
        let stretched = self.plain().into_iter().map(|period| {
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
        Ok(stretched.collect())
    }

    /// Computes YaRN (Peng et al. 2023), with mlx-lm's rounding of the borders.
    fn yarn(&self) -> Result<(Vec<f64>, f64), LoadError> {
        let factor = self.factor()?;
        let scaling = self.scaling;
        let original = scaling.original_max_position_embeddings.unwrap_or(4096.0);
        let dims = self.head_dim as f64;
        let border = |rotations: f64| {
            dims * (original / (rotations * 2.0 * PI)).ln() / (2.0 * self.theta.ln())
        };
        let low = border(scaling.beta_fast.unwrap_or(32.0)).floor().max(0.0);
        let high = border(scaling.beta_slow.unwrap_or(1.0)).ceil().min(dims - 1.0);
        let high = if low == high { high + 0.001 } else { high };
        let periods = self.plain().into_iter().enumerate().map(|(idx, period)| {
            let ramp = ((idx as f64 - low) / (high - low)).clamp(0.0, 1.0);
            let (inner, keep) = (factor * period, 1.0 - ramp);
            inner * period / (inner * keep + period * (1.0 - keep))
        });
        let magnitude = |mscale: f64| {
            if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
        };
        let scale = magnitude(scaling.mscale.unwrap_or(1.0))
            / magnitude(scaling.mscale_all_dim.unwrap_or(0.0));
        Ok((periods.collect(), scale))
    }

    /// Uses the long factors for every length, as mlx-lm does, so that cached keys are valid at any
    /// length.
    fn longrope(&self) -> Result<(Vec<f64>, f64), LoadError> {
        let factors = self.scaling.long_factor.as_deref().unwrap_or_default();
        if factors.len() != self.head_dim / 2 {
            let expected = format!("{} numbers", self.head_dim / 2);
            return Err(self.checkpoint.bad_value(
                "rope_scaling.long_factor",
                factors.len(),
                &expected,
            ));
        }
        let Some(original) = self.scaling.original_max_position_embeddings else {
            let field = "rope_scaling.original_max_position_embeddings";
            return Err(self.checkpoint.bad_value(field, None::<f64>, "a number"));
        };
        let stretch = f64::from(self.config.context_tokens()) / original;
        let magnitude =
            if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / original.ln()).sqrt() };
        let periods = self.plain().into_iter().zip(factors).map(|(period, factor)| period * factor);
        Ok((periods.collect(), magnitude))
    }
}
