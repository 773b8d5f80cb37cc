//! Reads tool calls while their markup is still arriving.
//!
//! ```text
//!              name of a tool is known, arguments begin
//!  (no call) ──────────────────────────────────────────▶ (open) ──arguments end──▶ (no call)
//! ```
//!
//! A call that has begun stays a call, whatever follows: its arguments may be cut short or may be
//! invalid JSON, as in the answers of other servers. The segments depend on the text alone, never
//! on where it was cut into pieces.

use super::form::{Form, Head, ReadCalls};
use super::json;
use super::pattern::{Matcher, Pattern};
use super::schema::{Types, properties};
use super::segment::Segment;
use super::written::{CallScanner, Mark, unfinished_string};
use super::{ToolCall, Tools};

/// Result of reading completed or cut markup.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Calls, the beginning of a call, or markup that a client should not see.
    Markup,
    /// Text that only looked like markup.
    Content,
}

/// The calls of one match of a pattern.
#[derive(Debug)]
pub(crate) struct LiveCalls {
    form: Form,
    scanner: CallScanner,
    /// Number of bytes of the JSON, or of the current value, that have been processed.
    seen: usize,
    /// Number of captured fields that have been processed ([`Form::Tags`]).
    num_fields: usize,
    /// Whether a value is being written as a JSON string.
    is_in_text: bool,
    /// Whether a call has been reported.
    has_begun: bool,
    is_open: bool,
    /// Whether the markup calls a tool that does not exist.
    is_refused: bool,
    segments: Vec<Segment>,
    /// Bytes examined so far.
    pub(crate) work: u64,
}

impl LiveCalls {
    pub(crate) fn new(pattern: &Pattern) -> LiveCalls {
        LiveCalls {
            form: pattern.form,
            scanner: CallScanner::default(),
            seen: 0,
            num_fields: 0,
            is_in_text: false,
            has_begun: false,
            is_open: false,
            is_refused: false,
            segments: Vec::new(),
            work: 0,
        }
    }

    pub(crate) fn form(&self) -> Form {
        self.form
    }

    /// Removes and returns the segments that have been found since this method last ran.
    pub(crate) fn take_segments(&mut self) -> Vec<Segment> {
        std::mem::take(&mut self.segments)
    }

    /// Processes `text` as far as the matcher has scanned it.
    pub(crate) fn advance(&mut self, matcher: &Matcher, text: &str, tools: &Tools) {
        match self.form {
            Form::Json { head, streams, .. } => {
                let Some(json) = matcher.bracketed() else { return };
                let before = matcher.fields_before(json.start, text);
                let json = &text[json.clone()];
                if !before.is_empty() {
                    self.take_arguments(json, || head(&before), tools);
                } else if streams {
                    self.take_calls(json, tools);
                }
            }
            Form::Code { head } => match (matcher.bracketed(), matcher.marked_text(text)) {
                (Some(json), _) => {
                    let before = matcher.fields_before(json.start, text);
                    self.take_arguments(&text[json], || head(&before), tools);
                }
                (None, Some(code)) => self.take_code(code, head(&matcher.fields(text)), tools),
                (None, None) => {}
            },
            Form::Tags { is_wrapped, is_typed } => {
                if matcher.num_fields() > 1 || matcher.bracketed().is_some() {
                    self.take_tags(matcher, text, Values { is_wrapped, is_typed, tools });
                }
            }
            Form::Bare | Form::Literals(_) => {}
        }
    }

    /// Ends the calls after the pattern has matched the whole `text`.
    pub(crate) fn matched(&mut self, matcher: &Matcher, text: &str, tools: &Tools) -> Outcome {
        let fields = matcher.fields(text);
        let calls = match self.form {
            Form::Bare => return Outcome::Markup,
            Form::Tags { is_wrapped, is_typed } => {
                self.take_tags(matcher, text, Values { is_wrapped, is_typed, tools });
                self.end_tags(matcher);
                None
            }
            Form::Code { head } => {
                if let (None, Some((code, before))) = (matcher.bracketed(), fields.split_last()) {
                    self.take_code(code, head(before), tools);
                    self.push("\"}");
                    self.end();
                }
                None
            }
            Form::Json { streams: true, .. } => None,
            Form::Json { .. } if fields.len() > 1 => None,
            Form::Json { needs, .. } => json::calls(fields[0], needs),
            Form::Literals(read) => read(&fields, None, tools).map(|read| read.calls),
        };
        if let Some(calls) = calls.filter(|calls| calls.iter().all(|it| tools.know(&it.name))) {
            calls.into_iter().for_each(|call| self.whole(call));
        }
        self.outcome(Outcome::Content)
    }

    /// Ends a call that has begun, because the pattern does not match, or not within the size
    /// limit.
    pub(crate) fn failed(&mut self) -> Outcome {
        self.end();
        self.outcome(Outcome::Content)
    }

    /// Ends the calls of an answer that was cut within the markup.
    pub(crate) fn cut(&mut self, matcher: &Matcher, text: &str, tools: &Tools) -> Outcome {
        match self.form {
            Form::Bare => {}
            Form::Json { head, .. } => self.cut_json(matcher, text, head, tools),
            Form::Code { head } if !self.has_begun => self.cut_json(matcher, text, head, tools),
            Form::Code { .. } => {}
            Form::Tags { is_wrapped, is_typed } if matcher.num_fields() > 0 => {
                self.take_tags(matcher, text, Values { is_wrapped, is_typed, tools });
                if matcher.is_past_loop() {
                    self.end_tags(matcher);
                }
            }
            Form::Tags { .. } => {}
            Form::Literals(read) => {
                let bracketed = matcher.bracketed().map(|range| &text[range]);
                let rest = bracketed.unwrap_or_else(|| matcher.rest(text));
                let read = read(&matcher.fields(text), Some(rest), tools);
                self.cut_literals(read.unwrap_or_default(), tools);
            }
        }
        if self.is_refused { self.outcome(Outcome::Content) } else { Outcome::Markup }
    }

    fn outcome(&self, otherwise: Outcome) -> Outcome {
        if self.has_begun { Outcome::Markup } else { otherwise }
    }

    fn cut_json(&mut self, matcher: &Matcher, text: &str, head: Head, tools: &Tools) {
        let Some(json) = matcher.bracketed() else {
            let fields = matcher.fields(text);
            if let Some(call) = head(&fields).filter(|_| !fields.is_empty()) {
                self.begin(call, tools);
            }
            return;
        };
        if !matcher.fields_before(json.start, text).is_empty() {
            return;
        }
        let json = &text[json.clone()];
        self.take_calls(json, tools);
        if self.is_open || self.is_refused {
            return;
        }
        let Some(call) = self.scanner.call.take().filter(|it| !it.is_reported) else { return };
        let Some(name) = call.name else { return };
        let arguments = match (call.arguments, call.quoted) {
            (Some(start), _) => json[start..call.arguments_end.unwrap_or(json.len())].to_owned(),
            (None, Some(start)) => unfinished_string(&json[start..]),
            (None, None) => String::new(),
        };
        self.begin(ToolCall { id: call.id, name, arguments }, tools);
        if call.arguments_end.is_some() {
            self.end();
        }
    }

    fn cut_literals(&mut self, read: ReadCalls, tools: &Tools) {
        let num_calls = read.calls.len();
        for (idx, call) in read.calls.into_iter().enumerate() {
            self.begin(call, tools);
            if !read.is_cut || idx + 1 < num_calls {
                self.end();
            }
        }
    }

    /// Begins a call, or refuses it if there is no tool of that name.
    fn begin(&mut self, call: ToolCall, tools: &Tools) {
        if self.is_refused || !tools.know(&call.name) {
            self.is_refused = true;
            return;
        }
        self.has_begun = true;
        self.is_open = true;
        self.segments.push(Segment::Call(call));
    }

    fn push(&mut self, arguments: &str) {
        if arguments.is_empty() || !self.is_open {
            return;
        }
        match self.segments.last_mut() {
            Some(Segment::Call(call)) => call.arguments.push_str(arguments),
            Some(Segment::Arguments(before)) => before.push_str(arguments),
            _ => self.segments.push(Segment::Arguments(arguments.to_owned())),
        }
    }

    fn end(&mut self) {
        if std::mem::replace(&mut self.is_open, false) {
            self.segments.push(Segment::CallEnd);
        }
    }

    fn whole(&mut self, call: ToolCall) {
        self.has_begun = true;
        self.segments.extend([Segment::Call(call), Segment::CallEnd]);
    }

    /// Processes JSON that holds the arguments of a call whose head is known.
    fn take_arguments(
        &mut self,
        json: &str,
        head: impl FnOnce() -> Option<ToolCall>,
        tools: &Tools,
    ) {
        let is_object = json.starts_with('{');
        if !self.has_begun && !self.is_refused && is_object {
            match head() {
                Some(call) => self.begin(call, tools),
                None => self.is_refused = true,
            }
        }
        if !self.is_open {
            return;
        }
        self.push(&json[self.seen..]);
        while self.seen < json.len() {
            self.work += 1;
            // The scanner only counts brackets here; it does not look for members.
            self.scanner.take(json, self.seen);
            self.seen += 1;
        }
        if self.scanner.is_balanced() {
            self.end();
        }
    }

    /// Processes source code, which is an argument without quotes.
    fn take_code(&mut self, code: &str, call: Option<ToolCall>, tools: &Tools) {
        if !self.has_begun && !self.is_refused {
            match call {
                Some(call) => self.begin(call, tools),
                None => self.is_refused = true,
            }
            self.push("{\"code\": \"");
        }
        self.take_text(code, false);
    }

    /// Processes JSON that holds one or several calls.
    fn take_calls(&mut self, json: &str, tools: &Tools) {
        let mut start = self.seen;
        while self.seen < json.len() && !self.is_refused {
            let idx = self.seen;
            self.work += 1;
            self.seen += 1;
            match self.scanner.take(json, idx) {
                Some(Mark::Arguments) => {
                    start = idx;
                    self.begin_written(tools);
                }
                Some(Mark::ArgumentsEnd) => {
                    self.push(&json[start..=idx]);
                    self.end();
                }
                Some(Mark::CallEnd) => self.end_written(json, tools),
                None => {}
            }
        }
        if self.is_open {
            self.push(&json[start..]);
        }
    }

    fn begin_written(&mut self, tools: &Tools) {
        if !matches!(self.form, Form::Json { streams: true, .. }) {
            return;
        }
        let Some(call) = &mut self.scanner.call else { return };
        // A name that comes after the arguments is read when the call is complete.
        let Some(name) = call.name.clone().filter(|name| tools.know(name)) else { return };
        call.is_reported = true;
        let id = call.id.take();
        self.begin(ToolCall { id, name, arguments: String::new() }, tools);
    }

    fn end_written(&mut self, json: &str, tools: &Tools) {
        let Form::Json { needs, .. } = self.form else { return };
        let Some(written) = self.scanner.call.take().filter(|call| !call.is_reported) else {
            return;
        };
        let text = &json[written.start..self.seen];
        let calls = json::calls(text, needs);
        match calls.filter(|calls| calls.iter().all(|call| tools.know(&call.name))) {
            Some(calls) => calls.into_iter().for_each(|call| self.whole(call)),
            None if self.has_begun => self.segments.push(Segment::Text(text.to_owned())),
            None => self.is_refused = true,
        }
    }

    /// Takes the complete fields, and as much of the last value as is certain.
    fn take_tags(&mut self, matcher: &Matcher, text: &str, values: Values<'_>) {
        if let Some(json) = matcher.bracketed() {
            let before = matcher.fields_before(json.start, text);
            let head = || Some(ToolCall::new(before.first()?, ""));
            return self.take_arguments(&text[json], head, values.tools);
        }
        let fields = matcher.fields(text);
        let Some(name) = fields.first() else { return };
        if !self.has_begun && !self.is_refused {
            self.begin(ToolCall::new(name, ""), values.tools);
            self.num_fields = 1;
        }
        if !self.is_open {
            return;
        }
        let fields_per_value = if values.is_typed { 3 } else { 2 };
        while self.num_fields < fields.len() {
            let field = fields[self.num_fields];
            self.work += field.len() as u64;
            match (self.num_fields - 1) % fields_per_value {
                0 => {
                    let open = if self.num_fields == 1 { "{" } else { ", " };
                    let key = field.trim_ascii();
                    self.push(&format!("{open}{}: ", serde_json::Value::from(key)));
                    if !values.is_typed {
                        self.begin_value(&values.types(name, key));
                    }
                }
                1 if values.is_typed => self.begin_value(&Types::written(field)),
                _ => {
                    let types = match fields[self.num_fields - 1] {
                        written if values.is_typed => Types::written(written),
                        key => values.types(name, key.trim_ascii()),
                    };
                    self.end_value(field, &types, values.is_wrapped);
                }
            }
            self.num_fields += 1;
        }
        if let Some(value) = matcher.marked_text(text).filter(|_| self.is_in_text) {
            self.take_text(value, values.is_wrapped);
        }
    }

    fn begin_value(&mut self, types: &Types) {
        self.seen = 0;
        self.is_in_text = types.is_only_text();
        if self.is_in_text {
            self.push("\"");
        }
    }

    fn end_value(&mut self, value: &str, types: &Types, is_wrapped: bool) {
        if std::mem::replace(&mut self.is_in_text, false) {
            self.take_text(value, is_wrapped);
            self.push("\"");
            return;
        }
        let value = if is_wrapped { unwrapped(value) } else { value };
        self.push(&types.json(value));
    }

    /// Takes more of a text value. A line break at its end is held back, because it may be the one
    /// before the closing tag.
    fn take_text(&mut self, value: &str, is_wrapped: bool) {
        if is_wrapped && self.seen == 0 && value.starts_with('\n') {
            self.seen = 1;
        }
        let ends_line = is_wrapped && value.ends_with('\n');
        let end = (value.len() - usize::from(ends_line)).max(self.seen);
        self.work += (end - self.seen) as u64;
        let quoted = serde_json::Value::from(&value[self.seen..end]).to_string();
        self.push(&quoted[1..quoted.len() - 1]);
        self.seen = end;
    }

    /// Ends the call: all parameters have been read.
    fn end_tags(&mut self, matcher: &Matcher) {
        if matcher.bracketed().is_some() {
            return self.end();
        }
        let is_empty = self.num_fields == 1;
        self.push(if is_empty { "{}" } else { "}" });
        self.end();
    }
}

/// Settings for reading the values of parameters.
#[derive(Clone, Copy)]
struct Values<'a> {
    is_wrapped: bool,
    is_typed: bool,
    tools: &'a Tools,
}

impl Values<'_> {
    /// Returns the types that a tool's schema allows for a parameter.
    fn types(&self, tool: &str, key: &str) -> Types {
        let root = self.tools.parameters(tool);
        let schema = root.and_then(properties).and_then(|schemas| schemas.get(key));
        schema.zip(root).map(|(schema, root)| Types::of(schema, root)).unwrap_or_default()
    }
}

/// Returns a value without the line breaks that separate it from its tags.
fn unwrapped(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}
