//! The sampler on the device against the host's.

use super::*;
use crate::sampler::{candidates, splitmix64};

/// Number of tokens; no multiple of a block or of a word.
const VOCAB_SIZE: usize = 1003;

fn random_logits(num_rows: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = splitmix64(state);
        // Few different values, so that some are equal.
        (state % 4000) as f32 / 200.0 - 10.0
    };
    (0..num_rows * VOCAB_SIZE).map(|_| next()).collect()
}

fn random_sampling(case: u64) -> Sampling {
    let bits = splitmix64(case);
    let one_of = |shift: u32, values: &[f32]| values[(bits >> shift) as usize % values.len()];
    let mut sampling = Sampling::greedy(2);
    sampling.temperature = one_of(0, &[0.0, 0.3, 1.0, 1.7]);
    sampling.top_p = one_of(4, &[1.0, 0.2, 0.7, 0.95]);
    sampling.top_k = one_of(8, &[0.0, 1.0, 5.0, 40.0, 5000.0]) as u32;
    sampling.min_p = one_of(12, &[0.0, 0.0, 0.02, 0.3]);
    sampling.repetition_penalty = one_of(16, &[1.0, 1.0, 1.3, 0.8]);
    sampling.repetition_context = one_of(20, &[0.0, 4.0]) as u32;
    sampling.presence_penalty = one_of(24, &[0.0, 0.0, 1.5]);
    sampling.frequency_penalty = one_of(28, &[0.0, 0.0, 0.5]);
    sampling.seed = bits;
    if bits >> 32 & 1 == 1 {
        sampling.logit_bias = vec![(3, 4.0), (70, -100.0), (1_000_000, 5.0), (500, 9.5)];
    }
    let tokens =
        || (0..VOCAB_SIZE as u32).filter(|token| splitmix64(bits ^ u64::from(*token)) % 9 < 2);
    sampling.mask = match bits >> 33 & 7 {
        0 => RowMask::Only(tokens().collect()),
        1 => RowMask::Except(tokens().collect()),
        2 => {
            let mut bytes = vec![0_u8; VOCAB_SIZE.div_ceil(8)];
            tokens().for_each(|token| bytes[token as usize / 8] |= 1 << (token % 8));
            RowMask::Bits(bytes)
        }
        3 => RowMask::Only(Vec::new()),
        _ => RowMask::All,
    };
    sampling
}

fn device_tokens(logits: &[f32], rows: &[SampledRow<'_>]) -> Vec<TokenId> {
    let shape = [dim(rows.len()), dim(logits.len() / rows.len())];
    sample(&Array::from_slice(logits, &shape), rows, None).tokens.to_vec().unwrap()
}

fn known<'a>(sampling: &'a Sampling, history: &'a [TokenId]) -> SampledRow<'a> {
    SampledRow { sampling, history, pending: None }
}

#[test]
fn the_device_samples_the_tokens_of_the_host_whatever_is_asked_for() {
    let num_rows = 40;
    for round in 0..12 {
        let logits = random_logits(num_rows, round + 1);
        let cases: Vec<(Sampling, Vec<TokenId>)> = (0..num_rows as u64)
            .map(|row| {
                let case = round * 1000 + row;
                let history = (0..2 + case % 17).map(|it| (splitmix64(it ^ case) % 90) as u32);
                (random_sampling(case), history.collect())
            })
            .collect();
        let rows: Vec<SampledRow<'_>> =
            cases.iter().map(|(sampling, history)| known(sampling, history)).collect();
        let found = device_tokens(&logits, &rows);
        for (idx, (sampling, history)) in cases.iter().enumerate() {
            let own = &logits[idx * VOCAB_SIZE..][..VOCAB_SIZE];
            let expected = sampler::sample(own, history, sampling);
            assert_eq!(found[idx], expected, "row {idx} of round {round}: {sampling:?}");
            // The other rows change nothing.
            assert_eq!(device_tokens(own, &rows[idx..=idx]), [expected], "row {idx} alone");
        }
    }
}

/// A token that the device still computes changes logits as one that the host knows.
#[test]
fn a_pending_token_counts_as_a_known_one() {
    let num_rows = 60;
    for round in 0..12 {
        // Few tokens, so that most pending ones were sampled before or have a bias.
        let num_tokens = [4, 90, VOCAB_SIZE as u64][round as usize % 3];
        let cases: Vec<(Sampling, Vec<TokenId>)> = (0..num_rows as u64)
            .map(|row| {
                let case = round * 1000 + row;
                let tokens = (0..2 + case % 17).map(|it| splitmix64(it ^ case) % num_tokens);
                (random_sampling(case), tokens.map(|token| token as TokenId).collect())
            })
            .collect();
        let logits = random_logits(num_rows, round + 1);
        let logits = Array::from_slice(&logits, &[dim(num_rows), dim(VOCAB_SIZE)]);
        // The tokens of the earlier step are in another order; every fifth is known, and there are others.
        let earlier: Vec<TokenId> = cases.iter().rev().map(|(_, it)| *it.last().unwrap()).collect();
        let earlier = Array::from_slice(&earlier, &[dim(num_rows)]);
        let mut pending_cases = cases.clone();
        let pending = |row: usize| (!row.is_multiple_of(5)).then(|| num_rows - 1 - row);
        for (row, (_, history)) in pending_cases.iter_mut().enumerate() {
            if pending(row).is_some() {
                *history.last_mut().unwrap() = 0;
            }
        }
        let rows: Vec<SampledRow<'_>> =
            cases.iter().map(|(sampling, history)| known(sampling, history)).collect();
        let waiting = pending_cases.iter().enumerate().map(|(row, (sampling, history))| {
            SampledRow { sampling, history, pending: pending(row) }
        });
        let expected = penalised(&logits, &rows, None).to_vec::<f32>().unwrap();
        let found = penalised(&logits, &waiting.collect::<Vec<_>>(), Some(&earlier));
        let found = found.to_vec::<f32>().unwrap();
        for (idx, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let (row, token) = (idx / VOCAB_SIZE, idx % VOCAB_SIZE);
            assert_eq!(found, expected, "token {token} of row {row}: {:?}", cases[row]);
        }
    }
}

#[test]
fn a_million_samples_of_the_device_follow_the_probabilities_of_the_host() {
    const ROUNDS: usize = 10;
    const ROWS: usize = 25_000;
    let logits: Vec<f32> = (0..40).map(|it| (it as f32 * 0.7).sin() * 3.0).collect();
    let changes: [fn(&mut Sampling); 4] = [
        |_| {},
        |it| (it.top_p, it.temperature) = (0.9, 0.8),
        |it| (it.top_k, it.temperature) = (7, 1.5),
        |it| (it.min_p, it.top_p) = (0.05, 0.97),
    ];
    for change in changes {
        let mut sampling = Sampling { temperature: 1.0, ..Sampling::greedy(0) };
        change(&mut sampling);
        let mut counts = vec![0.0_f64; logits.len()];
        let all: Vec<f32> = logits.repeat(ROWS);
        for round in 0..ROUNDS {
            let seed = |row: usize| (round * ROWS + row) as u64;
            let samplings: Vec<Sampling> =
                (0..ROWS).map(|row| Sampling { seed: seed(row), ..sampling.clone() }).collect();
            let rows: Vec<SampledRow<'_>> =
                samplings.iter().map(|sampling| known(sampling, &[])).collect();
            device_tokens(&all, &rows).iter().for_each(|token| counts[*token as usize] += 1.0);
        }
        let kept = candidates(&logits, &sampling);
        let best = f64::from(kept.iter().map(|it| it.1).fold(f32::NEG_INFINITY, f32::max));
        let weight =
            |logprob: f32| ((f64::from(logprob) - best) / f64::from(sampling.temperature)).exp();
        let total: f64 = kept.iter().map(|it| weight(it.1)).sum();
        let num_samples = (ROUNDS * ROWS) as f64;
        let mut chi_square = 0.0;
        for (token, logprob) in &kept {
            let expected = weight(*logprob) / total * num_samples;
            let found = std::mem::take(&mut counts[*token as usize]);
            chi_square += (found - expected).powi(2) / expected;
        }
        assert_eq!(counts.iter().sum::<f64>(), 0.0, "a filtered token was sampled: {sampling:?}");
        // Six standard deviations above the mean of the chi-square distribution.
        let freedom = (kept.len() - 1) as f64;
        let limit = freedom + 6.0 * (2.0 * freedom).sqrt();
        assert!(chi_square < limit, "{chi_square} for {freedom} degrees of freedom: {sampling:?}");
    }
}

#[test]
fn logits_that_are_not_numbers_are_reported_for_their_row_alone() {
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    let logits = [
        [1.0, 2.0, 0.0],
        [1.0, nan, 0.0],
        [infinity, 0.0, 0.0],
        [-infinity, -infinity, -infinity],
        [-infinity, -3.0, -infinity],
    ]
    .concat();
    for temperature in [0.0, 1.0] {
        let sampling = Sampling { temperature, top_k: 2, ..Sampling::greedy(0) };
        let rows = [known(&sampling, &[]); 5];
        let found = sample(&Array::from_slice(&logits, &[5, 3]), &rows, None);
        let are_numbers = found.are_numbers.pin().unwrap();
        assert_eq!(are_numbers.values::<u8>(), [1, 0, 0, 0, 1]);
        assert_eq!(found.tokens.to_vec::<u32>().unwrap()[1..], [0, 0, 0, 1]);
    }
}

#[test]
fn log_probabilities_are_those_of_the_host() {
    let logits = random_logits(3, 9);
    let array = Array::from_slice(&logits, &[3, dim(VOCAB_SIZE)]);
    let tokens = [7, 900, 0];
    let found = logprobs(&array, &Array::from_slice(&tokens, &[3]), 6);
    let (own, top) = (found.own.to_vec::<f32>().unwrap(), found.top.to_vec::<u32>().unwrap());
    let top_values = found.top_values.to_vec::<f32>().unwrap();
    for row in 0..3 {
        let expected = sampler::logprob(&logits[row * VOCAB_SIZE..][..VOCAB_SIZE], tokens[row], 6);
        assert!((own[row] - expected.logprob).abs() < 1e-4, "{own:?} {expected:?}");
        for (nth, (token, value)) in expected.top.iter().enumerate() {
            assert_eq!(top[row * 6 + nth], *token);
            assert!((top_values[row * 6 + nth] - value).abs() < 1e-4);
        }
    }
}
