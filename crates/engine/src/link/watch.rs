//! The deadlines of the link: what it waits for, for how long, and the failure when a deadline
//! passes.

use std::fmt;
use std::time::{Duration, Instant};

use jackalope_protocol::{ToRank, counted};

use super::ending::{EXIT_GRACE, Remains};
use super::reach::LINK_POLL;
use super::slot::{Slot, State};
use super::{Link, LinkTimeouts, SentStep, Stage};
use crate::RankGroup;

/// Interval at which a process that has not connected yet is polled for its exit. Later, its socket
/// shows the exit.
const LAUNCH_POLL: Duration = Duration::from_millis(50);

/// Interval at which the launcher is polled for machines that have come or gone.
const REASSIGN_POLL: Duration = Duration::from_millis(500);

/// Factor by which the timeout of a group's first step is larger, because that step reads every
/// weight and may compile for the device. A frozen process is detected by its silence even then.
const FIRST_STEP: u32 = 3;

/// Inverse of a share: a rank that waited for its peers for at least this share of the elapsed
/// timeout did not hold up the others. Heartbeats are one second apart, so the last one may be from
/// well before the timeout.
const HELD_UP_PART: u32 = 4;

impl Link {
    /// Sends heartbeats, and ends ranks that have passed their deadline.
    pub(super) fn check_deadlines(&mut self, now: Instant) {
        self.checked_at = now;
        if self.heartbeat_sent_at + self.config.timeouts.heartbeat_interval <= now {
            self.send_heartbeats(now);
        }
        if self.check_links(now) {
            return;
        }
        if self.launcher.is_elastic()
            && self.stage != Stage::Down
            && let Some(assignments) = self.launcher.reassign()
        {
            self.reassign(assignments, now);
            return self.recover(now);
        }
        if self.broken.as_ref().is_some_and(|(_, until)| *until <= now) {
            let (failure, _) = self.broken.take().expect("it was just seen");
            self.lose(failure, false);
        }
        if let Some(dying) = self.dying.take_if(|dying| dying.until <= now) {
            self.report_loss(dying, Remains::default());
        }
        for rank in 0..self.slots.len() {
            let slot = &mut self.slots[rank];
            if let Some(reason) = slot.distrust().filter(|_| slot.is_connected()) {
                let reason = format!("its machine is not trusted any more: {reason}");
                self.rank_died(rank, &reason, Duration::ZERO, now);
                continue;
            }
            let State::Launched = slot.state else { continue };
            if slot.trouble().is_some() {
                // The timeout starts when its machine is reachable again.
                slot.entered_at = now;
            } else if slot.has_exited() {
                self.rank_died(rank, "the process ended", EXIT_GRACE, now);
            }
        }
        let overdue = (0..self.slots.len())
            .filter_map(|rank| Some((rank, self.wait_for(rank)?)))
            .filter(|(_, wait)| wait.deadline() <= now);
        // All ranks wait for the slowest: the one that completed the fewest steps, or was silent
        // for longest.
        let Some((rank, wait)) = overdue.min_by_key(|(rank, _)| self.progress_of(*rank)) else {
            return;
        };
        match self.who_holds_up(rank, &wait) {
            Some(culprit) => {
                let reason = format!("its peers wait for it: of rank {rank}, {wait}");
                self.rank_died(culprit, &reason, Duration::ZERO, now);
            }
            None if matches!(wait.reason, Reason::Life) && self.slots[rank].trouble().is_some() => {
                self.connection_lost(rank, &wait.to_string(), now);
            }
            None if matches!(wait.reason, Reason::Step { .. }) && self.do_all_wait(now) => {
                self.lose(self.all_wait_failure(&wait), false);
            }
            None => self.rank_died(rank, &wait.to_string(), Duration::ZERO, now),
        }
    }

    /// Sends a heartbeat to all ranks. A rank that does not receive it is detected by its own
    /// silence.
    fn send_heartbeats(&mut self, now: Instant) {
        self.heartbeat_sent_at = now;
        let sent_us = self.micros(now);
        for rank in 0..self.slots.len() {
            if self.slots[rank].is_connected() {
                self.write(rank, &ToRank::Heartbeat { sent_us }, now);
            }
        }
    }

    fn progress_of(&self, rank: usize) -> (u64, Instant) {
        (self.slots[rank].steps_done, self.slots[rank].heard_at)
    }

    /// Returns the rank that an overdue one waits for, if any. That rank may be a step ahead and
    /// not overdue itself: it reported its step, and froze before all its data was sent to its
    /// peers.
    fn who_holds_up(&self, rank: usize, wait: &Wait) -> Option<usize> {
        let is_held_up = |rank: usize| wait.timeout <= self.slots[rank].waiting * HELD_UP_PART;
        if !matches!(wait.reason, Reason::Step { .. }) || !is_held_up(rank) {
            return None;
        }
        let peers = (0..self.slots.len()).filter(|peer| {
            matches!(self.slots[*peer].state, State::Standing) && !is_held_up(*peer)
        });
        peers.min_by_key(|peer| self.progress_of(*peer))
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let ranks = (0..self.slots.len()).filter_map(|rank| Some(self.wait_for(rank)?.deadline()));
        let is_launched = self.slots.iter().any(|slot| matches!(slot.state, State::Launched));
        let poll = is_launched.then(|| self.checked_at + LAUNCH_POLL);
        let broken = self.broken.as_ref().map(|(_, until)| *until);
        let dying = self.dying.as_ref().map(|dying| dying.until);
        let is_anyone_there = self.slots.iter().any(Slot::is_connected);
        let heartbeat = is_anyone_there
            .then(|| self.heartbeat_sent_at + self.config.timeouts.heartbeat_interval);
        let reassign = self.launcher.is_elastic().then(|| self.checked_at + REASSIGN_POLL);
        let links = self.launcher.is_watching_links().then(|| self.checked_at + LINK_POLL);
        let all = ranks.chain(poll).chain(broken).chain(dying).chain(heartbeat);
        all.chain(reassign).chain(links).min()
    }

    /// Returns the time within which a launched rank has to connect.
    fn hello_timeout(&self, slot: &Slot) -> Duration {
        let LinkTimeouts { hello, replacement_hello, .. } = self.config.timeouts;
        if !self.has_stood || slot.detached_in.is_some() {
            return hello;
        }
        let num_before = slot.num_silent.saturating_sub(1).min(16);
        replacement_hello.saturating_mul(1 << num_before).min(hello)
    }

    /// Returns the earliest deadline among this rank's pending waits, if any.
    fn wait_for(&self, rank: usize) -> Option<Wait> {
        let slot = &self.slots[rank];
        let timeouts = &self.config.timeouts;
        let wait = |reason, since, timeout| Some(Wait { reason, since, timeout });
        let expected = match slot.state {
            State::Absent => return None,
            State::Spawning => return wait(Reason::Spawn, slot.entered_at, timeouts.spawn),
            State::Launched if slot.is_started_elsewhere() => return None,
            State::Launched => {
                return wait(Reason::Hello, slot.entered_at, self.hello_timeout(slot));
            }
            State::Loading { progressed_at, done_bytes, total_bytes } => {
                let whole = wait(Reason::Load, slot.entered_at, timeouts.load);
                let stall = Reason::Progress { done_bytes, total_bytes };
                earlier(whole, wait(stall, progressed_at, timeouts.load_stall))
            }
            State::WarmingUp { .. } => wait(Reason::WarmUp, slot.entered_at, timeouts.warm_up),
            State::Loaded => None,
            State::Joining => {
                let join =
                    Duration::from_millis(self.config.assignments[rank].setup.join_timeout_ms);
                wait(Reason::Join, slot.entered_at, join + timeouts.join_margin)
            }
            State::Standing => {
                let oldest = self.sent.iter().find(|sent| sent.step == slot.steps_done);
                oldest.and_then(|SentStep { step, at, num_tokens }| {
                    let reason = Reason::Step { step: *step, num_tokens: *num_tokens };
                    let factor = if slot.steps_done == 0 { FIRST_STEP } else { 1 };
                    let timeout = timeouts.step_of(*num_tokens) * factor;
                    wait(reason, slot.progressed_at.max(*at), timeout)
                })
            }
        };
        earlier(expected, wait(Reason::Life, slot.heard_at, timeouts.heartbeat))
    }
}

fn earlier(a: Option<Wait>, b: Option<Wait>) -> Option<Wait> {
    a.into_iter().chain(b).min_by_key(Wait::deadline)
}

/// A pending wait for a rank.
#[derive(Clone, Copy, Debug)]
struct Wait {
    reason: Reason,
    since: Instant,
    timeout: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Reason {
    Spawn,
    Hello,
    Progress { done_bytes: u64, total_bytes: u64 },
    Load,
    WarmUp,
    Join,
    Step { step: u64, num_tokens: usize },
    Life,
}

impl Wait {
    fn deadline(&self) -> Instant {
        self.since + self.timeout
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Reason::Spawn => f.write_str("the system did not start its process")?,
            Reason::Hello => f.write_str("it did not connect")?,
            Reason::Progress { done_bytes, total_bytes } => {
                let total = counted(total_bytes, "byte");
                write!(f, "loading stopped at {done_bytes} of {total}")?;
            }
            Reason::Load => f.write_str("it did not load")?,
            Reason::WarmUp => f.write_str("it did not compute its first steps")?,
            Reason::Join => f.write_str("it did not join the group")?,
            Reason::Step { step, num_tokens } => {
                let tokens = counted(num_tokens, "token");
                write!(f, "it did not finish step {step} of {tokens}")?;
            }
            Reason::Life => f.write_str("it gave no sign of life")?,
        }
        write!(f, " within {:.1} s", self.timeout.as_secs_f32())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_one_token_is_singular_in_messages() {
        let wait = |num_tokens| {
            let (since, timeout) = (Instant::now(), Duration::from_secs(2));
            Wait { reason: Reason::Step { step: 7, num_tokens }, since, timeout }.to_string()
        };
        assert_eq!(wait(1), "it did not finish step 7 of 1 token within 2.0 s");
        assert_eq!(wait(3), "it did not finish step 7 of 3 tokens within 2.0 s");
    }
}
