//! What mixers with states have in common: their small weights, the convolution before the recurrence,
//! and the sequences of a step.

use std::sync::Arc;

use jackalope_kernels::{
    self as kernels, ConvBiases, ConvKernels, DecayWeights, RecurrenceInputs, RecurrenceRule,
    RecurrenceSizes, RecurrenceWeights, SequenceState, Threads,
};
use jackalope_mlx::{Array, Dtype, dim};
use jackalope_recurrence::{StateArrays, StateStep, convolution, taps};
use jackalope_spec::HeadRows;

use crate::split::{Cut, HeadCounts};
use crate::step::{Step, StepSpan};
use jackalope_parallel::Parallel;
use jackalope_parallel::convolution::conv_kernels;
use jackalope_parallel::heads::Heads;
use jackalope_parallel::kernel::{OwnRows, pinned};
use jackalope_parallel::linear::{HasBias, Linear};
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

/// The part of a checkpoint and the split from which a mixer with states is loaded.
#[derive(Clone, Copy)]
pub(crate) struct RecurrentParts<'a, 'w> {
    pub(crate) layer_idx: usize,
    /// The root of all tensors' names.
    pub(crate) root: &'a Weights<'w>,
    pub(crate) hidden: usize,
    pub(crate) norm_eps: f32,
    /// How the heads are divided.
    pub(crate) counts: HeadCounts,
    pub(crate) parallel: &'a Parallel,
}

impl RecurrentParts<'_, '_> {
    /// Loads the rows of a projection of the stream that belong to the heads of `cut`.
    pub(super) fn projection(
        &self,
        rows: &HeadRows,
        cut: &Cut,
        bias: HasBias,
    ) -> Result<Linear, LoadError> {
        let own = OwnRows::new(rows, cut);
        Linear::of_rows(&self.root.at(&rows.module), self.hidden, &own, bias)
    }
}

/// Storage of the small weights of a recurrence.
#[derive(Clone, Copy)]
pub(super) struct RecurrentTensors<'a> {
    /// Kernels of the convolutions of queries, keys and values.
    pub(super) convolutions: &'a [HeadRows; 3],
    pub(super) conv_width: usize,
    /// Whether the convolutions have biases.
    pub(super) has_conv_bias: bool,
    pub(super) a_log: &'a str,
    pub(super) dt_bias: &'a str,
    /// Number of decays of a value head: one, or one for each element of its key.
    pub(super) decays_per_head: usize,
    /// Factors of the values in the results, if there are any.
    pub(super) skips: Option<&'a str>,
}

/// The small weights of this rank's part of a recurrence, in single precision.
#[derive(Debug)]
pub(super) struct SmallWeights {
    /// Kernels of the convolutions of queries, keys and values, `[channels, conv_width]` each.
    convolutions: [Array; 3],
    /// Their biases, `[channels]` each.
    conv_biases: Option<[Array; 3]>,
    /// For MLX's operations: the kernels by position, `[conv_width, channels]`, their biases,
    /// `[channels]`, and the negative factors of the logarithms of the decays,
    /// `[value_heads * decays_per_head]`.
    taps: Array,
    joined_biases: Option<Array>,
    log_decay_factors: Array,
    a_log: Array,                    // [value_heads]
    dt_bias: Array,                  // [value_heads * decays_per_head]
    pub(super) skips: Option<Array>, // [value_heads]
}

impl SmallWeights {
    /// Loads the weights of this rank's heads.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(super) fn load(
        tensors: RecurrentTensors<'_>,
        heads: &Heads,
        root: &Weights<'_>,
    ) -> Result<SmallWeights, LoadError> {
        let RecurrentTensors { convolutions: rows, conv_width, .. } = tensors;
        let (keys, values) = (&heads.cut.kv_heads, &heads.cut.heads);
        let own = [(&rows[0], keys), (&rows[1], keys), (&rows[2], values)];
        let kernels = own.map(|(rows, cut)| conv_kernels(root, rows, conv_width, cut));
        let [of_queries, of_keys, of_values] = kernels;
        let biases = tensors.has_conv_bias.then(|| {
            own.map(|(rows, cut)| {
                let (module, own) = (root.at(&rows.module), OwnRows::new(rows, cut));
                module.floats_as(Dtype::F32, "bias", &[rows.num_rows], own.part())
            })
        });
        let conv_biases = match biases {
            Some([queries, keys, values]) => Some([queries?, keys?, values?]),
            None => None,
        };
        let vector =
            |name: &str, cut: &Cut| root.at(name).vector_as(Dtype::F32, cut.full, Part::rows(cut));
        let convolutions = [of_queries?, of_keys?, of_values?];
        let taps = taps(&Array::concatenate(&convolutions.each_ref(), 0));
        let joined = |biases: &[Array; 3]| Array::concatenate(&biases.each_ref(), 0);
        let joined_biases = conv_biases.as_ref().map(joined);
        let a_log = vector(tensors.a_log, values)?;
        let log_decay_factors = a_log.exp().neg().repeat(dim(tensors.decays_per_head), 0);
        let computed = [&taps, &log_decay_factors].into_iter().chain(&joined_biases);
        jackalope_mlx::eval(&computed.collect::<Vec<_>>())?;
        Ok(SmallWeights {
            convolutions,
            conv_biases,
            taps,
            joined_biases,
            log_decay_factors,
            a_log,
            dt_bias: vector(tensors.dt_bias, &values.scaled(tensors.decays_per_head))?,
            skips: tensors.skips.map(|name| vector(name, values)).transpose()?,
        })
    }

    /// Arranges the weights for our kernels.
    pub(super) fn arranged(
        &self,
        sizes: RecurrenceSizes,
        rule: RecurrenceRule,
    ) -> RecurrenceWeights {
        let convolutions = self.convolutions.each_ref().map(pinned);
        let [queries, keys, values] = convolutions.each_ref().map(|it| it.values::<f32>());
        let kernels = ConvKernels { queries, keys, values };
        let (a_log, dt_bias) = (pinned(&self.a_log), pinned(&self.dt_bias));
        let decay = DecayWeights { a_log: a_log.values(), dt_bias: dt_bias.values() };
        let mut weights = RecurrenceWeights::new(sizes, rule, kernels, decay);
        if let Some(biases) = &self.conv_biases {
            let biases = biases.each_ref().map(pinned);
            let [queries, keys, values] = biases.each_ref().map(|it| it.values::<f32>());
            weights = weights.with_biases(ConvBiases { queries, keys, values });
        }
        match &self.skips {
            Some(skips) => weights.with_skips(pinned(skips).values()),
            None => weights,
        }
    }

    /// Returns `softplus(projected + dt_bias)` for `projected` `[tokens, value_heads * decays_per_head]`,
    /// with MLX.
    pub(super) fn stock_steps(&self, projected: &Array) -> Array {
        projected.add(&self.dt_bias).logaddexp(&Array::scalar(0.0))
    }

    /// Returns the logarithms of decays that are at least `min` for `projected`
    /// `[tokens, value_heads * decays_per_head]`, with MLX.
    pub(super) fn stock_bounded_decays(&self, projected: &Array, min: f32) -> Array {
        let x = self.log_decay_factors.neg().mul(&projected.add(&self.dt_bias));
        &x.sigmoid() * min
    }

    /// Returns the logarithms of the factors by which the states decay in steps
    /// `[tokens, value_heads * decays_per_head]`, with MLX.
    pub(super) fn stock_log_decays(&self, steps: &Array) -> Array {
        self.log_decay_factors.mul(steps)
    }

    /// Returns `silu(convolution)` of the last rows of `inputs`
    /// `[sequences, conv_width - 1 + seq, channels]`, with MLX.
    pub(super) fn stock_convolution(&self, inputs: &Array) -> Array {
        let sum = convolution(inputs, &self.taps);
        self.joined_biases.as_ref().map_or(sum.clone(), |biases| sum.add(biases)).silu()
    }
}

/// Returns the state of an empty sequence for MLX's operations.
pub(super) fn empty_state(sizes: RecurrenceSizes) -> StateArrays {
    let RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, conv_width } = sizes;
    let channels = 2 * key_heads * key_dim + value_heads * value_dim;
    StateArrays {
        inputs: Array::zeros(&[1, dim(conv_width - 1), dim(channels)], Dtype::F32),
        state: Some(Array::zeros(&[1, dim(value_heads), dim(value_dim), dim(key_dim)], Dtype::F32)),
    }
}

/// The rows of sequences that have as many each, for MLX's operations.
pub(super) struct StockRows {
    /// What the rows were projected to, `[sequences, seq, width]` each.
    pub(super) projected: Vec<Array>,
    /// States before the rows.
    pub(super) held: StateArrays,
}

/// Computes the rows of a step, `[tokens, width]` for each of `projected`, with MLX. `scan` returns
/// results `[sequences, seq, …]` and the states after them; it gets all sequences that decode together,
/// and neighbouring prompts with as many rows each, so that those take one set of operations. `empty` is
/// the state of an empty sequence.
pub(super) fn stock_sequences(
    step: &mut Step<'_, '_>,
    layer_idx: usize,
    projected: &[Array],
    empty: impl Fn() -> StateArrays,
    scan: impl Fn(StockRows) -> (Array, StateArrays),
) -> Array {
    let plan = step.stock_plan();
    let mut outs = Vec::new();
    if let Some(group) = &plan.states {
        let layer = step.caches[0].layer(layer_idx);
        let newcomers = group.assignment.newcomers.iter().map(|&idx| {
            step.caches[group.spans[idx]].take_state_arrays(layer_idx).unwrap_or_else(&empty)
        });
        let newcomers = newcomers.collect();
        let mut slots = plan.slots.borrow_mut();
        let held = slots.states.read(layer, &group.assignment, newcomers);
        let projected = projected.iter().map(|x| group.rows(x)).collect();
        let (out, after) = scan(StockRows { projected, held });
        slots.states.write(layer, &group.assignment, after);
        outs.push(out.flatten(0, 1));
    }
    let mut rest = plan.prompts.as_slice();
    while let Some(&first) = rest.first() {
        let seq = step.spans[first].rows.len();
        let same = rest
            .iter()
            .zip(first..)
            .take_while(|(idx, expected)| *idx == expected && step.spans[**idx].rows.len() == seq);
        let num_same = same.count();
        let last = first + num_same;
        rest = &rest[num_same..];
        let rows = step.spans[first].rows.start..step.spans[last - 1].rows.end;
        let of_rows = |x: &Array| {
            let own = x.slice_axis(0, dim(rows.start), dim(rows.end));
            own.reshape(&[dim(num_same), dim(seq), x.dim(1)])
        };
        let caches = &mut step.caches[first..last];
        let held = caches.iter_mut().map(|it| it.state_arrays(layer_idx));
        let held: Vec<StateArrays> = held.map(|held| held.unwrap_or_else(&empty)).collect();
        let projected = projected.iter().map(of_rows).collect();
        let (out, after) = scan(StockRows { projected, held: StateArrays::joined(&held) });
        for (cache, held) in caches.iter_mut().zip(after.apart()) {
            cache.set_state_arrays(layer_idx, held);
        }
        outs.push(out.flatten(0, 1));
    }
    plan.states_in_order(&outs)
}

/// The states of a step's sequences, for use inside a primitive.
pub(super) struct StepStates {
    spans: Vec<StepSpan>,
    states: Vec<StateStep>,
}

impl StepStates {
    /// Takes the states of a layer.
    pub(super) fn new(layer_idx: usize, step: &mut Step<'_, '_>) -> StepStates {
        StepStates {
            spans: step.spans.clone(),
            states: step.caches.iter_mut().map(|it| it.state_step(layer_idx)).collect(),
        }
    }

    /// Returns what `work` computes from the states of `len` elements each, and stores the states
    /// that it leaves.
    pub(super) fn update<R>(
        &self,
        len: usize,
        work: impl FnOnce(Vec<SequenceState<'_>>) -> R,
    ) -> R {
        let mut states: Vec<Vec<f32>> = self.states.iter().map(|step| step.take(len)).collect();
        let sequences = self.spans.iter().zip(&mut states);
        let sequences =
            sequences.map(|(span, state)| SequenceState { num_rows: span.rows.len(), state });
        let results = work(sequences.collect());
        for (step, state) in self.states.iter().zip(states) {
            step.put(state);
        }
        results
    }
}

/// The part of a primitive's closure that computes a recurrence.
pub(super) struct RecurrenceKernel {
    weights: Arc<RecurrenceWeights>,
    states: StepStates,
}

impl RecurrenceKernel {
    /// Creates the computation of a step's rows.
    pub(super) fn new(
        weights: &Arc<RecurrenceWeights>,
        layer_idx: usize,
        step: &mut Step<'_, '_>,
    ) -> RecurrenceKernel {
        RecurrenceKernel { weights: Arc::clone(weights), states: StepStates::new(layer_idx, step) }
    }

    /// Returns the results `[tokens, value_heads * value_dim]`, and stores the states after them.
    pub(super) fn results(&self, inputs: &RecurrenceInputs<'_>, threads: &Threads) -> Vec<f32> {
        let len = self.weights.sizes().state_len();
        self.states
            .update(len, |states| kernels::recurrence(inputs, states, &self.weights, threads))
    }
}
