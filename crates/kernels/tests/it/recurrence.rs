//! Recurrences against their definition in f64, and alone against chunks, other sequences and a part
//! of the heads.

use jackalope_kernels::{
    ConvBiases, ConvKernels, DecayWeights, Elements, ElementsMut, InstructionSet, NormParameters,
    OutputGates, RecurrenceInputs, RecurrenceRule, RecurrenceSizes, RecurrenceWeights,
    SequenceState, ShortConvInputs, ShortConvWeights, Threads, gated_norm, recurrence,
    short_convolution, sigmoid_gate, silu_gate,
};

/// Numbers in `-1..1` that a seed determines.
fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    };
    (0..len).map(next).collect()
}

fn pools() -> Vec<Threads> {
    let sets = InstructionSet::available().into_iter();
    sets.flat_map(|set| [1, 3].map(|count| Threads::with_instructions(count, set))).collect()
}

/// Sizes, among them widths that are no multiple of a block or of a vector.
const SIZES: [RecurrenceSizes; 4] = [
    RecurrenceSizes { key_heads: 2, value_heads: 4, key_dim: 32, value_dim: 64, conv_width: 4 },
    RecurrenceSizes { key_heads: 3, value_heads: 3, key_dim: 20, value_dim: 40, conv_width: 3 },
    RecurrenceSizes { key_heads: 1, value_heads: 5, key_dim: 7, value_dim: 9, conv_width: 2 },
    RecurrenceSizes { key_heads: 2, value_heads: 2, key_dim: 16, value_dim: 32, conv_width: 1 },
];

const DELTA: RecurrenceRule = RecurrenceRule::GatedDelta { rate_max: 2.0 };

const KIMI: RecurrenceRule = RecurrenceRule::KimiDelta { log_decay_min: None };

const BOUNDED: RecurrenceRule = RecurrenceRule::KimiDelta { log_decay_min: Some(-3.5) };

/// Bounds of the time step that some tokens reach.
const SPACE: RecurrenceRule = RecurrenceRule::StateSpace { step_min: 0.3, step_max: 1.5 };

/// Each rule with sizes that it allows.
fn samples() -> Vec<(RecurrenceSizes, RecurrenceRule)> {
    let of_any = SIZES.into_iter().flat_map(|sizes| [(sizes, DELTA), (sizes, SPACE)]);
    let kimi = [(SIZES[1], KIMI), (SIZES[3], KIMI), (SIZES[1], BOUNDED), (SIZES[3], BOUNDED)];
    of_any.chain(kimi).chain([(SIZES[3], RecurrenceRule::Lightning)]).collect()
}

/// Projections and weights of some rows.
struct Sample {
    sizes: RecurrenceSizes,
    rule: RecurrenceRule,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    decays: Vec<f32>,
    rates: Vec<f32>,
    kernels: [Vec<f32>; 3],
    /// Zero for the delta rules, as `skips` are.
    biases: [Vec<f32>; 3],
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    skips: Vec<f32>,
}

impl Sample {
    fn new(sizes: RecurrenceSizes, rule: RecurrenceRule, rows: usize) -> Sample {
        let in_space =
            |len: usize, seed: u64| if rule == SPACE { numbers(len, seed) } else { vec![0.0; len] };
        let RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, conv_width } = sizes;
        let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
        let decays = value_heads * decays_per_head(rule, sizes);
        Sample {
            sizes,
            rule,
            queries: numbers(rows * keys, 1),
            keys: numbers(rows * keys, 2),
            values: numbers(rows * values, 3),
            decays: numbers(rows * decays, 4),
            rates: numbers(if has_rates(rule) { rows * value_heads } else { 0 }, 5),
            kernels: [keys, keys, values].map(|len| numbers(len * conv_width, len as u64)),
            a_log: numbers(value_heads, 6),
            biases: [keys, keys, values].map(|len| in_space(len, 8 + len as u64)),
            dt_bias: numbers(decays, 7),
            skips: in_space(value_heads, 8),
        }
    }

    fn weights(&self) -> RecurrenceWeights {
        if self.rule == RecurrenceRule::Lightning {
            let factors = self.a_log.iter().map(|a_log| (-a_log.exp()).exp());
            return RecurrenceWeights::lightning(self.sizes, &factors.collect::<Vec<_>>());
        }
        let [queries, keys, values] = self.kernels.each_ref().map(Vec::as_slice);
        let kernels = ConvKernels { queries, keys, values };
        let decay = DecayWeights { a_log: &self.a_log, dt_bias: &self.dt_bias };
        let weights = RecurrenceWeights::new(self.sizes, self.rule, kernels, decay);
        if self.rule != SPACE {
            return weights;
        }
        let [queries, keys, values] = self.biases.each_ref().map(Vec::as_slice);
        weights.with_biases(ConvBiases { queries, keys, values }).with_skips(&self.skips)
    }

    /// The same sequence with some of its key heads and their value heads alone.
    fn part(&self, heads: std::ops::Range<usize>) -> Sample {
        let RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, conv_width } = self.sizes;
        let group = value_heads / key_heads;
        let values = heads.start * group..heads.end * group;
        let take = |x: &[f32], all: usize, own: &std::ops::Range<usize>, width: usize| {
            if x.is_empty() {
                return Vec::new();
            }
            let rows = x.chunks_exact(all * width);
            rows.flat_map(|row| row[own.start * width..own.end * width].to_vec()).collect()
        };
        let [q, k, v] = &self.kernels;
        let [q_bias, k_bias, v_bias] = &self.biases;
        let per_head = decays_per_head(self.rule, self.sizes);
        Sample {
            sizes: RecurrenceSizes {
                key_heads: heads.len(),
                value_heads: values.len(),
                ..self.sizes
            },
            rule: self.rule,
            queries: take(&self.queries, key_heads, &heads, key_dim),
            keys: take(&self.keys, key_heads, &heads, key_dim),
            values: take(&self.values, value_heads, &values, value_dim),
            decays: take(&self.decays, value_heads, &values, per_head),
            rates: take(&self.rates, value_heads, &values, 1),
            kernels: [
                take(q, key_heads, &heads, key_dim * conv_width),
                take(k, key_heads, &heads, key_dim * conv_width),
                take(v, value_heads, &values, value_dim * conv_width),
            ],
            biases: [
                take(q_bias, key_heads, &heads, key_dim),
                take(k_bias, key_heads, &heads, key_dim),
                take(v_bias, value_heads, &values, value_dim),
            ],
            a_log: take(&self.a_log, value_heads, &values, 1),
            skips: take(&self.skips, value_heads, &values, 1),
            dt_bias: take(&self.dt_bias, value_heads, &values, per_head),
        }
    }

    /// Computes rows of these lengths; each sequence continues its state.
    fn run(&self, lens: &[usize], states: &mut [Vec<f32>], threads: &Threads) -> Vec<f32> {
        self.run_from(0, lens, states, threads)
    }

    fn run_from(
        &self,
        first: usize,
        lens: &[usize],
        states: &mut [Vec<f32>],
        threads: &Threads,
    ) -> Vec<f32> {
        let RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, .. } = self.sizes;
        let last = first + lens.iter().sum::<usize>();
        let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
        let decays = value_heads * decays_per_head(self.rule, self.sizes);
        let inputs = RecurrenceInputs {
            queries: &self.queries[first * keys..last * keys],
            keys: &self.keys[first * keys..last * keys],
            values: &self.values[first * values..last * values],
            decays: &self.decays[first * decays..last * decays],
            rates: match has_rates(self.rule) {
                false => &[],
                true => &self.rates[first * value_heads..last * value_heads],
            },
        };
        let sequences = lens.iter().zip(states);
        let sequences =
            sequences.map(|(&num_rows, state)| SequenceState { num_rows, state }).collect();
        recurrence(&inputs, sequences, &self.weights(), threads)
    }

    fn zeros(&self) -> Vec<f32> {
        vec![0.0; self.sizes.state_len()]
    }

    /// The definition, in f64: one sequence from an empty state.
    fn expected(&self, rows: usize) -> Vec<f64> {
        let RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, .. } = self.sizes;
        let convolved = |idx: usize, x: &[f32], width: usize| {
            if self.rule == RecurrenceRule::Lightning {
                return x.iter().map(|x| f64::from(*x)).collect();
            }
            convolved(x, &self.kernels[idx], &self.biases[idx], width, self.sizes.conv_width)
        };
        let q = convolved(0, &self.queries, key_heads * key_dim);
        let k = convolved(1, &self.keys, key_heads * key_dim);
        let v = convolved(2, &self.values, value_heads * value_dim);
        let mut results = vec![0.0; rows * value_heads * value_dim];
        for head in 0..value_heads {
            let key_head = head / (value_heads / key_heads);
            let mut state = vec![vec![0.0_f64; key_dim]; value_dim];
            for row in 0..rows {
                let of_head = |x: &[f64]| {
                    let start = (row * key_heads + key_head) * key_dim;
                    x[start..start + key_dim].to_vec()
                };
                let (mut query, mut key) = (of_head(&q), of_head(&k));
                let idx = row * value_heads + head;
                let per_head = decays_per_head(self.rule, self.sizes);
                let step = |element: usize| {
                    if self.rule == RecurrenceRule::Lightning {
                        return 1.0;
                    }
                    let offset = element % per_head;
                    let x = f64::from(self.decays[idx * per_head + offset])
                        + f64::from(self.dt_bias[head * per_head + offset]);
                    if let RecurrenceRule::KimiDelta { log_decay_min: Some(min) } = self.rule {
                        let factor = f64::from(self.a_log[head]).exp();
                        return -f64::from(min) / factor / (1.0 + (-factor * x).exp());
                    }
                    x.exp().ln_1p()
                };
                let mut times: Vec<f64> = (0..key_dim).map(step).collect();
                if let RecurrenceRule::StateSpace { step_min, step_max } = self.rule {
                    let bounds = (f64::from(step_min), f64::from(step_max));
                    times.iter_mut().for_each(|time| *time = time.max(bounds.0).min(bounds.1));
                } else if has_rates(self.rule) {
                    to_length_one(&mut query);
                    to_length_one(&mut key);
                    query.iter_mut().for_each(|it| *it /= (key_dim as f64).sqrt());
                }
                let factor = -f64::from(self.a_log[head]).exp();
                for (lane, state) in state.iter_mut().enumerate() {
                    let value = v[idx * value_dim + lane];
                    state.iter_mut().zip(&times).for_each(|(s, time)| *s *= (factor * time).exp());
                    let added = if !has_rates(self.rule) {
                        times[0] * value
                    } else {
                        let found: f64 = state.iter().zip(&key).map(|(s, k)| s * k).sum();
                        let rate_max = if self.rule == DELTA { 2.0 } else { 1.0 };
                        (value - found) * rate_max / (1.0 + (-f64::from(self.rates[idx])).exp())
                    };
                    state.iter_mut().zip(&key).for_each(|(s, k)| *s += added * k);
                    let result: f64 = state.iter().zip(&query).map(|(s, q)| s * q).sum();
                    let skipped = f64::from(self.skips[head]) * value;
                    results[idx * value_dim + lane] = result + skipped;
                }
            }
        }
        results
    }
}

/// Returns the number of decays of a value head that a token has.
fn decays_per_head(rule: RecurrenceRule, sizes: RecurrenceSizes) -> usize {
    match rule {
        RecurrenceRule::KimiDelta { .. } => sizes.key_dim,
        RecurrenceRule::Lightning => 0,
        RecurrenceRule::GatedDelta { .. } | RecurrenceRule::StateSpace { .. } => 1,
    }
}

fn has_rates(rule: RecurrenceRule) -> bool {
    matches!(rule, RecurrenceRule::GatedDelta { .. } | RecurrenceRule::KimiDelta { .. })
}

fn to_length_one(x: &mut [f64]) {
    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    x.iter_mut().for_each(|x| *x /= length);
}

fn convolved(x: &[f32], kernel: &[f32], bias: &[f32], width: usize, taps: usize) -> Vec<f64> {
    let at = |row: usize, idx: usize| f64::from(x[row * width + idx]);
    let element = |flat: usize| {
        let (row, idx) = (flat / width, flat % width);
        let terms = (0..taps).filter(|tap| taps <= row + 1 + tap);
        let sum: f64 = terms
            .map(|tap| at(row + 1 + tap - taps, idx) * f64::from(kernel[idx * taps + tap]))
            .sum();
        let sum = sum + f64::from(bias[idx]);
        sum / (1.0 + (-sum).exp())
    };
    (0..x.len()).map(element).collect()
}

#[test]
fn all_rules_are_their_definitions() {
    const ROWS: usize = 23;
    for (sizes, rule) in samples() {
        let sample = Sample::new(sizes, rule, ROWS);
        let expected = sample.expected(ROWS);
        for threads in pools() {
            let found = sample.run(&[ROWS], &mut [sample.zeros()], &threads);
            for (idx, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let error = (f64::from(*found) - expected).abs();
                assert!(
                    error < 2e-5,
                    "{rule:?}, {sizes:?}, element {idx}: {found}, not {expected}"
                );
            }
        }
    }
}

#[test]
fn a_sequence_in_chunks_and_among_others_has_the_bits_of_the_whole() {
    const ROWS: usize = 23;
    for (sizes, rule) in samples() {
        let sample = Sample::new(sizes, rule, ROWS);
        for threads in pools() {
            let mut whole_state = [sample.zeros()];
            let whole = sample.run(&[ROWS], &mut whole_state, &threads);
            for chunk in [1, 2, 7, 22] {
                let mut state = [sample.zeros()];
                let found: Vec<f32> = (0..ROWS)
                    .step_by(chunk)
                    .flat_map(|first| {
                        let len = chunk.min(ROWS - first);
                        sample.run_from(first, &[len], &mut state, &threads)
                    })
                    .collect();
                assert!(found == whole && state == whole_state, "{sizes:?}: chunks of {chunk}");
            }
            // Three sequences that begin within the rows.
            let lens = [5, 1, 17];
            let mut states = [sample.zeros(), sample.zeros(), sample.zeros()];
            let together = sample.run(&lens, &mut states, &threads);
            let mut first = 0;
            let width = sizes.value_heads * sizes.value_dim;
            for (len, state) in lens.into_iter().zip(states) {
                let mut own = [sample.zeros()];
                let alone = sample.run_from(first, &[len], &mut own, &threads);
                assert_eq!(together[first * width..(first + len) * width], alone);
                assert_eq!(state, own[0]);
                first += len;
            }
        }
    }
}

#[test]
fn a_part_of_the_heads_has_the_bits_of_all() {
    const ROWS: usize = 9;
    let rules = [DELTA, SPACE, KIMI, BOUNDED];
    let samples = rules.map(|rule| Sample::new(SIZES[1], rule, ROWS));
    let lightning = RecurrenceSizes { conv_width: 1, ..SIZES[1] };
    let lightning = Sample::new(lightning, RecurrenceRule::Lightning, ROWS);
    let samples = samples.into_iter().chain([lightning]).collect::<Vec<_>>();
    for (sample, threads) in samples.iter().flat_map(|it| pools().into_iter().map(move |p| (it, p)))
    {
        let whole = sample.run(&[ROWS], &mut [sample.zeros()], &threads);
        let part = sample.part(1..3);
        let found = part.run(&[ROWS], &mut [part.zeros()], &threads);
        let dim = SIZES[1].value_dim;
        for (row, found) in whole.chunks_exact(3 * dim).zip(found.chunks_exact(2 * dim)) {
            assert_eq!(row[dim..], *found);
        }
    }
}

#[test]
fn gates_are_their_definitions() {
    let (x, gates) = (numbers(6 * 1000, 1), numbers(6 * 1000, 2));
    let weight = numbers(40, 3);
    let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
    let kinds = [OutputGates::Silu(&gates), OutputGates::Sigmoid(&gates)];
    for (threads, kind) in
        kinds.iter().flat_map(|kind| pools().into_iter().map(move |it| (it, *kind)))
    {
        let mut found = vec![0.0; x.len()];
        let weights = Some(Elements::F32(&weight));
        let norm = NormParameters { is_centred: false, weight: weights, bias: None, eps: 1e-5 };
        gated_norm(&x, norm, kind, ElementsMut::F32(&mut found), &threads);
        for ((x, gates), found) in x.chunks(40).zip(gates.chunks(40)).zip(found.chunks(40)) {
            let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
            let scale = 1.0 / (squares / 40.0 + 1e-5).sqrt();
            for (((x, gate), weight), found) in x.iter().zip(gates).zip(&weight).zip(found) {
                let factor = match kind {
                    OutputGates::Silu(_) => f64::from(*gate) * sigmoid(*gate),
                    OutputGates::Sigmoid(_) => sigmoid(*gate),
                };
                let expected = f64::from(*x) * scale * f64::from(*weight) * factor;
                assert!((f64::from(*found) - expected).abs() < 1e-5, "{found}, not {expected}");
            }
        }
        let mut gated = x.clone();
        silu_gate(&mut gated, &gates, &threads);
        for ((x, gate), found) in x.iter().zip(&gates).zip(&gated) {
            let expected = f64::from(*x) * f64::from(*gate) * sigmoid(*gate);
            assert!((f64::from(*found) - expected).abs() < 1e-6, "{found}, not {expected}");
        }
        sigmoid_gate(Elements::F32(&x), &gates, ElementsMut::F32(&mut found), &threads);
        for ((x, gate), found) in x.iter().zip(&gates).zip(&found) {
            let expected = f64::from(*x) / (1.0 + (-f64::from(*gate)).exp());
            assert!((f64::from(*found) - expected).abs() < 1e-6, "{found}, not {expected}");
        }
    }
}

/// Projections and weights of a gated short convolution.
struct ShortSample {
    channels: usize,
    width: usize,
    inputs: [Vec<f32>; 3],
    kernels: Vec<f32>,
    bias: Vec<f32>,
}

impl ShortSample {
    fn new(channels: usize, width: usize, rows: usize) -> ShortSample {
        ShortSample {
            channels,
            width,
            inputs: [1, 2, 3].map(|seed| numbers(rows * channels, seed)),
            kernels: numbers(channels * width, 4),
            bias: numbers(channels, 5),
        }
    }

    /// Computes rows of these lengths from `first` on; each sequence continues its state.
    fn run(
        &self,
        first: usize,
        lens: &[usize],
        states: &mut [Vec<f32>],
        threads: &Threads,
    ) -> Vec<f32> {
        let last = first + lens.iter().sum::<usize>();
        let [before, values, after] =
            self.inputs.each_ref().map(|x| &x[first * self.channels..last * self.channels]);
        let weights = ShortConvWeights::new(&self.kernels, self.width, Some(&self.bias));
        let sequences = lens.iter().zip(states);
        let sequences = sequences.map(|(&num_rows, state)| {
            state.resize(weights.state_len(), 0.0);
            SequenceState { num_rows, state }
        });
        let mut out = vec![0.0; after.len()];
        let inputs = ShortConvInputs { before, values, after };
        let sequences = sequences.collect();
        let result = ElementsMut::F32(&mut out);
        short_convolution(&inputs, sequences, &weights, result, threads);
        out
    }

    /// The definition, in f64, for one sequence.
    fn expected(&self) -> Vec<f64> {
        let [before, values, after] = &self.inputs;
        let at =
            |x: &[f32], row: usize, channel: usize| f64::from(x[row * self.channels + channel]);
        let rows = before.len() / self.channels;
        let cells = (0..rows).flat_map(|row| (0..self.channels).map(move |it| (row, it)));
        let cell = |(row, channel): (usize, usize)| {
            let taps = (0..self.width.min(row + 1)).map(|back| {
                let weight = self.kernels[channel * self.width + self.width - 1 - back];
                let input = at(before, row - back, channel) * at(values, row - back, channel);
                input * f64::from(weight)
            });
            (taps.sum::<f64>() + f64::from(self.bias[channel])) * at(after, row, channel)
        };
        cells.map(cell).collect()
    }
}

/// Channels and positions, among them channels that are no multiple of a vector, and rows that
/// several threads compute.
const SHORT: [[usize; 3]; 4] = [[64, 3, 20], [37, 4, 9], [5, 1, 6], [1500, 3, 30]];

#[test]
fn gated_short_convolutions_agree_with_their_definition() {
    for threads in pools() {
        for [channels, width, rows] in SHORT {
            let sample = ShortSample::new(channels, width, rows);
            let found = sample.run(0, &[rows], &mut [Vec::new()], &threads);
            for (found, expected) in found.iter().zip(sample.expected()) {
                assert!((f64::from(*found) - expected).abs() < 1e-5, "{channels} of {width}");
            }
        }
    }
}

#[test]
fn no_bit_of_a_short_convolution_depends_on_chunks_or_other_sequences() {
    for threads in pools() {
        for [channels, width, rows] in SHORT {
            let sample = ShortSample::new(channels, width, rows);
            let whole = sample.run(0, &[rows], &mut [Vec::new()], &threads);
            // Chunks that are shorter than the convolution and longer; the first is of no rows.
            let (mut states, mut first, mut found) = ([Vec::new()], 0, Vec::new());
            for len in [0, 1, 1, 3, rows - 5] {
                found.extend(sample.run(first, &[len], &mut states, &threads));
                first += len;
            }
            assert_eq!(found, whole, "{channels} channels in chunks");
            // A sequence whose rows follow those of another.
            let both = sample.run(0, &[2, rows - 2], &mut [Vec::new(), Vec::new()], &threads);
            assert_eq!(both[..2 * channels], whole[..2 * channels]);
            let alone = sample.run(2, &[rows - 2], &mut [Vec::new()], &threads);
            assert_eq!(both[2 * channels..], alone, "{channels} channels after another sequence");
        }
    }
}
