//! A conversation to answer, in the form of OpenAI's messages; every chat protocol is converted to
//! it.

use std::sync::Arc;

use jackalope_protocol::TokenId;
use jackalope_text::grammar::{self, Constraint};
use jackalope_text::{AnswerFormat, CallCount, ChatPrompt, RenderedPrompt, ToolDemand, ToolSpec};
use serde_json::{Map, Value, json};

use super::constraints::{StructuredOutput, TokenConstraints};
use super::job::{Job, PromptJob};
use super::output::AnswerRules;
use super::params::{CheckedParams, Parsing};
use super::token_constraints::Reasoning;
use crate::error::ApiError;
use crate::state::Serving;

/// Whether the model may, must or must not call tools.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum ToolChoice {
    /// No tool may be called; the prompt does not mention the tools.
    #[default]
    None,
    /// The model decides whether to call tools.
    Auto,
    /// The model must call at least one tool.
    Required,
    /// The model must call exactly this tool, once.
    Named(String),
}

/// Parameters of the model's reasoning.
#[derive(Clone, Debug, Default)]
pub struct Thinking {
    /// Whether to reason. If absent, the server's default or else the template's applies.
    pub enabled: Option<bool>,
    /// Value passed to the template as `reasoning_effort`.
    pub effort: Option<String>,
    /// Maximum number of reasoning tokens; the reasoning is closed after it.
    pub budget_tokens: Option<u32>,
}

/// The conversation to answer.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Name of the request field that the messages came in.
    pub param: &'static str,
    /// Messages in the form of OpenAI's chat completions, already checked.
    pub messages: Vec<Value>,
    /// Tools in the form of OpenAI's chat completions, already checked.
    pub tools: Vec<Value>,
    /// Whether tools may or must be called.
    pub tool_choice: ToolChoice,
    /// Whether the answer ends after its first tool call.
    pub single_call: bool,
    /// Whether and how much the model reasons.
    pub thinking: Thinking,
    /// Additional variables for the template.
    pub kwargs: Map<String, Value>,
    /// Whether the answer continues the last message, which is the assistant's, instead of
    /// beginning a new one.
    pub continues_message: bool,
    /// Whether the prompt leaves out the generation prompt, which begins the assistant's message.
    pub no_generation_prompt: bool,
}

impl Conversation {
    pub(super) fn job(
        &self,
        mut params: CheckedParams,
        serving: &Serving,
    ) -> Result<Job, ApiError> {
        let limits = serving.engine_limits()?;
        let rendered = self.render(serving)?;
        params.check_length(rendered.text(), self.param, serving)?;
        let prompt = self.tokenize(&rendered, serving)?;
        params.options.stable_tokens = self.stable_tokens(&prompt, serving);
        let text = &serving.text;
        let takes_tools = self.takes_tools();
        let format = if takes_tools { text.answer.clone() } else { text.answer.without_tools() };
        let tools = if takes_tools { self.tool_specs() } else { Vec::new() };
        let constraints = &mut params.constraints;
        self.constrain_calls(constraints, &format, &tools)?;
        if let Some(reasoning) = self.reasoning(&format, &prompt, serving) {
            constraints.reason_first(reasoning);
        }
        constraints.compile(serving)?;
        let requests = params.requests(&prompt, &limits, self.param)?;
        let parsing = Parsing {
            answer: Some(AnswerRules { format, tools: takes_tools.then(|| Arc::from(tools)) }),
            single_call: self.single_call,
            continues_prompt: self.continues_message,
        };
        let prompts = vec![PromptJob { requests, text: None }];
        Ok(params.into_job(prompts, parsing, &limits, self.param))
    }

    /// The tools for the grammar and the parser; only the named one if `tool_choice` names one.
    fn tool_specs(&self) -> Vec<ToolSpec> {
        let mut specs = Vec::with_capacity(self.tools.len());
        for tool in &self.tools {
            let function = &tool["function"];
            let name = function["name"].as_str().unwrap_or_default();
            if matches!(&self.tool_choice, ToolChoice::Named(named) if named != name) {
                continue;
            }
            let parameters = match &function["parameters"] {
                // As OpenAI defines it, a function without a schema has no parameters.
                Value::Null => {
                    json!({"type": "object", "properties": {}, "additionalProperties": false})
                }
                schema => schema.clone(),
            };
            specs.push(ToolSpec {
                name: name.to_owned(),
                parameters,
                strict: function["strict"] == true,
            });
        }
        specs
    }

    /// Constrains the answer to tool calls if they are required or strict, or combined with another
    /// structure.
    fn constrain_calls(
        &self,
        constraints: &mut TokenConstraints,
        format: &AnswerFormat,
        tools: &[ToolSpec],
    ) -> Result<(), ApiError> {
        let is_forced = matches!(self.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        let is_strict = tools.iter().any(|tool| tool.strict);
        let structure = constraints.structure().cloned();
        if tools.is_empty() || !(is_forced || is_strict || structure.is_some()) {
            return Ok(());
        }
        if let Some(StructuredOutput { param, constraint }) = &structure {
            // An error of the grammar below would name the tools.
            let refused = |source| ApiError::Structure { param: param.clone(), source };
            grammar::check(constraint).map_err(refused)?;
        }
        let instead = match structure.filter(|_| !is_forced) {
            None => None,
            Some(StructuredOutput { constraint: Constraint::JsonObject, .. }) => {
                Some(json!({"type": "object"}))
            }
            Some(StructuredOutput { constraint: Constraint::JsonSchema(schema), .. }) => {
                Some(schema)
            }
            Some(StructuredOutput { param, .. }) => {
                let hint = "beside tools the structure must be JSON";
                return Err(ApiError::not_supported(param, hint));
            }
        };
        let is_single = self.single_call || matches!(self.tool_choice, ToolChoice::Named(_));
        let calls = match (is_forced || instead.is_some(), is_single) {
            (true, true) => CallCount::ExactlyOne,
            (true, false) => CallCount::AtLeastOne,
            (false, _) => CallCount::Any,
        };
        let demand = ToolDemand { calls, text_before: false };
        let param = if is_forced { "tool_choice" } else { "tools" };
        let Some(grammar) = format.grammar(tools, demand, instead.as_ref()) else {
            let hint = "this model has no form for calls that is known";
            return Err(ApiError::not_supported(param, hint));
        };
        let grammar = grammar.map_err(|err| ApiError::WrongType {
            param: "tools".to_owned(),
            reason: err.to_string(),
        })?;
        constraints.constrain(StructuredOutput::new(param, Constraint::Lark(grammar)));
        Ok(())
    }

    /// The reasoning that may precede the answer, with its budget; none if the model does not
    /// reason.
    fn reasoning(
        &self,
        format: &AnswerFormat,
        prompt: &[TokenId],
        serving: &Serving,
    ) -> Option<Reasoning> {
        let markers = format.reasoning?;
        let tokenizer = &serving.text.tokenizer;
        let is_open = format.opened_by(tokenizer, prompt);
        let may_think = is_open || self.thinking.enabled != Some(false);
        let close = markers.close_tokens(tokenizer);
        if !may_think || close.is_empty() {
            return None;
        }
        let cut = markers.cut_tokens(tokenizer);
        let resume = cut.strip_prefix(&*close).unwrap_or_default().to_vec();
        Some(Reasoning {
            open: markers.open_tokens(tokenizer),
            resume,
            close,
            is_open,
            budget_tokens: self.thinking.budget_tokens,
        })
    }

    /// Renders the conversation and returns the prompt's tokens.
    pub fn encode(&self, serving: &Serving) -> Result<Vec<TokenId>, ApiError> {
        let rendered = self.render(serving)?;
        serving.check_countable(rendered.text(), self.param)?;
        self.tokenize(&rendered, serving)
    }

    /// Returns the number of leading tokens that this prompt shares with the prompt of the next
    /// turn, which also has an answer and another message of the user. The two may differ before
    /// the answer: some templates then write earlier messages differently, or leave out reasoning.
    /// Returns 0 for models that are reused up to any length, for which it has no use, for an answer that
    /// continues a message, and if the template renders neither the next turn nor this one.
    fn stable_tokens(&self, prompt: &[TokenId], serving: &Serving) -> u32 {
        if self.continues_message || !serving.engine.keeps_lengths() {
            return 0;
        }
        let mut messages = self.messages.clone();
        messages.push(json!({"role": "assistant", "content": "1"}));
        messages.push(json!({"role": "user", "content": "2"}));
        let next = Conversation { messages, no_generation_prompt: true, ..self.clone() };
        // The next turn may be one that the template refuses, after a system message for example.
        let tokens = next.encode(serving).or_else(|_| {
            let same = Conversation { no_generation_prompt: true, ..self.clone() };
            same.encode(serving)
        });
        let Ok(tokens) = tokens else { return 0 };
        let num_shared = prompt.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        u32::try_from(num_shared).unwrap_or(u32::MAX)
    }

    fn tokenize(
        &self,
        rendered: &RenderedPrompt,
        serving: &Serving,
    ) -> Result<Vec<TokenId>, ApiError> {
        let tokens = serving.text.tokenizer.encode_rendered(rendered);
        tokens.map_err(|err| ApiError::from_text(err, self.param))
    }

    /// Renders the prompt with the chat template.
    fn render(&self, serving: &Serving) -> Result<RenderedPrompt, ApiError> {
        let mut kwargs = self.kwargs.clone();
        if let Some(enabled) = self.thinking.enabled.or(serving.enable_thinking) {
            kwargs.entry("enable_thinking").or_insert(enabled.into());
        }
        if let Some(effort) = &self.thinking.effort {
            kwargs.entry("reasoning_effort").or_insert(effort.as_str().into());
        }
        let prompt = ChatPrompt {
            messages: &self.messages,
            tools: self.takes_tools().then_some(self.tools.as_slice()),
            kwargs: &kwargs,
            add_generation_prompt: !self.continues_message && !self.no_generation_prompt,
        };
        let refused = |err| ApiError::from_text(err, self.param);
        let template = serving.text.chat_template().map_err(refused)?;
        let mut rendered = template.render(&prompt).map_err(refused)?;
        if self.continues_message {
            rendered.truncate(self.end_of_last_message(rendered.text())?);
        }
        Ok(rendered)
    }

    /// Returns the byte offset at which the content of the last message ends in the rendered
    /// conversation, before anything that closes the message, like transformers'
    /// `continue_final_message`.
    fn end_of_last_message(&self, rendered: &str) -> Result<usize, ApiError> {
        let last = self.messages.last();
        let is_assistant = last.is_some_and(|message| message["role"] == "assistant");
        let content = match last.map(|message| &message["content"]) {
            Some(Value::String(content)) => content.as_str(),
            Some(Value::Array(parts)) => {
                parts.last().and_then(|part| part["text"].as_str()).unwrap_or_default()
            }
            _ => "",
        };
        let core = content.trim();
        if !is_assistant || core.is_empty() {
            let found = "one that cannot be continued";
            let expected = "the assistant's, with content";
            let param = format!("{}[{}]", self.param, self.messages.len().saturating_sub(1));
            return Err(ApiError::out_of_range(param, &found, expected));
        }
        let Some(start) = rendered.rfind(core) else {
            let hint = Some("the model's template writes the last message differently".to_owned());
            return Err(ApiError::NotSupported {
                param: "continue_final_message".to_owned(),
                hint,
            });
        };
        // Trailing white space is kept if the template has kept it.
        let is_kept = rendered[start..].starts_with(content.trim_start());
        let len = if is_kept { content.trim_start().len() } else { core.len() };
        Ok(start + len)
    }

    /// Returns whether the prompt mentions the tools.
    fn takes_tools(&self) -> bool {
        !self.tools.is_empty() && self.tool_choice != ToolChoice::None
    }
}
