//! From a checked job to what is heard of it, for every protocol alike.
//!
//! ```text
//!  Job ──start──▶ Answering ──next──▶ Step (choice, Delta)
//!                    │  one Generation per choice      ▲
//!                    └──Event──▶ ChoiceText ───────────┘
//!                       tokens → text, stop strings, reasoning, tool calls, log-probabilities
//! ```
//!
//! It knows tokens, text and choices; it does not know how any protocol writes them. Dropping an
//! [`Answering`] cancels everything that has not ended.

mod answering;
mod choice_text;
mod job;

pub(crate) use answering::{Answering, Step};
pub(crate) use choice_text::{Delta, Finish, ScoredToken};
pub(crate) use job::{AnswerRules, Job, PromptJob, TextRules};
