//! What the engine shows of itself: the status that handles read, and the streams of events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jackalope_protocol::StepTimings;
use tokio::sync::watch;

use super::EngineConfig;
use super::pressure::PressureStatus;
use super::streams::Streams;
use crate::command::{Departure, Gauges};
use crate::{
    Counters, EngineState, Event, Failure, KvStatus, PrefixStats, RankStatus, RecoveryStats,
    RequestId, RequestStats, Scheduler, Status, StepStats,
};

/// The engine's end of the status and of all streams.
pub(super) struct Reporting {
    pub(super) status: watch::Sender<Status>,
    pub(super) streams: Streams,
    /// Number of requests whose output was complete for their callers before the scheduler ended
    /// them.
    num_completed: u64,
}

/// A step that rank 0 has answered.
pub(super) struct CompletedStep {
    /// Time since the step before it.
    pub(super) interval: Duration,
    /// Time that applying the answer took.
    pub(super) commit_time: Duration,
    pub(super) num_tokens: usize,
    /// Times on rank 0.
    pub(super) timings: StepTimings,
    pub(super) at: Instant,
}

impl Reporting {
    pub(super) fn new(
        config: &EngineConfig,
        ranks: Vec<RankStatus>,
        gauges: Arc<Gauges>,
    ) -> Reporting {
        let status = Status {
            state: EngineState::Starting,
            limits: None,
            ranks,
            queued: 0,
            queue_max: config.queue_max as usize,
            running: 0,
            running_max: config.running_max.min(config.step_tokens) as usize,
            kv: KvStatus::default(),
            prefix: PrefixStats::default(),
            counters: Counters::default(),
            steps: StepStats::default(),
            requests: RequestStats::default(),
            due_at: None,
            start_failure: None,
            recovery: RecoveryStats::default(),
            pressure: PressureStatus::default(),
            heat: Vec::new(),
            broken_links: Vec::new(),
        };
        Reporting {
            status: watch::Sender::new(status),
            streams: Streams::new(gauges),
            num_completed: 0,
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    pub(super) fn is_failed(&self) -> bool {
        matches!(self.status.borrow().state, EngineState::Failed { .. })
    }

    pub(super) fn fail_all(&mut self, failure: &Failure) {
        for id in self.streams.ids() {
            self.fail_one(id, Event::Failed(failure.clone()));
        }
    }

    pub(super) fn fail_one(&mut self, id: RequestId, event: Event) {
        let streams = &mut self.streams;
        self.status.send_if_modified(|status| {
            let was_open = streams.fail(id, event, &mut status.requests);
            status.counters.failed += u64::from(was_open);
            false
        });
    }

    /// Removes and counts the stream of a request whose caller reads no more of it. Returns false if
    /// it has ended already.
    pub(super) fn leave(&mut self, id: RequestId, departure: Departure) -> bool {
        let streams = &mut self.streams;
        let num_completed = &mut self.num_completed;
        let mut was_open = false;
        self.status.send_if_modified(|status| {
            was_open = streams.leave(id, departure, &mut status.requests);
            match departure {
                Departure::Complete => *num_completed += u64::from(was_open),
                Departure::Left => status.counters.cancelled += u64::from(was_open),
            }
            false
        });
        was_open
    }

    pub(super) fn send(&mut self, events: Vec<(RequestId, Event)>) {
        if events.is_empty() {
            return;
        }
        let streams = &mut self.streams;
        self.status.send_if_modified(|status| {
            let num_failed = streams.note(&events, &mut status.requests);
            status.counters.failed += num_failed;
            false
        });
        events.into_iter().for_each(|(id, event)| streams.send(id, event));
    }

    pub(super) fn note_step(&self, step: &CompletedStep) {
        let interval_ns = nanos(step.interval);
        self.modify(|status| {
            let steps = &mut status.steps;
            steps.steps += 1;
            steps.computed_tokens += step.num_tokens as u64;
            steps.commit_ns += nanos(step.commit_time);
            steps.interval_ns += interval_ns;
            steps.interval_us.record(interval_ns / 1000);
            steps.batch_tokens.record(step.num_tokens as u64);
            steps.iteration_tokens.record(step.num_tokens as f64);
            let rank = &mut status.ranks[0];
            rank.last_message_at = Some(step.at);
            rank.steps += 1;
            rank.timings.add(&step.timings);
        });
    }

    /// Publishes the scheduler's numbers. `due_at` is the time by which the next step has to
    /// complete.
    pub(super) fn publish(&self, scheduler: &Scheduler, due_at: Option<Instant>) {
        let stats = scheduler.stats();
        let (queued, running) = scheduler.num_waiting_and_running();
        let (used, kept) = scheduler.used_and_kept();
        self.modify(|status| {
            status.due_at = due_at;
            (status.queued, status.running) = (queued, running);
            status.kv.running_bytes = scheduler.capacity().bytes(used);
            status.kv.kept_bytes = scheduler.capacity().bytes(kept);
            status.kv.num_kept = scheduler.num_kept();
            status.prefix = scheduler.prefix_stats();
            status.counters.finished = stats.finished + self.num_completed;
            status.counters.not_a_number = stats.not_a_number;
            status.counters.sampled_tokens = stats.sampled_tokens;
            status.counters.dropped_tokens = stats.dropped_tokens;
            status.counters.preemptions = stats.preemptions;
        });
    }

    /// Changes numbers of the status without waking tasks that wait for another state.
    pub(super) fn modify(&self, change: impl FnOnce(&mut Status)) {
        self.status.send_if_modified(|status| {
            change(status);
            false
        });
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Counters)) {
        self.modify(|status| change(&mut status.counters));
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
