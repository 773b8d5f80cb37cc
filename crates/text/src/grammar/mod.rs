//! Constrained decoding: a [`Constraint`] is compiled once, and a [`Matcher`] then computes before
//! each token which ones may follow.
//!
//! ```text
//!  Constraint ──check, normalise──▶ GrammarCompiler::compile ──▶ CompiledGrammar ──start──▶ Matcher
//!                 schema, lark          (the vocabulary's trie)      (kept, shared)     (one per choice)
//! ```
//!
//! The grammar engine is llguidance. It ignores some parts of a schema (unknown keywords, formats
//! of numbers, patterns next to properties of the same name), so every schema is read here first: a
//! part that would not be enforced is refused, with its keyword and its place. JSON is written
//! compactly, with at most one space after a comma or a colon, so that no model can generate white
//! space for ever. Members of an object come in the order of `properties`.

mod compiler;
mod counts;
mod formats;
mod lark;
mod matcher;
mod schema;
mod vocabulary;

pub use compiler::{CompiledGrammar, GrammarCompiler, check};
pub use matcher::Matcher;

use std::time::Duration;

use jackalope_protocol::counted;
use serde_json::Value;

/// Maximum length of a JSON schema in bytes, as compact JSON.
pub const SCHEMA_BYTES_MAX: usize = 256 << 10;
/// Maximum nesting of schemas in a schema.
pub const SCHEMA_DEPTH_MAX: usize = 64;
/// Maximum nesting of a schema after each `$ref` has been replaced by its target.
pub const SCHEMA_RESOLVED_DEPTH_MAX: usize = 512;
/// Maximum length of a grammar in bytes.
pub const GRAMMAR_BYTES_MAX: usize = 256 << 10;
/// Maximum number of rules and terminals of a grammar.
pub const GRAMMAR_DEFINITIONS_MAX: usize = 2048;
/// Maximum nesting of brackets in a grammar.
pub const GRAMMAR_DEPTH_MAX: usize = 64;
/// Maximum time for which a caller waits for a compilation.
pub const COMPILE_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum length of a regular expression in bytes, also as a `pattern` of a schema.
pub const REGEX_BYTES_MAX: usize = 16 << 10;
/// Maximum number of alternatives of [`Constraint::Choice`].
pub const CHOICES_MAX: usize = 4096;
/// Maximum length in bytes of all alternatives of [`Constraint::Choice`] together.
pub const CHOICES_BYTES_MAX: usize = 64 << 10;
/// Maximum number of tokens that one [`Matcher`] follows.
pub const MATCHED_TOKENS_MAX: usize = 1 << 20;

/// Maximum time that a [`Matcher`] spends on one answer, in addition to [`MATCH_TIME_PER_TOKEN`].
/// Most grammars take far less than a millisecond for a token; if a text can be parsed in many
/// ways, the time grows with the square of its length, or worse.
pub const MATCH_TIME: Duration = Duration::from_secs(1);
/// Time that a [`Matcher`] may additionally spend for each token of the answer.
pub const MATCH_TIME_PER_TOKEN: Duration = Duration::from_millis(5);

/// A constraint on the text of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// JSON that the schema accepts.
    JsonSchema(Value),
    /// A text that the regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of a grammar in llguidance's dialect of Lark, with the start rule `start`. In it,
    /// `%json {…}` stands for a JSON schema, `<|name|>` and `<[id]>` for special tokens.
    Lark(String),
}

/// Reason why a [`Constraint`] cannot be enforced, or no longer.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum GrammarError {
    /// The constraint is larger than the limit.
    #[error("the {what} has {found} {unit}, more than the {limit} that are accepted")]
    TooLarge {
        /// The part that is too large.
        what: &'static str,
        /// Size of the part.
        found: usize,
        /// Maximum size.
        limit: usize,
        /// Unit of the sizes.
        unit: &'static str,
    },
    /// A part of a JSON schema that cannot be enforced.
    #[error("the schema's {keyword} at {path} cannot be enforced: {reason}")]
    Keyword {
        /// Name of the keyword.
        keyword: String,
        /// Place of the keyword: a JSON pointer from the root `#`.
        path: String,
        /// Reason why it cannot be enforced.
        reason: String,
    },
    /// The list of choices is empty, or one of them is an empty text.
    #[error("choices must be a non-empty list of non-empty strings")]
    NoChoice,
    /// The grammar is written in a notation other than Lark.
    #[error(
        "the grammar is written in GBNF or EBNF\n\
         hint: write it in Lark's notation: `start: \"yes\" | \"no\"` instead of `root ::= \"yes\" | \"no\"`"
    )]
    Notation,
    /// The constraint cannot be compiled: malformed, impossible to satisfy, or too complex.
    #[error("the {what} cannot be enforced: {reason}")]
    Compile {
        /// Kind of the constraint.
        what: &'static str,
        /// Message of the compiler.
        reason: String,
    },
    /// Too many other constraints are being compiled.
    #[error("the {what} could not be compiled within {} s, because others are being compiled", COMPILE_TIME_MAX.as_secs())]
    Busy {
        /// Kind of the constraint.
        what: &'static str,
    },
    /// A compiled grammar became too complex to follow for the text of this answer.
    #[error(
        "the answer's grammar cannot be followed any further: {reason}\n\
         hint: simplify the schema or grammar"
    )]
    Match {
        /// Message of the matcher.
        reason: String,
    },
    /// The grammar takes too long to follow.
    #[error(
        "the answer's grammar takes too long to follow: {} ms for {}\n\
         hint: write it so that each text can be read in one way only: a list as `item+`, not as `list: list list | item`",
        .spent.as_millis(),
        counted(.num_tokens, "token")
    )]
    TooSlow {
        /// Time spent on the answer so far.
        spent: Duration,
        /// Number of tokens of the answer so far.
        num_tokens: usize,
    },
    /// The token is not allowed by the mask.
    #[error("token {token} is not allowed by the grammar")]
    Forbidden {
        /// Id of the token.
        token: crate::TokenId,
    },
}

/// Fails if a part is larger than its limit.
fn check_bytes(what: &'static str, found: usize, limit: usize) -> Result<(), GrammarError> {
    if found <= limit {
        Ok(())
    } else {
        Err(GrammarError::TooLarge { what, found, limit, unit: "bytes" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_is_singular_in_messages() {
        let message = |num_tokens| {
            let slow = GrammarError::TooSlow { spent: Duration::from_millis(40), num_tokens };
            slow.to_string().lines().next().unwrap_or_default().to_owned()
        };
        assert_eq!(message(1), "the answer's grammar takes too long to follow: 40 ms for 1 token");
        assert_eq!(message(2), "the answer's grammar takes too long to follow: 40 ms for 2 tokens");
    }
}
