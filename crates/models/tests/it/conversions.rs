//! Checkpoints as oMLX (oQ) converts them. They have the tensors of mlx-lm's and mlx-vlm's conversions, so
//! they compute the bits of the golden checkpoints that these tests rewrite.

use std::path::Path;

use jackalope_models::Model;
use serde_json::{Map, Value, json};

use crate::originals::logits;
use crate::ranks::Way;
use crate::recipe::{Case, Checkpoint, Golden, Tensor};

/// Cases, each with the path of its last layer and that of a layer which predicts several tokens.
const CASES: [(&str, &str, &str); 4] = [
    ("qwen3_vl-mixed-f32", "language_model.model.layers.1.", "language_model.mtp.layers.0."),
    ("qwen3_5_moe-q4-f32", "language_model.model.layers.1.", "language_model.mtp.layers.0."),
    ("glm4_moe-q6-f32", "model.layers.2.", "model.layers.3."),
    ("glm5_next-q4-f32", "language_model.model.layers.4.", "language_model.model.layers.5."),
];

/// How a tool writes what it converts.
struct Layout {
    /// Whether the layer that predicts several tokens is kept, quantised.
    keeps_prediction: bool,
    /// Begins the entries of `quantization` in place of what begins the tensors.
    renamed: Option<[&'static str; 2]>,
    num_files: usize,
}

/// oQ keeps the layers that predict. One of its versions names entries as the original names tensors.
const LAYOUTS: [Layout; 3] = [
    Layout { keeps_prediction: true, renamed: None, num_files: 3 },
    Layout {
        keeps_prediction: true,
        renamed: Some(["language_model.model.", "model.language_model."]),
        num_files: 2,
    },
    // As the conversions that LM Studio publishes.
    Layout { keeps_prediction: false, renamed: None, num_files: 1 },
];

/// Writes `quantization` as oQ does: only what differs from the most common format has an entry, by
/// its full path, also outside of the language model; and once more for transformers.
fn quantization(case: &Case, tensors: &Tensors, layout: &Layout) -> Map<String, Value> {
    let stated = case.config["quantization"].as_object().unwrap().clone();
    let is_kept = |value: &Value| !value.is_boolean();
    let mut stated: Map<String, Value> =
        stated.into_iter().filter(|(_, value)| is_kept(value)).collect();
    for (name, source) in &tensors.copied {
        if let (Some(module), Some(source)) =
            (name.strip_suffix(".scales"), source.strip_suffix(".scales"))
            && let Some(format) = stated.get(source).cloned()
        {
            stated.insert(module.to_owned(), format);
        }
    }
    if case.config.get("text_config").is_some() {
        stated.insert(
            "vision_tower.blocks.0.mlp.fc1".to_owned(),
            json!({"bits": 8, "group_size": 32}),
        );
    }
    let Some([begins, other]) = layout.renamed else { return stated };
    let renamed = |name: String| match name.strip_prefix(begins) {
        Some(rest) => format!("{other}{rest}"),
        None => name,
    };
    stated.into_iter().map(|(name, value)| (renamed(name), value)).collect()
}

/// The tensors of a conversion.
struct Tensors {
    all: Vec<(String, Tensor)>,
    /// Names of tensors that nothing uses, each with that of the tensor of which it is a copy.
    copied: Vec<(String, String)>,
}

impl Tensors {
    fn of(case: &Case, [last, drafting]: [&str; 2], layout: &Layout) -> Tensors {
        let names = case.tensors.keys();
        let mut all: Vec<(String, Tensor)> =
            names.clone().map(|name| (name.clone(), case.tensor(name))).collect();
        let mut copied = Vec::new();
        if layout.keeps_prediction {
            let of_last = |name: &String| {
                let rest = name.strip_prefix(last)?;
                Some((format!("{drafting}{rest}"), name.clone()))
            };
            copied.extend(names.filter_map(of_last));
            assert!(!copied.is_empty(), "{}: no layer at {last}", case.name);
        }
        all.extend(copied.iter().map(|(name, source)| (name.clone(), case.tensor(source))));
        if case.config.get("text_config").is_some() {
            let norm = Tensor { dtype: "BF16".to_owned(), shape: vec![2], bytes: vec![0; 4] };
            all.push(("vision_tower.merger.norm.weight".to_owned(), norm));
        }
        Tensors { all, copied }
    }
}

/// Writes the checkpoint in as many files, with an index that has metadata.
fn write(case: &Case, tensors: Tensors, num_files: usize) -> Checkpoint {
    let mut weight_map = Map::new();
    let mut files: Vec<Vec<(String, Tensor)>> = (0..num_files).map(|_| Vec::new()).collect();
    for (idx, (name, tensor)) in tensors.all.into_iter().enumerate() {
        let file = format!("model-{:05}-of-{num_files:05}.safetensors", idx % num_files + 1);
        weight_map.insert(name.clone(), file.into());
        files[idx % num_files].push((name, tensor));
    }
    let parts = files.into_iter().map(|part| case.write_tensors(part.into_iter()));
    let parts: Vec<Checkpoint> = parts.collect();
    if num_files == 1 {
        return parts.into_iter().next().unwrap();
    }
    let folder = parts[0].dir().to_path_buf();
    for (idx, part) in parts.iter().enumerate() {
        let file = format!("model-{:05}-of-{num_files:05}.safetensors", idx + 1);
        std::fs::rename(part.weights(), folder.join(file)).unwrap();
    }
    let metadata = json!({"total_size": 0, "total_parameters": 0});
    let index = json!({"metadata": metadata, "weight_map": weight_map});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    parts.into_iter().next().unwrap()
}

#[test]
fn conversions_of_other_tools_compute_the_bits_of_mlx_lms() {
    let golden = Golden::read();
    for (name, last, drafting) in CASES {
        let case = golden.case(name);
        let load = |dir: &Path| {
            let model = Model::load(dir, &Way::Kernels.single(), &mut |_| {}).unwrap();
            logits(&model, &golden.prompt)
        };
        let expected = load(case.write().dir());
        for layout in &LAYOUTS {
            let tensors = Tensors::of(case, [last, drafting], layout);
            let stated = Value::Object(quantization(case, &tensors, layout));
            let mut converted = case.clone();
            converted.config["quantization"] = stated.clone();
            converted.config["quantization_config"] = stated;
            let checkpoint = write(&converted, tensors, layout.num_files);
            assert!(load(checkpoint.dir()) == expected, "{name} in {} files", layout.num_files);
        }
    }
}
