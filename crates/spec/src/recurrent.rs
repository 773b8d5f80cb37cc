//! Mixers whose memory of a sequence is a state of fixed size, and where their projections are.

use std::ops::Range;

use crate::rope::RopeSpec;

/// A gated delta net (Yang et al. 2024, "Gated Delta Networks"): a causal convolution over queries,
/// keys and values, then for each value head a state `[value_dim, key_dim]`, which a token decays and
/// corrects towards its value.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDeltaSpec {
    /// Sizes of heads and convolution.
    pub sizes: GatedDeltaSizes,
    /// Projection to queries, `[key_heads, key_dim]`.
    pub queries: HeadRows,
    /// Projection to keys, `[key_heads, key_dim]`.
    pub keys: HeadRows,
    /// Projection to values, `[value_heads, value_dim]`.
    pub values: HeadRows,
    /// Projection to the gates of the output, `[value_heads, value_dim]`.
    pub gates: HeadRows,
    /// Projection to the logits of the correction's rate, `[value_heads]`.
    pub rates: HeadRows,
    /// Projection to the decay, `[value_heads]`, or `[value_heads, key_dim]` with a decay for each element
    /// of a key.
    pub decays: HeadRows,
    /// Kernels of the convolutions of queries, keys and values: a row of `conv_width` weights for
    /// each element.
    pub convolutions: [HeadRows; 3],
    /// Logarithm of the decay's factor, `[value_heads]`.
    pub a_log: String,
    /// Bias of the projection to decays, of the same length.
    pub dt_bias: String,
    /// Norm of each value head of the output, `[value_dim]`.
    pub norm: String,
    /// What that norm adds to the mean square; `None` if as much as the norms of the stream.
    pub norm_eps: Option<f32>,
    /// Output projection.
    pub output: String,
    /// Maximum rate of the correction: 1, or 2 where eigenvalues may be negative.
    pub rate_max: u8,
    /// Whether the gates of the output are logistic functions, not `x * sigmoid(x)`.
    pub has_logistic_gates: bool,
    /// Set in Kimi delta attention.
    pub kimi: Option<KimiDelta>,
    /// The layer as checkpoints with fused projections store it, recognised by the weight of its
    /// query projection; `None` if there is one form only.
    pub joined: Option<Box<GatedDeltaSpec>>,
}

/// What differs in Kimi delta attention (Kimi team 2025, "Kimi Linear", section 3): each element of
/// a key decays separately, and the projections to decays and gates may read vectors of low rank. There are as many key heads as value heads.
#[derive(Clone, Debug, PartialEq)]
pub struct KimiDelta {
    /// Projection from the residual stream to what the decays are computed from, `[rank]`; `None` if
    /// they are computed from the stream.
    pub decays: Option<HeadRows>,
    /// As `decays`, for the gates.
    pub gates: Option<HeadRows>,
    /// Width of these vectors.
    pub rank: usize,
    /// Minimum of the decays' logarithms (Kimi team 2026): `min * sigmoid(exp(a_log) (x + dt_bias))`;
    /// `None` if they have none.
    pub log_decay_min: Option<f32>,
}

impl GatedDeltaSpec {
    /// Returns the number of decays of a value head.
    pub fn decays_per_head(&self) -> usize {
        if self.kimi.is_some() { self.sizes.key_dim } else { 1 }
    }
}

/// Sizes of a gated delta net.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GatedDeltaSizes {
    /// Number of heads of queries and keys.
    pub key_heads: usize,
    /// Number of heads of values, each with a state; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a query and of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Number of positions that the convolution sees, including its own.
    pub conv_width: usize,
}

/// A gated short convolution (Liquid AI 2025, "LFM2 Technical Report"): `output(after *
/// convolution(before * values))`, with a causal convolution of each channel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ShortConvSpec {
    /// Number of units of channels that are not divided.
    pub units: usize,
    /// Number of channels of a unit.
    pub unit_channels: usize,
    /// Number of positions that the convolution sees, including its own.
    pub conv_width: usize,
    /// Whether the projections and the convolution have biases.
    pub has_bias: bool,
    /// Projections to `before`, `after` and `values`, `[units, unit_channels]` each.
    pub inputs: [HeadRows; 3],
    /// Kernel of the convolution: a row of `conv_width` weights for each channel.
    pub convolution: HeadRows,
    /// Output projection.
    pub output: String,
}

/// The state space of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs"): a causal convolution over
/// values, keys and queries, then for each head a state `[head_dim, state_dim]`, which a token decays
/// and adds to. Heads are in groups that share keys (`B` in the paper) and queries (`C`).
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpaceSpec {
    /// Sizes of heads and convolution.
    pub sizes: StateSpaceSizes,
    /// Projection to queries, `[groups, state_dim]`.
    pub queries: HeadRows,
    /// Projection to keys, `[groups, state_dim]`.
    pub keys: HeadRows,
    /// Projection to values, `[heads, head_dim]`.
    pub values: HeadRows,
    /// Projection to the gates of the output, `[heads, head_dim]`.
    pub gates: HeadRows,
    /// Projection to the time steps, `[heads]`.
    pub steps: HeadRows,
    /// Whether these projections have biases.
    pub has_projection_bias: bool,
    /// Kernels of the convolutions of queries, keys and values: a row of `conv_width` weights for
    /// each element.
    pub convolutions: [HeadRows; 3],
    /// Whether the convolutions have biases.
    pub has_conv_bias: bool,
    /// Logarithm of the decay's factor, `[heads]`.
    pub a_log: String,
    /// Bias of the time steps, `[heads]`.
    pub dt_bias: String,
    /// Factor of the value in the result, `[heads]`.
    pub skips: String,
    /// Minimum and maximum of the time steps.
    pub step_limits: [f32; 2],
    /// Norm of the heads' results; `None` if there is none.
    pub norm: Option<GroupNormSpec>,
    /// Output projection.
    pub output: String,
    /// Whether it has a bias.
    pub has_output_bias: bool,
}

/// Lightning attention (Qin et al. 2024, "Lightning Attention-2", equation 6): for each head a state
/// `[head_dim, head_dim]`, which a token decays by a constant of the head, and to which it adds the
/// product of its value and its key. The results are normalised, then multiplied by the logistic
/// function of gates. There are as many heads of keys and of values as of queries.
#[derive(Clone, Debug, PartialEq)]
pub struct LightningSpec {
    /// Number of heads.
    pub heads: usize,
    /// Width of a query, a key and a value.
    pub head_dim: usize,
    /// Projections to queries, keys and values, `[heads, head_dim]` each.
    pub projections: [HeadRows; 3],
    /// Whether these projections have biases.
    pub has_qkv_bias: bool,
    /// Norms of each query and of each key before the rotation, `[head_dim]`; `None` if there are none.
    pub qk_norms: Option<[String; 2]>,
    /// Rotation of queries and keys.
    pub rope: RopeSpec,
    /// Logarithm of the factor by which a token decays the state, one for each head.
    pub log_decays: Vec<f32>,
    /// Norm of the results.
    pub norm: GroupNormSpec,
    /// Projection to the gates, `[heads, head_dim]`.
    pub gates: String,
    /// Output projection.
    pub output: String,
}

/// A norm of the results of all heads.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupNormSpec {
    /// Name of the module of its weight, `[heads * head_dim]`.
    pub module: String,
    /// Number of groups of neighbouring elements, each of which is normalised separately.
    pub groups: usize,
    /// Epsilon added to the mean of the squares.
    pub eps: f32,
    /// Whether the results are normalised before the gates multiply them, not after it.
    pub precedes_gate: bool,
}

/// Sizes of a state space.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StateSpaceSizes {
    /// Number of heads, each with a state; a multiple of `groups`.
    pub heads: usize,
    /// Number of groups of heads that share keys and queries.
    pub groups: usize,
    /// Width of a head's value.
    pub head_dim: usize,
    /// Width of a key and of a query.
    pub state_dim: usize,
    /// Number of positions that the convolution sees, including its own.
    pub conv_width: usize,
}

/// The rows of a stored tensor that belong to one projection of a fused one. Heads of the projection
/// are in groups, the groups at equal distances.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HeadRows {
    /// The stored tensor's module.
    pub module: String,
    /// Number of rows of the stored tensor.
    pub num_rows: usize,
    /// First row of the projection.
    pub start: usize,
    /// Number of rows of a head.
    pub rows_per_head: usize,
    /// Number of heads of a group, whose rows follow one another.
    pub heads_per_group: usize,
    /// Distance between the first rows of two groups.
    pub group_stride: usize,
}

impl HeadRows {
    /// Returns the rows of a tensor that holds nothing else.
    pub fn whole(module: String, num_heads: usize, rows_per_head: usize) -> HeadRows {
        let num_rows = num_heads * rows_per_head;
        HeadRows {
            module,
            num_rows,
            start: 0,
            rows_per_head,
            heads_per_group: num_heads,
            group_stride: num_rows,
        }
    }

    /// Returns consecutive rows of a tensor with `num_rows` rows, as one head.
    pub fn window(module: String, rows: Range<usize>, num_rows: usize) -> HeadRows {
        HeadRows { num_rows, start: rows.start, ..HeadRows::whole(module, 1, rows.len()) }
    }

    /// Returns where a range of the projection's rows is in the tensor, in order.
    pub fn rows(&self, rows: Range<usize>) -> Vec<Range<usize>> {
        let run = self.rows_per_head * self.heads_per_group;
        let mut ranges = Vec::new();
        let mut next = rows.start;
        while next < rows.end {
            let (group, row) = (next / run, next % run);
            let len = (run - row).min(rows.end - next);
            let start = self.start + group * self.group_stride + row;
            ranges.push(start..start + len);
            next += len;
        }
        ranges
    }

    /// Returns the rows of these heads, in order.
    pub fn of_heads(&self, heads: Range<usize>) -> Vec<Range<usize>> {
        self.rows(heads.start * self.rows_per_head..heads.end * self.rows_per_head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_heads_are_found_in_a_fused_tensor() {
        // Two key heads, each with a query and a key of 4 rows, and two values of 3 rows.
        let values = HeadRows {
            module: String::new(),
            num_rows: 28,
            start: 8,
            rows_per_head: 3,
            heads_per_group: 2,
            group_stride: 14,
        };
        assert_eq!(values.of_heads(0..4), [8..14, 22..28]);
        assert_eq!(values.of_heads(1..3), [11..14, 22..25]);
        let keys = HeadRows { start: 4, rows_per_head: 4, heads_per_group: 1, ..values };
        assert_eq!(keys.of_heads(0..2), [4..8, 18..22]);
        let whole = HeadRows::whole(String::new(), 4, 8);
        assert_eq!((whole.of_heads(1..3).len(), whole.of_heads(1..3)[0].clone()), (1, 8..24));
        assert!(keys.of_heads(1..1).is_empty());
    }

    #[test]
    fn a_range_of_rows_is_found_in_a_fused_tensor() {
        let window = HeadRows::window(String::new(), 10..16, 30);
        let rows = |rows| window.rows(rows).into_iter().flatten().collect::<Vec<usize>>();
        assert_eq!(rows(0..6), [10, 11, 12, 13, 14, 15]);
        assert_eq!(rows(2..3), [12]);
        // Two runs of four rows in stretches of seven.
        let groups = HeadRows {
            module: String::new(),
            num_rows: 14,
            start: 1,
            rows_per_head: 4,
            heads_per_group: 1,
            group_stride: 7,
        };
        assert_eq!(groups.rows(0..8), [1..5, 8..12]);
        assert_eq!(groups.rows(3..6), [4..5, 8..10]);
        assert!(groups.rows(5..5).is_empty());
    }
}
