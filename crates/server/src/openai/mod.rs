//! The OpenAI API: `POST /v1/chat/completions`, `POST /v1/completions`, `GET /v1/models`.
//!
//! ```text
//!  bytes ──request──▶ wire types ──chat, completions──▶ Job ──generate──▶ response or events
//!                     untrusted     every check            chat_format, completion_format
//! ```

pub(crate) mod chat;
mod chat_format;
mod completion_format;
pub(crate) mod completions;
mod logprobs;
pub(crate) mod models;
pub(crate) mod request;
mod schema;
pub(crate) mod structure;
mod usage;
