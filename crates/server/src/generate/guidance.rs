//! Everything that follows the tokens of a choice: a grammar, a thought before it, words that must not
//! occur.

use std::sync::Arc;

use jackalope_engine::{Guide, Request};
use jackalope_protocol::TokenId;
use jackalope_text::grammar::{CompiledGrammar, Constraint};

use super::guides::{AfterReasoning, GrammarGuide, Reasoning, WithoutRuns};
use super::wishes::check_count;
use crate::error::ApiError;
use crate::registry::Serving;

/// Most words that must not occur.
const BAD_WORDS_MAX: usize = 256;
/// Longest of them.
const BAD_WORD_BYTES_MAX: usize = 256;

/// Everything that follows the tokens of a choice to bound the next one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guidance {
    structure: Option<(String, Constraint)>,
    /// Of the structure, once it is compiled.
    grammar: Option<Arc<CompiledGrammar>>,
    /// How the model thinks, if it may do so before the grammar, or within a budget.
    reasoning: Option<Reasoning>,
    /// Runs of two tokens or more that must not occur.
    runs: Vec<Vec<TokenId>>,
}

impl Guidance {
    /// Holds every choice to a constraint that came in the field `param`.
    pub(crate) fn constrain(&mut self, param: impl Into<String>, constraint: Constraint) {
        self.structure = Some((param.into(), constraint));
    }

    /// What every choice is held to, and the field that it came in.
    pub(crate) fn structure(&self) -> Option<&(String, Constraint)> {
        self.structure.as_ref()
    }

    /// Lets the model think first.
    pub(crate) fn think(&mut self, reasoning: Reasoning) {
        self.reasoning = Some(reasoning);
    }

    /// Compiles the structure. Takes long for a large one.
    pub(crate) fn compile(&mut self, serving: &Serving) -> Result<(), ApiError> {
        if let Some((param, constraint)) = &self.structure {
            let failed = |source| ApiError::Structure { param: param.clone(), source };
            self.grammar = Some(serving.compile(constraint).map_err(failed)?);
        }
        Ok(())
    }

    /// Keeps runs of tokens out of every choice.
    pub(crate) fn forbid(&mut self, runs: Vec<Vec<TokenId>>) {
        self.runs = runs;
    }

    /// The request with the guide of one choice, if anything follows its tokens. `ends` are the tokens
    /// that end a choice.
    pub(super) fn apply(&self, request: Request, ends: &[TokenId]) -> Request {
        match self.guide(ends) {
            Some(guide) => request.with_guide(guide),
            None => request,
        }
    }

    fn guide(&self, ends: &[TokenId]) -> Option<Box<dyn Guide>> {
        let mut guide: Option<Box<dyn Guide>> = None;
        if let Some(grammar) = &self.grammar {
            guide = Some(Box::new(GrammarGuide::new(grammar.start())));
        }
        if let Some(reasoning) = &self.reasoning
            && (guide.is_some() || reasoning.budget_tokens.is_some())
        {
            guide = Some(Box::new(AfterReasoning::new(reasoning.clone(), guide)));
        }
        if !self.runs.is_empty() {
            guide = Some(Box::new(WithoutRuns::new(self.runs.clone(), ends.to_vec(), guide)));
        }
        guide
    }
}

/// The tokens of words that must not occur, as they are written at the beginning of a text and after
/// a blank.
pub(crate) fn bad_runs(words: &[String], serving: &Serving) -> Result<Vec<Vec<TokenId>>, ApiError> {
    check_count("bad_words", words.len(), BAD_WORDS_MAX)?;
    let mut runs = Vec::new();
    for (idx, word) in words.iter().enumerate() {
        let param = format!("bad_words[{idx}]");
        let trimmed = word.trim_start();
        if trimmed.is_empty() {
            return Err(ApiError::Empty { param });
        }
        if BAD_WORD_BYTES_MAX < word.len() {
            let expected = format!("at most {BAD_WORD_BYTES_MAX} bytes long");
            let found = format!("{} bytes long", word.len());
            return Err(ApiError::out_of_range(param, &found, expected));
        }
        for written in [trimmed.to_owned(), format!(" {trimmed}")] {
            let run = serving.text().tokenizer.encode(&written, false);
            let run = run.map_err(|source| ApiError::Text { param: param.clone(), source })?;
            if !run.is_empty() && !runs.contains(&run) {
                runs.push(run);
            }
        }
    }
    Ok(runs)
}
