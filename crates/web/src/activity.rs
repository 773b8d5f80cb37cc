//! The rates and queue lengths of the last minutes, and the latest losses of ranks.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jackalope_engine::Status;
use jackalope_serving::ids::unix_time;
use jackalope_serving::numbers::rounded;
use jackalope_serving::state::ServingState;
use serde_json::{Value, json};

/// Maximum number of samples that are kept.
pub const SAMPLES_MAX: usize = 600;

/// Maximum number of recoveries that are kept.
const RECOVERIES_MAX: usize = 100;

/// Rates and queues at one moment, over all models.
#[derive(Clone, Copy, Debug)]
struct ActivitySample {
    /// Time in seconds since 1970.
    at: f64,
    /// Tokens sampled per second since the sample before.
    sampled_rate: f64,
    /// Prompt tokens computed per second since the sample before.
    prompt_rate: f64,
    running: usize,
    waiting: usize,
}

/// The loss of a rank, and how long the ranks were down.
#[derive(Clone, Debug)]
struct PastRecovery {
    model: String,
    /// Time of the loss on the engine's clock, by which a loss is recognised.
    lost_at: Instant,
    /// Time of the loss in seconds since 1970.
    at: f64,
    rank: Option<usize>,
    cause: String,
    /// None while the ranks are down.
    took: Option<Duration>,
}

/// Counters of an engine when they were last read.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    sampled: u64,
    computed: u64,
}

#[derive(Debug, Default)]
struct Past {
    samples: VecDeque<ActivitySample>,
    recoveries: VecDeque<PastRecovery>,
    counted: HashMap<String, Counted>,
    counted_at: Option<Instant>,
}

/// Samples of rates and queues, and losses of ranks. The server takes a sample every second.
#[derive(Debug, Default)]
pub struct Activity {
    past: Mutex<Past>,
}

impl Activity {
    /// Records what the engines have done since the last sample.
    pub fn sample(&self, state: &ServingState) {
        let now = Instant::now();
        let mut past = self.lock();
        let mut computed = Counted::default();
        let (mut running, mut waiting) = (0, 0);
        let models = state.models().list();
        past.counted.retain(|id, _| models.iter().any(|it| it.id == *id));
        for model in models.iter().filter(|it| it.model.is_some()) {
            let status = model.engine_status();
            let since = past.count(&model.id, &status);
            computed.sampled += since.sampled;
            computed.computed += since.computed;
            running += status.running;
            waiting += status.queued;
            past.note_recovery(&model.id, &status, now);
        }
        let seconds = past.counted_at.map(|at| now.duration_since(at).as_secs_f64());
        past.counted_at = Some(now);
        // Rates need the time since the previous sample, which the first one does not have.
        let Some(seconds) = seconds.filter(|it| 0.0 < *it) else { return };
        let rate = |tokens: u64| rounded(tokens as f64 / seconds, 1);
        if past.samples.len() == SAMPLES_MAX {
            past.samples.pop_front();
        }
        past.samples.push_back(ActivitySample {
            at: unix_time(),
            sampled_rate: rate(computed.sampled),
            prompt_rate: rate(computed.computed.saturating_sub(computed.sampled)),
            running,
            waiting,
        });
    }

    /// The last `count` samples, the newest last, as lists of numbers.
    pub(crate) fn samples(&self, count: usize) -> Vec<Value> {
        let past = self.lock();
        let skipped = past.samples.len().saturating_sub(count);
        let list = past.samples.iter().skip(skipped);
        let numbers = |it: &ActivitySample| {
            json!([rounded(it.at, 2), it.sampled_rate, it.prompt_rate, it.running, it.waiting])
        };
        list.map(numbers).collect()
    }

    /// The recoveries, the newest last.
    pub(crate) fn recoveries(&self) -> Vec<Value> {
        let entry = |it: &PastRecovery| {
            json!({
                "model": it.model,
                "at": rounded(it.at, 3),
                "rank": it.rank,
                "cause": it.cause,
                "seconds": it.took.map(|took| rounded(took.as_secs_f64(), 3)),
            })
        };
        self.lock().recoveries.iter().map(entry).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Past {
    /// Returns the tokens that the engine of `model` has sampled and computed since the last call.
    /// An engine that was loaded again counts from zero.
    fn count(&mut self, model: &str, status: &Status) -> Counted {
        let now = Counted {
            sampled: status.counters.sampled_tokens,
            computed: status.steps.computed_tokens,
        };
        let before = self.counted.insert(model.to_owned(), now).unwrap_or_default();
        let since = |now: u64, before: u64| if now < before { now } else { now - before };
        Counted {
            sampled: since(now.sampled, before.sampled),
            computed: since(now.computed, before.computed),
        }
    }

    fn note_recovery(&mut self, model: &str, status: &Status, now: Instant) {
        let (Some(lost_at), Some(cause)) = (status.recovery.lost_at, &status.recovery.cause) else {
            return;
        };
        let took = status.recovery.took;
        let known = self.recoveries.iter_mut().rev().find(|it| it.model == model);
        if let Some(known) = known.filter(|it| it.lost_at == lost_at || it.took.is_none()) {
            known.took = took;
            return;
        }
        if self.recoveries.len() == RECOVERIES_MAX {
            self.recoveries.pop_front();
        }
        self.recoveries.push_back(PastRecovery {
            model: model.to_owned(),
            lost_at,
            at: unix_time() - now.saturating_duration_since(lost_at).as_secs_f64(),
            rank: cause.rank,
            cause: cause.to_string(),
            took,
        });
    }
}
