//! Computes embeddings, for every protocol that has them.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use jackalope_engine::{EngineHandle, Event, Request, RequestOptions};
use jackalope_protocol::{Pooling, TokenId};
use tokio::time::timeout;

use crate::caller::ApiCaller;
use crate::error::ApiError;
use crate::journal::{AnswerStart, Recorder};
use crate::state::Serving;

/// Parameters of an embedding.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    /// How the states of a text's tokens become one vector.
    pub pooling: Pooling,
    /// Whether vectors are scaled to length 1.
    pub normalized: bool,
    /// Number of leading elements of each vector to keep; all if absent.
    pub dimensions: Option<u32>,
    /// Name of the request field that the texts came in.
    pub param: &'static str,
}

/// Computes the embeddings of texts, in the same order. They are computed concurrently, but at most
/// `embeddings_at_once`, so that other requests find room in the engine's queue.
///
/// # Errors
/// Returns an error if a text is invalid, before any is computed, or if the engine fails.
pub async fn vectors(
    serving: &Serving,
    texts: Vec<Vec<TokenId>>,
    requested: Embedding,
) -> Result<Vec<Vec<f32>>, ApiError> {
    check_dimensions(serving, requested)?;
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    let limits = serving.engine_limits()?;
    let caller = ApiCaller::current();
    let request = |prompt| {
        let options = RequestOptions {
            prompt,
            embed: Some(requested.pooling),
            tenant: caller.tenant(),
            cache_scope: caller.cache_scope(None),
            priority: caller.priority(None),
            ..RequestOptions::default()
        };
        Request::new(options, &limits).map_err(|err| ApiError::from_rejected(&err, requested.param))
    };
    let prompt_tokens = texts.iter().map(Vec::len).sum::<usize>();
    let requests = texts.into_iter().map(request).collect::<Result<Vec<_>, _>>()?;
    let opening = AnswerStart {
        answer_id: None,
        engine_ids: Vec::new(),
        is_stream: false,
        num_choices: 0,
        prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
        max_tokens: 0,
    };
    let mut recorder = Recorder::begin(serving.state().journal(), serving, opening);
    let server_limits = serving.state().limits();
    let computing = stream::iter(requests)
        .map(|request| vector(&serving.engine, request, requested))
        .buffered(server_limits.embeddings_at_once)
        .try_collect();
    let result = match server_limits.request_timeout {
        None => computing.await,
        Some(limit) => {
            let timed_out = Err(ApiError::TimedOut { timeout: limit });
            timeout(limit, computing).await.unwrap_or(timed_out)
        }
    };
    match &result {
        Ok(_) => recorder.succeeded(),
        Err(err) => recorder.failed(err, false),
    }
    result
}

/// Rejects more dimensions than the model's states have.
fn check_dimensions(serving: &Serving, requested: Embedding) -> Result<(), ApiError> {
    let Some(dimensions) = requested.dimensions else { return Ok(()) };
    let ranks = serving.engine.status().ranks;
    let hidden_size = ranks.iter().find_map(|rank| rank.facts.as_ref().map(|it| it.hidden_size));
    match hidden_size {
        Some(hidden_size) if !(1..=hidden_size).contains(&dimensions) => {
            let expected = format!("from 1 to {hidden_size}, the width of the model");
            Err(ApiError::out_of_range("dimensions", &dimensions, expected))
        }
        Some(_) => Ok(()),
        None => Err(ApiError::Unavailable { reason: "the model is loading".to_owned() }),
    }
}

async fn vector(
    engine: &EngineHandle,
    request: Request,
    requested: Embedding,
) -> Result<Vec<f32>, ApiError> {
    let submitted = engine.submit(request);
    let mut generation = submitted.map_err(|err| ApiError::from_submit(err, requested.param))?;
    while let Some(event) = generation.next().await {
        match event {
            Event::Embedded { vector } => return Ok(shaped(vector, requested)),
            Event::NotANumber { .. } => return Err(ApiError::NotANumber),
            Event::Poisonous(failure) => {
                return Err(ApiError::Poisonous { message: failure.to_string() });
            }
            Event::Failed(failure) => return Err(ApiError::from_failure(failure)),
            Event::ConstraintFailed { message, .. } => {
                let what = format!("an embedding has no constraint: {message}");
                return Err(ApiError::Internal { what });
            }
            Event::Started { .. }
            | Event::PromptScored { .. }
            | Event::Token { .. }
            | Event::Finished { .. } => {}
        }
    }
    Err(ApiError::ShuttingDown)
}

/// Truncates and scales a vector as requested.
fn shaped(mut vector: Vec<f32>, requested: Embedding) -> Vec<f32> {
    if let Some(dimensions) = requested.dimensions {
        vector.truncate(dimensions as usize);
    }
    if requested.normalized {
        let square: f64 = vector.iter().map(|&value| f64::from(value).powi(2)).sum();
        if square > 0.0 {
            let scale = square.sqrt().recip();
            vector.iter_mut().for_each(|value| *value = (f64::from(*value) * scale) as f32);
        }
    }
    vector
}
