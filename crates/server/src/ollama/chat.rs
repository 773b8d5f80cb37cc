//! `POST /api/chat`.

use std::collections::VecDeque;

use axum::extract::State;
use axum::response::Response;
use jackalope_serving::body::JsonBody;
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{
    Answer, Conversation, Job, Prompt, ToolChoice, check_count, check_tool_names,
    check_tool_parameters,
};
use jackalope_serving::limits::ServerLimits;
use jackalope_serving::state::Serving;
use serde_json::{Map, Value, json};

use super::format::{LineFormat, Shape};
use super::lifetime;
use super::options::{NAMES, request, thinking};
use super::request::{ChatRequest, Message, Role, Shared, Tool, Tools};
use crate::extract::SlottedUnlabelledRequest;
use crate::state::ServerState;

pub(super) async fn chat(
    State(state): State<ServerState>,
    SlottedUnlabelledRequest { body, slot }: SlottedUnlabelledRequest,
) -> Result<Response, ApiError> {
    let answered = async {
        let name = body.model()?;
        let shared: Shared = body.read()?;
        let chat: ChatRequest = body.read()?;
        if chat.messages.as_deref().unwrap_or_default().is_empty() {
            return lifetime::answer_nothing(&state, name.as_deref(), Shape::Chat, &shared).await;
        }
        let serving = state.open(name.as_deref()).await?;
        lifetime::keep(&serving, shared.keep_alive);
        let prepare = move |serving: &Serving| prepare(&body, shared, chat, serving);
        let (job, format) = serving.prepare(prepare).await?;
        Answer::start(job, format, &serving, slot)?.respond().await
    };
    answered.await.map_err(|err: ApiError| err.renamed(&NAMES))
}

/// Checks the request and prepares it for the engine.
fn prepare(
    body: &JsonBody,
    shared: Shared,
    chat: ChatRequest,
    serving: &Serving,
) -> Result<(Job, LineFormat), ApiError> {
    let limits = serving.state().limits();
    check_tools(&body.read::<Tools>()?.tools.unwrap_or_default(), limits)?;
    let format = LineFormat::new(Shape::Chat, &shared, serving);
    let messages = chat.messages.unwrap_or_default();
    check_count("messages", messages.len(), limits.messages)?;
    let tools = chat.tools.unwrap_or_default();
    for (tool_idx, tool) in tools.iter().enumerate() {
        let param = || format!("tools[{tool_idx}].function.parameters");
        check_tool_parameters(&tool["function"]["parameters"], param)?;
    }
    let conversation = Conversation {
        param: "messages",
        messages: History::default().read(messages)?,
        tool_choice: if tools.is_empty() { ToolChoice::None } else { ToolChoice::Auto },
        tools,
        thinking: thinking(shared.think.clone()),
        ..Conversation::default()
    };
    let job = request(Prompt::Conversation(conversation), shared, serving)?.job(serving)?;
    Ok((job, format))
}

fn check_tools(tools: &[Tool], limits: &ServerLimits) -> Result<(), ApiError> {
    check_count("tools", tools.len(), limits.tools)?;
    for (tool_idx, tool) in tools.iter().enumerate() {
        if let Some(kind) = tool.kind.as_ref().filter(|kind| *kind != "function") {
            let param = format!("tools[{tool_idx}].type");
            return Err(ApiError::out_of_range(param, &format!("{kind:?}"), "\"function\""));
        }
    }
    let names = tools.iter().map(|tool| &*tool.function.name);
    check_tool_names(names, |idx| format!("tools[{idx}].function.name"))
}

/// Refuses images; the error names the field `param`.
pub(super) fn check_images(images: Option<&[Value]>, param: &str) -> Result<(), ApiError> {
    let is_set = !images.unwrap_or_default().is_empty();
    ApiError::refuse_set(&[(param, is_set, "this model takes only text")])
}

/// Converts messages of this API to the form of OpenAI's, whose calls have ids.
#[derive(Debug, Default)]
struct History {
    /// Calls without a result yet, as id and tool name.
    open_calls: VecDeque<(String, String)>,
}

impl History {
    fn read(mut self, messages: Vec<Message>) -> Result<Vec<Value>, ApiError> {
        let read = |(message_idx, message)| self.read_one(message_idx, message);
        messages.into_iter().enumerate().map(read).collect()
    }

    fn read_one(&mut self, message_idx: usize, message: Message) -> Result<Value, ApiError> {
        let images = format!("messages[{message_idx}].images");
        check_images(message.images.as_deref(), &images)?;
        let mut read = Map::new();
        read.insert("role".to_owned(), message.role.name().into());
        read.insert("content".to_owned(), message.content.unwrap_or_default().into());
        if let Some(thinking) = message.thinking.filter(|it| !it.is_empty()) {
            read.insert("reasoning_content".to_owned(), thinking.into());
        }
        let calls = message.tool_calls.unwrap_or_default();
        if !calls.is_empty() {
            let call = |(call_idx, call): (usize, super::request::ToolCall)| {
                let id = call.id.filter(|id| !id.is_empty());
                let id = id.unwrap_or_else(|| format!("call_{message_idx}_{call_idx}"));
                let name = call.function.name;
                self.open_calls.push_back((id.clone(), name.clone()));
                let arguments = Value::Object(call.function.arguments.unwrap_or_default());
                let function = json!({"name": name, "arguments": arguments.to_string()});
                json!({"id": id, "type": "function", "function": function})
            };
            let calls: Vec<Value> = calls.into_iter().enumerate().map(call).collect();
            read.insert("tool_calls".to_owned(), calls.into());
        }
        if message.role == Role::Tool {
            let (id, name) = self.call_of(message.tool_call_id, message.tool_name);
            let named = [("tool_call_id", id), ("name", name)];
            for (field, value) in named {
                if let Some(value) = value {
                    read.insert(field.to_owned(), value.into());
                }
            }
        }
        Ok(read.into())
    }

    /// Finds the call that a result belongs to: the first open call that matches the given id and
    /// tool name; else the one with the id; else, without an id, the first open call.
    fn call_of(
        &mut self,
        id: Option<String>,
        name: Option<String>,
    ) -> (Option<String>, Option<String>) {
        let by_id = |(open, _): &(String, String)| id.as_ref().is_none_or(|id| id == open);
        let by_name = |(_, open): &(String, String)| name.as_ref().is_none_or(|it| it == open);
        let both = |call: &(String, String)| by_id(call) && by_name(call);
        let found = self.open_calls.iter().position(both);
        let found = found.or_else(|| self.open_calls.iter().position(by_id));
        let call = found.and_then(|call_idx| self.open_calls.remove(call_idx));
        match call {
            Some((call_id, call_name)) => (id.or(Some(call_id)), name.or(Some(call_name))),
            None => (id, name),
        }
    }
}
