//! Tool calls in the Hermes form, which Qwen models and the shipped model write:
//!
//! ```text
//! Let me look.
//! <tool_call>
//! {"name": "weather", "arguments": {"city": "Oslo"}}
//! </tool_call>
//! ```
//!
//! [`ToolSplitter`] separates the calls from the content while the text is still coming. Text
//! that only looks like a call (no JSON, no name, no end tag, too long) stays content, so nothing
//! that the model wrote is lost but the white space that touches a call.
//!
//! ```text
//!            <tool_call>            {                 balanced              </tool_call>
//!   Content ────────────▶ Opened ───────▶ Json ────────────────▶ Closing ───────────────▶ Content
//!      ▲                     │              │  no JSON              │
//!      └─────────────────────┴──────────────┴───────────────────────┘  all of it was content
//! ```

use serde_json::value::RawValue;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A call longer than this is content. It bounds how much text can be held back.
const CALL_BYTES_MAX: usize = 256 << 10;

/// Of the white space before a call no more than this is held back and dropped.
const SPACE_BYTES_MAX: usize = 256;

/// What the model wants called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Name of the tool.
    pub name: String,
    /// A JSON object, as the model wrote it.
    pub arguments: String,
}

/// A settled piece of the model's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Content; never empty.
    Text(String),
    /// A complete tool call.
    Call(ToolCall),
}

/// Separates tool calls from content in text that comes in pieces. The result does not depend on
/// how the text was cut: two neighbouring [`Segment::Text`] mean the same as one.
#[derive(Debug, Clone, Default)]
pub struct ToolSplitter {
    state: State,
    /// Content: white space and a beginning of `<tool_call>` at the end of the text so far.
    /// Otherwise: everything from the white space before the call on.
    held: String,
    /// Where in `held` the scan goes on.
    scanned: usize,
    /// A call has just ended: white space that follows is dropped.
    after_call: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Content,
    /// After `<tool_call>`, which ended at `tag_end` of the held text, before the JSON.
    Opened { tag_end: usize },
    /// Inside the JSON, which began at `start` of the held text.
    Json { start: usize, depth: usize, within: Within },
    /// After the JSON at `start..end`, before the end of `</tool_call>`.
    Closing { start: usize, end: usize, matched: usize },
}

/// Where in a JSON text a byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    Structure,
    String,
    Escape,
}

/// What one byte led to.
enum Verdict {
    More(State),
    Call { start: usize, end: usize },
    NoCall,
}

impl ToolSplitter {
    /// Starts with the first byte of an answer.
    pub fn new() -> ToolSplitter {
        ToolSplitter::default()
    }

    /// Takes the next piece of the answer and returns what is settled by it.
    pub fn push(&mut self, piece: &str) -> Vec<Segment> {
        let mut segments = Vec::new();
        self.held.push_str(piece);
        loop {
            let settled = match self.state {
                State::Content => self.scan_content(&mut segments),
                _ => self.scan_call(&mut segments),
            };
            if settled {
                return segments;
            }
        }
    }

    /// The answer has ended: what was held back is content.
    pub fn finish(&mut self) -> Vec<Segment> {
        let mut segments = Vec::new();
        self.state = State::Content;
        let end = self.held.len();
        self.release(end, &mut segments);
        segments
    }

    /// Looks for the next call; true if all that is held has been looked at.
    fn scan_content(&mut self, segments: &mut Vec<Segment>) -> bool {
        if self.after_call {
            let space = self.held.len() - self.held.trim_ascii_start().len();
            self.held.drain(..space);
        }
        let found = self.held.find(OPEN);
        let tag = found.unwrap_or_else(|| self.held.len() - partial_tag_len(&self.held));
        let space = trailing_space_len(&self.held[..tag]);
        self.release(tag - space, segments);
        if found.is_some() {
            self.scanned = space + OPEN.len();
            self.state = State::Opened { tag_end: self.scanned };
        }
        found.is_none()
    }

    /// Goes on through a call; true if all that is held has been looked at.
    fn scan_call(&mut self, segments: &mut Vec<Segment>) -> bool {
        while let Some(&byte) = self.held.as_bytes().get(self.scanned) {
            let verdict = match self.scanned < CALL_BYTES_MAX {
                true => advance(self.state, byte, self.scanned),
                false => Verdict::NoCall,
            };
            match verdict {
                Verdict::More(state) => {
                    self.state = state;
                    self.scanned += 1;
                }
                Verdict::Call { start, end } => match parse_call(&self.held[start..end]) {
                    Some(call) => {
                        self.held.drain(..=self.scanned);
                        self.state = State::Content;
                        self.after_call = true;
                        segments.push(Segment::Call(call));
                        return false;
                    }
                    None => return self.reject(self.scanned + 1, segments),
                },
                Verdict::NoCall => {
                    let end = match self.state {
                        State::Content | State::Json { .. } => self.scanned,
                        State::Opened { tag_end } => tag_end,
                        State::Closing { end, .. } => end,
                    };
                    return self.reject(end, segments);
                }
            }
        }
        true
    }

    /// What looked like a call is content up to `end`; always false, for the rest is to be looked
    /// at again.
    fn reject(&mut self, end: usize, segments: &mut Vec<Segment>) -> bool {
        // The limit may fall into the middle of a character.
        let end = (0..=end).rev().find(|&idx| self.held.is_char_boundary(idx)).unwrap_or(0);
        self.state = State::Content;
        self.release(end, segments);
        false
    }

    /// Passes on the first `len` held bytes as content.
    fn release(&mut self, len: usize, segments: &mut Vec<Segment>) {
        self.scanned = 0;
        if len > 0 {
            self.after_call = false;
            let rest = self.held.split_off(len);
            segments.push(Segment::Text(std::mem::replace(&mut self.held, rest)));
        }
    }
}

/// The step of the automaton for the byte at `idx`.
fn advance(state: State, byte: u8, idx: usize) -> Verdict {
    match state {
        State::Content => Verdict::NoCall,
        State::Opened { .. } => match byte {
            b'{' => Verdict::More(State::Json { start: idx, depth: 1, within: Within::Structure }),
            _ if byte.is_ascii_whitespace() => Verdict::More(state),
            _ => Verdict::NoCall,
        },
        State::Json { start, depth, within } => {
            let json = |depth, within| Verdict::More(State::Json { start, depth, within });
            match (within, byte) {
                (Within::String, b'\\') => json(depth, Within::Escape),
                (Within::String, b'"') => json(depth, Within::Structure),
                (Within::String, 0..0x20) => Verdict::NoCall,
                (Within::String | Within::Escape, _) => json(depth, Within::String),
                (Within::Structure, b'"') => json(depth, Within::String),
                (Within::Structure, b'{' | b'[') => json(depth + 1, within),
                (Within::Structure, b'}' | b']') if depth == 1 => {
                    Verdict::More(State::Closing { start, end: idx + 1, matched: 0 })
                }
                (Within::Structure, b'}' | b']') => json(depth - 1, within),
                (Within::Structure, _) if is_bare_json(byte) => json(depth, within),
                (Within::Structure, _) => Verdict::NoCall,
            }
        }
        State::Closing { start, end, matched } => {
            if byte == CLOSE.as_bytes()[matched] {
                match matched + 1 == CLOSE.len() {
                    true => Verdict::Call { start, end },
                    false => Verdict::More(State::Closing { start, end, matched: matched + 1 }),
                }
            } else if matched == 0 && byte.is_ascii_whitespace() {
                Verdict::More(state)
            } else {
                Verdict::NoCall
            }
        }
    }
}

/// Bytes that occur in JSON outside of strings, brackets aside: separators, white space, numbers
/// and the letters of `true`, `false` and `null`. Anything else ends the wait for the rest.
fn is_bare_json(byte: u8) -> bool {
    matches!(
        byte,
        b':' | b',' | b' ' | b'\t' | b'\r' | b'\n' | b'0'..=b'9' | b'+' | b'-' | b'.' | b'E'
    ) || b"truefalsn".contains(&byte)
}

/// Length of the longest end of `text` that is a beginning of `<tool_call>`.
fn partial_tag_len(text: &str) -> usize {
    (1..OPEN.len()).rev().find(|&len| text.ends_with(&OPEN[..len])).unwrap_or(0)
}

/// Length of the white space at the end of `text`, bounded.
fn trailing_space_len(text: &str) -> usize {
    let space = text.bytes().rev().take(SPACE_BYTES_MAX);
    space.take_while(u8::is_ascii_whitespace).count()
}

/// Reads the JSON between the tags.
fn parse_call(json: &str) -> Option<ToolCall> {
    #[derive(serde::Deserialize)]
    struct Written<'a> {
        name: String,
        #[serde(borrow, default, alias = "parameters")]
        arguments: Option<&'a RawValue>,
    }
    let written: Written = serde_json::from_str(json).ok()?;
    let arguments = match written.arguments.map(RawValue::get) {
        None | Some("null") => "{}".to_owned(),
        Some(object) if object.starts_with('{') => object.to_owned(),
        // Some models quote the object, as the API does.
        Some(other) => {
            let quoted: String = serde_json::from_str(other).ok()?;
            let object: &RawValue = serde_json::from_str(&quoted).ok()?;
            object.get().starts_with('{').then(|| object.get().to_owned())?
        }
    };
    Some(ToolCall { name: written.name, arguments })
}
