//! Detects broken links between ranks. The coordinator may reach every rank although two ranks do
//! not reach each other: then all ranks wait, no process is at fault, and replacing one does not
//! help.
//!
//! ```text
//!   all wait, all live ──▶ suspect_links ──▶ (the launcher tests the links)        ──▶ broken_link
//!                                                                                          │
//!   group is formed ◀── broken_link is none again ◀── no group is formed meanwhile ◀───────┘
//!                       or other ranks were assigned
//! ```

use std::time::{Duration, Instant};

use jackalope_protocol::{Phase, RankFailure};
use tracing::info;

use super::slot::{Slot, State};
use super::{Link, Stage};
use crate::{Failure, GroupEvent, RankGroup};

/// Time for which ranks wait for each other, or form a group, before their links are suspected.
const SUSPECT_AFTER: Duration = Duration::from_secs(1);

/// Minimum time between two tests of the links.
const SUSPECT_PAUSE: Duration = Duration::from_secs(2);

/// A rank that sent something within this time is alive; heartbeats arrive once per second.
const ALIVE: Duration = Duration::from_millis(2500);

/// Interval at which the launcher is polled for test results.
pub(super) const LINK_POLL: Duration = Duration::from_millis(100);

impl Link {
    /// Asks the launcher to test links if all ranks are stuck, and takes in its results. Returns
    /// true if the group is lost because of a broken link.
    pub(super) fn check_links(&mut self, now: Instant) -> bool {
        for (rank, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.is_connected()) {
            self.launcher.note_message(rank, slot.heard_at);
        }
        if self.is_suspicious(now) {
            self.suspect_links(now);
        }
        let broken = self.launcher.broken_link(now);
        let all = self.launcher.broken_links();
        if self.known_broken_links != all {
            self.known_broken_links.clone_from(&all);
            self.events.push_back(GroupEvent::BrokenLinks(all));
        }
        let was_broken = std::mem::replace(&mut self.broken_link, broken).is_some();
        match (self.link_failure(), was_broken) {
            (Some(failure), false) if self.stage != Stage::Down => {
                self.lose(failure, false);
                true
            }
            (None, true) => {
                info!("no link between the ranks' machines is broken any more");
                self.join_if_loaded(now);
                false
            }
            _ => false,
        }
    }

    /// Returns the failure for the broken link that prevents the group from forming; it blames no
    /// rank.
    pub(super) fn link_failure(&self) -> Option<Failure> {
        let message = self.broken_link.clone()?;
        let (phase, last_words) = (Phase::Joining, String::new());
        Some(Failure { rank: None, host: None, phase, message, last_words })
    }

    fn suspect_links(&mut self, now: Instant) {
        let is_due = self.suspected_at.is_none_or(|at| SUSPECT_PAUSE <= now - at);
        if !is_due || self.slots.iter().any(|slot| slot.data_addr.is_none()) {
            return;
        }
        self.suspected_at = Some(now);
        let addrs: Vec<_> = (0..self.slots.len()).map(|rank| self.peers_of(rank)).collect();
        self.launcher.suspect_links(&addrs);
    }

    fn is_suspicious(&self, now: Instant) -> bool {
        match self.stage {
            Stage::Down => false,
            Stage::Standing => self.do_all_wait(now),
            Stage::Forming => {
                let is_late = |slot: &Slot| SUSPECT_AFTER <= now.duration_since(slot.entered_at);
                let mut joining =
                    self.slots.iter().filter(|slot| matches!(slot.state, State::Joining));
                self.slots.iter().all(|slot| slot.is_in_group() && is_alive(slot, now))
                    && joining.any(is_late)
            }
        }
    }

    /// Whether every process is alive and at least two ranks wait although plans are pending: the
    /// messages between ranks do not arrive.
    pub(super) fn do_all_wait(&self, now: Instant) -> bool {
        let Some(newest) = self.sent.back() else { return false };
        let is_waiting = |slot: &Slot| SUSPECT_AFTER <= slot.waiting;
        let is_stuck = |slot: &Slot| is_waiting(slot) || newest.step < slot.steps_done;
        let num_waiting = self.slots.iter().filter(|slot| is_waiting(slot)).count();
        2 <= num_waiting
            && self.slots.iter().all(|slot| {
                matches!(slot.state, State::Standing) && is_alive(slot, now) && is_stuck(slot)
            })
    }

    /// Turns a rank's report of a broken group into a failure. If all peers that it names
    /// are alive, the failure blames no rank, and the launcher tests the links to them.
    pub(super) fn group_failure(
        &mut self,
        rank: usize,
        failure: RankFailure,
        now: Instant,
    ) -> Failure {
        let RankFailure { phase, message, peers, .. } = failure;
        let peers: Vec<usize> = peers.iter().map(|peer| *peer as usize).collect();
        let lives = |peer: &usize| self.slots.get(*peer).is_some_and(|slot| is_alive(slot, now));
        if peers.is_empty() || !peers.iter().all(lives) {
            return self.failure(rank, phase, message);
        }
        if phase == Phase::Joining {
            peers.iter().for_each(|peer| self.launcher.link_failed(rank, *peer));
        }
        self.suspect_links(now);
        let names: Vec<String> = peers.iter().map(|peer| self.rank_name(*peer)).collect();
        let message = format!(
            "{} receives nothing from {}, and all of them live: {message}",
            self.rank_name(rank),
            names.join(", ")
        );
        Failure { rank: None, host: None, phase, message, last_words: String::new() }
    }

    /// Returns the failure that is reported when a step times out while [`Link::do_all_wait`] is
    /// true.
    pub(super) fn all_wait_failure(&self, wait: &impl std::fmt::Display) -> Failure {
        let message = format!(
            "every rank waits for another, and all of them live (of rank 0, {wait})\n\
             hint: what they send each other does not arrive; look at the network between \
             {}",
            self.hosts().join(", ")
        );
        let (phase, last_words) = (Phase::Computing, String::new());
        Failure { rank: None, host: None, phase, message, last_words }
    }

    pub(super) fn rank_name(&self, rank: usize) -> String {
        match self.config.assignments[rank].host.as_str() {
            "" => format!("rank {rank}"),
            host => format!("rank {rank} on {host}"),
        }
    }
}

fn is_alive(slot: &Slot, now: Instant) -> bool {
    slot.is_connected() && now.saturating_duration_since(slot.heard_at) < ALIVE
}
