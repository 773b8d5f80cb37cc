//! What an answer consists of: reasoning, content and tool calls, in the form of its family.
//!
//! ```text
//!  template, vocabulary ──▶ AnswerFormat ──▶ AnswerParser ──▶ Segment: reasoning, text, call
//!      or names              │   │
//!                            │   └─ kept_tokens: special tokens that the detokeniser writes out
//!                            └─ grammar: Lark that holds a model to calls which the parser reads
//! ```
//!
//! No text is ever lost: what is no call is content, exactly as the model wrote it, but for white space that
//! touches reasoning or a call, and for markup in which an answer was cut. Where the name of a tool and the
//! beginning of its arguments are known, it is a call, also if the rest is not as it should be.

mod json;
mod lark;
mod literal;
mod live;
mod parser;
mod pattern;
mod reasoning;
mod schema;
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
pub use parser::{AnswerEnd, AnswerParser, Segment};
pub use reasoning::ReasoningFormat;
pub(crate) use reasoning::is_in_vocabulary as reasoning_is_in_vocabulary;
pub(crate) use reasoning::is_marker as is_reasoning_marker;
pub use tools::ToolFormat;

/// So many tokens at the end of a prompt tell whether it opens the reasoning.
const OPENING_TOKENS_MAX: usize = 32;

/// What the model wants called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The call's id, if the model gave one.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// A JSON object, as the model wrote it where it wrote JSON; its beginning while it is coming, or if the
    /// answer was cut.
    pub arguments: String,
}

/// A tool that may be called.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// JSON schema of its parameters, an object; `null` if it was not given.
    pub parameters: Value,
    /// Whether a schema that cannot be enforced is an error.
    pub strict: bool,
}

/// How a model writes its answers.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerFormat {
    /// How it marks its reasoning, if it does.
    pub reasoning: Option<ReasoningFormat>,
    /// How it calls tools, if it does.
    pub tools: Option<ToolFormat>,
    /// Special tokens of the formats, with their text.
    special: Arc<[(TokenId, String)]>,
}

/// There is no format with this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} parser {name:?} is unknown\nhint: known are none, auto, {}", known.join(", "))]
pub struct UnknownFormat {
    /// `tool` or `reasoning`.
    pub kind: &'static str,
    /// The name in question.
    pub name: String,
    /// The names there are.
    pub known: Vec<&'static str>,
}

impl ReasoningFormat {
    /// The format of this name, where `auto` is the one that was found and `none` is none.
    ///
    /// # Errors
    /// The name is unknown.
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
    /// The format of this name, where `auto` is the one that was found and `none` is none.
    ///
    /// # Errors
    /// The name is unknown.
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

/// The tools of a request; without, any name is a tool's.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tools(Option<Arc<[ToolSpec]>>);

impl AnswerFormat {
    /// The format of a checkpoint.
    pub fn detect(tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> AnswerFormat {
        let source = template.map_or("", ChatTemplate::source);
        let reasoning = ReasoningFormat::detect(tokenizer, source);
        AnswerFormat::of(tokenizer, reasoning, ToolFormat::detect(source))
    }

    /// The same with formats of these names: `auto` is what was found, `none` is none.
    ///
    /// # Errors
    /// A name is unknown.
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

    /// The same for a request without tools.
    pub fn without_tools(&self) -> AnswerFormat {
        AnswerFormat { tools: None, ..self.clone() }
    }

    /// The same, but reasoning stays in the text as it was written.
    pub fn without_reasoning(&self) -> AnswerFormat {
        AnswerFormat { reasoning: None, ..self.clone() }
    }

    fn of(
        tokenizer: &Tokenizer,
        reasoning: Option<ReasoningFormat>,
        tools: Option<ToolFormat>,
    ) -> AnswerFormat {
        let mut format = AnswerFormat { reasoning, tools, special: Arc::new([]) };
        format.special = tokenizer.special_tokens_within(&format.literals()).into();
        format
    }

    /// The special tokens that the format reads. They have to become text (see
    /// [`crate::Detokenizer::keeping`]), but for those that end the answer.
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

    /// A grammar, in llguidance's dialect of Lark, whose answers are calls of these tools as the
    /// parser reads them, or JSON of the schema `instead`. It begins where the answer does, after the
    /// reasoning.
    ///
    /// # Errors
    /// There are no tools, or a schema cannot be enforced. None if the model has no form of calls.
    pub fn grammar(
        &self,
        tools: &[ToolSpec],
        demand: ToolDemand,
        instead: Option<&Value>,
    ) -> Option<Result<String, ToolGrammarError>> {
        Some(lark::grammar(self.tools?.family, &self.special, tools, demand, instead))
    }

    /// Everything that is read literally.
    fn literals(&self) -> Vec<&'static str> {
        let mut literals = Vec::new();
        let mut patterns = Vec::new();
        if let Some(reasoning) = self.reasoning {
            literals.extend([reasoning.open(), reasoning.close()]);
            patterns.extend(reasoning.family.markup);
        }
        if let Some(tools) = self.tools {
            literals.extend(tools.family.marks);
            patterns.extend(tools.family.patterns);
        }
        for pattern in patterns {
            literals.push(pattern.trigger);
            literals.extend(pattern.steps.iter().filter_map(pattern::Step::literal));
        }
        literals
    }
}

impl ToolCall {
    /// A call without an id.
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
