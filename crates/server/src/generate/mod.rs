//! Turns checked requests into answers, in the same way for every protocol.
//!
//! ```text
//!  Conversation, Wishes ──▶ Job ──▶ Answer ──Format──▶ response or events
//!
//!  Job ──start──▶ Answering ──next──▶ Step (choice, Delta)
//!                    │  one Generation per choice      ▲
//!                    └──Event──▶ ChoiceText ───────────┘
//!                       tokens → text, stop strings, reasoning, tool calls, log-probabilities
//! ```
//!
//! This module knows tokens, text and choices, but not how any protocol writes them. Dropping an
//! [`Answer`] cancels everything that has not ended.

mod answer;
mod answering;
mod choice_text;
mod conversation;
mod early;
mod guidance;
mod guides;
mod job;
mod tool_names;
mod unsupported;
mod wishes;

pub(crate) use answer::{Answer, AnswerPlan, Format, Summary};
#[cfg(test)]
pub(crate) use choice_text::CallHead;
pub(crate) use choice_text::{CallDelta, Delta, Finish, ScoredToken};
pub(crate) use conversation::{Conversation, Thinking, ToolChoice};
pub(crate) use early::EarlyStream;
pub(crate) use guidance::bad_runs;
pub(crate) use job::{Job, PromptJob, TextRules};
pub(crate) use tool_names::{AllowedTools, check_tool_names};
pub(crate) use unsupported::check_unsupported;
pub(crate) use wishes::{Wishes, check_count, check_range};
