//! Converts `options`, the sampling parameters in this API's terms.

use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{
    GenerateRequest, Prompt, SamplingParams, StructuredOutput, Thinking, chat_logprobs,
};
use jackalope_serving::state::Serving;
use jackalope_text::grammar::Constraint;
use serde_json::Value;

use super::request::{Options, Shared, Think};
use crate::wire::{Seed, Strings};

/// Internal names of fields, each with the name that Ollama's API has for the field.
pub(super) const NAMES: [(&str, &str); 11] = [
    ("max_tokens", "options.num_predict"),
    ("temperature", "options.temperature"),
    ("top_k", "options.top_k"),
    ("top_p", "options.top_p"),
    ("min_p", "options.min_p"),
    ("repetition_penalty", "options.repeat_penalty"),
    ("repetition_context", "options.repeat_last_n"),
    ("presence_penalty", "options.presence_penalty"),
    ("frequency_penalty", "options.frequency_penalty"),
    ("seed", "options.seed"),
    ("stop", "options.stop"),
];

/// Converts the parameters of a request apart from its prompt.
pub(super) fn request(
    prompt: Prompt,
    shared: Shared,
    serving: &Serving,
) -> Result<GenerateRequest, ApiError> {
    let options = shared.options.unwrap_or_default();
    check_samplers(&options)?;
    let repeat_last_n = repeat_last_n(options.repeat_last_n)?;
    let looks_back = repeat_last_n != Some(LookBack::Nowhere);
    let limits = serving.state().limits();
    let logprobs = chat_logprobs(shared.logprobs.unwrap_or(false), shared.top_logprobs, limits)?;
    let sampling = SamplingParams {
        max_tokens: num_predict(options.num_predict)?,
        temperature: options.temperature,
        top_k: options.top_k,
        top_p: options.top_p,
        min_p: options.min_p,
        repetition_penalty: if looks_back { options.repeat_penalty } else { Some(1.0) },
        repetition_context: match repeat_last_n {
            Some(LookBack::Tokens(tokens)) => Some(tokens),
            Some(LookBack::Nowhere) | None => None,
        },
        presence_penalty: options.presence_penalty,
        frequency_penalty: options.frequency_penalty,
        // −1 asks for a random seed.
        seed: options.seed.map(|Seed(seed)| seed).filter(|seed| *seed != u64::MAX),
        stop: options.stop.map_or(Vec::new(), |Strings(stop)| stop),
        logprobs,
        structure: structured_output(shared.format.as_ref())?,
        ..SamplingParams::default()
    };
    let mut request = GenerateRequest::new(prompt, sampling);
    request.params.output.is_stream = shared.stream.unwrap_or(true);
    Ok(request)
}

pub(super) fn thinking(think: Option<Think>) -> Thinking {
    match think {
        None => Thinking::default(),
        Some(Think::Switch(enabled)) => Thinking { enabled: Some(enabled), ..Thinking::default() },
        Some(Think::Level(effort)) => {
            Thinking { enabled: Some(true), effort: Some(effort), budget_tokens: None }
        }
    }
}

/// The structure that the answer is constrained to: JSON, or a schema.
fn structured_output(format: Option<&Value>) -> Result<Option<StructuredOutput>, ApiError> {
    match format {
        None | Some(Value::Null) => Ok(None),
        Some(format) if format == "" => Ok(None),
        Some(format) if format == "json" => {
            Ok(Some(StructuredOutput::new("format", Constraint::JsonObject)))
        }
        Some(format) => StructuredOutput::json_schema("format", format).map(Some),
    }
}

/// Refuses sampling methods that this server does not support, unless they are off.
fn check_samplers(options: &Options) -> Result<(), ApiError> {
    let hint = "use top_p, top_k or min_p";
    ApiError::refuse_set(&[
        ("options.typical_p", options.typical_p.is_some_and(|it| it != 1.0), hint),
        ("options.tfs_z", options.tfs_z.is_some_and(|it| it != 1.0), hint),
        ("options.mirostat", options.mirostat.is_some_and(|it| it != 0), hint),
    ])
}

/// Reads `num_predict`, where 0 and less mean no limit.
fn num_predict(found: Option<i64>) -> Result<Option<u32>, ApiError> {
    let Some(found) = found.filter(|found| *found > 0) else { return Ok(None) };
    let expected = "at most 4294967295";
    let out_of_range = |_| ApiError::out_of_range("options.num_predict", &found, expected);
    u32::try_from(found).map(Some).map_err(out_of_range)
}

/// Number of recent tokens that count as repeated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LookBack {
    Nowhere,
    /// This number of tokens; 0 means all tokens.
    Tokens(u32),
}

fn repeat_last_n(found: Option<i64>) -> Result<Option<LookBack>, ApiError> {
    let Some(found) = found else { return Ok(None) };
    match (found, u32::try_from(found)) {
        (-1, _) => Ok(Some(LookBack::Tokens(0))),
        (_, Ok(0)) => Ok(Some(LookBack::Nowhere)),
        (_, Ok(tokens)) => Ok(Some(LookBack::Tokens(tokens))),
        (_, Err(_)) => {
            let expected = "from -1 to 4294967295, where -1 is all and 0 is off";
            Err(ApiError::out_of_range("options.repeat_last_n", &found, expected))
        }
    }
}
