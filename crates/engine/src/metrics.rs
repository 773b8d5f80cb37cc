//! Metrics of requests: one record for each, and histograms over all. Names and buckets follow
//! vLLM, so that existing dashboards work. Plain numbers; the exporter chooses the format.

use std::time::{Duration, Instant};

use crate::{Event, FinishReason, Request, RequestId, TenantId, Usage};

/// Upper bounds for the time to the first token, in seconds.
const FIRST_TOKEN_S: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// Upper bounds for the time between two tokens, in seconds.
const BETWEEN_TOKENS_S: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
/// Upper bounds for the phases of a request, in seconds.
const REQUEST_S: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// Upper bounds for the number of tokens of a request.
const REQUEST_TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0,
    20_000.0, 50_000.0, 100_000.0, 200_000.0,
];
/// Upper bounds for the number of tokens of a step.
const STEP_TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0];

/// A histogram with fixed upper bounds, as Prometheus defines it.
#[derive(Clone, Debug, PartialEq)]
pub struct Buckets {
    /// Invariant: ascending.
    bounds: &'static [f64],
    /// Invariant: one more than there are bounds; the last one counts values above all bounds.
    counts: Vec<u64>,
    sum: f64,
}

impl Buckets {
    /// Creates an empty histogram with these bounds, which have to be ascending.
    pub fn new(bounds: &'static [f64]) -> Buckets {
        debug_assert!(bounds.is_sorted(), "bounds rise");
        Buckets { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Creates an empty histogram for the tokens of steps.
    pub(crate) fn of_step_tokens() -> Buckets {
        Buckets::new(STEP_TOKENS)
    }

    /// Counts a value. A value equal to a bound belongs to that bound's bucket.
    pub fn record(&mut self, value: f64) {
        let idx = self.bounds.partition_point(|bound| *bound < value);
        self.counts[idx] += 1;
        self.sum += value;
    }

    fn record_time(&mut self, time: Option<Duration>) {
        if let Some(time) = time {
            self.record(time.as_secs_f64());
        }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of the values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Returns `(upper bound, number of values up to it)` of every bucket; the last bound is
    /// infinity.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(&self.counts).scan(0, |seen, (bound, count)| {
            *seen += count;
            Some((bound, *seen))
        })
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum RequestEnd {
    /// A stop token was sampled, or the caller needed no more tokens.
    Stop,
    /// Everything requested was computed.
    Length,
    /// The request was cancelled by its id.
    Cancelled,
    /// The caller has dropped the request.
    Left,
    /// The model's output was not a number.
    NotANumber,
    /// The request failed in the engine.
    Failed,
}

impl RequestEnd {
    /// All variants.
    pub const ALL: [RequestEnd; 6] = [
        RequestEnd::Stop,
        RequestEnd::Length,
        RequestEnd::Cancelled,
        RequestEnd::Left,
        RequestEnd::NotANumber,
        RequestEnd::Failed,
    ];

    /// Returns the value of vLLM's `finished_reason` in metrics.
    pub fn name(self) -> &'static str {
        match self {
            RequestEnd::Stop => "stop",
            RequestEnd::Length => "length",
            RequestEnd::Cancelled | RequestEnd::Left => "abort",
            RequestEnd::NotANumber | RequestEnd::Failed => "error",
        }
    }
}

/// Metrics of one request. A time is `None` if the request ended before that phase was over.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestRecord {
    /// Id of the request.
    pub id: RequestId,
    /// Tenant that submitted it.
    pub tenant: Option<TenantId>,
    /// Priority of the request.
    pub priority: i32,
    /// Maximum number of tokens that could have been sampled.
    pub max_tokens: u32,
    /// How the request ended.
    pub end: RequestEnd,
    /// Number of tokens and preemptions.
    pub usage: Usage,
    /// Time from submission to the first step.
    pub queue: Option<Duration>,
    /// Time from the first step to the first token, or to the embedding.
    pub prefill: Option<Duration>,
    /// Time from the first token to the last.
    pub decode: Option<Duration>,
    /// Time from submission to the first token.
    pub first_token: Option<Duration>,
    /// Time from submission to the end.
    pub total: Duration,
}

impl RequestRecord {
    /// Returns the time from the first step to the last token.
    pub fn inference(&self) -> Option<Duration> {
        Some(self.prefill? + self.decode.unwrap_or_default())
    }

    /// Returns the mean time per token after the first one.
    pub fn time_per_output_token(&self) -> Option<Duration> {
        let num_later = self.usage.completion_tokens.checked_sub(1).filter(|num| 0 < *num)?;
        Some(self.decode? / num_later)
    }
}

/// Sums and histograms over requests since the start. Each histogram is the vLLM metric named in
/// its documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestStats {
    /// Requests by their end, in the order of [`RequestEnd::ALL`].
    ended: [u64; RequestEnd::ALL.len()],
    /// `time_to_first_token_seconds`.
    pub first_token_s: Buckets,
    /// `inter_token_latency_seconds`, one entry per token after a request's first.
    pub between_tokens_s: Buckets,
    /// `request_time_per_output_token_seconds`, one entry per request.
    pub per_output_token_s: Buckets,
    /// `e2e_request_latency_seconds`.
    pub total_s: Buckets,
    /// `request_queue_time_seconds`.
    pub queue_s: Buckets,
    /// `request_inference_time_seconds`.
    pub inference_s: Buckets,
    /// `request_prefill_time_seconds`.
    pub prefill_s: Buckets,
    /// `request_decode_time_seconds`.
    pub decode_s: Buckets,
    /// `request_prompt_tokens`.
    pub prompt_tokens: Buckets,
    /// `request_generation_tokens`.
    pub generation_tokens: Buckets,
    /// `request_params_max_tokens`.
    pub max_tokens: Buckets,
}

impl Default for RequestStats {
    fn default() -> RequestStats {
        RequestStats {
            ended: [0; RequestEnd::ALL.len()],
            first_token_s: Buckets::new(FIRST_TOKEN_S),
            between_tokens_s: Buckets::new(BETWEEN_TOKENS_S),
            per_output_token_s: Buckets::new(BETWEEN_TOKENS_S),
            total_s: Buckets::new(REQUEST_S),
            queue_s: Buckets::new(REQUEST_S),
            inference_s: Buckets::new(REQUEST_S),
            prefill_s: Buckets::new(REQUEST_S),
            decode_s: Buckets::new(REQUEST_S),
            prompt_tokens: Buckets::new(REQUEST_TOKENS),
            generation_tokens: Buckets::new(REQUEST_TOKENS),
            max_tokens: Buckets::new(REQUEST_TOKENS),
        }
    }
}

impl RequestStats {
    /// Returns the number of requests for each way to end.
    pub fn ended(&self) -> impl Iterator<Item = (RequestEnd, u64)> {
        RequestEnd::ALL.into_iter().zip(self.ended)
    }

    /// Counts a request that has ended. The times of its tokens are counted when they are sampled.
    fn count(&mut self, record: &RequestRecord) {
        for (end, count) in RequestEnd::ALL.into_iter().zip(&mut self.ended) {
            *count += u64::from(end == record.end);
        }
        self.per_output_token_s.record_time(record.time_per_output_token());
        self.total_s.record_time(Some(record.total));
        self.queue_s.record_time(record.queue);
        self.inference_s.record_time(record.inference());
        self.prefill_s.record_time(record.prefill);
        self.decode_s.record_time(record.decode);
        self.prompt_tokens.record(record.usage.prompt_tokens.into());
        self.generation_tokens.record(record.usage.completion_tokens.into());
        self.max_tokens.record(record.max_tokens.into());
    }
}

/// The times and counts of an open request.
#[derive(Debug)]
pub(crate) struct Timeline {
    id: RequestId,
    tenant: Option<TenantId>,
    priority: i32,
    max_tokens: u32,
    usage: Usage,
    submitted_at: Instant,
    started_at: Option<Instant>,
    /// Time of the first token, or of the embedding.
    first_at: Option<Instant>,
    last_at: Option<Instant>,
}

impl Timeline {
    pub(crate) fn new(id: RequestId, request: &Request, now: Instant) -> Timeline {
        let prompt_tokens = u32::try_from(request.prompt().len()).unwrap_or(u32::MAX);
        Timeline {
            id,
            tenant: request.tenant(),
            priority: request.priority(),
            max_tokens: request.max_tokens(),
            usage: Usage { prompt_tokens, ..Usage::default() },
            submitted_at: now,
            started_at: None,
            first_at: None,
            last_at: None,
        }
    }

    pub(crate) fn tenant(&self) -> Option<TenantId> {
        self.tenant
    }

    pub(crate) fn priority(&self) -> i32 {
        self.priority
    }

    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.submitted_at)
    }

    /// Records an event that is about to be sent. Returns the record if it is the last event.
    pub(crate) fn note(
        &mut self,
        event: &Event,
        now: Instant,
        stats: &mut RequestStats,
    ) -> Option<RequestRecord> {
        let end = match event {
            Event::Started { cached_tokens, miss } => {
                self.usage.cached_tokens = *cached_tokens;
                self.usage.prefix_miss = *miss;
                self.started_at = Some(now);
                return None;
            }
            Event::PromptScored { .. } => return None,
            Event::Embedded { .. } => {
                self.first_at = Some(now);
                return None;
            }
            Event::Token { .. } => {
                self.note_token(now, stats);
                return None;
            }
            Event::Finished { reason, usage } => {
                self.usage = *usage;
                match reason {
                    FinishReason::Stop => RequestEnd::Stop,
                    FinishReason::Length => RequestEnd::Length,
                    FinishReason::Cancelled => RequestEnd::Cancelled,
                }
            }
            Event::NotANumber { .. } => RequestEnd::NotANumber,
            Event::ConstraintFailed { .. } | Event::Poisonous(_) | Event::Failed(_) => {
                RequestEnd::Failed
            }
        };
        Some(self.end(end, now, stats))
    }

    fn note_token(&mut self, now: Instant, stats: &mut RequestStats) {
        self.usage.completion_tokens += 1;
        match self.last_at.replace(now) {
            Some(before) => stats.between_tokens_s.record_time(Some(now - before)),
            None => {
                self.first_at = Some(now);
                stats.first_token_s.record_time(Some(now - self.submitted_at));
            }
        }
    }

    /// Returns the record of a request that ends now.
    pub(crate) fn end(
        &self,
        end: RequestEnd,
        now: Instant,
        stats: &mut RequestStats,
    ) -> RequestRecord {
        let between = |from: Option<Instant>, to: Option<Instant>| Some(to? - from?);
        // For an embedding, `first_at` is not the time of a token.
        let first_token_at = self.last_at.and(self.first_at);
        let record = RequestRecord {
            id: self.id,
            tenant: self.tenant,
            priority: self.priority,
            max_tokens: self.max_tokens,
            end,
            usage: self.usage,
            queue: between(Some(self.submitted_at), self.started_at),
            prefill: between(self.started_at, self.first_at),
            decode: between(first_token_at, self.last_at),
            first_token: between(Some(self.submitted_at), first_token_at),
            total: self.age(now),
        };
        stats.count(&record);
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RequestLimits, RequestOptions};

    #[test]
    fn buckets_count_every_value_once_and_bounds_belong_to_their_own() {
        let mut buckets = Buckets::of_step_tokens();
        [1.0, 1.5, 8.0, 9.0, 1e9].into_iter().for_each(|value| buckets.record(value));
        let counts: Vec<(f64, u64)> = buckets.cumulative().collect();
        assert_eq!(counts[..3], [(1.0, 1), (8.0, 3), (16.0, 4)]);
        assert_eq!(counts.last(), Some(&(f64::INFINITY, 5)));
        assert_eq!((buckets.count(), counts.len()), (5, 14));
        assert!((buckets.sum() - (1e9 + 19.5)).abs() < 1e-6);
        let all = [FIRST_TOKEN_S, BETWEEN_TOKENS_S, REQUEST_S, REQUEST_TOKENS, STEP_TOKENS];
        assert!(all.iter().all(|bounds| bounds.is_sorted_by(|a, b| a < b)));
    }

    #[test]
    fn the_parts_of_a_request_add_up() {
        let limits = RequestLimits {
            context_tokens: 100,
            max_prompt_tokens: 100,
            vocab_size: 10,
            eos_tokens: Vec::new(),
        };
        let options = RequestOptions {
            prompt: vec![1, 2, 3],
            max_tokens: Some(9),
            priority: -4,
            tenant: Some(TenantId(7)),
            ..RequestOptions::default()
        };
        let request = Request::new(options, &limits).unwrap();
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut stats = RequestStats::default();
        let mut timeline = Timeline::new(RequestId(5), &request, begin);
        let token = Event::Token { token: 1, logprob: None };
        let usage = Usage {
            prompt_tokens: 3,
            completion_tokens: 3,
            cached_tokens: 2,
            preemptions: 1,
            ..Usage::default()
        };
        let events = [
            (2, Event::Started { cached_tokens: 2, miss: None }),
            (5, token.clone()),
            (6, token.clone()),
            (9, token),
            (10, Event::Finished { reason: FinishReason::Stop, usage }),
        ];
        let mut records = Vec::new();
        for (seconds, event) in events {
            records.extend(timeline.note(&event, at(seconds), &mut stats));
        }
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let [record] = &records[..] else { panic!("{records:?}") };
        assert_eq!(
            (record.id, record.tenant, record.priority),
            (RequestId(5), Some(TenantId(7)), -4)
        );
        assert_eq!((record.end, record.usage, record.max_tokens), (RequestEnd::Stop, usage, 9));
        assert_eq!([record.queue, record.prefill, record.decode], [2, 3, 4].map(seconds));
        assert_eq!([record.first_token, record.inference()], [5, 7].map(seconds));
        assert_eq!((record.time_per_output_token(), record.total), (seconds(2), at(10) - begin));
        assert_eq!((stats.between_tokens_s.count(), stats.between_tokens_s.sum()), (2, 4.0));
        assert_eq!(stats.ended().next(), Some((RequestEnd::Stop, 1)));
        assert_eq!(stats.ended().map(|(_, count)| count).sum::<u64>(), 1);
        for histogram in [&stats.first_token_s, &stats.total_s, &stats.queue_s, &stats.decode_s] {
            assert_eq!(histogram.count(), 1);
        }
    }
}
