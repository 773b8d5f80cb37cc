//! Samples the next token from one row of logits. Pure: the result depends only on the logits, the
//! tokens before it and `(seed, position)`, never on other sequences or on earlier samples.
//!
//! A mask comes before everything else: a masked token is never sampled, whatever bias, penalties
//! or filters say, and the filters choose among the tokens that the mask allows. Log-probabilities
//! are those of the model's own distribution, before the mask.
//!
//! Order and meaning follow mlx-lm 0.32.2 (`sample_utils.py`): bias, repetition, presence and
//! frequency change the logits; top-p, min-p and top-k choose among the tokens of the distribution
//! at temperature 1; temperature applies to the sampling among those. Presence and frequency
//! penalties count only the output, as OpenAI documents them.

use std::collections::HashMap;

use jackalope_kernels::logits;
use jackalope_protocol::{Logprob, RowMask, Sampling, TokenId};

/// Width of one step of the search for candidates, in natural-logarithm units of probability.
const CANDIDATE_STEP: f32 = 6.0;

/// Samples a token. `logits` is `[vocab]`, `history` every token of the sequence so far; the
/// sampled token's position is `history.len()`.
pub(crate) fn sample(logits: &[f32], history: &[TokenId], sampling: &Sampling) -> TokenId {
    assert!(!logits.is_empty(), "a vocabulary has tokens");
    let mut logits = std::borrow::Cow::Borrowed(logits);
    if changes_logits(sampling) {
        process(logits.to_mut(), history, sampling);
    }
    if sampling.mask != RowMask::All {
        // Applied last, so that nothing makes a masked token possible again.
        sampling.mask.apply(logits.to_mut(), f32::NEG_INFINITY);
    }
    let best = logits::argmax(&logits);
    if logits[best] == f32::NEG_INFINITY {
        return first_allowed(&logits, &sampling.mask);
    }
    if sampling.temperature == 0.0 {
        return token_id(best);
    }
    let candidates = candidates(&logits, sampling);
    let position = history.len() as u64;
    pick(&candidates, sampling.temperature, uniform(sampling.seed, position))
}

/// Returns the log-probabilities of `token` and of the `num_top` most likely tokens in the
/// unchanged distribution.
pub(crate) fn logprob(logits: &[f32], token: TokenId, num_top: u8) -> Logprob {
    let log_total = log_sum_exp(logits);
    let mut best: Vec<(TokenId, f32)> = Vec::with_capacity(usize::from(num_top) + 1);
    for (idx, &logit) in logits.iter().enumerate() {
        let worst = best.last().map_or(f32::NEG_INFINITY, |it| it.1);
        if best.len() < usize::from(num_top) || logit > worst {
            let at = best.partition_point(|it| it.1 >= logit);
            best.insert(at, (token_id(idx), logit));
            best.truncate(usize::from(num_top));
        }
    }
    for entry in &mut best {
        entry.1 -= log_total;
    }
    let own = logits.get(token as usize).map_or(f32::NEG_INFINITY, |logit| logit - log_total);
    Logprob { logprob: own, top: best }
}

/// Returns a token to sample if no allowed token has a probability above zero.
fn first_allowed(logits: &[f32], mask: &RowMask) -> TokenId {
    let mut tokens = (0..logits.len()).map(token_id);
    tokens.find(|token| mask.allows(*token)).unwrap_or_default()
}

fn changes_logits(sampling: &Sampling) -> bool {
    !sampling.logit_bias.is_empty()
        || sampling.repetition_penalty != 1.0
        || sampling.presence_penalty != 0.0
        || sampling.frequency_penalty != 0.0
}

/// Applies bias and penalties, in mlx-lm's order.
fn process(logits: &mut [f32], history: &[TokenId], sampling: &Sampling) {
    for &(token, bias) in &sampling.logit_bias {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit += bias;
        }
    }
    if sampling.repetition_penalty != 1.0 {
        for token in counts(repetition_context(history, sampling)).into_keys() {
            if let Some(logit) = logits.get_mut(token as usize) {
                let penalty = sampling.repetition_penalty;
                *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
            }
        }
    }
    let output = history.get(sampling.num_prompt_tokens as usize..).unwrap_or_default();
    if sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0 {
        for (token, count) in counts(output) {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit -= sampling.presence_penalty + sampling.frequency_penalty * count as f32;
            }
        }
    }
}

/// Returns the tokens that the repetition penalty considers.
pub(crate) fn repetition_context<'a>(history: &'a [TokenId], sampling: &Sampling) -> &'a [TokenId] {
    match sampling.repetition_context as usize {
        0 => history,
        context => &history[history.len().saturating_sub(context)..],
    }
}

/// Returns how often each token occurs.
pub(crate) fn counts(tokens: &[TokenId]) -> HashMap<TokenId, u32> {
    let mut counts = HashMap::new();
    for &token in tokens {
        *counts.entry(token).or_insert(0) += 1;
    }
    counts
}

/// Returns the tokens that may be sampled with their log-probabilities, best first; never empty.
///
/// Sorting a whole vocabulary costs milliseconds, so only tokens near the best one are sorted; the
/// range grows until it holds the probability mass that `top_p` asks for.
pub(crate) fn candidates(logits: &[f32], sampling: &Sampling) -> Vec<(TokenId, f32)> {
    let filters_mass = sampling.top_p < 1.0;
    let filters_count = 0 < sampling.top_k && (sampling.top_k as usize) < logits.len();
    let best = logits[logits::argmax(logits)];
    // Without `top_p` only differences count.
    let log_total = if filters_mass { log_sum_exp(logits) } else { best };
    let floor = match sampling.min_p {
        0.0 => f32::NEG_INFINITY,
        min_p => best + min_p.ln(),
    };
    let mut kept;
    let mut width = CANDIDATE_STEP;
    loop {
        let threshold =
            if filters_mass || filters_count { best - width } else { f32::NEG_INFINITY };
        let threshold = threshold.max(floor);
        kept = (0..logits.len())
            .filter(|&idx| threshold <= logits[idx] && f32::NEG_INFINITY < logits[idx])
            .map(|idx| (token_id(idx), logits[idx] - log_total))
            .collect::<Vec<(TokenId, f32)>>();
        let mass = || kept.iter().map(|it| f64::from(it.1).exp()).sum::<f64>();
        let enough_mass = !filters_mass || f64::from(sampling.top_p) <= mass();
        let enough_count = !filters_count || sampling.top_k as usize <= kept.len();
        if threshold == floor || !width.is_finite() || (enough_mass && enough_count) {
            break;
        }
        width = if width < 64.0 { width * 2.0 } else { f32::INFINITY };
    }
    if kept.is_empty() {
        return vec![(token_id(logits::argmax(logits)), 0.0)];
    }
    if filters_mass || filters_count {
        // A stable sort keeps tokens of equal probability in the order of their ids.
        kept.sort_by(|a, b| b.1.total_cmp(&a.1));
    }
    if filters_mass {
        kept.truncate(nucleus_len(&kept, sampling.top_p));
    }
    if filters_count {
        kept.truncate(sampling.top_k as usize);
    }
    kept
}

/// Returns how many of `sorted` have less than `top_p` of probability strictly above them; ties
/// with the last kept value are kept.
fn nucleus_len(sorted: &[(TokenId, f32)], top_p: f32) -> usize {
    let mut above = 0.0f64;
    for (idx, &(_, logprob)) in sorted.iter().enumerate() {
        if 0 < idx && f64::from(top_p) <= above && logprob < sorted[idx - 1].1 {
            return idx;
        }
        above += f64::from(logprob).exp();
    }
    sorted.len()
}

/// Samples from `candidates` at `temperature` by inverse transform; `uniform` is in `[0, 1)`.
fn pick(candidates: &[(TokenId, f32)], temperature: f32, uniform: f64) -> TokenId {
    let best = candidates.iter().map(|it| it.1).fold(f32::NEG_INFINITY, f32::max);
    let mut weights: Vec<f32> = candidates.iter().map(|it| (it.1 - best) / temperature).collect();
    logits::exp_each(&mut weights);
    let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    let mut left = uniform * total;
    for (&(token, _), weight) in candidates.iter().zip(weights) {
        left -= f64::from(weight);
        if left < 0.0 {
            return token;
        }
    }
    candidates.last().expect("candidates are never empty").0
}

/// Returns `ln Σ exp(logits)`, accumulated in double precision.
fn log_sum_exp(logits: &[f32]) -> f32 {
    let max = logits.get(logits::argmax(logits)).copied().unwrap_or(f32::NEG_INFINITY);
    if !max.is_finite() {
        return max;
    }
    max + logits::sum_exp(logits, max).ln() as f32
}

/// Returns the uniform number in `[0, 1)` for `(seed, position)`: two rounds of splitmix64 (Steele,
/// Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub(crate) fn uniform(seed: u64, position: u64) -> f64 {
    let bits = splitmix64(splitmix64(seed) ^ position.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

pub(crate) fn splitmix64(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn token_id(idx: usize) -> TokenId {
    TokenId::try_from(idx).expect("a vocabulary has fewer than 2^32 tokens")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(change: impl FnOnce(&mut Sampling)) -> Sampling {
        let mut sampling = Sampling { temperature: 1.0, ..Sampling::greedy(0) };
        change(&mut sampling);
        sampling
    }

    /// Samples at many positions and returns the frequency of each token.
    fn frequencies(logits: &[f32], sampling: &Sampling) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        let mut history = Vec::new();
        let num_samples = 20_000;
        for _ in 0..num_samples {
            counts[sample(logits, &history, sampling) as usize] += 1.0 / f64::from(num_samples);
            history.push(0);
        }
        counts
    }

    #[test]
    fn draws_follow_the_distribution_at_the_temperature() {
        let logits = [1.0, 2.0, 0.0, -1.0];
        for temperature in [0.5, 1.0, 2.0] {
            let found = frequencies(&logits, &sampling(|it| it.temperature = temperature));
            let weights: Vec<f64> =
                logits.iter().map(|it| f64::from(it / temperature).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (found, weight) in found.iter().zip(&weights) {
                assert!((found - weight / total).abs() < 0.02, "{found} {}", weight / total);
            }
        }
    }

    #[test]
    fn the_same_seed_and_position_draw_the_same_token() {
        let logits: Vec<f32> = (0..50).map(|it| (it as f32 * 0.7).sin()).collect();
        let samples = |seed| -> Vec<TokenId> {
            let sampling = sampling(|it| it.seed = seed);
            (0..40).map(|len| sample(&logits, &vec![1; len], &sampling)).collect()
        };
        assert_eq!(samples(3), samples(3));
        assert_ne!(samples(3), samples(4));
    }

    /// Implements mlx-lm's definition by comparing every token with every other.
    fn nucleus_by_definition(logits: &[f32], top_p: f32) -> Vec<bool> {
        let log_total = log_sum_exp(logits);
        let p: Vec<f64> = logits.iter().map(|it| f64::from(it - log_total).exp()).collect();
        p.iter()
            .map(|&own| p.iter().filter(|&&it| own < it).sum::<f64>() < f64::from(top_p))
            .collect()
    }

    #[test]
    fn filters_keep_exactly_the_tokens_of_their_definition() {
        let mut state = 1u64;
        for round in 0..300 {
            let len = 2 + round % 60;
            let logits: Vec<f32> = (0..len)
                .map(|_| {
                    state = splitmix64(state);
                    (state % 2000) as f32 / 100.0 - 10.0
                })
                .collect();
            let top_p = 0.05 + 0.9 * (round as f32 / 300.0);
            let kept = candidates(&logits, &sampling(|it| it.top_p = top_p));
            let wanted = nucleus_by_definition(&logits, top_p);
            for (idx, wanted) in wanted.iter().enumerate() {
                let found = kept.iter().any(|it| it.0 as usize == idx);
                assert_eq!(found, *wanted, "token {idx} of {logits:?} at top_p {top_p}");
            }
            let top_k = 1 + (round as u32 % 7);
            let kept = candidates(&logits, &sampling(|it| it.top_k = top_k));
            assert_eq!(kept.len(), (top_k as usize).min(len));
            let worst = kept.iter().map(|it| it.1).fold(f32::INFINITY, f32::min);
            let log_total = log_sum_exp(&logits);
            let better = logits.iter().filter(|&&it| worst < it - log_total).count();
            assert!(better <= kept.len());
        }
    }

    #[test]
    fn min_p_is_relative_to_the_best_token() {
        let logits = [0.0, 0.1f32.ln() + 0.01, 0.1f32.ln() - 0.01];
        let found = frequencies(&logits, &sampling(|it| it.min_p = 0.1));
        assert!(0.0 < found[1] && found[2] == 0.0, "{found:?}");
    }

    #[test]
    fn a_banned_token_is_never_sampled() {
        let logits: Vec<f32> = (0..40).map(|it| (it as f32 * 0.7).sin() * 9.0).collect();
        let allowed: Vec<TokenId> = vec![3, 17, 39];
        let mut words = [0u32; 2];
        allowed.iter().for_each(|token| words[*token as usize / 32] |= 1 << (token % 32));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let banned = (0..40).filter(|token| !allowed.contains(token)).collect();
        let masks = [RowMask::Only(allowed.clone()), RowMask::Except(banned), RowMask::Bits(bytes)];
        let changes: [fn(&mut Sampling); 8] = [
            |it| it.temperature = 0.0,
            |it| it.temperature = 2.0,
            |it| it.top_p = 0.01,
            |it| it.top_k = 1,
            |it| it.top_k = 30,
            |it| it.min_p = 1.0,
            |it| {
                it.logit_bias = vec![(5, 100.0), (3, -100.0), (17, -100.0), (39, f32::NEG_INFINITY)]
            },
            |it| (it.repetition_penalty, it.presence_penalty) = (9.0, 2.0),
        ];
        for change in changes {
            let samples = masks.clone().map(|mask| -> Vec<TokenId> {
                let mut sampling = sampling(change);
                sampling.mask = mask;
                (0..200).map(|len| sample(&logits, &vec![5; len], &sampling)).collect()
            });
            assert!(samples[0].iter().all(|token| allowed.contains(token)), "{samples:?}");
            assert!(samples[0] == samples[1] && samples[1] == samples[2], "the form says nothing");
        }
        let mut sampling = sampling(|_| {});
        sampling.mask = RowMask::Only(allowed.clone());
        let found = frequencies(&logits, &sampling);
        assert!(
            allowed
                .iter()
                .all(|token| 0.0 < found[*token as usize] || logits[*token as usize] < 0.0)
        );
        let none = [f32::NEG_INFINITY; 40];
        assert_eq!(sample(&none, &[], &sampling), 3, "an allowed token, even without any chance");
    }

    #[test]
    fn penalties_and_bias_change_the_greedy_choice() {
        let logits = [1.0, 0.9, -0.5];
        let greedy = |change: fn(&mut Sampling), history: &[TokenId]| {
            let mut sampling = Sampling::greedy(1);
            change(&mut sampling);
            sample(&logits, history, &sampling)
        };
        assert_eq!(greedy(|_| {}, &[0, 0]), 0);
        assert_eq!(greedy(|it| it.logit_bias = vec![(2, 5.0), (99, 9.0)], &[0]), 2);
        assert_eq!(greedy(|it| it.repetition_penalty = 2.0, &[0]), 1, "the prompt counts");
        assert_eq!(greedy(|it| it.presence_penalty = 0.5, &[0]), 0, "the prompt does not count");
        assert_eq!(greedy(|it| it.presence_penalty = 0.5, &[0, 0]), 1);
        assert_eq!(greedy(|it| it.frequency_penalty = 0.06, &[0, 0]), 0);
        assert_eq!(greedy(|it| it.frequency_penalty = 0.06, &[0, 0, 0]), 1);
        let forgetful = |it: &mut Sampling| {
            it.repetition_penalty = 2.0;
            it.repetition_context = 1;
        };
        assert_eq!(greedy(forgetful, &[0, 2]), 0, "beyond the context nothing is penalised");
    }

    #[test]
    fn logprobs_are_of_the_unchanged_distribution() {
        let logits = [1.0f32, 2.0, 3.0, 3.0];
        let total: f32 = logits.iter().map(|it| it.exp()).sum();
        let found = logprob(&logits, 0, 3);
        assert!((found.logprob - (1.0f32.exp() / total).ln()).abs() < 1e-5);
        let ids: Vec<TokenId> = found.top.iter().map(|it| it.0).collect();
        assert_eq!(ids, [2, 3, 1], "best first, equals by id");
        assert!(logprob(&logits, 1, 0).top.is_empty());
    }

    #[test]
    fn broken_logits_still_give_a_token() {
        for logits in [
            vec![f32::NAN; 3],
            vec![f32::NEG_INFINITY; 3],
            vec![f32::INFINITY, 1.0, f32::NAN],
            vec![0.0],
        ] {
            for sampling in [
                Sampling::greedy(0),
                sampling(|it| it.top_p = 0.5),
                sampling(|it| it.min_p = 0.5),
                sampling(|it| it.top_k = 2),
                sampling(|_| {}),
            ] {
                assert!((sample(&logits, &[], &sampling) as usize) < logits.len());
            }
        }
    }
}
