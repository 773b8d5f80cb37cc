//! The OpenAI API: `POST /v1/chat/completions`, `POST /v1/completions`, `/v1/responses`,
//! `POST /v1/embeddings`, `GET /v1/models`; and vLLM's `POST /tokenize`, `POST /detokenize`.
//!
//! ```text
//!  JsonBody ──request──▶ wire types ──chat, completions──▶ GenerateRequest ──generate──▶ events
//!                        untrusted                                    chat_format, completion_format
//! ```

pub(crate) mod chat;
mod chat_format;
mod completion_format;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod error;
mod legacy;
pub(crate) mod logprobs;
pub(crate) mod models;
pub(crate) mod request;
pub(crate) mod responses;
mod schema;
mod structure;
pub(crate) mod tokenize;
mod unsupported;
mod usage;

/// Identifies the program version that generated an answer.
const SYSTEM_FINGERPRINT: &str = concat!("fp_jackalope_", env!("CARGO_PKG_VERSION"));
