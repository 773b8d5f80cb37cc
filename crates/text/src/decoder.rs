//! The bytes that each token contributes to the text, computed once when the tokenizer is loaded.
//!
//! The `decoder` of `tokenizer.json` is a pipeline over the whole list of tokens. The decoders of
//! all real models have the same form, and only that form can be streamed: every token becomes
//! bytes on its own (the very first one perhaps differently), the bytes are joined and read as
//! UTF-8, and a few characters are cut off the beginning. A decoder of another form is refused when
//! the checkpoint is loaded.

use serde_json::Value;

/// Converts tokens to text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Decoder {
    steps: Vec<Step>,
    /// A character and the maximum number of times that it is stripped from the beginning of the
    /// text.
    pub(crate) strip: Option<(char, usize)>,
}

/// One transformation of a single token.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Puts a space before every token but the first (the behaviour without a decoder).
    Join,
    /// Replaces a string by another one.
    Replace { pattern: String, content: String },
    /// Strips a character from both ends.
    Strip { content: char, start: usize, stop: usize },
    /// Turns a character into a space; in the first token perhaps into nothing.
    Metaspace { replacement: char, drop_first: bool },
    /// Removes the prefix of continuation tokens and puts a space before all other tokens.
    WordPiece { prefix: String, cleanup: bool },
    /// Turns `<0x41>` into the byte 0x41.
    ByteFallback,
    /// Turns every character into the byte that it stands for (GPT-2).
    ByteLevel,
}

impl Decoder {
    /// Reads the `decoder` of a `tokenizer.json`; the error is the unsupported decoder type.
    pub(crate) fn parse(json: &Value) -> Result<Decoder, String> {
        if json.is_null() {
            return Ok(Decoder { steps: vec![Step::Join], strip: None });
        }
        let mut decoder = Decoder::default();
        let mut joined = false;
        decoder.add(json, &mut joined)?;
        Ok(decoder)
    }

    /// Whether a token may have other bytes at the beginning of a text than elsewhere.
    pub(crate) fn first_differs(&self) -> bool {
        self.steps.iter().any(|step| match step {
            Step::Join | Step::WordPiece { .. } => true,
            Step::Metaspace { drop_first, .. } => *drop_first,
            _ => false,
        })
    }

    fn add(&mut self, json: &Value, joined: &mut bool) -> Result<(), String> {
        let kind = json["type"].as_str().unwrap_or("without a type");
        let refused = || Err(kind.to_owned());
        // No step may follow one that produces bytes: it would see pieces that depend on their
        // neighbours.
        let bytes = matches!(self.steps.last(), Some(Step::ByteFallback | Step::ByteLevel));
        let text = |key: &str| json[key].as_str().map(str::to_owned).ok_or(kind.to_owned());
        let character = |key: &str| json[key].as_str().and_then(single_char).ok_or(kind.to_owned());
        let count = |key: &str| {
            json[key].as_u64().and_then(|n| usize::try_from(n).ok()).ok_or(kind.to_owned())
        };
        match kind {
            "Sequence" => {
                for decoder in json["decoders"].as_array().ok_or(kind.to_owned())? {
                    self.add(decoder, joined)?;
                }
            }
            "Fuse" => *joined = true,
            "Strip" if *joined => match (self.strip, count("start")?, count("stop")?) {
                (None, start, 0) => self.strip = Some((character("content")?, start)),
                _ => return refused(),
            },
            _ if *joined || bytes => return refused(),
            "Strip" => self.steps.push(Step::Strip {
                content: character("content")?,
                start: count("start")?,
                stop: count("stop")?,
            }),
            "Replace" => {
                let pattern = json["pattern"]["String"].as_str();
                let pattern = pattern.ok_or("Replace with a regular expression")?.to_owned();
                self.steps.push(Step::Replace { pattern, content: text("content")? });
            }
            "Metaspace" => self.steps.push(Step::Metaspace {
                replacement: character("replacement")?,
                drop_first: json["prepend_scheme"].as_str() != Some("never"),
            }),
            "WordPiece" => self.steps.push(Step::WordPiece {
                prefix: text("prefix")?,
                cleanup: json["cleanup"].as_bool().unwrap_or(true),
            }),
            "ByteFallback" => self.steps.push(Step::ByteFallback),
            "ByteLevel" => {
                self.steps.push(Step::ByteLevel);
                *joined = true;
            }
            _ => return refused(),
        }
        Ok(())
    }

    /// Returns the bytes of a token, which may end in the middle of a character.
    pub(crate) fn bytes(&self, token: &str, is_first: bool) -> Vec<u8> {
        let mut text = token.to_owned();
        for step in &self.steps {
            match step {
                Step::Join if !is_first => text.insert(0, ' '),
                Step::Join => {}
                Step::Replace { pattern, content } => text = text.replace(pattern, content),
                Step::Strip { content, start, stop } => {
                    text = strip(&text, *content, *start, *stop).to_owned();
                }
                Step::Metaspace { replacement, drop_first } => {
                    let space = if *drop_first && is_first { "" } else { " " };
                    text = text.replace(*replacement, space);
                }
                Step::WordPiece { prefix, cleanup } => {
                    if !is_first {
                        text = match text.strip_prefix(prefix.as_str()) {
                            Some(rest) => rest.to_owned(),
                            None => format!(" {text}"),
                        };
                    }
                    if *cleanup {
                        text = clean_up(&text);
                    }
                }
                Step::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        return vec![byte];
                    }
                }
                Step::ByteLevel => {
                    let bytes: Option<Vec<u8>> = text.chars().map(byte_of_char).collect();
                    return bytes.unwrap_or_else(|| text.into_bytes());
                }
            }
        }
        text.into_bytes()
    }
}

fn single_char(text: &str) -> Option<char> {
    let mut chars = text.chars();
    chars.next().filter(|_| chars.next().is_none())
}

/// Strips a character up to `start` times from the beginning and up to `stop` times from the end.
fn strip(text: &str, content: char, start: usize, stop: usize) -> &str {
    let mut text = text;
    for _ in 0..start {
        text = text.strip_prefix(content).unwrap_or(text);
    }
    for _ in 0..stop {
        text = text.strip_suffix(content).unwrap_or(text);
    }
    text
}

/// Applies the English clean-up of `tokenizers` 0.23.2, `decoders/wordpiece.rs`.
fn clean_up(text: &str) -> String {
    const REPLACEMENTS: [(&str, &str); 11] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    REPLACEMENTS.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Returns the byte that a token of the form `<0x41>` stands for.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

/// Returns the byte that a character stands for in byte-level vocabularies: printable Latin-1
/// stands for itself, the 68 other bytes for U+0100 onwards (`bytes_to_unicode` of GPT-2's
/// `encoder.py`).
fn byte_of_char(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}
