//! Causal convolutions of each channel separately, and the gated one that is a mixer of its own.

use jackalope_simd::{ElementsMut, Simd, Threads, dispatched, piece_rows};

use super::SequenceState;

/// Adds the products of consecutive inputs `[taps, channels]`, the oldest first, and their weights to
/// `sums`, channel by channel.
#[inline(always)]
pub(super) fn add_taps<'a, S: Simd>(
    inputs: impl Iterator<Item = &'a [f32]>,
    weights: &[f32],
    sums: &mut [f32],
) {
    for (inputs, weights) in inputs.zip(weights.chunks_exact(sums.len().max(1))) {
        for ((sum, input), weight) in sums.iter_mut().zip(inputs).zip(weights) {
            *sum = S::mul_add_scalar(*input, *weight, *sum);
        }
    }
}

/// The weights of a gated short convolution, in the order in which rows read them.
#[derive(Debug)]
pub struct ShortConvWeights {
    channels: usize,
    width: usize,
    /// `[width, channels]`.
    taps: Vec<f32>,
    /// `[channels]`; zeros if there is none.
    bias: Vec<f32>,
}

impl ShortConvWeights {
    /// Arranges `kernels` `[channels, width]` and a bias `[channels]`.
    ///
    /// # Panics
    /// Panics if a length does not fit.
    #[track_caller]
    pub fn new(kernels: &[f32], width: usize, bias: Option<&[f32]>) -> ShortConvWeights {
        assert!(0 < width && kernels.len().is_multiple_of(width), "{width} weights for a channel");
        let channels = kernels.len() / width;
        assert!(bias.is_none_or(|bias| bias.len() == channels), "a bias for each channel");
        let of_tap = |tap: usize| (0..channels).map(move |channel| kernels[channel * width + tap]);
        let bias = bias.map_or(vec![0.0; channels], <[f32]>::to_vec);
        ShortConvWeights { channels, width, taps: (0..width).flat_map(of_tap).collect(), bias }
    }

    /// Returns the number of elements of a sequence's state: the last inputs of the convolution,
    /// `[width - 1, channels]`.
    pub fn state_len(&self) -> usize {
        (self.width - 1) * self.channels
    }
}

/// The projections of a step's rows, `[rows, channels]` each.
#[derive(Clone, Copy, Debug)]
pub struct ShortConvInputs<'a> {
    /// Factor of the convolution's input.
    pub before: &'a [f32],
    /// The input.
    pub values: &'a [f32],
    /// Factor of the convolution's result.
    pub after: &'a [f32],
}

/// Computes `after * (convolution(before * values) + bias)` `[rows, channels]` of sequences whose rows
/// follow one another (Liquid AI 2025, "LFM2 Technical Report").
///
/// # Panics
/// Panics if a length does not fit.
#[track_caller]
pub fn short_convolution(
    inputs: &ShortConvInputs<'_>,
    mut sequences: Vec<SequenceState<'_>>,
    weights: &ShortConvWeights,
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    let _span = threads.span("short_convolution", 0);
    let ShortConvInputs { before, values, after } = *inputs;
    let channels = weights.channels;
    let num_rows: usize = sequences.iter().map(|it| it.num_rows).sum();
    let is_long = |len: usize| len == num_rows * channels;
    assert!(
        is_long(before.len())
            && is_long(values.len())
            && is_long(after.len())
            && is_long(out.len()),
        "three inputs and a result for each row"
    );
    let has_states = sequences.iter().all(|it| it.state.len() == weights.state_len());
    assert!(has_states, "states of {} elements", weights.state_len());
    let products: Vec<f32> = before.iter().zip(values).map(|(a, b)| a * b).collect();
    let places = places(&sequences);
    let rows = Rows { products: &products, after, places, sequences: &sequences };
    let rows_per_piece = piece_rows(channels.max(1));
    let pieces = out.chunks(rows_per_piece * channels.max(1)).into_iter().enumerate().collect();
    threads.for_each(pieces, |(piece, mut out): (usize, ElementsMut<'_>)| {
        let first = piece * rows_per_piece;
        convolve_rows(threads.instructions(), &rows, weights, first, &mut out);
    });
    let mut first = 0;
    for sequence in &mut sequences {
        let own = &products[first..first + sequence.num_rows * channels];
        first += own.len();
        remember(sequence.state, own);
    }
}

/// The inputs of the convolution and the factors of its results, for all sequences of a step.
struct Rows<'a, 's> {
    /// Inputs of the step, `[rows, channels]`.
    products: &'a [f32],
    /// Factors of the results, `[rows, channels]`.
    after: &'a [f32],
    /// For each row of the step, its sequence and its index there.
    places: Vec<RowPlace>,
    /// The sequences, whose states hold the inputs before those of the step.
    sequences: &'a [SequenceState<'s>],
}

/// Place of a row of a step.
struct RowPlace {
    sequence: usize,
    /// Index among the rows of its sequence.
    idx: usize,
}

fn places(sequences: &[SequenceState<'_>]) -> Vec<RowPlace> {
    let rows = sequences
        .iter()
        .enumerate()
        .flat_map(|(sequence, it)| (0..it.num_rows).map(move |idx| RowPlace { sequence, idx }));
    rows.collect()
}

dispatched! {
    /// Computes the rows from `first` on.
    fn convolve_rows(
        rows: &Rows<'_, '_>,
        weights: &ShortConvWeights,
        first: usize,
        out: &mut ElementsMut<'_>,
    ) = convolve_rows_with
}

#[inline(always)]
fn convolve_rows_with<S: Simd>(
    _simd: S,
    rows: &Rows<'_, '_>,
    weights: &ShortConvWeights,
    first: usize,
    out: &mut ElementsMut<'_>,
) {
    let &ShortConvWeights { channels, width, .. } = weights;
    let num_past = width - 1;
    let mut sums = vec![0.0; channels];
    for (place, row) in rows.places[first..].iter().zip(first..).take(out.len() / channels.max(1)) {
        let &RowPlace { sequence, idx } = place;
        let state = &*rows.sequences[sequence].state;
        // Tap `tap` sees the input `num_past - tap` positions before.
        let inputs = (0..width).map(|tap| match (idx + tap).checked_sub(num_past) {
            Some(own) => {
                let start = (row - idx + own) * channels;
                &rows.products[start..start + channels]
            }
            None => &state[(idx + tap) * channels..(idx + tap + 1) * channels],
        });
        sums.fill(0.0);
        add_taps::<S>(inputs, &weights.taps, &mut sums);
        let factors = &rows.after[row * channels..(row + 1) * channels];
        for ((sum, bias), factor) in sums.iter_mut().zip(&weights.bias).zip(factors) {
            *sum = (*sum + bias) * factor;
        }
        out.store((row - first) * channels, &sums);
    }
}

/// Appends inputs to the last ones of a sequence, and drops as many of the oldest.
fn remember(state: &mut [f32], inputs: &[f32]) {
    let num_kept = state.len().saturating_sub(inputs.len());
    state.copy_within(state.len() - num_kept.., 0);
    let last = &inputs[inputs.len().saturating_sub(state.len())..];
    state[num_kept..].copy_from_slice(last);
}
