//! Log-probabilities in the forms of the chat and the completions endpoint.

use jackalope_protocol::TokenId;
use jackalope_serving::generate::ScoredToken;
use jackalope_text::Tokenizer;
use serde::{Serialize, Serializer};
use serde_json::Value;
use utoipa::ToSchema;

/// Stands for the log-probability of a probability of zero: JSON has no infinity.
const IMPOSSIBLE: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}

/// `choices[].logprobs` of a chat.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct ChatLogprobs {
    content: Vec<ChatLogprob>,
    #[schema(value_type = Option<String>)]
    refusal: Option<()>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ChatLogprob {
    #[serde(flatten)]
    token: TokenLogprob,
    top_logprobs: Vec<TokenLogprob>,
}

/// A token with its log-probability.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl TokenLogprob {
    pub(crate) fn new(token: TokenId, logprob: f32, tokenizer: &Tokenizer) -> TokenLogprob {
        TokenLogprob {
            token: tokenizer.token_text(token),
            logprob: finite(logprob),
            bytes: tokenizer.token_bytes(token),
        }
    }
}

impl ChatLogprobs {
    /// Converts to the list of entries, one per token, that a response's text part contains.
    pub(super) fn into_entries(self) -> Value {
        serde_json::to_value(self.content).expect("our wire types have string keys")
    }

    /// Converts the log-probabilities of an answer's tokens.
    pub fn new(scored: &[ScoredToken], tokenizer: &Tokenizer) -> ChatLogprobs {
        let entry = |scored: &ScoredToken| ChatLogprob {
            token: TokenLogprob::new(scored.token, scored.logprob.logprob, tokenizer),
            top_logprobs: scored
                .logprob
                .top
                .iter()
                .map(|&(token, logprob)| TokenLogprob::new(token, logprob, tokenizer))
                .collect(),
        };
        ChatLogprobs { content: scored.iter().map(entry).collect(), refusal: None }
    }
}

/// `choices[].logprobs` of a completion.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    #[schema(value_type = Vec<Option<std::collections::BTreeMap<String, f32>>>)]
    top_logprobs: Vec<Option<TopLogprobs>>,
    text_offset: Vec<usize>,
}

/// A map from tokens to log-probabilities, best first.
#[derive(Debug, Default)]
struct TopLogprobs(Vec<(String, f32)>);

impl TopLogprobs {
    /// Adds an entry; of several tokens with the same text only the first is kept.
    fn push(&mut self, token: String, logprob: f32) {
        if self.0.iter().all(|(known, _)| *known != token) {
            self.0.push((token, logprob));
        }
    }
}

impl Serialize for TopLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}

impl CompletionLogprobs {
    /// Appends a token without a log-probability: the first of a prompt.
    pub(super) fn push_first(&mut self, token: TokenId, offset: usize, tokenizer: &Tokenizer) {
        self.tokens.push(token_key(token, tokenizer));
        self.token_logprobs.push(None);
        self.top_logprobs.push(None);
        self.text_offset.push(offset);
    }

    /// Appends a token. `base_chars` is the number of characters before the choice's own text.
    pub(super) fn push(&mut self, scored: &ScoredToken, base_chars: usize, tokenizer: &Tokenizer) {
        let key = token_key(scored.token, tokenizer);
        let logprob = finite(scored.logprob.logprob);
        let mut top = TopLogprobs::default();
        for &(token, logprob) in &scored.logprob.top {
            top.push(token_key(token, tokenizer), finite(logprob));
        }
        top.push(key.clone(), logprob);
        self.tokens.push(key);
        self.token_logprobs.push(Some(logprob));
        self.top_logprobs.push(Some(top));
        self.text_offset.push(base_chars + scored.start_chars);
    }
}

/// The text of a token. A token that is only part of a character is written as its bytes, in the
/// API's own notation, so that different tokens look different.
fn token_key(token: TokenId, tokenizer: &Tokenizer) -> String {
    let bytes = tokenizer.token_bytes(token);
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(err) => {
            let hex = err.as_bytes().iter().map(|byte| format!("\\x{byte:02x}"));
            format!("bytes:{}", hex.collect::<String>())
        }
    }
}
