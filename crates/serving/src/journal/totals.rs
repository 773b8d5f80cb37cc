//! Totals over all answers, for metrics. The engine itself keeps the distributions of request
//! times.

use jackalope_engine::Buckets;

use super::open_request::Finishes;
use super::record::{AnswerEnding, AnswerRecord};

/// Bucket bounds of vLLM's `request_params_n`.
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// Bucket bounds of the duration of an HTTP request, in seconds.
const HTTP_SECONDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Totals of one model.
#[derive(Clone, Debug)]
pub struct ModelTotals {
    /// Number of answers by [`AnswerEnding::idx`].
    pub endings: [u64; AnswerEnding::NAMES.len()],
    /// Number of choices by finish reason.
    pub finishes: Finishes,
    /// Number of prompt tokens.
    pub prompt_tokens: u64,
    /// Number of prompt tokens found in the cache.
    pub cached_tokens: u64,
    /// Number of tokens sampled.
    pub completion_tokens: u64,
    /// Sum over all answers of the seconds from the first step to the first token.
    pub prompt_seconds: f64,
    /// Sum over all answers of the seconds from the first token to the last.
    pub decode_seconds: f64,
    /// Sum over all answers of the seconds from the request to the end of the answer.
    pub wall_seconds: f64,
    /// Distribution of the number of choices per request.
    pub choices: Buckets,
}

impl Default for ModelTotals {
    fn default() -> ModelTotals {
        ModelTotals {
            endings: [0; AnswerEnding::NAMES.len()],
            finishes: Finishes::default(),
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            prompt_seconds: 0.0,
            decode_seconds: 0.0,
            wall_seconds: 0.0,
            choices: Buckets::new(CHOICES),
        }
    }
}

impl ModelTotals {
    pub(super) fn add(&mut self, record: &AnswerRecord, finishes: &Finishes) {
        let summary = &record.summary;
        self.endings[record.ending.idx()] += 1;
        self.finishes.absorb(finishes);
        self.prompt_tokens += u64::from(summary.prompt_tokens);
        self.cached_tokens += u64::from(summary.cached_tokens);
        self.completion_tokens += u64::from(summary.completion_tokens);
        self.prompt_seconds += summary.prefill_time.as_secs_f64();
        self.decode_seconds += summary.decode_time.as_secs_f64();
        self.wall_seconds += summary.total_time.as_secs_f64();
        // An embedding has no choices.
        if 0 < record.start.num_choices {
            self.choices.record(record.start.num_choices as f64);
        }
    }

    /// Number of answers that have ended, in whatever way.
    pub fn num_ended(&self) -> u64 {
        self.endings.iter().sum()
    }
}

/// Totals of one key.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyTotals {
    /// Number of answers.
    pub requests: u64,
    /// Number of prompt tokens.
    pub prompt_tokens: u64,
    /// Number of tokens sampled.
    pub completion_tokens: u64,
    /// Number of requests refused because of a limit of the key.
    pub limited: u64,
}

/// Totals of HTTP requests with the same method, route and status.
#[derive(Clone, Debug)]
pub struct HttpTotals {
    /// Time from the head of a request to the end of its answer.
    pub seconds: Buckets,
}

impl Default for HttpTotals {
    fn default() -> HttpTotals {
        HttpTotals { seconds: Buckets::new(HTTP_SECONDS) }
    }
}
