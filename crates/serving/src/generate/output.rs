//! How tokens become text, and what of an answer is returned.

use std::sync::Arc;

use jackalope_protocol::TokenId;
use jackalope_text::{AnswerFormat, ToolSpec};

/// How an answer is returned.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutputParams {
    /// Whether the answer is streamed.
    pub is_stream: bool,
    /// Whether token ids are returned.
    pub return_token_ids: bool,
    /// Whether the text includes the stop string that ends a choice.
    pub include_stop_text: bool,
    /// Whether the text includes special tokens.
    pub include_special_tokens: bool,
}

/// Rules for converting tokens to text, the same for every choice of a job.
#[derive(Clone, Debug)]
pub struct TextRules {
    /// Strings that end a choice; not part of its text unless `output` says so.
    pub stops: Vec<String>,
    /// Minimum number of tokens of a choice; stop strings before it are ordinary text.
    pub min_tokens: u32,
    /// Tokens that end a choice; not part of its text.
    pub stop_tokens: Arc<[TokenId]>,
    /// Set if reasoning and tool calls are separated from the text.
    pub answer: Option<AnswerRules>,
    /// Whether the first tool call ends the choice.
    pub single_call: bool,
    /// How the text is returned.
    pub output: OutputParams,
    /// Whether the text continues the prompt, or begins anew as in a chat.
    pub continues_prompt: bool,
}

/// Rules for parsing an answer.
#[derive(Clone, Debug)]
pub struct AnswerRules {
    /// The form of the model's answers; without tools if no calls are expected.
    pub format: AnswerFormat,
    /// The request's tools; only these can be called.
    pub tools: Option<Arc<[ToolSpec]>>,
}
