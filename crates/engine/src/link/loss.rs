//! Ends ranks and groups, and reports each loss once with its cause.

use std::time::{Duration, Instant};

use jackalope_protocol::{Phase, ToRank};

use super::accept::Acceptor;
use super::ending::{Dying, EXIT_GRACE, Remains, bury, examine};
use super::slot::{Activity, State};
use super::{Link, Stage};
use crate::event::CONNECTION_LOST;
use crate::{Failure, GroupEvent};

impl Link {
    /// Handles a connection that broke or went silent. If ranks can outlive their connection, and
    /// the process is not known to have exited or to be silent by its own fault, the link waits for
    /// the rank to reconnect, because reloading its weights is expensive.
    pub(super) fn connection_lost(&mut self, rank: usize, reason: &str, now: Instant) {
        let is_patient = 0 < self.config.assignments[rank].setup.orphan_ms;
        let slot = &mut self.slots[rank];
        let may_return = slot.has_process() && !slot.has_exited();
        if !is_patient || self.is_stock() || !may_return {
            return self.rank_died(rank, reason, EXIT_GRACE, now);
        }
        let activity = self.activity_of(rank);
        let message = format!("{CONNECTION_LOST}: {reason}");
        let failure = self.failure(rank, activity.phase, message);
        self.slots[rank].detach(activity, now);
        self.report_phase(rank);
        if self.stage != Stage::Down {
            // If the process turns out to have exited, its exit is reported instead.
            self.broken.get_or_insert((failure, now + EXIT_GRACE));
        }
    }

    /// Ends a rank, whose process gets `grace` to exit by itself. The loss is reported together
    /// with the exit status and the last output of the process.
    pub(super) fn rank_died(&mut self, rank: usize, reason: &str, grace: Duration, now: Instant) {
        let detached_in = self.slots[rank].detached_in.filter(|_| self.broken.is_some());
        let Activity { phase, since } = detached_in.unwrap_or_else(|| self.activity_of(rank));
        let elapsed_s = now.saturating_duration_since(since).as_secs_f32();
        let mut circumstances = format!(", {elapsed_s:.1} s after it began {}", phase.name());
        let refusing = self.acceptor.as_ref().filter(|it| self.num_refused < it.num_refused());
        if let (Phase::Starting, Some(refused)) = (phase, refusing.and_then(Acceptor::last_refusal))
        {
            circumstances += &format!("\na connection was refused: {refused}");
        }
        // A rank that we end at once may exit because its connection closed, so its exit explains
        // nothing.
        let asks_exit = !grace.is_zero() || self.slots[rank].has_exited();
        let dying = Dying {
            number: 0,
            failure: self.failure(rank, phase, reason.to_owned()),
            is_fatal: false,
            asks_exit,
            circumstances,
            until: Dying::until(grace, now),
        };
        self.end_rank(dying, grace, now);
    }

    /// Ends the rank that the failure names.
    pub(super) fn end_rank(&mut self, mut dying: Dying, grace: Duration, now: Instant) {
        let rank = dying.failure.rank.expect("the failure is about a rank");
        let process = self.slots[rank].release(now);
        self.report_phase(rank);
        let was_down = std::mem::replace(&mut self.stage, Stage::Down) == Stage::Down;
        self.disband(now);
        if was_down {
            // Another loss is being reported already, or the ranks are not in use.
            return bury(process);
        }
        self.num_examined += 1;
        dying.number = self.num_examined;
        match process {
            Some(process) => {
                let reporter = self.reporter.clone().expect("there was a process to end");
                examine(process, grace, dying.number, reporter);
                self.dying = Some(dying);
            }
            None => self.report_loss(dying, Remains::default()),
        }
    }

    pub(super) fn report_loss(&mut self, dying: Dying, remains: Remains) {
        let (failure, is_fatal) = dying.conclude(remains);
        self.events.push_back(GroupEvent::Lost { failure, is_fatal });
    }

    /// Reports the loss of the group and orders its remaining ranks to leave it.
    pub(super) fn lose(&mut self, failure: Failure, is_fatal: bool) {
        let was_down = std::mem::replace(&mut self.stage, Stage::Down) == Stage::Down;
        self.disband(Instant::now());
        if !was_down {
            self.events.push_back(GroupEvent::Lost { failure, is_fatal });
        }
    }

    pub(super) fn disband(&mut self, now: Instant) {
        self.sent.clear();
        self.broken = None;
        let leave = ToRank::Leave { epoch: self.epoch };
        for rank in 0..self.slots.len() {
            if !self.slots[rank].is_in_group() {
                continue;
            }
            if self.is_stock() {
                bury(self.slots[rank].release(now));
            } else {
                self.slots[rank].enter(State::Loaded, now);
                self.write(rank, &leave, now);
            }
            self.report_phase(rank);
        }
    }
}
