//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use jackalope_protocol::TokenId;
use jackalope_text::ChatPrompt;
use serde_json::{Map, Value};

use super::answer::{Answer, AnswerPlan};
use super::chat_format::ChatFormat;
use super::request::{
    ChatRequest, Common, Content, Conversation, Message, Tool, Tools, Unsupported,
};
use super::wishes::{Wishes, check_count, check_range, check_unsupported};
use crate::ServerState;
use crate::body::{check_object, parse, read_json_body};
use crate::error::ApiError;
use crate::generate::{AnswerRules, Job, PromptJob, TextRules};

/// Answers a conversation.
pub(crate) async fn chat(
    State(state): State<ServerState>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let place = state.open_stream()?;
    let body = read_json_body(request, state.limits()).await?;
    let (job, format, plan) = state.prepare(move |state| prepare(&body, state)).await?;
    Answer::start(job, format, plan, &state, place)?.respond().await
}

/// Everything that has to be known before the engine is asked.
fn prepare(body: &Bytes, state: &ServerState) -> Result<(Job, ChatFormat, AnswerPlan), ApiError> {
    check_object(body)?;
    let common: Common = parse(body)?;
    let chat: ChatRequest = parse(body)?;
    check_unsupported(parse::<Unsupported>(body)?)?;
    let max_tokens = common.max_completion_tokens.or(common.max_tokens);
    if let Some(max_tokens) = max_tokens {
        let is_new = common.max_completion_tokens.is_some();
        let param = if is_new { "max_completion_tokens" } else { "max_tokens" };
        if max_tokens == 0 {
            return Err(ApiError::out_of_range(param, &max_tokens, "at least 1"));
        }
    }
    let mut wishes = Wishes::check(common, state)?;
    wishes.options.max_tokens = max_tokens.or(state.limits().default_max_tokens);
    wishes.options.logprobs = logprobs(&chat, state.limits().top_logprobs)?;
    check_messages(chat.messages.as_deref(), state)?;
    let takes_tools = check_tools(&chat, state)?;

    let limits = state.engine_limits()?;
    let prompt = encode(body, &chat, takes_tools, state)?;
    let requests = wishes.requests(&prompt, &limits, "messages")?;
    let job = Job {
        prompts: vec![PromptJob { requests, text: None }],
        rules: TextRules {
            stop_tokens: Arc::from(wishes.all_stop_tokens(&limits)),
            answer: takes_tools.then(|| AnswerRules {
                format: state.text().answer.without_reasoning(),
                tools: None,
            }),
            single_call: chat.parallel_tool_calls == Some(false),
            wants_tokens: wishes.return_token_ids,
            continues_prompt: false,
            stops: std::mem::take(&mut wishes.stops),
        },
    };
    let format = ChatFormat::new(&job, &wishes, state);
    let plan = AnswerPlan::new(&job, &wishes, "messages");
    Ok((job, format, plan))
}

/// `logprobs` and `top_logprobs` as the engine wants them.
fn logprobs(chat: &ChatRequest, limit: u8) -> Result<Option<u8>, ApiError> {
    let wanted = chat.logprobs.unwrap_or(false);
    let Some(num_top) = chat.top_logprobs else { return Ok(wanted.then_some(0)) };
    check_range("top_logprobs", num_top, 0, limit.into())?;
    if num_top > 0 && !wanted {
        return Err(ApiError::Needs { param: "top_logprobs", needs: "logprobs to be true" });
    }
    let num_top = u8::try_from(num_top).expect("the limit is a byte");
    Ok(wanted.then_some(num_top))
}

fn check_messages(messages: Option<&[Message]>, state: &ServerState) -> Result<(), ApiError> {
    let messages = messages.ok_or(ApiError::Missing { param: "messages" })?;
    if messages.is_empty() {
        return Err(ApiError::Empty { param: "messages".to_owned() });
    }
    check_count("messages", messages.len(), state.limits().messages)?;
    for (message_idx, message) in messages.iter().enumerate() {
        let Some(Content::Parts(parts)) = &message.content else { continue };
        for (part_idx, part) in parts.iter().enumerate() {
            let param = format!("messages[{message_idx}].content[{part_idx}]");
            match (part.kind.as_str(), &part.text) {
                ("text", Some(_)) => {}
                ("text", None) => {
                    let reason = "missing field `text`".to_owned();
                    return Err(ApiError::WrongType { param, reason });
                }
                (other, _) => {
                    let hint = format!("it has the type {other}; this model takes only text");
                    return Err(ApiError::NotSupported { param, hint: Some(hint) });
                }
            }
        }
    }
    Ok(())
}

/// True if the model is told of tools.
fn check_tools(chat: &ChatRequest, state: &ServerState) -> Result<bool, ApiError> {
    let tools = chat.tools.as_deref().unwrap_or_default();
    check_count("tools", tools.len(), state.limits().tools)?;
    for (tool_idx, tool) in tools.iter().enumerate() {
        check_tool(tool, tool_idx)?;
    }
    match &chat.tool_choice {
        None => Ok(!tools.is_empty()),
        Some(Value::String(choice)) if choice == "none" => Ok(false),
        Some(Value::String(choice)) if choice == "auto" => match tools.is_empty() {
            true => Err(ApiError::Needs { param: "tool_choice", needs: "tools" }),
            false => Ok(true),
        },
        Some(Value::String(choice)) if choice != "required" => {
            Err(ApiError::out_of_range("tool_choice", &format!("{choice:?}"), "none or auto"))
        }
        Some(_) => Err(ApiError::NotSupported {
            param: "tool_choice".to_owned(),
            hint: Some("a call cannot be forced; send none or auto".to_owned()),
        }),
    }
}

fn check_tool(tool: &Tool, tool_idx: usize) -> Result<(), ApiError> {
    if tool.kind != "function" {
        let param = format!("tools[{tool_idx}].type");
        return Err(ApiError::out_of_range(param, &format!("{:?}", tool.kind), "\"function\""));
    }
    match &tool.function {
        None => Err(ApiError::WrongType {
            param: format!("tools[{tool_idx}]"),
            reason: "missing field `function`".to_owned(),
        }),
        Some(function) if function.name.is_empty() => {
            Err(ApiError::Empty { param: format!("tools[{tool_idx}].function.name") })
        }
        Some(_) => Ok(()),
    }
}

/// The prompt's tokens.
fn encode(
    body: &Bytes,
    chat: &ChatRequest,
    takes_tools: bool,
    state: &ServerState,
) -> Result<Vec<TokenId>, ApiError> {
    let conversation: Conversation = parse(body)?;
    let tools = if takes_tools { parse::<Tools>(body)?.tools } else { None };
    let mut kwargs: Map<String, Value> = chat.chat_template_kwargs.clone().unwrap_or_default();
    if let Some(enable_thinking) = chat.enable_thinking.or(state.enable_thinking()) {
        kwargs.entry("enable_thinking").or_insert(enable_thinking.into());
    }
    if let Some(effort) = &chat.reasoning_effort {
        kwargs.entry("reasoning_effort").or_insert(effort.as_str().into());
    }
    let prompt = ChatPrompt {
        messages: &conversation.messages,
        tools: tools.as_deref(),
        kwargs: &kwargs,
        add_generation_prompt: chat.add_generation_prompt.unwrap_or(true),
    };
    state.text().encode_chat(&prompt).map_err(|err| ApiError::from_text(err, "messages"))
}
