//! Converts text to tokens and back.

mod byte_pairs;
mod detokenize;
mod sentence_pieces;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tokenizers::{Model as _, OffsetType, PreTokenizer as _};

use crate::TokenId;
use crate::decoder::Decoder;
use crate::error::{TextError, TextLoadError};
use crate::files;
use crate::length::LengthBound;
use crate::pieces::Pieces;
use crate::special::{SpecialTokens, TokenizerConfig, eos_of_model};
use crate::template::RenderedPrompt;

pub use detokenize::Detokenizer;
use detokenize::{Detokenizing, Special};

/// Maximum length of a text in bytes: several times what a context of a million tokens holds.
pub(crate) const ENCODE_BYTES_MAX: usize = 16 << 20;

/// Noncharacters, which Unicode reserves for programs' internal use.
const NONCHARACTERS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// A token that was added to the vocabulary and is found in any text.
pub(crate) struct AddedToken {
    /// Text of the token.
    pub(crate) text: String,
    /// Whether the token is special or ends an answer.
    pub(crate) is_control: bool,
}

/// The tokenizer of one checkpoint.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: Pieces,
    length: LengthBound,
    special: SpecialTokens,
    eos_token_ids: Vec<TokenId>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` of the checkpoint in `dir`, or else its `tiktoken.model`, `tekken.json`
    /// or `tokenizer.model`, the special tokens from
    /// `tokenizer_config.json` (or the older `special_tokens_map.json`), and the tokens that end
    /// an answer from `generation_config.json` and `config.json`.
    ///
    /// # Errors
    /// Fails if there is none of these files, or one of the files is unreadable, too large or
    /// corrupt.
    pub fn load(dir: &Path) -> Result<Tokenizer, TextLoadError> {
        let config = TokenizerConfig::load(dir)?;
        let (path, bytes) = tokenizer_json(dir, &config)?;
        let refused = |reason: String| TextLoadError::Tokenizer { path: path.clone(), reason };
        let mut inner = tokenizers::Tokenizer::from_bytes(&bytes)
            .map_err(|error| refused(error.to_string()))?;
        // These settings are for training batches; a prompt must never be truncated or padded
        // silently.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| refused(error.to_string()))?;

        let mut special = config.special_tokens(dir)?;
        if path.ends_with(TEKKEN) {
            special.add_missing(&byte_pairs::TEKKEN_NAMED);
        }
        config.apply(&mut inner, &special);
        let decoder = match inner.get_decoder() {
            Some(decoder) => serde_json::to_value(decoder)
                .map_err(|source| TextLoadError::Json { path: path.clone(), source })?,
            None => Value::Null,
        };
        let decoder = Decoder::parse(&decoder)
            .map_err(|decoder| TextLoadError::UnsupportedDecoder { path: path.clone(), decoder })?;
        let eos_of_tokenizer = special.text("eos_token").and_then(|eos| inner.token_to_id(eos));
        let eos_token_ids: BTreeSet<TokenId> =
            eos_of_model(dir)?.into_iter().chain(eos_of_tokenizer).collect();
        let pieces = Pieces::of(&inner, decoder).map_err(refused)?;
        Ok(Tokenizer {
            length: LengthBound::of(&inner, &pieces),
            pieces,
            inner,
            special,
            eos_token_ids: eos_token_ids.into_iter().collect(),
        })
    }

    /// Returns the tokens of a text. Special tokens that are written out in the text are
    /// recognised; `add_special_tokens` also adds those that the model expects around a text, such
    /// as the one at the beginning.
    ///
    /// # Errors
    /// Fails if the text is too long, or the tokenizer refuses it.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, TextError> {
        check_length(text)?;
        let encoding = self
            .inner
            .encode_fast(text, add_special_tokens)
            .map_err(|error| TextError::Encode { reason: error.to_string() })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns the tokens of a rendered conversation. The template writes all special tokens
    /// itself, so none are added; special tokens written by messages are encoded as plain text.
    ///
    /// # Errors
    /// Fails if the text is too long, or the tokenizer refuses it.
    pub fn encode_rendered(&self, prompt: &RenderedPrompt) -> Result<Vec<TokenId>, TextError> {
        if !prompt.has_breaks() {
            return self.encode(prompt.text(), false);
        }
        check_length(prompt.text())?;
        let refused = |reason: String| TextError::Encode { reason };
        let mark = NONCHARACTERS.into_iter().find(|mark| !prompt.text().contains(*mark));
        let mark = mark.ok_or_else(|| refused("it holds every noncharacter".to_owned()))?;
        self.encode_marked(&prompt.marked(mark), mark).map_err(|error| refused(error.to_string()))
    }

    /// Does what `encode_fast` does, except for `mark`: it keeps the added tokens that contain it
    /// from being found, and is then removed.
    fn encode_marked(&self, text: &str, mark: char) -> tokenizers::Result<Vec<TokenId>> {
        let added = self.inner.get_added_vocabulary();
        let mut split = added.extract_and_normalize(self.inner.get_normalizer(), text);
        split.normalize(|part| {
            part.filter(|char| char != mark);
            Ok(())
        })?;
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut split)?;
        }
        split.tokenize(|part| {
            let tokens = self.inner.get_model().tokenize(part.get())?;
            // Some models list control tokens among the tokens of plain text.
            match tokens.iter().find(|token| self.is_special(token.id)) {
                Some(token) => Err(format!("a message writes {:?}", token.value).into()),
                None => Ok(tokens),
            }
        })?;
        Ok(split.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }

    /// Returns the tokens that were added to the vocabulary and are found in any text.
    pub(crate) fn added_tokens(&self) -> impl Iterator<Item = AddedToken> {
        let added = self.inner.get_added_tokens_decoder().into_iter();
        added.map(|(id, token)| AddedToken { is_control: self.is_control(id), text: token.content })
    }

    /// Returns the minimum number of tokens of a text, without tokenising it, which would take a
    /// hundred times as long; 0 for the few tokenizers for which the bound is unknown.
    pub fn fewest_tokens(&self, text: &str) -> usize {
        self.length.fewest_tokens(text)
    }

    /// Returns the tokens of a raw prompt, as the completions API takes it: with the special tokens
    /// around it, unless the caller has already written the one at the beginning.
    ///
    /// # Errors
    /// Fails if the text is too long, or the tokenizer refuses it.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<TokenId>, TextError> {
        let begun = self.bos_token().is_some_and(|bos| text.starts_with(bos));
        self.encode(text, !begun)
    }

    /// Returns the text of tokens: their bytes joined and read as UTF-8, with U+FFFD for invalid
    /// bytes. Ids without a token add nothing; `skip_special` leaves out special tokens.
    pub fn decode(&self, tokens: &[TokenId], skip_special: bool) -> String {
        let mut text = String::new();
        let special =
            if skip_special { Special::LeftOut { but: Arc::new([]) } } else { Special::Written };
        let mut detokenizing = Detokenizing::new(self, special);
        for &token in tokens {
            detokenizing.push(self, token, &mut text);
        }
        detokenizing.finish(&mut text);
        text
    }

    /// Returns a single token as text, for lists of log-probabilities. A token that holds only part
    /// of a character shows as U+FFFD; [`Tokenizer::token_bytes`] is exact.
    pub fn token_text(&self, token: TokenId) -> String {
        String::from_utf8_lossy(self.pieces.bytes(token)).into_owned()
    }

    /// Returns the bytes that a token adds to a text; empty for an id without a token.
    pub fn token_bytes(&self, token: TokenId) -> Vec<u8> {
        self.pieces.bytes(token).to_vec()
    }

    /// Returns a token as it is written in the vocabulary, also if it is special.
    pub(crate) fn written(&self, token: TokenId) -> Option<String> {
        self.inner.id_to_token(token)
    }

    /// Returns the id of the token with this text, also if it is special.
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        self.inner.token_to_id(token)
    }

    /// Returns the largest token id plus one. The model's own vocabulary is often padded to a
    /// larger size.
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the tokens that end an answer, in ascending order.
    pub fn eos_token_ids(&self) -> &[TokenId] {
        &self.eos_token_ids
    }

    /// Whether a token is special; [`Tokenizer::decode`] can leave out special tokens.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.pieces.is_special(token)
    }

    /// Whether a token is special or ends the model's answers, so that it is no part of a text.
    pub fn is_control(&self, token: TokenId) -> bool {
        self.is_special(token) || self.eos_token_ids.contains(&token)
    }

    /// Returns the bytes of a token that is the first of a text.
    pub(crate) fn bytes_of_first(&self, token: TokenId) -> Vec<u8> {
        match self.inner.id_to_token(token) {
            Some(written) if self.decoder().first_differs() => self.decoder().bytes(&written, true),
            _ => self.token_bytes(token),
        }
    }

    pub(crate) fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    pub(crate) fn decoder(&self) -> &Decoder {
        self.pieces.decoder()
    }

    /// Returns the text of the token that begins a text; many models have none.
    pub fn bos_token(&self) -> Option<&str> {
        self.special.text("bos_token")
    }

    /// Returns the id of the token that begins a text.
    pub fn bos_token_id(&self) -> Option<TokenId> {
        self.token_id(self.bos_token()?)
    }

    /// Returns the special tokens that occur in one of these texts, with the text of each token.
    pub(crate) fn special_tokens_within(&self, texts: &[&str]) -> Vec<(TokenId, String)> {
        let tokens = (0..).take(self.pieces.len()).filter(|token| self.is_special(*token));
        let tokens = tokens.filter_map(|token| Some((token, self.inner.id_to_token(token)?)));
        let is_within = |token: &str| texts.iter().any(|text| text.contains(token));
        tokens.filter(|(_, written)| !written.is_empty() && is_within(written)).collect()
    }

    /// Returns the named special tokens (`bos_token`, `eos_token`, …) as templates see them.
    pub(crate) fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }
}

/// The vocabulary file of Mistral's own packages.
const TEKKEN: &str = "tekken.json";

/// Returns the content of `tokenizer.json` of the checkpoint in `dir`, after the path of the file
/// that was read. Without a `tokenizer.json`, converts another vocabulary file to that format.
fn tokenizer_json(
    dir: &Path,
    config: &TokenizerConfig,
) -> Result<(PathBuf, Vec<u8>), TextLoadError> {
    let read = |name: &str| {
        let path = dir.join(name);
        let bytes = files::read(&path, files::TOKENIZER_BYTES_MAX)?;
        Ok::<_, TextLoadError>((path, bytes))
    };
    let (missing, bytes) = read("tokenizer.json")?;
    if let Some(bytes) = bytes {
        return Ok((missing, bytes));
    }
    let [tiktoken, pieces] = ["tiktoken.model", "tokenizer.model"];
    let (path, converted) = if let (path, Some(bytes)) = read(tiktoken)? {
        (path, byte_pairs::from_tiktoken(&bytes, config.fields()))
    } else if let (path, Some(bytes)) = read(TEKKEN)? {
        (path, byte_pairs::from_tekken(&bytes))
    } else if let (path, Some(bytes)) = read(pieces)? {
        let older = files::read_json(&dir.join("added_tokens.json"), files::CONFIG_BYTES_MAX)?;
        let special = config.all_special_tokens(dir)?;
        let older = older.unwrap_or_default();
        let added = sentence_pieces::added_pieces(config.fields(), &older, &special);
        (path, sentence_pieces::from_model(&bytes, added))
    } else {
        return Err(TextLoadError::Missing { path: missing, hint: missing_hint(dir) });
    };
    match converted {
        Ok(json) => Ok((path, json.to_string().into_bytes())),
        Err(reason) => Err(TextLoadError::Tokenizer { path, reason }),
    }
}

fn check_length(text: &str) -> Result<(), TextError> {
    match text.len() {
        0..=ENCODE_BYTES_MAX => Ok(()),
        len_bytes => Err(TextError::TooLong { len_bytes, limit_bytes: ENCODE_BYTES_MAX }),
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("eos_token_ids", &self.eos_token_ids)
            .field("special", &self.special)
            .finish_non_exhaustive()
    }
}

/// Returns the hint of the error for a folder without a vocabulary file.
fn missing_hint(dir: &Path) -> &'static str {
    if dir.is_dir() {
        "this folder is no complete checkpoint; download all of its files again"
    } else {
        "there is no such folder; check the path of the model"
    }
}
