//! Answers of `POST /v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use jackalope_protocol::{Logprob, TokenId};
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{
    AnswerSummary, AnswerWriter, Delta, Finish, Job, PromptJob, ScoredToken,
};
use jackalope_serving::ids::{new_id, unix_seconds};
use jackalope_serving::sse::{self, push_event};
use jackalope_serving::state::Serving;
use jackalope_text::{Detokenizer, Tokenizer};
use serde::Serialize;
use utoipa::ToSchema;

use super::error::push_error;
use super::logprobs::CompletionLogprobs;
use super::usage::{Performance, SYSTEM_FINGERPRINT, Timing, Usage};

/// The text that `echo` puts before the choices of a prompt.
#[derive(Debug)]
pub(super) struct Echo {
    text: String,
    num_chars: usize,
    /// For each token of the prompt, the number of characters of `text` before it.
    starts_chars: Vec<usize>,
}

impl Echo {
    /// Computes the echo of a prompt. `text` is the prompt as the client sent it, if it came as
    /// text.
    pub(super) fn new(tokens: &[TokenId], text: Option<&str>, tokenizer: &Arc<Tokenizer>) -> Echo {
        let bos = tokenizer.bos_token_id();
        let is_written =
            |text: &str| tokenizer.bos_token().is_some_and(|bos| text.starts_with(bos));
        let added_bos = bos.filter(|_| text.is_some_and(|text| !is_written(text)));
        let mut detokenizer = Detokenizer::with_special_tokens(Arc::clone(tokenizer));
        let mut decoded = String::new();
        let mut starts_chars = Vec::with_capacity(tokens.len());
        let mut num_chars = 0;
        for (idx, &token) in tokens.iter().enumerate() {
            starts_chars.push(num_chars);
            if idx > 0 || Some(token) != added_bos {
                let piece = detokenizer.push(token);
                num_chars += piece.chars().count();
                decoded.push_str(&piece);
            }
        }
        let text = text.map_or(decoded, str::to_owned);
        let num_chars = text.chars().count();
        // The text decoded by a normalising tokenizer may differ from the text that was sent.
        starts_chars.iter_mut().for_each(|start| *start = num_chars.min(*start));
        Echo { text, num_chars, starts_chars }
    }
}

/// Options of a request for the form of its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompletionOptions {
    /// Whether log-probabilities are returned; they may be computed for `best_of` alone.
    pub(super) has_logprobs: bool,
    /// Whether a stream ends with an event that has the usage.
    pub(super) include_usage: bool,
    /// Whether each prompt's text is put before its choices.
    pub(super) echo: bool,
    /// Number of choices returned for each prompt, the most likely ones.
    pub(super) num_returned: usize,
}

/// Writes the completions of one or several prompts.
#[derive(Debug)]
pub(super) struct CompletionFormat {
    id: String,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    options: CompletionOptions,
    return_token_ids: bool,
    prompts: Vec<Vec<TokenId>>,
    /// Echo of each prompt; none without `echo`.
    echoes: Option<Vec<Echo>>,
    /// Number of choices generated for each prompt.
    num_generated: usize,
    has_begun: Vec<bool>,
    /// Log-probabilities of the prompt of each choice, if they were requested.
    prompt_logprobs: Vec<Vec<Logprob>>,
}

impl CompletionFormat {
    pub(super) fn new(
        job: &Job,
        options: CompletionOptions,
        serving: &Serving,
    ) -> CompletionFormat {
        let num_choices = job.prompts.len() * job.num_choices();
        let tokenizer = &serving.text.tokenizer;
        let echo =
            |prompt: &PromptJob| Echo::new(prompt.tokens(), prompt.text.as_deref(), tokenizer);
        CompletionFormat {
            id: new_id("cmpl-"),
            created: unix_seconds(),
            model: serving.id.clone(),
            tokenizer: Arc::clone(tokenizer),
            return_token_ids: job.rules.output.return_token_ids,
            prompts: job.prompts.iter().map(|prompt| prompt.tokens().to_vec()).collect(),
            echoes: options.echo.then(|| job.prompts.iter().map(echo).collect()),
            options,
            num_generated: job.num_choices(),
            has_begun: vec![false; num_choices],
            prompt_logprobs: vec![Vec::new(); num_choices],
        }
    }

    fn echo(&self, choice_idx: usize) -> Option<&Echo> {
        self.echoes.as_ref().map(|echoes| &echoes[choice_idx / self.num_generated])
    }

    /// Log-probabilities of a choice's tokens, preceded by those of its echoed prompt if
    /// `with_prompt` is set.
    fn logprobs(
        &self,
        choice_idx: usize,
        scored: &[ScoredToken],
        with_prompt: bool,
    ) -> CompletionLogprobs {
        let mut logprobs = CompletionLogprobs::default();
        let echo = self.echo(choice_idx);
        if let Some(echo) = echo.filter(|_| with_prompt) {
            let tokens = &self.prompts[choice_idx / self.num_generated];
            logprobs.push_first(tokens[0], echo.starts_chars[0], &self.tokenizer);
            let rest = tokens[1..].iter().zip(&echo.starts_chars[1..]);
            for ((&token, &start_chars), logprob) in rest.zip(&self.prompt_logprobs[choice_idx]) {
                let scored = ScoredToken { token, start_chars, logprob: logprob.clone() };
                logprobs.push(&scored, 0, &self.tokenizer);
            }
        }
        let base_chars = echo.map_or(0, |echo| echo.num_chars);
        for scored in scored {
            logprobs.push(scored, base_chars, &self.tokenizer);
        }
        logprobs
    }

    fn completion<'a>(
        &'a self,
        choices: Vec<Choice<'a>>,
        summary: Option<&AnswerSummary>,
        has_usage: bool,
    ) -> Completion<'a> {
        Completion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            system_fingerprint: SYSTEM_FINGERPRINT,
            choices,
            usage: has_usage.then_some(summary.map(Usage::of)),
            timing: summary.map(Timing::of),
            performance: summary.map(Performance::of),
        }
    }

    fn push_chunk(
        &self,
        choices: Vec<Choice<'_>>,
        summary: Option<&AnswerSummary>,
        buffer: &mut Vec<u8>,
    ) {
        push_event(buffer, &self.completion(choices, summary, self.options.include_usage));
    }

    /// Returns the choices of a prompt that the answer contains; the most likely ones first, if not
    /// all are.
    fn kept<'a>(&self, prompt_idx: usize, choices: &'a [Delta]) -> Vec<(usize, &'a Delta)> {
        let first = prompt_idx * self.num_generated;
        let mut kept: Vec<_> = (first..).zip(&choices[first..first + self.num_generated]).collect();
        if self.options.num_returned < self.num_generated {
            // The sort is stable: of equally likely choices, the first generated comes first.
            kept.sort_by(|(_, a), (_, b)| mean_logprob(b).total_cmp(&mean_logprob(a)));
            kept.truncate(self.options.num_returned);
        }
        kept
    }
}

/// The score by which `best_of` ranks choices.
fn mean_logprob(choice: &Delta) -> f64 {
    let sum: f64 = choice.scored.iter().map(|scored| f64::from(scored.logprob.logprob)).sum();
    sum / choice.scored.len().max(1) as f64
}

fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::ToolCalls => "stop",
        Finish::Length => "length",
        Finish::Cancelled => "abort",
    }
}

/// A whole answer and a chunk of a stream have the same form.
#[derive(Serialize, ToSchema)]
pub(super) struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<Choice<'a>>,
    /// `null` in all chunks but the last; absent unless requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timing: Option<Timing>,
    #[serde(skip_serializing_if = "Option::is_none")]
    performance: Option<Performance>,
}

#[derive(Serialize, ToSchema)]
struct Choice<'a> {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
}

impl AnswerWriter for CompletionFormat {
    fn answer_id(&self) -> Option<&str> {
        Some(&self.id)
    }

    fn prompt_scored(&mut self, choice_idx: usize, logprobs: Vec<Logprob>) {
        self.prompt_logprobs[choice_idx] = logprobs;
    }

    fn push_events(&mut self, choice_idx: usize, delta: Delta, buffer: &mut Vec<u8>) {
        if delta.is_empty() {
            return;
        }
        let is_first = !std::mem::replace(&mut self.has_begun[choice_idx], true);
        let echo = self.echo(choice_idx).filter(|_| is_first);
        let text = echo.map_or(String::new(), |echo| echo.text.clone()) + &delta.text;
        let has_logprobs =
            self.options.has_logprobs && (echo.is_some() || !delta.scored.is_empty());
        let prompt = &self.prompts[choice_idx / self.num_generated];
        let choice = Choice {
            index: choice_idx,
            text,
            logprobs: has_logprobs.then(|| self.logprobs(choice_idx, &delta.scored, is_first)),
            finish_reason: delta.finish.map(finish_name),
            token_ids: self.return_token_ids.then_some(&delta.tokens),
            prompt_token_ids: (self.return_token_ids && is_first).then_some(prompt),
        };
        self.push_chunk(vec![choice], None, buffer);
    }

    fn push_end(&mut self, summary: &AnswerSummary, buffer: &mut Vec<u8>) {
        if self.options.include_usage {
            self.push_chunk(Vec::new(), Some(summary), buffer);
        }
        buffer.extend_from_slice(sse::DONE.as_bytes());
    }

    fn push_error(&mut self, err: &ApiError, buffer: &mut Vec<u8>) {
        push_error(err, buffer);
    }

    fn whole(&self, choices: Vec<Delta>, summary: &AnswerSummary) -> Response {
        let mut returned = Vec::new();
        for (prompt_idx, prompt) in self.prompts.iter().enumerate() {
            for (choice_idx, delta) in self.kept(prompt_idx, &choices) {
                let echo = self.echo(choice_idx);
                returned.push(Choice {
                    index: returned.len(),
                    text: echo.map_or(String::new(), |echo| echo.text.clone()) + &delta.text,
                    logprobs: self
                        .options
                        .has_logprobs
                        .then(|| self.logprobs(choice_idx, &delta.scored, true)),
                    finish_reason: delta.finish.map(finish_name),
                    token_ids: self.return_token_ids.then_some(&delta.tokens),
                    prompt_token_ids: self.return_token_ids.then_some(prompt),
                });
            }
        }
        Json(self.completion(returned, Some(summary), true)).into_response()
    }
}
