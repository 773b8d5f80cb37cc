//! A request after every check: what the engine shall draw, and how it becomes text.

use std::sync::Arc;

use jackalope_engine::Request;
use jackalope_protocol::TokenId;
use jackalope_text::{AnswerFormat, AnswerParser, Detokenizer, ModelText, ToolSpec};

use super::choice_text::ChoiceText;
use super::wishes::Wishes;
use crate::error::ApiError;
use crate::registry::Serving;

/// How tokens become text, the same for every choice of a job.
#[derive(Clone, Debug)]
pub(crate) struct TextRules {
    /// Strings that end a choice; they are no part of its text.
    pub(crate) stops: Vec<String>,
    /// Tokens that end a choice; they are no part of its text.
    pub(crate) stop_tokens: Arc<[TokenId]>,
    /// Set if reasoning and tool calls are told apart from the text.
    pub(crate) answer: Option<AnswerRules>,
    /// The first tool call ends the choice.
    pub(crate) single_call: bool,
    /// Whether the tokens themselves are reported.
    pub(crate) wants_tokens: bool,
    /// Whether the stop string that ends a choice is told as its end.
    pub(crate) tells_stop: bool,
    /// Whether special tokens are told as they are written.
    pub(crate) tells_special: bool,
    /// Whether the text goes on from the prompt, or begins anew as in a chat.
    pub(crate) continues_prompt: bool,
}

/// How an answer is taken apart.
#[derive(Clone, Debug)]
pub(crate) struct AnswerRules {
    /// The form of the model's answers; without tools if none are looked for.
    pub(crate) format: AnswerFormat,
    /// The request's tools; only they can be called.
    pub(crate) tools: Option<Arc<[ToolSpec]>>,
}

/// Everything to compute for one HTTP request.
#[derive(Debug)]
pub(crate) struct Job {
    /// In the order of the request; all have the same number of choices.
    pub(crate) prompts: Vec<PromptJob>,
    pub(crate) rules: TextRules,
}

/// One prompt and the choices drawn for it.
#[derive(Debug)]
pub(crate) struct PromptJob {
    /// Never empty.
    pub(crate) requests: Vec<Request>,
    /// The prompt as the client wrote it; none if it came as tokens.
    pub(crate) text: Option<String>,
}

impl PromptJob {
    /// The prompt's tokens.
    pub(crate) fn tokens(&self) -> &[TokenId] {
        self.requests[0].prompt()
    }
}

impl Job {
    /// Goes on from a text that came in the field `param`, and tells what the model writes as it is.
    pub(crate) fn continuation(
        prompt: &str,
        param: &'static str,
        wishes: &mut Wishes,
        serving: &Serving,
    ) -> Result<Job, ApiError> {
        let limits = serving.engine_limits()?;
        wishes.check_length(prompt, param, serving)?;
        let tokens = serving.text().tokenizer.encode_prompt(prompt);
        let tokens = tokens.map_err(|err| ApiError::from_text(err, param))?;
        wishes.guidance.compile(serving)?;
        let requests = wishes.requests(&tokens, &limits, param)?;
        Ok(Job {
            prompts: vec![PromptJob { requests, text: None }],
            rules: TextRules {
                stop_tokens: Arc::from(wishes.all_stop_tokens(&limits)),
                answer: None,
                single_call: false,
                wants_tokens: false,
                tells_stop: false,
                tells_special: false,
                continues_prompt: true,
                stops: std::mem::take(&mut wishes.stops),
            },
        })
    }

    /// Choices per prompt.
    pub(crate) fn num_choices(&self) -> usize {
        self.prompts[0].requests.len()
    }

    /// The text side of each choice, in the order of `index`.
    pub(super) fn choice_texts(&self, text: &ModelText) -> Vec<ChoiceText> {
        let of_prompt = |prompt: &PromptJob| {
            let answer = self.rules.answer.as_ref().filter(|_| !self.rules.tells_special);
            let mut detokenizer = match answer {
                _ if self.rules.tells_special => {
                    Detokenizer::with_special_tokens(Arc::clone(&text.tokenizer))
                }
                Some(answer) => text.answer_detokenizer(&answer.format),
                None => text.detokenizer(),
            };
            if self.rules.continues_prompt {
                for &token in prompt.tokens() {
                    detokenizer.push(token);
                }
            }
            let parser = move || {
                let AnswerRules { format, tools } = answer?;
                let in_reasoning = format.opened_by(&text.tokenizer, prompt.tokens());
                Some(AnswerParser::new(format, tools.clone(), in_reasoning))
            };
            let choice = move |_| ChoiceText::new(&self.rules, detokenizer.clone(), parser());
            (0..prompt.requests.len()).map(choice).collect::<Vec<_>>()
        };
        self.prompts.iter().flat_map(of_prompt).collect()
    }
}
