//! How originals store quantised matrices that conversions store in another way: `quantization_config` as
//! transformers writes it.

use serde_json::{Map, Value};

use crate::error::SpecError;

/// Formats that an error message lists.
const SUPPORTED: &[&str] = &[
    "MLX's affine",
    "mxfp4",
    "nvfp4",
    "mxfp8",
    "fp8 in blocks of 128x128, for each matrix or in ue8m0 tiles of 32x32",
    "compressed-tensors with integers of 4 bits or mxfp4",
];

/// How an original stores quantised matrices, whose tensors have other names and types than a conversion's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OriginalFormat {
    /// E4M3 codes with an E8M0 scale for 32 columns of a row: the bytes of MLX's MXFP8.
    Mxfp8,
    /// E4M3 codes with a factor for each block of 128 by 128, each matrix or each expert. They become bf16.
    Fp8,
    /// E4M3 codes with an E8M0 scale for each tile of 32 by 32, which become MXFP8, and E2M1 codes with a scale for
    /// 32 columns of a row, the bytes of MLX's MXFP4.
    Tiles,
    /// Integers of 4 bits with a scale for some columns of a row, less 8: the codes of MLX's affine format.
    Int4,
    /// E2M1 codes with an E8M0 scale for 32 columns of a row: the bytes of MLX's MXFP4.
    Mxfp4,
}

impl OriginalFormat {
    /// Rows and columns of an FP8 block that has a factor of its own.
    pub const FP8_BLOCK: usize = 128;

    /// Reads `quantization_config`. Returns `None` if the tensors are stored as MLX reads them.
    ///
    /// # Errors
    /// [`SpecError::Setting`] for a method that is not supported.
    pub(crate) fn read(config: &Map<String, Value>) -> Result<Option<OriginalFormat>, SpecError> {
        let text = |name: &str| config.get(name).and_then(Value::as_str);
        match text("quant_method") {
            // The blocks of gpt-oss are found by the names of their tensors.
            Some("mxfp4") => Ok(None),
            Some("mxfp8") => Ok(Some(OriginalFormat::Mxfp8)),
            Some("fp8") => fp8(config).map(Some),
            Some("compressed-tensors") => compressed(config).map(Some),
            other => Err(unsupported(other.unwrap_or("quant_method").to_owned())),
        }
    }
}

/// Returns the error for weights that are quantised in another way than the supported ones.
pub(crate) fn unsupported(found: String) -> SpecError {
    SpecError::Setting { what: "quantisation", found, supported: SUPPORTED }
}

/// Reads the size of the blocks that have a factor or scale of their own.
fn fp8(config: &Map<String, Value>) -> Result<OriginalFormat, SpecError> {
    let text = |name: &str| config.get(name).and_then(Value::as_str);
    if let Some(other) = text("fmt").filter(|it| *it != "e4m3") {
        return Err(unsupported(format!("fp8 with {other} codes")));
    }
    let block = config.get("weight_block_size").filter(|it| !it.is_null());
    let Some(block) = block else { return Ok(OriginalFormat::Fp8) };
    let size = OriginalFormat::FP8_BLOCK as u64;
    let is_square = |size: u64| *block == serde_json::json!([size, size]);
    match text("scale_fmt") {
        _ if is_square(size) => Ok(OriginalFormat::Fp8),
        Some("ue8m0") if is_square(32) => Ok(OriginalFormat::Tiles),
        _ => Err(unsupported(format!("fp8 in blocks of {block}"))),
    }
}

/// Reads the numbers that the format of `compressed-tensors` packs.
fn compressed(config: &Map<String, Value>) -> Result<OriginalFormat, SpecError> {
    let format = config.get("format").and_then(Value::as_str).unwrap_or("no format");
    match format {
        "mxfp4-pack-quantized" => return Ok(OriginalFormat::Mxfp4),
        "pack-quantized" => {}
        other => return Err(unsupported(format!("compressed-tensors, {other}"))),
    }
    let groups = config.get("config_groups").and_then(Value::as_object).into_iter().flatten();
    for weights in groups.filter_map(|(_, group)| group.get("weights")) {
        let is_of =
            |name: &str, expected: Value| weights.get(name).is_none_or(|it| *it == expected);
        let is_ordered = weights.get("actorder").is_some_and(|it| !it.is_null() && *it != false);
        let is_plain = is_of("num_bits", 4.into())
            && is_of("type", "int".into())
            && is_of("symmetric", true.into())
            && is_of("strategy", "group".into())
            && !is_ordered;
        if !is_plain {
            return Err(unsupported(format!("compressed-tensors, {format} of {weights}")));
        }
    }
    Ok(OriginalFormat::Int4)
}
