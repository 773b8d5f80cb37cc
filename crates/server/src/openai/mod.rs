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
mod completions;
mod embeddings;
pub(crate) mod error;
mod legacy;
pub(crate) mod logprobs;
pub(crate) mod models;
pub(crate) mod request;
pub(crate) mod responses;
mod schema;
mod structure;
mod tokenize;
mod unsupported;
mod usage;

use crate::openapi::answers::{DeletedResponse, InputItems, ResponseAnswer};
use crate::route::{Route, delete, get, post, refused_post};

/// The routes of OpenAI's API, apart from those of models.
pub(crate) fn routes() -> Vec<Route> {
    let generation = vec![
        post(
            "/v1/chat/completions",
            chat::chat,
            "Answers a conversation, complete or as a stream of chunks that ends with `[DONE]`.",
            |it| {
                it.takes::<schema::ChatBody>().answers::<chat_format::ChatCompletion<'_>>().events()
            },
        ),
        post(
            "/v1/completions",
            completions::completions,
            "Continues one or several prompts, complete or as a stream of chunks that ends with \
             `[DONE]`.",
            |it| {
                let it = it.takes::<schema::CompletionBody>();
                it.answers::<completion_format::Completion<'_>>().events()
            },
        ),
        post("/v1/embeddings", embeddings::embeddings, "Computes embeddings of texts.", |it| {
            it.takes::<embeddings::EmbeddingBody>().answers::<embeddings::EmbeddingList>()
        }),
    ];
    generation.into_iter().chain(responses()).collect()
}

fn responses() -> Vec<Route> {
    const ID: &str = "Id of a stored response.";
    vec![
        post(
            "/v1/responses",
            responses::create_response,
            "Answers an input, which may continue a stored response, complete or as a stream of events.",
            |it| {
                let it = it.takes::<responses::request::ResponseBody>();
                it.answers::<ResponseAnswer>().events()
            },
        ),
        get(
            "/v1/responses/{id}",
            responses::show_response,
            "Returns a stored response, complete or as the events of its generation.",
            |it| {
                let it = it.path("id", ID).query::<responses::ShowQuery>();
                it.answers::<ResponseAnswer>().events()
            },
        ),
        delete(
            "/v1/responses/{id}",
            responses::delete_response,
            "Deletes a stored response. Responses that continue it are not affected.",
            |it| it.path("id", ID).answers::<DeletedResponse>(),
        ),
        refused_post("/v1/responses/{id}", responses::unknown_verb),
        get(
            "/v1/responses/{id}/input_items",
            responses::list_input_items,
            "Lists the input items of a stored response, including those of the responses that it \
             continues.",
            |it| it.path("id", ID).query::<responses::ItemsQuery>().answers::<InputItems>(),
        ),
    ]
}

/// The routes of vLLM's tokenizer.
pub(crate) fn token_routes() -> Vec<Route> {
    vec![
        post(
            "/tokenize",
            tokenize::tokenize,
            "Returns the tokens of a prompt, or of a conversation as the chat template renders it.",
            |it| it.takes::<tokenize::TokenizeBody>().answers::<tokenize::Tokenized>(),
        ),
        post(
            "/detokenize",
            tokenize::detokenize,
            "Returns the text of tokens, including special tokens.",
            |it| it.takes::<tokenize::DetokenizeBody>().answers::<tokenize::Detokenized>(),
        ),
    ]
}
