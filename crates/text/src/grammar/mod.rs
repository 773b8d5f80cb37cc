//! Binds answers to a structure: a [`Constraint`] is compiled once, and a [`Matcher`] then says
//! before each token which ones may follow.
//!
//! ```text
//!  Constraint ──check, normalise──▶ GrammarCompiler::compile ──▶ CompiledGrammar ──start──▶ Matcher
//!                 schema, lark          (the vocabulary's trie)      (kept, shared)     (one a choice)
//! ```
//!
//! The grammars themselves are llguidance's. It passes over some of what a schema may say (unknown
//! keywords, formats of numbers, patterns beside properties of the same name), so every schema is
//! read here first: what would not be enforced is refused by name, with the place it stands at.
//! JSON is written compactly, with at most one blank after a comma or a colon, so that no sampler
//! can write blanks for ever. Members of an object come in the order of `properties`.

mod compiler;
mod formats;
mod lark;
mod matcher;
mod schema;
mod vocabulary;

pub use compiler::{CompiledGrammar, GrammarCompiler};
pub use matcher::Matcher;

use std::time::Duration;

use serde_json::Value;

/// Longest JSON schema, as compact JSON.
pub const SCHEMA_BYTES_MAX: usize = 256 << 10;
/// Deepest nesting of schemas in a schema.
pub const SCHEMA_DEPTH_MAX: usize = 64;
/// Maximum nesting of a schema after each `$ref` has been replaced by its target.
pub const SCHEMA_RESOLVED_DEPTH_MAX: usize = 512;
/// Longest grammar.
pub const GRAMMAR_BYTES_MAX: usize = 256 << 10;
/// Maximum number of rules and terminals of a grammar.
pub const GRAMMAR_DEFINITIONS_MAX: usize = 2048;
/// Maximum nesting of brackets in a grammar.
pub const GRAMMAR_DEPTH_MAX: usize = 64;
/// Maximum time for which a caller waits for a compilation.
pub const COMPILE_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest regular expression, also as a `pattern` of a schema.
pub const REGEX_BYTES_MAX: usize = 16 << 10;
/// Most alternatives of [`Constraint::Choice`].
pub const CHOICES_MAX: usize = 4096;
/// Longest text of all alternatives of [`Constraint::Choice`] together.
pub const CHOICES_BYTES_MAX: usize = 64 << 10;
/// Most tokens one [`Matcher`] follows.
pub const MATCHED_TOKENS_MAX: usize = 1 << 20;

/// Maximum time that a [`Matcher`] spends on one answer, beside [`MATCH_TIME_PER_TOKEN`]. Most grammars
/// take far less than a millisecond for a token; where a text can be read in many ways, the time grows with
/// the square of its length, or worse.
pub const MATCH_TIME: Duration = Duration::from_secs(1);
/// Time that a [`Matcher`] may spend on each token besides.
pub const MATCH_TIME_PER_TOKEN: Duration = Duration::from_millis(5);

/// What an answer has to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// JSON that the schema accepts.
    JsonSchema(Value),
    /// A text that the whole regular expression matches.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of a grammar in Lark's notation as llguidance reads it, with the start rule `start`.
    /// `%json {…}` stands for a JSON schema, `<|name|>` and `<[id]>` for special tokens.
    Lark(String),
}

/// Why an answer cannot be bound to a [`Constraint`], or no longer.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum GrammarError {
    /// It is larger than what is read.
    #[error("the {what} has {found} {unit}, more than the {limit} that are accepted")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        found: usize,
        /// The largest size.
        limit: usize,
        /// What is counted.
        unit: &'static str,
    },
    /// A part of a JSON schema that cannot be enforced.
    #[error("the schema's {keyword} at {path} cannot be enforced: {reason}")]
    Keyword {
        /// The keyword.
        keyword: String,
        /// Where it stands: a JSON pointer from the root `#`.
        path: String,
        /// What is the matter with it.
        reason: String,
    },
    /// There is nothing to choose from, or a text that is empty.
    #[error("the choices must be texts that are not empty, and at least one")]
    NoChoice,
    /// Another notation than the one that is read.
    #[error(
        "the grammar is written in GBNF or EBNF\n\
         hint: write it in Lark's notation: `start: \"yes\" | \"no\"` instead of `root ::= \"yes\" | \"no\"`"
    )]
    Notation,
    /// It cannot be compiled: not well formed, impossible to satisfy, or too complex.
    #[error("the {what} cannot be enforced: {reason}")]
    Compile {
        /// What was compiled.
        what: &'static str,
        /// What the compiler said.
        reason: String,
    },
    /// A grammar that was compiled became too complex for what has been written.
    #[error(
        "the answer's grammar cannot be followed any further: {reason}\n\
         hint: simplify the schema or grammar"
    )]
    Match {
        /// What the matcher said.
        reason: String,
    },
    /// The grammar takes too long to follow.
    #[error(
        "the answer's grammar takes too long to follow: {} ms for {num_tokens} tokens\n\
         hint: write it so that each text can be read in one way only: a list as `item+`, not as `list: list list | item`",
        .spent.as_millis()
    )]
    TooSlow {
        /// Time spent on the answer.
        spent: Duration,
        /// Tokens of the answer so far.
        num_tokens: usize,
    },
    /// A token that the mask did not allow.
    #[error("token {token} is not allowed by the grammar")]
    Forbidden {
        /// The token.
        token: crate::TokenId,
    },
}

/// Refuses what is too large to be read.
fn check_bytes(what: &'static str, found: usize, limit: usize) -> Result<(), GrammarError> {
    match found <= limit {
        true => Ok(()),
        false => Err(GrammarError::TooLarge { what, found, limit, unit: "bytes" }),
    }
}
