//! Turns tokens into text while the tokens are still arriving.
//!
//! A token may end in the middle of a character. The bytes of that character (three at most) wait
//! for the next token; everything else is settled. Text that was returned therefore never changes,
//! and the pieces together are exactly [`Tokenizer::decode`] of all tokens.
//!
//! One behaviour differs from the `tokenizers` library. If some tokens of a run of byte tokens
//! (`<0xE4>`) are not UTF-8, the library replaces the whole run by U+FFFD, valid characters
//! included. To do the same, a stream would have to hold back the whole run, without bound. This
//! module replaces only the bytes that are not part of a character, as the library itself does for
//! byte-level vocabularies.

use std::sync::Arc;

use super::Tokenizer;
use crate::TokenId;

/// Turns the tokens of one answer into text, token by token. Special tokens are left out.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    state: Detokenizing,
}

impl Detokenizer {
    /// Creates a detokeniser for an answer from its first token on.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Detokenizer {
        Detokenizer::keeping(tokenizer, Arc::new([]))
    }

    /// Like [`Detokenizer::new`], but the special tokens in `kept` become text as they are written.
    pub fn keeping(tokenizer: Arc<Tokenizer>, kept: Arc<[TokenId]>) -> Detokenizer {
        let state = Detokenizing::new(&tokenizer, Special::LeftOut { but: kept });
        Detokenizer { tokenizer, state }
    }

    /// Like [`Detokenizer::new`], but all special tokens become text as they are written.
    pub fn with_special_tokens(tokenizer: Arc<Tokenizer>) -> Detokenizer {
        let state = Detokenizing::new(&tokenizer, Special::Written);
        Detokenizer { tokenizer, state }
    }

    /// Returns the tokenizer whose tokens it takes.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Takes the next token and returns the text that it settles, which may be empty.
    pub fn push(&mut self, token: TokenId) -> String {
        let mut text = String::new();
        self.state.push(&self.tokenizer, token, &mut text);
        text
    }

    /// Ends the answer and returns U+FFFD if it broke off within a character.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        self.state.finish(&mut text);
        text
    }
}

/// Handling of special tokens.
#[derive(Debug, Clone)]
pub(crate) enum Special {
    Written,
    /// All special tokens are left out, except for those in `but`.
    LeftOut {
        but: Arc<[TokenId]>,
    },
}

/// The state of a detokeniser between two tokens.
#[derive(Debug, Clone)]
pub(crate) struct Detokenizing {
    special: Special,
    is_first: bool,
    /// A character and the number of times that it may still be stripped from the beginning.
    strip: Option<(char, usize)>,
    /// Bytes of a character that is not complete.
    pending: Vec<u8>,
}

impl Detokenizing {
    pub(crate) fn new(tokenizer: &Tokenizer, special: Special) -> Detokenizing {
        let strip = tokenizer.decoder().strip;
        Detokenizing { special, is_first: true, strip, pending: Vec::new() }
    }

    /// Appends the text that `token` settles to `text`.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, token: TokenId, text: &mut String) {
        let pieces = tokenizer.pieces();
        let is_left_out = match &self.special {
            Special::LeftOut { but } => pieces.is_special(token) && !but.contains(&token),
            Special::Written => false,
        };
        if !pieces.is_token(token) || is_left_out {
            return;
        }
        if std::mem::take(&mut self.is_first) {
            self.pending.extend(tokenizer.bytes_of_first(token))
        } else {
            self.pending.extend(pieces.bytes(token))
        }
        let start = text.len();
        let settled = push_utf8(&self.pending, text);
        self.pending.drain(..settled);
        self.strip_start(text, start);
    }

    /// Appends U+FFFD to `text` if the last token ended within a character.
    pub(crate) fn finish(&mut self, text: &mut String) {
        if !std::mem::take(&mut self.pending).is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// Strips the decoder's character from the text that was appended at `start`.
    fn strip_start(&mut self, text: &mut String, start: usize) {
        while let Some((character, left)) = self.strip {
            if text.len() == start {
                return;
            }
            self.strip = if left > 0 && text[start..].starts_with(character) {
                Some((character, left - 1))
            } else {
                None
            };
            if self.strip.is_some() {
                text.remove(start);
            }
        }
    }
}

/// Appends `bytes` to `text`, with U+FFFD for invalid UTF-8, and returns the number of bytes that
/// are settled: all but an incomplete character at the end. Replaces exactly what
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
