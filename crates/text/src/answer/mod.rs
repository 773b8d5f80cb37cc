//! The parts of an answer: reasoning, content and tool calls, as each model family writes them.
//!
//! ```text
//!  template, vocabulary ──▶ AnswerFormat ──▶ AnswerParser ──▶ Segment: reasoning, text, call
//!      or names              │   │
//!                            │   └─ kept_tokens: special tokens that the detokeniser writes out
//!                            └─ grammar: Lark that constrains a model to calls that the parser reads
//! ```
//!
//! No text is ever lost: text that is not a call is content, exactly as the model wrote it, except
//! for white space next to reasoning or a call, and for markup in which an answer was cut. Once the
//! name of a tool and the beginning of its arguments are known, the text is a call, even if the
//! rest is malformed.

mod form;
mod frame;
mod json;
mod lark;
mod literal;
mod live;
mod parser;
mod partial;
mod pattern;
mod reasoning;
mod schema;
mod segment;
#[cfg(test)]
mod tests;
mod tools;
mod written;

use std::sync::Arc;

use serde_json::Value;

use crate::TokenId;
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

pub use lark::{CallCount, ToolDemand, ToolGrammarError};
pub use parser::{AnswerEnd, AnswerParser};
pub use partial::arguments_object;
pub use reasoning::ReasoningFormat;
pub(crate) use reasoning::is_marker as is_reasoning_marker;
pub use segment::Segment;
pub use tools::ToolFormat;

/// Number of tokens at the end of a prompt that are checked for the opening of the reasoning.
const OPENING_TOKENS_MAX: usize = 32;

/// A tool call of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The call's id, if the model gave one.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// Arguments as a JSON object, verbatim where the model wrote JSON. While the call is still
    /// arriving, or if the answer was cut, only the beginning of the object.
    pub arguments: String,
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Name of the tool.
    pub name: String,
    /// JSON schema of the parameters, an object; `null` if none was given.
    pub parameters: Value,
    /// Whether a schema keyword that cannot be enforced is an error.
    pub strict: bool,
}

/// How a model writes its answers.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerFormat {
    /// Format of the reasoning; `None` if the model has none.
    pub reasoning: Option<ReasoningFormat>,
    /// Format of the tool calls; `None` if the model has none.
    pub tools: Option<ToolFormat>,
    /// Tool format of the model in a request without tools: calls are left in the text, but markup
    /// that carries no call is still removed.
    unread: Option<ToolFormat>,
    /// Special tokens of the formats, with their text.
    special: Arc<[(TokenId, String)]>,
}

/// Error: there is no format with this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} parser {name:?} is unknown\nhint: known are none, auto, {}", known.join(", "))]
pub struct UnknownFormat {
    /// `tool` or `reasoning`.
    pub kind: &'static str,
    /// The unknown name.
    pub name: String,
    /// The known names.
    pub known: Vec<&'static str>,
}

impl ReasoningFormat {
    /// Returns the format of this name; `auto` returns `found`, the detected format, and `none`
    /// returns `None`.
    ///
    /// # Errors
    /// Fails if the name is unknown.
    pub fn chosen(
        name: &str,
        found: Option<ReasoningFormat>,
    ) -> Result<Option<ReasoningFormat>, UnknownFormat> {
        let unknown = || UnknownFormat {
            kind: "reasoning",
            name: name.to_owned(),
            known: ReasoningFormat::names().collect(),
        };
        match name {
            "auto" => Ok(found),
            "none" => Ok(None),
            name => ReasoningFormat::named(name).map(Some).ok_or_else(unknown),
        }
    }
}

impl ToolFormat {
    /// Returns the format of this name; `auto` returns `found`, the detected format, and `none`
    /// returns `None`.
    ///
    /// # Errors
    /// Fails if the name is unknown.
    pub fn chosen(
        name: &str,
        found: Option<ToolFormat>,
    ) -> Result<Option<ToolFormat>, UnknownFormat> {
        let unknown = || UnknownFormat {
            kind: "tool",
            name: name.to_owned(),
            known: ToolFormat::names().collect(),
        };
        match name {
            "auto" => Ok(found),
            "none" => Ok(None),
            name => ToolFormat::named(name).map(Some).ok_or_else(unknown),
        }
    }
}

/// The tools of a request. Without a list, every name counts as a tool.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tools(Option<Arc<[ToolSpec]>>);

impl AnswerFormat {
    /// Detects the format of a checkpoint from its vocabulary and chat template.
    pub fn detect(tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> AnswerFormat {
        let source = template.map_or("", ChatTemplate::source);
        let reasoning = ReasoningFormat::detect(tokenizer, source);
        AnswerFormat::of(tokenizer, reasoning, ToolFormat::detect(tokenizer, source))
    }

    /// Returns this format with the reasoning and tool formats of these names: `auto` keeps the
    /// detected one, `none` removes it.
    ///
    /// # Errors
    /// Fails if a name is unknown.
    pub fn from_names(
        &self,
        tokenizer: &Tokenizer,
        reasoning: &str,
        tools: &str,
    ) -> Result<AnswerFormat, UnknownFormat> {
        let reasoning = ReasoningFormat::chosen(reasoning, self.reasoning)?;
        let tools = ToolFormat::chosen(tools, self.tools)?;
        Ok(AnswerFormat::of(tokenizer, reasoning, tools))
    }

    /// Returns this format without tools, for a request that has none: calls stay in the text as
    /// the model wrote them.
    pub fn without_tools(&self) -> AnswerFormat {
        AnswerFormat { tools: None, unread: self.tools.or(self.unread), ..self.clone() }
    }

    /// Returns this format without reasoning: reasoning stays in the text as the model wrote it.
    pub fn without_reasoning(&self) -> AnswerFormat {
        AnswerFormat { reasoning: None, ..self.clone() }
    }

    fn of(
        tokenizer: &Tokenizer,
        reasoning: Option<ReasoningFormat>,
        tools: Option<ToolFormat>,
    ) -> AnswerFormat {
        let mut format = AnswerFormat { reasoning, tools, unread: None, special: Arc::new([]) };
        format.special = tokenizer.special_tokens_within(&format.literals()).into();
        format
    }

    /// Returns the special tokens that the format reads. The detokeniser must turn them into text
    /// (see [`crate::Detokenizer::keeping`]), except for those that end the answer.
    pub fn kept_tokens(&self) -> Arc<[TokenId]> {
        let literals = self.literals();
        let is_read = |text: &str| literals.iter().any(|literal| literal.contains(text));
        self.special.iter().filter(|(_, text)| is_read(text)).map(|(token, _)| *token).collect()
    }

    /// Whether a prompt opens the reasoning, so that the answer begins within it.
    pub fn opened_by(&self, tokenizer: &Tokenizer, prompt: &[TokenId]) -> bool {
        let Some(reasoning) = self.reasoning else { return false };
        let start = prompt.len().saturating_sub(OPENING_TOKENS_MAX);
        reasoning.is_opened_by(&tokenizer.decode(&prompt[start..], false))
    }

    /// Builds a grammar, in llguidance's dialect of Lark, whose answers are calls of these tools as
    /// the parser reads them, or JSON of the schema `instead`. The grammar begins where the answer
    /// does, after the reasoning. Returns `None` if the model has no format for tool calls.
    ///
    /// # Errors
    /// Fails if there are no tools or a schema cannot be enforced.
    pub fn grammar(
        &self,
        tools: &[ToolSpec],
        demand: ToolDemand,
        instead: Option<&Value>,
    ) -> Option<Result<String, ToolGrammarError>> {
        Some(self.tools?.family.grammar(&self.special, tools, demand, instead))
    }

    /// Returns the patterns of the tool format; without tools, only those that carry no call.
    fn tool_patterns(&self) -> impl Iterator<Item = &'static pattern::Pattern> {
        let read = self.tools.map_or(&[][..], |tools| tools.family.patterns);
        let unread = self.unread.map_or(&[][..], |tools| tools.family.patterns);
        let is_bare = |pattern: &&pattern::Pattern| matches!(pattern.form, form::Form::Bare);
        read.iter().chain(unread.iter().filter(is_bare))
    }

    /// Returns every string that the format reads literally.
    fn literals(&self) -> Vec<&'static str> {
        let mut literals = Vec::new();
        let mut patterns = Vec::new();
        if let Some(reasoning) = self.reasoning {
            literals.extend([reasoning.open(), reasoning.close()]);
            patterns.extend(reasoning.family.markup);
        }
        if let Some(tools) = self.tools {
            literals.extend(tools.family.marks);
        }
        patterns.extend(self.tool_patterns());
        for pattern in patterns {
            literals.push(pattern.trigger);
            literals.extend(pattern.steps.iter().filter_map(pattern::Step::literal));
        }
        literals
    }
}

impl ToolCall {
    /// Creates a call without an id.
    fn new(name: &str, arguments: &str) -> ToolCall {
        ToolCall { id: None, name: name.to_owned(), arguments: arguments.to_owned() }
    }
}

impl Tools {
    fn know(&self, name: &str) -> bool {
        self.0.is_none() || self.parameters(name).is_some()
    }

    fn parameters(&self, name: &str) -> Option<&Value> {
        let tools = self.0.as_deref()?;
        tools.iter().find(|tool| tool.name == name).map(|tool| &tool.parameters)
    }
}
