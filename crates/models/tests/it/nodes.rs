//! How many nodes of MLX's graph the host builds for a step with stock operations. A GPU computes a node
//! of a small model faster than the host builds it, so this number decides how fast batches decode, and
//! how fast several short prompts are read.

use std::collections::BTreeSet;

use jackalope_mlx::{Group, count_nodes, eval, nodes_of_nothing};
use jackalope_models::{Batch, Model, SequenceCache, Span, Split};

use crate::ranks::{Way, load};
use crate::recipe::Golden;
use crate::run::extend;

/// Largest number of nodes per layer for one sequence.
const NODES_PER_LAYER_MAX: usize = 32;

/// Largest number of nodes per layer of models with other layers: routers, sinks and windows, states.
const OTHER_MODELS: [(&str, usize); 3] =
    [("qwen3_moe-q4-f32", 49), ("gpt_oss-f32", 82), ("qwen3_next-f32", 99)];

/// Largest number of nodes for 64 sequences, for each hundred nodes of one.
const BATCH_PERCENT_MAX: usize = 125;

/// Largest number of nodes per layer that a further prompt of a step adds, whatever its length: those of
/// its cache and its attention, or of its state.
const NODES_PER_PROMPT_MAX: usize = 40;

/// Returns the nodes of a step that reads the beginnings of `num_prompts` prompts.
fn prompt_nodes(model: &Model, num_prompts: usize, prompt: &[u32]) -> usize {
    let mut caches: Vec<SequenceCache> = (0..num_prompts).map(|_| model.new_cache()).collect();
    let mut all: Vec<&mut SequenceCache> = caches.iter_mut().collect();
    let len = prompt.len();
    let rows = (0..num_prompts).map(|idx| Span { start_idx: idx * len, len }).collect();
    let logits_at = (0..num_prompts).map(|idx| (idx + 1) * len - 1).collect();
    let tokens = prompt.repeat(num_prompts);
    count_nodes(|| {
        let logits = model.forward(&Batch { tokens: &tokens, rows, logits_at }, &mut all);
        let kept = all.iter().flat_map(|cache| cache.arrays());
        [logits].into_iter().chain(kept).collect()
    })
}

/// Returns the nodes of a step in which `num_sequences` sequences decode one token each. Their
/// lengths differ.
fn nodes(model: &Model, num_sequences: usize, tokens: &[u32]) -> usize {
    let lengths: Vec<usize> = (0..num_sequences).map(|idx| 2 + idx % (tokens.len() - 2)).collect();
    // Copies of one sequence as it grows.
    let mut source = model.new_cache();
    let mut caches: Vec<SequenceCache> = Vec::new();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    for (idx, token) in tokens[..longest].iter().enumerate() {
        extend(model, &mut source, &[*token]);
        let here = lengths.iter().filter(|len| **len == idx + 1);
        caches.extend(here.map(|len| source.fork(*len, 0).unwrap()));
    }
    drop(source);
    let mut all: Vec<&mut SequenceCache> = caches.iter_mut().collect();
    let next = &tokens.repeat(num_sequences)[..num_sequences];
    let rows = || (0..num_sequences).map(|idx| Span { start_idx: idx, len: 1 }).collect();
    let logits_at = || (0..num_sequences).collect();
    // What is read of the step, and what it leaves for the next one.
    let mut decode = || {
        let batch = Batch { tokens: next, rows: rows(), logits_at: logits_at() };
        let logits = model.forward(&batch, &mut all);
        [vec![logits], all[0].arrays()].concat()
    };
    // The first step moves the sequences into their slots.
    eval(&decode().iter().collect::<Vec<_>>()).unwrap();
    count_nodes(decode)
}

/// Returns the nodes of a layer, on average over those of different kinds, from models of two depths.
fn per_layer(name: &str, nodes: impl Fn(&Model, &[u32]) -> usize) -> usize {
    let golden = Golden::read();
    let own = golden.case(name).config["num_hidden_layers"].as_u64().unwrap() as usize;
    let [few, many] = [own, 3 * own].map(|num_layers| {
        let case = golden.case(name).deepened(num_layers);
        nodes(&load(&case, &Way::Stock.single()), &golden.prompt)
    });
    (many - few).div_ceil(2 * own)
}

#[test]
fn a_decode_step_has_few_nodes_and_hardly_more_for_many_sequences() {
    let plain = ["qwen3-f32", "qwen3-b4-g64-f32", "llama-f32", "mistral-f32"];
    let plain = plain.map(|name| (name, NODES_PER_LAYER_MAX));
    for (name, most) in plain.into_iter().chain(OTHER_MODELS) {
        let [one, eight, many] =
            [1, 8, 64].map(|num| per_layer(name, |model, prompt| nodes(model, num, prompt)));
        eprintln!("{name}: {one} nodes per layer, {eight} for 8 sequences, {many} for 64");
        assert!(one <= most, "{name}: {one} nodes per layer");
        let allowed = one * BATCH_PERCENT_MAX / 100;
        assert!(many <= allowed, "{name}: {many} nodes per layer for 64 sequences, {one} for one");
    }
}

#[test]
fn a_step_with_several_prompts_has_no_node_for_each_token() {
    for name in ["qwen3-f32", "qwen3_moe-q4-f32", "gpt_oss-f32", "qwen3_next-f32"] {
        let nodes = |num, len: usize| {
            per_layer(name, |model, prompt| prompt_nodes(model, num, &prompt[..len]))
        };
        let [one, four, sixteen] = [1, 4, 16].map(|num| nodes(num, 32));
        let short = nodes(4, 24);
        eprintln!("{name}: {one} nodes per layer, {four} for 4 prompts, {sixteen} for 16");
        for (num, found) in [(4, four), (16, sixteen)] {
            let allowed = one + (num - 1) * NODES_PER_PROMPT_MAX;
            assert!(found <= allowed, "{name}: {found} nodes per layer for {num} prompts");
        }
        assert!(four <= short, "{name}: {four} nodes per layer, {short} for shorter prompts");
    }
}

/// Operations that need no elements on any device.
const SAFE_WITHOUT_ELEMENTS: [&str; 7] =
    ["AsType", "Broadcast", "Concatenate", "Contiguous", "Full", "Greater", "Less"];

/// Returns the operations without elements of a prompt in two pieces, of which the second is short, and of
/// decode steps.
fn operations_on_nothing(model: &Model, prompt: &[u32]) -> BTreeSet<String> {
    let mut cache = model.new_cache();
    let mut names = BTreeSet::new();
    let (long, short) = prompt.split_at(prompt.len() - 2);
    for tokens in [&prompt[..1], long, short, &prompt[..1], &prompt[..1]] {
        let rows = vec![Span { start_idx: 0, len: tokens.len() }];
        let batch = Batch { tokens, rows, logits_at: vec![tokens.len() - 1] };
        let logits = model.forward(&batch, &mut [&mut cache]);
        let arrays = [vec![logits], cache.arrays()].concat();
        let arrays: Vec<_> = arrays.iter().collect();
        names.extend(nodes_of_nothing(&arrays));
    }
    names.retain(|name| !SAFE_WITHOUT_ELEMENTS.contains(&name.as_str()));
    names
}

#[test]
fn no_operation_that_needs_elements_has_none_on_any_rank() {
    let golden = Golden::read();
    // A rank that has nearly everything, and those that have nothing of most layers. Whether there are
    // elements does not depend on their type.
    let ranks = [(vec![1], 0), (vec![1, 90, 2], 0), (vec![1, 90, 2], 2)];
    for case in golden.cases.iter().filter(|case| golden.is_restricted() || case.dtype == "F32") {
        for (shares, rank) in ranks.clone() {
            let split = Split::Tensor(shares);
            let parallel = Way::Stock.alone(rank, &split);
            parallel.group().replace(Group::rehearsal(rank, split.num_ranks()));
            let found = operations_on_nothing(&load(case, &parallel), &golden.prompt);
            assert!(found.is_empty(), "{}, rank {rank} of {split:?}: {found:?}", case.name);
        }
    }
}

#[test]
fn keys_of_an_indexer_that_does_not_choose_yet_are_computed_with_their_step() {
    let golden = Golden::read();
    for name in ["deepseek_v32-f32", "minimax_m3-f32"] {
        let model = load(golden.case(name), &Way::Stock.single());
        let mut cache = model.new_cache();
        for token in golden.prompt[..3].chunks(1) {
            extend(&model, &mut cache, token);
        }
        let slots = cache.slots();
        let slots = slots.borrow();
        let layers = 0..model.facts().num_layers as usize;
        let keys: Vec<_> = layers.filter_map(|layer| slots.held(256, layer).index).collect();
        assert!(!keys.is_empty() && keys.iter().all(|keys| keys.is_available()), "{name}");
    }
}
