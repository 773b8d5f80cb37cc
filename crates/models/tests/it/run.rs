//! Running a model in the few ways that the tests need.

use jackalope_mlx::{Array, eval};
use jackalope_models::{Batch, Model, SequenceCache, Span};

/// Output of a model: f32 logits, one row per requested token.
pub(crate) type Logits = Vec<Vec<f32>>;

/// Computes `tokens` after those in the cache; returns the logits of all of them.
pub(crate) fn extend(model: &Model, cache: &mut SequenceCache, tokens: &[u32]) -> Logits {
    let rows = vec![Span { start_idx: 0, len: tokens.len() }];
    step(model, &Batch { tokens, rows, logits_at: (0..tokens.len()).collect() }, &mut [cache])
}

/// One step: evaluates logits and caches. There are no logits where the last layer is not.
pub(crate) fn step(model: &Model, batch: &Batch<'_>, caches: &mut [&mut SequenceCache]) -> Logits {
    if !model.has_last_layer() {
        let sent = model.hidden(batch, caches);
        let mut arrays: Vec<Array> = caches.iter().flat_map(|cache| cache.arrays()).collect();
        arrays.push(sent);
        eval(&arrays.iter().collect::<Vec<_>>()).unwrap();
        return Logits::new();
    }
    let logits = model.forward(batch, caches);
    let mut arrays: Vec<Array> = caches.iter().flat_map(|cache| cache.arrays()).collect();
    arrays.push(logits.clone());
    eval(&arrays.iter().collect::<Vec<_>>()).unwrap();
    let vocab = model.facts().vocab_size as usize;
    logits.to_vec::<f32>().unwrap().chunks(vocab).map(<[f32]>::to_vec).collect()
}

/// The prompt in one piece and greedy tokens one by one, with the logits of every step: first all
/// of the prompt's rows, then one per token but the last.
pub(crate) fn generate(model: &Model, prompt: &[u32], num_tokens: usize) -> (Vec<u32>, Logits) {
    let mut cache = model.new_cache();
    let mut logits = extend(model, &mut cache, prompt);
    let mut tokens = vec![argmax(&logits[logits.len() - 1])];
    while tokens.len() < num_tokens {
        logits.extend(extend(model, &mut cache, &tokens[tokens.len() - 1..]));
        tokens.push(argmax(&logits[logits.len() - 1]));
    }
    (tokens, logits)
}

/// Known tokens: all but the last `num_single` in one piece, then these one by one. All logits.
pub(crate) fn follow(model: &Model, tokens: &[u32], num_single: usize) -> Logits {
    let mut cache = model.new_cache();
    let (piece, single) = tokens.split_at(tokens.len() - num_single);
    let mut logits = extend(model, &mut cache, piece);
    for token in single.chunks(1) {
        logits.extend(extend(model, &mut cache, token));
    }
    logits
}

/// Returns the index of the largest logit, the first one of equals.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let order = |&a: &usize, &b: &usize| logits[a].total_cmp(&logits[b]).then(b.cmp(&a));
    u32::try_from((0..logits.len()).max_by(order).unwrap()).unwrap()
}

/// Returns the largest difference, relative to the largest expected logit.
pub(crate) fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    let pairs = found.iter().zip(expected);
    pairs.fold(0.0_f32, |max, (found, expected)| max.max((found - expected).abs())) / largest
}
