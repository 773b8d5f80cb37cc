//! Originals that their makers quantised must give the same bits as conversions with the same values, which these
//! tests make, on every rank. The golden tests compare some of them with mlx-lm.

use std::collections::BTreeMap;

use half::bf16;
use jackalope_mlx::Group;
use jackalope_models::{Model, Split};
use serde_json::{Value, json};

use crate::column_originals;
use crate::originals::logits;
use crate::ranks::Way;
use crate::recipe::{Case, Checkpoint, Golden, Tensor};

/// Rows and columns of an FP8 block with a factor.
const BLOCK: usize = 128;

/// Rows of a tile with one scale for every 32 columns.
const TILE_ROWS: usize = 32;

fn tensors(case: &Case) -> BTreeMap<String, Tensor> {
    case.tensors.keys().map(|name| (name.clone(), case.tensor(name))).collect()
}

/// Writes a case with another configuration of its quantisation.
pub(crate) fn write(
    case: &Case,
    stated: Option<Value>,
    tensors: BTreeMap<String, Tensor>,
) -> Checkpoint {
    let mut case = case.clone();
    let config = case.config.as_object_mut().unwrap();
    for place in ["quantization", "quantization_config"] {
        config.remove(place);
    }
    if let Some(Value::Object(text)) = config.get_mut("text_config") {
        text.remove("quantization_config");
    }
    let place = "quantization_config".to_owned();
    config.extend(stated.map(|stated| (place, stated)));
    case.write_tensors(tensors.into_iter())
}

/// Checks that two checkpoints compute the same bits and take the same memory, whole and on ranks of a split.
pub(crate) fn check_same_bits(name: &str, original: &Checkpoint, conversion: &Checkpoint) {
    let prompt = &Golden::read().prompt;
    for split in [vec![1], vec![3, 1], vec![1, 1]].map(Split::Tensor) {
        for rank in 0..split.num_ranks() {
            let loaded = [original, conversion].map(|checkpoint| {
                let parallel = Way::Kernels.alone(rank, &split);
                if 1 < split.num_ranks() {
                    parallel.group().replace(Group::rehearsal(rank, split.num_ranks()));
                }
                let model = Model::load(checkpoint.dir(), &parallel, &mut |_| {}).unwrap();
                (logits(&model, prompt), model.facts().weights_bytes)
            });
            assert!(loaded[0] == loaded[1], "{name}, rank {rank} of {split:?}: other bits");
        }
    }
}

/// Returns the value of an E4M3 code that is a number.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match exponent {
        0 => mantissa / 8.0 * 2.0_f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2.0_f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype.as_str() {
        "F32" => tensor.bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect(),
        "BF16" => {
            tensor.bytes.as_chunks().0.iter().map(|it| bf16::from_le_bytes(*it).to_f32()).collect()
        }
        other => panic!("{other} are no floats"),
    }
}

/// Returns a tensor of bf16.
fn in_bf16(shape: &[u64], values: impl Iterator<Item = f32>) -> Tensor {
    let bytes = values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect();
    Tensor { dtype: "BF16".to_owned(), shape: shape.to_vec(), bytes }
}

/// Multiplies codes by the factors of their blocks, matrices or experts.
fn dequantized(codes: &Tensor, factors: &Tensor) -> Tensor {
    let values = floats(factors);
    let (rows, columns) = match codes.shape[..] {
        [.., rows, columns] => (rows as usize, columns as usize),
        _ => panic!("codes of a matrix"),
    };
    let factor = |row: usize, column: usize| match factors.shape.len() {
        0 => values[0],
        2 => values[row / BLOCK * columns.div_ceil(BLOCK) + column / BLOCK],
        _ => values[row / rows],
    };
    let products = codes.bytes.iter().enumerate();
    let products = products.map(|(idx, code)| e4m3(*code) * factor(idx / columns, idx % columns));
    in_bf16(&codes.shape, products)
}

/// Returns codes of bytes as words.
fn as_words(codes: &Tensor) -> Tensor {
    let mut words = Tensor { dtype: "U32".to_owned(), ..codes.clone() };
    *words.shape.last_mut().unwrap() /= 4;
    words
}

/// Returns the scales of all `rows`, of which those of a tile are stored once.
fn in_each_row(scales: &Tensor, rows: u64) -> Tensor {
    let mut all = Tensor { dtype: "U8".to_owned(), ..scales.clone() };
    if scales.shape[0] != rows {
        let columns = scales.shape[1] as usize;
        let tile = |row: u64| scales.bytes.chunks(columns).nth(row as usize / TILE_ROWS).unwrap();
        all.bytes = (0..rows).flat_map(|row| tile(row).to_vec()).collect();
        all.shape[0] = rows;
    }
    all
}

/// Returns what a conversion of an original in FP8, in tiles or of integers holds.
fn converted(case: &Case) -> BTreeMap<String, Tensor> {
    let stored = tensors(case);
    let mut converted = BTreeMap::new();
    for (name, tensor) in &stored {
        let (module, kind) = name.rsplit_once('.').unwrap_or(("", name));
        let beside = |kind: &str| stored.get(&format!("{module}.{kind}"));
        if kind == "qweight" {
            let tensors = column_originals::of_awq(&stored, module).into_iter();
            converted.extend(tensors.map(|(kind, tensor)| (format!("{module}.{kind}"), tensor)));
        } else if kind == "weight_packed" {
            let scales = beside("weight_scale").unwrap();
            let biases = floats(scales).into_iter().map(|scale| -8.0 * scale);
            let words = Tensor { dtype: "U32".to_owned(), ..tensor.clone() };
            converted.insert(format!("{module}.weight"), words);
            converted.insert(format!("{module}.biases"), in_bf16(&scales.shape, biases));
            converted.insert(format!("{module}.scales"), scales.clone());
        } else if let Some(scales) = beside("scale").filter(|_| kind == "weight") {
            converted.insert(name.clone(), as_words(tensor));
            converted.insert(format!("{module}.scales"), in_each_row(scales, tensor.shape[0]));
        } else if let Some(factors) = stored.get(&format!("{name}_scale_inv")) {
            converted.insert(name.clone(), dequantized(tensor, factors));
        } else if !is_beside_codes(&stored, module, kind) {
            converted.insert(name.clone(), tensor.clone());
        }
    }
    converted
}

/// Whether a tensor has no counterpart in conversions, or is made with the one that it belongs to.
fn is_beside_codes(stored: &BTreeMap<String, Tensor>, module: &str, kind: &str) -> bool {
    let is_of_codes = kind == "scale" && stored.contains_key(&format!("{module}.weight"));
    let others = ["activation_scale", "weight_scale", "weight_shape", "qzeros"];
    let is_of_columns = kind == "scales" && stored.contains_key(&format!("{module}.qweight"));
    is_of_columns || is_of_codes || kind.ends_with("_scale_inv") || others.contains(&kind)
}

#[test]
fn quantised_originals_compute_the_bits_of_conversions() {
    let golden = Golden::read();
    let cases: Vec<&Case> =
        golden.cases.iter().filter(|case| case.name.contains("-published-")).collect();
    assert!(golden.is_restricted() || cases.len() == 7, "every way to quantise");
    for case in cases {
        let is_packed = ["-int4-", "-awq-"].iter().any(|it| case.name.contains(it));
        let group_size = if case.name.contains("-awq-") { 64 } else { 32 };
        let stated = is_packed.then(|| json!({"bits": 4, "group_size": group_size}));
        let conversion = write(case, stated, converted(case));
        check_same_bits(&case.name, &case.write(), &conversion);
    }
}

/// Returns whether a module is quantised to MXFP8 or MXFP4.
fn has_byte_scales(case: &Case, module: &str) -> bool {
    let scales = case.tensors.get(&format!("{module}.scales")).and_then(Value::as_str);
    scales.is_some_and(|recipe| recipe.starts_with("U8"))
}

/// Returns the tensors of an original of a case in MXFP8 or MXFP4: with bytes in place of words, and other names.
fn in_bytes(case: &Case, code_type: &str, names: [&str; 2]) -> BTreeMap<String, Tensor> {
    let [codes, scales] = names;
    let tensors = case.tensors.keys().map(|name| {
        let (module, kind) = name.rsplit_once('.').unwrap();
        let mut tensor = case.tensor(name);
        match kind {
            _ if !has_byte_scales(case, module) => (name.clone(), tensor),
            "scales" => (format!("{module}.{scales}"), tensor),
            _ => {
                tensor.dtype = code_type.to_owned();
                *tensor.shape.last_mut().unwrap() *= 4;
                (format!("{module}.{codes}"), tensor)
            }
        }
    });
    tensors.collect()
}

#[test]
fn originals_in_mxfp8_and_mxfp4_compute_the_bits_of_conversions() {
    let golden = Golden::read();
    for case in golden.chosen(&["qwen3-mxfp8-f32", "qwen3-mxfp8-bf16", "qwen3-mxfp4-f32"]) {
        let (tensors, stated) = if case.name.starts_with("qwen3-mxfp8-") {
            let tensors = in_bytes(case, "F8_E4M3", ["weight", "weight_scale_inv"]);
            (tensors, json!({"quant_method": "mxfp8"}))
        } else if case.name.starts_with("qwen3-mxfp4-") {
            let tensors = in_bytes(case, "U8", ["weight_packed", "weight_scale"]);
            let format = "mxfp4-pack-quantized";
            (tensors, json!({"quant_method": "compressed-tensors", "format": format}))
        } else {
            continue;
        };
        check_same_bits(&case.name, &write(case, Some(stated), tensors), &case.write());
    }
}
