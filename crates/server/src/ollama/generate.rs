//! `POST /api/generate`.

use axum::extract::State;
use axum::response::Response;
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{Answer, Continuation, Conversation, Job, Prompt};
use jackalope_serving::state::Serving;
use serde_json::json;

use super::chat::check_images;
use super::format::{LineFormat, Shape};
use super::lifetime;
use super::options::{NAMES, request, thinking};
use super::request::{PromptRequest, Shared};
use crate::extract::SlottedUnlabelledRequest;
use crate::state::ServerState;

/// Name of the prompt's field.
const PROMPT: &str = "prompt";

pub(super) async fn generate(
    State(state): State<ServerState>,
    SlottedUnlabelledRequest { body, slot }: SlottedUnlabelledRequest,
) -> Result<Response, ApiError> {
    let answered = async {
        let name = body.model()?;
        let shared: Shared = body.read()?;
        let asked: PromptRequest = body.read()?;
        check(&asked)?;
        if asked.prompt.as_deref().unwrap_or_default().is_empty() {
            let shape = Shape::Generate;
            return lifetime::answer_nothing(&state, name.as_deref(), shape, &shared).await;
        }
        let serving = state.open(name.as_deref()).await?;
        lifetime::keep(&serving, shared.keep_alive);
        let prepare = move |serving: &Serving| prepare(shared, asked, serving);
        let (job, format) = serving.prepare(prepare).await?;
        Answer::start(job, format, &serving, slot)?.respond().await
    };
    answered.await.map_err(|err: ApiError| err.renamed(&NAMES))
}

/// Refuses, by name, fields that this server does not support.
fn check(asked: &PromptRequest) -> Result<(), ApiError> {
    check_images(asked.images.as_deref(), "images")?;
    let is_set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    ApiError::refuse_set(&[
        ("suffix", is_set(&asked.suffix), "this server writes only what comes after the prompt"),
        (
            "template",
            is_set(&asked.template),
            "the model's own template is used; to write the whole prompt, set raw",
        ),
        (
            "context",
            asked.context.as_ref().is_some_and(|context| !context.is_empty()),
            "send the earlier turns to /api/chat",
        ),
    ])
}

/// Checks the request and prepares it for the engine.
fn prepare(
    shared: Shared,
    asked: PromptRequest,
    serving: &Serving,
) -> Result<(Job, LineFormat), ApiError> {
    let format = LineFormat::new(Shape::Generate, &shared, serving);
    // A model without a template always continues the text.
    let is_raw = asked.raw == Some(true) || serving.text.template.is_none();
    let prompt = if is_raw {
        Prompt::Continuation(continuation(asked)?)
    } else {
        Prompt::Conversation(conversation(asked, &shared))
    };
    let job = request(prompt, shared, serving)?.job(serving)?;
    Ok((job, format))
}

fn continuation(asked: PromptRequest) -> Result<Continuation, ApiError> {
    if asked.system.as_deref().is_some_and(|system| !system.is_empty()) {
        return Err(ApiError::not_supported(
            "system",
            "write it into the prompt, which is taken as it is",
        ));
    }
    Ok(Continuation::of(asked.prompt.unwrap_or_default(), PROMPT))
}

fn conversation(asked: PromptRequest, shared: &Shared) -> Conversation {
    let system = asked.system.filter(|system| !system.is_empty());
    let system = system.map(|system| json!({"role": "system", "content": system}));
    let prompt = json!({"role": "user", "content": asked.prompt});
    Conversation {
        param: PROMPT,
        messages: system.into_iter().chain([prompt]).collect(),
        thinking: thinking(shared.think.clone()),
        ..Conversation::default()
    }
}
