//! Bias and penalties of logits on the device. The host lists the changes by the tokens that it knows; the
//! token that an earlier step still computes is changed afterwards, at a place that only the device knows.

use std::collections::BTreeMap;

use jackalope_mlx::{Array, Dtype, dim};
use jackalope_protocol::{Sampling, TokenId};

use super::{SampledRow, indices};
use crate::sampler;

/// The changes of one logit each.
#[derive(Default)]
struct Changes {
    rows: Vec<i32>,
    tokens: Vec<i32>,
    changes: Vec<Change>,
}

/// The change of a logit by bias and penalties.
#[derive(Clone, Copy, Debug)]
struct Change {
    bias: f32,
    /// Divides a positive logit and multiplies a negative one.
    repetition: f32,
    subtracted: f32,
}

impl Change {
    const NONE: Change = Change { bias: 0.0, repetition: 1.0, subtracted: 0.0 };
}

/// Applies bias and penalties to `logits` `[rows, vocab]`, in the order of the host's sampler. `earlier` has the
/// tokens that rows wait for.
pub(super) fn penalised(logits: &Array, rows: &[SampledRow<'_>], earlier: Option<&Array>) -> Array {
    let mut all = Changes::default();
    for (idx, row) in rows.iter().enumerate() {
        for (token, change) in changes_of(row, logits.dim(1)) {
            all.rows.push(dim(idx));
            all.tokens.push(token);
            all.changes.push(change);
        }
    }
    let changed = if all.rows.is_empty() { logits.clone() } else { all.apply(logits) };
    let counts_pending =
        |row: &SampledRow<'_>| row.pending.is_some() && has_penalties(row.sampling);
    let waiting: Vec<usize> = (0..rows.len()).filter(|idx| counts_pending(&rows[*idx])).collect();
    if waiting.is_empty() {
        return changed;
    }
    let earlier = earlier.expect("an earlier step computes the tokens that rows wait for");
    change_pending(&Waiting { rows, waiting }, logits, &changed, earlier)
}

impl Changes {
    /// Returns `logits` `[rows, vocab]` with the changes.
    fn apply(&self, logits: &Array) -> Array {
        let len = dim(self.rows.len());
        let flat =
            self.rows.iter().zip(&self.tokens).map(|(row, token)| row * logits.dim(1) + token);
        let flat = Array::from_slice(&flat.collect::<Vec<i32>>(), &[len]);
        let column = |value: fn(&Change) -> f32| {
            Array::from_slice(&self.changes.iter().map(value).collect::<Vec<f32>>(), &[len])
        };
        let biased = logits.flatten(0, 1).take(&flat, 0).add(&column(|it| it.bias));
        let repeated = repeated(&biased, &column(|it| it.repetition));
        let update = repeated.sub(&column(|it| it.subtracted)).reshape(&[len, 1, 1]);
        let at = [&self.rows, &self.tokens].map(|values| Array::from_slice(values, &[len]));
        logits.scatter(at.each_ref(), [0, 1], &update)
    }
}

/// Applies the repetition penalty to logits of the same length.
fn repeated(logits: &Array, penalty: &Array) -> Array {
    let is_negative = logits.less(&Array::scalar(0.0));
    Array::where_(&is_negative, &logits.mul(penalty), &logits.div(penalty))
}

/// Rows, and those of them with penalties whose newest token the device still computes.
struct Waiting<'a> {
    rows: &'a [SampledRow<'a>],
    waiting: Vec<usize>,
}

impl Waiting<'_> {
    /// Returns a value of each waiting row, `[waiting]`.
    fn column(&self, value: impl Fn(&SampledRow<'_>) -> f32) -> Array {
        let values: Vec<f32> = self.waiting.iter().map(|idx| value(&self.rows[*idx])).collect();
        Array::from_slice(&values, &[dim(values.len())])
    }

    /// Returns the tokens of which the host knows something, i32 `[waiting, known]`, and in the same order their
    /// biases and how often they were sampled; `None` if there are none. -1 fills rows with fewer.
    fn known(&self) -> Option<[Array; 3]> {
        let of_row: Vec<BTreeMap<TokenId, [f32; 2]>> =
            self.waiting.iter().map(|idx| known_tokens(&self.rows[*idx])).collect();
        let len = of_row.iter().map(BTreeMap::len).max().filter(|len| 0 < *len)?;
        let (mut tokens, mut values) = (Vec::new(), [Vec::new(), Vec::new()]);
        for known in &of_row {
            tokens.extend(known.keys().map(|token| i32::try_from(*token).unwrap_or(-1)));
            tokens.resize(tokens.len() + len - known.len(), -1);
            for (nth, values) in values.iter_mut().enumerate() {
                values.extend(known.values().map(|value| value[nth]));
                values.resize(tokens.len(), 0.0);
            }
        }
        let shape = [dim(of_row.len()), dim(len)];
        let [biases, counts] = values.map(|values| Array::from_slice(&values, &shape));
        Some([Array::from_slice(&tokens, &shape), biases, counts])
    }
}

/// Applies penalties to the logit of each waiting row's pending token, which they count as sampled once more.
/// `logits` are without penalties; `changed` has those for the tokens that the host knows.
fn change_pending(
    waiting: &Waiting<'_>,
    logits: &Array,
    changed: &Array,
    earlier: &Array,
) -> Array {
    let pending = |idx: &usize| waiting.rows[*idx].pending.expect("waiting rows have a token");
    let own: Vec<usize> = waiting.waiting.iter().map(pending).collect();
    let tokens = earlier.take(&indices(&own), 0).astype(Dtype::I32); // [waiting]
    let mut count = waiting.column(|_| 1.0);
    let rows = indices(&waiting.waiting);
    let mut logit = logits.take(&rows, 0).take_along_axis(&tokens.expand_dims(1), 1).squeeze(1);
    if let Some([known, biases, counts]) = waiting.known() {
        let is_same = known.equal(&tokens.expand_dims(1));
        let of_token =
            |values: &Array| Array::where_(&is_same, values, &Array::scalar(0.0)).sum(1, false);
        logit = logit.add(&of_token(&biases));
        count = count.add(&of_token(&counts));
    }
    let repeated = repeated(&logit, &waiting.column(|row| row.sampling.repetition_penalty));
    let [presence, frequency]: [fn(&Sampling) -> f32; 2] =
        [|it| it.presence_penalty, |it| it.frequency_penalty];
    let [presence, frequency] = [presence, frequency].map(|penalty| {
        waiting.column(|row| if row.is_output() { penalty(row.sampling) } else { 0.0 })
    });
    let subtracted = presence.add(&frequency.mul(&count));
    let update = repeated.sub(&subtracted).reshape(&[dim(own.len()), 1, 1]);
    changed.scatter([&rows, &tokens], [0, 1], &update)
}

/// Returns bias and count of each token of the output that has one, as far as the host knows them.
fn known_tokens(row: &SampledRow<'_>) -> BTreeMap<TokenId, [f32; 2]> {
    let mut known: BTreeMap<TokenId, [f32; 2]> = BTreeMap::new();
    for (token, bias) in &row.sampling.logit_bias {
        known.entry(*token).or_default()[0] += bias;
    }
    if counts_output(row.sampling) {
        for (token, count) in sampler::counts(row.output()) {
            known.entry(token).or_default()[1] = count as f32;
        }
    }
    known
}

fn has_penalties(sampling: &Sampling) -> bool {
    sampling.repetition_penalty != 1.0 || counts_output(sampling)
}

/// Whether it matters how often a token was sampled.
fn counts_output(sampling: &Sampling) -> bool {
    sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0
}

impl SampledRow<'_> {
    /// Returns some of the newest tokens without the pending one.
    fn without_pending<'a>(&self, newest: &'a [TokenId]) -> &'a [TokenId] {
        let num_pending = usize::from(self.pending.is_some());
        &newest[..newest.len().saturating_sub(num_pending)]
    }

    /// Returns the sampled tokens that the host knows.
    fn output(&self) -> &[TokenId] {
        let prompt = self.sampling.num_prompt_tokens as usize;
        self.without_pending(self.history.get(prompt..).unwrap_or_default())
    }

    /// Whether the newest token was sampled.
    fn is_output(&self) -> bool {
        (self.sampling.num_prompt_tokens as usize) < self.history.len()
    }
}

/// Returns the changes of a row's logits by token, as far as the host knows the tokens.
fn changes_of(row: &SampledRow<'_>, vocab_size: i32) -> BTreeMap<i32, Change> {
    let sampling = row.sampling;
    let mut changes = BTreeMap::new();
    let id = |token: TokenId| i32::try_from(token).ok().filter(|id| *id < vocab_size);
    for (token, bias) in &sampling.logit_bias {
        if let Some(token) = id(*token) {
            changes.entry(token).or_insert(Change::NONE).bias += bias;
        }
    }
    if sampling.repetition_penalty != 1.0 {
        let context = row.without_pending(sampler::repetition_context(row.history, sampling));
        for token in context.iter().copied().filter_map(id) {
            changes.entry(token).or_insert(Change::NONE).repetition = sampling.repetition_penalty;
        }
    }
    if counts_output(sampling) {
        for (token, count) in sampler::counts(row.output()) {
            if let Some(token) = id(token) {
                changes.entry(token).or_insert(Change::NONE).subtracted =
                    sampling.presence_penalty + sampling.frequency_penalty * count as f32;
            }
        }
    }
    changes
}
