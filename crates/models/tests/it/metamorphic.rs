//! Compares a model with itself: the same numbers computed in different ways, without a reference.
//!
//! With our kernels, the bits of a row do not depend on what else is computed, nor on the split, so
//! cached, chunked, batched and split runs must agree exactly. MLX's operations agree within
//! rounding.

use std::collections::HashMap;

use jackalope_families::model_spec;
use jackalope_mlx::memory;
use jackalope_models::{Batch, Model, ModelFacts, SequenceCache, Span, Split};

use crate::ranks::{Alone, Generated, Job, Way, facts_of_ranks, is_alone, load, run_ranks, say};
use crate::recipe::{Case, Golden};
use crate::run::{Logits, difference, extend, follow, generate, step};

/// One case of each architecture, of plain and quantised weights, of each type.
pub(crate) const CASES: &[&str] = &[
    "llama-biases-f32",
    "llama-one-kv-head-f32",
    "llama-q4-bf16",
    "mistral-f32",
    "mistral-bf16",
    "qwen2-q4-f32",
    "qwen2-f16",
    "qwen3-b3-g128-f32",
    "qwen3-mxfp4-bf16",
    "qwen3-mixed-f32",
    "qwen3_moe-bf16",
    "qwen3_moe-mxfp4-f32",
    "qwen2_moe-q4-f32",
    "mixtral-q4-f32",
    "olmoe-biases-f32",
    "minimax-m2-bf16",
    "minimax_m3-f32",
    "minimax_m3-one-head-f32",
    "minimax_m3-q4-f32",
    "gpt_oss-mxfp4-bf16",
    "gpt_oss-openai-blocks-f32",
    "ministral3-windows-f32",
    "smollm3-listed-bf16",
    "glm4_moe-f32",
    "qwen3_next-f32",
    "qwen3_next-uneven-f32",
    "qwen3_next-q4-bf16",
    "qwen3_5-q4-f32",
    "kimi_linear-f32",
    "kimi_linear-q4-bf16",
    "kimi_k3-f32",
    "kimi_k3-q4-f32",
    "bailing_hybrid-uneven-f32",
    "bailing_hybrid-q4-f32",
    "bailing_hybrid-v3-f32",
    "bailing_moe_linear-f32",
    "qwen3_5_moe-f32",
    "qwen3_5_moe-original-f32",
    "qwen3_vl_moe-original-f32",
    "granitemoehybrid-f32",
    "mamba2-uneven-f32",
    "nemotron_h-uneven-f32",
    "nemotron_h-latent-q4-f32",
    "falcon_h1-normed-q4-f32",
    "falcon_h1-original-f32",
    "granitemoehybrid-original-f32",
    "step3p5-original-f32",
    "deepseek_v3-q4-f32",
    "deepseek_v3-kv-b-q4-f32",
    "deepseek_v2-q4-bf16",
    "mistral4-f32",
    "longcat_flash-f32",
    "deepseek_v32-f32",
    "glm_moe_dsa-shared-f32",
    "glm5_next-f32",
    "glm5_next-q4-bf16",
    "deepseek_v4-f32",
    "deepseek_v4-q4-f32",
    "deepseek_v4-mixed-bf16",
    "deepseek_v41-f32",
    "deepseek_v41-untabled-f32",
    "deepseek_v41-q4-f32",
    "deepseek_v41-mixed-bf16",
    "qwen4_exp-f32",
    "qwen4_exp-q4-bf16",
    "cohere-norms-f32",
    "stablelm-parallel-f32",
    "gemma2-q8-f32",
    "olmo2-biases-f32",
    "internlm2-q8-f32",
    "starcoder2-q3-f32",
    "gemma3_text-f32",
    "phimoe-q4-f32",
    "lfm2-f32",
    "lfm2-biases-f32",
    "lfm2_moe-q4-bf16",
    "gemma3n-f32",
    "gemma4_text-shared-f32",
    "gemma4_text-q4-f32",
    "gemma4_text-experts-q4-f32",
    "olmo_hybrid-uneven-f32",
    "step3p5-f32",
    "mimo_v2_flash-groups-f32",
    "afmoe-f32",
    "laguna-f32",
];

/// Of these, one for each kind of state.
const STATE_CASES: &[&str] = &[
    "qwen3_next-f32",
    "lfm2-f32",
    "kimi_linear-f32",
    "bailing_hybrid-f32",
    "granitemoehybrid-f32",
    "falcon_h1-uneven-f32",
];

/// Layers of the models that pipelines compute.
pub(crate) const PIPELINE_LAYERS: usize = 5;

pub(crate) fn tensor(shares: &[u32]) -> Split {
    Split::Tensor(shares.to_vec())
}

/// For each layer of a model, the one whose cache it reads, if it has none of its own.
fn source_layers(case: &Case) -> Vec<Option<usize>> {
    let spec = model_spec(&case.config).unwrap();
    spec.layers.iter().map(|layer| layer.mixer.source_layer()).collect()
}

/// Whether each layer is in the stage of the one whose cache it reads. The last number is that of the
/// first layers.
pub(crate) fn keeps_caches_together(case: &Case, layers: &[u32]) -> bool {
    let mut firsts = layers.iter().rev().scan(0, |first, len| {
        *first += *len as usize;
        Some(*first)
    });
    let sources = source_layers(case);
    firsts.all(|first| sources[first..].iter().flatten().all(|source| first <= *source))
}

/// Whether another order of additions changes the result by little: in 16 bits, it may make a router
/// choose other experts.
pub(crate) fn is_continuous(case: &Case) -> bool {
    let mut names = case.tensors.keys();
    let has_router = names.any(|name| name.contains("experts") || name.contains("switch_mlp"));
    case.dtype == "F32" || !has_router
}

/// Tolerance for MLX's operations, which may add in another order.
pub(crate) fn tolerance(case: &Case) -> f32 {
    match case.dtype.as_str() {
        "F32" => 2e-5,
        "F16" => 2e-2,
        _ => 8e-2,
    }
}

#[track_caller]
pub(crate) fn assert_close(found: &Logits, expected: &Logits, tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (row_idx, (found, expected)) in found.iter().zip(expected).enumerate() {
        let worst = difference(found, expected);
        assert!(worst <= tolerance, "{what}: row {row_idx} differs by {worst:.1e} of the largest");
    }
}

/// Exactly with our kernels, within rounding with MLX's operations.
#[track_caller]
pub(crate) fn assert_same(way: Way, case: &Case, found: &Logits, expected: &Logits, what: &str) {
    let what = format!("{} ({way:?}): {what}", case.name);
    match way {
        Way::Kernels | Way::RoundedKernels => assert!(found == expected, "{what}: other bits"),
        Way::Stock => assert_close(found, expected, tolerance(case), &what),
    }
}

/// Runs `check` on a prompt and a model of one rank for every case, computed in both ways.
fn for_each_model(check: impl Fn(&[u32], &Case, Way, &Model)) {
    for_each_chosen_model(|_| true, check);
}

/// As [`for_each_model`], with MLX's operations only where they compute the same in another order: for
/// properties that do not depend on the type.
fn for_each_comparable_model(check: impl Fn(&[u32], &Case, Way, &Model)) {
    for_each_chosen_model(is_continuous, check);
}

fn for_each_chosen_model(
    is_for_stock: impl Fn(&Case) -> bool,
    check: impl Fn(&[u32], &Case, Way, &Model),
) {
    let golden = Golden::read();
    for case in golden.chosen(CASES) {
        let num_ways = if is_for_stock(case) { 2 } else { 1 };
        for way in Way::BOTH.into_iter().take(num_ways) {
            check(way.prompt(&golden, case), case, way, &load(case, &way.single()));
        }
    }
}

/// Different kinds of shares: more ranks than KV heads, and ranks that hold nothing of a layer.
const SHARES: [&[u32]; 7] =
    [&[1, 1], &[3, 1], &[1, 5], &[1, 1, 1], &[1, 90, 2], &[2, 1, 1, 3, 1], &[1, 1, 60, 1, 1]];

/// Of these, the shares by which all cases are divided, and not only those of [`CASES`].
const SHARES_OF_ALL: [&[u32]; 3] = [&[1, 5], &[1, 90, 2], &[2, 1, 1, 3, 1]];

#[test]
fn any_number_of_ranks_and_any_shares_compute_the_same_bits() {
    const NUM_TOKENS: usize = 6;
    let golden = Golden::read();
    let alone = |case: &Case| {
        Generated::new(generate(&load(case, &Way::Kernels.single()), &golden.prompt, NUM_TOKENS))
    };
    let alone: HashMap<&str, Generated> =
        golden.cases.iter().map(|case| (case.name.as_str(), alone(case))).collect();
    for shares in SHARES {
        let cases: Vec<&Case> = match SHARES_OF_ALL.contains(&shares) {
            true => golden.cases.iter().collect(),
            false => golden.chosen(CASES),
        };
        let job = Job {
            cases: cases.iter().map(|case| case.name.clone()).collect(),
            ways: vec![Way::Kernels],
            num_epochs: 1,
            num_tokens: NUM_TOKENS,
            follows: false,
            num_layers: None,
        };
        for (rank, generated) in run_ranks(&tensor(shares), &job).iter().enumerate() {
            for (case, found) in cases.iter().zip(generated) {
                let is_same = *found == alone[case.name.as_str()];
                assert!(is_same, "{}: rank {rank} of {shares:?} has other bits", case.name);
            }
        }
    }
}

#[test]
fn sums_that_ranks_round_are_near_the_exact_ones_and_do_not_depend_on_chunks() {
    let golden = Golden::read();
    let cases = golden.chosen(CASES).into_iter().filter(|case| is_continuous(case));
    let cases: Vec<&Case> = cases.collect();
    let job = Job {
        cases: cases.iter().map(|case| case.name.clone()).collect(),
        ways: vec![Way::RoundedKernels],
        num_epochs: 1,
        num_tokens: 1,
        follows: false,
        num_layers: None,
    };
    let ranks = run_ranks(&tensor(&[1, 5]), &job);
    let mut num_different = 0;
    for (idx, case) in cases.iter().enumerate() {
        let exact = generate(&load(case, &Way::Kernels.single()), &golden.prompt, 1).1;
        let model = load(case, &Way::RoundedKernels.single());
        let alone = generate(&model, &golden.prompt, 1).1;
        assert_close(&alone, &exact, tolerance(case), &case.name);
        let divided = ranks[0][idx].logits();
        assert_close(&divided, &exact, tolerance(case), &case.name);
        assert_eq!(ranks[0][idx], ranks[1][idx], "{}: ranks differ", case.name);
        num_different += usize::from(divided != alone);
        let mut cache = model.new_cache();
        let (first, second) = golden.prompt.split_at(3);
        let chunked = [first, second].map(|tokens| extend(&model, &mut cache, tokens)).concat();
        assert!(chunked == alone[..golden.prompt.len()], "{}: other bits in chunks", case.name);
    }
    assert!(golden.is_restricted() || num_different != 0, "these sums should depend on the split");
}

#[test]
fn any_number_of_ranks_and_any_shares_compute_about_the_same_with_mlx() {
    let golden = Golden::read();
    let cases = golden.chosen(CASES).into_iter().filter(|case| is_continuous(case));
    let cases: Vec<&Case> = cases.collect();
    let job = Job {
        cases: cases.iter().map(|case| case.name.clone()).collect(),
        ways: vec![Way::Stock],
        num_epochs: 1,
        num_tokens: 4,
        follows: false,
        num_layers: None,
    };
    let prompt = |case| Way::Stock.prompt(&golden, case);
    let alone = |case| generate(&load(case, &Way::Stock.single()), prompt(case), 4).1;
    let alone: Vec<Logits> = cases.iter().map(|case| alone(case)).collect();
    for shares in &SHARES[..4] {
        let ranks = run_ranks(&tensor(shares), &job);
        for (idx, case) in cases.iter().enumerate() {
            let what = format!("{} on shares {shares:?}", case.name);
            let found = &ranks[0][idx];
            for (rank, generated) in ranks.iter().enumerate() {
                let is_same = generated[idx] == *found;
                assert!(is_same, "{what}: rank {rank} has other bits than rank 0");
            }
            // Tokens that are fed back may differ at a tie, so only the prompt is compared.
            let of_prompt = |logits: &Logits| logits[..prompt(case).len()].to_vec();
            let (found, alone) = (of_prompt(&found.logits()), of_prompt(&alone[idx]));
            assert_close(&found, &alone, tolerance(case), &what);
        }
    }
}

#[test]
fn a_pipeline_of_any_stages_computes_the_same_bits_as_one_rank() {
    const NUM_TOKENS: usize = 4;
    let golden = Golden::read();
    let cases = golden.chosen(CASES);
    let run = |case: &Case, way: Way| {
        let model = load(&case.deepened(PIPELINE_LAYERS), &way.single());
        Generated::new((Vec::new(), follow(&model, way.prompt(&golden, case), NUM_TOKENS)))
    };
    let alone: Vec<[Generated; 2]> =
        cases.iter().map(|case| Way::BOTH.map(|way| run(case, way))).collect();
    // What stages send does not depend on how they compute.
    let (kernels, both) = (&Way::BOTH[..1], &Way::BOTH[..]);
    let splits = [
        (vec![5], kernels),
        (vec![4, 1], kernels),
        (vec![2, 3], both),
        (vec![1, 1, 3], both),
        (vec![1, 3, 1], kernels),
        (vec![1, 1, 1, 1, 1], kernels),
    ];
    for (layers, ways) in splits {
        let fits = |case: &Case| keeps_caches_together(&case.deepened(PIPELINE_LAYERS), &layers);
        let fitting: Vec<usize> = (0..cases.len()).filter(|&idx| fits(cases[idx])).collect();
        let job = Job {
            cases: fitting.iter().map(|&idx| cases[idx].name.clone()).collect(),
            ways: ways.to_vec(),
            num_epochs: 1,
            num_tokens: NUM_TOKENS,
            follows: true,
            num_layers: Some(PIPELINE_LAYERS),
        };
        let ranks = run_ranks(&Split::Pipeline(layers.clone()), &job);
        let runs = fitting.iter().flat_map(|&idx| (0..ways.len()).map(move |way| (idx, way)));
        for (idx, (case_idx, way_idx)) in runs.enumerate() {
            let what = format!("stages of {layers:?} layers");
            let (case, way) = (cases[case_idx], ways[way_idx]);
            let found = ranks[0][idx].logits();
            assert_same(way, case, &found, &alone[case_idx][way_idx].logits(), &what);
            assert_eq!(found.len(), way.prompt(&golden, case).len());
            assert!(ranks[1..].iter().all(|rank| rank[idx].logits().is_empty()), "{what}");
        }
    }
}

#[test]
fn a_new_group_takes_the_place_of_the_old_one_and_changes_no_bit() {
    let golden = Golden::read();
    let name = "qwen3-mixed-f32";
    let ways = vec![Way::Kernels];
    let job = Job {
        cases: vec![name.to_owned()],
        ways,
        num_epochs: 3,
        num_tokens: 8,
        follows: false,
        num_layers: None,
    };
    let alone = generate(&load(golden.case(name), &Way::Kernels.single()), &golden.prompt, 8);
    for generated in run_ranks(&tensor(&[2, 1, 1]), &job) {
        assert_eq!(generated.len(), 3);
        assert!(generated.iter().all(|epoch| *epoch == generated[0]));
        assert_eq!(generated[0].tokens, alone.0);
    }
}

#[test]
fn a_cached_prompt_is_the_prompt_in_one_piece() {
    for_each_comparable_model(|prompt, case, way, model| {
        let whole = extend(model, &mut model.new_cache(), prompt);
        // MLX's operations decode single tokens in other tests.
        let num_smallest = usize::from(matches!(way, Way::Stock));
        for chunk_tokens in &[1, 7, 16, 39][num_smallest..] {
            let mut cache = model.new_cache();
            let chunks = prompt.chunks(*chunk_tokens);
            let found: Logits = chunks.flat_map(|chunk| extend(model, &mut cache, chunk)).collect();
            assert_same(way, case, &found, &whole, &format!("chunks of {chunk_tokens}"));
            assert_eq!(cache.len(), prompt.len());
        }
    });
}

#[test]
fn a_chunk_without_logits_is_cached_all_the_same() {
    for_each_comparable_model(|prompt, case, way, model| {
        let (first, last) = prompt.split_at(prompt.len() - 1);
        let whole = extend(model, &mut model.new_cache(), prompt);
        let mut cache = model.new_cache();
        let rows = vec![Span { start_idx: 0, len: first.len() }];
        let batch = Batch { tokens: first, rows, logits_at: vec![] };
        assert!(step(model, &batch, &mut [&mut cache]).is_empty());
        let found = extend(model, &mut cache, last);
        assert_same(way, case, &found, &whole[first.len()..].to_vec(), "after a silent chunk");
    });
}

/// Returns the position of a prompt that stands for this one of 40 tokens.
fn at(prompt: &[u32], position: usize) -> usize {
    position * prompt.len() / 40
}

/// Sequences of a batch: how much of a prompt of 40 tokens each has cached, and how much of it comes next.
/// Of shorter prompts it is less in proportion, and at least a token.
const MIXED_BATCH: [(usize, usize); 8] =
    [(0, 40), (10, 1), (39, 1), (0, 1), (20, 13), (5, 35), (17, 1), (3, 20)];

#[test]
fn a_sequence_alone_is_the_sequence_in_a_batch_of_eight() {
    for_each_model(|prompt, case, way, model| {
        // Each sequence has its own tokens: the prompt, rotated.
        let tokens = |idx: usize| {
            let mut tokens = prompt.to_vec();
            tokens.rotate_left(idx * 5 % prompt.len());
            tokens
        };
        let mut batch_tokens = Vec::new();
        let (mut rows, mut alone, mut caches) = (Vec::new(), Vec::new(), Vec::new());
        for (idx, (cached, len)) in MIXED_BATCH.into_iter().enumerate() {
            let (cached, end) = (at(prompt, cached), at(prompt, cached + len));
            let len = (end - cached).max(1);
            let tokens = tokens(idx);
            let mut cache = model.new_cache();
            if 0 < cached {
                extend(model, &mut cache, &tokens[..cached]);
                cache.keep();
            }
            let next = &tokens[cached..cached + len];
            rows.push(Span { start_idx: batch_tokens.len(), len });
            batch_tokens.extend_from_slice(next);
            alone.extend(extend(model, &mut cache.fork(cached, 0).unwrap(), next));
            caches.push(cache);
        }
        let logits_at = (0..batch_tokens.len()).collect();
        let batch = Batch { tokens: &batch_tokens, rows, logits_at };
        let together = step(model, &batch, &mut caches.iter_mut().collect::<Vec<_>>());
        assert_same(way, case, &together, &alone, "in a batch of eight");
    });
}

#[test]
fn logits_are_those_of_the_rows_asked_for() {
    for_each_comparable_model(|prompt, case, way, model| {
        let all = extend(model, &mut model.new_cache(), prompt);
        let last = prompt.len() - 1;
        for logits_at in [vec![3], vec![last], vec![0, 1, 2], vec![4, last / 2, last]] {
            let rows = vec![Span { start_idx: 0, len: prompt.len() }];
            let batch = Batch { tokens: prompt, rows, logits_at: logits_at.clone() };
            let found = step(model, &batch, &mut [&mut model.new_cache()]);
            let expected = logits_at.iter().map(|&idx| all[idx].clone()).collect();
            assert_same(way, case, &found, &expected, &format!("rows {logits_at:?}"));
        }
    });
}

#[test]
fn a_fork_and_a_shortened_cache_go_on_like_the_sequence_they_hold() {
    for_each_comparable_model(|prompt, case, way, model| {
        let split_at = at(prompt, 23);
        let (prefix, rest) = prompt.split_at(split_at);
        let other: Vec<u32> = rest.iter().rev().copied().collect();
        let fresh = |tokens: &[u32]| {
            let mut cache = model.new_cache();
            extend(model, &mut cache, prefix);
            extend(model, &mut cache, tokens)
        };
        let (expected, expected_other) = (fresh(rest), fresh(&other));
        let mut source = model.new_cache();
        extend(model, &mut source, prefix);
        source.keep();
        extend(model, &mut source, rest);
        let mut fork = source.fork(split_at, 0).unwrap();
        assert_eq!((fork.len(), source.len()), (split_at, prompt.len()));
        // The fork first, with other tokens, then the source from the same place.
        assert_same(way, case, &extend(model, &mut fork, &other), &expected_other, "a fork");
        source.truncate(split_at);
        assert_same(way, case, &extend(model, &mut source, rest), &expected, "the source");
        fork.truncate(0);
        let whole = extend(model, &mut model.new_cache(), &other);
        assert_same(way, case, &extend(model, &mut fork, &other), &whole, "an emptied fork");
    });
}

#[test]
fn a_cache_with_states_is_cut_and_forked_only_where_it_keeps_them() {
    let golden = Golden::read();
    for name in STATE_CASES {
        let case = golden.case(name);
        for way in Way::BOTH {
            let model = load(case, &way.single());
            let last = |cache: &mut SequenceCache, tokens: &[u32]| {
                vec![extend(&model, cache, tokens).pop().unwrap()]
            };
            let fresh = |prefix: usize, rest: &[u32]| {
                last(&mut model.new_cache(), &[&golden.prompt[..prefix], rest].concat())
            };
            let check = |cache: &mut SequenceCache, rest: &[u32], what: &str| {
                let expected = fresh(cache.len(), rest);
                assert_same(way, case, &last(cache, rest), &expected, what);
            };
            let other: Vec<u32> = golden.prompt[..9].iter().rev().copied().collect();
            let mut cache = model.new_cache();
            for range in [0..10, 10..23, 23..40] {
                extend(&model, &mut cache, &golden.prompt[range]);
                cache.keep();
            }
            assert_eq!(cache.kept(), [10, 23, 40]);
            let can_cut: Vec<usize> = (0..50).filter(|&len| cache.can_cut(len)).collect();
            assert_eq!(can_cut, [0, 10, 23, 40]);
            cache.forget(40);
            cache.forget(11);
            assert_eq!((cache.kept(), cache.can_cut(40)), (&[10, 23][..], true));
            let (mut at_end, mut kept) = (cache.fork(40, 0).unwrap(), cache.fork(23, 0).unwrap());
            assert_eq!((at_end.kept(), kept.kept()), (&[][..], &[23][..]));
            check(&mut at_end, &other, "a fork at the end");
            check(&mut kept, &other, "a fork at a kept length");
            check(&mut cache, &golden.prompt[..5], "the source of forks");
            kept.truncate(23);
            check(&mut kept, &golden.prompt[..7], "a fork that was cut");
            cache.truncate(10);
            assert_eq!(cache.kept(), [10]);
            check(&mut cache, &other, "a cache that was cut");
            cache.truncate(10);
            cache.forget(10);
            check(&mut cache, &other[..4], "a cache that gave up its length");
            assert!(!cache.can_cut(10));
        }
    }
}

#[test]
fn caches_with_states_count_them() {
    let golden = Golden::read();
    for name in STATE_CASES {
        let model = load(golden.case(name), &Way::Kernels.single());
        let cost = model.facts().cache_cost;
        let bytes = |states: u64| {
            usize::try_from(256 * cost.bytes_per_held_token() + states * cost.state_bytes)
        };
        let mut cache = model.new_cache();
        assert_eq!(cache.bytes(), 0);
        extend(&model, &mut cache, &golden.prompt[..10]);
        cache.keep();
        assert_eq!(cache.bytes(), bytes(1).unwrap());
        extend(&model, &mut cache, &golden.prompt[10..]);
        assert_eq!(cache.bytes(), bytes(2).unwrap());
        cache.forget(10);
        assert_eq!(cache.bytes(), bytes(1).unwrap());
    }
}

#[test]
fn caches_grow_past_their_blocks_without_losing_a_key() {
    let golden = Golden::read();
    for name in ["mistral-f32", "qwen3-mxfp4-bf16", "deepseek_v3-f32"] {
        let case = golden.case(name);
        for way in Way::BOTH {
            let model = load(case, &way.single());
            let tokens: Vec<u32> = golden.prompt.iter().cycle().take(600).copied().collect();
            let mut cache = model.new_cache();
            let last = |model: &Model, cache: &mut SequenceCache, tokens: &[u32]| {
                extend(model, cache, tokens).pop().unwrap()
            };
            let whole = last(&model, &mut model.new_cache(), &tokens);
            let mut found = Vec::new();
            for chunk in tokens.chunks(170) {
                found = last(&model, &mut cache, chunk);
            }
            assert_same(way, case, &vec![found], &vec![whole], "600 tokens in chunks");
            let bytes_per_token =
                usize::try_from(model.facts().cache_cost.bytes_per_held_token()).unwrap();
            assert_eq!(cache.bytes(), 768 * bytes_per_token, "three blocks of 256 tokens");
        }
    }
}

#[test]
fn decoding_writes_into_the_cache_in_place() {
    let decoded: Vec<(String, [usize; 2])> =
        Alone::start("metamorphic::decoding_process").receive("decoded");
    for (name, [cache, extra]) in decoded {
        assert!(extra < cache / 16, "{name}: {extra} of {cache} bytes in a step");
    }
}

/// Measures, in a process of its own, what MLX's operations need for steps that do not grow the
/// cache. Not a test: without the mark there is nothing to do.
#[test]
fn decoding_process() {
    if !is_alone() {
        return;
    }
    let golden = Golden::read();
    // A capacity class, and blocks of windows.
    let decoded = ["qwen3-f32", "mistral-f32"].map(|name| {
        let model = load(golden.case(name), &Way::Stock.single());
        let tokens: Vec<u32> = golden.prompt.iter().cycle().take(1800).copied().collect();
        let mut cache = model.new_cache();
        for chunk in tokens.chunks(100) {
            extend(&model, &mut cache, chunk);
        }
        memory::reset_peak();
        let before = memory::active_bytes();
        for token in &tokens[..40] {
            extend(&model, &mut cache, &[*token]);
        }
        (name, [cache.bytes(), memory::peak_bytes().saturating_sub(before)])
    });
    say("decoded", &decoded);
}

#[test]
fn stages_read_each_layer_once_and_cache_their_own() {
    let golden = Golden::read();
    let stages = vec![2, 1, 2];
    let cases = golden.chosen(CASES).into_iter().map(|case| case.deepened(PIPELINE_LAYERS));
    for case in cases.filter(|case| keeps_caches_together(case, &stages)) {
        let facts = |split: &Split| -> Vec<ModelFacts> {
            let of_rank = |rank| load(&case, &Way::Kernels.alone(rank, split));
            (0..split.num_ranks()).map(|rank| of_rank(rank).facts().clone()).collect()
        };
        let alone = facts(&tensor(&[1])).remove(0);
        let stages = facts(&Split::Pipeline(stages.clone()));
        let layers: Vec<(u32, u32)> =
            stages.iter().map(|it| (it.layers.start, it.layers.end)).collect();
        assert_eq!(layers, [(3, 5), (2, 3), (0, 2)]);
        let kv: u64 = stages.iter().map(|it| it.cache_cost.bytes_per_held_token()).sum();
        assert_eq!(kv, alone.cache_cost.bytes_per_held_token());
        let states: u64 = stages.iter().map(|it| it.cache_cost.state_bytes).sum();
        assert_eq!(states, alone.cache_cost.state_bytes);
        let spec = model_spec(&case.config).unwrap();
        let is_uniform = spec.layers.iter().all(|it| it.cache == spec.layers[0].cache);
        if states == 0 && is_uniform {
            let bytes = |rank: usize| stages[rank].cache_cost.bytes_per_held_token();
            assert_eq!(bytes(0), 2 * bytes(1));
        }
        // The vocabulary is at both ends, and twice if they share one table.
        let vocab: Vec<bool> = stages.iter().map(|it| it.vocab.end != 0).collect();
        assert_eq!(vocab, [true, false, true]);
        // The last norm is everywhere, with what it reads of several streams.
        let vector = u64::from(alone.hidden_size) * alone.dtype.size_bytes() as u64;
        let is_norm = |name: &&String| {
            [".norm_f.", "model.norm.", "model.final_layernorm.", "output_attn_res_"]
                .iter()
                .any(|it| name.contains(it))
                || name.as_str() == "norm.weight"
        };
        let norm = case.tensors.keys().filter(is_norm).count() as u64 * vector;
        let read: u64 = stages.iter().map(|it| it.bytes_read).sum();
        let tables = read - alone.bytes_read - 2 * norm;
        let is_head = |name: &String| {
            name.ends_with("lm_head.weight") || ["output.weight", "head.weight"].contains(&&**name)
        };
        let is_tied = !case.tensors.keys().any(is_head);
        assert_eq!(0 < tables, is_tied, "{}: {tables} bytes twice", case.name);
    }
}

#[test]
fn a_pipeline_keeps_a_layer_with_the_one_whose_cache_it_reads() {
    let golden = Golden::read();
    let case = golden.case("gemma4_text-shared-f32");
    assert_eq!(source_layers(case), [None, None, None, Some(2), Some(1)]);
    let load = |rank, layers: &[u32]| {
        let parallel = Way::Kernels.alone(rank, &Split::Pipeline(layers.to_vec()));
        Model::load(case.write().dir(), &parallel, &mut |_| {})
    };
    let bytes = |model: Model| model.facts().cache_cost.bytes_per_held_token();
    let stages = [0, 1].map(|rank| bytes(load(rank, &[4, 1]).unwrap()));
    // Windows have 2 heads of 24 elements, the layer between them 2 of 40.
    assert_eq!(stages, [(2 * 2 * 24 + 2 * 2 * 40) * 4, 2 * 2 * 24 * 4]);
    for layers in [vec![3, 2], vec![2, 3], vec![1, 4], vec![1, 3, 1]] {
        let err = load(0, &layers).unwrap_err().to_string();
        assert!(err.contains("reads the keys and values of layer"), "{err}");
        assert!(err.contains("\nhint: "), "{err}");
    }
}

#[test]
fn a_pipeline_of_another_number_of_layers_is_refused() {
    let golden = Golden::read();
    let checkpoint = golden.case("qwen3-mixed-f32").write();
    for layers in [vec![1, 2], vec![1], vec![1, 1, 1]] {
        let parallel = Way::Kernels.alone(0, &Split::Pipeline(layers));
        let err = Model::load(checkpoint.dir(), &parallel, &mut |_| {}).unwrap_err().to_string();
        assert!(err.contains("the model has 2\nhint: "), "{err}");
    }
}

#[test]
fn ranks_together_read_no_more_than_one_alone_and_what_all_need() {
    let golden = Golden::read();
    for case in &golden.cases {
        let alone = facts_of_ranks(case, &tensor(&[1])).remove(0);
        for shares in [vec![1, 1], vec![3, 1], vec![1, 1, 1, 1]] {
            let ranks = facts_of_ranks(case, &tensor(&shares));
            let read: u64 = ranks.iter().map(|facts| facts.bytes_read).sum();
            let shared: u64 = ranks.iter().map(|facts| facts.replicated_bytes).sum();
            assert!(read <= alone.bytes_read + shared, "{} on {shares:?}", case.name);
            let own: u64 =
                ranks.iter().map(|facts| facts.bytes_read - facts.replicated_bytes).sum();
            assert!(own <= alone.bytes_read - alone.replicated_bytes, "{}", case.name);
            let largest = ranks.iter().map(|facts| facts.bytes_read).max().unwrap();
            let is_divided = largest < alone.bytes_read;
            assert!(is_divided, "{}: a rank of {shares:?} reads everything", case.name);
        }
    }
}
