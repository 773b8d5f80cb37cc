//! How few tokens a text can come to, without tokenising it.

use serde_json::Value;
use tokenizers::ModelWrapper;

use crate::TokenId;
use crate::pieces::Pieces;

/// NFC composes up to three code points into one: of Hangul, nine bytes into three.
const NFC_SHRINKAGE: usize = 3;

/// What bounds the number of tokens of a text from below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LengthBound {
    /// Bytes of a text that one token can stand for; none if that is not known.
    token_bytes_max: Option<usize>,
    /// Set if a token can take in white space of any length beside its own text.
    takes_in_blanks: bool,
}

impl LengthBound {
    /// Reads it off a tokenizer. Nothing is known of those that may leave out a part of a text, or
    /// give one token to an unknown part of any length.
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

    /// The fewest tokens that `text` can come to; 0 if nothing is known.
    pub(crate) fn fewest_tokens(&self, text: &str) -> usize {
        let Some(token_bytes_max) = self.token_bytes_max else { return 0 };
        let num_bytes = match self.takes_in_blanks {
            true => text.chars().filter(|it| !it.is_whitespace()).map(char::len_utf8).sum(),
            false => text.len(),
        };
        num_bytes / token_bytes_max
    }
}

/// By how many times a text's bytes may become fewer before its tokens are looked for.
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
        // SentencePiece's blank, which is longer than the one it stands for.
        "Replace" if step["pattern"]["String"] == " " && step["content"] == "\u{2581}" => Some(1),
        _ => None,
    }
}

/// True for byte-pair encodings with a token for every byte.
fn keeps_every_byte(inner: &tokenizers::Tokenizer, pieces: &Pieces) -> bool {
    let mut has_token = [false; 256];
    for token in (0..).take(pieces.len()) {
        if let [byte] = pieces.bytes(token) {
            has_token[usize::from(*byte)] = true;
        }
    }
    matches!(inner.get_model(), ModelWrapper::BPE(_)) && has_token == [true; 256]
}
