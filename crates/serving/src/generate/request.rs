//! A request for generated text in this server's own terms. Every protocol converts its bodies to
//! it, and it becomes a [`Job`] after all checks.

use super::continuation::Continuation;
use super::conversation::Conversation;
use super::job::Job;
use super::params::{CheckedParams, RequestParams};
use super::sampling::SamplingParams;
use crate::error::ApiError;
use crate::state::Serving;

/// Prompt and parameters of a request. Not yet checked, except for what only the protocol can check.
#[derive(Debug)]
pub struct GenerateRequest {
    /// Conversation or text to continue.
    pub prompt: Prompt,
    /// How to sample, return and schedule the answer.
    pub params: RequestParams,
}

/// The conversation or the text that a request asks to continue.
#[derive(Debug)]
pub enum Prompt {
    /// Messages, rendered by the model's chat template.
    Conversation(Conversation),
    /// Texts to continue as they are.
    Continuation(Continuation),
}

impl GenerateRequest {
    /// Creates a request that is answered whole, with default scheduling.
    pub fn new(prompt: Prompt, sampling: SamplingParams) -> GenerateRequest {
        GenerateRequest { prompt, params: RequestParams { sampling, ..RequestParams::default() } }
    }

    /// Checks the request, and renders and tokenises its prompt. Takes long for a long prompt.
    pub fn job(self, serving: &Serving) -> Result<Job, ApiError> {
        let params = CheckedParams::new(&self.params, serving)?;
        match self.prompt {
            Prompt::Conversation(conversation) => conversation.job(params, serving),
            Prompt::Continuation(continuation) => continuation.job(params, serving),
        }
    }
}
