//! Converts vocabularies of byte pairs that are stored in other files to the content of a
//! `tokenizer.json`: `tiktoken.model` (Kimi) and `tekken.json` (Mistral).
//!
//! Both list tokens by rank. Neighbouring tokens are merged whose joint bytes are the token of the
//! lowest rank; `tokenizer.json` lists the merges instead, in the order of the tokens that result.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Regular expression by which Kimi's code divides a text before it is encoded.
const KIMI_PATTERN: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// Number of ids that Kimi's code gives to special tokens, listed or not.
const KIMI_SPECIAL_TOKENS: usize = 256;

/// Maximum number of tokens of a vocabulary: several times the largest one known.
const TOKENS_MAX: usize = 1 << 20;

/// Maximum length of a token in bytes; its merges take a time that grows with the length.
const TOKEN_BYTES_MAX: usize = 1 << 10;

/// A vocabulary of byte pairs.
struct BytePairs<'a> {
    /// Bytes of each token, by rank.
    tokens: Vec<Vec<u8>>,
    /// Id of the token of rank 0.
    first_id: usize,
    /// Regular expression that matches the parts of a text that are encoded separately.
    pattern: &'a str,
    /// Special tokens by id.
    special: BTreeMap<usize, String>,
}

/// Converts the content of a `tiktoken.model` to that of a `tokenizer.json`. `config` has the
/// fields of `tokenizer_config.json`. The error says why the file cannot be converted.
pub(super) fn from_tiktoken(bytes: &[u8], config: &Map<String, Value>) -> Result<Value, String> {
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or("not stated");
    if class != "TikTokenTokenizer" {
        return Err(format!("tokenizer_class is {class}; only Kimi's TikTokenTokenizer is known"));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let mut tokens = Vec::new();
    for (idx, line) in text.lines().filter(|line| !line.is_empty()).enumerate() {
        let (token, rank) = line.split_once(' ').unwrap_or((line, ""));
        if rank.trim() != idx.to_string() {
            return Err(format!("line {} has rank {rank:?}, expected {idx}", idx + 1));
        }
        tokens.push(token_bytes(token, idx)?);
    }
    let listed = config.get("added_tokens_decoder").and_then(Value::as_object);
    let content = |id: usize| listed?.get(&id.to_string())?.get("content")?.as_str();
    let ids = tokens.len()..tokens.len() + KIMI_SPECIAL_TOKENS;
    let special = ids.map(|id| {
        let reserved = || format!("<|reserved_token_{id}|>");
        (id, content(id).map_or_else(reserved, str::to_owned))
    });
    let special = special.collect();
    BytePairs { tokens, first_id: 0, pattern: KIMI_PATTERN, special }.tokenizer()
}

/// A `tekken.json`.
#[derive(Deserialize)]
struct Tekken {
    config: TekkenConfig,
    vocab: Vec<TekkenToken>,
    special_tokens: Option<Vec<TekkenSpecial>>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct TekkenToken {
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecial {
    rank: usize,
    token_str: String,
}

/// The special tokens of files that do not list them (versions 3 to 7 of Mistral's tokenizers).
const TEKKEN_SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// The named special tokens of all `tekken.json`, which have the same texts in every version.
pub(super) const TEKKEN_NAMED: [(&str, &str); 2] = [("bos_token", "<s>"), ("eos_token", "</s>")];

/// Converts the content of a `tekken.json` to that of a `tokenizer.json`. The error says why the
/// file cannot be converted.
pub(super) fn from_tekken(bytes: &[u8]) -> Result<Value, String> {
    let Tekken { config, vocab, special_tokens } =
        serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let first_id = config.default_num_special_tokens;
    let Some(num_tokens) = config.default_vocab_size.checked_sub(first_id) else {
        return Err(format!("{first_id} special tokens in a vocabulary of fewer"));
    };
    let tokens = vocab.iter().take(num_tokens).enumerate();
    let tokens = tokens.map(|(rank, token)| token_bytes(&token.token_bytes, rank));
    let mut special: BTreeMap<usize, String> = match special_tokens {
        Some(listed) => listed.into_iter().map(|token| (token.rank, token.token_str)).collect(),
        None => TEKKEN_SPECIAL.iter().map(|token| (*token).to_owned()).enumerate().collect(),
    };
    for id in 0..first_id.min(TOKENS_MAX) {
        special.entry(id).or_insert_with(|| format!("<SPECIAL_{id}>"));
    }
    let tokens = tokens.collect::<Result<_, _>>()?;
    BytePairs { tokens, first_id, pattern: &config.pattern, special }.tokenizer()
}

impl BytePairs<'_> {
    fn tokenizer(&self) -> Result<Value, String> {
        let num_tokens = self.tokens.len() + self.special.len();
        if TOKENS_MAX < num_tokens {
            return Err(format!("{num_tokens} tokens, expected at most {TOKENS_MAX}"));
        }
        let ranks: BTreeMap<&[u8], usize> =
            self.tokens.iter().enumerate().map(|(rank, token)| (&token[..], rank)).collect();
        let written: Vec<String> = self.tokens.iter().map(|token| written(token)).collect();
        let vocab = written
            .iter()
            .enumerate()
            .map(|(rank, token)| (token.clone(), Value::from(self.first_id + rank)));
        let mut merges = Vec::new();
        for token in &self.tokens {
            let splits = (1..token.len()).filter_map(|at| {
                let (left, right) = token.split_at(at);
                Some((*ranks.get(left)?, *ranks.get(right)?))
            });
            let mut splits: Vec<(usize, usize)> = splits.collect();
            splits.sort_unstable();
            merges.extend(splits.into_iter().map(|(a, b)| json!([written[a], written[b]])));
        }
        let added = self.special.iter().map(|(id, content)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true})
        });
        let mut vocab: Map<String, Value> = vocab.collect();
        // Special tokens keep their ids only if the vocabulary has them.
        let special = self.special.iter().map(|(id, content)| (content.clone(), (*id).into()));
        vocab.extend(special);
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": false});
        let split = json!({"type": "Split", "pattern": {"Regex": self.pattern},
            "behavior": "Isolated", "invert": false});
        Ok(json!({
            "version": "1.0",
            "added_tokens": added.collect::<Vec<_>>(),
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "decoder": byte_level,
            "model": {"type": "BPE", "ignore_merges": true, "vocab": vocab, "merges": merges},
        }))
    }
}

/// Reads the bytes of the token of a rank.
fn token_bytes(base64: &str, rank: usize) -> Result<Vec<u8>, String> {
    let bytes = decoded(base64).filter(|bytes| !bytes.is_empty() && bytes.len() <= TOKEN_BYTES_MAX);
    bytes.ok_or_else(|| format!("token {rank} is {base64:?}, expected base64 of a few bytes"))
}

/// Decodes base64 (RFC 4648, section 4).
fn decoded(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut held, mut num_bits) = (0_u32, 0);
    for byte in text.bytes() {
        let code = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(code);
        num_bits += 6;
        if 8 <= num_bits {
            num_bits -= 8;
            bytes.push((held >> num_bits) as u8);
        }
    }
    Some(bytes)
}

/// Writes bytes as `tokenizer.json` does: printable ones of Latin-1 as themselves, the others as the
/// characters from U+0100 on (Radford et al. 2019, GPT-2's `bytes_to_unicode`).
fn written(bytes: &[u8]) -> String {
    let is_kept = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let character = |byte: u8| {
        if is_kept(byte) {
            return char::from(byte);
        }
        let others_before = (0..byte).filter(|other| !is_kept(*other)).count() as u32;
        char::from_u32(0x100 + others_before).expect("a few characters from U+0100 on")
    };
    bytes.iter().map(|byte| character(*byte)).collect()
}
