//! Tokens to text while the tokens are still coming.
//!
//! A token may end in the middle of a character. Its last bytes (three at most) wait for the next
//! token; everything else is settled. What is passed on can therefore no longer change, and the
//! pieces together are exactly [`Tokenizer::decode`] of all tokens.
//!
//! One thing is done differently from the `tokenizers` library. If some of a run of byte tokens
//! (`<0xE4>`) are not UTF-8, the library replaces the whole run by U+FFFD, good characters
//! included. A stream would have to hold back the whole run, without bound, to do the same. Here
//! only the bytes that are no character are replaced, as the library itself does it for byte-level
//! vocabularies.

use std::sync::Arc;

use crate::TokenId;
use crate::tokenizer::Tokenizer;

/// Turns the tokens of one answer into text, token by token. Special tokens are left out.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    state: Detokenizing,
}

impl Detokenizer {
    /// Starts with the first token of an answer.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Detokenizer {
        Detokenizer::keeping(tokenizer, Arc::new([]))
    }

    /// Like [`Detokenizer::new`], but these special tokens become text as they are written.
    pub fn keeping(tokenizer: Arc<Tokenizer>, kept: Arc<[TokenId]>) -> Detokenizer {
        let state = Detokenizing::new(&tokenizer, Special::LeftOut { but: kept });
        Detokenizer { tokenizer, state }
    }

    /// Like [`Detokenizer::new`], but special tokens become text as they are written.
    pub fn with_special_tokens(tokenizer: Arc<Tokenizer>) -> Detokenizer {
        let state = Detokenizing::new(&tokenizer, Special::Written);
        Detokenizer { tokenizer, state }
    }

    /// Takes the next token and returns the text that is settled by it, which may be empty.
    pub fn push(&mut self, token: TokenId) -> String {
        let mut text = String::new();
        self.state.push(&self.tokenizer, token, &mut text);
        text
    }

    /// The answer has ended: returns U+FFFD if it broke off within a character.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        self.state.finish(&mut text);
        text
    }
}

/// What becomes of special tokens.
#[derive(Debug, Clone)]
pub(crate) enum Special {
    Written,
    /// They add nothing, but for a few.
    LeftOut {
        but: Arc<[TokenId]>,
    },
}

/// The state between two tokens.
#[derive(Debug, Clone)]
pub(crate) struct Detokenizing {
    special: Special,
    is_first: bool,
    /// Up to so many of this character are still to be cut off the beginning.
    strip: Option<(char, usize)>,
    /// The beginning of a character.
    pending: Vec<u8>,
}

impl Detokenizing {
    pub(crate) fn new(tokenizer: &Tokenizer, special: Special) -> Detokenizing {
        let strip = tokenizer.decoder().strip;
        Detokenizing { special, is_first: true, strip, pending: Vec::new() }
    }

    /// Appends what is settled by `token` to `text`.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, token: TokenId, text: &mut String) {
        let pieces = tokenizer.pieces();
        let is_left_out = match &self.special {
            Special::LeftOut { but } => pieces.is_special(token) && !but.contains(&token),
            Special::Written => false,
        };
        if !pieces.is_token(token) || is_left_out {
            return;
        }
        match std::mem::take(&mut self.is_first) {
            true => self.pending.extend(tokenizer.bytes_of_first(token)),
            false => self.pending.extend(pieces.bytes(token)),
        }
        let start = text.len();
        let settled = push_utf8(&self.pending, text);
        self.pending.drain(..settled);
        self.strip_start(text, start);
    }

    /// Appends what the last token left over to `text`.
    pub(crate) fn finish(&mut self, text: &mut String) {
        if !std::mem::take(&mut self.pending).is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// Cuts the character that the decoder strips off the text that was appended at `start`.
    fn strip_start(&mut self, text: &mut String, start: usize) {
        while let Some((character, left)) = self.strip {
            if text.len() == start {
                return;
            }
            self.strip = match left > 0 && text[start..].starts_with(character) {
                true => Some((character, left - 1)),
                false => None,
            };
            if self.strip.is_some() {
                text.remove(start);
            }
        }
    }
}

/// Appends `bytes` to `text`, U+FFFD for what is not UTF-8, and returns how many bytes are
/// settled: all but the beginning of a character at the end. Replaces exactly what
/// [`String::from_utf8_lossy`] does.
fn push_utf8(bytes: &[u8], text: &mut String) -> usize {
    let mut start = 0;
    loop {
        match std::str::from_utf8(&bytes[start..]) {
            Ok(rest) => {
                text.push_str(rest);
                return bytes.len();
            }
            Err(error) => {
                let valid = start + error.valid_up_to();
                let known = std::str::from_utf8(&bytes[start..valid]);
                text.push_str(known.expect("valid_up_to is the length of the valid part"));
                let Some(invalid) = error.error_len() else { return valid };
                text.push(char::REPLACEMENT_CHARACTER);
                start = valid + invalid;
            }
        }
    }
}
