//! What a caller hears.

use std::fmt;

use jackalope_protocol::{Logprob, Phase, TokenId};

/// An event of one request. Events arrive in this order: `Started`, `PromptScored`, `Embedded`,
/// `Token`s, and exactly one of `Finished`, `NotANumber`, `GuideFailed`, `Poisonous` and `Failed`
/// as the last.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The first step of this request is being planned. Sent once, also if it is preempted later.
    Started {
        /// Prompt tokens found in the prefix cache.
        cached_tokens: u32,
    },
    /// Log-probabilities of the prompt, if they were asked for: entry `i` is of prompt token `i + 1`.
    PromptScored {
        /// One less than the prompt has tokens.
        logprobs: Vec<Logprob>,
    },
    /// The prompt's embedding, if it was asked for.
    Embedded {
        /// As long as the model's hidden states are wide.
        vector: Vec<f32>,
    },
    /// A token was drawn. The one that ends the generation is told too.
    Token {
        /// The token.
        token: TokenId,
        /// Present if asked for.
        logprob: Option<Logprob>,
    },
    /// The generation is complete.
    Finished {
        /// What ended it.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// The model's output for this request is not a number: its weights are damaged, or its
    /// arithmetic overflows on these tokens. Nobody else's request is concerned.
    NotANumber {
        /// Tokens that were told before.
        completion_tokens: u32,
    },
    /// The request's guide could not go on. Nobody else's request is concerned.
    GuideFailed {
        /// What the guide said, possibly with a `hint:` line.
        message: String,
        /// Tokens that were told before.
        completion_tokens: u32,
    },
    /// The ranks failed each time they computed this request, so it was ended to let the others
    /// continue.
    Poisonous(Failure),
    /// The generation cannot be completed.
    Failed(Failure),
}

impl Event {
    /// What people are told of [`Event::NotANumber`].
    pub const NOT_A_NUMBER: &str = "the model's output for this request is not a number\n\
        hint: the checkpoint is damaged (compare its files with the original's), or its arithmetic \
        overflows on these tokens";

    /// True for the one event that comes last.
    pub fn is_last(&self) -> bool {
        match self {
            Event::Started { .. }
            | Event::PromptScored { .. }
            | Event::Embedded { .. }
            | Event::Token { .. } => false,
            Event::Finished { .. }
            | Event::NotANumber { .. }
            | Event::GuideFailed { .. }
            | Event::Poisonous(_)
            | Event::Failed(_) => true,
        }
    }
}

/// What ended a generation.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum FinishReason {
    /// A stop token was drawn; it is the last token told.
    Stop,
    /// The request's or the context's length was reached, or there was nothing to draw.
    Length,
    /// It was ended by its id, see [`EngineHandle::cancel`](crate::EngineHandle::cancel).
    Cancelled,
}

/// Tokens counted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u32,
    /// Drawn, the stop token included.
    pub completion_tokens: u32,
    /// Of the prompt, found in the prefix cache.
    pub cached_tokens: u32,
    /// Times it was sent back to wait for want of memory.
    pub preemptions: u32,
}

/// Something was lost that the engine could not replace.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    /// The rank at fault; none if the engine itself is ending.
    pub rank: Option<usize>,
    /// Its machine, where ranks are on several.
    pub host: Option<String>,
    /// What the rank was doing.
    pub phase: Phase,
    /// What happened, what was found, possibly a `hint:` line.
    pub message: String,
    /// The end of what the rank's process wrote to its standard error; may be empty.
    pub last_words: String,
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
