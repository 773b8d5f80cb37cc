//! The events of a request.

use std::fmt;

use jackalope_protocol::{Logprob, Phase, TokenId};

use crate::constraint::ConstraintFault;

/// An event of one request. Events arrive in this order: `Started`, `PromptScored`, `Embedded`,
/// `Token`s, and exactly one of `Finished`, `NotANumber`, `ConstraintFailed`, `Poisonous` and
/// `Failed` as the last.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The first step of this request is being planned. Sent once, even if the request is preempted
    /// later.
    Started {
        /// Number of prompt tokens found in the prefix cache.
        cached_tokens: u32,
        /// Reason why the others were not; `None` if all but the last were found.
        miss: Option<PrefixMiss>,
    },
    /// Log-probabilities of the prompt, if they were requested: entry `i` belongs to prompt token
    /// `i + 1`.
    PromptScored {
        /// Log-probabilities; one entry less than the prompt has tokens.
        logprobs: Vec<Logprob>,
    },
    /// The prompt's embedding, if it was requested.
    Embedded {
        /// The embedding; its length is the width of the model's hidden states.
        vector: Vec<f32>,
    },
    /// A token was sampled. Also sent for the token that ends the generation.
    Token {
        /// Id of the token.
        token: TokenId,
        /// Log-probabilities, if they were requested.
        logprob: Option<Logprob>,
    },
    /// The generation is complete.
    Finished {
        /// Reason for the end.
        reason: FinishReason,
        /// Number of tokens and preemptions.
        usage: Usage,
    },
    /// The model's output for this request is not a number: its weights are damaged, or its
    /// arithmetic overflows on these tokens. Other requests are not affected.
    NotANumber {
        /// Number of tokens sent before.
        completion_tokens: u32,
    },
    /// The request's constraint failed. Other requests are not affected.
    ConstraintFailed {
        /// Message of the constraint, possibly with a `hint:` line.
        message: String,
        /// Reason for the failure.
        fault: ConstraintFault,
        /// Number of tokens sent before.
        completion_tokens: u32,
    },
    /// The ranks failed each time they computed this request, so it was ended to let the others
    /// continue.
    Poisonous(Failure),
    /// The generation cannot be completed.
    Failed(Failure),
}

impl Event {
    /// Message for users about [`Event::NotANumber`].
    pub const NOT_A_NUMBER: &str = "the model's output for this request is not a number\n\
        hint: the checkpoint is damaged (compare its files with the original's), or its arithmetic \
        overflows on these tokens";

    /// Whether this is the last event of a request.
    pub fn is_last(&self) -> bool {
        match self {
            Event::Started { .. }
            | Event::PromptScored { .. }
            | Event::Embedded { .. }
            | Event::Token { .. } => false,
            Event::Finished { .. }
            | Event::NotANumber { .. }
            | Event::ConstraintFailed { .. }
            | Event::Poisonous(_)
            | Event::Failed(_) => true,
        }
    }
}

/// Reason for the end of a generation.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum FinishReason {
    /// A stop token was sampled; it is the last token that was sent.
    Stop,
    /// The maximum length of the request or of the context was reached, or no tokens were
    /// requested.
    Length,
    /// The request was cancelled by its id, see
    /// [`EngineHandle::cancel`](crate::EngineHandle::cancel).
    Cancelled,
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Number of tokens of the prompt.
    pub prompt_tokens: u32,
    /// Number of sampled tokens, including the stop token.
    pub completion_tokens: u32,
    /// Number of prompt tokens found in the prefix cache.
    pub cached_tokens: u32,
    /// Reason why the other prompt tokens were not; `None` if all but the last were found, and
    /// before the first step.
    pub prefix_miss: Option<PrefixMiss>,
    /// Number of times that the request was preempted for lack of memory.
    pub preemptions: u32,
}

/// Why a prompt was not taken from the prefix cache as far as possible.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PrefixMiss {
    /// The reason.
    pub reason: MissReason,
    /// Number of leading tokens that the prompt shares with a cache of its scope, whether or not
    /// they could be reused: the position at which it diverges from all of them.
    pub diverged_at: u32,
}

/// Reason why tokens of a prompt were computed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MissReason {
    /// No cache begins like the prompt.
    NotCached,
    /// The prompt goes on differently than every cache, or is longer.
    Diverged,
    /// A cache goes on like the prompt, but its states were not kept there.
    StateNotKept,
    /// A cache goes on like the prompt, but layers with windows have freed the positions before the
    /// one from which it could go on.
    WindowPassed,
    /// The request asks for results of positions that caches do not hold: log-probabilities of the
    /// prompt, or the mean of its hidden states.
    ResultsNeeded,
    /// There was no memory for a copy of the cache.
    NoMemory,
    /// Prefixes are not kept, by configuration or because other programs need the memory.
    Disabled,
}

impl MissReason {
    /// Every reason.
    pub const ALL: [MissReason; 7] = [
        MissReason::NotCached,
        MissReason::Diverged,
        MissReason::StateNotKept,
        MissReason::WindowPassed,
        MissReason::ResultsNeeded,
        MissReason::NoMemory,
        MissReason::Disabled,
    ];

    /// Returns the name used in answers and metrics.
    pub fn name(self) -> &'static str {
        match self {
            MissReason::NotCached => "not_cached",
            MissReason::Diverged => "diverged",
            MissReason::StateNotKept => "state_not_kept",
            MissReason::WindowPassed => "window_passed",
            MissReason::ResultsNeeded => "results_needed",
            MissReason::NoMemory => "no_memory",
            MissReason::Disabled => "disabled",
        }
    }
}

/// A failure of a rank, or of the engine itself.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    /// The rank at fault; `None` if the engine itself is ending.
    pub rank: Option<usize>,
    /// Machine of the rank, if ranks are on several machines.
    pub host: Option<String>,
    /// Phase of the rank when it failed.
    pub phase: Phase,
    /// What happened, what was found, possibly a `hint:` line.
    pub message: String,
    /// End of the standard error of the rank's process; may be empty.
    pub last_words: String,
}

/// Beginning of the message of a [`Failure`] that names no other cause.
pub(crate) const CONNECTION_LOST: &str = "the connection to it was lost";

impl Failure {
    /// Whether only a lost connection is known of the failure.
    pub(crate) fn is_unexplained(&self) -> bool {
        self.message.starts_with(CONNECTION_LOST) && self.last_words.is_empty()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rank) = self.rank {
            write!(f, "rank {rank} ")?;
            if let Some(host) = &self.host {
                write!(f, "on {host} ")?;
            }
            write!(f, "while {}: ", self.phase.name())?;
        }
        f.write_str(&self.message)?;
        if !self.last_words.is_empty() {
            write!(f, "\nlast words: {}", self.last_words.trim_end())?;
        }
        Ok(())
    }
}
