//! Ollama's API, under `/api`: lines of JSON, durations in nanoseconds, models with details.
//!
//! ```text
//!  bytes ──request──▶ wire types ──options, chat, generate──▶ Job ──generate──▶ lines or one object
//!                     untrusted     every check                   format
//! ```

mod chat;
mod embed;
pub(crate) mod error;
mod format;
mod generate;
mod keep_alive;
mod lifetime;
mod models;
mod names;
mod options;
mod pull;
mod request;
mod schema;

use crate::openapi::answers::{
    OllamaChatAnswer, OllamaError, OllamaGenerateAnswer, OllamaModels, OllamaPulled, OllamaShown,
    OllamaVersion,
};
use crate::route::{Route, delete, get, post};

/// The routes of this module.
pub(crate) fn routes() -> Vec<Route> {
    [generation(), models(), unsupported()].into_iter().flatten().collect()
}

fn generation() -> Vec<Route> {
    vec![
        post(
            "/api/chat",
            chat::chat,
            "Answers a conversation. Without messages, loads the model, or unloads it if `keep_alive` \
             is 0.",
            |it| {
                let it = it.takes::<schema::OllamaChatBody>();
                it.answers::<OllamaChatAnswer>().text(format::LINES_TYPE)
            },
        ),
        post(
            "/api/generate",
            generate::generate,
            "Answers a prompt. Without a prompt, loads the model, or unloads it if `keep_alive` is 0.",
            |it| {
                let it = it.takes::<schema::OllamaGenerateBody>();
                it.answers::<OllamaGenerateAnswer>().text(format::LINES_TYPE)
            },
        ),
        post("/api/embed", embed::embed, "Computes embeddings of texts, of length 1.", |it| {
            it.takes::<embed::OllamaEmbedBody>().answers::<embed::Embedded>()
        }),
        post(
            "/api/embeddings",
            embed::embeddings,
            "Computes the embedding of a text, for older clients.",
            |it| it.takes::<embed::OllamaEmbeddingsBody>().answers::<embed::EmbeddedOne>(),
        ),
    ]
}

fn models() -> Vec<Route> {
    vec![
        get("/api/tags", models::tags, "Lists the models.", |it| it.answers::<OllamaModels>()),
        get(
            "/api/ps",
            models::ps,
            "Lists the loaded models, with the memory that they take on all ranks together.",
            |it| it.answers::<OllamaModels>(),
        ),
        get("/api/version", models::version, "Returns the version of Ollama's API.", |it| {
            it.answers::<OllamaVersion>()
        }),
        post("/api/show", models::show, "Describes a model.", |it| {
            it.takes::<request::Named>().answers::<OllamaShown>()
        }),
        post("/api/pull", pull::pull, "Downloads a model, unless it is served already.", |it| {
            it.takes::<request::Named>().answers::<OllamaPulled>().text(format::LINES_TYPE)
        }),
        delete(
            "/api/delete",
            models::delete,
            "Deletes a model, if models are loaded on demand.",
            |it| it.takes::<request::Named>().empty("200", "The model is deleted."),
        ),
    ]
}

/// Routes that only explain why they are not supported.
fn unsupported() -> Vec<Route> {
    const MEANING: &str = "Always refused.";
    vec![
        post("/api/copy", models::copy, "Not supported: gives a model another name.", |it| {
            it.takes::<models::Copy>().status::<OllamaError>("400", MEANING)
        }),
        post("/api/create", models::unsupported, "Not supported: creates a model.", |it| {
            it.status::<OllamaError>("400", MEANING)
        }),
        post("/api/push", models::unsupported, "Not supported: publishes a model.", |it| {
            it.status::<OllamaError>("400", MEANING)
        }),
        post("/api/blobs/{digest}", models::unsupported, "Not supported: uploads a file.", |it| {
            it.path("digest", "The hash of the file.").status::<OllamaError>("400", MEANING)
        }),
    ]
}
