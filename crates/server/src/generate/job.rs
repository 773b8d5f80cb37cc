//! A request after all checks: what the engine must generate, and how tokens become text.

use std::sync::Arc;

use jackalope_engine::Request;
use jackalope_protocol::TokenId;
use jackalope_text::{AnswerFormat, AnswerParser, Detokenizer, ModelText, ToolSpec};

use super::choice_text::ChoiceText;
use super::wishes::Wishes;
use crate::error::ApiError;
use crate::registry::Serving;

/// Rules for converting tokens to text, the same for every choice of a job.
#[derive(Clone, Debug)]
pub(crate) struct TextRules {
    /// Strings that end a choice; not part of its text unless `tells_stop` is set.
    pub(crate) stops: Vec<String>,
    /// Tokens that end a choice; not part of its text.
    pub(crate) stop_tokens: Arc<[TokenId]>,
    /// Set if reasoning and tool calls are separated from the text.
    pub(crate) answer: Option<AnswerRules>,
    /// Whether the first tool call ends the choice.
    pub(crate) single_call: bool,
    /// Whether token ids are reported.
    pub(crate) wants_tokens: bool,
    /// Whether the text includes the stop string that ends a choice.
    pub(crate) tells_stop: bool,
    /// Whether the text includes special tokens.
    pub(crate) tells_special: bool,
    /// Whether the text continues the prompt, or begins anew as in a chat.
    pub(crate) continues_prompt: bool,
}

/// Rules for parsing an answer.
#[derive(Clone, Debug)]
pub(crate) struct AnswerRules {
    /// The form of the model's answers; without tools if no calls are expected.
    pub(crate) format: AnswerFormat,
    /// The request's tools; only these can be called.
    pub(crate) tools: Option<Arc<[ToolSpec]>>,
}

/// Everything to compute for one HTTP request.
#[derive(Debug)]
pub(crate) struct Job {
    /// Prompts in the order of the request; all have the same number of choices.
    pub(crate) prompts: Vec<PromptJob>,
    pub(crate) rules: TextRules,
}

/// One prompt and the requests for its choices.
#[derive(Debug)]
pub(crate) struct PromptJob {
    /// One request per choice; never empty.
    pub(crate) requests: Vec<Request>,
    /// The prompt as the client sent it; none if it came as tokens.
    pub(crate) text: Option<String>,
}

impl PromptJob {
    /// The prompt's tokens.
    pub(crate) fn tokens(&self) -> &[TokenId] {
        self.requests[0].prompt()
    }
}

impl Job {
    /// Creates a job that continues the text of the field `param`, without parsing the output.
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

    /// Number of choices per prompt.
    pub(crate) fn num_choices(&self) -> usize {
        self.prompts[0].requests.len()
    }

    /// Creates the text state of each choice, in the order of `index`.
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
