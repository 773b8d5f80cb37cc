//! Determines which layers are quantised, and how.
//!
//! A layer is quantised if it has a `.scales` tensor. Bits and group size follow from the shapes of
//! its tensors, the mode from the type of the scales; the entry of `config.json` for a single layer
//! must agree.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use jackalope_kernels::{QuantFormat, QuantMode};
use jackalope_protocol::QUANT_METHODS;
use serde::Deserialize;
use serde_json::Value;

use super::tensors::{ElementType, TensorIndex};
use crate::error::LoadError;

/// Formats that an error message lists.
const SUPPORTED: &[&str] = &["MLX's affine", "mxfp4", "nvfp4", "mxfp8"];

/// The entries of `config.json` for single layers.
#[derive(Debug, Default)]
pub(super) struct QuantizationMap {
    config_path: PathBuf,
    overrides: BTreeMap<String, Override>,
}

#[derive(Debug)]
enum Override {
    /// Not quantised.
    Plain,
    /// Quantised in this way.
    Format(QuantFormat),
}

/// The entry of a layer. Without a mode it is affine, whatever the mode of the other layers.
#[derive(Deserialize)]
struct OverrideFields {
    group_size: u32,
    bits: u32,
    #[serde(default)]
    mode: Option<String>,
}

impl QuantizationMap {
    pub(super) fn new(path: &Path, config: &Value) -> Result<QuantizationMap, LoadError> {
        let unsupported = |found: &str| LoadError::Unsupported {
            path: path.to_path_buf(),
            what: "quantisation",
            found: found.to_owned(),
            supported: SUPPORTED,
        };
        if config.get("quantize_activations").and_then(Value::as_bool) == Some(true) {
            return Err(unsupported("quantize_activations"));
        }
        let own = config.get("quantization").and_then(Value::as_object);
        let foreign = config.get("quantization_config").and_then(Value::as_object);
        if own.is_none()
            && let Some(method) = foreign.and_then(|map| map.get("quant_method"))
            && !method.as_str().is_some_and(|name| QUANT_METHODS.contains(&name))
        {
            return Err(unsupported(method.as_str().unwrap_or("quant_method")));
        }
        let mut overrides = BTreeMap::new();
        for (module, value) in own.or(foreign).into_iter().flatten() {
            match value {
                Value::Bool(false) => {
                    overrides.insert(module.clone(), Override::Plain);
                }
                Value::Object(_) => {
                    let format = override_format(path, module, value)?;
                    overrides.insert(module.clone(), Override::Format(format));
                }
                // The default for all layers, which also follows from the shapes.
                _ => {}
            }
        }
        Ok(QuantizationMap { config_path: path.to_path_buf(), overrides })
    }

    /// Returns the format of the layer at `module` with `input` features; `None` if it is not
    /// quantised.
    pub(super) fn format(
        &self,
        tensors: &TensorIndex,
        module: &str,
        input: usize,
    ) -> Result<Option<QuantFormat>, LoadError> {
        let stated = self.overrides.get(module);
        let Some(found) = infer(tensors, module, input)? else {
            return match stated {
                Some(Override::Format(format)) => {
                    Err(self.contradiction(module, "nothing", &describe(*format)))
                }
                _ => Ok(None),
            };
        };
        match stated {
            Some(Override::Plain) => {
                Err(self.contradiction(module, &describe(found), "nothing (config.json: false)"))
            }
            Some(Override::Format(format)) if *format != found => {
                Err(self.contradiction(module, &describe(found), &describe(*format)))
            }
            _ => Ok(Some(found)),
        }
    }

    fn contradiction(&self, module: &str, found: &str, expected: &str) -> LoadError {
        LoadError::Quantization {
            path: self.config_path.clone(),
            module: module.to_owned(),
            found: found.to_owned(),
            expected: expected.to_owned(),
        }
    }
}

fn override_format(path: &Path, module: &str, value: &Value) -> Result<QuantFormat, LoadError> {
    let fields = OverrideFields::deserialize(value).map_err(|err| LoadError::Config {
        path: path.to_path_buf(),
        reason: format!("quantization of {module}: {err}"),
    })?;
    let name = fields.mode.as_deref().unwrap_or("affine");
    let mode = match name {
        "affine" => QuantMode::Affine,
        "mxfp4" => QuantMode::Mxfp4,
        "nvfp4" => QuantMode::Nvfp4,
        "mxfp8" => QuantMode::Mxfp8,
        _ => {
            let (path, found) = (path.to_path_buf(), name.to_owned());
            let what = "quantisation mode";
            return Err(LoadError::Unsupported { path, what, found, supported: SUPPORTED });
        }
    };
    Ok(QuantFormat { mode, bits: fields.bits, group_size: fields.group_size })
}

/// Infers the format from a layer's tensors.
fn infer(
    tensors: &TensorIndex,
    module: &str,
    input: usize,
) -> Result<Option<QuantFormat>, LoadError> {
    let Some(scales) = tensors.find(&format!("{module}.scales")) else { return Ok(None) };
    let Some(weight) = tensors.find(&format!("{module}.weight")) else { return Ok(None) };
    let last = |shape: &[usize]| shape.last().copied().unwrap_or(0);
    let (words, groups) = (last(&weight.shape), last(&scales.shape));
    let no_format = || LoadError::Quantization {
        path: weight.path().to_path_buf(),
        module: module.to_owned(),
        found: format!(
            "{words} words and {groups} scales ({}) for {input} inputs",
            scales.element_type.name()
        ),
        expected: "affine 2, 3, 4, 5, 6, 8 bits in groups of 32, 64, 128, or mxfp4, nvfp4, mxfp8"
            .to_owned(),
    };
    let is_whole = 0 < groups && input.is_multiple_of(groups) && (words * 32).is_multiple_of(input);
    if !is_whole {
        return Err(no_format());
    }
    let bits = u32::try_from(words * 32 / input).map_err(|_| no_format())?;
    let group_size = u32::try_from(input / groups).map_err(|_| no_format())?;
    let mode = match (scales.element_type, bits, group_size) {
        (ElementType::U8, 4, 16) => QuantMode::Nvfp4,
        (ElementType::U8, 4, 32) => QuantMode::Mxfp4,
        (ElementType::U8, 8, 32) => QuantMode::Mxfp8,
        (ElementType::U8, ..) => return Err(no_format()),
        _ => QuantMode::Affine,
    };
    let format = QuantFormat { mode, bits, group_size };
    if format.is_supported() { Ok(Some(format)) } else { Err(no_format()) }
}

fn describe(format: QuantFormat) -> String {
    let mode = match format.mode {
        QuantMode::Affine => "affine",
        QuantMode::Mxfp4 => "mxfp4",
        QuantMode::Nvfp4 => "nvfp4",
        QuantMode::Mxfp8 => "mxfp8",
    };
    format!("{mode} with {} bits in groups of {}", format.bits, format.group_size)
}
