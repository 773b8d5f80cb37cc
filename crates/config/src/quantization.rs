//! What `config.json` states about quantised matrices.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::error::SpecError;
use crate::original::{OriginalFormat, unsupported};

/// How codes and scales are interpreted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QuantizationMode {
    /// `scale * code + bias`, with a scale and a bias per group in a float type.
    Affine,
    /// E2M1 codes, E8M0 scales, groups of 32.
    Mxfp4,
    /// E2M1 codes, E4M3 scales, groups of 16.
    Nvfp4,
    /// E4M3 codes, E8M0 scales, groups of 32.
    Mxfp8,
}

impl QuantizationMode {
    const ALL: [(QuantizationMode, &'static str); 4] = [
        (QuantizationMode::Affine, "affine"),
        (QuantizationMode::Mxfp4, "mxfp4"),
        (QuantizationMode::Nvfp4, "nvfp4"),
        (QuantizationMode::Mxfp8, "mxfp8"),
    ];

    fn from_name(name: &str) -> Option<QuantizationMode> {
        Self::ALL.into_iter().find(|(_, it)| *it == name).map(|(mode, _)| mode)
    }

    /// Returns the format that MLX quantises to if only the mode is stated (MLX 0.32,
    /// `quantization_params_from_mode`).
    pub fn default_format(self) -> QuantizationFormat {
        let (bits, group_size) = match self {
            QuantizationMode::Affine => (4, 64),
            QuantizationMode::Mxfp4 => (4, 32),
            QuantizationMode::Nvfp4 => (4, 16),
            QuantizationMode::Mxfp8 => (8, 32),
        };
        QuantizationFormat { mode: self, bits, group_size }
    }

    /// Returns the name in `config.json`.
    pub fn name(self) -> &'static str {
        let (_, name) = Self::ALL.into_iter().find(|(mode, _)| *mode == self).expect("all modes");
        name
    }
}

/// A mode with its widths.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QuantizationFormat {
    /// Interpretation of codes and scales.
    pub mode: QuantizationMode,
    /// Bits of a code.
    pub bits: u32,
    /// Number of codes that share a scale.
    pub group_size: u32,
}

impl QuantizationFormat {
    /// Whether MLX knows this combination.
    pub fn is_supported(&self) -> bool {
        match self.mode {
            QuantizationMode::Affine => {
                matches!(self.bits, 2 | 3 | 4 | 5 | 6 | 8)
                    && matches!(self.group_size, 32 | 64 | 128)
            }
            QuantizationMode::Mxfp4 => (self.bits, self.group_size) == (4, 32),
            QuantizationMode::Nvfp4 => (self.bits, self.group_size) == (4, 16),
            QuantizationMode::Mxfp8 => (self.bits, self.group_size) == (8, 32),
        }
    }

    /// Returns the number of u32 words of a row of `input` codes.
    pub fn words_per_row(&self, input: usize) -> usize {
        input * self.bits as usize / 32
    }

    /// Returns the number of groups, and so of scales, of a row of `input` codes.
    pub fn groups_per_row(&self, input: usize) -> usize {
        input / self.group_size as usize
    }
}

impl fmt::Display for QuantizationFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QuantizationFormat { mode, bits, group_size } = self;
        write!(f, "{} with {bits} bits in groups of {group_size}", mode.name())
    }
}

/// What `config.json` states about quantisation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuantizationMap {
    /// Bits and group size of the modules without an entry of their own.
    pub most: Option<StatedFormat>,
    /// How the original stores quantised matrices; `None` of conversions, and of originals that MLX reads as they
    /// are.
    pub original: Option<OriginalFormat>,
    overrides: BTreeMap<String, ModuleQuantization>,
}

/// Bits and group size that `config.json` states for most modules.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StatedFormat {
    /// Bits of a code.
    pub bits: u32,
    /// Number of codes that share a scale.
    pub group_size: u32,
}

/// The entry of a single module.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ModuleQuantization {
    /// Not quantised.
    Plain,
    /// Quantised in this way.
    Format(QuantizationFormat),
}

/// The entry of a module. Without a mode it is affine, whatever the mode of the other modules; without bits or
/// group size, it has those that MLX takes for the mode.
#[derive(Deserialize)]
struct OverrideFields {
    group_size: Option<u32>,
    bits: Option<u32>,
    mode: Option<String>,
}

impl QuantizationMap {
    /// Reads the entries of `config.json`.
    ///
    /// # Errors
    /// Fails if the weights are quantised in a way that is not supported, or an entry is malformed.
    pub fn from_config(config: &Value) -> Result<QuantizationMap, SpecError> {
        if config.get("quantize_activations").and_then(Value::as_bool) == Some(true) {
            return Err(unsupported("quantize_activations".to_owned()));
        }
        let own = config.get("quantization").and_then(Value::as_object);
        // Some multimodal originals state it of their language model only, where mlx-lm reads it too.
        let nested = || config.get("text_config")?.get("quantization_config");
        let foreign = config.get("quantization_config").or_else(nested).and_then(Value::as_object);
        let stated = foreign.filter(|map| own.is_none() && map.contains_key("quant_method"));
        let original = stated.map(OriginalFormat::read).transpose()?.flatten();
        let mut overrides = BTreeMap::new();
        let entries = own.or(foreign.filter(|_| original.is_none()));
        for (module, value) in entries.into_iter().flatten() {
            let stated = match value {
                Value::Bool(false) => ModuleQuantization::Plain,
                Value::Object(_) => ModuleQuantization::Format(override_format(module, value)?),
                // The default for all modules, which also follows from the shapes.
                _ => continue,
            };
            overrides.insert(module.clone(), stated);
        }
        let number = |name: &str| u32::try_from(entries?.get(name)?.as_u64()?).ok();
        let most = number("bits").zip(number("group_size"));
        let most = most.map(|(bits, group_size)| StatedFormat { bits, group_size });
        Ok(QuantizationMap { most, original, overrides })
    }

    /// Returns the map with modules named by `rename`; modules without a new name are left out.
    #[must_use]
    pub fn renamed(self, rename: impl Fn(&str) -> Option<String>) -> QuantizationMap {
        let overrides = self.overrides.iter();
        let overrides = overrides.filter_map(|(module, stated)| Some((rename(module)?, *stated)));
        QuantizationMap { overrides: overrides.collect(), ..self }
    }

    /// Returns what is stated of a module by its own entry.
    pub fn of_module(&self, module: &str) -> Option<ModuleQuantization> {
        self.overrides.get(module).copied()
    }
}

fn override_format(module: &str, value: &Value) -> Result<QuantizationFormat, SpecError> {
    let fields = OverrideFields::deserialize(value).map_err(|err| SpecError::Malformed {
        reason: format!("quantization of {module}: {err}"),
    })?;
    let name = fields.mode.as_deref().unwrap_or("affine");
    let Some(mode) = QuantizationMode::from_name(name) else {
        return Err(unsupported(name.to_owned()));
    };
    let default = mode.default_format();
    Ok(QuantizationFormat {
        mode,
        bits: fields.bits.unwrap_or(default.bits),
        group_size: fields.group_size.unwrap_or(default.group_size),
    })
}
