//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use jackalope_engine::RequestLimits;
use jackalope_protocol::TokenId;

use super::completion_format::{Completion, CompletionFormat, Echo};
use super::infill::Infill;
use super::request::{Common, CompletionRequest, Prompts};
use super::schema::CompletionBody;
use super::structure;
use crate::ServerState;
use crate::body::{parse, read_json_body};
use crate::error::ApiError;
use crate::generate::{
    Answer, AnswerPlan, EarlyStream, Job, PromptJob, TextRules, Wishes, check_count, check_range,
    check_unsupported,
};
use crate::registry::Serving;

/// Number of tokens to generate if the request does not say, as defined by OpenAI's API.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Goes on from one or several prompts, whole or as a stream of chunks that ends with `[DONE]`.
#[utoipa::path(
    post,
    path = "/v1/completions",
    tag = "OpenAI",
    request_body = CompletionBody,
    responses((
        status = 200,
        description = "The continuations.",
        content(
            (Completion = "application/json"),
            (crate::openapi::answers::ServerSentEvent = "text/event-stream"),
        )
    ))
)]
pub(crate) async fn completions(
    State(state): State<ServerState>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let place = state.open_stream()?;
    let body = read_json_body(request, state.limits()).await?;
    let asked = body.clone();
    let answer = async move |serving: Serving| {
        let (job, format, plan) = serving.prepare(move |serving| prepare(&asked, serving)).await?;
        Answer::start(job, format, plan, &serving, place)?.respond().await
    };
    EarlyStream::OPENAI.answer(&state, &body, answer).await
}

fn prepare(
    body: &Bytes,
    serving: &Serving,
) -> Result<(Job, CompletionFormat, AnswerPlan), ApiError> {
    let common: Common = parse(body)?;
    let completion: CompletionRequest = parse(body)?;
    check_unsupported(body, "CompletionBody")?;
    let echo = completion.echo.unwrap_or(false);
    let infill = infill(completion.suffix.as_deref(), echo, serving)?;
    let max_tokens = common.max_completion_tokens.or(common.max_tokens).unwrap_or_else(|| {
        serving.state().limits().default_max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)
    });
    if max_tokens == 0 && !echo {
        let expected = "at least 1, or 0 together with echo";
        return Err(ApiError::out_of_range("max_tokens", &max_tokens, expected));
    }
    let mut wishes = Wishes::check(common, serving)?;
    wishes.options.max_tokens = Some(max_tokens);
    structure::read(body, &mut wishes, serving)?;
    wishes.guidance.compile(serving)?;
    let num_kept = wishes.num_choices;
    wishes.num_choices = best_of(completion.best_of, &wishes, serving)?;
    let logprobs = logprobs(completion.logprobs, serving.state().limits().top_logprobs)?;
    let is_contest = num_kept < wishes.num_choices;
    wishes.options.logprobs = logprobs.or(is_contest.then_some(0));
    wishes.options.prompt_logprobs = logprobs.filter(|_| echo);

    let limits = serving.engine_limits()?;
    // The infill's own tokens already include the special tokens.
    let add_special_tokens = completion.add_special_tokens.unwrap_or(true) && infill.is_none();
    let mut prompts = prompts(completion.prompt, add_special_tokens, &wishes, serving)?;
    if let Some(infill) = infill {
        prompts.iter_mut().for_each(|prompt| prompt.tokens = infill.around(&prompt.tokens));
    }
    let job = Job {
        prompts: prompt_jobs(prompts, &wishes, &limits)?,
        rules: TextRules {
            stop_tokens: Arc::from(wishes.all_stop_tokens(&limits)),
            answer: None,
            single_call: false,
            wants_tokens: wishes.return_token_ids,
            continues_prompt: true,
            tells_stop: wishes.tells_stop,
            tells_special: wishes.tells_special,
            stops: std::mem::take(&mut wishes.stops),
        },
    };
    let format = CompletionFormat::new(&job, &wishes, serving)
        .echoing(echo.then(|| echoes(&job, serving)))
        .with_logprobs(logprobs.is_some())
        .keeping(num_kept);
    let plan = AnswerPlan::new(&job, &wishes, "prompt");
    Ok((job, format, plan))
}

/// Creates the infill if the request has a suffix.
fn infill(suffix: Option<&str>, echo: bool, serving: &Serving) -> Result<Option<Infill>, ApiError> {
    let Some(suffix) = suffix.filter(|suffix| !suffix.is_empty()) else { return Ok(None) };
    if echo {
        return Err(ApiError::Needs { param: "suffix", needs: "echo to be false" });
    }
    Infill::new(suffix, &serving.text().tokenizer).map(Some)
}

/// A prompt's tokens, and the text it was sent as, if it came as text.
struct WrittenPrompt {
    tokens: Vec<TokenId>,
    text: Option<String>,
}

fn prompts(
    prompts: Option<Prompts>,
    add_special_tokens: bool,
    wishes: &Wishes,
    serving: &Serving,
) -> Result<Vec<WrittenPrompt>, ApiError> {
    let tokenizer = &serving.text().tokenizer;
    let encode = |text: String| {
        wishes.check_length(&text, "prompt", serving)?;
        let tokens = match add_special_tokens {
            true => tokenizer.encode_prompt(&text),
            false => tokenizer.encode(&text, false),
        };
        let tokens = tokens.map_err(|err| ApiError::from_text(err, "prompt"))?;
        Ok(WrittenPrompt { tokens, text: Some(text) })
    };
    let limit = serving.state().limits().prompts;
    match prompts.ok_or(ApiError::Missing { param: "prompt" })? {
        Prompts::Texts(texts) => {
            check_prompts(texts.len(), limit)?;
            texts.into_iter().map(encode).collect()
        }
        Prompts::Tokens(lists) => {
            check_prompts(lists.len(), limit)?;
            Ok(lists.into_iter().map(|tokens| WrittenPrompt { tokens, text: None }).collect())
        }
    }
}

fn check_prompts(found: usize, limit: usize) -> Result<(), ApiError> {
    if found == 0 {
        return Err(ApiError::Empty { param: "prompt".to_owned() });
    }
    check_count("prompt", found, limit)
}

fn prompt_jobs(
    prompts: Vec<WrittenPrompt>,
    wishes: &Wishes,
    limits: &RequestLimits,
) -> Result<Vec<PromptJob>, ApiError> {
    let job = |WrittenPrompt { tokens, text }| {
        // If the prompt was truncated, its text no longer matches its tokens.
        let is_whole = wishes.taken(&tokens, limits).len() == tokens.len();
        let requests = wishes.requests(&tokens, limits, "prompt")?;
        Ok(PromptJob { requests, text: text.filter(|_| is_whole) })
    };
    prompts.into_iter().map(job).collect()
}

fn logprobs(found: Option<u32>, limit: u8) -> Result<Option<u8>, ApiError> {
    let Some(found) = found else { return Ok(None) };
    check_range("logprobs", found, 0, limit.into())?;
    Ok(Some(u8::try_from(found).expect("the limit is a byte")))
}

/// Returns the number of choices to generate per prompt, from which the best `n` are returned.
fn best_of(found: Option<u32>, wishes: &Wishes, serving: &Serving) -> Result<u32, ApiError> {
    let Some(best_of) = found else { return Ok(wishes.num_choices) };
    check_range("best_of", best_of, wishes.num_choices, serving.state().limits().choices)?;
    if wishes.num_choices < best_of && wishes.is_stream {
        return Err(ApiError::Needs { param: "best_of", needs: "stream to be false" });
    }
    Ok(best_of)
}

/// Creates the echo of each prompt.
fn echoes(job: &Job, serving: &Serving) -> Vec<Echo> {
    let tokenizer = &serving.text().tokenizer;
    let echo = |prompt: &PromptJob| Echo::new(prompt.tokens(), prompt.text.as_deref(), tokenizer);
    job.prompts.iter().map(echo).collect()
}
