//! `POST /v1/chat/completions`.

use axum::extract::State;
use axum::response::Response;
use jackalope_serving::body::JsonBody;
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{
    AllowedTools, Answer, Conversation, Job, Prompt, Thinking, ToolChoice, chat_logprobs,
    check_count, check_tool_names, check_tool_parameters,
};
use jackalope_serving::limits::ServerLimits;
use jackalope_serving::notes::Notes;
use jackalope_serving::state::Serving;
use serde_json::{Value, json};

use super::chat_format::{ChatFormat, ChatOptions};
use super::error::EARLY;
use super::legacy;
use super::request::{ChatRequest, Common, Content, Message, Role, Tool};
use super::structure::Structure;
use super::unsupported;
use crate::extract::SlottedRequest;
use crate::state::ServerState;

pub(super) async fn chat(
    State(state): State<ServerState>,
    SlottedRequest { body, slot }: SlottedRequest,
) -> Result<Response, ApiError> {
    let answer = async move |body: JsonBody, serving: Serving| {
        let prepared = serving.prepare(move |serving| prepare(body, serving)).await?;
        let Prepared { job, format, notes } = prepared;
        let response = Answer::start(job, format, &serving, slot)?.respond().await?;
        Ok(notes.add_to(response))
    };
    EARLY.answer(&state, body, answer).await
}

/// The checked request, ready to be submitted to the engine.
struct Prepared {
    job: Job,
    format: ChatFormat,
    notes: Notes,
}

fn prepare(mut body: JsonBody, serving: &Serving) -> Result<Prepared, ApiError> {
    let is_legacy = legacy::rewrite(body.fields_mut())?;
    let common: Common = body.read()?;
    let chat: ChatRequest = body.read()?;
    let structure: Structure = body.read()?;
    unsupported::check(&body, &unsupported::CHAT)?;
    check_max_tokens(&common)?;
    let limits = serving.state().limits();
    let logprobs = chat_logprobs(chat.logprobs.unwrap_or(false), chat.top_logprobs, limits)?;
    let options = ChatOptions {
        is_legacy,
        include_usage: common.include_usage(),
        conversation_id: chat.conversation_id.clone(),
    };
    let mut notes = Notes::default();
    notes.add_if(chat.verbosity.is_some(), "verbosity is ignored");
    let conversation = conversation(body, chat, limits)?;
    let mut request = common.into_request(Prompt::Conversation(conversation))?;
    request.params.sampling.logprobs = logprobs;
    structure.apply(&mut request.params.sampling)?;
    let job = request.job(serving)?;
    let format = ChatFormat::new(&job, options, serving);
    Ok(Prepared { job, format, notes })
}

fn check_max_tokens(common: &Common) -> Result<(), ApiError> {
    if common.max_tokens() == Some(0) {
        let is_new = common.max_completion_tokens.is_some();
        let param = if is_new { "max_completion_tokens" } else { "max_tokens" };
        return Err(ApiError::out_of_range(param, &0, "at least 1"));
    }
    Ok(())
}

/// Checks a conversation in OpenAI's form and converts it, for protocols that extend that form.
///
/// # Errors
/// Returns the error for the first field that is wrong, by OpenAI's name of the field.
pub fn chat_conversation(body: JsonBody, limits: &ServerLimits) -> Result<Conversation, ApiError> {
    let chat = body.read()?;
    conversation(body, chat, limits)
}

/// Builds and checks the conversation of a body. `chat` are the fields of the same body.
pub(crate) fn conversation(
    mut body: JsonBody,
    chat: ChatRequest,
    limits: &ServerLimits,
) -> Result<Conversation, ApiError> {
    check_messages(chat.messages.as_deref(), limits)?;
    let tool_choice = check_tools(&chat, limits)?;
    let tools = body.take_list("tools");
    for (tool_idx, tool) in tools.iter().enumerate() {
        let param = || format!("tools[{tool_idx}].function.parameters");
        check_tool_parameters(&tool["function"]["parameters"], param)?;
    }
    let continues_message = chat.continue_final_message == Some(true);
    if continues_message && chat.add_generation_prompt == Some(true) {
        let needs = "add_generation_prompt to be false";
        return Err(ApiError::Needs { param: "continue_final_message", needs });
    }
    Ok(Conversation {
        param: "messages",
        // The template gets the whole messages: it may read fields that the API does not define.
        messages: body.take_list("messages").into_iter().map(refusals_as_text).collect(),
        tools: allowed_tools(tools, chat.tool_choice.as_ref())?,
        tool_choice,
        single_call: chat.parallel_tool_calls == Some(false),
        thinking: Thinking {
            enabled: chat.enable_thinking,
            effort: chat.reasoning_effort,
            budget_tokens: chat.thinking_token_budget,
        },
        kwargs: chat.chat_template_kwargs.unwrap_or_default(),
        continues_message,
        no_generation_prompt: chat.add_generation_prompt == Some(false),
    })
}

/// Returns a message whose refusals are text: the model said them, and templates know no other parts.
fn refusals_as_text(mut message: Value) -> Value {
    let parts = message.get_mut("content").and_then(Value::as_array_mut);
    for part in parts.into_iter().flatten() {
        if part["type"] == "refusal" {
            *part = json!({"type": "text", "text": part["refusal"]});
        }
    }
    message
}

/// The tools that the model may call; only the allowed ones if the choice is `allowed_tools`.
fn allowed_tools(mut tools: Vec<Value>, choice: Option<&Value>) -> Result<Vec<Value>, ApiError> {
    if let Some(allowed) = choice.map(AllowedTools::read).transpose()?.flatten() {
        let name = |tool: &Value| tool["function"]["name"].as_str().unwrap_or_default().to_owned();
        tools.retain(|tool| allowed.contains(&name(tool)));
    }
    Ok(tools)
}

fn check_messages(messages: Option<&[Message]>, limits: &ServerLimits) -> Result<(), ApiError> {
    let messages = messages.ok_or(ApiError::Missing { param: "messages" })?;
    if messages.is_empty() {
        return Err(ApiError::Empty { param: "messages".to_owned() });
    }
    check_count("messages", messages.len(), limits.messages)?;
    for (message_idx, message) in messages.iter().enumerate() {
        let Some(Content::List(parts)) = &message.content else { continue };
        for (part_idx, part) in parts.iter().enumerate() {
            let param = format!("messages[{message_idx}].content[{part_idx}]");
            match (part.kind.as_str(), &part.text) {
                ("text", Some(_)) => {}
                ("refusal", _) if part.refusal.is_some() && message.role == Role::Assistant => {}
                ("text", None) => {
                    let reason = "missing field `text`".to_owned();
                    return Err(ApiError::WrongType { param, reason });
                }
                (other, _) => {
                    let hint = format!("it has the type {other}; this model takes only text");
                    return Err(ApiError::not_supported(param, hint));
                }
            }
        }
    }
    Ok(())
}

/// Checks the tools and returns the tool choice.
fn check_tools(chat: &ChatRequest, limits: &ServerLimits) -> Result<ToolChoice, ApiError> {
    let tools = chat.tools.as_deref().unwrap_or_default();
    check_count("tools", tools.len(), limits.tools)?;
    for (tool_idx, tool) in tools.iter().enumerate() {
        check_tool(tool, tool_idx)?;
    }
    let names = tools.iter().filter_map(|tool| Some(&*tool.function.as_ref()?.name));
    let names: Vec<&str> = names.collect();
    check_tool_names(names.iter().copied(), |idx| format!("tools[{idx}].function.name"))?;
    let choice = match &chat.tool_choice {
        None if tools.is_empty() => ToolChoice::None,
        None => ToolChoice::Auto,
        Some(choice) => tool_choice(choice, &names)?,
    };
    match &choice {
        ToolChoice::None => {}
        _ if tools.is_empty() => {
            return Err(ApiError::Needs { param: "tool_choice", needs: "tools" });
        }
        ToolChoice::Auto => {}
        ToolChoice::Named(name) => {
            let is_known = |tool: &Tool| tool.function.as_ref().is_some_and(|it| it.name == *name);
            if !tools.iter().any(is_known) {
                let found = format!("the function {name:?}");
                return Err(ApiError::out_of_range("tool_choice", &found, "a function of tools"));
            }
        }
        ToolChoice::Required => {}
    }
    Ok(choice)
}

fn tool_choice(choice: &Value, names: &[&str]) -> Result<ToolChoice, ApiError> {
    if let Some(allowed) = AllowedTools::read(choice)? {
        allowed.check(names)?;
        let is_forced = allowed.mode == "required";
        return Ok(if is_forced { ToolChoice::Required } else { ToolChoice::Auto });
    }
    let name = choice.pointer("/function/name").or_else(|| choice.get("name"));
    match (choice.as_str(), name.and_then(Value::as_str)) {
        (Some("none"), _) => Ok(ToolChoice::None),
        (Some("auto"), _) => Ok(ToolChoice::Auto),
        (Some("required"), _) => Ok(ToolChoice::Required),
        (None, Some(name)) => Ok(ToolChoice::Named(name.to_owned())),
        (Some(_), _) | (None, None) => {
            let expected =
                "none, auto, required or {\"type\": \"function\", \"function\": {\"name\": …}}";
            Err(ApiError::out_of_range("tool_choice", choice, expected))
        }
    }
}

fn check_tool(tool: &Tool, tool_idx: usize) -> Result<(), ApiError> {
    if tool.kind != "function" {
        let param = format!("tools[{tool_idx}].type");
        return Err(ApiError::out_of_range(param, &format!("{:?}", tool.kind), "\"function\""));
    }
    match &tool.function {
        None => Err(ApiError::missing_field(format!("tools[{tool_idx}]"), "function")),
        Some(_) => Ok(()),
    }
}
