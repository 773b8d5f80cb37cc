//! Determines which matrices are quantised, and how.
//!
//! A matrix is quantised if it has a `.scales` tensor. Bits and group size follow from the shapes of
//! its tensors, the mode from the type of the scales; the entry of `config.json` for a single module
//! must agree.

use jackalope_config::quantization::{
    ModuleQuantization, QuantizationFormat, QuantizationMap, QuantizationMode,
};
use jackalope_protocol::counted;

use crate::report::TensorProblem;
use crate::tensor::{ElementType, TensorHeaders};

/// Returns the format of the matrix at `module` with `input` features; `None` if it is not
/// quantised.
pub(crate) fn format(
    map: &QuantizationMap,
    headers: &TensorHeaders,
    module: &str,
    input: usize,
) -> Result<Option<QuantizationFormat>, TensorProblem> {
    let contradiction = |found: String, expected: String| {
        let module = module.to_owned();
        Err(TensorProblem::Quantization { module, found, expected })
    };
    let stated = map.of_module(module);
    let Some(found) = infer(headers, module, input)? else {
        return match stated {
            Some(ModuleQuantization::Format(format)) => {
                contradiction("nothing".to_owned(), format.to_string())
            }
            _ => Ok(None),
        };
    };
    match stated {
        Some(ModuleQuantization::Plain) => {
            contradiction(found.to_string(), "nothing (config.json: false)".to_owned())
        }
        Some(ModuleQuantization::Format(format)) if format != found => {
            contradiction(found.to_string(), format.to_string())
        }
        _ => Ok(Some(found)),
    }
}

/// Infers the format from a matrix's tensors.
fn infer(
    headers: &TensorHeaders,
    module: &str,
    input: usize,
) -> Result<Option<QuantizationFormat>, TensorProblem> {
    let Some(scales) = headers.get(&format!("{module}.scales")) else { return Ok(None) };
    let Some(weight) = headers.get(&format!("{module}.weight")) else { return Ok(None) };
    let last = |shape: &[usize]| shape.last().copied().unwrap_or(0);
    let (words, groups) = (last(&weight.shape), last(&scales.shape));
    let no_format = || TensorProblem::Quantization {
        module: module.to_owned(),
        found: format!(
            "{} and {} ({}) for {}",
            counted(words, "word"),
            counted(groups, "scale"),
            scales.element_type.name(),
            counted(input, "input")
        ),
        expected: "affine 2, 3, 4, 5, 6, 8 bits in groups of 32, 64, 128, or mxfp4, nvfp4, mxfp8"
            .to_owned(),
    };
    let bits_per_row = words.checked_mul(32).ok_or_else(no_format)?;
    let is_whole = 0 < groups && input.is_multiple_of(groups) && bits_per_row.is_multiple_of(input);
    if !is_whole {
        return Err(no_format());
    }
    let bits = u32::try_from(bits_per_row / input).map_err(|_| no_format())?;
    let group_size = u32::try_from(input / groups).map_err(|_| no_format())?;
    let mode = match (&scales.element_type, bits, group_size) {
        (ElementType::U8, 4, 16) => QuantizationMode::Nvfp4,
        (ElementType::U8, 4, 32) => QuantizationMode::Mxfp4,
        (ElementType::U8, 8, 32) => QuantizationMode::Mxfp8,
        (ElementType::U8, ..) => return Err(no_format()),
        _ => QuantizationMode::Affine,
    };
    let format = QuantizationFormat { mode, bits, group_size };
    if format.is_supported() { Ok(Some(format)) } else { Err(no_format()) }
}
