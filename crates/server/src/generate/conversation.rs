//! A conversation to answer, as every chat protocol means it, in the form of OpenAI's messages.

use std::sync::Arc;

use jackalope_protocol::TokenId;
use jackalope_text::ChatPrompt;
use serde_json::{Map, Value};

use super::job::{Job, PromptJob, TextRules};
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
    /// Set if the answer continues the last message instead of beginning one.
    pub(crate) continues_message: bool,
}

impl Conversation {
    /// All there is to compute. Takes the stop strings out of the wishes.
    pub(crate) fn job(&self, wishes: &mut Wishes, serving: &Serving) -> Result<Job, ApiError> {
        self.check_forced()?;
        let limits = serving.engine_limits()?;
        let prompt = self.encode(serving)?;
        let requests = wishes.requests(&prompt, &limits, self.param)?;
        Ok(Job {
            prompts: vec![PromptJob { requests, text: None }],
            rules: TextRules {
                stop_tokens: Arc::from(wishes.all_stop_tokens(&limits)),
                splitter: self.takes_tools().then(|| serving.text().tool_splitter()).flatten(),
                single_call: self.single_call,
                wants_tokens: wishes.return_token_ids,
                continues_prompt: false,
                stops: std::mem::take(&mut wishes.stops),
            },
        })
    }

    fn check_forced(&self) -> Result<(), ApiError> {
        let refused = |param: &str, hint: &str| {
            Err(ApiError::NotSupported { param: param.to_owned(), hint: Some(hint.to_owned()) })
        };
        if matches!(self.tool_choice, ToolChoice::Required | ToolChoice::Named(_)) {
            return refused("tool_choice", "a call cannot be forced; send none or auto");
        }
        if self.thinking.budget_tokens.is_some() {
            return refused("thinking_token_budget", "switch thinking off, or bound the answer");
        }
        Ok(())
    }

    /// The prompt's tokens.
    pub(crate) fn encode(&self, serving: &Serving) -> Result<Vec<TokenId>, ApiError> {
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
            add_generation_prompt: !self.continues_message,
        };
        serving.text().encode_chat(&prompt).map_err(|err| ApiError::from_text(err, self.param))
    }

    /// True if the model is told of tools.
    fn takes_tools(&self) -> bool {
        !self.tools.is_empty() && self.tool_choice != ToolChoice::None
    }
}
