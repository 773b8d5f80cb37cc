//! Prompts that are continued as they are, without a chat template.

use jackalope_protocol::TokenId;

use super::infill::Infill;
use super::job::{Job, PromptJob};
use super::params::{CheckedParams, Parsing};
use crate::error::ApiError;
use crate::state::Serving;

/// Texts to continue, independently of each other.
#[derive(Debug)]
pub struct Continuation {
    /// Name of the request field that the prompts came in.
    pub param: &'static str,
    /// The texts, as clients send them.
    pub prompts: Vec<PromptText>,
    /// Whether the token that begins every text is added to prompts that came as text.
    pub add_special_tokens: bool,
    /// Text that follows each answer, for models with fill-in-the-middle tokens.
    pub suffix: Option<String>,
}

/// A prompt as the client sent it.
#[derive(Debug)]
pub enum PromptText {
    /// A text.
    Text(String),
    /// Token ids.
    Tokens(Vec<TokenId>),
}

impl Continuation {
    /// Creates the continuation of one text.
    pub fn of(text: String, param: &'static str) -> Continuation {
        let prompts = vec![PromptText::Text(text)];
        Continuation { param, prompts, add_special_tokens: true, suffix: None }
    }

    pub(super) fn job(self, mut params: CheckedParams, serving: &Serving) -> Result<Job, ApiError> {
        let limits = serving.engine_limits()?;
        let suffix = self.suffix.as_deref();
        let infill =
            suffix.map(|suffix| Infill::new(suffix, &serving.text.tokenizer)).transpose()?;
        params.constraints.compile(serving)?;
        // The infill's own tokens already include the special tokens.
        let add_special_tokens = self.add_special_tokens && infill.is_none();
        let mut prompts = Vec::with_capacity(self.prompts.len());
        for prompt in self.prompts {
            let (tokens, text) = match prompt {
                PromptText::Tokens(tokens) => (tokens, None),
                PromptText::Text(text) => {
                    params.check_length(&text, self.param, serving)?;
                    let tokens = encode(&text, add_special_tokens, serving);
                    (tokens.map_err(|err| ApiError::from_text(err, self.param))?, Some(text))
                }
            };
            let tokens = match &infill {
                Some(infill) => infill.around(&tokens),
                None => tokens,
            };
            // If the prompt was truncated, its text no longer matches its tokens.
            let is_whole = params.kept(&tokens, &limits).len() == tokens.len();
            let requests = params.requests(&tokens, &limits, self.param)?;
            prompts.push(PromptJob { requests, text: text.filter(|_| is_whole) });
        }
        let parsing = Parsing { continues_prompt: true, ..Parsing::default() };
        Ok(params.into_job(prompts, parsing, &limits, self.param))
    }
}

/// Encodes a text, with the token that begins every text or without it.
pub fn encode(
    text: &str,
    add_special_tokens: bool,
    serving: &Serving,
) -> Result<Vec<TokenId>, jackalope_text::TextError> {
    let tokenizer = &serving.text.tokenizer;
    if add_special_tokens { tokenizer.encode_prompt(text) } else { tokenizer.encode(text, false) }
}
