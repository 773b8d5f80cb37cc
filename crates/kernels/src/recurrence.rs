//! Mixers with a state of fixed size: a short causal convolution over keys, queries and values, then
//! a recurrence that updates a matrix for each value head, token by token.
//!
//! A prompt is computed token by token as well, so that no bit depends on how it is cut into chunks.
//! The values of a head are divided into blocks of lanes that never meet; a job computes one block of
//! one sequence.
//!
//! ```text
//!   queries, keys ─▶ convolution ─ norm ─┐      (a job per key head)
//!   values ────────▶ convolution ────────┴─▶ recurrence ─▶ results   (a job per block of values)
//! ```

mod block;
mod convolution;
mod gate;
mod keys;
mod weights;

use std::ops::Range;

use jackalope_simd::Threads;

use self::block::{Block, ValueJob, value_block};
use self::keys::{KeyJob, key_rows};

pub use self::convolution::{ShortConvInputs, ShortConvWeights, short_convolution};
pub use self::gate::{OutputGates, gated_norm, sigmoid_gate, silu_gate};
pub use self::weights::{ConvBiases, ConvKernels, DecayWeights, RecurrenceRule, RecurrenceWeights};

/// Number of lanes of a block. With a key of 128 elements its state is 16 KiB, which a core's nearest
/// cache holds.
const BLOCK: usize = 32;

/// Heads and widths of a recurrence.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecurrenceSizes {
    /// Number of heads of keys and queries.
    pub key_heads: usize,
    /// Number of heads of values; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a key and of a query.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Number of positions that the convolution of a row sees, including the row's own.
    pub conv_width: usize,
}

impl RecurrenceSizes {
    /// Returns the number of elements of a sequence's state, with the last inputs of the
    /// convolutions.
    pub fn state_len(&self) -> usize {
        self.key_heads * self.key_history() + self.value_heads * self.head_rows() * self.value_dim
    }

    /// Number of inputs of the convolution that a key head keeps.
    fn key_history(&self) -> usize {
        2 * (self.conv_width - 1) * self.key_dim
    }

    /// Rows of a block of values: those of the state, then the last inputs of the convolution.
    fn head_rows(&self) -> usize {
        self.key_dim + self.conv_width - 1
    }

    fn key_heads_of(&self, value_head: usize) -> usize {
        value_head / (self.value_heads / self.key_heads)
    }

    /// Lanes of the blocks of a value head.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let width = self.value_dim;
        (0..width).step_by(BLOCK).map(move |start| start..(start + BLOCK).min(width))
    }
}

/// The projections of a step's rows.
#[derive(Clone, Copy, Debug)]
pub struct RecurrenceInputs<'a> {
    /// Projections to queries, `[rows, key_heads, key_dim]`.
    pub queries: &'a [f32],
    /// Projections to keys, `[rows, key_heads, key_dim]`.
    pub keys: &'a [f32],
    /// Projections to values, `[rows, value_heads, value_dim]`.
    pub values: &'a [f32],
    /// Projection to the decay, `[rows, value_heads]`, or `[rows, value_heads, key_dim]` if each element
    /// of a key decays separately; empty if decays are constant.
    pub decays: &'a [f32],
    /// Logits of the correction's rate, `[rows, value_heads]`; empty if the rule has none.
    pub rates: &'a [f32],
}

/// Consecutive rows of one sequence.
#[derive(Debug)]
pub struct SequenceState<'a> {
    /// Number of rows.
    pub num_rows: usize,
    /// State before the rows, and after them; see [`RecurrenceSizes::state_len`]. Zeros for a new
    /// sequence.
    pub state: &'a mut [f32],
}

/// Computes the results `[rows, value_heads, value_dim]` of sequences whose rows follow one another.
///
/// # Panics
/// Panics if a length does not fit.
#[track_caller]
pub fn recurrence(
    inputs: &RecurrenceInputs<'_>,
    sequences: Vec<SequenceState<'_>>,
    weights: &RecurrenceWeights,
    threads: &Threads,
) -> Vec<f32> {
    let _span = threads.span("recurrence", 0);
    let sizes = weights.sizes();
    let num_rows: usize = sequences.iter().map(|it| it.num_rows).sum();
    assert_lengths(inputs, &sequences, weights, num_rows);
    let key_width = weights.key_width();
    let values_width = sizes.value_heads * sizes.value_dim;
    let mut placed = vec![0.0; num_rows * sizes.key_heads * key_width];
    let mut blocks = vec![0.0; num_rows * values_width];
    let lens: Vec<usize> = sequences.iter().map(|it| it.num_rows).collect();
    let histories_len = sizes.key_heads * sizes.key_history();
    let (histories, states): (Vec<_>, Vec<_>) =
        sequences.into_iter().map(|it| it.state.split_at_mut(histories_len)).unzip();
    let jobs = key_jobs(weights, &lens, histories, &mut placed);
    threads.for_each(jobs, |job| key_rows(threads.instructions(), inputs, weights, job));
    let jobs = value_jobs(weights, &lens, states, &placed, &mut blocks);
    threads.for_each(jobs, |job| value_block(threads.instructions(), inputs, weights, job));
    let mut results = vec![0.0; num_rows * values_width];
    gather(&sizes, &lens, &blocks, &mut results, threads);
    results
}

#[track_caller]
fn assert_lengths(
    inputs: &RecurrenceInputs<'_>,
    sequences: &[SequenceState<'_>],
    weights: &RecurrenceWeights,
    num_rows: usize,
) {
    let sizes = weights.sizes();
    let RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, .. } = sizes;
    let is_long = |x: &[f32], width: usize| x.len() == num_rows * width;
    assert!(
        is_long(inputs.queries, key_heads * key_dim) && is_long(inputs.keys, key_heads * key_dim),
        "a query and a key for each row"
    );
    assert!(is_long(inputs.values, value_heads * value_dim), "values for each row");
    let (decays, rates) = match weights.rule() {
        RecurrenceRule::GatedDelta { .. } => (value_heads, value_heads),
        RecurrenceRule::KimiDelta { .. } => (value_heads * key_dim, value_heads),
        RecurrenceRule::StateSpace { .. } => (value_heads, 0),
        RecurrenceRule::Lightning => (0, 0),
    };
    assert!(is_long(inputs.decays, decays), "decays by the rule");
    assert!(is_long(inputs.rates, rates), "rates by the rule");
    let states = sequences.iter().all(|it| it.state.len() == sizes.state_len());
    assert!(states, "states of {} elements", sizes.state_len());
}

/// Returns a job for each key head of each sequence.
fn key_jobs<'a>(
    weights: &RecurrenceWeights,
    lens: &[usize],
    histories: Vec<&'a mut [f32]>,
    mut placed: &'a mut [f32],
) -> Vec<KeyJob<'a>> {
    let (sizes, key_width) = (weights.sizes(), weights.key_width());
    let mut jobs = Vec::with_capacity(lens.len() * sizes.key_heads);
    let mut first_row = 0;
    for (&len, mut histories) in lens.iter().zip(histories) {
        for head in 0..sizes.key_heads {
            let (history, placed) =
                (take(&mut histories, sizes.key_history()), take(&mut placed, len * key_width));
            jobs.push(KeyJob { head, rows: first_row..first_row + len, history, placed });
        }
        first_row += len;
    }
    jobs
}

/// Returns a job for each block of each value head of each sequence.
fn value_jobs<'a>(
    weights: &RecurrenceWeights,
    lens: &[usize],
    states: Vec<&'a mut [f32]>,
    placed: &'a [f32],
    mut out: &'a mut [f32],
) -> Vec<ValueJob<'a>> {
    let mut jobs = Vec::new();
    let (sizes, key_width) = (weights.sizes(), weights.key_width());
    let mut first_row = 0;
    for (&len, mut states) in lens.iter().zip(states) {
        let of_sequence = &placed[first_row * sizes.key_heads * key_width..];
        for head in 0..sizes.value_heads {
            let start = sizes.key_heads_of(head) * len * key_width;
            for (block_idx, lanes) in sizes.blocks().enumerate() {
                let state = take(&mut states, sizes.head_rows() * lanes.len());
                let out = take(&mut out, len * lanes.len());
                let rows = first_row..first_row + len;
                let placed = &of_sequence[start..start + len * key_width];
                let block = Block { head, idx: block_idx, lanes, rows, placed };
                jobs.push(ValueJob { block, state, out });
            }
        }
        first_row += len;
    }
    jobs
}

/// Splits off the first `len` elements.
fn take<'a>(rest: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (head, tail) = std::mem::take(rest).split_at_mut(len);
    *rest = tail;
    head
}

/// Number of elements that a piece of gathering writes, about.
const PIECE_ELEMENTS: usize = 1 << 13;

/// Copies the results of the blocks, block by block, into rows.
fn gather(
    sizes: &RecurrenceSizes,
    lens: &[usize],
    blocks: &[f32],
    results: &mut [f32],
    threads: &Threads,
) {
    let width = sizes.value_heads * sizes.value_dim;
    let mut pieces = Vec::new();
    let (mut blocks, mut results) = (blocks, results);
    for &len in lens {
        let (own, other) = blocks.split_at(len * width);
        blocks = other;
        let rows_per_piece = (PIECE_ELEMENTS / width.max(1)).max(1);
        for first in (0..len).step_by(rows_per_piece) {
            let rows = first..(first + rows_per_piece).min(len);
            pieces.push((own, len, rows.clone(), take(&mut results, rows.len() * width)));
        }
    }
    threads.for_each(pieces, |(own, len, rows, out)| {
        for (row, out) in rows.zip(out.chunks_exact_mut(width.max(1))) {
            let mut start = 0;
            for (head, out) in out.chunks_exact_mut(sizes.value_dim).enumerate() {
                assert_eq!(start, head * sizes.value_dim * len, "heads follow one another");
                for lanes in sizes.blocks() {
                    let from = start + row * lanes.len();
                    out[lanes.clone()].copy_from_slice(&own[from..from + lanes.len()]);
                    start += len * lanes.len();
                }
            }
        }
    });
}
