//! A cache of compiled grammars.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use jackalope_text::grammar::{CompiledGrammar, Constraint, GrammarError};
use sha2::{Digest, Sha256};

use crate::model::RunningModel;
use crate::prompt_workers::without_slot;

/// Maximum number of cached grammars. One takes some hundred kilobytes; a large schema, some
/// megabytes.
const GRAMMARS_KEPT_MAX: usize = 64;

/// The most recently used grammars.
#[derive(Debug, Default)]
pub(crate) struct Grammars {
    /// The grammars with their keys, the most recently used one first.
    kept: Mutex<VecDeque<(Key, Arc<CompiledGrammar>)>>,
}

type Key = [u8; 32];

impl Grammars {
    /// Compiles a constraint, or returns it from the cache. Takes long for large constraints, so it
    /// must not run on a thread that serves streams. The request has no slot of prompts meanwhile.
    pub(crate) fn compile(
        &self,
        constraint: &Constraint,
        model: &RunningModel,
    ) -> Result<Arc<CompiledGrammar>, GrammarError> {
        let key = key(constraint, model);
        if let Some(grammar) = self.find(&key) {
            return Ok(grammar);
        }
        let compile = || model.text.grammar_compiler()?.compile(constraint);
        let grammar = Arc::new(without_slot(compile)?);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_front((key, Arc::clone(&grammar)));
        kept.truncate(GRAMMARS_KEPT_MAX);
        Ok(grammar)
    }

    fn find(&self, wanted: &Key) -> Option<Arc<CompiledGrammar>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let idx = kept.iter().position(|(key, _)| key == wanted)?;
        let entry = kept.remove(idx)?;
        let grammar = Arc::clone(&entry.1);
        kept.push_front(entry);
        Some(grammar)
    }
}

/// Hashes the model, the kind and the content of a constraint, so that no two grammars share a key.
fn key(constraint: &Constraint, model: &RunningModel) -> Key {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    add(&model.id);
    add(&model.created.to_string());
    match constraint {
        Constraint::JsonObject => add("object"),
        Constraint::JsonSchema(schema) => ["schema", &schema.to_string()].into_iter().for_each(add),
        Constraint::Regex(regex) => ["regex", regex].into_iter().for_each(add),
        Constraint::Lark(grammar) => ["lark", grammar].into_iter().for_each(add),
        Constraint::Choice(choices) => {
            add("choice");
            choices.iter().for_each(|choice| add(choice));
        }
    }
    hash.finalize().into()
}
