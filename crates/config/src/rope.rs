//! Rotary position embedding as `config.json` describes it.

use std::f64::consts::PI;

use jackalope_protocol::counted;
use serde::Deserialize;

use crate::error::SpecError;
use crate::fields::{bad_value, float, or_absent};

/// Types that an error message lists.
const SUPPORTED: &[&str] = &[
    "default",
    "linear",
    "dynamic",
    "llama3",
    "yarn",
    "longrope",
    "proportional",
    "mrope (for text)",
];

/// Names of `YaRN`.
const YARN: &[&str] = &["yarn", "deepseek_yarn", "telechat3-yarn"];

/// Context length of a checkpoint that does not state one. Limits admission, not the computation.
const DEFAULT_CONTEXT_TOKENS: u32 = 32_768;

/// The rotation of an attention's queries and keys (Su et al. 2021).
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Number of elements of a head that are rotated, the first ones; even, and 0 if none are.
    pub dims: usize,
    /// Base of the periods.
    pub theta: f64,
    /// Whether neighbouring elements are a pair, instead of elements of both halves.
    pub is_traditional: bool,
    /// Extension of the context.
    pub scaling: RopeScaling,
}

impl RopeSpec {
    /// No rotation at all.
    pub const NONE: RopeSpec =
        RopeSpec { dims: 0, theta: 1.0, is_traditional: false, scaling: RopeScaling::None };

    /// Returns the rotation in which neighbouring elements are a pair, or elements of both halves. A
    /// rotation with a factor for each pair always has the latter, as in mlx-lm.
    pub fn with_pairs(self, is_traditional: bool) -> RopeSpec {
        let has_factors = matches!(self.scaling, RopeScaling::LongRope { .. });
        RopeSpec { is_traditional: is_traditional && !has_factors, ..self }
    }

    /// Returns positions per radian of each pair, and the factor of the rotated elements, as mlx-lm
    /// computes them.
    pub fn periods(&self) -> (Vec<f64>, f64) {
        let plain = plain_periods(self);
        match &self.scaling {
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
            RopeScaling::Llama3 { .. } => (llama3(plain, &self.scaling), 1.0),
            RopeScaling::Yarn { .. } => yarn(plain, self),
            RopeScaling::LongRope { factors, magnitude } => {
                let periods =
                    plain.into_iter().zip(factors).map(|(period, factor)| period * factor);
                (periods.collect(), *magnitude)
            }
        }
    }
}

/// How a checkpoint extends the context that its rotations were made for.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All periods are stretched.
    Linear {
        /// Factor of the periods.
        factor: f64,
    },
    /// Long waves are stretched, short ones kept (Grattafiori et al. 2024).
    Llama3 {
        /// Factor of the long periods.
        factor: f64,
        /// Number of waves in the original context below which a wave is long.
        low_freq_factor: f64,
        /// Number of waves above which it is short.
        high_freq_factor: f64,
        /// Context length before the extension, in tokens.
        original_context: f64,
    },
    /// `YaRN` (Peng et al. 2023).
    Yarn {
        /// Factor of the long periods.
        factor: f64,
        /// Context length before the extension, in tokens.
        original_context: f64,
        /// Number of rotations from which a period is kept.
        beta_fast: f64,
        /// Number of rotations below which it is stretched.
        beta_slow: f64,
        /// Factor in the magnitude of rotated elements.
        mscale: f64,
        /// Factor in what the magnitude is divided by.
        mscale_all_dim: f64,
    },
    /// Only the first pairs of both halves of a head are rotated, with the periods of a rotation of
    /// all elements (Gemma 4).
    Proportional {
        /// Number of elements that are rotated.
        rotated_dims: usize,
        /// Factor of the periods.
        factor: f64,
    },
    /// A factor for each pair of elements (Ding et al. 2024).
    LongRope {
        /// Factors of the periods.
        factors: Vec<f64>,
        /// Factor by which rotated elements are multiplied.
        magnitude: f64,
    },
}

/// The factor of a query at `position`: `1 + beta * ln(1 + floor((position + offset) / period))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// Factor of the logarithm.
    pub beta: f32,
    /// Number of positions after which the factor changes.
    pub period: usize,
    /// Offset added to the position.
    pub offset: usize,
}

impl QueryGrowth {
    /// Returns the factor of the query at a position.
    pub fn factor(&self, position: usize) -> f32 {
        let steps = (position + self.offset) / self.period;
        (1.0 + f64::from(self.beta) * (1.0 + steps as f64).ln()) as f32
    }
}

/// The fields of `rope_scaling`, or of `rope_parameters` in newer checkpoints.
#[derive(Clone, Debug, Default, Deserialize)]
struct ScalingConfig {
    #[serde(rename = "type")]
    kind: Option<String>,
    rope_type: Option<String>,
    #[serde(default, deserialize_with = "float")]
    rope_theta: Option<f64>,
    #[serde(default, deserialize_with = "float")]
    partial_rotary_factor: Option<f64>,
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
    #[serde(default, deserialize_with = "float")]
    alpha: Option<f64>,
    long_factor: Option<Vec<f64>>,
    #[serde(default, deserialize_with = "float")]
    long_mscale: Option<f64>,
}

impl ScalingConfig {
    fn kind(&self) -> &str {
        self.kind.as_deref().or(self.rope_type.as_deref()).unwrap_or("default")
    }

    fn factor(&self) -> Result<f64, SpecError> {
        let factor = self.factor.filter(|factor| 0.0 < *factor && factor.is_finite());
        factor.ok_or_else(|| {
            bad_value("rope_scaling.factor", or_absent(self.factor), "a positive number")
        })
    }
}

/// The fields of `config.json` that concern positions.
#[derive(Clone, Debug, Deserialize)]
pub struct RopeConfig {
    #[serde(default, deserialize_with = "float")]
    rope_theta: Option<f64>,
    rope_scaling: Option<ScalingConfig>,
    rope_parameters: Option<ScalingConfig>,
    #[serde(default)]
    rope_traditional: bool,
    partial_rotary_factor: Option<f64>,
    max_position_embeddings: Option<u32>,
    original_max_position_embeddings: Option<f64>,
}

impl RopeConfig {
    fn scaling(&self) -> ScalingConfig {
        self.rope_scaling.clone().or_else(|| self.rope_parameters.clone()).unwrap_or_default()
    }

    /// Returns the maximum length of a sequence that the model was trained for, in tokens.
    pub fn context_tokens(&self) -> u32 {
        let stated = self.max_position_embeddings.unwrap_or(DEFAULT_CONTEXT_TOKENS);
        let scaling = self.scaling();
        match (scaling.kind(), scaling.original_max_position_embeddings, scaling.factor) {
            // Checkpoints state the length either before or after the extension.
            (kind, Some(original), Some(factor)) if YARN.contains(&kind) => {
                stated.max((original * factor) as u32)
            }
            _ => stated,
        }
    }

    /// Whether neighbouring elements are a pair.
    pub fn is_traditional(&self) -> bool {
        self.rope_traditional
    }

    /// Returns the number of elements of a head that are rotated, rounded down as in mlx-lm;
    /// `default` is the fraction of checkpoints that do not state one.
    ///
    /// # Errors
    /// Fails if the fraction is not stated and has no default, or is out of bounds.
    pub fn rotated_dims(&self, head_dim: usize, default: Option<f64>) -> Result<usize, SpecError> {
        let stated = self.partial_rotary_factor.or(self.scaling().partial_rotary_factor);
        let factor = stated.or(default);
        let Some(valid) = factor.filter(|factor| 0.0 < *factor && *factor <= 1.0) else {
            let expected = "a number above 0, at most 1";
            return Err(bad_value("partial_rotary_factor", or_absent(factor), expected));
        };
        Ok((head_dim as f64 * valid) as usize)
    }

    /// Returns the factor by which an extended context scales attention scores (Peng et al. 2023,
    /// section 3.4), as mlx-lm computes it for latent attention: whatever the type of the extension.
    pub fn score_factor(&self) -> f64 {
        let ScalingConfig { factor, mscale_all_dim, .. } = self.scaling();
        match (factor, mscale_all_dim) {
            (Some(factor), Some(mscale)) if 1.0 < factor => {
                (0.1 * mscale * factor.ln() + 1.0).powi(2)
            }
            _ => 1.0,
        }
    }

    /// Like [`RopeConfig::score_factor`], for a family in which the type `default` has no factor.
    pub fn score_factor_of_extension(&self) -> f64 {
        if self.scaling().kind() == "default" { 1.0 } else { self.score_factor() }
    }

    /// Refuses a rotation that extends the context in an unsupported way.
    ///
    /// # Errors
    /// Fails if the type is none of `supported`.
    pub fn require(&self, supported: &'static [&'static str]) -> Result<(), SpecError> {
        let scaling = self.scaling();
        if supported.contains(&scaling.kind()) {
            return Ok(());
        }
        let (what, found) = ("rope type", scaling.kind().to_owned());
        Err(SpecError::Setting { what, found, supported })
    }

    /// Returns the rotation of a family that extends the context by a larger base: with `alpha`, the
    /// base becomes `theta * alpha^(dims / (dims - 2))` (NTK-aware scaling).
    ///
    /// # Errors
    /// Fails if a value is invalid.
    pub fn alpha(&self, dims: usize) -> Result<RopeSpec, SpecError> {
        let plain = self.unscaled(dims)?;
        let Some(alpha) = self.scaling().alpha else { return Ok(plain) };
        if !(0.0 < alpha && alpha.is_finite() && 2 < dims) {
            return Err(bad_value("rope_scaling.alpha", alpha, "a positive number"));
        }
        let exponent = dims as f64 / (dims as f64 - 2.0);
        Ok(RopeSpec { theta: plain.theta * alpha.powf(exponent), ..plain })
    }

    /// Returns the same fields with another base, and another fraction of a head that is rotated if
    /// there is one.
    pub fn with_base(&self, theta: f64, fraction: Option<f64>) -> RopeConfig {
        let partial_rotary_factor = fraction.or(self.partial_rotary_factor);
        RopeConfig { rope_theta: Some(theta), partial_rotary_factor, ..self.clone() }
    }

    /// Returns the rotation of a family whose scaling mlx-lm ignores.
    ///
    /// # Errors
    /// Fails if the base is invalid.
    pub fn unscaled(&self, dims: usize) -> Result<RopeSpec, SpecError> {
        self.unscaled_or(dims, None)
    }

    /// Like [`RopeConfig::unscaled`]; `default_theta` is the base of checkpoints that do not state
    /// one.
    ///
    /// # Errors
    /// Fails if the base is invalid.
    pub fn unscaled_or(
        &self,
        dims: usize,
        default_theta: Option<f64>,
    ) -> Result<RopeSpec, SpecError> {
        let plain = RopeConfig { rope_scaling: None, rope_parameters: None, ..self.clone() };
        plain.spec(dims, self.scaling().rope_theta.or(default_theta))
    }

    /// Returns the rotation of the first `dims` elements of a head; `default_theta` is the base of
    /// checkpoints that do not state one.
    ///
    /// # Errors
    /// Fails if a value is invalid or the type is not supported.
    pub fn spec(&self, dims: usize, default_theta: Option<f64>) -> Result<RopeSpec, SpecError> {
        if !dims.is_multiple_of(2) || dims == 0 {
            let field = "rotated part of head_dim";
            return Err(bad_value(field, dims, "a positive even number"));
        }
        let scaling = self.scaling();
        let stated = self.rope_theta.or(scaling.rope_theta).or(default_theta);
        let Some(theta) = stated.filter(|theta| 1.0 < *theta && theta.is_finite()) else {
            return Err(bad_value("rope_theta", or_absent(stated), "a number above 1"));
        };
        let scaling = self.extension(&scaling, dims)?;
        let rope = RopeSpec { dims, theta, is_traditional: false, scaling };
        Ok(rope.with_pairs(self.rope_traditional))
    }

    /// Reads the extension with mlx-lm's defaults.
    fn extension(&self, scaling: &ScalingConfig, dims: usize) -> Result<RopeScaling, SpecError> {
        let original = scaling.original_max_position_embeddings;
        Ok(match scaling.kind() {
            // `dynamic` only changes positions beyond `max_position_embeddings`, which the context
            // limit excludes.
            "default" | "mrope" | "dynamic" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: scaling.factor()? },
            "llama3" => RopeScaling::Llama3 {
                factor: scaling.factor()?,
                low_freq_factor: scaling.low_freq_factor.unwrap_or(1.0),
                high_freq_factor: scaling.high_freq_factor.unwrap_or(4.0),
                original_context: original.unwrap_or(8192.0),
            },
            kind if YARN.contains(&kind) => RopeScaling::Yarn {
                factor: scaling.factor()?,
                original_context: original.unwrap_or(4096.0),
                beta_fast: scaling.beta_fast.unwrap_or(32.0),
                beta_slow: scaling.beta_slow.unwrap_or(1.0),
                mscale: scaling.mscale.unwrap_or(1.0),
                mscale_all_dim: scaling.mscale_all_dim.unwrap_or(0.0),
            },
            "longrope" | "su" => self.longrope(scaling, dims)?,
            "proportional" => RopeScaling::Proportional {
                rotated_dims: self.rotated_dims(dims, Some(1.0))?,
                factor: if scaling.factor.is_some() { scaling.factor()? } else { 1.0 },
            },
            other => {
                let (what, found) = ("rope type", other.to_owned());
                return Err(SpecError::Setting { what, found, supported: SUPPORTED });
            }
        })
    }

    /// Takes the long factors for every length, as mlx-lm does, so that cached keys are valid at any
    /// length.
    fn longrope(&self, scaling: &ScalingConfig, dims: usize) -> Result<RopeScaling, SpecError> {
        let factors = scaling.long_factor.clone().unwrap_or_default();
        if factors.len() != dims / 2 {
            let expected = counted(dims / 2, "number");
            return Err(bad_value("rope_scaling.long_factor", factors.len(), expected));
        }
        let original = scaling.original_max_position_embeddings;
        let original = original.or(self.original_max_position_embeddings);
        let Some(original_context) = original else {
            let field = "rope_scaling.original_max_position_embeddings";
            return Err(bad_value(field, "absent", "a number"));
        };
        let stretch = f64::from(self.context_tokens()) / original_context;
        let magnitude =
            if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / original_context.ln()).sqrt() };
        Ok(RopeScaling::LongRope { factors, magnitude })
    }

    /// Returns the rotation of the first `dims` elements of a head; with a factor for each pair of
    /// elements, its magnitude is `long_mscale`.
    ///
    /// # Errors
    /// Fails if a value is invalid or absent, or the type is not supported.
    pub fn with_stated_magnitude(&self, dims: usize) -> Result<RopeSpec, SpecError> {
        self.require(&["default", "longrope", "su"])?;
        let plain = self.spec(dims, None)?;
        let RopeScaling::LongRope { factors, .. } = plain.scaling else { return Ok(plain) };
        let stated = self.scaling().long_mscale;
        let Some(magnitude) = stated.filter(|stated| 0.0 < *stated && stated.is_finite()) else {
            let field = "rope_scaling.long_mscale";
            return Err(bad_value(field, or_absent(stated), "a positive number"));
        };
        Ok(RopeSpec { scaling: RopeScaling::LongRope { factors, magnitude }, ..plain })
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
