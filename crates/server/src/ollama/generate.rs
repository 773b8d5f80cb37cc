//! `POST /api/generate`.

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use serde_json::json;

use super::chat::check_images;
use super::format::{LineFormat, Shape};
use super::options::{NAMES, thinking, wishes};
use super::request::{GenerateRequest, Shared};
use super::schema::OllamaGenerateBody;
use super::{lifetime, open};
use crate::ServerState;
use crate::body::{model_of, parse, read_unlabelled_json_body};
use crate::error::ApiError;
use crate::generate::{Answer, AnswerPlan, Conversation, Job, Thinking, Wishes};
use crate::openapi::answers::OllamaGenerateAnswer;
use crate::registry::Serving;

/// Name of the prompt's field.
const PROMPT: &str = "prompt";

/// Answers a prompt; an empty one asks for the model to be loaded, or given back.
#[utoipa::path(
    post,
    path = "/api/generate",
    tag = "Ollama",
    request_body = OllamaGenerateBody,
    responses((
        status = 200,
        description = "The answer.",
        content((OllamaGenerateAnswer = "application/json"), (String = "application/x-ndjson")),
    )),
)]
pub(crate) async fn generate(
    State(state): State<ServerState>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let answered = async {
        let place = state.open_stream()?;
        let body = read_unlabelled_json_body(request, state.limits()).await?;
        let name = model_of(&body)?;
        let shared: Shared = parse(&body)?;
        let generate: GenerateRequest = parse(&body)?;
        check(&generate)?;
        if generate.prompt.as_deref().unwrap_or_default().is_empty() {
            let asked = (Shape::Generate, &shared);
            return lifetime::answer_nothing(&state, name.as_deref(), asked).await;
        }
        let serving = open(&state, name.as_deref()).await?;
        lifetime::keep(&serving, shared.keep_alive);
        let prepare = move |serving: &Serving| prepare(shared, generate, serving);
        let (job, format, plan) = serving.prepare(prepare).await?;
        Answer::start(job, format, plan, &serving, place)?.respond().await
    };
    answered.await.map_err(|err: ApiError| err.renamed(&NAMES))
}

/// Refuses, by name, fields that this server does not support.
fn check(generate: &GenerateRequest) -> Result<(), ApiError> {
    check_images(generate.images.as_deref(), "images")?;
    let is_set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let table = [
        ("suffix", is_set(&generate.suffix), "this server writes only what comes after the prompt"),
        (
            "template",
            is_set(&generate.template),
            "the model's own template is used; to write the whole prompt, set raw",
        ),
        (
            "context",
            generate.context.as_ref().is_some_and(|context| !context.is_empty()),
            "send the earlier turns to /api/chat",
        ),
    ];
    match table.into_iter().find(|(_, is_set, _)| *is_set) {
        None => Ok(()),
        Some((param, _, hint)) => {
            Err(ApiError::NotSupported { param: param.to_owned(), hint: Some(hint.to_owned()) })
        }
    }
}

/// Checks the request and prepares it for the engine.
fn prepare(
    shared: Shared,
    generate: GenerateRequest,
    serving: &Serving,
) -> Result<(Job, LineFormat, AnswerPlan), ApiError> {
    let format = LineFormat::new(Shape::Generate, &shared, serving);
    let thinking = thinking(shared.think.clone());
    let mut wishes = wishes(shared, serving)?;
    // A model without a template always continues the text.
    let is_raw = generate.raw == Some(true) || serving.text().template.is_none();
    let job = match is_raw {
        true => raw_job(&generate, &mut wishes, serving)?,
        false => chat_job(generate, thinking, &mut wishes, serving)?,
    };
    let plan = AnswerPlan::new(&job, &wishes, PROMPT);
    Ok((job, format, plan))
}

fn raw_job(
    generate: &GenerateRequest,
    wishes: &mut Wishes,
    serving: &Serving,
) -> Result<Job, ApiError> {
    if generate.system.as_deref().is_some_and(|system| !system.is_empty()) {
        let hint = Some("write it into the prompt, which is taken as it is".to_owned());
        return Err(ApiError::NotSupported { param: "system".to_owned(), hint });
    }
    let prompt = generate.prompt.as_deref().unwrap_or_default();
    Job::continuation(prompt, PROMPT, wishes, serving)
}

fn chat_job(
    generate: GenerateRequest,
    thinking: Thinking,
    wishes: &mut Wishes,
    serving: &Serving,
) -> Result<Job, ApiError> {
    let system = generate.system.filter(|system| !system.is_empty());
    let system = system.map(|system| json!({"role": "system", "content": system}));
    let prompt = json!({"role": "user", "content": generate.prompt});
    let conversation = Conversation {
        param: PROMPT,
        messages: system.into_iter().chain([prompt]).collect(),
        thinking,
        ..Conversation::default()
    };
    conversation.job(wishes, serving)
}
