//! Handles what ranks send: progress, answers to plans, heartbeats and failures.

use std::time::{Duration, Instant};

use jackalope_protocol::{FailureKind, FromRank, HeartbeatEcho, Phase, RankFailure};
use tracing::info;

use super::Link;
use super::ending::{Dying, EXIT_GRACE};
use super::slot::State;
use crate::GroupEvent;

impl Link {
    pub(super) fn on_message(&mut self, rank: usize, message: FromRank, now: Instant) {
        let slot = &mut self.slots[rank];
        slot.heard_at = now;
        match message {
            FromRank::Progress { done_bytes, total_bytes } => {
                if let State::Loading { .. } = slot.state {
                    slot.state = State::Loading { progressed_at: now, done_bytes, total_bytes };
                    self.report_phase(rank);
                }
            }
            FromRank::WarmingUp => {
                match &mut slot.state {
                    State::Loading { .. } => {
                        info!(rank, "computing its first steps");
                        slot.enter(State::WarmingUp { num_reports: 1 }, now);
                    }
                    State::WarmingUp { num_reports } => *num_reports += 1,
                    _ => return,
                }
                self.report_phase(rank);
            }
            // A rank that reconnected while it was loading may report this twice.
            FromRank::Loaded(_) if !slot.is_loading() => {}
            FromRank::Loaded(facts) => {
                let setup = &self.config.assignments[rank].setup;
                if let Err(message) = setup.check_cache_cost(rank, facts.cache_cost) {
                    let (phase, kind, peers) = (Phase::Loading, FailureKind::Model, Vec::new());
                    let failure = RankFailure { epoch: 0, phase, kind, message, peers };
                    return self.on_failed(rank, failure, now);
                }
                info!(rank, facts.weights_bytes, facts.load_ms, "shard loaded");
                slot.facts = Some(facts);
                slot.enter(State::Loaded, now);
                self.report_phase(rank);
                self.join_if_loaded(now);
            }
            FromRank::Joined { epoch } => {
                if epoch == self.epoch && matches!(slot.state, State::Joining) {
                    slot.enter(State::Standing, now);
                    self.report_phase(rank);
                    self.stand_if_joined();
                }
            }
            FromRank::Output { epoch, output } if rank == 0 => {
                if self.is_current(rank, epoch) {
                    self.note_step(rank, now);
                    self.events.push_back(GroupEvent::Output(output));
                }
            }
            FromRank::Output { .. } => {
                self.rank_died(rank, "it answered in place of rank 0", Duration::ZERO, now);
            }
            FromRank::Done { epoch, step, timings } => {
                if self.is_current(rank, epoch) {
                    self.note_step(rank, now);
                    self.events.push_back(GroupEvent::Done { rank, step, timings });
                }
            }
            FromRank::Heartbeat { phase, steps_done, waiting_ms, memory, echo } => {
                slot.waiting = Duration::from_millis(waiting_ms);
                let round_trip = echo.and_then(|it| self.round_trip(it, now));
                let heartbeat =
                    GroupEvent::Heartbeat { rank, phase, steps_done, memory, round_trip };
                self.events.push_back(heartbeat);
            }
            FromRank::Failed(failure) => self.on_failed(rank, failure, now),
        }
    }

    /// Returns the round-trip time of a heartbeat and the message that answers it; `None` if the
    /// heartbeat was another coordinator's.
    pub(super) fn round_trip(&self, echo: HeartbeatEcho, now: Instant) -> Option<Duration> {
        let HeartbeatEcho { sent_us, held_us } = echo;
        self.micros(now).checked_sub(sent_us)?.checked_sub(held_us).map(Duration::from_micros)
    }

    /// Returns the time in microseconds by the clock of the heartbeats.
    pub(super) fn micros(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn on_failed(&mut self, rank: usize, failure: RankFailure, now: Instant) {
        let RankFailure { epoch, phase, kind, .. } = failure;
        match kind {
            FailureKind::Group => {
                if epoch != self.epoch || !self.slots[rank].is_in_group() {
                    return;
                }
                if !self.is_stock() {
                    self.slots[rank].enter(State::Loaded, now);
                }
                // The rank that noticed the failure is seldom the one at fault. A dead process is
                // detected within moments, and users should then read about that process.
                let failure = self.group_failure(rank, failure, now);
                self.broken.get_or_insert((failure, now + EXIT_GRACE));
            }
            FailureKind::Model | FailureKind::Device => {
                let dying = Dying {
                    number: 0,
                    failure: self.failure(rank, phase, failure.message),
                    is_fatal: kind == FailureKind::Model,
                    asks_exit: false,
                    circumstances: String::new(),
                    until: Dying::until(EXIT_GRACE, now),
                };
                self.end_rank(dying, EXIT_GRACE, now);
            }
        }
    }

    pub(super) fn is_current(&self, rank: usize, epoch: u64) -> bool {
        epoch == self.epoch && matches!(self.slots[rank].state, State::Standing)
    }

    pub(super) fn note_step(&mut self, rank: usize, now: Instant) {
        let slot = &mut self.slots[rank];
        slot.steps_done += 1;
        slot.progressed_at = now;
        let done_by_all = self.slots.iter().map(|slot| slot.steps_done).min().unwrap_or(0);
        while self.sent.front().is_some_and(|sent| sent.step < done_by_all) {
            self.sent.pop_front();
        }
    }
}
