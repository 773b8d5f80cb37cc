//! `POST /v1/responses`, and the kept responses: `GET` and `DELETE /v1/responses/{id}`, `GET
//! /v1/responses/{id}/input_items`.
//!
//! ```text
//!  previous_response_id ──kept──▶ items ┐
//!  input ──request──────────────▶ items ┴─▶ GenerateRequest ─▶ Answer ──format──▶ events
//!                                                                └──kept◀── response
//! ```

mod format;
mod items;
pub(crate) mod kept;
mod output;
mod replay;
pub(super) mod request;

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use jackalope_engine::SamplingOptions;
use jackalope_serving::body::JsonBody;
use jackalope_serving::caller::ApiCaller;
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{
    Answer, Conversation, EarlyStream, Job, Prompt, Thinking, check_range, check_top_logprobs,
};
use jackalope_serving::limits::ServerLimits;
use jackalope_serving::notes::Notes;
use jackalope_serving::sse::{self, STREAM_TYPE, push_named};
use jackalope_serving::state::Serving;
use serde::Deserialize;
use serde_json::{Value, json};

use format::{Keeping, ResponseFormat};
use items::Item;
use kept::{KeptResponse, KeptResponses};
use output::Terms;
use request::{FunctionTool, ResponseRequest};
use utoipa::IntoParams;

use super::error;
use super::request::Common;
use super::structure::{Structure, text_format};
use super::unsupported;
use crate::extract::{Name, Params, SlottedRequest};
use crate::state::ServerState;
use crate::wire::merged;

/// Value of `include` that requests log-probabilities.
const INCLUDE_LOGPROBS: &str = "message.output_text.logprobs";

pub(super) async fn create_response(
    State(state): State<ServerState>,
    SlottedRequest { body, slot }: SlottedRequest,
) -> Result<Response, ApiError> {
    let kept = Arc::clone(state.kept_responses());
    let answer = async move |body: JsonBody, serving: Serving| {
        let prepare = move |serving: &Serving| prepare(&body, kept, serving);
        let prepared = serving.prepare(prepare).await?;
        let Prepared { job, format, notes } = prepared;
        let response = Answer::start(job, format, &serving, slot)?.respond().await?;
        Ok(notes.add_to(response))
    };
    EARLY.answer(&state, body, answer).await
}

/// Early streams of this API: an error is a named event, even if no response has begun.
const EARLY: EarlyStream = EarlyStream {
    push_error: |err, buffer| {
        let found = &error::to_json(err)["error"];
        let (code, message, param) = (&found["code"], &found["message"], &found["param"]);
        let event = json!({
            "type": "error", "sequence_number": 0, "code": code, "message": message, "param": param,
        });
        push_named(buffer, "error", &event);
    },
    ..error::EARLY
};

/// The checked request, ready to be submitted to the engine.
struct Prepared {
    job: Job,
    format: ResponseFormat,
    notes: Notes,
}

fn prepare(
    body: &JsonBody,
    kept: Arc<KeptResponses>,
    serving: &Serving,
) -> Result<Prepared, ApiError> {
    let mut request: ResponseRequest = body.read()?;
    // This endpoint does not have these fields.
    let common = Common { n: None, stream_options: None, ..body.read()? };
    let structure: Structure = body.read()?;
    check_refused(&request, common.return_token_ids == Some(true))?;
    unsupported::check(body, &unsupported::RESPONSE)?;
    let notes = notes(&request);
    if request.max_output_tokens == Some(0) {
        return Err(ApiError::out_of_range("max_output_tokens", &0, "at least 1"));
    }
    let logprobs = logprobs(&request, serving.state().limits())?;
    let history = history(&mut request, kept, serving)?;
    let conversation = conversation(&request, &history.conversation, serving)?;
    let mut generate = common.into_request(Prompt::Conversation(conversation))?;
    structure.apply(&mut generate.params.sampling)?;
    if let Some(format) = request::response_format(&request)
        && let Some(found) = text_format("text.format", &format)?
    {
        generate.params.sampling.structure = Some(found);
    }
    generate.params.sampling.max_tokens = request.max_output_tokens;
    generate.params.sampling.logprobs = logprobs;
    let job = generate.job(serving)?;
    let terms = Terms {
        model: serving.id.clone(),
        echo: echo(&request, &job.sampling),
        is_stream: job.rules.output.is_stream,
        logprobs: job.has_logprobs.then(|| Arc::clone(&serving.text.tokenizer)),
        summarises: request.reasoning.as_ref().is_some_and(|it| it.summary.is_some()),
    };
    let keeping = (request.store != Some(false)).then_some(history);
    Ok(Prepared { job, format: ResponseFormat::new(terms, keeping), notes })
}

/// Refuses, by name, fields that ask for another kind of answer than this server gives.
fn check_refused(request: &ResponseRequest, returns_token_ids: bool) -> Result<(), ApiError> {
    let truncates = request.truncation.as_deref().is_some_and(|it| it != "disabled");
    ApiError::refuse_set(&[
        ("background", request.background == Some(true), "stream the response"),
        ("prompt", request.prompt.is_some(), "send instructions and input"),
        ("conversation", request.conversation.is_some(), "use previous_response_id"),
        ("truncation", truncates, "send fewer items"),
        ("return_token_ids", returns_token_ids, "use /v1/chat/completions"),
    ])
}

fn notes(request: &ResponseRequest) -> Notes {
    let mut notes = Notes::default();
    let verbosity = request.text.as_ref().and_then(|text| text.verbosity.as_ref());
    notes.add_if(verbosity.is_some(), "text.verbosity is ignored");
    notes.add_if(request.max_tool_calls.is_some(), "max_tool_calls is ignored");
    let include = request.include.as_deref().unwrap_or_default();
    let is_unknown = |it: &String| it != INCLUDE_LOGPROBS;
    notes.add_if(include.iter().any(is_unknown), "include is ignored except for logprobs");
    notes
}

fn logprobs(request: &ResponseRequest, limits: &ServerLimits) -> Result<Option<u8>, ApiError> {
    let num_top = request.top_logprobs.unwrap_or(0);
    let num_top = check_top_logprobs("top_logprobs", num_top, limits)?;
    let include = request.include.as_deref().unwrap_or_default();
    let is_included = include.iter().any(|it| it == INCLUDE_LOGPROBS);
    Ok((num_top > 0 || is_included).then_some(num_top))
}

/// The conversation so far, including the input of this request.
fn history(
    request: &mut ResponseRequest,
    kept: Arc<KeptResponses>,
    serving: &Serving,
) -> Result<Keeping, ApiError> {
    let owner = ApiCaller::current().tenant();
    let mut conversation = match &request.previous_response_id {
        None => Vec::new(),
        Some(id) => {
            let previous = kept.find(id, owner);
            let unknown = || ApiError::UnknownPreviousResponse { id: id.clone() };
            previous.ok_or_else(unknown)?.conversation.clone()
        }
    };
    let input = request.input.take().ok_or(ApiError::Missing { param: "input" })?;
    let items = input.items(&conversation, serving.state().limits())?;
    conversation.extend(items);
    Ok(Keeping { kept, conversation, owner })
}

fn conversation(
    request: &ResponseRequest,
    items: &[Arc<Item>],
    serving: &Serving,
) -> Result<Conversation, ApiError> {
    let (tools, tool_choice) = request::tools(request, serving.state().limits())?;
    Ok(Conversation {
        param: "input",
        messages: items::messages(request.instructions.as_deref(), items),
        tools,
        tool_choice,
        single_call: request.parallel_tool_calls == Some(false),
        thinking: Thinking {
            enabled: request.enable_thinking,
            effort: request.reasoning.as_ref().and_then(|it| it.effort.clone()),
            budget_tokens: request.thinking_token_budget,
        },
        kwargs: request.chat_template_kwargs.clone().unwrap_or_default(),
        continues_message: false,
        no_generation_prompt: false,
    })
}

/// Fields of the request that the response repeats.
fn echo(request: &ResponseRequest, sampling: &SamplingOptions) -> Value {
    let reasoning = request.reasoning.as_ref();
    let format = request.text.as_ref().and_then(|text| text.format.as_ref());
    let format = format.map_or_else(
        || json!({"type": "text"}),
        |format| merged(json!({"type": format.kind}), format.rest.clone().into()),
    );
    let tools = request.tools.as_deref().unwrap_or_default();
    json!({
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata.clone().unwrap_or_default(),
        "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
        "previous_response_id": request.previous_response_id,
        "reasoning": {
            "effort": reasoning.and_then(|it| it.effort.as_ref()),
            "summary": reasoning.and_then(|it| it.summary.as_ref()),
        },
        "service_tier": "default",
        "store": request.store.unwrap_or(true),
        "temperature": as_written(sampling.temperature),
        "text": {"format": format},
        "tool_choice": request.tool_choice.clone().unwrap_or_else(|| "auto".into()),
        "tools": tools.iter().map(FunctionTool::to_json).collect::<Vec<_>>(),
        "top_logprobs": request.top_logprobs.unwrap_or(0),
        "top_p": as_written(sampling.top_p),
        "truncation": "disabled",
        "user": request.user,
    })
}

/// Converts to JSON with the digits that the client wrote, instead of the nearest `f64` of the
/// `f32`.
fn as_written(value: f32) -> Value {
    let written: Option<f64> = value.to_string().parse().ok();
    written.map_or(Value::Null, Value::from)
}

fn kept(state: &ServerState, id: &str) -> Result<Arc<KeptResponse>, ApiError> {
    let found = state.kept_responses().find(id, ApiCaller::current().tenant());
    found.ok_or_else(|| ApiError::UnknownResponse { id: id.to_owned() })
}

/// Query parameters of a stored response.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ShowQuery {
    /// Return the response as a stream of events. Default: `false`.
    stream: Option<bool>,
    /// With `stream`: return only events after the one with this number.
    starting_after: Option<u64>,
}

pub(super) async fn show_response(
    State(state): State<ServerState>,
    Name(id): Name,
    Params(query): Params<ShowQuery>,
) -> Result<Response, ApiError> {
    let found = kept(&state, &id)?;
    if query.stream != Some(true) {
        return Ok(([(CONTENT_TYPE, "application/json")], found.body.clone()).into_response());
    }
    let response = serde_json::from_slice(&found.body).map_err(|err| ApiError::Internal {
        what: format!("a kept response is not valid JSON: {err}"),
    })?;
    let events = replay::events(&response, query.starting_after);
    Ok(sse::response(STREAM_TYPE, futures_util::stream::once(async { Ok(events) })))
}

/// Rejects `POST` to a path below `/v1/responses/`, where other servers have more endpoints.
pub(crate) async fn unknown_verb(Name(id): Name, request: Request<Body>) -> ApiError {
    let path = request.uri().path().to_owned();
    if id.starts_with("resp_") {
        let method = request.method().to_string();
        return ApiError::WrongMethod { method, path, allowed: RESPONSE_METHODS.to_owned() };
    }
    ApiError::UnknownPath { path }
}

/// The methods of a kept response, for the `Allow` header.
const RESPONSE_METHODS: &str = "GET, HEAD, DELETE";

pub(super) async fn delete_response(
    State(state): State<ServerState>,
    Name(id): Name,
) -> Result<Json<Value>, ApiError> {
    if state.kept_responses().forget(&id, ApiCaller::current().tenant()) {
        Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
    } else {
        Err(ApiError::UnknownResponse { id })
    }
}

/// Query parameters of a list of input items.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ItemsQuery {
    /// Maximum number of items. Default: 20.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// `desc` (default) or `asc`.
    order: Option<String>,
    /// Return only items after the one with this id.
    after: Option<String>,
}

/// Default and maximum number of items per page.
const ITEMS_DEFAULT: u32 = 20;
const ITEMS_MAX: u32 = 100;

pub(super) async fn list_input_items(
    State(state): State<ServerState>,
    Name(id): Name,
    Params(query): Params<ItemsQuery>,
) -> Result<Json<Value>, ApiError> {
    let found = kept(&state, &id)?;
    let limit = query.limit.unwrap_or(ITEMS_DEFAULT);
    check_range("limit", limit, 1, ITEMS_MAX)?;
    let mut items: Vec<&Arc<Item>> = found.conversation[..found.num_input].iter().collect();
    match query.order.as_deref() {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(other) => return Err(ApiError::out_of_range("order", &other, "asc or desc")),
    }
    if let Some(after) = &query.after {
        let place = items.iter().position(|item| item.id() == after);
        let unknown = || ApiError::out_of_range("after", after, "the id of an input item");
        items.drain(..=place.ok_or_else(unknown)?);
    }
    let has_more = items.len() > limit as usize;
    items.truncate(limit as usize);
    Ok(Json(json!({
        "object": "list",
        "data": items.iter().map(|item| item.to_json()).collect::<Vec<_>>(),
        "first_id": items.first().map(|item| item.id()),
        "last_id": items.last().map(|item| item.id()),
        "has_more": has_more,
    })))
}
