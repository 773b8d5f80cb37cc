//! One step: what all ranks compute, and what rank 0 answers.

use serde::{Deserialize, Serialize};

use crate::{Embed, Embedded, Mask};

/// Index into the model's vocabulary.
pub type TokenId = u32;

/// Names one sequence's cached keys and values on every rank. Chosen by the brain, never reused
/// within an epoch of the group.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct CacheId(pub u64);

/// Everything all ranks do in one step. Applied in the order of the fields: forks, drops, rows.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct StepPlan {
    /// Counts up by one within an epoch; the first step of an epoch is 0.
    pub step: u64,
    /// Copies of prefixes of existing caches.
    pub forks: Vec<Fork>,
    /// Caches that are given back.
    pub drops: Vec<CacheId>,
    /// What was given back goes back to the machine, instead of being kept for reuse.
    pub returns_memory: bool,
    /// The tokens to compute. No cache occurs twice.
    pub rows: Vec<Row>,
}

impl StepPlan {
    /// Tokens this step computes over all rows.
    pub fn num_tokens(&self) -> usize {
        self.rows.iter().map(|row| row.input.len()).sum()
    }

    /// True if there is nothing for a rank to do.
    pub fn is_empty(&self) -> bool {
        self.forks.is_empty() && self.drops.is_empty() && self.rows.is_empty()
    }
}

/// Makes `target` hold the first `num_tokens` positions of `source`, which stays as it is.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Fork {
    /// The cache that is copied from; holds at least `num_tokens` positions.
    pub source: CacheId,
    /// The cache that is created; must not exist yet.
    pub target: CacheId,
    /// Length of the copied prefix in tokens.
    pub num_tokens: u32,
}

/// A run of tokens of one sequence: a prompt chunk, or the single token of a decoding one. There
/// is no difference between the two.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Row {
    /// Where keys and values are kept. Created by the row if `start` is 0 and it does not exist.
    pub cache: CacheId,
    /// Positions already cached and still valid. A longer cache is cut to this length first.
    pub start: u32,
    /// The tokens at positions `start..`.
    pub input: Input,
    /// `Some` if the token after the last one of `input` shall be drawn.
    pub sample: Option<Sampling>,
    /// `Some` if the log-probabilities of known next tokens are wanted.
    pub score: Option<Score>,
    /// `Some` if the sequence's embedding is wanted.
    pub embed: Option<Embed>,
}

/// Where a row's tokens come from.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Input {
    /// The brain knows them. Never empty.
    Tokens(Vec<TokenId>),
    /// One token: what the last row of this cache drew, which the ranks know that embed it.
    Previous,
}

impl Input {
    /// Number of tokens.
    #[expect(clippy::len_without_is_empty, reason = "an input is never empty")]
    pub fn len(&self) -> usize {
        match self {
            Input::Tokens(tokens) => tokens.len(),
            Input::Previous => 1,
        }
    }
}

/// How a token is drawn. The draw depends on the logits, the tokens before it, and on
/// `(seed, position)` alone, so that it is the same whatever else runs and however often the
/// sequence was preempted.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Sampling {
    /// 0 means greedy.
    pub temperature: f32,
    /// Nucleus mass in `(0, 1]`; 1 is off.
    pub top_p: f32,
    /// Number of best tokens kept; 0 is off.
    pub top_k: u32,
    /// Least probability relative to the best token's, in `[0, 1]`; 0 is off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that occurred; 1 is off.
    pub repetition_penalty: f32,
    /// Tokens looked back on by `repetition_penalty`; 0 means all of prompt and output.
    pub repetition_context: u32,
    /// Subtracted once from logits of tokens the output contains; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from logits once per occurrence in the output; 0 is off.
    pub frequency_penalty: f32,
    /// The tokens that may be drawn, whatever bias and penalties say.
    pub mask: Mask,
    /// Added to single logits.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Key of the random numbers.
    pub seed: u64,
    /// Positions before this one are the prompt, later ones the output.
    pub num_prompt_tokens: u32,
    /// `Some(n)` asks for the drawn token's log-probability and the `n` best ones.
    pub logprobs: Option<u8>,
}

impl Sampling {
    /// The best token, nothing else.
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
            mask: Mask::All,
            logit_bias: Vec::new(),
            seed: 0,
            num_prompt_tokens,
            logprobs: None,
        }
    }

    /// True if the drawn token is simply the one with the largest logit.
    pub fn is_plain_argmax(&self) -> bool {
        self.temperature == 0.0
            && self.repetition_penalty == 1.0
            && self.presence_penalty == 0.0
            && self.frequency_penalty == 0.0
            && self.mask == Mask::All
            && self.logit_bias.is_empty()
            && self.logprobs.is_none()
    }
}

/// Asks for log-probabilities of tokens that are already known: `targets[i]` follows input token
/// `i`. May be shorter than the input.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Score {
    /// The known next tokens.
    pub targets: Vec<TokenId>,
    /// How many best alternatives to report per position.
    pub num_top: u8,
}

/// Rank 0's answer to a [`StepPlan`].
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct StepOutput {
    /// The plan's number.
    pub step: u64,
    /// One entry per row with `sample`, in plan order.
    pub sampled: Vec<Sampled>,
    /// One entry per row with `score`, in plan order.
    pub scored: Vec<Scored>,
    /// Where the time went on rank 0.
    pub timings: StepTimings,
    /// One entry per row whose [`Embed`] ends with it, in plan order.
    pub embedded: Vec<Embedded>,
}

/// A drawn token.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Sampled {
    /// The row's cache.
    pub cache: CacheId,
    /// What was drawn; none if the logits were not numbers. The ranks then go on with token 0.
    pub token: Option<TokenId>,
    /// Present if asked for.
    pub logprob: Option<Logprob>,
}

/// Log-probabilities (natural logarithm, of the model's own distribution: before mask, temperature,
/// penalties, bias and truncation).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Logprob {
    /// Of the token itself.
    pub logprob: f32,
    /// The best ones, best first.
    pub top: Vec<(TokenId, f32)>,
}

/// Log-probabilities of a row's [`Score::targets`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Scored {
    /// The row's cache.
    pub cache: CacheId,
    /// The position of the first target.
    pub start: u32,
    /// One per target.
    pub logprobs: Vec<Logprob>,
}

/// Where a step's time went on one rank, in microseconds.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct StepTimings {
    /// From taking up the plan to the answer.
    pub total_us: u32,
    /// Inside collectives, waiting for peers included.
    pub collectives_us: u32,
    /// Drawing tokens on the host.
    pub sampling_us: u32,
    /// Building the graph and handling the plan, without computing.
    pub planning_us: u32,
    /// The kernels by name, if [`Setup::profile`](crate::Setup::profile) asks for them.
    pub kernels: Vec<KernelTimings>,
    /// The part of `collectives_us` in which no byte moved: waiting for peers.
    pub waiting_us: u32,
    /// Payload bytes sent to peers; unknown, hence zero, for stock groups.
    pub sent_bytes: u64,
    /// Payload bytes received from peers.
    pub received_bytes: u64,
}

/// What one kernel did in a step.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct KernelTimings {
    /// The kernel; [`PRIMITIVES`](KernelTimings::PRIMITIVES) for whole nodes of the graph.
    pub name: String,
    /// How often it ran.
    pub calls: u64,
    /// How long, in nanoseconds.
    pub time_ns: u64,
    /// Bytes of weights it read.
    pub bytes: u64,
}

impl KernelTimings {
    /// The name of the entry that counts whole primitives, the kernels inside them included.
    pub const PRIMITIVES: &str = "primitives";
}
