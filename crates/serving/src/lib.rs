//! Answers requests for generated text, for any protocol: the models and which of them are loaded,
//! the callers and their keys, the errors, the journal, and [`generate`], in which a neutral request
//! becomes an answer.
//!
//! ```text
//!  GenerateRequest ─▶ generate ─▶ engine
//!   (of a protocol)     │  ├─▶ state ─▶ models (loaded, leased, evicted), grammars, prompt workers
//!                       │  └─▶ error, in which a protocol finds what to write
//!                       └─one record per answer─▶ journal ─▶ request log, spans
//! ```
//!
//! It does not know how a protocol writes requests and answers, which paths there are, and how
//! connections are served. Prompts and answers are never logged.

pub mod auth;
pub mod body;
pub mod body_memory;
pub mod caller;
pub mod embed;
pub mod engine_answer;
pub mod error;
pub mod generate;
mod grammars;
pub mod ids;
pub mod jobs;
pub mod journal;
pub mod limits;
pub mod memory;
pub mod metrics;
pub mod model;
pub mod models;
pub mod notes;
pub mod numbers;
pub mod origin;
mod outcome;
mod prompt_workers;
pub mod puller;
pub mod sse;
pub mod state;
pub mod trace_parent;
