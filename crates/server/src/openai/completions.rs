//! `POST /v1/completions`.

use axum::extract::State;
use axum::response::Response;
use jackalope_serving::body::JsonBody;
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{
    Answer, Continuation, Job, Prompt, PromptText, check_count, check_range, check_top_logprobs,
};
use jackalope_serving::limits::ServerLimits;
use jackalope_serving::state::Serving;

use super::completion_format::{CompletionFormat, CompletionOptions};
use super::error::EARLY;
use super::request::{Common, CompletionRequest, Prompts};
use super::structure::Structure;
use super::unsupported;
use crate::extract::SlottedRequest;
use crate::state::ServerState;

/// Number of tokens to generate if the request has no `max_tokens`, as defined by OpenAI's API.
const DEFAULT_MAX_TOKENS: u32 = 16;

pub(super) async fn completions(
    State(state): State<ServerState>,
    SlottedRequest { body, slot }: SlottedRequest,
) -> Result<Response, ApiError> {
    let answer = async move |body: JsonBody, serving: Serving| {
        let (job, format) = serving.prepare(move |serving| prepare(&body, serving)).await?;
        Answer::start(job, format, &serving, slot)?.respond().await
    };
    EARLY.answer(&state, body, answer).await
}

fn prepare(body: &JsonBody, serving: &Serving) -> Result<(Job, CompletionFormat), ApiError> {
    let common: Common = body.read()?;
    let completion: CompletionRequest = body.read()?;
    let structure: Structure = body.read()?;
    unsupported::check(body, &unsupported::COMPLETION)?;
    let limits = serving.state().limits();
    let echo = completion.echo.unwrap_or(false);
    let suffix = completion.suffix.filter(|suffix| !suffix.is_empty());
    if suffix.is_some() && echo {
        return Err(ApiError::Needs { param: "suffix", needs: "echo to be false" });
    }
    let max_tokens = common.max_tokens().or(limits.default_max_tokens);
    let max_tokens = max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    if max_tokens == 0 && !echo {
        let expected = "at least 1, or 0 together with echo";
        return Err(ApiError::out_of_range("max_tokens", &max_tokens, expected));
    }
    let num_choices = common.n.unwrap_or(1);
    check_range("n", num_choices, 1, limits.choices)?;
    let best_of = check_best_of(completion.best_of, &common, limits)?;
    let logprobs = completion.logprobs.map(|num| check_top_logprobs("logprobs", num, limits));
    let logprobs = logprobs.transpose()?;
    let options = CompletionOptions {
        has_logprobs: logprobs.is_some(),
        include_usage: common.include_usage(),
        echo,
        num_returned: num_choices as usize,
    };
    let mut request = common.into_request(Prompt::Continuation(Continuation {
        param: "prompt",
        prompts: prompts(completion.prompt, limits)?,
        add_special_tokens: completion.add_special_tokens.unwrap_or(true),
        suffix,
    }))?;
    structure.apply(&mut request.params.sampling)?;
    let sampling = &mut request.params.sampling;
    sampling.max_tokens = Some(max_tokens);
    sampling.num_choices = Some(best_of);
    // The most likely choices are found by their log-probabilities.
    sampling.logprobs = logprobs.or((num_choices < best_of).then_some(0));
    sampling.prompt_logprobs = logprobs.filter(|_| echo);
    let job = request.job(serving)?;
    let format = CompletionFormat::new(&job, options, serving);
    Ok((job, format))
}

fn prompts(prompts: Option<Prompts>, limits: &ServerLimits) -> Result<Vec<PromptText>, ApiError> {
    let prompts: Vec<PromptText> = match prompts.ok_or(ApiError::Missing { param: "prompt" })? {
        Prompts::Texts(texts) => texts.into_iter().map(PromptText::Text).collect(),
        Prompts::Tokens(lists) => lists.into_iter().map(PromptText::Tokens).collect(),
    };
    if prompts.is_empty() {
        return Err(ApiError::Empty { param: "prompt".to_owned() });
    }
    check_count("prompt", prompts.len(), limits.prompts)?;
    Ok(prompts)
}

/// Returns the number of choices to generate per prompt, from which the best `n` are returned.
fn check_best_of(
    found: Option<u32>,
    common: &Common,
    limits: &ServerLimits,
) -> Result<u32, ApiError> {
    let num_choices = common.n.unwrap_or(1);
    let Some(best_of) = found else { return Ok(num_choices) };
    check_range("best_of", best_of, num_choices, limits.choices)?;
    if num_choices < best_of && common.stream == Some(true) {
        return Err(ApiError::Needs { param: "best_of", needs: "stream to be false" });
    }
    Ok(best_of)
}
