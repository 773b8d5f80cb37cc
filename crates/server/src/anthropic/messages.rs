//! `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use jackalope_serving::body::JsonBody;
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{
    Answer, Conversation, EarlyStream, GenerateRequest, Job, Prompt, SamplingParams,
    StructuredOutput, Thinking, ToolChoice, check_count, check_range, check_tool_names,
    check_tool_parameters,
};
use jackalope_serving::limits::ServerLimits;
use jackalope_serving::state::Serving;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::format::MessageFormat;
use super::history::History;
use super::request::{MessagesRequest, Role, ThinkingConfig, Tool, ToolChoiceConfig};
use crate::extract::{JsonRequest, SlottedRequest};
use crate::state::ServerState;
use crate::wire::function_tool;

/// Internal names of fields, each with the name that Anthropic's API has for the field.
const NAMES: [(&str, &str); 2] =
    [("stop", "stop_sequences"), ("thinking_token_budget", "thinking.budget_tokens")];

/// The API's minimum for `thinking.budget_tokens`.
const BUDGET_TOKENS_MIN: u32 = 1024;

pub(super) async fn messages(
    State(state): State<ServerState>,
    SlottedRequest { body, slot }: SlottedRequest,
) -> Result<Response, ApiError> {
    let answered = async {
        let answer = async move |body: JsonBody, serving: Serving| {
            let answered = async {
                let (job, format) = serving.prepare(move |serving| prepare(&body, serving)).await?;
                Answer::start(job, format, &serving, slot)?.respond().await
            };
            answered.await.map_err(|err: ApiError| err.renamed(&NAMES))
        };
        EARLY.answer(&state, body, answer).await
    };
    answered.await.map_err(|err: ApiError| err.renamed(&NAMES))
}

/// Beginning of the names of Anthropic's models.
pub(super) const FOREIGN_NAMES: &str = "claude-";

/// Events of a stream before its model is loaded.
const EARLY: EarlyStream = EarlyStream {
    push_keep_alive: super::format::push_ping,
    push_error: |err, buffer| super::format::push_error(err, buffer),
    // Agents such as Claude Code have the names of Anthropic's models built in.
    foreign_names: Some(FOREIGN_NAMES),
};

/// The length of a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenCount {
    input_tokens: usize,
}

pub(super) async fn count_tokens(
    State(state): State<ServerState>,
    JsonRequest(body): JsonRequest,
) -> Result<Json<TokenCount>, ApiError> {
    let counted = async {
        let serving = state.open_for(body.model()?.as_deref(), EARLY.foreign_names).await?;
        let count = move |serving: &Serving| {
            let conversation = conversation(body.read()?, serving.state().limits())?;
            Ok(TokenCount { input_tokens: conversation.encode(serving)?.len() })
        };
        serving.prepare(count).await.map(Json)
    };
    counted.await.map_err(|err: ApiError| err.renamed(&NAMES))
}

/// Checks the request and prepares it for the engine.
fn prepare(body: &JsonBody, serving: &Serving) -> Result<(Job, MessageFormat), ApiError> {
    let mut request: MessagesRequest = body.read()?;
    let max_tokens = max_tokens(&request)?;
    request.temperature.map_or(Ok(()), |found| check_range("temperature", found, 0.0, 1.0))?;
    let shows_thinking =
        request.thinking.as_ref().is_none_or(|it| it.display.as_deref() != Some("omitted"));
    let sampling = SamplingParams {
        max_tokens: Some(max_tokens),
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        stop: request.stop_sequences.take().unwrap_or_default(),
        structure: structured_output(&request)?,
        ..SamplingParams::default()
    };
    let is_stream = request.stream.unwrap_or(false);
    let conversation = conversation(request, serving.state().limits())?;
    let mut generate = GenerateRequest::new(Prompt::Conversation(conversation), sampling);
    generate.params.output.is_stream = is_stream;
    let job = generate.job(serving)?;
    let format = MessageFormat::new(max_tokens, serving).showing_thinking(shows_thinking);
    Ok((job, format))
}

fn max_tokens(request: &MessagesRequest) -> Result<u32, ApiError> {
    match request.max_tokens {
        None => Err(ApiError::Missing { param: "max_tokens" }),
        Some(0) => Err(ApiError::out_of_range("max_tokens", &0, "at least 1")),
        Some(max_tokens) => Ok(max_tokens),
    }
}

fn conversation(request: MessagesRequest, limits: &ServerLimits) -> Result<Conversation, ApiError> {
    let MessagesRequest { messages, system, tools, tool_choice, thinking, output_config, .. } =
        request;
    let max_tokens = request.max_tokens;
    let output = output_config.unwrap_or_default();
    let hint = "this server runs no tools itself";
    ApiError::refuse_set(&[
        ("mcp_servers", !request.mcp_servers.unwrap_or_default().is_empty(), hint),
        ("container", request.container.is_some_and(|it| !it.is_null()), hint),
    ])?;
    let messages = messages.ok_or(ApiError::Missing { param: "messages" })?;
    if messages.is_empty() {
        return Err(ApiError::Empty { param: "messages".to_owned() });
    }
    check_count("messages", messages.len(), limits.messages)?;
    // A final assistant message is a prefill: the answer continues it.
    let continues_message = messages.last().is_some_and(|last| last.role == Role::Assistant);
    let mut history = History::begin(system)?;
    for (message_idx, message) in messages.into_iter().enumerate() {
        history.push(message_idx, message)?;
    }
    let tools = tools.unwrap_or_default();
    check_count("tools", tools.len(), limits.tools)?;
    let is_custom = |tool: &&Tool| tool.kind.as_deref().is_none_or(|kind| kind == "custom");
    let names = tools.iter().filter(is_custom).map(|tool| &*tool.name);
    check_tool_names(names, |idx| format!("tools[{idx}].name"))?;
    let single_call =
        tool_choice.as_ref().is_some_and(|it| it.disable_parallel_tool_use == Some(true));
    let tool_choice = check_choice(tool_choice, &tools)?;
    let tools = tools.into_iter().enumerate().map(|(tool_idx, it)| tool(tool_idx, it));
    Ok(Conversation {
        param: "messages",
        messages: history.into_messages(),
        tools: tools.collect::<Result<_, _>>()?,
        tool_choice,
        single_call,
        thinking: Thinking {
            effort: effort(output.effort)?,
            ..check_thinking(thinking, max_tokens)?
        },
        kwargs: Map::new(),
        continues_message,
        no_generation_prompt: false,
    })
}

/// The schema that the answer is constrained to, if the request has one.
fn structured_output(request: &MessagesRequest) -> Result<Option<StructuredOutput>, ApiError> {
    let output = request.output_config.as_ref().and_then(|it| it.format.as_ref());
    let fields =
        [("output_config.format", output), ("output_format", request.output_format.as_ref())];
    let mut found = None;
    for (param, format) in fields {
        let Some(format) = format.filter(|it| !it.is_null()) else { continue };
        if format["type"] != "json_schema" {
            let found = format["type"].to_string();
            return Err(ApiError::out_of_range(format!("{param}.type"), &found, "json_schema"));
        }
        let param = format!("{param}.schema");
        found = Some(StructuredOutput::json_schema(&param, &format["schema"])?);
    }
    Ok(found)
}

/// Converts a tool to the form of OpenAI's.
fn tool(tool_idx: usize, tool: Tool) -> Result<Value, ApiError> {
    if let Some(kind) = tool.kind.filter(|kind| kind != "custom") {
        let hint = format!(
            "it is {kind}; tools are of type custom, with a name, a description and an input_schema"
        );
        let param = format!("tools[{tool_idx}].type");
        return Err(ApiError::not_supported(param, hint));
    }
    let parameters = tool
        .input_schema
        .ok_or_else(|| ApiError::missing_field(format!("tools[{tool_idx}]"), "input_schema"))?;
    let parameters = Value::Object(parameters);
    check_tool_parameters(&parameters, || format!("tools[{tool_idx}].input_schema"))?;
    Ok(function_tool(Some(tool.name), tool.description, Some(parameters), tool.strict))
}

fn check_choice(choice: Option<ToolChoiceConfig>, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    let choice = match choice {
        None if tools.is_empty() => return Ok(ToolChoice::None),
        None => return Ok(ToolChoice::Auto),
        Some(choice) => choice,
    };
    if tools.is_empty() && choice.kind != "none" {
        return Err(ApiError::Needs { param: "tool_choice", needs: "tools" });
    }
    match (choice.kind.as_str(), choice.name) {
        ("none", _) => Ok(ToolChoice::None),
        ("auto", _) => Ok(ToolChoice::Auto),
        ("any", _) => Ok(ToolChoice::Required),
        ("tool", Some(name)) if tools.iter().any(|tool| tool.name == name) => {
            Ok(ToolChoice::Named(name))
        }
        ("tool", Some(name)) => Err(ApiError::out_of_range(
            "tool_choice.name",
            &format!("{name:?}"),
            "the name of one of the tools",
        )),
        ("tool", None) => Err(ApiError::Missing { param: "tool_choice.name" }),
        (kind, _) => Err(ApiError::out_of_range(
            "tool_choice.type",
            &format!("{kind:?}"),
            "auto, any, tool or none",
        )),
    }
}

/// Reads `thinking`; without it, the server's default applies.
fn check_thinking(
    config: Option<ThinkingConfig>,
    max_tokens: Option<u32>,
) -> Result<Thinking, ApiError> {
    let Some(config) = config else { return Ok(Thinking::default()) };
    let thinking = |enabled, budget_tokens| Thinking { enabled, budget_tokens, effort: None };
    match (config.kind.as_str(), config.budget_tokens) {
        ("disabled", _) => Ok(thinking(Some(false), None)),
        ("adaptive", _) => Ok(thinking(Some(true), None)),
        ("enabled", None) => Err(ApiError::Missing { param: "thinking.budget_tokens" }),
        ("enabled", Some(found)) if found < BUDGET_TOKENS_MIN => Err(ApiError::out_of_range(
            "thinking.budget_tokens",
            &found,
            format!("at least {BUDGET_TOKENS_MIN}"),
        )),
        ("enabled", Some(found)) if max_tokens.is_some_and(|it| it <= found) => {
            let expected = format!("less than max_tokens, {}", max_tokens.unwrap_or_default());
            Err(ApiError::out_of_range("thinking.budget_tokens", &found, expected))
        }
        ("enabled", budget_tokens) => Ok(thinking(Some(true), budget_tokens)),
        (kind, _) => Err(ApiError::out_of_range(
            "thinking.type",
            &format!("{kind:?}"),
            "enabled, disabled or adaptive",
        )),
    }
}

/// Maps the effort to the values that templates know.
fn effort(effort: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(effort) = effort else { return Ok(None) };
    match effort.as_str() {
        "low" | "medium" | "high" => Ok(Some(effort)),
        "xhigh" | "max" => Ok(Some("high".to_owned())),
        found => Err(ApiError::out_of_range(
            "output_config.effort",
            &format!("{found:?}"),
            "low, medium, high, xhigh or max",
        )),
    }
}
