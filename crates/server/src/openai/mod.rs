//! The OpenAI API: `POST /v1/chat/completions`, `POST /v1/completions`, `GET /v1/models`.
//!
//! ```text
//!  bytes ──request──▶ wire types ──wishes, chat, completions──▶ Job ──answer──▶ response or events
//!                     untrusted        every check                 chat_format, completion_format
//! ```

mod answer;
mod chat;
mod chat_format;
mod completion_format;
mod completions;
mod logprobs;
mod models;
mod request;
mod structure;
mod wishes;

pub(crate) use chat::chat;
pub(crate) use completions::completions;
pub(crate) use models::{list_models, show_model};
