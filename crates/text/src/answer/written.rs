//! Finds the parts of calls in JSON that is still arriving: where a call begins and ends, its name
//! and its arguments.

/// The part of a call that begins or ends with the byte that was scanned last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The arguments begin with this byte, a brace.
    Arguments,
    /// The arguments end with this byte.
    ArgumentsEnd,
    /// The call ends with this byte.
    CallEnd,
}

/// Kind of a member of a call, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Name,
    Id,
    Arguments,
    Function,
    Other,
}

/// The call that the model is currently writing.
#[derive(Debug, Default)]
pub(crate) struct WrittenCall {
    /// Position at which its object begins.
    pub(crate) start: usize,
    pub(crate) name: Option<String>,
    pub(crate) id: Option<String>,
    /// Position at which its arguments begin, if they are a string that holds JSON.
    pub(crate) quoted: Option<usize>,
    /// Position at which its arguments begin, if they are an object.
    pub(crate) arguments: Option<usize>,
    /// Position at which its arguments end.
    pub(crate) arguments_end: Option<usize>,
    /// Whether the call was reported before it was complete.
    pub(crate) is_reported: bool,
}

/// A byte-by-byte scanner over a JSON object or a list of objects.
#[derive(Debug, Default)]
pub(crate) struct CallScanner {
    depth: usize,
    /// Start of the current string; `None` outside of strings.
    string: Option<usize>,
    is_escaped: bool,
    /// Number of brackets open around the members of a call; 0 before the first call.
    members: usize,
    /// Whether the members are those of `function`, an object within the call.
    is_nested: bool,
    expects_key: bool,
    key: Option<Key>,
    is_in_arguments: bool,
    pub(crate) call: Option<WrittenCall>,
}

impl CallScanner {
    /// Whether every bracket that was opened has been closed.
    pub(crate) fn is_balanced(&self) -> bool {
        self.depth == 0
    }

    /// Scans the byte at `idx` of `json`; returns what begins or ends with it, if anything does.
    pub(crate) fn take(&mut self, json: &str, idx: usize) -> Option<Mark> {
        let byte = json.as_bytes()[idx];
        if let Some(start) = self.string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => {
                    self.string = None;
                    self.take_string(&json[start..=idx]);
                }
                _ => {}
            }
            return None;
        }
        match byte {
            b'"' => {
                self.string = Some(idx);
                let is_value = self.depth == self.members && !self.expects_key;
                if let (Some(Key::Arguments), true, Some(call)) =
                    (self.key, is_value, &mut self.call)
                {
                    call.quoted = Some(idx);
                }
                None
            }
            b'{' | b'[' => self.open(byte, idx),
            b'}' | b']' => self.close(idx),
            b',' => {
                self.expects_key = self.depth == self.members;
                self.key = self.key.filter(|_| !self.expects_key);
                None
            }
            _ => None,
        }
    }

    fn open(&mut self, byte: u8, idx: usize) -> Option<Mark> {
        self.depth += 1;
        let is_value = self.depth == self.members + 1;
        let Some(call) = &mut self.call else {
            if byte == b'{' {
                self.call = Some(WrittenCall { start: idx, ..WrittenCall::default() });
                self.members = self.depth;
                self.expects_key = true;
            }
            return None;
        };
        match self.key {
            Some(Key::Arguments) if is_value && byte == b'{' && call.arguments.is_none() => {
                call.arguments = Some(idx);
                self.is_in_arguments = true;
                Some(Mark::Arguments)
            }
            Some(Key::Function) if is_value && byte == b'{' && call.name.is_none() => {
                self.members = self.depth;
                self.is_nested = true;
                self.expects_key = true;
                None
            }
            _ => None,
        }
    }

    fn close(&mut self, idx: usize) -> Option<Mark> {
        self.depth = self.depth.saturating_sub(1);
        if self.is_in_arguments && self.depth == self.members {
            self.is_in_arguments = false;
            if let Some(call) = &mut self.call {
                call.arguments_end = Some(idx + 1);
            }
            return Some(Mark::ArgumentsEnd);
        }
        if self.call.is_none() || self.depth + 1 != self.members {
            return None;
        }
        if std::mem::replace(&mut self.is_nested, false) {
            self.members -= 1;
            self.key = None;
            return None;
        }
        self.members = 0;
        self.key = None;
        Some(Mark::CallEnd)
    }

    /// Handles a string that has ended, given with its quotes.
    fn take_string(&mut self, quoted: &str) {
        if self.depth != self.members {
            return;
        }
        let Some(call) = &mut self.call else { return };
        if std::mem::replace(&mut self.expects_key, false) {
            self.key = Some(match quoted {
                "\"name\"" | "\"tool_name\"" => Key::Name,
                "\"id\"" => Key::Id,
                "\"arguments\"" | "\"parameters\"" => Key::Arguments,
                "\"function\"" => Key::Function,
                _ => Key::Other,
            });
            return;
        }
        match self.key {
            Some(Key::Name) => call.name = serde_json::from_str(quoted).ok(),
            Some(Key::Id) => call.id = serde_json::from_str(quoted).ok(),
            _ => {}
        }
    }
}

/// Returns the text of the JSON string that `json` begins with; the string's end may be missing.
pub(crate) fn unfinished_string(json: &str) -> String {
    let mut whole = serde_json::Deserializer::from_str(json).into_iter();
    if let Some(Ok(whole)) = whole.next() {
        return whole;
    }
    // An escaped character takes at most twelve bytes: two escapes of six.
    let shortest = json.len().saturating_sub(12).max(1);
    (shortest..=json.len())
        .rev()
        .filter(|end| json.is_char_boundary(*end))
        .find_map(|end| serde_json::from_str(&format!("{}\"", &json[..end])).ok())
        .unwrap_or_default()
}
