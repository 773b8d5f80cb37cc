//! Anthropic's API: `POST /v1/messages`, `POST /v1/messages/count_tokens`, `GET /v1/models`.
//!
//! ```text
//!  bytes ──request──▶ wire types ──history──▶ Conversation ──generate──▶ message or events
//!                     untrusted    every check                           format
//! ```

pub(crate) mod error;
mod format;
mod history;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod request;
