//! A lower bound on the number of tokens of a text, computed without tokenising it.

use serde_json::Value;
use tokenizers::ModelWrapper;

use crate::TokenId;
use crate::pieces::Pieces;

/// NFC composes up to three code points into one; for Hangul, nine bytes become three.
const NFC_SHRINKAGE: usize = 3;

/// The properties of a tokenizer that bound the number of tokens from below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LengthBound {
    /// Maximum number of bytes of text that one token can represent; `None` if unknown.
    token_bytes_max: Option<usize>,
    /// Set if an added token can also match white space of any length around it.
    takes_in_blanks: bool,
}

impl LengthBound {
    /// Derives the bound from a tokenizer. It is unknown for tokenizers that may drop parts of a
    /// text, or that assign one token to an unknown part of any length.
    pub(crate) fn of(inner: &tokenizers::Tokenizer, pieces: &Pieces) -> LengthBound {
        let longest =
            (0..).take(pieces.len()).map(|token: TokenId| pieces.bytes(token).len()).max();
        let added = inner.get_added_tokens_decoder();
        LengthBound {
            token_bytes_max: shrinkage(inner)
                .filter(|_| keeps_every_byte(inner, pieces))
                .map(|shrinkage| longest.unwrap_or(0).max(1) * shrinkage),
            takes_in_blanks: added.values().any(|token| token.lstrip || token.rstrip),
        }
    }

    /// Returns the minimum number of tokens of `text`; 0 if unknown.
    pub(crate) fn fewest_tokens(&self, text: &str) -> usize {
        let Some(token_bytes_max) = self.token_bytes_max else { return 0 };
        let num_bytes = if self.takes_in_blanks {
            text.chars().filter(|it| !it.is_whitespace()).map(char::len_utf8).sum()
        } else {
            text.len()
        };
        num_bytes / token_bytes_max
    }
}

/// Maximum factor by which normalising and pre-tokenising shrink the bytes of a text.
fn shrinkage(inner: &tokenizers::Tokenizer) -> Option<usize> {
    let pre_tokenizer = serde_json::to_string(&inner.get_pre_tokenizer()).ok()?;
    if pre_tokenizer.contains("Removed") || pre_tokenizer.contains("Whitespace") {
        return None;
    }
    let normalizer = serde_json::to_value(inner.get_normalizer()).ok()?;
    let steps = match &normalizer {
        Value::Null => return Some(1),
        Value::Object(it) if it.get("type").is_some_and(|it| it == "Sequence") => {
            it.get("normalizers")?.as_array()?.as_slice()
        }
        step => std::slice::from_ref(step),
    };
    steps.iter().map(shrinkage_of_step).product()
}

fn shrinkage_of_step(step: &Value) -> Option<usize> {
    match step["type"].as_str()? {
        "NFC" => Some(NFC_SHRINKAGE),
        "Prepend" => Some(1),
        // SentencePiece's replacement for a space, which is longer than the space it replaces.
        "Replace" if step["pattern"]["String"] == " " && step["content"] == "\u{2581}" => Some(1),
        _ => None,
    }
}

/// Whether the model is a byte-pair encoding that has a token for every byte.
fn keeps_every_byte(inner: &tokenizers::Tokenizer, pieces: &Pieces) -> bool {
    let mut has_token = [false; 256];
    for token in (0..).take(pieces.len()) {
        if let [byte] = pieces.bytes(token) {
            has_token[usize::from(*byte)] = true;
        }
    }
    matches!(inner.get_model(), ModelWrapper::BPE(_)) && has_token == [true; 256]
}
