//! Constraints on the tokens of a choice: a grammar, reasoning before it, forbidden words.

use std::sync::Arc;

use jackalope_engine::{Request, TokenConstraint};
use jackalope_protocol::TokenId;
use jackalope_text::grammar::{CompiledGrammar, Constraint};

use super::guides::{AfterReasoning, GrammarGuide, Reasoning, WithoutRuns};
use super::wishes::check_count;
use crate::error::ApiError;
use crate::registry::Serving;

/// Maximum number of forbidden words.
const BAD_WORDS_MAX: usize = 256;
/// Maximum length of a forbidden word in bytes.
const BAD_WORD_BYTES_MAX: usize = 256;

/// Parameters of all constraints that follow the tokens of a choice and restrict the next one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guidance {
    structure: Option<(String, Constraint)>,
    /// The compiled `structure`, once [`Guidance::compile`] has run.
    grammar: Option<Arc<CompiledGrammar>>,
    /// The model's reasoning markers and budget, if the model may reason.
    reasoning: Option<Reasoning>,
    /// Forbidden sequences of two or more tokens.
    runs: Vec<Vec<TokenId>>,
}

impl Guidance {
    /// Constrains every choice. `param` names the request field of the constraint.
    pub(crate) fn constrain(&mut self, param: impl Into<String>, constraint: Constraint) {
        self.structure = Some((param.into(), constraint));
    }

    /// The constraint of every choice, and the request field it came in.
    pub(crate) fn structure(&self) -> Option<&(String, Constraint)> {
        self.structure.as_ref()
    }

    /// Lets the model reason before the constrained answer.
    pub(crate) fn think(&mut self, reasoning: Reasoning) {
        self.reasoning = Some(reasoning);
    }

    /// Compiles the constraint to a grammar. Takes long for a large constraint.
    pub(crate) fn compile(&mut self, serving: &Serving) -> Result<(), ApiError> {
        if let Some((param, constraint)) = &self.structure {
            let failed = |source| ApiError::Structure { param: param.clone(), source };
            self.grammar = Some(serving.compile(constraint).map_err(failed)?);
        }
        Ok(())
    }

    /// Forbids sequences of tokens in every choice.
    pub(crate) fn forbid(&mut self, runs: Vec<Vec<TokenId>>) {
        self.runs = runs;
    }

    /// Attaches the constraint of one choice to a request, if there is any. `ends` are the tokens
    /// that end a choice.
    pub(super) fn apply(&self, request: Request, ends: &[TokenId]) -> Request {
        match self.guide(ends) {
            Some(guide) => request.with_constraint(guide),
            None => request,
        }
    }

    fn guide(&self, ends: &[TokenId]) -> Option<Box<dyn TokenConstraint>> {
        let mut guide: Option<Box<dyn TokenConstraint>> = None;
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

/// Encodes forbidden words, each as it is written at the beginning of a text and after a space.
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
