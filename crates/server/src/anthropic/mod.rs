//! Anthropic's API: `POST /v1/messages`, `POST /v1/messages/count_tokens`, `GET /v1/models`.
//!
//! ```text
//!  bytes ──request──▶ wire types ──history──▶ Conversation ──generate──▶ message or events
//!                     untrusted    every check                           format
//! ```

pub(crate) mod error;
mod format;
mod history;
mod messages;
mod models;
pub(crate) mod request;

use crate::openapi::answers::MessageAnswer;
use crate::route::{Route, get, post};
use error::ANTHROPIC_VERSION;

/// The routes of `/v1/messages`.
pub(crate) fn routes() -> Vec<Route> {
    vec![
        post(
            "/v1/messages",
            messages::messages,
            "Answers a conversation, complete or as a stream of events.",
            |it| it.takes::<request::MessagesBody>().answers::<MessageAnswer>().events(),
        ),
        post(
            "/v1/messages/count_tokens",
            messages::count_tokens,
            "Counts the tokens of a conversation without answering it.",
            |it| it.takes::<request::MessagesBody>().answers::<messages::TokenCount>(),
        ),
    ]
}

/// The routes of models, which OpenAI's API has as well.
pub(crate) fn model_routes() -> Vec<Route> {
    const MEANING: &str = "If present, the answer has Anthropic's form.";
    vec![
        get("/v1/models", models::list_models, "Lists all models, loaded or not.", |it| {
            it.header(ANTHROPIC_VERSION, MEANING).answers::<models::AnyModelList>()
        }),
        get(
            "/v1/models/{*id}",
            models::show_model,
            "Describes the model with this id or alias. Does not load it.",
            |it| {
                let it = it.path("id", "Id or alias of the model; it may contain slashes.");
                it.header(ANTHROPIC_VERSION, MEANING).answers::<models::AnyModelCard>()
            },
        ),
    ]
}
