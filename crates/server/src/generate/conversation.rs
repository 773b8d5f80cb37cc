//! A conversation to answer, as every chat protocol means it, in the form of OpenAI's messages.

use std::sync::Arc;

use jackalope_protocol::TokenId;
use jackalope_text::grammar::Constraint;
use jackalope_text::{
    AnswerFormat, CallCount, ChatPrompt, RenderedPrompt, TextError, ToolDemand, ToolSpec,
};
use serde_json::{Map, Value, json};

use super::guides::Reasoning;
use super::job::{AnswerRules, Job, PromptJob, TextRules};
use super::wishes::Wishes;
use crate::error::ApiError;
use crate::registry::Serving;

/// Whether the model may, must or must not call tools.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) enum ToolChoice {
    /// The model is not told of any.
    #[default]
    None,
    /// The model decides.
    Auto,
    /// At least one call of any tool.
    Required,
    /// Exactly one call of this one.
    Named(String),
}

/// How the model thinks before it answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Thinking {
    /// The server's or the template's own way if absent.
    pub(crate) enabled: Option<bool>,
    /// Handed to the template.
    pub(crate) effort: Option<String>,
    /// Most tokens of thought; then the thought is closed.
    pub(crate) budget_tokens: Option<u32>,
}

/// What is to be answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    /// The field that the messages came in.
    pub(crate) param: &'static str,
    /// In the form of OpenAI's chat completions; checked.
    pub(crate) messages: Vec<Value>,
    /// In the form of OpenAI's chat completions; checked.
    pub(crate) tools: Vec<Value>,
    pub(crate) tool_choice: ToolChoice,
    /// The first tool call ends the answer.
    pub(crate) single_call: bool,
    pub(crate) thinking: Thinking,
    /// Further variables for the template.
    pub(crate) kwargs: Map<String, Value>,
    /// Set if the answer continues the last message, the assistant's, instead of beginning one.
    pub(crate) continues_message: bool,
    /// Set if nothing invites the model to begin a message.
    pub(crate) no_generation_prompt: bool,
}

impl Conversation {
    /// All there is to compute. Takes the stop strings out of the wishes.
    pub(crate) fn job(&self, wishes: &mut Wishes, serving: &Serving) -> Result<Job, ApiError> {
        let limits = serving.engine_limits()?;
        let rendered = self.render(serving)?;
        wishes.check_length(rendered.text(), self.param, serving)?;
        let prompt = self.tokenize(&rendered, serving)?;
        let text = serving.text();
        let takes_tools = self.takes_tools();
        let format = if takes_tools { text.answer.clone() } else { text.answer.without_tools() };
        let tools = if takes_tools { self.tool_specs() } else { Vec::new() };
        self.bind(wishes, &format, &tools)?;
        self.think(wishes, &format, format.opened_by(&text.tokenizer, &prompt), serving);
        wishes.guidance.compile(serving)?;
        let requests = wishes.requests(&prompt, &limits, self.param)?;
        Ok(Job {
            prompts: vec![PromptJob { requests, text: None }],
            rules: TextRules {
                stop_tokens: Arc::from(wishes.all_stop_tokens(&limits)),
                answer: Some(AnswerRules { format, tools: takes_tools.then(|| Arc::from(tools)) }),
                single_call: self.single_call,
                wants_tokens: wishes.return_token_ids,
                tells_stop: wishes.tells_stop,
                tells_special: wishes.tells_special,
                continues_prompt: self.continues_message,
                stops: std::mem::take(&mut wishes.stops),
            },
        })
    }

    /// The tools as a grammar and the parser see them; only the wanted one if it is named.
    fn tool_specs(&self) -> Vec<ToolSpec> {
        let mut specs = Vec::with_capacity(self.tools.len());
        for tool in &self.tools {
            let function = &tool["function"];
            let name = function["name"].as_str().unwrap_or_default();
            if matches!(&self.tool_choice, ToolChoice::Named(named) if named != name) {
                continue;
            }
            specs.push(ToolSpec {
                name: name.to_owned(),
                parameters: function["parameters"].clone(),
                strict: function["strict"] == true,
            });
        }
        specs
    }

    /// Holds the answer to calls where they are forced, strict, or stand beside another structure.
    fn bind(
        &self,
        wishes: &mut Wishes,
        format: &AnswerFormat,
        tools: &[ToolSpec],
    ) -> Result<(), ApiError> {
        let is_forced = matches!(self.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        let is_strict = tools.iter().any(|tool| tool.strict);
        let structure = wishes.guidance.structure().cloned();
        if tools.is_empty() || !(is_forced || is_strict || structure.is_some()) {
            return Ok(());
        }
        let instead = match structure.filter(|_| !is_forced) {
            None => None,
            Some((_, Constraint::JsonObject)) => Some(json!({"type": "object"})),
            Some((_, Constraint::JsonSchema(schema))) => Some(schema),
            Some((param, _)) => {
                let hint = Some("beside tools the structure must be JSON".to_owned());
                return Err(ApiError::NotSupported { param, hint });
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
            let hint = Some("this model has no form for calls that is known".to_owned());
            return Err(ApiError::NotSupported { param: param.to_owned(), hint });
        };
        let grammar = grammar.map_err(|err| ApiError::WrongType {
            param: "tools".to_owned(),
            reason: err.to_string(),
        })?;
        wishes.guidance.constrain(param, Constraint::Lark(grammar));
        Ok(())
    }

    /// Bounds the thought before the answer, and lets it come before a structure.
    fn think(&self, wishes: &mut Wishes, format: &AnswerFormat, is_open: bool, serving: &Serving) {
        let Some(reasoning) = format.reasoning else { return };
        let may_think = is_open || self.thinking.enabled != Some(false);
        let tokenizer = &serving.text().tokenizer;
        let close = reasoning.close_tokens(tokenizer);
        if !may_think || close.is_empty() {
            return;
        }
        let cut = reasoning.cut_tokens(tokenizer);
        let resume = cut.strip_prefix(&*close).unwrap_or_default().to_vec();
        wishes.guidance.think(Reasoning {
            open: reasoning.open_tokens(tokenizer),
            resume,
            close,
            is_open,
            budget_tokens: self.thinking.budget_tokens,
        });
    }

    /// The prompt's tokens.
    pub(crate) fn encode(&self, serving: &Serving) -> Result<Vec<TokenId>, ApiError> {
        self.tokenize(&self.render(serving)?, serving)
    }

    fn tokenize(
        &self,
        rendered: &RenderedPrompt,
        serving: &Serving,
    ) -> Result<Vec<TokenId>, ApiError> {
        let tokens = serving.text().tokenizer.encode_rendered(rendered);
        tokens.map_err(|err| ApiError::from_text(err, self.param))
    }

    /// Renders the prompt with the chat template.
    fn render(&self, serving: &Serving) -> Result<RenderedPrompt, ApiError> {
        let mut kwargs = self.kwargs.clone();
        if let Some(enabled) = self.thinking.enabled.or(serving.enable_thinking()) {
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
        let template =
            serving.text().template.as_ref().ok_or_else(|| refused(TextError::NoTemplate))?;
        let mut rendered = template.render(&prompt).map_err(refused)?;
        if self.continues_message {
            rendered.truncate(self.end_of_last_message(rendered.text())?);
        }
        Ok(rendered)
    }

    /// Where the content of the last message ends in the rendered conversation, before anything that
    /// closes it, as transformers' `continue_final_message` has it.
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
        // White space at the end stays if the template has let it stand.
        let is_kept = rendered[start..].starts_with(content.trim_start());
        let len = if is_kept { content.trim_start().len() } else { core.len() };
        Ok(start + len)
    }

    /// True if the model is told of tools.
    fn takes_tools(&self) -> bool {
        !self.tools.is_empty() && self.tool_choice != ToolChoice::None
    }
}
