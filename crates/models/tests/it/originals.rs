//! Original checkpoints must give the same bits as mlx-lm's conversions, which these tests build
//! from them. The golden tests compare the conversions with mlx-lm.

use std::collections::BTreeMap;

use half::bf16;
use jackalope_families::model_spec;
use jackalope_mlx::Group;
use jackalope_models::{Model, Split};
use jackalope_spec::{NumberEdit, TensorSpec};
use serde_json::json;

use crate::ranks::{Way, load};
use crate::recipe::{Case, Checkpoint, Golden, Tensor};
use crate::run::{Logits, extend};

/// Gate and up of all experts in one tensor.
#[derive(Clone, Copy)]
struct Fused {
    gate_up: &'static str,
    down: &'static str,
    /// Whether inputs come before outputs.
    is_transposed: bool,
    /// Whether a row of the gate is followed by one of up.
    is_in_turn: bool,
}

/// Returns how a family's originals fuse gate and up; `None` if each expert has tensors of its own.
fn fused_in(family: &str) -> Option<Fused> {
    let [gate_up, down] = ["experts.gate_up_proj", "experts.down_proj"];
    let rows = Fused { gate_up, down, is_transposed: false, is_in_turn: false };
    let columns = Fused { is_transposed: true, ..rows };
    match family {
        "qwen3_5_moe" | "qwen4_exp" | "mistral4" => Some(rows),
        "qwen3_vl_moe" | "llama4" => Some(columns),
        "gpt_oss" => Some(Fused { is_in_turn: true, ..columns }),
        "granitemoe" => {
            let [gate_up, down] = ["input_linear.weight", "output_linear.weight"];
            Some(Fused { gate_up, down, ..rows })
        }
        _ => None,
    }
}

/// A checkpoint being converted.
struct Original {
    family: String,
    /// By the names of the language model.
    tensors: BTreeMap<String, Tensor>,
    /// What the conversion does to numbers, by endings of names.
    edits: Vec<(&'static str, NumberEdit)>,
}

impl Original {
    /// Returns a tensor as a conversion has it.
    fn converted(&self, spec: &TensorSpec) -> Tensor {
        let shape = spec.shape.iter().map(|dim| *dim as u64).collect();
        let (dtype, bytes) = self.content(spec);
        Tensor { dtype, shape, bytes }
    }

    fn content(&self, spec: &TensorSpec) -> (String, Vec<u8>) {
        if let Some(tensor) = self.tensors.get(&spec.name) {
            let Tensor { dtype, bytes, .. } = tensor.clone();
            let edit = self.edits.iter().find(|(ending, _)| spec.name.ends_with(ending));
            let Some((_, edit)) = edit else { return (dtype, bytes) };
            let row_len = spec.shape[1..].iter().product();
            let bytes = edited(&dtype, &bytes, edit, row_len);
            return (dtype, bytes);
        }
        let parts = spec.per_expert.as_ref().map_or(Vec::new(), |[before, after]| {
            let part = |idx| self.tensors.get(&format!("{before}{idx}{after}"));
            (0..spec.shape[0]).filter_map(part).collect()
        });
        if let [first, ..] = parts[..] {
            let bytes = parts.iter().flat_map(|part| part.bytes.clone());
            return (first.dtype.clone(), bytes.collect());
        }
        let (path, kind) = spec.name.rsplit_once('.').unwrap();
        let (stacked, projection) = path.rsplit_once('.').unwrap();
        let (block, _) = stacked.rsplit_once('.').unwrap();
        let Some(fused) = fused_in(&self.family) else {
            let projection = match (self.family.as_str(), projection) {
                ("deepseek_v4" | "deepseek_v41", "gate_proj") => "w1",
                ("deepseek_v4" | "deepseek_v41", "down_proj") => "w2",
                ("deepseek_v4" | "deepseek_v41", _) => "w3",
                (_, projection) => projection,
            };
            let each =
                |idx: usize| &self.tensors[&format!("{block}.experts.{idx}.{projection}.{kind}")];
            let experts = (0..spec.shape[0]).flat_map(|idx| each(idx).bytes.clone());
            return (each(0).dtype.clone(), experts.collect());
        };
        let is_down = projection == "down_proj";
        let name = if is_down { fused.down } else { fused.gate_up };
        let ending = if kind == "bias" { "_bias" } else { "" };
        let tensor = &self.tensors[&format!("{block}.{name}{ending}")];
        let bytes = fused.part(tensor, &spec.shape, projection);
        (tensor.dtype.clone(), bytes)
    }
}

impl Fused {
    /// Returns a projection, `[experts, rows, columns]` or `[experts, rows]`.
    fn part(self, tensor: &Tensor, shape: &[usize], projection: &str) -> Vec<u8> {
        let (is_up, is_down) = (projection == "up_proj", projection == "down_proj");
        let element_bytes = if tensor.dtype == "F32" { 4 } else { 2 };
        let (rows, columns) = (shape[1], shape.get(2).copied().unwrap_or(1));
        let num_rows = if is_down { rows } else { 2 * rows };
        let mut bytes = Vec::new();
        for expert in 0..shape[0] {
            for row in 0..rows {
                let row = match (is_down, self.is_in_turn) {
                    (true, _) => row,
                    (false, true) => 2 * row + usize::from(is_up),
                    (false, false) => row + rows * usize::from(is_up),
                };
                for column in 0..columns {
                    let place = match self.is_transposed {
                        true => column * num_rows + row,
                        false => row * columns + column,
                    };
                    let first = (expert * num_rows * columns + place) * element_bytes;
                    bytes.extend(&tensor.bytes[first..first + element_bytes]);
                }
            }
        }
        bytes
    }
}

/// Returns what a conversion makes of the elements of rows of `row_len`, each step rounded to the type.
fn edited(dtype: &str, bytes: &[u8], edit: &NumberEdit, row_len: usize) -> Vec<u8> {
    let rounded = |value: f32| match dtype {
        "F32" => value,
        "BF16" => bf16::from_f32(value).to_f32(),
        other => panic!("no numbers of {other} are changed"),
    };
    let changed = |idx: usize, value: f32| match edit {
        NumberEdit::AddOne => rounded(value + 1.0),
        NumberEdit::Multiply(_) => {
            let factors = edit.factors(idx / row_len).iter().map(|factor| rounded(*factor));
            rounded(value * factors.reduce(|product, it| rounded(product * it)).unwrap())
        }
    };
    if dtype == "F32" {
        let values = bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it));
        return values.enumerate().flat_map(|(idx, it)| changed(idx, it).to_le_bytes()).collect();
    }
    let values = bytes.as_chunks().0.iter().map(|it| bf16::from_le_bytes(*it).to_f32());
    let changed = values.enumerate().map(|(idx, it)| bf16::from_f32(changed(idx, it)));
    changed.flat_map(bf16::to_le_bytes).collect()
}

/// Writes what a conversion of the checkpoint holds.
fn converted(case: &Case) -> Checkpoint {
    let spec = model_spec(&case.config).unwrap();
    let of_model =
        |name: &String| Some((spec.names.of_model(name)?.into_owned(), case.tensor(name)));
    let tensors: BTreeMap<String, Tensor> = case.tensors.keys().filter_map(of_model).collect();
    let is_tied = !tensors.contains_key(&spec.head.name);
    let family = spec.model_type.clone();
    let edits = spec.original_numbers.as_ref().map(|it| it.edits.clone()).unwrap_or_default();
    let original = Original { family, tensors, edits };
    let has = |name: &str| original.tensors.contains_key(name);
    let needed = spec.tensors(is_tied).filter(|tensor| tensor.is_in(has));
    let tensors = needed.map(|tensor| (tensor.name.clone(), original.converted(tensor)));
    case.write_tensors(tensors)
}

/// As transformers stores gpt-oss without quantisation, which mlx-lm does not read.
fn gpt_oss(golden: &Golden) -> Case {
    let mut case = golden.case("gpt_oss-f32").clone();
    case.tensors = std::mem::take(&mut case.tensors)
        .into_iter()
        .filter_map(|(name, recipe)| {
            let Some((block, rest)) = name.split_once(".experts.") else {
                return Some((name, recipe));
            };
            let (projection, kind) = rest.split_once('.').unwrap();
            let name = match projection {
                "up_proj" => return None,
                "gate_proj" => "gate_up_proj",
                _ => "down_proj",
            };
            let shape = match (name, kind) {
                ("gate_up_proj", "weight") => "10x128x192",
                ("gate_up_proj", _) => "10x192",
                (_, "weight") => "10x96x128",
                _ => "10x128",
            };
            let ending = if kind == "bias" { "_bias" } else { "" };
            Some((format!("{block}.experts.{name}{ending}"), json!(format!("F32 {shape} 0 0.4"))))
        })
        .collect();
    case
}

/// The same checkpoint in bfloat16.
fn in_bf16(case: &Case) -> Case {
    let mut case = case.clone();
    for recipe in case.tensors.values_mut() {
        *recipe = recipe.as_str().unwrap().replace("F32 ", "BF16 ").into();
    }
    case
}

pub(crate) fn logits(model: &Model, prompt: &[u32]) -> Logits {
    extend(model, &mut model.new_cache(), prompt)
}

#[test]
fn originals_compute_the_bits_of_their_conversions() {
    let golden = Golden::read();
    let is_original =
        |case: &&Case| case.name.contains("-original-") && !case.name.contains("-names-");
    let mut cases: Vec<Case> = golden.cases.iter().filter(is_original).cloned().collect();
    assert!(golden.is_restricted() || 12 <= cases.len(), "every layout");
    cases.push(gpt_oss(&golden));
    for case in cases.iter().flat_map(|case| [case.clone(), in_bf16(case)]) {
        let converted = converted(&case);
        for way in Way::BOTH {
            let original = load(&case, &way.single());
            let expected = Model::load(converted.dir(), &way.single(), &mut |_| {}).unwrap();
            let is_same = logits(&original, &golden.prompt) == logits(&expected, &golden.prompt);
            assert!(is_same, "{} ({way:?}): other bits than its conversion", case.name);
        }
    }
}

/// Packs the experts of a checkpoint as mlx-vlm does: gate and up in one matrix, and the expert that every
/// token passes after the others.
fn packed(case: &Case) -> BTreeMap<String, Tensor> {
    let mut tensors: BTreeMap<String, Tensor> =
        case.tensors.keys().map(|name| (name.clone(), case.tensor(name))).collect();
    let ending = ".switch_mlp.gate_proj.";
    let places = tensors.keys().filter_map(|name| name.split_once(ending));
    let places: Vec<(String, String)> =
        places.map(|(block, kind)| (block.to_owned(), kind.to_owned())).collect();
    assert!(!places.is_empty(), "{}: no experts", case.name);
    for (block, kind) in places {
        for (module, parts) in
            [("gate_up_proj", &["gate_proj", "up_proj"][..]), ("down_proj", &["down_proj"])]
        {
            let mut take = |owner: &str| {
                let names = parts.iter().map(|part| format!("{block}.{owner}.{part}.{kind}"));
                names.map(|name| tensors.remove(&name).unwrap()).collect::<Vec<Tensor>>()
            };
            let (routed, shared) = (take("switch_mlp"), take("shared_experts"));
            let num_experts = routed[0].shape[0] as usize;
            let mut bytes = Vec::new();
            for expert in 0..num_experts {
                for part in &routed {
                    let len = part.bytes.len() / num_experts;
                    bytes.extend(&part.bytes[expert * len..][..len]);
                }
            }
            bytes.extend(shared.iter().flat_map(|part| part.bytes.clone()));
            let mut shape = routed[0].shape.clone();
            shape[0] += 1;
            shape[1] *= parts.len() as u64;
            let tensor = Tensor { dtype: routed[0].dtype.clone(), shape, bytes };
            tensors.insert(format!("{block}.switch_mlp.{module}.{kind}"), tensor);
        }
    }
    tensors
}

#[test]
fn an_expert_packed_with_the_others_computes_the_same_bits() {
    let golden = Golden::read();
    for case in golden.chosen(&["minimax_m3-q4-f32", "minimax_m3-bf16"]) {
        if !case.name.starts_with("minimax_m3-q4") && !case.name.starts_with("minimax_m3-bf16") {
            continue;
        }
        let checkpoint = case.write_tensors(packed(case).into_iter());
        for split in [Split::Tensor(vec![1]), Split::Tensor(vec![3, 1])] {
            for rank in 0..split.num_ranks() {
                let loaded = [checkpoint.dir(), case.write().dir()].map(|dir| {
                    let parallel = Way::Kernels.alone(rank, &split);
                    parallel.group().replace(Group::rehearsal(rank, split.num_ranks()));
                    let model = Model::load(dir, &parallel, &mut |_| {}).unwrap();
                    (logits(&model, &golden.prompt), model.facts().weights_bytes)
                });
                assert!(loaded[0] == loaded[1], "{}, rank {rank} of {split:?}", case.name);
            }
        }
    }
}
