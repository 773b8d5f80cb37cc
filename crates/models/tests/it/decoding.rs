//! Sequences that decode together, join, pause, outgrow the room that they were given, and leave.

use std::collections::HashSet;

use jackalope_models::{Batch, Model, SequenceCache, Span};

use crate::metamorphic::assert_same;
use crate::ranks::{Way, load};
use crate::recipe::{Case, Golden};
use crate::run::{Logits, argmax, difference, extend, step};

/// Cases with attention to all positions, windows, chunks, sinks, latents, states, pools that layers share,
/// tokens that name experts, and n-grams.
pub(crate) const CASES: &[&str] = &[
    "qwen3-f32",
    "mistral-f32",
    "llama4-f32",
    "gpt_oss-f32",
    "deepseek_v3-f32",
    "qwen3_next-f32",
    "glm5_next-f32",
    "deepseek_v4-f32",
    "deepseek_v41-f32",
    "minimax_m3-f32",
    "qwen4_exp-f32",
];

/// What a sequence computes in a step: its number, and how many of its tokens.
type Turn = (usize, usize);

/// The steps. The first sequence passes its 256th token, with which it outgrows a block; the second
/// one leaves after the sixth step; others pause, come in another order, and start in between.
const STEPS: &[&[Turn]] = &[
    &[(0, 252), (1, 40), (2, 7)],
    &[(0, 1), (1, 1), (2, 1)],
    &[(2, 1), (0, 1)],
    &[(1, 1)],
    &[(3, 1)],
    &[(3, 1), (0, 1), (1, 1), (2, 1)],
    &[(0, 1), (4, 5), (3, 1)],
    &[(4, 1), (2, 1), (0, 1), (3, 1)],
    &[(2, 1)],
    &[(0, 3), (2, 1), (4, 1)],
    &[(3, 1), (4, 1), (2, 1), (0, 1)],
];

/// Step after which the second sequence is gone.
const LEAVES_AFTER: usize = 5;

/// A sequence under way.
struct Sequence {
    tokens: Vec<u32>,
    cache: Option<SequenceCache>,
    num_computed: usize,
    logits: Logits,
}

impl Sequence {
    fn new(model: &Model, prompt: &[u32], number: usize) -> Sequence {
        // In another order after the first time, or indexers would find several positions equally good.
        let place = |idx: usize| idx + idx / prompt.len() * (idx * idx % 37);
        let first = number * 5;
        let tokens = (first..first + 300).map(|idx| prompt[place(idx) % prompt.len()]).collect();
        let cache = Some(model.new_cache());
        Sequence { tokens, cache, num_computed: 0, logits: Logits::new() }
    }
}

/// Computes one step of several sequences together.
fn take_turns(model: &Model, sequences: &mut [Sequence], turns: &[Turn]) {
    let (mut tokens, mut rows, mut caches) = (Vec::new(), Vec::new(), Vec::new());
    for &(number, len) in turns {
        let sequence = &mut sequences[number];
        rows.push(Span { start_idx: tokens.len(), len });
        tokens.extend(&sequence.tokens[sequence.num_computed..][..len]);
        sequence.num_computed += len;
        caches.push(sequence.cache.take().unwrap());
    }
    let logits_at = (0..tokens.len()).collect();
    let batch = Batch { tokens: &tokens, rows: rows.clone(), logits_at };
    let logits = step(model, &batch, &mut caches.iter_mut().collect::<Vec<_>>());
    for ((&(number, _), span), cache) in turns.iter().zip(rows).zip(caches) {
        let own = &logits[span.start_idx..span.start_idx + span.len];
        sequences[number].logits.extend_from_slice(own);
        sequences[number].cache = Some(cache);
    }
}

#[test]
fn sequences_that_join_pause_grow_and_leave_decode_like_each_alone() {
    let golden = Golden::read();
    for case in golden.chosen(CASES) {
        for way in Way::BOTH {
            let model = load(case, &way.single());
            let new = |number| Sequence::new(&model, &golden.prompt, number);
            let mut sequences: Vec<Sequence> = (0..5).map(new).collect();
            for (step_idx, turns) in STEPS.iter().enumerate() {
                take_turns(&model, &mut sequences, turns);
                if step_idx == LEAVES_AFTER {
                    sequences[1].cache = None;
                }
            }
            for (number, sequence) in sequences.iter().enumerate() {
                let tokens = &sequence.tokens[..sequence.num_computed];
                let alone = extend(&model, &mut model.new_cache(), tokens);
                assert_same(way, case, &sequence.logits, &alone, &format!("sequence {number}"));
            }
        }
    }
}

/// Number of sequences in the batches of each family. [`CASES`], and those that `JACKALOPE_GOLDEN` selects,
/// have [`MANY_SEQUENCES`].
const SEQUENCES: usize = 8;
const MANY_SEQUENCES: usize = 64;

/// Steps in which sequences join; each decodes this number of tokens.
const JOINING_STEPS: usize = 4;
const DECODED_TOKENS: usize = 5;

/// Largest difference of MLX's operations from our kernels in single precision, of the largest logit.
const KERNELS_TOLERANCE: f32 = 1e-4;

/// Distance of the best two logits at which another best token is an error.
const MARGIN: f32 = 1e-4;

/// Returns the distance of the best two logits.
fn margin(logits: &[f32]) -> f32 {
    let mut sorted = logits.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    sorted[0] - sorted[1]
}

/// Returns the first case in single precision of each family.
pub(crate) fn one_of_each_family(golden: &Golden) -> Vec<&Case> {
    let mut families = HashSet::new();
    let cases = golden.cases.iter().filter(|case| case.dtype == "F32");
    cases.filter(|case| families.insert(case.family())).collect()
}

#[test]
fn every_familys_batches_with_joins_and_leaves_compute_what_the_kernels_do_alone() {
    let golden = Golden::read();
    let large =
        if golden.is_restricted() { one_of_each_family(&golden) } else { golden.chosen(CASES) };
    let is_large = |case: &&Case| large.iter().any(|it| it.family() == case.family());
    let mut small = one_of_each_family(&golden);
    small.retain(|case| !is_large(case));
    let large = large.iter().map(|case| (*case, MANY_SEQUENCES));
    for (case, num) in large.chain(small.into_iter().map(|case| (case, SEQUENCES))) {
        let model = load(case, &Way::Stock.single());
        let new = |number| Sequence::new(&model, &golden.prompt, number);
        let mut sequences: Vec<Sequence> = (0..num).map(new).collect();
        let joins = |number: usize| number % JOINING_STEPS;
        for step in 0..JOINING_STEPS + DECODED_TOKENS {
            let is_open =
                |number: &usize| (joins(*number)..=joins(*number) + DECODED_TOKENS).contains(&step);
            let len = |number| if step == joins(number) { 2 + number % 3 } else { 1 };
            let mut turns: Vec<Turn> =
                (0..num).filter(is_open).map(|number| (number, len(number))).collect();
            // The order changes from step to step.
            let first = step % turns.len();
            turns.rotate_left(first);
            take_turns(&model, &mut sequences, &turns);
            for (number, sequence) in sequences.iter_mut().enumerate() {
                if step == joins(number) + DECODED_TOKENS {
                    sequence.cache = None;
                }
            }
        }
        let kernels = load(case, &Way::Kernels.single());
        for (number, sequence) in sequences.iter().enumerate() {
            let tokens = &sequence.tokens[..sequence.num_computed];
            let alone = extend(&kernels, &mut kernels.new_cache(), tokens);
            for (row, (found, expected)) in sequence.logits.iter().zip(&alone).enumerate() {
                let worst = difference(found, expected);
                let what = format!("{}: row {row} of sequence {number}", case.name);
                assert!(worst <= KERNELS_TOLERANCE, "{what} differs by {worst:.1e}");
                let is_same = argmax(found) == argmax(expected);
                assert!(is_same || margin(expected) < MARGIN, "{what} has another best token");
            }
        }
    }
}
