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
    "awq of 4 bits",
    "gptq of 4 or 8 bits without desc_act",
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
    Int4 {
        /// Number of columns that share a scale, if the configuration states it.
        group_size: Option<u64>,
    },
    /// E2M1 codes with an E8M0 scale for 32 columns of a row: the bytes of MLX's MXFP4.
    Mxfp4,
    /// The codes of MLX's affine format with inputs in rows and outputs in columns, and zero points in place of
    /// biases.
    Columns(ColumnFormat),
}

/// How AutoAWQ and GPTQ pack codes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ColumnFormat {
    /// Order of the codes.
    pub order: ColumnOrder,
    /// Bits of a code.
    pub bits: u32,
    /// Number of inputs that share a scale, if the configuration states it.
    pub group_size: Option<u64>,
    /// What is added to a stored zero point.
    pub zero_offset: u32,
}

/// The order in which words hold codes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ColumnOrder {
    /// A word has the codes of eight outputs, in AutoAWQ's order.
    Awq,
    /// A word has the codes of inputs that follow one another; a word of zero points has those of outputs.
    Gptq,
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
            Some("awq") => awq(config).map(|it| Some(OriginalFormat::Columns(it))),
            Some("gptq") => gptq(config).map(|it| Some(OriginalFormat::Columns(it))),
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

/// Reads how AutoAWQ packs codes.
fn awq(config: &Map<String, Value>) -> Result<ColumnFormat, SpecError> {
    let only = |name, accepted: &[Value]| refuse_other("awq", config, name, accepted);
    // Other versions pack codes for one kernel each.
    only("version", &["gemm".into(), "GEMM".into()])?;
    only("bits", &[4.into()])?;
    only("zero_point", &[true.into()])?;
    only("backend", &["autoawq".into()])?;
    let group_size = group_size("awq", config)?;
    Ok(ColumnFormat { order: ColumnOrder::Awq, bits: 4, group_size, zero_offset: 0 })
}

/// Reads how GPTQ packs codes.
fn gptq(config: &Map<String, Value>) -> Result<ColumnFormat, SpecError> {
    let only = |name, accepted: &[Value]| refuse_other("gptq", config, name, accepted);
    only("bits", &[4.into(), 8.into()])?;
    // Inputs in another order than the scales.
    only("desc_act", &[false.into()])?;
    only("checkpoint_format", &["gptq".into(), "gptq_v2".into()])?;
    only("is_marlin_format", &[false.into()])?;
    only("pack_dtype", &["int32".into()])?;
    // Other bits or groups of some modules.
    only("dynamic", &[Value::Object(Map::new())])?;
    let is_v2 = config.get("checkpoint_format").is_some_and(|it| it == "gptq_v2");
    let bits = if config.get("bits").is_some_and(|it| *it == 8) { 8 } else { 4 };
    let (group_size, zero_offset) = (group_size("gptq", config)?, u32::from(!is_v2));
    Ok(ColumnFormat { order: ColumnOrder::Gptq, bits, group_size, zero_offset })
}

/// Refuses a setting with another value than the accepted ones; absent and null are accepted.
fn refuse_other(
    method: &str,
    config: &Map<String, Value>,
    name: &str,
    accepted: &[Value],
) -> Result<(), SpecError> {
    match config.get(name).filter(|it| !it.is_null()) {
        Some(found) if !accepted.contains(found) => {
            Err(unsupported(format!("{method} with {name} {found}")))
        }
        _ => Ok(()),
    }
}

/// Reads the number of inputs that share a scale.
fn group_size(method: &str, config: &Map<String, Value>) -> Result<Option<u64>, SpecError> {
    match config.get("group_size").filter(|it| !it.is_null()) {
        None => Ok(None),
        Some(found) => match found.as_u64().filter(|it| 0 < *it) {
            Some(size) => Ok(Some(size)),
            // -1 stands for all inputs; MLX's groups have at most 128.
            None => Err(unsupported(format!("{method} with group_size {found}"))),
        },
    }
}

/// Reads the numbers that the format of `compressed-tensors` packs.
fn compressed(config: &Map<String, Value>) -> Result<OriginalFormat, SpecError> {
    let format = config.get("format").and_then(Value::as_str).unwrap_or("no format");
    let refused = |of: &str| Err(unsupported(format!("compressed-tensors, {format}{of}")));
    let packed = match format {
        "mxfp4-pack-quantized" => Packed { number: "float", group_size: Some(32) },
        "pack-quantized" => Packed { number: "int", group_size: None },
        _ => return refused(""),
    };
    // They change the values or the order of what is packed.
    for further in ["transform_config", "sparsity_config"] {
        let value = config.get(further).filter(|it| !is_nothing(it));
        if let Some(value) = value.filter(|it| it["format"] != "dense") {
            return refused(&format!(" with {further} {value}"));
        }
    }
    let groups = config.get("config_groups").filter(|it| !it.is_null());
    let Some(groups) = groups.map_or(Some(&Map::new()), Value::as_object).cloned() else {
        return refused(" with config_groups that are no object");
    };
    let mut group_size = packed.group_size;
    for group in groups.values() {
        let stated = group.get("format").filter(|it| !it.is_null());
        if stated.is_some_and(|it| it != format) {
            return refused(&format!(" and {}", group["format"]));
        }
        let weights = &group["weights"];
        if is_nothing(weights) {
            continue;
        }
        let size = packed.group_size_of(weights);
        if size.is_none() || group_size.is_some_and(|it| Some(it) != size) {
            return refused(&format!(" of {weights}"));
        }
        group_size = size;
    }
    Ok(match packed.number {
        "float" => OriginalFormat::Mxfp4,
        _ => OriginalFormat::Int4 { group_size },
    })
}

/// Whether a setting is absent or empty.
fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty)
}

/// The numbers that a format of `compressed-tensors` packs.
struct Packed {
    /// Their kind, `int` or `float`.
    number: &'static str,
    /// Number of columns that share a scale, if the format determines it.
    group_size: Option<u64>,
}

impl Packed {
    /// Returns how many columns share a scale in a group of matrices; `None` for anything but symmetric numbers
    /// of 4 bits with scales for columns in their order.
    fn group_size_of(&self, weights: &Value) -> Option<u64> {
        let is_of =
            |name: &str, expected: Value| weights.get(name).is_none_or(|it| *it == expected);
        // `weight` and `static` order columns only while they are quantised.
        let order = weights.get("actorder").filter(|it| !it.is_null() && **it != false);
        let is_ordered = order.is_some_and(|it| *it != "weight" && *it != "static");
        let is_plain = is_of("num_bits", 4.into())
            && is_of("type", self.number.into())
            && is_of("symmetric", true.into())
            && is_of("strategy", "group".into())
            && !is_ordered;
        let stated = weights.get("group_size").and_then(Value::as_u64);
        stated.or(self.group_size).filter(|it| is_plain && 0 < *it)
    }
}
