//! The parameters of a request apart from its prompt, and their checks.

use std::time::Duration;

use jackalope_engine::{Request, RequestLimits, RequestOptions};
use jackalope_protocol::TokenId;

use super::constraints::TokenConstraints;
use super::job::{Job, PromptJob};
use super::output::{AnswerRules, OutputParams, TextRules};
use super::sampling::{CheckedSampling, SamplingParams, readable};
use crate::caller::ApiCaller;
use crate::error::ApiError;
use crate::state::Serving;

/// The parameters of a request apart from its prompt, not yet checked.
#[derive(Clone, Debug, Default)]
pub struct RequestParams {
    /// How tokens are sampled, and what they are constrained to.
    pub sampling: SamplingParams,
    /// How the answer is returned.
    pub output: OutputParams,
    /// When the request is computed.
    pub scheduling: SchedulingParams,
    /// Number of tokens of the prompt to keep, the last ones; -1: as many as fit.
    pub truncate_prompt_tokens: Option<i64>,
}

/// When a request is computed, and how long its client waits.
#[derive(Clone, Debug, Default)]
pub struct SchedulingParams {
    /// Priority of the request; requests with a lower one are computed earlier.
    pub priority: Option<i32>,
    /// Only requests with the same salt share cached prefixes.
    pub cache_salt: Option<String>,
    /// Maximum time that the client waits for the whole answer, in seconds.
    pub timeout_seconds: Option<f64>,
}

/// The checked parameters of a request apart from its prompt.
#[derive(Debug)]
pub(super) struct CheckedParams {
    /// Engine options, without the prompt and the seed.
    pub(super) options: RequestOptions,
    /// Constraints on the tokens of each choice.
    pub(super) constraints: TokenConstraints,
    num_choices: u32,
    seed: Option<u64>,
    stops: Vec<String>,
    output: OutputParams,
    truncation: Option<Truncation>,
    timeout: Option<Duration>,
}

/// How many tokens of a prompt are kept.
#[derive(Clone, Copy, Debug)]
enum Truncation {
    /// As many tokens as the engine accepts.
    Fits,
    Tokens(usize),
}

/// How the text of a job's choices is parsed.
#[derive(Debug, Default)]
pub(super) struct Parsing {
    /// Set if reasoning and tool calls are separated from the text.
    pub(super) answer: Option<AnswerRules>,
    /// Whether the first tool call ends the choice.
    pub(super) single_call: bool,
    /// Whether the text continues the prompt, or begins anew as in a chat.
    pub(super) continues_prompt: bool,
}

impl CheckedParams {
    pub(super) fn new(
        request: &RequestParams,
        serving: &Serving,
    ) -> Result<CheckedParams, ApiError> {
        let RequestParams { sampling, output, scheduling, .. } = request;
        let caller = ApiCaller::current();
        let CheckedSampling { options, num_choices, forbidden_runs } = sampling.check(serving)?;
        Ok(CheckedParams {
            options: RequestOptions {
                priority: caller.priority(scheduling.priority),
                tenant: caller.tenant(),
                cache_scope: caller.cache_scope(scheduling.cache_salt.as_deref()),
                ..options
            },
            constraints: TokenConstraints::new(sampling.structure.clone(), forbidden_runs),
            num_choices,
            seed: sampling.seed,
            stops: sampling.stop.clone(),
            output: *output,
            truncation: truncation(request.truncate_prompt_tokens)?,
            timeout: scheduling.timeout_seconds.map(timeout).transpose()?,
        })
    }

    /// Builds one request per choice. The first choice uses the seed itself, so that it is the same
    /// as it would be alone; the others use seeds derived from it.
    pub(super) fn requests(
        &self,
        prompt: &[TokenId],
        limits: &RequestLimits,
        param: &'static str,
    ) -> Result<Vec<Request>, ApiError> {
        let num_tokens = prompt.len();
        let prompt = self.kept(prompt, limits);
        // A truncated prompt begins at another token than the whole one, and the prompt of the next
        // turn at yet another: no leading tokens are shared.
        let stable_tokens = if prompt.len() == num_tokens { self.options.stable_tokens } else { 0 };
        (0..self.num_choices)
            .map(|choice_idx| {
                let mut options = self.options.clone();
                options.prompt = prompt.to_vec();
                options.stable_tokens = stable_tokens;
                options.sampling.seed = self.seed.map(|seed| derive_seed(seed, choice_idx));
                let request = Request::new(options, limits)
                    .map_err(|err| ApiError::from_rejected(&err, param))?;
                Ok(self.constraints.apply(request, &self.stop_tokens(limits)))
            })
            .collect()
    }

    /// Completes the job of these prompts, which came in the field `param`.
    pub(super) fn into_job(
        self,
        prompts: Vec<PromptJob>,
        parsing: Parsing,
        limits: &RequestLimits,
        param: &'static str,
    ) -> Job {
        let Parsing { answer, single_call, continues_prompt } = parsing;
        let stop_tokens = self.stop_tokens(limits).into();
        Job {
            prompts,
            rules: TextRules {
                stops: self.stops,
                min_tokens: self.options.min_tokens,
                stop_tokens,
                answer,
                single_call,
                output: self.output,
                continues_prompt,
            },
            has_logprobs: self.options.logprobs.is_some(),
            requested_tokens: self.options.max_tokens,
            sampling: self.options.sampling,
            timeout: self.timeout,
            param,
        }
    }

    /// Rejects a text that is certainly too long, unless truncation is requested.
    pub(super) fn check_length(
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
    pub(super) fn kept<'a>(&self, prompt: &'a [TokenId], limits: &RequestLimits) -> &'a [TokenId] {
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

    /// Returns the tokens that end a choice, including the model's end-of-sequence tokens unless
    /// `ignore_eos` is set.
    fn stop_tokens(&self, limits: &RequestLimits) -> Vec<TokenId> {
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

/// Maximum timeout that a client may request, in seconds.
const TIMEOUT_SECONDS_MAX: f64 = 86_400.0;

fn timeout(found: f64) -> Result<Duration, ApiError> {
    if 0.0 < found && found <= TIMEOUT_SECONDS_MAX {
        return Ok(Duration::from_secs_f64(found));
    }
    let expected = format!("above 0 and at most {TIMEOUT_SECONDS_MAX} seconds");
    Err(ApiError::out_of_range("timeout", &readable(found), expected))
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
