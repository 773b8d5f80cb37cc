//! Converts `tokenizer.model`, a vocabulary of SentencePiece (Kudo and Richardson 2018), to the
//! content of a `tokenizer.json`. The conversion is that of transformers, so messages and control
//! tokens are read as in transformers, and texts are encoded as by SentencePiece itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use prost::Message;
use serde_json::{Map, Value, json};

/// Maximum number of tokens of a vocabulary: several times the largest one known.
const TOKENS_MAX: usize = 1 << 20;

/// Maximum length of a piece in bytes; its merges take a time that grows with the length.
const PIECE_BYTES_MAX: usize = 1 << 10;

/// The character that SentencePiece writes instead of a space.
const SPACE: &str = "\u{2581}";

/// Fields of `sentencepiece_model.proto`.
#[derive(Message)]
struct Model {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
    #[prost(message, optional, tag = "5")]
    denormalizer: Option<Normalizer>,
}

#[derive(Message)]
struct Piece {
    #[prost(string, optional, tag = "1")]
    piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

#[derive(Message)]
struct Trainer {
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
    #[prost(bool, optional, tag = "24")]
    treat_whitespace_as_suffix: Option<bool>,
    #[prost(bool, optional, tag = "35")]
    byte_fallback: Option<bool>,
    #[prost(int32, optional, tag = "41")]
    bos_id: Option<i32>,
}

#[derive(Message)]
struct Normalizer {
    #[prost(bytes = "vec", optional, tag = "2")]
    precompiled_charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3")]
    add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    escape_whitespaces: Option<bool>,
}

/// Type of a piece; [`PieceKind::of_number`] has the numbers of the file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PieceKind {
    Normal,
    Unknown,
    /// Never found in a text.
    Control,
    /// Found wherever it is written, whatever surrounds it.
    UserDefined,
    Byte,
    /// In the vocabulary, but not used.
    Unused,
}

/// How texts are divided into pieces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Algorithm {
    /// The most likely sequence of pieces.
    Unigram,
    /// Neighbours are merged, those of the best score first.
    BytePairs,
}

/// A piece of the vocabulary; the id of a piece is its index in the list.
struct Entry {
    text: String,
    score: f32,
    kind: PieceKind,
}

/// A token that a checkpoint adds to the vocabulary.
pub(super) struct AddedPiece {
    /// Id of the token.
    pub(super) id: usize,
    /// Text of the token.
    pub(super) text: String,
    /// Whether decoding leaves the token out.
    pub(super) is_special: bool,
}

/// A vocabulary.
struct SentencePieces {
    algorithm: Algorithm,
    entries: Vec<Entry>,
    has_bytes: bool,
    /// Whether encoding puts a space before the text, which decoding removes.
    adds_prefix: bool,
    removes_extra_spaces: bool,
    /// Replacements of characters, in a form that SentencePiece and tokenizers share.
    charsmap: Vec<u8>,
    bos: Option<usize>,
    added: Vec<AddedPiece>,
}

/// Converts the content of a `tokenizer.model` to that of a `tokenizer.json`. `added` has the
/// tokens that the checkpoint adds. The error says why the file cannot be converted.
pub(super) fn from_model(bytes: &[u8], added: Vec<AddedPiece>) -> Result<Value, String> {
    let model = Model::decode(bytes).map_err(|error| error.to_string())?;
    SentencePieces::read(model, added)?.tokenizer()
}

impl PieceKind {
    fn of_number(number: i32) -> Result<PieceKind, String> {
        Ok(match number {
            1 => PieceKind::Normal,
            2 => PieceKind::Unknown,
            3 => PieceKind::Control,
            4 => PieceKind::UserDefined,
            5 => PieceKind::Unused,
            6 => PieceKind::Byte,
            other => return Err(format!("a piece of kind {other}, which is not known")),
        })
    }

    /// Whether the encoder chooses pieces of this kind in a text by their scores.
    fn is_scored(self) -> bool {
        self == PieceKind::Normal
    }
}

impl SentencePieces {
    fn read(model: Model, mut added: Vec<AddedPiece>) -> Result<SentencePieces, String> {
        let num_pieces = model.pieces.len();
        if num_pieces == 0 || TOKENS_MAX < num_pieces + added.len() {
            return Err(format!("{num_pieces} pieces, expected 1 to {TOKENS_MAX}"));
        }
        let trainer = model.trainer.ok_or("it does not say how it was trained")?;
        let normalizer = model.normalizer.ok_or("it does not say how texts are normalised")?;
        let algorithm = match trainer.model_type.unwrap_or(1) {
            1 => Algorithm::Unigram,
            2 => Algorithm::BytePairs,
            other => return Err(format!("model type {other}, expected 1 (unigram) or 2 (BPE)")),
        };
        let denormalizer = model.denormalizer.and_then(|it| it.precompiled_charsmap);
        let unsupported = [
            ("spaces at the ends of words", trainer.treat_whitespace_as_suffix == Some(true)),
            ("spaces that are not escaped", normalizer.escape_whitespaces == Some(false)),
            ("texts changed in decoding", denormalizer.is_some_and(|it| !it.is_empty())),
        ];
        if let Some((what, _)) = unsupported.into_iter().find(|(_, is_set)| *is_set) {
            return Err(format!("{what} are not supported"));
        }
        let entries = model.pieces.into_iter().map(|piece| {
            let text = piece.piece.unwrap_or_default();
            if text.is_empty() || PIECE_BYTES_MAX < text.len() {
                return Err(format!("a piece of {} bytes", text.len()));
            }
            let kind = PieceKind::of_number(piece.kind.unwrap_or(1))?;
            Ok(Entry { text, score: piece.score.unwrap_or(0.0), kind })
        });
        let entries = entries.collect::<Result<Vec<_>, String>>()?;
        let known: BTreeSet<&str> = entries.iter().map(|entry| entry.text.as_str()).collect();
        if known.len() < entries.len() {
            return Err("it has a piece twice".to_owned());
        }
        added.retain(|token| !known.contains(token.text.as_str()));
        added.sort_by_key(|token| token.id);
        if added.iter().any(|token| token.id < entries.len()) {
            return Err("the checkpoint adds tokens with ids of its pieces".to_owned());
        }
        let bos = trainer.bos_id.unwrap_or(1);
        let bos = usize::try_from(bos)
            .ok()
            .filter(|id| entries.get(*id).is_some_and(|entry| entry.kind == PieceKind::Control));
        Ok(SentencePieces {
            algorithm,
            entries,
            has_bytes: trainer.byte_fallback == Some(true),
            adds_prefix: normalizer.add_dummy_prefix != Some(false),
            removes_extra_spaces: normalizer.remove_extra_whitespaces != Some(false),
            charsmap: normalizer.precompiled_charsmap.unwrap_or_default(),
            bos,
            added,
        })
    }

    /// Returns the ids and texts of the pieces of these kinds.
    fn of_kind(&self, kinds: &[PieceKind]) -> Vec<(usize, &str)> {
        let entries = self.entries.iter().enumerate();
        let entries = entries.filter(|(_, entry)| kinds.contains(&entry.kind));
        entries.map(|(id, entry)| (id, entry.text.as_str())).collect()
    }

    /// Whether user-defined pieces become patterns that split the text, instead of added tokens:
    /// added tokens are normalised themselves, and would get the prefix.
    fn divides(&self) -> bool {
        self.adds_prefix && !self.of_kind(&[PieceKind::UserDefined]).is_empty()
    }

    fn tokenizer(&self) -> Result<Value, String> {
        let model = match self.algorithm {
            Algorithm::BytePairs => self.byte_pairs()?,
            Algorithm::Unigram => self.unigram()?,
        };
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if self.adds_prefix {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Ok(json!({
            "version": "1.0",
            "added_tokens": self.added_tokens(),
            "normalizer": self.normalizer(),
            "pre_tokenizer": self.pre_tokenizer(),
            "post_processor": self.bos.map(|id| begins_with(&self.entries[id].text, id)),
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": model,
        }))
    }

    fn added_tokens(&self) -> Vec<Value> {
        let token = |id: usize, text: &str, is_special: bool, is_normalized: bool| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": is_normalized, "special": is_special})
        };
        let control = self.of_kind(&[PieceKind::Control, PieceKind::Unknown]);
        let control = control.into_iter().map(|(id, text)| token(id, text, true, false));
        let defined = if self.divides() { vec![] } else { self.of_kind(&[PieceKind::UserDefined]) };
        let defined = defined.into_iter().map(|(id, text)| token(id, text, false, true));
        let added = self.added.iter().map(|it| token(it.id, &it.text, it.is_special, false));
        control.chain(defined).chain(added).collect()
    }

    fn normalizer(&self) -> Value {
        let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        let mut steps = Vec::new();
        if !self.charsmap.is_empty() {
            let charsmap = base64(&self.charsmap);
            steps.push(json!({"type": "Precompiled", "precompiled_charsmap": charsmap}));
        }
        if self.removes_extra_spaces {
            // At the end of the text, the character that stands for a space is removed as well.
            let ends = format!(r"\A +|[ {SPACE}]+\z");
            steps.push(replace(json!({"Regex": ends}), ""));
            steps.push(replace(json!({"Regex": " {2,}"}), " "));
        }
        if self.adds_prefix {
            steps.push(json!({"type": "Prepend", "prepend": SPACE}));
        }
        steps.push(replace(json!({"String": " "}), SPACE));
        json!({"type": "Sequence", "normalizers": steps})
    }

    fn pre_tokenizer(&self) -> Value {
        let mut patterns = Vec::new();
        if self.divides() {
            let mut texts = self.of_kind(&[PieceKind::UserDefined]);
            texts.sort_by_key(|(_, text)| std::cmp::Reverse(text.len()));
            let texts = texts.iter().map(|(_, text)| escaped(text));
            patterns.push(texts.collect::<Vec<_>>().join("|"));
        }
        if self.has_bytes && (self.divides() || self.algorithm == Algorithm::Unigram) {
            // A text that spells the piece of a byte is not that byte.
            patterns.push("(?<=<0x[0-9A-F]{2})>".to_owned());
        }
        let splits = patterns.iter().map(|pattern| {
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                "invert": false})
        });
        let splits: Vec<Value> = splits.collect();
        if splits.is_empty() {
            return Value::Null;
        }
        json!({"type": "Sequence", "pretokenizers": splits})
    }

    /// Returns the id and the text of the piece for characters that the vocabulary lacks.
    fn unknown(&self) -> Result<(usize, &str), String> {
        let unknown = self.of_kind(&[PieceKind::Unknown]);
        unknown.first().copied().ok_or_else(|| "it has no unknown piece".to_owned())
    }

    fn byte_pairs(&self) -> Result<Value, String> {
        let ids = self.entries.iter().enumerate().map(|(id, entry)| (entry.text.as_str(), id));
        let ids: HashMap<&str, usize> = ids.collect();
        let is_scored = |id: usize| self.entries[id].kind.is_scored();
        let mut merges = Vec::new();
        for (id, entry) in self.entries.iter().enumerate().filter(|(id, _)| is_scored(*id)) {
            for (at, _) in entry.text.char_indices().skip(1) {
                let (left, right) = entry.text.split_at(at);
                let parts = [left, right].map(|part| ids.get(part).filter(|id| is_scored(**id)));
                if let [Some(left), Some(right)] = parts {
                    merges.push((id, *left, *right));
                }
            }
        }
        let score = |id: usize| self.entries[id].score;
        merges.sort_by(|one, other| score(other.0).total_cmp(&score(one.0)).then(one.cmp(other)));
        let text = |id: usize| self.entries[id].text.as_str();
        let merges: Vec<Value> =
            merges.into_iter().map(|(_, left, right)| json!([text(left), text(right)])).collect();
        // Added tokens keep their ids only if the vocabulary has them.
        let added = self.added.iter().map(|token| (token.text.clone(), Value::from(token.id)));
        let pieces = self.entries.iter().enumerate();
        let pieces = pieces.map(|(id, entry)| (entry.text.clone(), Value::from(id)));
        let vocab: Map<String, Value> = pieces.chain(added).collect();
        Ok(json!({
            "type": "BPE", "vocab": vocab, "merges": merges, "unk_token": self.unknown()?.1,
            "fuse_unk": true, "byte_fallback": self.has_bytes, "ignore_merges": self.divides(),
        }))
    }

    fn unigram(&self) -> Result<Value, String> {
        let scores = self.entries.iter().filter(|entry| entry.kind.is_scored());
        let least = scores.map(|entry| entry.score).fold(f32::INFINITY, f32::min);
        let pieces = self.entries.iter().map(|entry| {
            let is_chosen = entry.kind.is_scored() || entry.kind == PieceKind::UserDefined;
            json!([entry.text, if is_chosen { entry.score } else { least }])
        });
        let mut vocab: Vec<Value> = pieces.collect();
        for token in &self.added {
            if token.id != vocab.len() {
                let expected = vocab.len();
                return Err(format!("an added token has id {}, expected {expected}", token.id));
            }
            vocab.push(json!([token.text, least]));
        }
        let (unk_id, _) = self.unknown()?;
        Ok(json!({
            "type": "Unigram", "vocab": vocab, "unk_id": unk_id, "byte_fallback": self.has_bytes,
        }))
    }
}

/// Returns the tokens that a checkpoint adds, by ascending id: those of `tokenizer_config.json`,
/// whose fields are `config`, and those of `added_tokens.json`, whose fields are `older`. `special`
/// are the texts of special tokens.
pub(super) fn added_pieces(
    config: &Map<String, Value>,
    older: &Map<String, Value>,
    special: &BTreeSet<String>,
) -> Vec<AddedPiece> {
    let mut found: BTreeMap<usize, AddedPiece> = BTreeMap::new();
    for (text, id) in older {
        let Some(id) = id.as_u64().and_then(|id| usize::try_from(id).ok()) else { continue };
        let is_special = special.contains(text);
        found.insert(id, AddedPiece { id, text: text.clone(), is_special });
    }
    let listed = config.get("added_tokens_decoder").and_then(Value::as_object);
    for (id, token) in listed.into_iter().flatten() {
        let (Ok(id), Some(text)) = (id.parse(), token["content"].as_str()) else { continue };
        let is_special = token["special"] == true || special.contains(text);
        found.insert(id, AddedPiece { id, text: text.to_owned(), is_special });
    }
    found.into_values().collect()
}

/// Returns a post-processor that begins texts with a token.
fn begins_with(text: &str, id: usize) -> Value {
    let special = json!({"SpecialToken": {"id": text, "type_id": 0}});
    let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    json!({
        "type": "TemplateProcessing",
        "single": [special, sequence("A")],
        "pair": [special, sequence("A"), sequence("B")],
        "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]}},
    })
}

/// Returns a regular expression that matches exactly `text`.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        if r"\.+*?()|[]{}^$".contains(char) {
            escaped.push('\\');
        }
        escaped.push(char);
    }
    escaped
}

/// Encodes bytes as base64 (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const CODES: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |idx: usize| u32::from(chunk.get(idx).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for idx in 0..4 {
            let code = bits >> (18 - 6 * idx) & 63;
            text.push(if idx <= chunk.len() { char::from(CODES[code as usize]) } else { '=' });
        }
    }
    text
}
