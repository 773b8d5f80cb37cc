//! Sums over everything that was answered, for metrics.

use std::time::Duration;

use super::distribution::Distribution;
use super::record::{Ending, RequestRecord};
use super::recorder::Finishes;

/// Bounds of vLLM's `time_to_first_token_seconds`.
const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// Bounds of vLLM's `inter_token_latency_seconds`.
pub(super) const TOKEN_SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

/// Bounds of vLLM's request times.
const REQUEST_SECONDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// Bounds of vLLM's token counts: 1, 2, 5 and their multiples.
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5,
    5e5, 1e6,
];

/// Bounds of vLLM's `request_params_n`.
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// Bounds of the time that an HTTP request takes.
const HTTP_SECONDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Everything that one model answered.
#[derive(Clone, Debug)]
pub(crate) struct ModelTotals {
    /// By [`Ending::idx`].
    pub(crate) endings: [u64; Ending::NAMES.len()],
    pub(crate) finishes: Finishes,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) prompt_seconds: f64,
    pub(crate) decode_seconds: f64,
    pub(crate) wall_seconds: f64,
    pub(crate) first_token: Distribution,
    pub(crate) token_gaps: Distribution,
    pub(crate) time_per_token: Distribution,
    pub(crate) total_time: Distribution,
    pub(crate) queue_time: Distribution,
    pub(crate) inference_time: Distribution,
    pub(crate) prefill_time: Distribution,
    pub(crate) decode_time: Distribution,
    pub(crate) prompt_lengths: Distribution,
    pub(crate) answer_lengths: Distribution,
    pub(crate) max_tokens: Distribution,
    pub(crate) choices: Distribution,
}

impl Default for ModelTotals {
    fn default() -> ModelTotals {
        let seconds = || Distribution::new(REQUEST_SECONDS);
        ModelTotals {
            endings: [0; Ending::NAMES.len()],
            finishes: Finishes::default(),
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            prompt_seconds: 0.0,
            decode_seconds: 0.0,
            wall_seconds: 0.0,
            first_token: Distribution::new(FIRST_TOKEN_SECONDS),
            token_gaps: Distribution::new(TOKEN_SECONDS),
            time_per_token: Distribution::new(TOKEN_SECONDS),
            total_time: seconds(),
            queue_time: seconds(),
            inference_time: seconds(),
            prefill_time: seconds(),
            decode_time: seconds(),
            prompt_lengths: Distribution::new(TOKENS),
            answer_lengths: Distribution::new(TOKENS),
            max_tokens: Distribution::new(TOKENS),
            choices: Distribution::new(CHOICES),
        }
    }
}

impl ModelTotals {
    pub(super) fn add(&mut self, record: &RequestRecord, finishes: &Finishes, gaps: &Distribution) {
        self.endings[record.ending.idx()] += 1;
        self.finishes.absorb(finishes);
        self.prompt_tokens += u64::from(record.prompt_tokens);
        self.cached_tokens += u64::from(record.cached_tokens);
        self.completion_tokens += u64::from(record.completion_tokens);
        self.wall_seconds += record.total_time.as_secs_f64();
        self.token_gaps.absorb(gaps);
        let seconds = |into: &mut Distribution, time: Duration| into.record(time.as_secs_f64());
        seconds(&mut self.total_time, record.total_time);
        seconds(&mut self.queue_time, record.queue_time);
        self.prompt_lengths.record(record.prompt_tokens.into());
        self.answer_lengths.record(record.completion_tokens.into());
        self.max_tokens.record(record.max_tokens.into());
        self.choices.record(record.num_choices as f64);
        if !record.has_tokens {
            return;
        }
        self.prompt_seconds += record.prefill_time.as_secs_f64();
        self.decode_seconds += record.decode_time.as_secs_f64();
        seconds(&mut self.first_token, record.time_to_first_token());
        seconds(&mut self.prefill_time, record.prefill_time);
        seconds(&mut self.decode_time, record.decode_time);
        seconds(&mut self.inference_time, record.prefill_time + record.decode_time);
        if 1 < record.completion_tokens {
            let gaps = f64::from(record.completion_tokens - 1);
            self.time_per_token.record(record.decode_time.as_secs_f64() / gaps);
        }
    }

    /// Answers that have ended, however they did.
    pub(crate) fn num_ended(&self) -> u64 {
        self.endings.iter().sum()
    }
}

/// What a key's holder has used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyTotals {
    pub(crate) requests: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    /// Requests refused because of a limit of the key.
    pub(crate) limited: u64,
}

/// HTTP requests of one method, route and status.
#[derive(Clone, Debug)]
pub(crate) struct HttpTotals {
    /// From the head of the request to the end of the answer.
    pub(crate) seconds: Distribution,
}

impl Default for HttpTotals {
    fn default() -> HttpTotals {
        HttpTotals { seconds: Distribution::new(HTTP_SECONDS) }
    }
}
