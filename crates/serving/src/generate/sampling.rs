//! How tokens are sampled: the parameters of a request, and their checks.

use std::collections::BTreeMap;

use jackalope_engine::{RequestOptions, SamplingOptions};
use jackalope_protocol::TokenId;

use super::checks::{check_count, check_range};
use super::constraints::{StructuredOutput, bad_runs};
use crate::error::ApiError;
use crate::limits::ServerLimits;
use crate::state::Serving;

/// The sampling parameters of a request, not yet checked. An absent parameter has the model's
/// default. Errors name the parameters as OpenAI and vLLM do; other protocols rename them.
#[derive(Clone, Debug, Default)]
pub struct SamplingParams {
    /// Maximum number of tokens per choice. Default: the server's, else what the context has room
    /// for.
    pub max_tokens: Option<u32>,
    /// Minimum number of tokens per choice.
    pub min_tokens: u32,
    /// Sampling temperature; 0 always picks the most likely token.
    pub temperature: Option<f64>,
    /// Sample from the most likely tokens whose probabilities add up to this value.
    pub top_p: Option<f64>,
    /// Number of most likely tokens to sample from; 0 and -1 disable this.
    pub top_k: Option<i64>,
    /// Minimum probability of a token, relative to the most likely token.
    pub min_p: Option<f64>,
    /// Penalty for repeated tokens; above 1 makes them less likely.
    pub repetition_penalty: Option<f64>,
    /// Number of recent tokens that the repetition penalty applies to; 0: all.
    pub repetition_context: Option<u32>,
    /// Penalty subtracted from the logits of tokens that the answer already contains.
    pub presence_penalty: Option<f64>,
    /// Penalty subtracted for each time that the answer already contains the token.
    pub frequency_penalty: Option<f64>,
    /// Numbers that are added to the logits of tokens, by token id.
    pub logit_bias: BTreeMap<String, f64>,
    /// Seed of the first choice; the other choices derive theirs from it. Random if absent.
    pub seed: Option<u64>,
    /// Number of choices per prompt. Default: 1.
    pub num_choices: Option<u32>,
    /// Strings that end a choice.
    pub stop: Vec<String>,
    /// Tokens that end a choice, besides the model's own.
    pub stop_token_ids: Vec<TokenId>,
    /// Whether the model's own end-of-sequence tokens do not end a choice.
    pub ignore_eos: bool,
    /// Number of alternatives whose log-probabilities are reported; none at all if absent.
    pub logprobs: Option<u8>,
    /// Number of alternatives whose log-probabilities are reported for each token of the prompt;
    /// none at all if absent.
    pub prompt_logprobs: Option<u8>,
    /// The only tokens that may be sampled.
    pub allowed_token_ids: Option<Vec<TokenId>>,
    /// Words whose usual tokens are never generated one after the other.
    pub bad_words: Vec<String>,
    /// The structure that the answer has.
    pub structure: Option<StructuredOutput>,
}

impl SamplingParams {
    /// Checks all parameters and converts them to the engine's options. Returns the options, and
    /// the forbidden sequences of two or more tokens.
    pub(super) fn check(&self, serving: &Serving) -> Result<CheckedSampling, ApiError> {
        let limits = serving.state().limits();
        let num_choices = self.num_choices.unwrap_or(1);
        check_range("n", num_choices, 1, limits.choices)?;
        check_count("stop_token_ids", self.stop_token_ids.len(), limits.stops)?;
        let sampling = sampling(self, serving)?;
        check_stops(&self.stop, limits)?;
        let runs = bad_runs(&self.bad_words, serving)?;
        let (tokens, runs): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| run.len() == 1);
        let options = RequestOptions {
            sampling,
            max_tokens: self.max_tokens.or(limits.default_max_tokens),
            min_tokens: self.min_tokens,
            stop_tokens: self.stop_token_ids.clone(),
            ignore_eos: self.ignore_eos,
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            allowed_tokens: self.allowed_token_ids.clone(),
            banned_tokens: tokens.into_iter().flatten().collect(),
            ..RequestOptions::default()
        };
        Ok(CheckedSampling { options, num_choices, forbidden_runs: runs })
    }
}

/// Sampling parameters after their checks.
pub(super) struct CheckedSampling {
    pub(super) options: RequestOptions,
    pub(super) num_choices: u32,
    /// Forbidden sequences of two or more tokens.
    pub(super) forbidden_runs: Vec<Vec<TokenId>>,
}

/// Checks the number of alternatives of a field, and converts it to the engine's.
pub fn check_top_logprobs(
    param: &'static str,
    num_top: u32,
    limits: &ServerLimits,
) -> Result<u8, ApiError> {
    check_range(param, num_top, 0, limits.top_logprobs.into())?;
    Ok(u8::try_from(num_top).expect("the limit is a byte"))
}

/// Converts `logprobs` and `top_logprobs`, as chats have them, to the number of alternatives.
pub fn chat_logprobs(
    is_wanted: bool,
    num_top: Option<u32>,
    limits: &ServerLimits,
) -> Result<Option<u8>, ApiError> {
    let num_top = check_top_logprobs("top_logprobs", num_top.unwrap_or(0), limits)?;
    if num_top > 0 && !is_wanted {
        return Err(ApiError::Needs { param: "top_logprobs", needs: "logprobs to be true" });
    }
    Ok(is_wanted.then_some(num_top))
}

fn sampling(params: &SamplingParams, serving: &Serving) -> Result<SamplingOptions, ApiError> {
    let default = &serving.sampling_defaults;
    let number = |param: &'static str, value: Option<f64>, default: f32, low: f64, high: f64| {
        let Some(value) = value else { return Ok(default) };
        // NaN is in no range.
        if (low..=high).contains(&value) {
            return Ok(value as f32);
        }
        Err(ApiError::out_of_range(param, &readable(value), format!("from {low} to {high}")))
    };
    let repetition = params.repetition_penalty;
    if repetition.is_some_and(|penalty| penalty <= 0.0) {
        let found = repetition.unwrap_or_default();
        return Err(ApiError::out_of_range("repetition_penalty", &readable(found), "above 0"));
    }
    Ok(SamplingOptions {
        temperature: number("temperature", params.temperature, default.temperature, 0.0, 2.0)?,
        top_p: number("top_p", params.top_p, default.top_p, 0.0, 1.0)?,
        top_k: top_k(params.top_k, default.top_k)?,
        min_p: number("min_p", params.min_p, default.min_p, 0.0, 1.0)?,
        repetition_penalty: number(
            "repetition_penalty",
            repetition,
            default.repetition_penalty,
            0.0,
            10.0,
        )?,
        repetition_context: params.repetition_context.unwrap_or(default.repetition_context),
        presence_penalty: number(
            "presence_penalty",
            params.presence_penalty,
            default.presence_penalty,
            -2.0,
            2.0,
        )?,
        frequency_penalty: number(
            "frequency_penalty",
            params.frequency_penalty,
            default.frequency_penalty,
            -2.0,
            2.0,
        )?,
        logit_bias: logit_bias(params, serving.state().limits())?,
        seed: None,
    })
}

/// Formats a number, in scientific notation if it is large.
pub(super) fn readable(value: f64) -> String {
    if value.abs() < 1e16 { value.to_string() } else { format!("{value:e}") }
}

/// Parses `top_k`, where 0 and −1 both mean "off".
fn top_k(found: Option<i64>, default: u32) -> Result<u32, ApiError> {
    match found {
        None => Ok(default),
        Some(-1) => Ok(0),
        Some(found) => u32::try_from(found).map_err(|_| {
            ApiError::out_of_range("top_k", &found, "from -1 to 4294967295, where 0 and -1 are off")
        }),
    }
}

fn logit_bias(
    params: &SamplingParams,
    limits: &ServerLimits,
) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let bias = &params.logit_bias;
    check_count("logit_bias", bias.len(), limits.logit_bias)?;
    bias.iter()
        .map(|(key, &value)| {
            let token = key.parse().map_err(|_| {
                ApiError::out_of_range(
                    "logit_bias",
                    &format!("a map with the key {key:?}"),
                    "a map from token ids to numbers",
                )
            })?;
            match (-100.0..=100.0).contains(&value) {
                true => Ok((token, value as f32)),
                false => Err(ApiError::out_of_range(
                    format!("logit_bias.{key}"),
                    &readable(value),
                    "from -100 to 100",
                )),
            }
        })
        .collect()
}

fn check_stops(stops: &[String], limits: &ServerLimits) -> Result<(), ApiError> {
    check_count("stop", stops.len(), limits.stops)?;
    for (idx, stop) in stops.iter().enumerate() {
        if stop.is_empty() {
            return Err(ApiError::Empty { param: format!("stop[{idx}]") });
        }
        if stop.len() > limits.stop_bytes {
            let found = format!("{} bytes long", stop.len());
            let expected = format!("at most {} bytes long", limits.stop_bytes);
            return Err(ApiError::out_of_range(format!("stop[{idx}]"), &found, expected));
        }
    }
    Ok(())
}
