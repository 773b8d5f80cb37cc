//! A request after all checks: what the engine must generate, and how tokens become text.

use std::sync::Arc;
use std::time::Duration;

use jackalope_engine::{Request, SamplingOptions};
use jackalope_protocol::TokenId;
use jackalope_text::{AnswerParser, Detokenizer, ModelText};

use super::choice_text::ChoiceText;
use super::output::{AnswerRules, TextRules};

/// Everything to compute for one HTTP request.
#[derive(Debug)]
pub struct Job {
    /// Prompts in the order of the request; all have the same number of choices.
    pub prompts: Vec<PromptJob>,
    /// How tokens become text.
    pub rules: TextRules,
    /// The sampling options of every choice.
    pub sampling: SamplingOptions,
    /// Whether log-probabilities are computed.
    pub has_logprobs: bool,
    /// The `max_tokens` that the request asks for.
    pub(super) requested_tokens: Option<u32>,
    /// Maximum time that the client waits for the whole answer.
    pub(super) timeout: Option<Duration>,
    /// Name of the request field that the prompts came in.
    pub(super) param: &'static str,
}

/// One prompt and the requests for its choices.
#[derive(Debug)]
pub struct PromptJob {
    /// One request per choice; never empty.
    pub requests: Vec<Request>,
    /// The prompt as the client sent it; none if it came as tokens.
    pub text: Option<String>,
}

impl PromptJob {
    /// The prompt's tokens.
    pub fn tokens(&self) -> &[TokenId] {
        self.requests[0].prompt()
    }
}

impl Job {
    /// Number of choices per prompt.
    pub fn num_choices(&self) -> usize {
        self.prompts[0].requests.len()
    }

    /// Creates the text state of each choice, in the order of `index`.
    pub(super) fn choice_texts(&self, text: &ModelText) -> Vec<ChoiceText> {
        let includes_special = self.rules.output.include_special_tokens;
        let of_prompt = |prompt: &PromptJob| {
            let answer = self.rules.answer.as_ref().filter(|_| !includes_special);
            let mut detokenizer = match answer {
                _ if includes_special => {
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
