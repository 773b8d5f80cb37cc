//! Layers that see only the last positions hold only the blocks that these are in, and answer as if they held
//! all.

use std::ops::Range;

use jackalope_models::{Batch, Model, SequenceCache, Span};
use jackalope_protocol::window_blocks;

use crate::golden::tolerance;
use crate::metamorphic::{CASES, assert_close, assert_same};
use crate::ranks::{Way, load};
use crate::recipe::{Case, Golden, Tensor};
use crate::run::{Logits, extend, step};

/// Windows of attention, chunks, sinks, layers that read what others keep, and pools.
const BATCHED: &[&str] = &[
    "mistral-f32",
    "llama4-f32",
    "gpt_oss-f32",
    "gemma3n-f32",
    "gemma4_text-shared-f32",
    "glm5_next-f32",
    "deepseek_v4-f32",
    "qwen4_exp-f32",
];

const BLOCK_TOKENS: usize = 256;

/// The embeddings of tokens.
const TABLE: &str = "embed_tokens.weight";

/// Returns the number of the first block that a row at `num_tokens` reads.
fn first_read(model: &Model, num_tokens: usize) -> usize {
    let window_tokens = model.facts().cache_cost.window_tokens as usize;
    window_blocks(window_tokens, BLOCK_TOKENS, num_tokens).start
}

/// Returns some tokens of an endless text.
fn tokens(prompt: &[u32], numbers: Range<usize>) -> Vec<u32> {
    // In another order after the first time, or indexers would find several positions equally good.
    let place = |idx: usize| idx + idx / prompt.len() * (idx * idx % 37);
    numbers.map(|idx| prompt[place(idx) % prompt.len()]).collect()
}

/// Returns the number of blocks that the sequences of a model hold, with MLX's operations.
fn num_held(model: &Model) -> usize {
    model.new_cache().slots().borrow().blocks.num_held()
}

#[test]
fn windows_answer_the_same_without_what_they_have_passed() {
    let golden = Golden::read();
    let mut num_checked = 0;
    let kernels = golden.chosen(CASES).into_iter().map(|case| (case, Way::Kernels));
    let stock = golden.chosen(BATCHED).into_iter().map(|case| (case, Way::Stock));
    for (case, way) in kernels.chain(stock) {
        let model = load(case, &way.single());
        if 0 < model.facts().cache_cost.window_tokens {
            num_checked += 1;
            check_alone(&golden, case, way, &model);
        }
    }
    assert!(golden.is_restricted() || 7 < num_checked, "{num_checked} models have windows");
}

fn check_alone(golden: &Golden, case: &Case, way: Way, model: &Model) {
    let cost = model.facts().cache_cost;
    let tokens = tokens(&golden.prompt, 0..384);
    let whole = extend(model, &mut model.new_cache(), &tokens);
    let mut cache = model.new_cache();
    let mut found = Logits::new();
    let (tokens_kept, tokens_after) = tokens.split_at(374);
    for chunk in tokens_kept.chunks(90).chain([tokens_after]) {
        let first = first_read(model, cache.len());
        cache.free_windows(first.saturating_sub(1)..first).unwrap();
        cache.keep();
        found.extend(extend(model, &mut cache, chunk));
    }
    let (window, all) = (cost.window_bytes_per_token, cost.bytes_per_held_token());
    let num_freed = first_read(model, 374);
    (0..374).for_each(|len| cache.forget(len));
    let state_bytes = 2 * cost.state_bytes; // at 374 and at the end
    assert!(0 < num_freed, "{}: a window of {}", case.name, cost.window_tokens);
    let freed_bytes = (BLOCK_TOKENS * num_freed) as u64 * window;
    assert_eq!(cache.bytes() as u64, 512 * all + state_bytes - freed_bytes, "{}", case.name);
    assert!(cache.can_cut(374) && !cache.can_cut(100), "{}", case.name);
    let mut fork = cache.fork(374, first_read(model, 374)).unwrap();
    found.truncate(374);
    found.extend(extend(model, &mut fork, tokens_after));
    assert_same(way, case, &found, &whole, "what windows have passed is free");
}

/// A sequence of a batch, and the logits of its decoded tokens.
struct Sequence {
    tokens: Vec<u32>,
    cache: SequenceCache,
    num_computed: usize,
    /// Length at the first decoded token.
    prompt_len: usize,
    logits: Logits,
}

impl Sequence {
    /// Reads a prompt in pieces, and frees what its window has passed after each.
    fn new(model: &Model, prompt: &[u32], [seed, prompt_len]: [usize; 2]) -> Sequence {
        let tokens = tokens(prompt, seed * 5..seed * 5 + prompt_len + 80);
        let (cache, logits) = (model.new_cache(), Logits::new());
        let mut new = Sequence { tokens, cache, num_computed: 0, prompt_len, logits };
        while new.num_computed < prompt_len {
            let end = prompt_len.min(new.num_computed + 170);
            extend(model, &mut new.cache, &new.tokens[new.num_computed..end]);
            new.num_computed = end;
            new.free(model);
        }
        new
    }

    /// Forks the sequence at `len`, or at its end if it cannot be cut there, and continues with
    /// other tokens.
    fn fork(&self, model: &Model, len: usize) -> Sequence {
        let len = if self.cache.can_cut(len) { len } else { self.num_computed };
        let mut tokens = self.tokens.clone();
        tokens[len..].reverse();
        let cache = self.cache.fork(len, first_read(model, len)).unwrap();
        Sequence { tokens, cache, num_computed: len, prompt_len: len, logits: Logits::new() }
    }

    fn free(&mut self, model: &Model) {
        self.cache.free_windows(0..first_read(model, self.num_computed)).unwrap();
    }

    fn num_blocks(&self, model: &Model) -> usize {
        self.num_computed.div_ceil(BLOCK_TOKENS) - first_read(model, self.num_computed)
    }
}

/// Decodes one token of each sequence in one step.
fn decode(model: &Model, sequences: &mut [&mut Sequence]) {
    let tokens: Vec<u32> = sequences.iter().map(|it| it.tokens[it.num_computed]).collect();
    let num = tokens.len();
    let rows = (0..num).map(|start_idx| Span { start_idx, len: 1 }).collect();
    let batch = Batch { tokens: &tokens, rows, logits_at: (0..num).collect() };
    let mut caches: Vec<_> = sequences.iter_mut().map(|it| &mut it.cache).collect();
    let logits = step(model, &batch, &mut caches);
    for (sequence, logits) in sequences.iter_mut().zip(logits) {
        sequence.logits.push(logits);
        sequence.num_computed += 1;
        sequence.free(model);
    }
}

#[test]
fn batches_of_all_lengths_hold_only_the_blocks_of_their_windows() {
    let golden = Golden::read();
    for case in golden.chosen(BATCHED) {
        let model = load(case, &Way::Stock.single());
        let new = |numbers| Sequence::new(&model, &golden.prompt, numbers);
        // The first passes a block while it decodes, the last is shorter than any window.
        let mut sequences = Vec::from([[0, 505], [1, 255], [2, 244], [3, 2]].map(new));
        let held = |sequences: &[Sequence]| -> usize {
            sequences.iter().map(|it| it.num_blocks(&model)).sum()
        };
        let turn = |sequences: &mut Vec<Sequence>, count: usize| {
            for nth in 0..count {
                let mut turn: Vec<&mut Sequence> = sequences.iter_mut().collect();
                let first = nth % turn.len();
                turn.rotate_left(first);
                decode(&model, &mut turn);
            }
        };
        turn(&mut sequences, 12);
        assert_eq!(num_held(&model), held(&sequences), "{}", case.name);
        // Two copies, one of an earlier length; they share blocks until they go on.
        let forks = [sequences[0].fork(&model, 510), sequences[2].fork(&model, 256)];
        assert_eq!(num_held(&model), held(&sequences), "{}: blocks are shared", case.name);
        sequences.extend(forks);
        drop(sequences.remove(1));
        turn(&mut sequences, 12);
        sequences.push(new([4, 300]));
        turn(&mut sequences, 12);
        assert_eq!(num_held(&model), held(&sequences), "{}", case.name);
        let kernels = load(case, &Way::Kernels.single());
        for (idx, sequence) in sequences.iter().enumerate() {
            let known = &sequence.tokens[..sequence.num_computed];
            let mut alone = extend(&kernels, &mut kernels.new_cache(), known);
            let alone = alone.split_off(sequence.prompt_len);
            let what = format!("{}: sequence {idx}", case.name);
            assert_close(&sequence.logits, &alone, tolerance(case, Way::Stock), &what);
        }
    }
}

/// Whether [`with_broken_token`] can break a token.
fn has_f32_table(case: &Case) -> bool {
    let mut tables = case.tensors.iter().filter(|(name, _)| name.ends_with(TABLE));
    tables.all(|(_, recipe)| recipe.as_str().unwrap().starts_with("F32 "))
}

/// Returns a model whose embedding of this token is NaN.
fn with_broken_token(case: &Case, token: u32) -> Model {
    let tensors = case.tensors.keys().map(|name| {
        let mut tensor: Tensor = case.tensor(name);
        if name.ends_with(TABLE) {
            let width = tensor.shape[1] as usize * size_of::<f32>();
            let row = &mut tensor.bytes[token as usize * width..][..width];
            row.chunks_mut(4).for_each(|value| value.copy_from_slice(&f32::NAN.to_le_bytes()));
        }
        (name.clone(), tensor)
    });
    let checkpoint = case.write_tensors(tensors);
    Model::load(checkpoint.dir(), &Way::Stock.single(), &mut |_| {}).unwrap()
}

#[test]
fn a_sequence_finds_nothing_of_those_that_had_its_blocks() {
    const BROKEN: u32 = 3;
    let golden = Golden::read();
    for case in golden.chosen(BATCHED).into_iter().filter(|case| has_f32_table(case)) {
        let model = with_broken_token(case, BROKEN);
        let prompt: Vec<u32> = golden.prompt.iter().copied().filter(|it| *it != BROKEN).collect();
        let new = |numbers| Sequence::new(&model, &prompt, numbers);
        let mut broken =
            [[1, 30], [0, 600]].map(|numbers| Sequence::new(&model, &[BROKEN], numbers));
        let [first, second] = &mut broken;
        decode(&model, &mut [first, second]);
        assert!(broken[0].logits[0].iter().any(|logit| logit.is_nan()), "{}", case.name);
        // The one in the first block stays in the batch, the other gives its blocks back.
        let mut sequences = Vec::from(broken);
        sequences.truncate(1);
        sequences.extend([[0, 300], [1, 2], [2, 70]].map(new));
        for _ in 0..3 {
            decode(&model, &mut sequences.iter_mut().collect::<Vec<_>>());
        }
        for sequence in &sequences[1..] {
            for logits in &sequence.logits {
                // An embedding that is also the head has one NaN logit.
                let num_broken = logits.iter().filter(|logit| logit.is_nan()).count();
                assert!(num_broken <= 1, "{}: {num_broken} logits are NaN", case.name);
            }
        }
    }
}
