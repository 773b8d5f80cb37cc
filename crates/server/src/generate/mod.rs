//! Generates text, in the same way for every protocol.
//!
//! ```text
//!  GenerateRequest ──checks, template, tokenizer──▶ Job ──▶ Answer ──Format──▶ response or events
//!
//!  Job ──start──▶ Answering ──next──▶ Step (choice, Delta)
//!                    │  one Generation per choice      ▲
//!                    └──Event──▶ ChoiceText ───────────┘
//!                       tokens → text, stop strings, reasoning, tool calls, log-probabilities
//! ```
//!
//! A protocol converts its bodies to a [`GenerateRequest`], and writes deltas in its [`Format`].
//! This module knows tokens, text and choices, but not how any protocol writes them. Dropping an
//! [`Answer`] cancels everything that has not ended.

mod answer;
mod answering;
mod choice_text;
mod constraints;
mod continuation;
mod conversation;
mod early;
mod infill;
mod job;
mod request;
mod sampling;
mod token_constraints;
mod tool_names;

pub(crate) use answer::{Answer, Format, Summary};
#[cfg(test)]
pub(crate) use choice_text::CallHead;
pub(crate) use choice_text::{CallDelta, Delta, Finish, ScoredToken};
pub(crate) use constraints::StructuredOutput;
pub(crate) use continuation::{Continuation, PromptText, encode};
pub(crate) use conversation::{Conversation, Thinking, ToolChoice};
pub(crate) use early::EarlyStream;
pub(crate) use job::{Job, PromptJob};
pub(crate) use request::{GenerateRequest, OutputParams, Prompt, SchedulingParams};
pub(crate) use sampling::{
    SamplingParams, chat_logprobs, check_count, check_range, check_top_logprobs,
};
pub(crate) use tool_names::{AllowedTools, check_tool_names};
