//! Anthropic's API: `POST /v1/messages`, `POST /v1/messages/count_tokens`, `GET /v1/models`.
//!
//! ```text
//!  bytes ──request──▶ wire types ──history──▶ Conversation ──generate──▶ message or events
//!                     untrusted    every check                           format
//! ```

mod format;
mod history;
mod messages;
mod models;
mod request;

pub(crate) use messages::{count_tokens, messages};
pub(crate) use models::{list_models, show_model};
