//! Samples tokens with MLX's operations, on the device that computed the logits: the results are
//! arrays that can be inputs of the next step before the host knows them. The number of operations
//! does not depend on the number of rows.
//!
//! Parameters have the order and meaning of [`crate::sampler`], and a `(seed, position)` gives the
//! same random number, but in single precision: a sampled token differs from the host's only where
//! rounding moves that number across the border between the shares of two tokens.

mod penalties;

use jackalope_mlx::{Array, Dtype, dim};
use jackalope_protocol::{RowMask, Sampling, TokenId};

use crate::sampler;

use self::penalties::penalised;

/// Number of weights in a block. Weights are summed within blocks, and then the sums of the blocks,
/// because the rounding error of a sum grows with its number of terms.
const BLOCK_LEN: i32 = 256;

/// Number of bits in a word of a mask.
const WORD_BITS: usize = 32;

/// Number of bits that a random number keeps, all of which f32 holds exactly.
const UNIFORM_BITS: u32 = 24;

/// A row to sample from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampledRow<'a> {
    pub(crate) sampling: &'a Sampling,
    /// The tokens before the one to sample. Only their number is used unless there are penalties.
    pub(crate) history: &'a [TokenId],
    /// Set if the device still computes the last token of `history`, whose place another one takes there:
    /// its index among the tokens of the earlier step.
    pub(crate) pending: Option<usize>,
}

/// Sampled tokens on the device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceTokens {
    /// The token of each row, u32 `[rows]`; 0 where logits are NaN or infinite.
    pub(crate) tokens: Array,
    /// Whether no logit is NaN or infinite, boolean `[rows]`.
    pub(crate) are_numbers: Array,
}

/// Log-probabilities on the device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceLogprobs {
    /// Log-probabilities of the given tokens, f32 `[rows]`.
    pub(crate) own: Array,
    /// The most likely tokens, u32 `[rows, num_top]`, most likely first.
    pub(crate) top: Array,
    /// Log-probabilities of the tokens in `top`, f32 `[rows, num_top]`.
    pub(crate) top_values: Array,
}

/// Samples a token from each row of `logits`, f32 `[rows, vocab]`. `earlier` has the tokens of the earlier step,
/// u32 `[its rows]`.
///
/// # Panics
/// Panics if a row has a pending token and there is no earlier step.
pub(crate) fn sample(
    logits: &Array,
    rows: &[SampledRow<'_>],
    earlier: Option<&Array>,
) -> DeviceTokens {
    let vocab_size = logits.dim(1) as usize;
    let (changed, allowed) = (penalised(logits, rows, earlier), masks(rows, vocab_size));
    let masked = allowed.as_ref().map_or(changed.clone(), |allowed| {
        Array::where_(allowed, &changed, &Array::scalar(f32::NEG_INFINITY))
    });
    let mut best = masked.argmax(1);
    if let Some(allowed) = &allowed {
        // If no allowed token has a chance, the first allowed one is taken.
        let has_chance = masked.max(1, false).greater(&Array::scalar(f32::NEG_INFINITY));
        best = Array::where_(&has_chance, &best, &allowed.argmax(1));
    }
    let tokens = Choice::of(rows, vocab_size).tokens(&masked, best);
    let finite = logits.less(&Array::scalar(f32::INFINITY)).all(1, false);
    let some = logits.max(1, false).greater(&Array::scalar(f32::NEG_INFINITY));
    let are_numbers = finite.logical_and(&some);
    let none = Array::scalar_of(0.0, Dtype::U32);
    DeviceTokens { tokens: Array::where_(&are_numbers, &tokens, &none), are_numbers }
}

/// Returns the log-probabilities of a token of each row of `logits`, f32 `[rows, vocab]`, and of the
/// `num_top` most likely ones. `tokens` is u32 `[rows]`.
pub(crate) fn logprobs(logits: &Array, tokens: &Array, num_top: usize) -> DeviceLogprobs {
    let log_total = logits.logsumexp(1, true);
    let own = logits.take_along_axis(&tokens.expand_dims(1), 1).sub(&log_total).squeeze(1);
    let num_rows = logits.dim(0);
    if num_top == 0 {
        let empty = |dtype| Array::zeros(&[num_rows, 0], dtype);
        return DeviceLogprobs { own, top: empty(Dtype::U32), top_values: empty(Dtype::F32) };
    }
    let num_top = dim(num_top).min(logits.dim(1));
    let top = logits.neg().argsort(1).slice_axis(1, 0, num_top);
    let top_values = logits.take_along_axis(&top, 1).sub(&log_total);
    DeviceLogprobs { own, top, top_values }
}

/// Returns a boolean array `[rows, vocab]`, true for the tokens that may be sampled; `None` if no
/// row has a mask. Only the bits of the rows with a mask are sent to the device.
fn masks(rows: &[SampledRow<'_>], vocab_size: usize) -> Option<Array> {
    if rows.iter().all(|row| row.sampling.mask == RowMask::All) {
        return None;
    }
    let num_words = vocab_size.div_ceil(WORD_BITS);
    // The first mask is that of all rows without one.
    let mut words = vec![u32::MAX; num_words];
    let mut mask_of_row = Vec::with_capacity(rows.len());
    for SampledRow { sampling, .. } in rows {
        if sampling.mask == RowMask::All {
            mask_of_row.push(0);
            continue;
        }
        mask_of_row.push(dim(words.len() / num_words));
        words.extend(bits(&sampling.mask, num_words));
    }
    let num_masks = dim(words.len() / num_words);
    let words = Array::from_slice(&words, &[num_masks, dim(num_words), 1]);
    let places = Array::arange(dim(WORD_BITS), Dtype::U32);
    let one = Array::scalar_of(1.0, Dtype::U32);
    let bits = words.right_shift(&places).bitwise_and(&one).flatten(1, 2).astype(Dtype::Bool);
    let bits = bits.slice_axis(1, 0, dim(vocab_size));
    Some(bits.take(&Array::from_slice(&mask_of_row, &[dim(rows.len())]), 0))
}

/// Returns a mask as bits: bit `token % WORD_BITS` of word `token / WORD_BITS` is set if the mask
/// allows the token.
fn bits(mask: &RowMask, num_words: usize) -> Vec<u32> {
    if let RowMask::Bits(bytes) = mask {
        let word = |idx: usize| {
            let byte = |at: usize| bytes.get(idx * size_of::<u32>() + at).copied().unwrap_or(0);
            u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)])
        };
        return (0..num_words).map(word).collect();
    }
    let (start, tokens) = match mask {
        RowMask::Only(tokens) => (0, tokens.as_slice()),
        RowMask::Except(tokens) => (u32::MAX, tokens.as_slice()),
        RowMask::All | RowMask::Bits(_) => (u32::MAX, [].as_slice()),
    };
    let mut words = vec![start; num_words];
    for token in tokens {
        if let Some(word) = words.get_mut(*token as usize / WORD_BITS) {
            *word ^= 1 << (*token as usize % WORD_BITS);
        }
    }
    words
}

/// How the rows of a step choose among their tokens.
struct Choice<'a> {
    rows: &'a [SampledRow<'a>],
    /// Rows without top-p and top-k, which sample among all tokens in the order of their ids.
    by_id: Vec<usize>,
    /// Rows with top-p or top-k, which sample among the most likely tokens.
    by_rank: Vec<usize>,
}

impl<'a> Choice<'a> {
    fn of(rows: &'a [SampledRow<'a>], vocab_size: usize) -> Choice<'a> {
        let mut choice = Choice { rows, by_id: Vec::new(), by_rank: Vec::new() };
        for (idx, SampledRow { sampling, .. }) in rows.iter().enumerate() {
            if sampling.temperature == 0.0 {
                continue;
            }
            let has_count = 0 < sampling.top_k && (sampling.top_k as usize) < vocab_size;
            let has_filter = sampling.top_p < 1.0 || has_count;
            if has_filter { choice.by_rank.push(idx) } else { choice.by_id.push(idx) }
        }
        choice
    }

    /// Returns the token that each row of `logits` `[rows, vocab]` samples, u32 `[rows]`. `best`
    /// has the index of each row's largest logit, which greedy rows sample.
    fn tokens(&self, logits: &Array, best: Array) -> Array {
        let mut parts = vec![best];
        let mut sources: Vec<usize> = (0..self.rows.len()).collect();
        let mut num_before = self.rows.len();
        type Method<'a> = fn(&Choice<'a>, &Array, &[usize]) -> Array;
        let methods: [(&Vec<usize>, Method<'a>); 2] =
            [(&self.by_id, Choice::sampled_by_id), (&self.by_rank, Choice::sampled_by_rank)];
        for (chosen, method) in methods.into_iter().filter(|(chosen, _)| !chosen.is_empty()) {
            let logits = if chosen.len() == self.rows.len() {
                logits.clone()
            } else {
                logits.take(&indices(chosen), 0)
            };
            let tokens = method(self, &logits, chosen);
            if chosen.len() == self.rows.len() {
                return tokens;
            }
            parts.push(tokens);
            chosen.iter().enumerate().for_each(|(nth, row)| sources[*row] = num_before + nth);
            num_before += chosen.len();
        }
        match parts.as_slice() {
            [best] => best.clone(),
            parts => {
                Array::concatenate(&parts.iter().collect::<Vec<_>>(), 0).take(&indices(&sources), 0)
            }
        }
    }

    /// Samples rows without top-p and top-k, whose weights need no order.
    fn sampled_by_id(&self, logits: &Array, rows: &[usize]) -> Array {
        let best = logits.max(1, true);
        let kept = best.add(&self.floors(rows)).less_equal(logits);
        let weights = self.weights(logits, &best, rows);
        let weights = Array::where_(&kept, &weights, &Array::scalar(0.0));
        pick(&weights, &self.uniforms(rows)).squeeze(1)
    }

    /// Samples rows with top-p or top-k.
    fn sampled_by_rank(&self, logits: &Array, rows: &[usize]) -> Array {
        let vocab_size = logits.dim(1);
        let order = logits.neg().argsort(1);
        let sorted = logits.take_along_axis(&order, 1);
        let best = sorted.slice_axis(1, 0, 1);
        let mut kept = best.add(&self.floors(rows)).less_equal(&sorted);
        if rows.iter().any(|row| self.rows[*row].sampling.top_p < 1.0) {
            let probabilities = sorted.sub(&sorted.logsumexp(1, true)).exp();
            let before = probabilities.cumsum(1).sub(&probabilities);
            // Without top-p, no sum of probabilities reaches the limit.
            let limit = |top_p: f32| if top_p < 1.0 { top_p } else { f32::INFINITY };
            let limits = self.column(rows, |sampling| limit(sampling.top_p));
            let is_within = before.less(&limits);
            let infinity = Array::scalar(f32::INFINITY);
            // Tokens as likely as the last one that is kept are kept too.
            let last = Array::where_(&is_within, &sorted, &infinity).min(1, true);
            kept = kept.logical_and(&last.less_equal(&sorted));
        }
        if rows.iter().any(|row| self.rows[*row].sampling.top_k != 0) {
            let most = |top_k: u32| match i32::try_from(top_k) {
                Ok(top_k) if top_k != 0 => top_k.min(vocab_size),
                _ => vocab_size,
            };
            let counts: Vec<i32> =
                rows.iter().map(|row| most(self.rows[*row].sampling.top_k)).collect();
            let counts = Array::from_slice(&counts, &[dim(rows.len()), 1]);
            kept = kept.logical_and(&Array::arange(vocab_size, Dtype::I32).less(&counts));
        }
        let weights = self.weights(&sorted, &best, rows);
        let weights = Array::where_(&kept, &weights, &Array::scalar(0.0));
        order.take_along_axis(&pick(&weights, &self.uniforms(rows)), 1).squeeze(1)
    }

    /// Returns `exp((logits - best) / temperature)`.
    fn weights(&self, logits: &Array, best: &Array, rows: &[usize]) -> Array {
        let temperatures = self.column(rows, |sampling| sampling.temperature);
        logits.sub(best).div(&temperatures).exp()
    }

    /// Returns the numbers, `[rows, 1]`, by which the smallest logit that min-p keeps differs from
    /// a row's largest logit; at most 0.
    fn floors(&self, rows: &[usize]) -> Array {
        self.column(rows, |sampling| sampling.min_p.ln())
    }

    /// Returns the random number of each row, `[rows, 1]`, rounded down so that it stays below 1.
    fn uniforms(&self, rows: &[usize]) -> Array {
        let scale = f64::from(1_u32 << UNIFORM_BITS);
        let uniforms = rows.iter().map(|&row| {
            let SampledRow { sampling, history, .. } = self.rows[row];
            let uniform = sampler::uniform(sampling.seed, history.len() as u64);
            ((uniform * scale).floor() / scale) as f32
        });
        column(&uniforms.collect::<Vec<f32>>())
    }

    fn column(&self, rows: &[usize], value: impl Fn(&Sampling) -> f32) -> Array {
        let values = rows.iter().map(|row| value(self.rows[*row].sampling));
        column(&values.collect::<Vec<f32>>())
    }
}

/// Returns for each row of `weights` `[rows, len]` the index at which their running sum exceeds the
/// part `uniforms` `[rows, 1]` of their total, u32 `[rows, 1]`; always one with a weight above zero, if
/// there is any.
fn pick(weights: &Array, uniforms: &Array) -> Array {
    let (num_rows, len) = (weights.dim(0), weights.dim(1));
    let num_blocks = (len + BLOCK_LEN - 1) / BLOCK_LEN;
    let padding = Array::zeros(&[num_rows, num_blocks * BLOCK_LEN - len], Dtype::F32);
    let padded = match padding.dim(1) {
        0 => weights.clone(),
        _ => Array::concatenate(&[weights, &padding], 1),
    };
    let blocks = padded.reshape(&[num_rows, num_blocks, BLOCK_LEN]);
    let ends = blocks.sum(2, false).cumsum(1); // [rows, blocks]
    let target = uniforms.mul(&ends.slice_axis(1, num_blocks - 1, num_blocks));
    let block = first_above(&ends, &target); // [rows, 1]
    let zero = Array::zeros(&[num_rows, 1], Dtype::F32);
    let starts = Array::concatenate(&[&zero, &ends], 1);
    let left = target.sub(&starts.take_along_axis(&block, 1));
    let own = blocks.take_along_axis(&block.expand_dims(2), 1).squeeze(1); // [rows, BLOCK_LEN]
    let within = first_above(&own.cumsum(1), &left);
    let first = block.mul(&Array::scalar_of(BLOCK_LEN as f32, Dtype::I32));
    first.add(&within).astype(Dtype::U32)
}

/// Returns the first index at which ascending `sums` `[rows, len]` exceed `target` `[rows, 1]`; where
/// rounding lets none do so, the first one with the last sum. i32 `[rows, 1]`.
fn first_above(sums: &Array, target: &Array) -> Array {
    let last = sums.slice_axis(1, sums.dim(1) - 1, sums.dim(1));
    let count = |is_before: Array| is_before.astype(Dtype::I32).sum(1, true);
    count(sums.less_equal(target)).minimum(&count(sums.less(&last)))
}

fn column(values: &[f32]) -> Array {
    Array::from_slice(values, &[dim(values.len()), 1])
}

fn indices(values: &[usize]) -> Array {
    let values: Vec<i32> = values.iter().map(|value| dim(*value)).collect();
    Array::from_slice(&values, &[dim(values.len())])
}

#[cfg(test)]
mod tests;
