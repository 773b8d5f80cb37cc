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
//! A protocol converts its bodies to a [`GenerateRequest`], and writes deltas in its [`AnswerWriter`].
//! This module knows tokens, text and choices, but not how any protocol writes them. Dropping an
//! [`Answer`] cancels everything that has not ended.

mod answer;
mod answering;
mod checks;
mod choice_text;
mod constraints;
mod continuation;
mod conversation;
mod early;
mod infill;
mod job;
mod output;
mod params;
mod request;
mod sampling;
mod token_constraints;
mod tool_names;
mod tool_parameters;

pub use answer::{Answer, AnswerWriter};
pub use checks::{check_count, check_range};
pub use choice_text::{CallDelta, CallHead, Delta, ScoredToken};
pub use constraints::StructuredOutput;
pub use continuation::{Continuation, PromptText, encode};
pub use conversation::{Conversation, Thinking, ToolChoice};
pub use early::EarlyStream;
pub use job::{Job, PromptJob};
pub use output::{AnswerRules, OutputParams, TextRules};
pub use params::{RequestParams, SchedulingParams};
pub use request::{GenerateRequest, Prompt};
pub use sampling::{SamplingParams, chat_logprobs, check_top_logprobs};
pub use tool_names::{AllowedTools, check_tool_names};
pub use tool_parameters::check_tool_parameters;

pub use crate::outcome::{AnswerSummary, Finish};
