//! The description of each test checkpoint names exactly the tensors that it has.

use std::path::{Path, PathBuf};

use jackalope_families::model_spec;
use jackalope_protocol::split::{Shares, Split};
use jackalope_spec::{
    CacheKind, ElementType, LayerLayout, ModelLayout, TensorHeader, TensorHeaders, TensorProblem,
};
use serde_json::Value;

/// A checkpoint that mlx-lm has computed, without its values.
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) config: Value,
    pub(crate) headers: TensorHeaders,
}

impl Sample {
    pub(crate) fn layout(&self) -> ModelLayout {
        let spec = model_spec(&self.config).unwrap();
        spec.layout(&self.headers).unwrap_or_else(|report| panic!("{}: {report}", self.name))
    }

    fn problems(&self) -> Vec<TensorProblem> {
        model_spec(&self.config).unwrap().check(&self.headers).problems
    }

    /// Returns the size of the tensors that the language model needs, as a conversion has them.
    fn num_bytes(&self) -> u64 {
        let spec = model_spec(&self.config).unwrap();
        if spec.quantization.original.is_some() {
            return spec
                .headers_of_model(&self.headers)
                .values()
                .map(TensorHeader::num_bytes)
                .sum();
        }
        let needed = self.headers.iter().filter(|(name, _)| spec.unused_part(name).is_none());
        needed.map(|(_, header)| header.num_bytes()).sum()
    }
}

/// The checkpoints of the golden tests: `F32 128x128 0.0 0.4` by name.
pub(crate) fn samples() -> Vec<Sample> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/golden");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().flat_map(|path| read(&std::fs::read_to_string(path).unwrap())).collect()
}

/// The tensors that mlx-lm gives mixtures of experts: `F32 128x128` by name.
fn mixtures() -> Vec<Sample> {
    read(include_str!("../data/tensors.json"))
}

fn read(text: &str) -> Vec<Sample> {
    let cases: Value = serde_json::from_str(text).unwrap();
    let sample = |case: &Value| {
        let tensors = case["tensors"].as_object().unwrap().iter();
        let header = |(name, recipe): (&String, &Value)| {
            let words: Vec<&str> = recipe.as_str().unwrap().split(' ').collect();
            let dims = words[1].split('x').filter(|_| words[1] != "scalar");
            let shape = dims.map(|dim| dim.parse().unwrap()).collect();
            (name.clone(), TensorHeader { element_type: ElementType::from_name(words[0]), shape })
        };
        let model_type = &case["config"]["model_type"];
        Sample {
            name: case["name"].as_str().or(model_type.as_str()).unwrap().to_owned(),
            config: case["config"].clone(),
            headers: tensors.map(header).collect(),
        }
    };
    cases["cases"].as_array().unwrap().iter().map(sample).collect()
}

pub(crate) fn sample(name: &str) -> Sample {
    samples().into_iter().find(|sample| sample.name == name).unwrap()
}

#[test]
fn one_rank_holds_exactly_the_bytes_of_each_checkpoint() {
    for sample in samples().into_iter().chain(mixtures()) {
        let layout = sample.layout();
        let [alone] = &layout.tensor_shards(&Shares::even(1))[..] else { panic!("one rank") };
        assert_eq!(alone.weights_bytes, sample.num_bytes(), "{}", sample.name);
        let stages = layout.shards(&Split::Pipeline(vec![layout.layers.len() as u32])).unwrap();
        assert_eq!(stages, std::slice::from_ref(alone), "{}", sample.name);
    }
}

#[test]
fn every_byte_is_held_once_and_replicated_bytes_by_every_rank() {
    for sample in samples().into_iter().chain(mixtures()) {
        let layout = sample.layout();
        let whole = &layout.tensor_shards(&Shares::even(1))[0];
        // No more ranks than key-value heads, so that none holds another one's.
        let of_layer = |layer: &LayerLayout| [Some(layer.heads), layer.state_heads];
        let mut heads = layout.layers.iter().flat_map(of_layer).flatten();
        if heads.any(|heads| heads.kv_heads < 2) {
            continue;
        }
        for shares in [vec![1, 1], vec![3, 1], vec![1, 2]] {
            let shards = layout.shards(&Split::Tensor(shares.clone())).unwrap();
            let held: u64 = shards.iter().map(|shard| shard.weights_bytes).sum();
            let once = held - (shards.len() as u64 - 1) * whole.replicated_bytes;
            assert_eq!(once, whole.weights_bytes, "{} {shares:?}", sample.name);
            let cached: u64 = shards.iter().map(|shard| shard.cache.bytes_per_held_token()).sum();
            // What an indexer of attention keeps, every rank with heads keeps.
            let holders =
                shards.iter().filter(|shard| 0 < shard.cache.bytes_per_held_token()).count();
            let shared = layout.layers.iter().map(|layer| match layer.cache {
                CacheKind::Positions { shared_elements, .. } => shared_elements as u64,
                CacheKind::Pools { shared_elements, last_elements, .. } => {
                    (shared_elements + last_elements) as u64
                }
                _ => 0,
            });
            let shared = shared.sum::<u64>() * layout.element_type.size_bytes();
            let copies = (holders as u64).saturating_sub(1);
            let expected = whole.cache.bytes_per_held_token() + copies * shared;
            assert_eq!(cached, expected, "{} {shares:?}", sample.name);
            let states: u64 = shards.iter().map(|shard| shard.cache.state_bytes).sum();
            // What n-grams need, every rank keeps.
            let of_ngrams = layout.layers.iter().map(|layer| 4 * layer.whole_state_elements as u64);
            let copies = (shards.len() as u64 - 1) * of_ngrams.sum::<u64>();
            assert_eq!(states, whole.cache.state_bytes + copies, "{} {shares:?}", sample.name);
        }
    }
}

#[test]
fn every_rank_with_heads_keeps_all_latents() {
    let layout = sample("deepseek_v3-q4-f32").layout();
    // Six heads, two of which are a group of the output projection.
    let whole = layout.tensor_shards(&Shares::even(1))[0].cache.bytes_per_held_token();
    assert_eq!(whole, 3 * (128 + 32) * 4);
    let cached = |shares: Vec<u32>| -> Vec<u64> {
        let shards = layout.shards(&Split::Tensor(shares)).unwrap();
        shards.iter().map(|shard| shard.cache.bytes_per_held_token()).collect()
    };
    assert_eq!(cached(vec![1, 1, 1]), [whole; 3]);
    assert_eq!(cached(vec![9, 1, 1]), [whole, 0, 0]);
}

#[test]
fn what_an_indexer_and_a_second_mixer_keep_is_counted() {
    let cached = |name: &str| {
        sample(name).layout().tensor_shards(&Shares::even(1))[0].cache.bytes_per_held_token()
    };
    assert_eq!(cached("deepseek_v32-f32"), 3 * (88 + 12 + 20) * 4);
    assert_eq!(cached("longcat_flash-f32"), 2 * 2 * (88 + 12) * 4);
    // In two of three layers with attention keys of pools of 3, and keys and gates of the last positions.
    let pooled = &sample("glm5_next-f32").layout().tensor_shards(&Shares::even(1))[0].cache;
    assert_eq!(pooled.bytes_per_token, (3 * 88 + 2 * 7) * 4);
    assert_eq!((pooled.window_bytes_per_token, pooled.window_tokens), (2 * 2 * 20 * 4, 3));
}

#[test]
fn what_a_window_beside_pools_keeps_is_counted() {
    // A layer without pools, two with overlapping pools of 4 and an indexer, and two with pools of 8.
    let layout = sample("deepseek_v4-f32").layout();
    let [alone] = &layout.tensor_shards(&Shares::even(1))[..] else { panic!("one rank") };
    let kept = 2 * (40 + 20) / 4 + 2 * 40 / 8;
    let passing = 5 * 40 + 2 * 2 * 2 * (40 + 20) + 2 * 2 * 40;
    assert_eq!(alone.cache.bytes_per_token, kept * 4);
    assert_eq!(alone.cache.window_bytes_per_token, passing * 4);
    assert_eq!(alone.cache.window_tokens, 9);
    // Five groups on two ranks, and on six: each rank with one keeps all of it.
    for (shares, num_holders) in [(vec![1, 1], 2), (vec![1; 6], 5), (vec![90, 1], 1)] {
        let shards = layout.shards(&Split::Tensor(shares)).unwrap();
        let holders = shards.iter().filter(|it| it.cache.bytes_per_token != 0);
        assert!(holders.clone().all(|it| it.cache == alone.cache));
        assert_eq!(holders.count(), num_holders);
    }
}

#[test]
fn what_pools_that_layers_share_keep_is_counted() {
    let layout = sample("deepseek_v41-f32").layout();
    let [alone] = &layout.tensor_shards(&Shares::even(1))[..] else { panic!("one rank") };
    // Of pools of 2 and of 1, which one layer each keeps, a vector and what an indexer compares.
    assert_eq!(alone.cache.bytes_per_token, ((32 + 32) / 2 + (32 + 32)) * 4);
    // The keys of five windows; the projections and gates of the former pools, the projections of the latter.
    assert_eq!(alone.cache.window_bytes_per_token, (5 * 32 + 2 * 32 + 32) * 4);
    assert_eq!(alone.cache.window_tokens, 9);
    // In two layers the last two tokens.
    assert_eq!(alone.cache.state_bytes, 2 * 2 * 4);
    // Layers 2 and 4 read pools and choices of the layers before them.
    let begins: Vec<usize> = (0..5).filter(|idx| layout.can_begin_stage(*idx)).collect();
    assert_eq!(begins, [0, 1, 3]);
    assert!(layout.shards(&Split::Pipeline(vec![1, 4])).is_none());
}

#[test]
fn conversions_by_both_libraries_name_the_tensors_of_the_same_model() {
    let named = |name: &str| {
        let sample = sample(name);
        let spec = model_spec(&sample.config).unwrap();
        let names = spec.tensors(false).map(|it| it.name.clone()).collect::<Vec<_>>();
        assert!(names.contains(&"model.layers.3.attn.compressor.wkv.weight".to_owned()));
        (sample.headers.keys().cloned().collect::<Vec<_>>(), sample.problems())
    };
    let (by_vlm, problems) = named("deepseek_v41-f32");
    assert_eq!(problems, []);
    assert!(by_vlm.contains(&"language_model.layers.3.attn.compressor.wkv.weight".to_owned()));
    let (by_lm, problems) = named("deepseek_v41-untabled-f32");
    assert_eq!(problems, []);
    assert!(by_lm.contains(&"model.layers.3.self_attn.compressor.kv_proj.weight".to_owned()));
}

#[test]
fn what_pools_and_ngrams_keep_is_counted() {
    let sample = sample("qwen4_exp-f32");
    let cache = &sample.layout().tensor_shards(&Shares::even(1))[0].cache;
    // In two layers keys and values of two heads, and keys of pools of 3; keys of the last positions.
    assert_eq!(cache.bytes_per_token, 2 * (2 * 2 * 24 + 7) * 4);
    assert_eq!((cache.window_bytes_per_token, cache.window_tokens), (2 * 20 * 4, 3));
    // In two layers the state and the inputs of a delta net, the last two tokens, and nine inputs of a
    // convolution of three streams.
    let delta = 6 * 20 * 28 + 2 * (2 * 2 * 20 + 6 * 28);
    assert_eq!(cache.state_bytes, 2 * (delta + 2 + 9 * 3 * 128) * 4);
}

#[test]
fn layers_that_predict_several_tokens_and_parts_for_images_are_not_needed() {
    let mut sample = sample("kimi_k25-q4-f32");
    let header = TensorHeader { element_type: ElementType::Bf16, shape: vec![4] };
    let extra = ["vision_tower.patch_embed.weight", "language_model.model.layers.3.enorm.weight"];
    for name in extra {
        sample.headers.insert(name.to_owned(), header.clone());
    }
    assert_eq!(sample.problems(), []);
    sample.headers.insert("language_model.model.layers.4.enorm.weight".to_owned(), header);
    let [TensorProblem::Unexpected { names, .. }] = &sample.problems()[..] else {
        panic!("one problem")
    };
    assert_eq!(names, &["model.layers.4.enorm.weight"]);
}

#[test]
fn matrices_are_counted_in_the_type_that_the_model_is_computed_in() {
    let mut num_checked = 0;
    for mut sample in samples() {
        let bytes = |sample: &Sample| -> u64 { sample.layout().parts().map(|it| it.bytes).sum() };
        let norm = model_spec(&sample.config).unwrap().norm.name;
        let is_quantized = sample.headers.values().any(|header| !header.element_type.is_float());
        let Some(header) = sample.headers.get(&norm).cloned() else { continue };
        if is_quantized || header.element_type != ElementType::Bf16 {
            continue;
        }
        let narrow = bytes(&sample);
        let wide = TensorHeader { element_type: ElementType::F32, ..header };
        sample.headers.insert(norm, wide);
        let ratio = bytes(&sample) as f64 / narrow as f64;
        assert!((1.7..=2.0).contains(&ratio), "{}: {ratio}", sample.name);
        num_checked += 1;
    }
    assert!(5 < num_checked, "{num_checked} checkpoints");
}

#[test]
fn a_layer_too_many_is_not_taken_for_one_that_predicts_tokens() {
    for name in ["deepseek_v3-f32", "kimi_k2-f32", "step3p5-f32", "bailing_hybrid-f32"] {
        let mut sample = sample(name);
        let fields = sample.config.as_object_mut().unwrap();
        fields.remove("num_nextn_predict_layers");
        let next = format!("model.layers.{}.", fields["num_hidden_layers"]);
        sample.headers.retain(|name, _| !name.starts_with(&next));
        let header = TensorHeader { element_type: ElementType::F32, shape: vec![4] };
        let plain = format!("{next}input_layernorm.weight");
        sample.headers.insert(plain.clone(), header.clone());
        let problems = sample.problems();
        let [TensorProblem::Unexpected { names, .. }] = &problems[..] else {
            panic!("{name}: {problems:?}")
        };
        assert_eq!(names, &[plain], "{name}");
        sample.headers.insert(format!("{next}eh_proj.weight"), header);
        assert_eq!(sample.problems(), [], "{name}");
    }
}

#[test]
fn latent_projections_are_stored_in_one_form_or_the_other() {
    let mut sample = sample("deepseek_v3-f32");
    let attention = "model.layers.0.self_attn";
    let joint = TensorHeader { element_type: ElementType::F32, shape: vec![5 * (24 + 40), 88] };
    sample.headers.insert(format!("{attention}.kv_b_proj.weight"), joint);
    let unexpected = |problems: &[TensorProblem]| match problems {
        [TensorProblem::Unexpected { names, .. }] => names.clone(),
        other => panic!("{other:?}"),
    };
    let both = ["embed_q", "unembed_out"].map(|name| format!("{attention}.{name}.weight"));
    assert_eq!(unexpected(&sample.problems()), both);
    both.iter().for_each(|name| drop(sample.headers.remove(name)));
    assert_eq!(sample.problems(), []);
    sample.headers.remove(&format!("{attention}.kv_b_proj.weight"));
    let missing = sample.problems().into_iter().map(|problem| match problem {
        TensorProblem::Missing { name, .. } => name,
        other => panic!("{other:?}"),
    });
    assert_eq!(missing.collect::<Vec<_>>(), both);
}

/// As in checkpoints that were not converted, or by old versions of mlx-lm.
#[test]
fn experts_may_have_a_tensor_each() {
    for mut sample in mixtures() {
        let stacked: Vec<String> = sample.headers.keys().cloned().collect();
        let whole = sample.layout().shards(&Split::Tensor(vec![2, 1])).unwrap();
        let spec = model_spec(&sample.config).unwrap();
        let tensors = spec.tensors(false).filter_map(|it| Some((it, it.per_expert.clone()?)));
        for (tensor, [before, after]) in tensors {
            let parts = stacked.iter().filter(|name| {
                name.strip_prefix(tensor.module()).is_some_and(|rest| rest.starts_with('.'))
            });
            for name in parts {
                let header = sample.headers.remove(name).unwrap();
                let part = &name[tensor.module().len()..];
                let after = after.strip_suffix(".weight").unwrap();
                for expert in 0..header.shape[0] {
                    let shape = header.shape[1..].to_vec();
                    let element_type = header.element_type.clone();
                    let header = TensorHeader { element_type, shape };
                    sample.headers.insert(format!("{before}{expert}{after}{part}"), header);
                }
            }
        }
        assert_ne!(stacked, sample.headers.keys().cloned().collect::<Vec<_>>(), "{}", sample.name);
        let apart = sample.layout().shards(&Split::Tensor(vec![2, 1])).unwrap();
        assert_eq!(apart, whole, "{}", sample.name);
        let is_expert = |name: &&String| name.contains(".experts.3.") && name.contains(".weight");
        let expert = sample.headers.keys().find(is_expert).unwrap().clone();
        let header = sample.headers.remove(&expert).unwrap();
        let text = sample.problems()[0].to_string();
        assert!(text.contains(&format!("{expert} ")) && text.ends_with("is missing"), "{text}");
        sample.headers.insert(expert, header);
    }
}

#[test]
fn a_token_reads_only_the_experts_that_it_passes() {
    let sample = mixtures().into_iter().find(|it| it.name == "mixtral").unwrap();
    let shard = &sample.layout().tensor_shards(&Shares::even(1))[0];
    let bytes = |part: &str| -> u64 {
        let parts = sample.headers.iter().filter(|(name, _)| name.contains(part));
        parts.map(|(_, header)| header.num_bytes()).sum()
    };
    let (experts, embedding) = (bytes("switch_mlp"), bytes("embed_tokens"));
    assert_eq!(shard.active_bytes, shard.weights_bytes - embedding - experts * 3 / 4);
    assert_eq!((shard.expert_bytes, shard.active_expert_bytes), (experts, experts / 4));
}

/// Two of eight experts for each token.
#[test]
fn the_tokens_of_a_step_read_the_experts_that_any_of_them_passes() {
    let sample = mixtures().into_iter().find(|it| it.name == "mixtral").unwrap();
    let shard = &sample.layout().tensor_shards(&Shares::even(1))[0];
    let (all, others) = (shard.expert_bytes as f64, shard.active_bytes - shard.active_expert_bytes);
    let experts = |num_tokens: u32| shard.read_bytes(num_tokens) - others as f64;
    for (num_tokens, part) in [(1, 0.25), (2, 0.4375), (8, 0.899_887), (512, 1.0)] {
        let found = experts(num_tokens) / all;
        assert!((found - part).abs() < 1e-6, "{num_tokens} tokens: {found}");
    }
    let dense = &self::sample("llama-f32").layout().tensor_shards(&Shares::even(1))[0];
    assert_eq!(dense.read_bytes(8), dense.active_bytes as f64);
}

#[test]
fn ranks_that_share_a_key_value_head_all_cache_it() {
    let layout = sample("llama-f32").layout();
    let shards = layout.tensor_shards(&Shares::even(4));
    let whole = &layout.tensor_shards(&Shares::even(1))[0];
    // Two key-value heads of 32 elements, keys and values, four bytes each, in two layers.
    assert_eq!(whole.cache.bytes_per_held_token(), 2 * 2 * 32 * 4 * 2);
    assert!(
        shards
            .iter()
            .all(|it| it.cache.bytes_per_held_token() == whole.cache.bytes_per_held_token() / 2)
    );
}

#[test]
fn states_are_divided_by_value_heads_and_shared_key_heads_are_kept_by_each_rank() {
    let layout = sample("qwen3_next-q4-bf16").layout();
    let whole = &layout.tensor_shards(&Shares::even(1))[0];
    // One layer of 8 value heads of 32 with a state of 32 each and three inputs of the convolution,
    // and 4 key heads with three inputs of a query and a key; four bytes each, whatever the type.
    let (heads, key_heads) = (8 * 32 * (32 + 3) * 4, 4 * 2 * 32 * 3 * 4);
    assert_eq!(whole.cache.state_bytes, heads + key_heads);
    // The other layer has two key-value heads of 64 elements, in bf16.
    assert_eq!(whole.cache.bytes_per_held_token(), 2 * 2 * 64 * 2);
    // More ranks than key heads: two of them share a key head, and have one of its value heads each.
    let layout = sample("qwen3_next-f32").layout();
    let [alone] = &layout.tensor_shards(&Shares::even(1))[..] else { panic!("one rank") };
    assert_eq!(alone.cache.state_bytes, 3 * (heads + key_heads));
    let shards = layout.tensor_shards(&Shares::even(5));
    let states: u64 = shards.iter().map(|shard| shard.cache.state_bytes).sum();
    assert_eq!(states, alone.cache.state_bytes + 3 * key_heads / 4);
}

#[test]
fn parts_that_a_language_model_does_not_need_are_not_counted() {
    let mut sample = sample("qwen3_5-q4-f32");
    let whole = sample.layout();
    let mut add = |name: &str| {
        let header = TensorHeader { element_type: ElementType::F32, shape: vec![8] };
        sample.headers.insert(name.to_owned(), header);
    };
    add("vision_tower.patch_embed.weight");
    add("mtp.norm.weight");
    let mut found = sample.layout();
    assert_eq!(found.unused.iter().map(|it| it.count).collect::<Vec<_>>(), [1, 1]);
    found.unused.clear();
    assert_eq!(found, whole);
    sample
        .headers
        .insert("language_model.extra".to_owned(), sample.headers["mtp.norm.weight"].clone());
    let problems: Vec<String> = sample.problems().iter().map(ToString::to_string).collect();
    assert_eq!(problems, ["1 tensor that `qwen3_5` does not use: extra"]);
}

#[test]
fn a_split_that_fits_no_rank_or_no_layer_has_no_shards() {
    let layout = sample("llama-f32").layout();
    assert_eq!(layout.shards(&Split::Tensor(vec![1, 0])), None);
    assert_eq!(layout.shards(&Split::Pipeline(vec![1, 2])), None);
}

#[test]
fn every_problem_is_reported() {
    let mut sample = sample("qwen3-b4-g64-f32");
    let module = "model.layers.1.self_attn.q_proj";
    sample.headers.remove(&format!("{module}.biases"));
    sample.headers.remove("model.norm.weight");
    let extra = TensorHeader { element_type: ElementType::F32, shape: vec![1] };
    sample.headers.insert("extra".to_owned(), extra);
    sample.headers.get_mut("model.layers.0.mlp.up_proj.weight").unwrap().shape[0] += 1;
    let problems = sample.problems();
    let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let expected = [
        "tensor model.norm.weight [128] is missing",
        "tensor model.layers.0.mlp.up_proj.weight has shape [257, 16], expected [256, 16]",
        "tensor model.layers.1.self_attn.q_proj.biases [256, 2] is missing",
        "1 tensor that `qwen3` does not use: extra",
    ];
    assert_eq!(text, expected);
}

#[test]
fn a_head_is_tied_if_config_says_so_or_no_table_is_there() {
    let mut sample = sample("llama-f32");
    assert!(sample.layout().is_tied);
    sample.config.as_object_mut().unwrap().remove("tie_word_embeddings");
    assert!(sample.layout().is_tied);
    let table = sample.headers["model.embed_tokens.weight"].clone();
    sample.headers.insert("lm_head.weight".to_owned(), table);
    assert!(!sample.layout().is_tied);
    sample.config["tie_word_embeddings"] = true.into();
    assert!(sample.layout().is_tied, "the second copy of the table is not needed");
    sample.headers.remove("lm_head.weight");
    sample.config["tie_word_embeddings"] = false.into();
    assert_eq!(sample.problems().len(), 1);
}

/// As OpenAI publishes gpt-oss: rows of gate and up in turn, codes in blocks.
#[test]
fn experts_in_blocks_are_found_and_their_problems_reported() {
    let mut blocks = sample("gpt_oss-openai-blocks-f32");
    let shards = blocks.layout().tensor_shards(&Shares::even(1));
    assert_eq!(shards[0].weights_bytes, blocks.num_bytes());
    let module = "model.layers.1.mlp.experts.gate_up_proj";
    blocks.headers.remove(&format!("{module}_scales"));
    blocks.headers.get_mut(&format!("{module}_bias")).unwrap().shape[1] += 1;
    let problems: Vec<String> = blocks.problems().iter().map(ToString::to_string).collect();
    assert!(problems.contains(&format!("tensor {module}_scales [10, 192, 4] is missing")));
    let shape = format!("tensor {module}_bias has shape [10, 193], expected [10, 192]");
    assert!(problems.contains(&shape), "{problems:?}");
}

#[test]
fn factors_that_are_not_in_the_weights_of_an_original_are_known_row_by_row() {
    let mut sample = sample("falcon_h1-f32");
    let module = "model.layers.0.mamba";
    let of_rows = |sample: &Sample, rows: &[usize]| -> Vec<Vec<f32>> {
        let layout = sample.layout();
        let edit = layout.edit(&format!("{module}.in_proj.weight")).cloned();
        rows.iter().filter_map(|row| Some(edit.as_ref()?.factors(*row).to_vec())).collect()
    };
    // Gates and values of 256 elements, keys and queries of 48, and 8 time steps.
    let rows = [255, 256, 512, 560, 608, 615];
    assert!(of_rows(&sample, &rows).is_empty(), "a conversion");
    let kernel = sample.headers.get_mut(&format!("{module}.conv1d.weight")).unwrap();
    kernel.shape = vec![kernel.shape[0], 1, kernel.shape[1]];
    let own = [0.353_553_38, 0.25, 0.353_553_38, 0.5, 0.353_553_38, 0.353_553_38];
    assert_eq!(of_rows(&sample, &rows), own.map(|own| vec![1.25, own]));
    let layout = sample.layout();
    let factors = |name: &str| layout.edit(name).map(|edit| edit.factors(7).to_vec());
    assert_eq!(factors("model.layers.1.mamba.out_proj.weight"), Some(vec![0.235_702_26]));
    assert_eq!(factors("model.layers.1.self_attn.v_proj.weight"), None);
}

/// Conversions multiply matrices by factors of `config.json` before they quantise them.
#[test]
fn quantised_matrices_of_an_original_with_factors_are_refused() {
    let mut sample = sample("falcon_h1-original-f32");
    let weight = "model.layers.0.feed_forward.gate_proj.weight";
    let [rows, columns] = sample.headers[weight].shape[..] else { panic!("a matrix") };
    let words = TensorHeader { element_type: ElementType::U32, shape: vec![rows, columns / 8] };
    let scales = TensorHeader { element_type: ElementType::F32, shape: vec![rows, columns / 32] };
    let module = weight.strip_suffix(".weight").unwrap();
    sample.headers.insert(weight.to_owned(), words);
    for kind in ["scales", "biases"] {
        sample.headers.insert(format!("{module}.{kind}"), scales.clone());
    }
    let found = sample.problems().iter().map(ToString::to_string).collect::<Vec<String>>();
    let expected = "config.json has factors for this matrix";
    assert!(
        found.len() == 1 && found[0].contains(module) && found[0].contains(expected),
        "{found:?}"
    );
}
