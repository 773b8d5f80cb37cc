//! Compiles a constraint into the state from which matchers start.

use std::fmt;
use std::fmt::Write as _;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::{ParserFactory, regex_to_lark};
use serde_json::json;

use super::matcher::{Matcher, first_line};
use super::schema::Leniency;
use super::vocabulary::Vocabulary;
use super::{
    CHOICES_BYTES_MAX, CHOICES_MAX, COMPILE_TIME_MAX, Constraint, GRAMMAR_BYTES_MAX, GrammarError,
    REGEX_BYTES_MAX, check_bytes, counts, lark, schema,
};
use crate::Tokenizer;

/// Reported for a `oneOf` whose alternatives the compiler cannot prove to be exclusive.
const OVERLAPPING: &str = "the alternatives of oneOf must exclude each other, by their types or by a \
    required member with different constants; use anyOf otherwise";

/// Reported for an anchor inside of a regular expression.
const ANCHORS: &str = "the anchors ^ and $ of a regular expression are supported only at its start and \
    end, and word boundaries and lookarounds nowhere";

/// Limits of one grammar. A unit of fuel is a step of building automata: about 50 of them take a
/// microsecond while compiling, 14 while a mask is computed.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 2_000_000,
        step_lexer_fuel: 400_000,
        step_max_items: 100_000,
        // One state takes one or two kilobytes.
        max_lexer_states: 50_000,
        max_grammar_size: 250_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Stack size of a compiling thread. The compiler recurses over references and nesting, whose depth
/// is bounded by [`super::SCHEMA_DEPTH_MAX`] and the other limits; a level takes up to 40 KB in
/// unoptimised builds, by measurement. Unused stack takes no memory.
const COMPILE_STACK_BYTES: usize = 256 << 20;
/// Maximum number of concurrent compilations; further callers wait.
const COMPILES_MAX: usize = 4;

/// Compiles constraints for one tokenizer. Holds the trie of its vocabulary, so create only one.
///
/// Each compilation runs on a thread of its own with a large stack, so that no input can overflow
/// the stack of a worker thread. The caller waits for at most [`COMPILE_TIME_MAX`].
pub struct GrammarCompiler {
    factory: Arc<ParserFactory>,
    slots: Arc<CompileSlots>,
}

/// Counts the compilations in progress.
#[derive(Debug, Default)]
struct CompileSlots {
    num_taken: Mutex<usize>,
    freed: Condvar,
}

/// One of [`COMPILES_MAX`] slots; freed when dropped.
struct CompileSlot(Arc<CompileSlots>);

impl CompileSlots {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.num_taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slot until `deadline`; `None` if it passes.
    fn take(slots: &Arc<CompileSlots>, deadline: Instant) -> Option<CompileSlot> {
        let timeout = deadline.saturating_duration_since(Instant::now());
        let is_full = |num_taken: &mut usize| *num_taken == COMPILES_MAX;
        let waited = slots.freed.wait_timeout_while(slots.lock(), timeout, is_full);
        let (mut num_taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && *num_taken == COMPILES_MAX {
            return None;
        }
        *num_taken += 1;
        Some(CompileSlot(Arc::clone(slots)))
    }
}

impl Drop for CompileSlot {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
        self.0.freed.notify_one();
    }
}

impl GrammarCompiler {
    /// Builds the trie of the vocabulary, which takes some tenths of a second for large ones.
    ///
    /// # Errors
    /// Fails if the vocabulary is malformed.
    pub fn new(tokenizer: &Tokenizer) -> Result<GrammarCompiler, GrammarError> {
        let factory = ParserFactory::new_simple(&Vocabulary::of(tokenizer));
        let mut factory = factory.map_err(|err| GrammarError::Compile {
            what: "vocabulary",
            reason: first_line(&err.to_string()),
        })?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(GrammarCompiler { factory: Arc::new(factory), slots: Arc::default() })
    }

    /// Compiles a constraint. Blocks for at most [`COMPILE_TIME_MAX`].
    ///
    /// # Errors
    /// Fails if the constraint is too large, too deep, too complex or malformed, or contains
    /// something that cannot be enforced; with [`GrammarError::Busy`] if others are compiled for so
    /// long.
    pub fn compile(&self, constraint: &Constraint) -> Result<CompiledGrammar, GrammarError> {
        let deadline = Instant::now() + COMPILE_TIME_MAX;
        let (what, grammar) = grammar(constraint)?;
        let too_long = || GrammarError::Compile {
            what,
            reason: format!("compiling it takes more than {} s", COMPILE_TIME_MAX.as_secs()),
        };
        let slot = CompileSlots::take(&self.slots, deadline).ok_or(GrammarError::Busy { what })?;
        let factory = Arc::clone(&self.factory);
        let (sender, receiver) = mpsc::sync_channel(1);
        let work = move || {
            let compiled = compile(&factory, what, grammar);
            drop(slot);
            // Fails if the caller has timed out.
            let _ = sender.send(compiled);
        };
        let thread = thread::Builder::new().name("grammar".to_owned());
        let spawned = thread.stack_size(COMPILE_STACK_BYTES).spawn(work);
        spawned.map_err(|err| GrammarError::Compile { what, reason: err.to_string() })?;
        let left = deadline.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(left.max(Duration::from_millis(1))) {
            Ok(compiled) => compiled,
            Err(RecvTimeoutError::Timeout) => Err(too_long()),
            Err(RecvTimeoutError::Disconnected) => {
                let reason = "its compiler panicked".to_owned();
                Err(GrammarError::Compile { what, reason })
            }
        }
    }
}

/// Compiles a grammar on the calling thread. `what` is the kind of constraint, for errors.
fn compile(
    factory: &ParserFactory,
    what: &'static str,
    grammar: TopLevelGrammar,
) -> Result<CompiledGrammar, GrammarError> {
    let refused = |reason: &str| {
        let reason = match reason {
            it if it.contains("NoExtensionBias") => "it refers to itself without an end",
            it if it.contains("lookarounds not supported") => ANCHORS,
            it if it.contains("oneOf constraints are not supported") => OVERLAPPING,
            it => it,
        };
        GrammarError::Compile { what, reason: first_line(reason) }
    };
    let parser = factory.create_parser(grammar).map_err(|err| {
        // The innermost cause names the part that cannot be enforced.
        let causes: Vec<String> = err.chain().map(|cause| first_line(&cause.to_string())).collect();
        refused(&causes.join(": "))
    })?;
    let mut inner = llguidance::Matcher::new(Ok(parser));
    if let Some(warning) = inner.grammar_warnings().first() {
        return Err(refused(warning));
    }
    // Precomputes the mask of the first token for all matchers.
    inner.compute_mask_or_eos().map_err(|err| refused(&err.to_string()))?;
    Ok(CompiledGrammar { inner })
}

/// A compiled constraint, from which matchers start.
pub struct CompiledGrammar {
    inner: llguidance::Matcher,
}

impl CompiledGrammar {
    /// Returns a matcher before the first token of an answer. Matchers share no mutable state.
    pub fn start(&self) -> Matcher {
        Matcher::new(self.inner.deep_clone())
    }
}

/// Checks a constraint without compiling it.
///
/// # Errors
/// Fails if the constraint is too large, too deep or malformed, or contains something that cannot be
/// enforced; what only the compiler finds is not found here.
pub fn check(constraint: &Constraint) -> Result<(), GrammarError> {
    grammar(constraint).map(drop)
}

fn grammar(constraint: &Constraint) -> Result<(&'static str, TopLevelGrammar), GrammarError> {
    match constraint {
        Constraint::JsonObject => {
            let schema = schema::prepare(&json!({"type": "object"}), Leniency::None)?;
            Ok(("schema", TopLevelGrammar::from_json_schema(schema)))
        }
        Constraint::JsonSchema(schema) => Ok((
            "schema",
            TopLevelGrammar::from_json_schema(schema::prepare(schema, Leniency::None)?),
        )),
        Constraint::Regex(regex) => {
            check_bytes("regular expression", regex.len(), REGEX_BYTES_MAX)?;
            let what = "regular expression";
            counts::check(regex).map_err(|reason| GrammarError::Compile { what, reason })?;
            Ok((what, from_regex(unanchored(regex))))
        }
        Constraint::Choice(choices) => Ok(("choice", from_regex(&choice(choices)?))),
        Constraint::Lark(grammar) => {
            check_bytes("grammar", grammar.len(), GRAMMAR_BYTES_MAX)?;
            Ok(("grammar", TopLevelGrammar::from_lark(lark::prepare(grammar)?)))
        }
    }
}

/// Returns a grammar of the texts that `regex` matches. Its `\d` and `\w` match ASCII only, as in
/// JSON schemas.
fn from_regex(regex: &str) -> TopLevelGrammar {
    TopLevelGrammar::from_lark(format!("start: /{}/", regex_to_lark(regex, "dw")))
}

/// Removes the anchors at both ends, which are redundant: the whole text has to match.
fn unanchored(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        // After an odd number of backslashes the dollar sign is a literal character.
        Some(rest) if (rest.len() - rest.trim_end_matches('\\').len()).is_multiple_of(2) => rest,
        Some(_) | None => regex,
    }
}

fn choice(choices: &[String]) -> Result<String, GrammarError> {
    if choices.is_empty() || choices.iter().any(String::is_empty) {
        return Err(GrammarError::NoChoice);
    }
    if CHOICES_MAX < choices.len() {
        let (found, limit) = (choices.len(), CHOICES_MAX);
        return Err(GrammarError::TooLarge { what: "choice", found, limit, unit: "texts" });
    }
    let found = choices.iter().map(String::len).sum();
    check_bytes("choice", found, CHOICES_BYTES_MAX)?;
    let choices: Vec<String> = choices.iter().map(|choice| escape(choice)).collect();
    Ok(format!("(?:{})", choices.join("|")))
}

/// Returns a regular expression that matches exactly `text`.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_alphanumeric() {
            escaped.push(character);
        } else {
            write!(escaped, "\\x{{{:X}}}", u32::from(character)).expect("a string takes all text");
        }
    }
    escaped
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

impl fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledGrammar").finish_non_exhaustive()
    }
}
