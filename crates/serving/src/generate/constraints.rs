//! Constraints on the tokens of a choice: a grammar, reasoning before it, forbidden words.

use std::sync::Arc;

use jackalope_engine::{Request, TokenConstraint};
use jackalope_protocol::TokenId;
use jackalope_text::grammar::{CompiledGrammar, Constraint};
use serde_json::Value;

use super::checks::check_count;
use super::token_constraints::{AfterReasoning, GrammarConstraint, Reasoning, WithoutRuns};
use crate::error::ApiError;
use crate::state::Serving;

/// Maximum number of forbidden words.
const BAD_WORDS_MAX: usize = 256;
/// Maximum length of a forbidden word in bytes.
const BAD_WORD_BYTES_MAX: usize = 256;

/// The structure that an answer has, and the request field that asks for it.
#[derive(Clone, Debug)]
pub struct StructuredOutput {
    /// Name of the field, for errors.
    pub param: String,
    /// Constraint on the answer.
    pub constraint: Constraint,
}

impl StructuredOutput {
    /// Creates the structure that the field `param` asks for.
    pub fn new(param: impl Into<String>, constraint: Constraint) -> StructuredOutput {
        StructuredOutput { param: param.into(), constraint }
    }

    /// Reads a JSON schema, or the text of one, that came in the field `param`.
    pub fn json_schema(param: &str, value: &Value) -> Result<StructuredOutput, ApiError> {
        let wrong = |reason: String| ApiError::WrongType { param: param.to_owned(), reason };
        let schema = match value {
            Value::String(text) => {
                serde_json::from_str(text).map_err(|err| wrong(err.to_string()))?
            }
            schema => schema.clone(),
        };
        if !schema.is_object() && !schema.is_boolean() {
            return Err(wrong("a JSON schema is an object".to_owned()));
        }
        Ok(StructuredOutput::new(param, Constraint::JsonSchema(schema)))
    }
}

/// All constraints that follow the tokens of a choice and restrict the next one.
#[derive(Clone, Debug)]
pub(super) struct TokenConstraints {
    structure: Option<StructuredOutput>,
    /// The compiled `structure`, once [`TokenConstraints::compile`] has run.
    grammar: Option<Arc<CompiledGrammar>>,
    /// The model's reasoning markers and budget, if the model may reason.
    reasoning: Option<Reasoning>,
    /// Forbidden sequences of two or more tokens.
    forbidden_runs: Vec<Vec<TokenId>>,
}

impl TokenConstraints {
    pub(super) fn new(
        structure: Option<StructuredOutput>,
        forbidden_runs: Vec<Vec<TokenId>>,
    ) -> TokenConstraints {
        TokenConstraints { structure, grammar: None, reasoning: None, forbidden_runs }
    }

    /// Constrains every choice to this structure instead of the request's.
    pub(super) fn constrain(&mut self, structure: StructuredOutput) {
        self.structure = Some(structure);
    }

    /// The structure of every choice.
    pub(super) fn structure(&self) -> Option<&StructuredOutput> {
        self.structure.as_ref()
    }

    /// Lets the model reason before the constrained answer.
    pub(super) fn reason_first(&mut self, reasoning: Reasoning) {
        self.reasoning = Some(reasoning);
    }

    /// Compiles the structure to a grammar. Takes long for a large one.
    pub(super) fn compile(&mut self, serving: &Serving) -> Result<(), ApiError> {
        if let Some(StructuredOutput { param, constraint }) = &self.structure {
            let failed = |source| ApiError::Structure { param: param.clone(), source };
            self.grammar = Some(serving.compile(constraint).map_err(failed)?);
        }
        Ok(())
    }

    /// Attaches the constraint of one choice to a request, if there is any. `ends` are the tokens
    /// that end a choice.
    pub(super) fn apply(&self, request: Request, ends: &[TokenId]) -> Request {
        match self.constraint(ends) {
            Some(constraint) => request.with_constraint(constraint),
            None => request,
        }
    }

    fn constraint(&self, ends: &[TokenId]) -> Option<Box<dyn TokenConstraint>> {
        let mut constraint: Option<Box<dyn TokenConstraint>> = None;
        if let Some(grammar) = &self.grammar {
            constraint = Some(Box::new(GrammarConstraint::new(grammar.start())));
        }
        if let Some(reasoning) = &self.reasoning
            && (constraint.is_some() || reasoning.budget_tokens.is_some())
        {
            constraint = Some(Box::new(AfterReasoning::new(reasoning.clone(), constraint)));
        }
        if !self.forbidden_runs.is_empty() {
            constraint = Some(Box::new(WithoutRuns::new(
                self.forbidden_runs.clone(),
                ends.to_vec(),
                constraint,
            )));
        }
        constraint
    }
}

/// Encodes forbidden words, each as it is written at the beginning of a text and after a space.
pub(super) fn bad_runs(words: &[String], serving: &Serving) -> Result<Vec<Vec<TokenId>>, ApiError> {
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
            let run = serving.text.tokenizer.encode(&written, false);
            let run = run.map_err(|source| ApiError::Text { param: param.clone(), source })?;
            if !run.is_empty() && !runs.contains(&run) {
                runs.push(run);
            }
        }
    }
    Ok(runs)
}
