//! One step: the plan for all ranks, and the output of rank 0.

use serde::{Deserialize, Serialize};

use crate::embed::{Embed, Embedded};
use crate::ids::{CacheId, TokenId};
use crate::mask::RowMask;

/// Everything that all ranks do in one step, applied in this order: forks, forgets, window drops,
/// drops, rows.
///
/// A cache of length L with kept lengths K can be cut, by a row that starts below L, or forked at n
/// only if n is 0, n is L, n is in K, or the rank holds no layer with a state. A cut to n drops the
/// kept lengths above n; n itself stays kept. A fork at a kept length gives the target this one kept
/// length, any other fork gives it none.
///
/// Layers with windows hold the KV blocks that no window drop has named and no fork has left out. A row
/// that starts at n, or a fork at n, needs those of [`window_blocks`](crate::window_blocks) at n.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct StepPlan {
    /// Number of the step; increases by one within an epoch, from 0.
    pub step: u64,
    /// Copies of prefixes of existing caches.
    pub forks: Vec<Fork>,
    /// Kept lengths to give up.
    pub forgets: Vec<Forget>,
    /// KV blocks of layers with windows to free.
    pub window_drops: Vec<WindowDrop>,
    /// Caches to free.
    pub drops: Vec<CacheId>,
    /// Whether freed memory is returned to the machine instead of being kept for reuse.
    pub returns_memory: bool,
    /// The tokens to compute. No cache occurs twice.
    pub rows: Vec<Row>,
}

impl StepPlan {
    /// Returns the number of tokens that this step computes over all rows.
    pub fn num_tokens(&self) -> usize {
        self.rows.iter().map(|row| row.input.len()).sum()
    }

    /// Whether ranks have nothing to do in this step.
    pub fn is_empty(&self) -> bool {
        self.forks.is_empty()
            && self.forgets.is_empty()
            && self.window_drops.is_empty()
            && self.drops.is_empty()
            && self.rows.is_empty()
    }
}

/// Makes `target` hold the first `num_tokens` positions of `source`, which stays unchanged.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Fork {
    /// Cache to copy from; holds at least `num_tokens` positions.
    pub source: CacheId,
    /// Cache to create; must not exist yet.
    pub target: CacheId,
    /// Length of the copied prefix in tokens.
    pub num_tokens: u32,
    /// Number of the first KV block that the copy holds in layers with windows. The blocks before it
    /// are as if a [`WindowDrop`] had named them.
    pub window_start: u32,
}

/// Gives up a kept length of a cache. The positions stay.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Forget {
    /// The cache.
    pub cache: CacheId,
    /// The kept length to give up, in tokens.
    pub num_tokens: u32,
}

/// Frees KV blocks of a cache in layers with windows, because no later row can read them.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct WindowDrop {
    /// The cache.
    pub cache: CacheId,
    /// Number of the first block to free; block 0 has the first positions.
    pub start: u32,
    /// Number of the block after the last one to free.
    pub end: u32,
}

/// Consecutive tokens of one sequence: a chunk of its prompt, or the single token of a decoding
/// step. Both are computed in the same way.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Row {
    /// Cache of the keys and values. Created by the row if `start` is 0 and the cache does not
    /// exist.
    pub cache: CacheId,
    /// Number of positions already cached and still valid. A longer cache is truncated to this
    /// length first.
    pub start: u32,
    /// The tokens at positions `start..`.
    pub input: Input,
    /// Whether the states after this row's last token are kept, so that the cache can later be cut
    /// or forked at this length.
    pub keeps: bool,
    /// `Some` if the token after the last one of `input` is to be sampled.
    pub sample: Option<Sampling>,
    /// `Some` if log-probabilities of known next tokens are requested.
    pub score: Option<Score>,
    /// `Some` if the sequence's embedding is requested.
    pub embed: Option<Embed>,
}

/// Source of a row's tokens.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Input {
    /// Tokens that the coordinator knows. Never empty.
    Tokens(Vec<TokenId>),
    /// One token: the one sampled by the last row of this cache. The ranks that embed tokens know
    /// it.
    Previous,
}

impl Input {
    /// Returns the number of tokens.
    #[expect(clippy::len_without_is_empty, reason = "an input is never empty")]
    pub fn len(&self) -> usize {
        match self {
            Input::Tokens(tokens) => tokens.len(),
            Input::Previous => 1,
        }
    }
}

/// Parameters for sampling one token. The result depends only on the logits, the tokens before it,
/// and `(seed, position)`, so it is the same whatever else runs and however often the sequence was
/// preempted.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Sampling {
    /// Divisor of the logits; 0 means greedy.
    pub temperature: f32,
    /// Probability mass of nucleus sampling, in `(0, 1]`; 1 disables it.
    pub top_p: f32,
    /// Number of most likely tokens kept; 0 disables it.
    pub top_k: u32,
    /// Minimum probability relative to the most likely token's, in `[0, 1]`; 0 disables it.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that occurred; 1 disables it.
    pub repetition_penalty: f32,
    /// Number of last tokens that `repetition_penalty` considers; 0 means all of prompt and output.
    pub repetition_context: u32,
    /// Subtracted once from the logits of tokens that the output contains; 0 disables it.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each occurrence in the output; 0 disables it.
    pub frequency_penalty: f32,
    /// Tokens that may be sampled, regardless of bias and penalties.
    pub mask: RowMask,
    /// Values added to the logits of single tokens.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Key of the random number generator.
    pub seed: u64,
    /// Length of the prompt: positions before this one are the prompt, later ones the output.
    pub num_prompt_tokens: u32,
    /// `Some(n)` requests the log-probabilities of the sampled token and of the `n` most likely
    /// ones.
    pub logprobs: Option<u8>,
}

impl Sampling {
    /// Returns parameters for greedy sampling without any options.
    pub fn greedy(num_prompt_tokens: u32) -> Sampling {
        Sampling {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            repetition_context: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            mask: RowMask::All,
            logit_bias: Vec::new(),
            seed: 0,
            num_prompt_tokens,
            logprobs: None,
        }
    }

    /// Whether the sampled token is simply the one with the largest logit.
    pub fn is_plain_argmax(&self) -> bool {
        self.temperature == 0.0
            && self.repetition_penalty == 1.0
            && self.presence_penalty == 0.0
            && self.frequency_penalty == 0.0
            && self.mask == RowMask::All
            && self.logit_bias.is_empty()
            && self.logprobs.is_none()
    }
}

/// Request for log-probabilities of tokens that are already known: `targets[i]` follows input token
/// `i`. May be shorter than the input.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Score {
    /// The known next tokens.
    pub targets: Vec<TokenId>,
    /// Number of most likely tokens to report per position.
    pub num_top: u8,
}

/// Output of rank 0 for a [`StepPlan`].
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct StepOutput {
    /// Number of the plan.
    pub step: u64,
    /// One entry per row with `sample`, in plan order.
    pub sampled: Vec<Sampled>,
    /// One entry per row with `score`, in plan order.
    pub scored: Vec<Scored>,
    /// Breakdown of the step's time on rank 0.
    pub timings: StepTimings,
    /// One entry per row whose [`Embed`] ends with it, in plan order.
    pub embedded: Vec<Embedded>,
}

/// A sampled token.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Sampled {
    /// Cache of the row.
    pub cache: CacheId,
    /// The token; `None` if a logit was NaN or positive infinity, or all were negative infinity. The
    /// ranks then continue with token 0.
    pub token: Option<TokenId>,
    /// Log-probabilities, if they were requested.
    pub logprob: Option<Logprob>,
}

/// Log-probabilities (natural logarithm, of the model's own distribution: before mask, temperature,
/// penalties, bias and truncation).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Logprob {
    /// Log-probability of the token itself.
    pub logprob: f32,
    /// The most likely tokens with their log-probabilities, most likely first.
    pub top: Vec<(TokenId, f32)>,
}

/// Log-probabilities of a row's [`Score::targets`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Scored {
    /// Cache of the row.
    pub cache: CacheId,
    /// Position of the first target.
    pub start: u32,
    /// Log-probabilities, one entry per target.
    pub logprobs: Vec<Logprob>,
}

/// Breakdown of a step's time on one rank, in microseconds.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct StepTimings {
    /// Time from receiving the plan to the answer. A step that is submitted ahead counts from the
    /// end of the step before it.
    pub total_us: u32,
    /// Time inside collectives, including waiting for peers.
    pub collectives_us: u32,
    /// Time for sampling and scoring on the host; if the device samples, time for reading its
    /// results.
    pub sampling_us: u32,
    /// Time for building the graph and handling the plan, without computing.
    pub planning_us: u32,
    /// Times of the kernels by name, if [`Setup::profile`](crate::Setup::profile) requests them.
    pub kernels: Vec<KernelTimings>,
    /// Part of `collectives_us` in which no byte moved because the rank waited for peers.
    pub waiting_us: u32,
    /// Payload bytes sent to peers; 0 for stock groups, where the number is unknown.
    pub sent_bytes: u64,
    /// Payload bytes received from peers.
    pub received_bytes: u64,
    /// Number of operations that the host added to the graph.
    pub nodes: u32,
    /// Number of times that the host waited for the device.
    pub device_waits: u32,
    /// Time that the host waited for the device, if it submits steps ahead (MLX's own operations).
    pub device_wait_us: u32,
    /// Number of bytes that the host wrote into arrays or read from them.
    pub copied_bytes: u64,
}

/// Work of one kernel in a step.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct KernelTimings {
    /// Name of the kernel, [`PRIMITIVES`](KernelTimings::PRIMITIVES) or [`SUMS`](KernelTimings::SUMS).
    pub name: String,
    /// Number of calls.
    pub calls: u64,
    /// Total time in nanoseconds.
    pub time_ns: u64,
    /// Bytes of weights that the kernel read.
    pub bytes: u64,
}

impl KernelTimings {
    /// Name of the entry that counts whole primitives, including the kernels and sums inside them.
    pub const PRIMITIVES: &str = "primitives";
    /// Name of the entry that counts sums over the ranks inside primitives.
    pub const SUMS: &str = "sums over ranks";
}
