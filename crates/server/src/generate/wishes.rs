//! The checked parameters of a request apart from its prompt. Every protocol is converted to
//! [`Common`] first.

use std::time::Duration;

use jackalope_engine::{Request, RequestLimits, RequestOptions, SamplingOptions};
use jackalope_protocol::TokenId;

use super::guidance::Guidance;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::limits::ServerLimits;
use crate::openai::request::{Common, Seed};
use crate::registry::Serving;

/// The parameters that the endpoints share.
#[derive(Debug)]
pub(crate) struct Wishes {
    /// Engine options, without the prompt and the seed.
    pub(crate) options: RequestOptions,
    /// Constraints on the tokens of each choice.
    pub(crate) guidance: Guidance,
    pub(crate) num_choices: u32,
    pub(crate) seed: Option<u64>,
    pub(crate) stops: Vec<String>,
    pub(crate) is_stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) return_token_ids: bool,
    /// Whether the text includes the stop string that ends a choice.
    pub(crate) tells_stop: bool,
    /// Whether the text includes special tokens.
    pub(crate) tells_special: bool,
    /// Truncation of the prompt, which keeps its last tokens.
    truncation: Option<Truncation>,
    /// Maximum time that the client waits for the whole answer.
    pub(crate) timeout: Option<Duration>,
}

/// How many tokens of a prompt are kept.
#[derive(Clone, Copy, Debug)]
enum Truncation {
    /// As many tokens as the engine accepts.
    Fits,
    Tokens(usize),
}

impl Wishes {
    /// Checks all fields except the length limits, whose defaults differ between the endpoints.
    pub(crate) fn check(common: Common, serving: &Serving) -> Result<Wishes, ApiError> {
        let limits = serving.state().limits();
        let is_stream = common.stream.unwrap_or(false);
        if common.stream_options.is_some() && !is_stream {
            return Err(ApiError::Needs { param: "stream_options", needs: "stream to be true" });
        }
        let caller = Caller::current();
        let num_choices = common.n.unwrap_or(1);
        check_range("n", num_choices, 1, limits.choices)?;
        let stream_options = common.stream_options.as_ref();
        Ok(Wishes {
            options: RequestOptions {
                sampling: sampling(&common, serving)?,
                stop_tokens: stop_tokens(common.stop_token_ids, limits)?,
                ignore_eos: common.ignore_eos.unwrap_or(false),
                priority: caller.priority(common.priority),
                tenant: caller.tenant(),
                cache_scope: caller.cache_scope(common.cache_salt.as_deref()),
                ..RequestOptions::default()
            },
            guidance: Guidance::default(),
            num_choices,
            seed: common.seed.map(|Seed(seed)| seed),
            stops: check_stops(common.stop.map_or(Vec::new(), |stop| stop.0), limits)?,
            is_stream,
            include_usage: stream_options.and_then(|it| it.include_usage).unwrap_or(false),
            return_token_ids: common.return_token_ids.unwrap_or(false),
            tells_stop: common.include_stop_str_in_output.unwrap_or(false),
            tells_special: common.skip_special_tokens == Some(false),
            truncation: truncation(common.truncate_prompt_tokens)?,
            timeout: common.timeout.map(timeout).transpose()?,
        })
    }

    /// Builds one request per choice. The first choice uses the seed itself, so that it is the same
    /// as it would be alone; the others use seeds derived from it.
    pub(crate) fn requests(
        &self,
        prompt: &[TokenId],
        limits: &RequestLimits,
        param: &'static str,
    ) -> Result<Vec<Request>, ApiError> {
        let prompt = self.taken(prompt, limits);
        (0..self.num_choices)
            .map(|choice_idx| {
                let mut options = self.options.clone();
                options.prompt = prompt.to_vec();
                options.sampling.seed = self.seed.map(|seed| derive_seed(seed, choice_idx));
                let request = Request::new(options, limits)
                    .map_err(|err| ApiError::from_rejected(&err, param))?;
                Ok(self.guidance.apply(request, &self.all_stop_tokens(limits)))
            })
            .collect()
    }

    /// Rejects a text that is certainly too long, unless truncation is requested.
    pub(crate) fn check_length(
        &self,
        text: &str,
        param: &'static str,
        serving: &Serving,
    ) -> Result<(), ApiError> {
        match self.truncation {
            None => serving.check_length(text, param),
            Some(_) => Ok(()),
        }
    }

    /// The part of a prompt that is kept after truncation.
    pub(crate) fn taken<'a>(&self, prompt: &'a [TokenId], limits: &RequestLimits) -> &'a [TokenId] {
        let most = match self.truncation {
            None => prompt.len(),
            // One token is reserved for the answer.
            Some(Truncation::Fits) => {
                limits.max_prompt_tokens.min(limits.context_tokens.saturating_sub(1)) as usize
            }
            Some(Truncation::Tokens(most)) => most,
        };
        &prompt[prompt.len().saturating_sub(most)..]
    }

    /// Tokens that end a choice, including the model's end-of-sequence tokens unless `ignore_eos`
    /// is set.
    pub(crate) fn all_stop_tokens(&self, limits: &RequestLimits) -> Vec<TokenId> {
        let mut tokens = self.options.stop_tokens.clone();
        if !self.options.ignore_eos {
            tokens.extend(&limits.eos_tokens);
        }
        tokens
    }
}

/// Derives the seed of a choice (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014: the finaliser of SplitMix64).
fn derive_seed(seed: u64, choice_idx: u32) -> u64 {
    if choice_idx == 0 {
        return seed;
    }
    let mut z = seed.wrapping_add(u64::from(choice_idx).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn sampling(common: &Common, serving: &Serving) -> Result<SamplingOptions, ApiError> {
    let default = serving.sampling_defaults();
    let number = |param: &'static str, value: Option<f64>, default: f32, low: f64, high: f64| {
        let Some(value) = value else { return Ok(default) };
        // NaN is in no range.
        match (low..=high).contains(&value) {
            true => Ok(value as f32),
            false => {
                let expected = format!("from {low} to {high}");
                Err(ApiError::out_of_range(param, &readable(value), expected))
            }
        }
    };
    if common.top_p.is_some_and(|top_p| top_p <= 0.0) {
        let found = common.top_p.unwrap_or_default();
        return Err(ApiError::out_of_range("top_p", &readable(found), "above 0 and at most 1"));
    }
    let repetition = common.repetition_penalty;
    if repetition.is_some_and(|penalty| penalty <= 0.0) {
        let found = repetition.unwrap_or_default();
        return Err(ApiError::out_of_range("repetition_penalty", &readable(found), "above 0"));
    }
    Ok(SamplingOptions {
        temperature: number("temperature", common.temperature, default.temperature, 0.0, 2.0)?,
        top_p: number("top_p", common.top_p, default.top_p, 0.0, 1.0)?,
        top_k: top_k(common.top_k, default.top_k)?,
        min_p: number("min_p", common.min_p, default.min_p, 0.0, 1.0)?,
        repetition_penalty: number(
            "repetition_penalty",
            repetition,
            default.repetition_penalty,
            0.0,
            10.0,
        )?,
        repetition_context: default.repetition_context,
        presence_penalty: number(
            "presence_penalty",
            common.presence_penalty,
            default.presence_penalty,
            -2.0,
            2.0,
        )?,
        frequency_penalty: number(
            "frequency_penalty",
            common.frequency_penalty,
            default.frequency_penalty,
            -2.0,
            2.0,
        )?,
        logit_bias: logit_bias(common, serving.state().limits())?,
        seed: None,
    })
}

/// Maximum timeout that a client may request, in seconds.
const TIMEOUT_SECONDS_MAX: f64 = 86_400.0;

fn timeout(found: f64) -> Result<Duration, ApiError> {
    let is_fit = 0.0 < found && found <= TIMEOUT_SECONDS_MAX;
    let expected = || format!("above 0 and at most {TIMEOUT_SECONDS_MAX} seconds");
    match is_fit {
        true => Ok(Duration::from_secs_f64(found)),
        false => Err(ApiError::out_of_range("timeout", &readable(found), expected())),
    }
}

/// Formats a number, in scientific notation if it is large.
fn readable(value: f64) -> String {
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

fn logit_bias(common: &Common, limits: &ServerLimits) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let Some(bias) = &common.logit_bias else { return Ok(Vec::new()) };
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

/// Parses `truncate_prompt_tokens`, where −1 means as many tokens as fit, as in vLLM.
fn truncation(found: Option<i64>) -> Result<Option<Truncation>, ApiError> {
    match found {
        None => Ok(None),
        Some(-1) => Ok(Some(Truncation::Fits)),
        Some(found) => match usize::try_from(found) {
            Ok(most) if most > 0 => Ok(Some(Truncation::Tokens(most))),
            Ok(_) | Err(_) => {
                let expected = "at least 1, or -1 for what fits";
                Err(ApiError::out_of_range("truncate_prompt_tokens", &found, expected))
            }
        },
    }
}

fn stop_tokens(
    found: Option<Vec<TokenId>>,
    limits: &ServerLimits,
) -> Result<Vec<TokenId>, ApiError> {
    let found = found.unwrap_or_default();
    check_count("stop_token_ids", found.len(), limits.stops)?;
    Ok(found)
}

fn check_stops(stops: Vec<String>, limits: &ServerLimits) -> Result<Vec<String>, ApiError> {
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
    Ok(stops)
}

/// Rejects a list with more than `limit` elements.
pub(crate) fn check_count(param: &'static str, found: usize, limit: usize) -> Result<(), ApiError> {
    match found <= limit {
        true => Ok(()),
        false => Err(ApiError::TooMany { param, found, limit }),
    }
}

/// Rejects a number outside `low..=high`.
pub(crate) fn check_range(
    param: &'static str,
    found: u32,
    low: u32,
    high: u32,
) -> Result<(), ApiError> {
    match (low..=high).contains(&found) {
        true => Ok(()),
        false => Err(ApiError::out_of_range(param, &found, format!("from {low} to {high}"))),
    }
}
