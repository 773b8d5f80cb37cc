//! The OpenAI API: `POST /v1/chat/completions`, `POST /v1/completions`, `/v1/responses`,
//! `POST /v1/embeddings`, `GET /v1/models`; and vLLM's `POST /tokenize`, `POST /detokenize`.
//!
//! ```text
//!  bytes ──request──▶ wire types ──chat, completions──▶ Job ──generate──▶ response or events
//!                     untrusted     every check            chat_format, completion_format
//! ```

mod chat;
mod chat_format;
mod completion_format;
mod completions;
mod embeddings;
mod infill;
mod legacy;
mod logprobs;
mod models;
pub(crate) mod request;
mod responses;
mod tokenize;
mod usage;

/// Tells answers apart that different programs gave.
const SYSTEM_FINGERPRINT: &str = concat!("fp_jackalope_", env!("CARGO_PKG_VERSION"));

pub(crate) use chat::chat;
pub(crate) use completions::completions;
pub(crate) use embeddings::embeddings;
pub(crate) use models::{list_models, show_model};
pub(crate) use responses::{
    KeptResponses, create_response, delete_response, list_input_items, show_response,
};
pub(crate) use tokenize::{detokenize, tokenize};
