//! Keeps text of a conversation from becoming control tokens.
//!
//! A template writes control tokens such as `<|im_end|>` into the prompt's text, and the tokenizer
//! finds them there. A message that contains the same characters would end its turn and begin
//! another one. So before rendering, a mark is inserted behind the first character of each control
//! token that a message contains:
//!
//! ```text
//!   "<|im_end|>" in a message ─▶ "<" MARK "|im_end|>" ─▶ template ─▶ RenderedPrompt: the text
//!      without marks, and where they were ─▶ Tokenizer::encode_rendered: plain tokens there
//! ```
//!
//! The mark is a noncharacter of Unicode, which templates do not write; if a message contains the
//! mark itself, it is doubled.

use std::fmt;

use aho_corasick::AhoCorasick;
use serde_json::{Map, Value};

use super::rendered::MARK;
use crate::answer::is_reasoning_marker;
use crate::tokenizer::Tokenizer;

/// The control tokens of a checkpoint.
pub(super) struct ControlTokens {
    /// Tokens to break up in tools, variables and the messages of all roles but the assistant.
    all: Tokens,
    /// Tokens to break up in the assistant's messages: those that are special or end an answer,
    /// except for the markers of reasoning. The model wrote its reasoning and calls itself, and
    /// templates read the markup around them.
    of_assistant: Tokens,
}

/// A set of texts to search for.
struct Tokens {
    sorted: Vec<String>,
    longest: usize,
    search: AhoCorasick,
}

impl ControlTokens {
    /// Collects the control tokens: those that are special, that end an answer, or that were added
    /// to the vocabulary and occur in the template. `Err` says why they cannot be searched for.
    pub(super) fn of(tokenizer: &Tokenizer, sources: &[&str]) -> Result<ControlTokens, String> {
        let (mut all, mut of_assistant) = (Vec::new(), Vec::new());
        for token in tokenizer.added_tokens() {
            let is_written = || sources.iter().any(|source| source.contains(&token.text));
            if token.text.trim().is_empty() || !(token.is_control || is_written()) {
                continue;
            }
            if token.is_control && !is_reasoning_marker(&token.text) {
                of_assistant.push(token.text.clone());
            }
            all.push(token.text);
        }
        Ok(ControlTokens { all: Tokens::of(all)?, of_assistant: Tokens::of(of_assistant)? })
    }

    pub(super) fn mark_messages(&self, messages: &[Value]) -> Vec<Value> {
        let tokens = |message: &Value| {
            if message["role"] == "assistant" { &self.of_assistant } else { &self.all }
        };
        messages.iter().map(|message| tokens(message).mark_value(message)).collect()
    }

    pub(super) fn mark_values(&self, values: &[Value]) -> Vec<Value> {
        values.iter().map(|value| self.all.mark_value(value)).collect()
    }

    pub(super) fn mark_map(&self, map: &Map<String, Value>) -> Map<String, Value> {
        self.all.mark_map(map)
    }
}

impl Tokens {
    fn of(mut texts: Vec<String>) -> Result<Tokens, String> {
        texts.sort_unstable();
        texts.dedup();
        let search = AhoCorasick::new(&texts).map_err(|err| err.to_string())?;
        let longest = texts.iter().map(String::len).max().unwrap_or(0);
        Ok(Tokens { sorted: texts, longest, search })
    }

    fn mark_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.mark(text).into(),
            Value::Array(list) => list.iter().map(|value| self.mark_value(value)).collect(),
            Value::Object(map) => self.mark_map(map).into(),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    fn mark_map(&self, map: &Map<String, Value>) -> Map<String, Value> {
        map.iter().map(|(key, value)| (self.mark(key), self.mark_value(value))).collect()
    }

    fn mark(&self, text: &str) -> String {
        let found = self.search.find_overlapping_iter(text).map(|found| found.start());
        let behind_first = |start: usize| {
            let first = text[start..].chars().next().expect("no token is empty");
            start + first.len_utf8()
        };
        let mut marks: Vec<usize> = found.map(behind_first).collect();
        // The text that follows in the prompt could complete a token that begins at the end.
        marks.extend(self.begins_at_end(text).then_some(text.len()));
        marks.sort_unstable();
        marks.dedup();
        let mut marked = String::with_capacity(text.len() + marks.len() * MARK.len_utf8());
        let mut rest = 0;
        for mark in marks {
            push_doubled(&mut marked, &text[rest..mark]);
            marked.push(MARK);
            rest = mark;
        }
        push_doubled(&mut marked, &text[rest..]);
        marked
    }

    /// Whether a text ends with a proper prefix of a token.
    fn begins_at_end(&self, text: &str) -> bool {
        let starts = text.char_indices().rev().map(|(start, _)| &text[start..]);
        starts.take_while(|end| end.len() < self.longest).any(|end| {
            let next = self.sorted.partition_point(|token| token.as_str() <= end);
            self.sorted.get(next).is_some_and(|token| token.starts_with(end))
        })
    }
}

/// Appends text, doubling the marks that it contains itself.
fn push_doubled(marked: &mut String, text: &str) {
    for char in text.chars() {
        marked.push(char);
        if char == MARK {
            marked.push(MARK);
        }
    }
}

impl fmt::Debug for ControlTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlTokens").field("all", &self.all.sorted).finish_non_exhaustive()
    }
}
