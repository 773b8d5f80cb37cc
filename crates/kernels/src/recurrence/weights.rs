//! The small weights of a recurrence, in the order in which the jobs read them.

use super::{BLOCK, RecurrenceSizes};

/// How a token changes the state `S` of a value head; `k` is its key, `q` its query, `v` its value and
/// `g` its decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RecurrenceRule {
    /// The gated delta rule (Yang et al. 2024, equation 10): `S = g S + r (v - g S k) kᵀ`, the result
    /// is `S q`. Keys and queries have length one, queries are divided by the root of their width.
    /// The rate `r` is `rate_max` times a logistic function.
    GatedDelta {
        /// Maximum of the rate.
        rate_max: f32,
    },
    /// Kimi delta attention (Kimi team 2025, "Kimi Linear", equation 1): the gated delta rule with
    /// rates of at most one, where each element of a key has a decay of its own. There are as many
    /// heads of keys as of values.
    KimiDelta {
        /// Minimum of the decays' logarithms, which are it times a logistic function then.
        log_decay_min: Option<f32>,
    },
    /// The state space of Mamba-2 (Dao and Gu 2024, section 3): `S = g S + t v kᵀ`, the result is
    /// `S q + d v`. The token's time step `t` is the softplus of its projection to the decay, within
    /// bounds; `d` is a weight of the head.
    StateSpace {
        /// Minimum of the time step.
        step_min: f32,
        /// Maximum of the time step.
        step_max: f32,
    },
    /// Lightning attention (Qin et al. 2024, equation 6): `S = g S + v kᵀ`, the result is `S q`. Nothing
    /// is convolved, and the decay of a head is the same for all tokens.
    Lightning,
}

/// How far a token lets a value head's state decay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decay {
    /// Time step.
    pub(super) step: f32,
    /// Factor of the state.
    pub(super) factor: f32,
}

impl Decay {
    /// No decay.
    pub(super) const NONE: Decay = Decay { step: 0.0, factor: 1.0 };
}

/// The small weights of a recurrence.
#[derive(Debug)]
pub struct RecurrenceWeights {
    sizes: RecurrenceSizes,
    rule: RecurrenceRule,
    /// For each key head `[conv_width, 2 * key_dim]`: queries, then keys.
    key_kernels: Vec<f32>,
    /// For each block of each value head `[conv_width]` rows.
    value_kernels: Vec<[f32; BLOCK]>,
    /// Bias of the convolution, for each key head `[2 * key_dim]`.
    key_biases: Vec<f32>,
    /// Bias of the convolution, for each block of each value head.
    value_biases: Vec<[f32; BLOCK]>,
    /// Factor of each value head's decay.
    factors: Vec<f64>,
    /// Bias of the projections to decays.
    dt_bias: Vec<f32>,
    /// Factor of each value head's value in the result.
    skips: Vec<f32>,
}

/// The kernels of the convolutions, one for each element of the projections.
#[derive(Clone, Copy, Debug)]
pub struct ConvKernels<'a> {
    /// Kernels of the queries, `[key_heads, key_dim, conv_width]`.
    pub queries: &'a [f32],
    /// Kernels of the keys, `[key_heads, key_dim, conv_width]`.
    pub keys: &'a [f32],
    /// Kernels of the values, `[value_heads, value_dim, conv_width]`.
    pub values: &'a [f32],
}

/// What is added to the convolutions, one number for each element of the projections.
#[derive(Clone, Copy, Debug)]
pub struct ConvBiases<'a> {
    /// Biases of the queries, `[key_heads, key_dim]`.
    pub queries: &'a [f32],
    /// Biases of the keys, `[key_heads, key_dim]`.
    pub keys: &'a [f32],
    /// Biases of the values, `[value_heads, value_dim]`.
    pub values: &'a [f32],
}

/// The decay of each value head: `exp(-exp(a_log) softplus(x + dt_bias))` (Gu and Dao 2023), or
/// `exp(min * sigmoid(exp(a_log) (x + dt_bias)))` with a minimum.
#[derive(Clone, Copy, Debug)]
pub struct DecayWeights<'a> {
    /// `a_log` of the formula, `[value_heads]`.
    pub a_log: &'a [f32],
    /// Bias of the projections `x`, `[value_heads]`, or `[value_heads, key_dim]` if each element of
    /// a key decays separately.
    pub dt_bias: &'a [f32],
}

impl RecurrenceWeights {
    /// Arranges the weights in the order in which the jobs read them.
    ///
    /// # Panics
    /// Panics if a length does not fit, or value heads are no multiple of key heads.
    #[track_caller]
    pub fn new(
        sizes: RecurrenceSizes,
        rule: RecurrenceRule,
        kernels: ConvKernels<'_>,
        decay: DecayWeights<'_>,
    ) -> RecurrenceWeights {
        let RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, conv_width } = sizes;
        assert!(0 < conv_width && 0 < key_dim && 0 < value_dim, "no width is zero");
        assert!(value_heads == 0 || value_heads.is_multiple_of(key_heads), "groups of value heads");
        let keys_len = key_heads * key_dim * conv_width;
        let values_len = value_heads * value_dim * conv_width;
        assert_eq!([kernels.queries.len(), kernels.keys.len()], [keys_len; 2], "kernels of keys");
        assert_eq!(kernels.values.len(), values_len, "kernels of values");
        let biases = match rule {
            RecurrenceRule::GatedDelta { .. } | RecurrenceRule::StateSpace { .. } => value_heads,
            RecurrenceRule::Lightning => panic!("lightning attention convolves nothing"),
            RecurrenceRule::KimiDelta { .. } => {
                assert_eq!(key_heads, value_heads, "as many heads of keys as of values");
                value_heads * key_dim
            }
        };
        assert_eq!([decay.a_log.len(), decay.dt_bias.len()], [value_heads, biases], "decays");
        let mut key_kernels = Vec::with_capacity(2 * keys_len);
        for head in 0..key_heads {
            for tap in 0..conv_width {
                for of in [kernels.queries, kernels.keys] {
                    let elements = (0..key_dim).map(|idx| head * key_dim + idx);
                    key_kernels.extend(elements.map(|element| of[element * conv_width + tap]));
                }
            }
        }
        let mut value_kernels = Vec::new();
        for head in 0..value_heads {
            for lanes in sizes.blocks() {
                for tap in 0..conv_width {
                    let mut row = [0.0; BLOCK];
                    for (lane, weight) in lanes.clone().zip(&mut row) {
                        let element = head * value_dim + lane;
                        *weight = kernels.values[element * conv_width + tap];
                    }
                    value_kernels.push(row);
                }
            }
        }
        let factors = decay.a_log.iter().map(|a_log| f64::from(*a_log).exp()).collect();
        RecurrenceWeights {
            sizes,
            rule,
            key_kernels,
            key_biases: vec![0.0; 2 * key_heads * key_dim],
            value_biases: vec![[0.0; BLOCK]; value_kernels.len() / conv_width],
            value_kernels,
            factors,
            dt_bias: decay.dt_bias.to_vec(),
            skips: vec![0.0; value_heads],
        }
    }

    /// Returns the weights of lightning attention, whose value heads decay by `factors`.
    ///
    /// # Panics
    /// Panics if there is no factor for each head, or the sizes have a convolution.
    #[track_caller]
    pub fn lightning(sizes: RecurrenceSizes, factors: &[f32]) -> RecurrenceWeights {
        assert_eq!((factors.len(), sizes.conv_width), (sizes.value_heads, 1), "factors of heads");
        RecurrenceWeights {
            sizes,
            rule: RecurrenceRule::Lightning,
            key_kernels: Vec::new(),
            value_kernels: Vec::new(),
            key_biases: Vec::new(),
            value_biases: Vec::new(),
            factors: factors.iter().map(|factor| f64::from(*factor)).collect(),
            dt_bias: Vec::new(),
            skips: vec![0.0; sizes.value_heads],
        }
    }

    /// Returns the weights with biases of the convolutions, which are zero before.
    ///
    /// # Panics
    /// Panics if a length does not fit.
    #[track_caller]
    pub fn with_biases(self, biases: ConvBiases<'_>) -> RecurrenceWeights {
        let RecurrenceSizes { key_heads, value_heads, key_dim, value_dim, .. } = self.sizes;
        let keys_len = key_heads * key_dim;
        assert_eq!([biases.queries.len(), biases.keys.len()], [keys_len; 2], "biases of keys");
        assert_eq!(biases.values.len(), value_heads * value_dim, "biases of values");
        let both = biases.queries.chunks_exact(key_dim).zip(biases.keys.chunks_exact(key_dim));
        let key_biases = both.flat_map(|(query, key)| query.iter().chain(key)).copied().collect();
        let mut value_biases = Vec::with_capacity(self.value_biases.len());
        for head in biases.values.chunks_exact(value_dim) {
            for lanes in self.sizes.blocks() {
                let mut row = [0.0; BLOCK];
                row[..lanes.len()].copy_from_slice(&head[lanes]);
                value_biases.push(row);
            }
        }
        RecurrenceWeights { key_biases, value_biases, ..self }
    }

    /// Returns the weights with the factors of the values in the results, `[value_heads]`, which are
    /// zero before.
    ///
    /// # Panics
    /// Panics if the length does not fit.
    #[track_caller]
    pub fn with_skips(self, skips: &[f32]) -> RecurrenceWeights {
        assert_eq!(skips.len(), self.sizes.value_heads, "a factor for each head");
        RecurrenceWeights { skips: skips.to_vec(), ..self }
    }

    /// Returns the sizes.
    pub fn sizes(&self) -> RecurrenceSizes {
        self.sizes
    }

    pub(super) fn rule(&self) -> RecurrenceRule {
        self.rule
    }

    /// Number of elements that belong to a row of a key head: its query, its key, and the decays of the
    /// key's elements, if each has one.
    pub(super) fn key_width(&self) -> usize {
        let parts = if matches!(self.rule, RecurrenceRule::KimiDelta { .. }) { 3 } else { 2 };
        parts * self.sizes.key_dim
    }

    /// Returns the kernels of a key head, a row for each position.
    pub(super) fn key_kernels(&self, head: usize) -> &[f32] {
        let len = self.sizes.conv_width * 2 * self.sizes.key_dim;
        &self.key_kernels[head * len..(head + 1) * len]
    }

    /// Returns the kernels of a block of values, a row for each position.
    pub(super) fn value_kernels(&self, head: usize, block_idx: usize) -> &[[f32; BLOCK]] {
        let (width, num_blocks) = (self.sizes.conv_width, self.sizes.value_dim.div_ceil(BLOCK));
        let start = (head * num_blocks + block_idx) * width;
        &self.value_kernels[start..start + width]
    }

    /// Returns the biases of a key head, of queries, then of keys.
    pub(super) fn key_biases(&self, head: usize) -> &[f32] {
        let len = 2 * self.sizes.key_dim;
        &self.key_biases[head * len..(head + 1) * len]
    }

    /// Returns the biases of a block of values.
    pub(super) fn value_biases(&self, head: usize, block_idx: usize) -> &[f32; BLOCK] {
        &self.value_biases[head * self.sizes.value_dim.div_ceil(BLOCK) + block_idx]
    }

    /// Returns the factor of a value head's value in its result.
    pub(super) fn skip(&self, head: usize) -> f32 {
        self.skips[head]
    }

    /// Returns the decay of a value head for its projection `x`. It is computed in f64, because
    /// libraries differ in the last bits of these functions, and rounded once.
    pub(super) fn decay(&self, head: usize, x: f32) -> Decay {
        self.biased_decay(head, f64::from(x) + f64::from(self.dt_bias[head]))
    }

    /// Returns the decay of a value head that is the same for all tokens.
    pub(super) fn constant_decay(&self, head: usize) -> Decay {
        Decay { step: 1.0, factor: self.factors[head] as f32 }
    }

    /// Returns the decay of an element of a head's key for its projection `x`.
    pub(super) fn element_decay(&self, head: usize, element: usize, x: f32) -> f32 {
        let bias = self.dt_bias[head * self.sizes.key_dim + element];
        self.biased_decay(head, f64::from(x) + f64::from(bias)).factor
    }

    fn biased_decay(&self, head: usize, x: f64) -> Decay {
        if let RecurrenceRule::KimiDelta { log_decay_min: Some(min) } = self.rule {
            let share = 1.0 / (1.0 + (-self.factors[head] * x).exp());
            return Decay { step: 1.0, factor: (f64::from(min) * share).exp() as f32 };
        }
        let mut step = x.max(0.0) + (-x.abs()).exp().ln_1p();
        if let RecurrenceRule::StateSpace { step_min, step_max } = self.rule {
            step = step.clamp(f64::from(step_min), f64::from(step_max));
        }
        Decay { step: step as f32, factor: (-self.factors[head] * step).exp() as f32 }
    }
}
