//! Bodies of `POST /v1/responses`, and their conversion to a conversation.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{
    AllowedTools, ToolChoice, check_count, check_tool_names, check_tool_parameters,
};
use jackalope_serving::ids::new_id;
use jackalope_serving::limits::ServerLimits;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::openapi::schema::OneOfBuilder;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::items::Item;
use crate::openai::request::{Common, Content, Part, Role, Unsupported};
use crate::openai::structure::Structure;
use crate::wire::{Listed, TextOr, body_schema, function_tool, list, string};

/// Fields of `POST /v1/responses` alone.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ResponseRequest {
    /// Input: a string, or items of the types `message` (with parts `input_text`, `output_text`,
    /// `text`, `refusal`), `function_call`, `function_call_output` and `reasoning`. Images, files
    /// and other items are refused.
    pub(super) input: Option<Input>,
    /// System message before everything else; not carried over to later responses.
    pub(super) instructions: Option<String>,
    /// Id of a stored response to continue; the answer is to the whole conversation.
    pub(super) previous_response_id: Option<String>,
    /// Store the response, so that it can be continued. Default: `true`.
    pub(super) store: Option<bool>,
    /// Maximum number of tokens to generate, reasoning included.
    #[schema(minimum = 1)]
    pub(super) max_output_tokens: Option<u32>,
    /// Functions that the model may call, in the flat form. Built-in tools are refused.
    pub(super) tools: Option<Vec<FunctionTool>>,
    /// `none`, `auto`, `required` or a named function; enforced by constrained decoding.
    pub(super) tool_choice: Option<Value>,
    /// Allow several tool calls in one answer. With `false`, the first call ends the answer. Default:
    /// `true`.
    pub(super) parallel_tool_calls: Option<bool>,
    /// Format of the text.
    pub(super) text: Option<TextOptions>,
    /// Options of the reasoning.
    pub(super) reasoning: Option<ReasoningOptions>,
    /// Returned in the answer.
    pub(super) metadata: Option<BTreeMap<String, String>>,
    /// Returned in the answer.
    pub(super) user: Option<String>,
    /// `message.output_text.logprobs` returns log-probabilities. Other values are ignored; the
    /// header `X-Jackalope-Note` reports them.
    pub(super) include: Option<Vec<String>>,
    /// Number of most likely tokens whose log-probabilities are returned with those of the text.
    #[schema(minimum = 0, maximum = 20)]
    pub(super) top_logprobs: Option<u32>,
    /// Only `disabled` is accepted.
    pub(super) truncation: Option<String>,
    /// Only `false` is accepted; stream the response.
    pub(super) background: Option<bool>,
    /// Use `previous_response_id`.
    pub(super) conversation: Option<Value>,
    /// Send `instructions` and `input`.
    pub(super) prompt: Option<Value>,
    /// Ignored; the header `X-Jackalope-Note` reports it.
    pub(super) max_tool_calls: Option<u32>,
    /// Passed to the chat template.
    pub(super) enable_thinking: Option<bool>,
    /// Maximum number of reasoning tokens; the reasoning is then closed.
    pub(super) thinking_token_budget: Option<u32>,
    /// Passed to the chat template.
    pub(super) chat_template_kwargs: Option<Map<String, Value>>,
}

body_schema! {
    /// The body of a request for a response.
    pub(crate) struct ResponseBody {
        model, response: ResponseRequest, ignored: IgnoredByResponses, common: Common,
        structure: Structure, unsupported: Unsupported
    }
}

/// Fields of other endpoints that change nothing here.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described")]
struct IgnoredByResponses {
    /// Use `max_output_tokens`.
    max_tokens: Option<Value>,
    /// Use `max_output_tokens`.
    max_completion_tokens: Option<Value>,
    /// There is always one choice.
    n: Option<Value>,
    /// The last event always has the token counts.
    stream_options: Option<Value>,
    /// There is only one service tier.
    service_tier: Option<Value>,
    /// Identifies the end user; ignored.
    safety_identifier: Option<Value>,
    /// Prefixes of prompts are cached automatically.
    prompt_cache_key: Option<Value>,
}

/// `text`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(super) struct TextOptions {
    /// Structure of the answer: `text`, `json_object` or `json_schema`; enforced by constrained
    /// decoding.
    pub(super) format: Option<TextFormat>,
    /// Ignored; the header `X-Jackalope-Note` reports it.
    pub(super) verbosity: Option<String>,
}

/// `text.format`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(super) struct TextFormat {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

/// `reasoning`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(super) struct ReasoningOptions {
    /// Passed to the chat template.
    pub(super) effort: Option<String>,
    /// If set, the reasoning is returned as its own summary (`reasoning_summary_text`), else as
    /// `reasoning_text`.
    pub(super) summary: Option<String>,
}

/// A tool, in this API's flat form.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(super) struct FunctionTool {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    description: Option<String>,
    parameters: Option<Value>,
    strict: Option<bool>,
}

/// `input`.
pub(super) type Input = TextOr<InputItem>;

impl Listed for InputItem {
    const EXPECTED: &'static str = "a string or a list of items";
}

/// One item of `input`; which fields it needs depends on its type.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(super) struct InputItem {
    #[serde(rename = "type")]
    kind: Option<String>,
    id: Option<String>,
    role: Option<Role>,
    content: Option<Content>,
    summary: Option<Vec<Part>>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<Content>,
}

impl PartialSchema for Input {
    fn schema() -> RefOr<Schema> {
        OneOfBuilder::new().item(string()).item(list(InputItem::schema())).into()
    }
}

impl ToSchema for Input {
    fn name() -> Cow<'static, str> {
        "Input".into()
    }
}

impl Input {
    /// Checks and converts the items. `earlier` are the items before them.
    pub(super) fn items(
        self,
        earlier: &[Arc<Item>],
        limits: &ServerLimits,
    ) -> Result<Vec<Arc<Item>>, ApiError> {
        let items = match self {
            Input::Text(text) => {
                let id = new_id("msg_");
                return Ok(vec![Arc::new(Item::Message { id, role: Role::User, text })]);
            }
            Input::List(items) => items,
        };
        if items.is_empty() {
            return Err(ApiError::Empty { param: "input".to_owned() });
        }
        check_count("input", earlier.len() + items.len(), limits.messages)?;
        let read = |(idx, item): (usize, InputItem)| item.read(idx).map(Arc::new);
        let items = items.into_iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        check_call_outputs(earlier, &items)?;
        Ok(items)
    }
}

/// Rejects outputs whose call does not exist.
fn check_call_outputs(earlier: &[Arc<Item>], items: &[Arc<Item>]) -> Result<(), ApiError> {
    let mut called = HashSet::new();
    for (idx, item) in earlier.iter().chain(items).enumerate() {
        match item.as_ref() {
            Item::Call { call_id, .. } => {
                called.insert(call_id.as_str());
            }
            Item::CallOutput { call_id, .. } if !called.contains(call_id.as_str()) => {
                let param = format!("input[{}].call_id", idx.saturating_sub(earlier.len()));
                let expected = "the call_id of a function_call before it";
                return Err(ApiError::out_of_range(param, &format!("{call_id:?}"), expected));
            }
            Item::CallOutput { .. } | Item::Message { .. } | Item::Reasoning { .. } => {}
        }
    }
    Ok(())
}

impl InputItem {
    fn read(self, idx: usize) -> Result<Item, ApiError> {
        let param = |field: &str| format!("input[{idx}].{field}");
        let missing = |field: &str| ApiError::missing_field(format!("input[{idx}]"), field);
        let id = |prefix: &str| self.id.clone().unwrap_or_else(|| new_id(prefix));
        match self.kind.as_deref() {
            None | Some("message") => {
                let role = self.role.ok_or_else(|| missing("role"))?;
                if role == Role::Tool {
                    let expected = "system, developer, user or assistant; the result of a tool is \
                                    an item of type function_call_output";
                    return Err(ApiError::out_of_range(param("role"), &"tool", expected));
                }
                let content = self.content.as_ref().ok_or_else(|| missing("content"))?;
                let text = joined(content, &param("content"))?;
                Ok(Item::Message { id: id("msg_"), role, text })
            }
            Some("reasoning") => {
                let content = self.content.as_ref();
                let summary = || self.summary.as_deref().map_or(Ok(String::new()), joined_summary);
                let written =
                    content.map(|content| joined(content, &param("content"))).transpose()?;
                let text = written.filter(|text| !text.is_empty()).map_or_else(summary, Ok)?;
                Ok(Item::Reasoning { id: id("rs_"), text })
            }
            Some("function_call") => Ok(Item::Call {
                id: id("fc_"),
                call_id: self.call_id.clone().ok_or_else(|| missing("call_id"))?,
                name: self.name.clone().ok_or_else(|| missing("name"))?,
                arguments: self.arguments.clone().ok_or_else(|| missing("arguments"))?,
            }),
            Some("function_call_output") => {
                let output = self.output.as_ref().ok_or_else(|| missing("output"))?;
                Ok(Item::CallOutput {
                    id: id("fco_"),
                    call_id: self.call_id.clone().ok_or_else(|| missing("call_id"))?,
                    output: joined(output, &param("output"))?,
                })
            }
            Some(other) => {
                let hint = format!(
                    "it has the type {other}; this server knows message, reasoning, function_call \
                     and function_call_output"
                );
                Err(ApiError::not_supported(format!("input[{idx}]"), hint))
            }
        }
    }
}

/// The summaries of a reasoning item, for clients that send no content.
fn joined_summary(parts: &[Part]) -> Result<String, ApiError> {
    let texts: Vec<&str> = parts.iter().filter_map(|part| part.text.as_deref()).collect();
    Ok(texts.join("\n\n"))
}

/// Joins the text parts of a content; any other part is refused by name.
fn joined(content: &Content, param: &str) -> Result<String, ApiError> {
    let parts = match content {
        Content::Text(text) => return Ok(text.clone()),
        Content::List(parts) => parts,
    };
    let mut joined = String::new();
    for (idx, part) in parts.iter().enumerate() {
        let param = format!("{param}[{idx}]");
        let text = match part.kind.as_str() {
            "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => &part.text,
            "refusal" => &part.refusal,
            other => {
                let hint = format!("it has the type {other}; this model takes only text");
                return Err(ApiError::not_supported(param, hint));
            }
        };
        let field = if part.kind == "refusal" { "refusal" } else { "text" };
        let missing = || ApiError::missing_field(param, field);
        joined.push_str(text.as_deref().ok_or_else(missing)?);
    }
    Ok(joined)
}

impl FunctionTool {
    /// Converts to the form of a chat's tool.
    fn for_chat(&self) -> Value {
        let FunctionTool { name, description, parameters, strict, .. } = self.clone();
        function_tool(name, description, parameters, strict)
    }

    /// The tool as responses repeat it.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "type": "function", "name": self.name, "description": self.description,
            "parameters": self.parameters, "strict": self.strict.unwrap_or(false),
        })
    }
}

/// The tools in the form of a chat's, and the tool choice.
pub(super) fn tools(
    request: &ResponseRequest,
    limits: &ServerLimits,
) -> Result<(Vec<Value>, ToolChoice), ApiError> {
    let tools = request.tools.as_deref().unwrap_or_default();
    check_count("tools", tools.len(), limits.tools)?;
    for (idx, tool) in tools.iter().enumerate() {
        if tool.kind != "function" {
            let hint = format!(
                "it has the type {}; this server has no tools of its own, send functions",
                tool.kind
            );
            let param = format!("tools[{idx}]");
            return Err(ApiError::not_supported(param, hint));
        }
        let parameters = tool.parameters.as_ref().unwrap_or(&Value::Null);
        check_tool_parameters(parameters, || format!("tools[{idx}].parameters"))?;
    }
    let names = tools.iter().map(|tool| tool.name.as_deref().unwrap_or_default());
    let names: Vec<&str> = names.collect();
    check_tool_names(names.iter().copied(), |idx| format!("tools[{idx}].name"))?;
    let choice = request.tool_choice.as_ref().filter(|it| !it.is_null());
    if let Some(allowed) = choice.map(AllowedTools::read).transpose()?.flatten() {
        allowed.check(&names)?;
        let is_forced = allowed.mode == "required";
        let is_allowed =
            |tool: &&FunctionTool| allowed.contains(tool.name.as_deref().unwrap_or_default());
        let tools = tools.iter().filter(is_allowed).map(FunctionTool::for_chat).collect();
        return Ok((tools, if is_forced { ToolChoice::Required } else { ToolChoice::Auto }));
    }
    let choice = match choice {
        None if tools.is_empty() => ToolChoice::None,
        None => ToolChoice::Auto,
        Some(choice) => tool_choice(choice, tools)?,
    };
    Ok((tools.iter().map(FunctionTool::for_chat).collect(), choice))
}

fn tool_choice(choice: &Value, tools: &[FunctionTool]) -> Result<ToolChoice, ApiError> {
    let param = "tool_choice";
    let kind = choice.get("type").and_then(Value::as_str);
    let name = choice.get("name").and_then(Value::as_str);
    let choice = match (choice.as_str(), kind, name) {
        (Some("none"), ..) => ToolChoice::None,
        // Some clients send this with every request, with or without tools.
        (Some("auto"), ..) if tools.is_empty() => ToolChoice::None,
        (Some("auto"), ..) => ToolChoice::Auto,
        (Some("required"), ..) => ToolChoice::Required,
        (None, Some("function"), Some(name)) => ToolChoice::Named(name.to_owned()),
        (None, Some(kind), _) if kind != "function" => {
            let hint = format!("it has the type {kind}; this server knows only functions");
            return Err(ApiError::not_supported(param, hint));
        }
        _ => {
            let expected = "none, auto, required or {\"type\": \"function\", \"name\": …}";
            return Err(ApiError::out_of_range(param, choice, expected));
        }
    };
    match &choice {
        ToolChoice::Required if tools.is_empty() => Err(ApiError::Needs { param, needs: "tools" }),
        ToolChoice::Named(name)
            if !tools.iter().any(|tool| tool.name.as_deref() == Some(name.as_str())) =>
        {
            let found = format!("the function {name:?}");
            Err(ApiError::out_of_range(param, &found, "a function of tools"))
        }
        ToolChoice::None | ToolChoice::Auto | ToolChoice::Required | ToolChoice::Named(_) => {
            Ok(choice)
        }
    }
}

/// Converts `text.format` to a chat's `response_format`; none if the text is unconstrained.
pub(super) fn response_format(request: &ResponseRequest) -> Option<Value> {
    let format = request.text.as_ref()?.format.as_ref()?;
    match format.kind.as_str() {
        "text" => None,
        "json_schema" => {
            let schema = Value::Object(format.rest.clone());
            Some(json!({"type": "json_schema", "json_schema": schema}))
        }
        kind => Some(json!({"type": kind, "schema": format.rest.get("schema")})),
    }
}
