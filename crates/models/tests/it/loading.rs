//! Checkpoints that are damaged, incomplete or not supported: each causes an error that names what is
//! wrong and where.

use std::fs;
use std::path::Path;

use jackalope_models::{LoadProgress, Model, Split};
use jackalope_weights::checkpoint::Checkpoint as StoredCheckpoint;
use serde_json::{Value, json};

use crate::ranks::Way;
use crate::recipe::{Case, Checkpoint, Golden};
use crate::run::extend;

fn case(name: &str) -> Case {
    Golden::read().case(name).clone()
}

fn failure(dir: &Path) -> String {
    let result = Model::load(dir, &Way::Kernels.single(), &mut |_| {});
    let err = result.expect_err("it should not have loaded");
    assert!(!err.is_passing(), "the checkpoint is at fault, not the device: {err}");
    err.to_string()
}

/// The message must contain every part.
#[track_caller]
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

/// Checks that loading an edited recipe fails with an error that contains all of `parts`.
#[track_caller]
fn check(name: &str, edit: impl FnOnce(&mut Case), parts: &[&str]) {
    let mut case = case(name);
    edit(&mut case);
    assert_says(&failure(case.write_edited().dir()), parts);
}

/// Like `check`, for the fields of config.json.
#[track_caller]
fn check_config(name: &str, edit: impl Into<Value>, parts: &[&str]) {
    let edit = edit.into();
    let merge = |case: &mut Case| {
        for (field, value) in edit.as_object().unwrap() {
            case.config[field] = value.clone();
        }
    };
    check(name, merge, parts);
}

/// Like `check`, for the bytes of the weight file.
#[track_caller]
fn check_file(edit: impl FnOnce(&mut Vec<u8>), parts: &[&str]) {
    let checkpoint = case("qwen3-b4-g64-f32").write();
    let mut bytes = fs::read(checkpoint.weights()).unwrap();
    edit(&mut bytes);
    fs::write(checkpoint.weights(), bytes).unwrap();
    assert_says(&failure(checkpoint.dir()), parts);
}

const Q_PROJ: &str = "model.layers.1.self_attn.q_proj";

#[test]
fn a_missing_tensor_is_named_with_its_shape() {
    for part in ["weight", "biases"] {
        let name = format!("{Q_PROJ}.{part}");
        let remove = |case: &mut Case| {
            case.tensors.remove(&name);
        };
        check("qwen3-b4-g64-f32", remove, &[&name, "missing", "hint:"]);
    }
    let remove_norm = |case: &mut Case| {
        case.tensors.remove("model.norm.weight");
    };
    check("qwen3-b4-g64-f32", remove_norm, &["model.norm.weight", "missing"]);
    let shape = |case: &mut Case| {
        case.tensors.remove("model.layers.1.mlp.up_proj.weight");
    };
    check("llama-f32", shape, &["model.layers.1.mlp.up_proj.weight [256, 128] is missing"]);
}

#[test]
fn tensors_that_nothing_uses_are_listed() {
    let add = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        move |case: &mut Case| {
            for name in names {
                case.tensors.insert(name, json!("F32 4 0 1"));
            }
        }
    };
    let parts = ["2 tensors that `qwen3` does not use", "model.extra.weight", "visual.patch"];
    check("qwen3-f32", add(&["model.extra.weight", "visual.patch"]), &parts);
    let bias = format!("{Q_PROJ}.bias");
    check("qwen3-f32", add(&[&bias]), &[&bias]);
    check("llama-f32", add(&["model.layers.2.mlp.up_proj.weight"]), &["model.layers.2.mlp"]);
    let many: Vec<String> = (0..20).map(|idx| format!("x{idx}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    check("llama-f32", add(&many), &["20 tensors", "and 12 more"]);
}

#[test]
fn a_tensor_of_another_shape_or_type_is_named_with_both() {
    let set = |name: &str, recipe: &'static str| {
        let name = name.to_owned();
        move |case: &mut Case| {
            case.tensors.insert(name, json!(recipe));
        }
    };
    let weight = format!("{Q_PROJ}.weight");
    check("qwen3-f32", set(&weight, "F32 256x64 0 1"), &[&weight, "[256, 64]", "[256, 128]"]);
    check("qwen3-f32", set(&weight, "F32 32768 0 1"), &[&weight, "[32768]", "[256, 128]"]);
    check("qwen3-f32", set(&weight, "U8 256x128 0 9"), &[&weight, "U8", "F32, F16 or BF16"]);
    let norm = "model.norm.weight";
    check("qwen3-f32", set(norm, "U32 128 1 0"), &[norm, "U32", "F32, F16 or BF16"]);
    let quantised = "qwen3-b4-g64-f32";
    check(quantised, set(&weight, "F32 256x16 0 1"), &[&weight, "F32", "U32"]);
    check(quantised, set(&weight, "U32 128x16 1 0"), &[&weight, "[128, 16]", "[256, 16]"]);
    let scales = format!("{Q_PROJ}.scales");
    check(quantised, set(&scales, "F32 256x3 0 1"), &[Q_PROJ, "3 scales", "128 inputs"]);
    check(quantised, set(&scales, "F32 256x8 0 1"), &[Q_PROJ, "affine"]);
    check(quantised, set(&scales, "U8 256x2 1 9"), &[Q_PROJ, "mxfp4"]);
    check(quantised, set(&weight, "U32 256x28 1 0"), &[Q_PROJ, "28 words"]);
}

#[test]
fn a_table_of_experts_that_do_not_exist_is_refused() {
    let name = "language_model.model.layers.0.ffn.gate.tid2eid";
    let edit = |case: &mut Case| {
        case.tensors.insert(name.to_owned(), "I32 200x3 5 3".into());
    };
    let says = ["model.safetensors", "model.layers.0.ffn.gate.tid2eid", "not one below 12"];
    check("deepseek_v4-f32", edit, &says);
    let edit = |case: &mut Case| {
        case.tensors.insert(name.to_owned(), "F32 200x3 0 1".into());
    };
    check("deepseek_v4-f32", edit, &["model.layers.0.ffn.gate.tid2eid", "F32", "I32"]);
}

#[test]
fn a_list_of_numbers_of_tokens_that_does_not_fit_is_refused() {
    let golden = Golden::read();
    let says = |content: &str, parts: &[&str]| {
        let checkpoint = golden.case("deepseek_v41-f32").write();
        let path = checkpoint.dir().join("engram_token_map.json");
        fs::write(path, content).unwrap();
        assert_says(&failure(checkpoint.dir()), &[&["engram_token_map.json"], parts].concat());
    };
    says("{}", &["not a list of numbers"]);
    says("[0, 1]", &["2 numbers, expected more than 4"]);
    says("[0, 1, 2, 3, 4, 5]", &["6 different numbers, config.json states 100"]);
    let checkpoint = golden.case("deepseek_v41-f32").write();
    fs::remove_file(checkpoint.dir().join("engram_token_map.json")).unwrap();
    assert_says(&failure(checkpoint.dir()), &["cannot read", "engram_token_map.json"]);
}

#[test]
fn a_truncated_or_overlong_file_is_told_by_its_sizes() {
    let cut = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 1000);
    check_file(cut, &["model.safetensors", "bytes", "header describes", "hint:"]);
    check_file(|bytes| bytes.truncate(100), &["model.safetensors", "100 bytes", "hint:"]);
    check_file(|bytes| bytes.truncate(5), &["model.safetensors", "5 bytes"]);
    check_file(Vec::clear, &["model.safetensors", "0 bytes"]);
    check_file(|bytes| bytes.extend([0; 64]), &["model.safetensors", "header describes"]);
}

#[test]
fn a_file_that_is_no_safetensors_file_is_refused() {
    let page = b"<!doctype html><html>Sign in to download</html>";
    check_file(|bytes| *bytes = page.to_vec(), &["not a safetensors file", "exceeds the limit"]);
    check_file(|bytes| bytes[20] = 0xff, &["not a safetensors file", "hint:"]);
    let offsets = |bytes: &mut Vec<u8>| {
        // The second tensor begins elsewhere than where the first one ends.
        let text = String::from_utf8_lossy(&bytes[..4000]).into_owned();
        let place = text.match_indices("\"data_offsets\":[").nth(1).unwrap().0 + 16;
        bytes[place] = if bytes[place] == b'9' { b'1' } else { b'9' };
    };
    check_file(offsets, &["not a safetensors file", "offset"]);
}

#[test]
fn a_directory_without_a_checkpoint_says_what_is_missing() {
    let checkpoint = case("llama-f32").write();
    fs::remove_file(checkpoint.weights()).unwrap();
    assert_says(&failure(checkpoint.dir()), &["no model*.safetensors", "hint:"]);
    std::os::unix::fs::symlink("nowhere", checkpoint.weights()).unwrap();
    assert_says(&failure(checkpoint.dir()), &["cannot read", "safetensors", "No such file"]);
    fs::remove_file(checkpoint.dir().join("config.json")).unwrap();
    assert_says(&failure(checkpoint.dir()), &["config.json", "No such file"]);
    assert_says(&failure(&checkpoint.dir().join("nowhere")), &["nowhere/config.json"]);
}

#[test]
fn a_config_that_cannot_be_used_names_the_field() {
    let llama = "llama-f32";
    check_config(llama, json!({"hidden_size": null}), &["config.json", "expected u32"]);
    check_config(llama, json!({"hidden_size": -128}), &["config.json", "-128"]);
    check_config(llama, json!({"hidden_size": 1e30}), &["config.json", "expected u32"]);
    check_config(
        llama,
        json!({"hidden_size": 4_000_000_000_u32}),
        &["`hidden_size` is 4000000000"],
    );
    check_config(llama, json!({"vocab_size": 0}), &["`vocab_size` is 0"]);
    check_config(llama, json!({"num_hidden_layers": 0}), &["`num_hidden_layers` is 0"]);
    check_config(llama, json!({"num_attention_heads": "four"}), &["config.json", "four"]);
    check_config(llama, json!({"num_key_value_heads": 3}), &["`num_key_value_heads` is 3", "4"]);
    check_config(llama, json!({"head_dim": 33}), &["head_dim` is 33", "even"]);
    check_config(llama, json!({"rope_theta": -1}), &["`rope_theta`", "-1"]);
    check_config(llama, json!({"rope_scaling": {"type": "linear"}}), &["rope_scaling.factor"]);
    check_config(llama, json!({"num_hidden_layers": 3}), &["model.layers.2"]);
    check_config(
        "mistral-f32",
        json!({"layer_types": ["full_attention"]}),
        &["`layer_types` is 1"],
    );
    check_config("mistral-f32", json!({"sliding_window": null}), &["`sliding_window` is 0"]);
    let without = |case: &mut Case| {
        case.config.as_object_mut().unwrap().remove("rms_norm_eps");
    };
    check(llama, without, &["config.json", "missing field `rms_norm_eps`"]);
    let without = |case: &mut Case| {
        case.config.as_object_mut().unwrap().remove("rope_theta");
    };
    check("qwen3-f32", without, &["`rope_theta`"]);
    let checkpoint = case(llama).write();
    fs::write(checkpoint.dir().join("config.json"), "{\"model_type\": ").unwrap();
    assert_says(&failure(checkpoint.dir()), &["config.json", "not valid JSON", "line 1"]);
}

#[test]
fn what_is_not_supported_is_refused_by_name_with_the_choices() {
    let architectures = ["`mamba`", "afmoe, apertus, bailing_hybrid, bailing_moe, "];
    check_config("llama-f32", json!({"model_type": "mamba"}), &architectures);
    check_config("llama-f32", json!({"rope_scaling": {"type": "spiral"}}), &["`spiral`", "yarn"]);
    check_config("llama-f32", json!({"hidden_act": "gelu"}), &["`gelu`", "silu"]);
    let types = json!({"layer_types": vec!["chunked_attention"; 4]});
    check_config("mistral-f32", types, &["`chunked_attention`", "sliding_attention"]);
    check_config("llama-f32", json!({"model_file": "evil.py"}), &["`evil.py`"]);
    let other = json!({"quantization_config": {"quant_method": "bitsandbytes"}});
    check_config("llama-f32", other, &["`bitsandbytes`", "nvfp4"]);
    check_config("llama-f32", json!({"quantize_activations": true}), &["quantize_activations"]);
}

#[test]
fn what_config_says_about_a_layers_quantisation_must_be_true() {
    let stating =
        |value: Value| json!({"quantization": {"group_size": 64, "bits": 4, Q_PROJ: value}});
    let name = "qwen3-b4-g64-f32";
    let eight = json!({"group_size": 64, "bits": 8});
    check_config(name, stating(eight), &[Q_PROJ, "affine with 4 bits", "affine with 8 bits"]);
    let mxfp4 = json!({"group_size": 64, "bits": 4, "mode": "mxfp4"});
    check_config(name, stating(mxfp4), &[Q_PROJ, "affine", "mxfp4"]);
    check_config(name, stating(json!(false)), &[Q_PROJ, "false"]);
    let unknown = json!({"group_size": 64, "bits": 4, "mode": "q4_k"});
    check_config(name, stating(unknown), &["`q4_k`"]);
    let wider = stating(json!({"bits": 8}));
    check_config(name, wider, &[Q_PROJ, "affine with 8 bits in groups of 64"]);
    let text = stating(json!({"bits": "four"}));
    check_config(name, text, &[Q_PROJ, "four"]);
    let plain = json!({"group_size": 64, "bits": 4});
    check_config("qwen3-f32", stating(plain), &[Q_PROJ, "nothing", "affine with 4 bits"]);
}

#[test]
fn tensors_may_lie_in_several_files_and_an_index_is_not_needed() {
    let golden = Golden::read();
    let case = golden.case("qwen3-b4-g64-f32");
    let logits = |checkpoint: &Checkpoint| {
        let tp = Way::Kernels.single();
        let model = Model::load(checkpoint.dir(), &tp, &mut |_| {}).unwrap();
        extend(&model, &mut model.new_cache(), &golden.prompt)
    };
    let whole = case.write();
    let expected = logits(&whole);
    // Two files with half of the tensors each, and an index that is wrong.
    let (mut first, mut second) = (case.clone(), case.clone());
    let names: Vec<String> = case.tensors.keys().cloned().collect();
    for (idx, name) in names.iter().enumerate() {
        let tensors = if idx % 2 == 0 { &mut second.tensors } else { &mut first.tensors };
        tensors.remove(name);
    }
    let (first, second) = (first.write_edited(), second.write_edited());
    let part = |number| first.dir().join(format!("model-0000{number}-of-00002.safetensors"));
    fs::rename(first.weights(), part(1)).unwrap();
    fs::copy(second.weights(), part(2)).unwrap();
    fs::write(first.dir().join("model.safetensors.index.json"), "{}").unwrap();
    fs::write(first.dir().join("consolidated.safetensors"), "not read").unwrap();
    assert!(logits(&first) == expected);
    fs::copy(whole.weights(), first.weights()).unwrap();
    assert_says(&failure(first.dir()), &["is in", "model-00001-of-00002.safetensors", "hint:"]);
}

#[test]
fn leftovers_of_old_exporters_are_ignored() {
    let golden = Golden::read();
    let mut case = golden.case("llama-f32").clone();
    let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    case.tensors.insert(name.to_owned(), json!("F32 16 0 1"));
    case.tensors.insert("lm_head.weight".to_owned(), json!("F32 200x128 0 1"));
    let model =
        Model::load(case.write_edited().dir(), &Way::Kernels.single(), &mut |_| {}).unwrap();
    let logits = extend(&model, &mut model.new_cache(), &golden.prompt);
    assert!(crate::run::difference(&logits[39], &case.logits) < 1e-4, "tied means tied");
}

#[test]
fn progress_rises_to_what_this_rank_reads() {
    let checkpoint = case("qwen3-mixed-f32").write();
    for (rank, split) in [(0, Split::Tensor(vec![1])), (1, Split::Tensor(vec![3, 1]))] {
        let mut seen: Vec<LoadProgress> = Vec::new();
        let mut note = |progress| seen.push(progress);
        let parallel = Way::Kernels.alone(rank, &split);
        let model = Model::load(checkpoint.dir(), &parallel, &mut note).unwrap();
        assert!(10 < seen.len());
        assert!(seen.windows(2).all(|pair| pair[0].done_bytes <= pair[1].done_bytes));
        let last = seen.last().unwrap();
        assert_eq!(last.done_bytes, last.total_bytes);
        assert_eq!(last.total_bytes, model.facts().bytes_read);
        assert!(seen.iter().all(|progress| progress.total_bytes == last.total_bytes));
    }
}

/// The planner counts with these numbers before anything is loaded.
#[test]
fn each_rank_of_any_split_holds_and_caches_what_the_description_says() {
    let splits = [
        Split::Tensor(vec![1]),
        Split::Tensor(vec![3, 1]),
        Split::Tensor(vec![1, 1, 1]),
        Split::Tensor(vec![5, 2, 1]),
        Split::Pipeline(vec![1, 1]),
    ];
    for case in Golden::read().cases {
        let written = case.write();
        let checkpoint = StoredCheckpoint::open(written.dir()).unwrap();
        for split in &splits {
            let Some(shards) = checkpoint.layout.shards(split) else { continue };
            for (rank, shard) in shards.iter().enumerate() {
                let parallel = Way::Kernels.alone(rank, split);
                let model = Model::from_checkpoint(&checkpoint, &parallel, &mut |_| {}).unwrap();
                let facts = model.facts();
                let loaded = (facts.weights_bytes, facts.replicated_bytes, facts.cache_cost);
                let described = (shard.weights_bytes, shard.replicated_bytes, shard.cache);
                assert_eq!(loaded, described, "{} {split:?} rank {rank}", case.name);
            }
        }
    }
}

/// Matrices are converted to the type of the final norm, whatever their own is.
#[test]
fn types_of_norms_and_matrices_may_differ() {
    let golden = Golden::read();
    let is_plain = |case: &&Case| {
        let types = case.tensors.values().filter_map(|recipe| recipe.as_str()?.split(' ').next());
        types.clone().count() > 0
            && types.into_iter().all(|it| ["BF16", "F32", "I64"].contains(&it))
    };
    let is_norm = |name: &str| {
        ["model.norm.weight", "embedding_norm.weight", ".norm_f.weight"]
            .iter()
            .any(|it| name.ends_with(it))
    };
    let cases = golden.cases.iter().filter(|case| case.dtype == "BF16").filter(is_plain);
    let mut num_cases = 0;
    for case in cases {
        let (mut norms, mut others) = (case.clone(), case.clone());
        for (name, recipe) in &case.tensors {
            let edited = if is_norm(name) { &mut norms } else { &mut others };
            let wide = recipe.as_str().unwrap().replace("BF16 ", "F32 ");
            edited.tensors.insert(name.clone(), wide.into());
        }
        for mixed in [norms, others] {
            let checkpoint = mixed.write_edited();
            for split in [Split::Tensor(vec![1]), Split::Tensor(vec![2, 1])] {
                for rank in 0..split.num_ranks() {
                    let parallel = Way::Kernels.alone(rank, &split);
                    let loaded = Model::load(checkpoint.dir(), &parallel, &mut |_| {});
                    assert!(loaded.is_ok(), "{}, rank {rank} of {split:?}", case.name);
                }
            }
        }
        num_cases += 1;
    }
    assert!(golden.is_restricted() || 10 <= num_cases, "{num_cases} cases");
}
