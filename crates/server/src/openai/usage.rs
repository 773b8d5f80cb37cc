//! Token counts and timings of an answer, in the forms of the API.

use jackalope_serving::generate::AnswerSummary;
use jackalope_serving::numbers::rounded;
use serde::Serialize;
use utoipa::ToSchema;

/// Identifies the program version that generated an answer.
pub(super) const SYSTEM_FINGERPRINT: &str = concat!("fp_jackalope_", env!("CARGO_PKG_VERSION"));

/// Tokens counted.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct PromptTokensDetails {
    /// Number of prompt tokens found in the prefix cache.
    cached_tokens: u32,
    /// Reason why more than the last token was computed: `diverged`, for example.
    #[serde(skip_serializing_if = "Option::is_none")]
    miss_reason: Option<&'static str>,
    /// Number of leading tokens that the prompt shares with a cached one.
    #[serde(skip_serializing_if = "Option::is_none")]
    diverged_at: Option<u32>,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct CompletionTokensDetails {
    reasoning_tokens: u32,
}

impl Usage {
    pub(super) fn of(summary: &AnswerSummary) -> Usage {
        let AnswerSummary { prompt_tokens, completion_tokens, .. } = *summary;
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: summary.cached_tokens,
                miss_reason: summary.prefix_miss.map(|miss| miss.reason.name()),
                diverged_at: summary.prefix_miss.map(|miss| miss.diverged_at),
            },
            completion_tokens_details: CompletionTokensDetails {
                reasoning_tokens: summary.reasoning_tokens,
            },
        }
    }
}

/// The block that clients of mlx-jaccl-cluster read.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct Timing {
    seconds: f64,
    tokens_per_sec: f64,
    time_to_first_token_seconds: f64,
}

impl Timing {
    pub(super) fn of(summary: &AnswerSummary) -> Timing {
        Timing {
            seconds: rounded(summary.total_time.as_secs_f64(), 3),
            tokens_per_sec: rounded(summary.total_rate(), 3),
            time_to_first_token_seconds: rounded(
                (summary.queue_time + summary.prefill_time).as_secs_f64(),
                3,
            ),
        }
    }
}

/// The block that clients of ring v2 read.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct Performance {
    prompt_eval_tokens_per_second: f64,
    eval_tokens_per_second: f64,
    cache_hit: bool,
}

impl Performance {
    pub(super) fn of(summary: &AnswerSummary) -> Performance {
        Performance {
            prompt_eval_tokens_per_second: rounded(summary.prefill_rate(), 2),
            eval_tokens_per_second: rounded(summary.decode_rate(), 2),
            cache_hit: summary.cached_tokens > 0,
        }
    }
}
