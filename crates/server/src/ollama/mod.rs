//! Ollama's API, under `/api`: lines of JSON, durations in nanoseconds, models with details.
//!
//! ```text
//!  bytes ──request──▶ wire types ──options, chat, generate──▶ Job ──generate──▶ lines or one object
//!                     untrusted     every check                   format
//! ```

pub(crate) mod chat;
pub(crate) mod embed;
pub(crate) mod error;
mod format;
pub(crate) mod generate;
mod keep_alive;
mod lifetime;
pub(crate) mod models;
mod names;
mod options;
pub(crate) mod pull;
pub(crate) mod puller;
mod request;
mod schema;
