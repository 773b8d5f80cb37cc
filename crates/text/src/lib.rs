//! Converts between text and the model's tokens: tokenizer, chat template, streaming
//! detokenisation, stop strings, reasoning, tool calls and grammars.
//!
//! The crate reads a checkpoint's text files and nothing else; it knows neither requests nor HTTP
//! nor the engine. All input is untrusted twice over (the checkpoint may be hostile, and so may the
//! client), so every file, template and prompt has a named limit.

mod answer;
mod decoder;
mod error;
mod files;
mod generation;
pub mod grammar;
mod length;
mod model_text;
mod pieces;
mod special;
mod stops;
mod template;
mod tokenizer;

pub use answer::{
    AnswerEnd, AnswerFormat, AnswerParser, CallCount, ReasoningFormat, Segment, ToolCall,
    ToolDemand, ToolFormat, ToolGrammarError, ToolSpec, UnknownFormat, arguments_object,
};
pub use error::{TextError, TextLoadError};
pub use generation::GenerationDefaults;
pub use jackalope_protocol::TokenId;
pub use model_text::ModelText;
pub use stops::{StopStrings, Stopped};
pub use template::{ChatPrompt, ChatTemplate, RenderedPrompt};
pub use tokenizer::{Detokenizer, Tokenizer};
