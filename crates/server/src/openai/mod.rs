//! The OpenAI API: `POST /v1/chat/completions`, `POST /v1/completions`, `GET /v1/models`.
//!
//! ```text
//!  bytes ──request──▶ wire types ──chat, completions──▶ Job ──generate──▶ response or events
//!                     untrusted     every check            chat_format, completion_format
//! ```

mod chat;
mod chat_format;
mod completion_format;
mod completions;
mod logprobs;
mod models;
pub(crate) mod request;
mod responses;
mod usage;

pub(crate) use chat::chat;
pub(crate) use completions::completions;
pub(crate) use models::{list_models, show_model};
pub(crate) use responses::{
    KeptResponses, create_response, delete_response, list_input_items, show_response,
};
