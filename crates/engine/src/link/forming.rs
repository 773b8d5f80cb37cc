//! Forms groups of loaded ranks, and assigns ranks to other machines.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use jackalope_protocol::{Join, Phase, Secret, ToRank};
use tracing::info;

use super::accept::Acceptor;
use super::ending::bury;
use super::slot::{Slot, State};
use super::{Link, RankAssignment, Stage};
use crate::{GroupEvent, RankGroup};

impl Link {
    pub(super) fn join_if_loaded(&mut self, now: Instant) {
        let is_ready = |slot: &Slot| matches!(slot.state, State::Loaded);
        let may_form = self.stage == Stage::Forming && self.broken_link.is_none();
        if !may_form || !self.slots.iter().all(is_ready) {
            return;
        }
        let key = match Secret::random() {
            Ok(key) => key,
            Err(err) => {
                let message = format!("the system has no randomness for a group's key: {err}");
                return self.lose(self.failure(0, Phase::Waiting, message), false);
            }
        };
        self.epoch += 1;
        let encrypts = self.encrypts();
        info!(epoch = self.epoch, in_clear = pairs_in_clear(&encrypts), "forming the group");
        for slot in &mut self.slots {
            slot.enter(State::Joining, now);
            (slot.steps_done, slot.progressed_at, slot.waiting) = (0, now, Duration::ZERO);
        }
        for (rank, encrypt) in encrypts.into_iter().enumerate() {
            let (epoch, peers) = (self.epoch, self.peers_of(rank));
            let join = ToRank::Join(Join { epoch, peers, key, encrypt });
            self.write(rank, &join, now);
        }
        (0..self.slots.len()).for_each(|rank| self.report_phase(rank));
    }

    /// Returns the addresses at which a rank reaches each rank's data plane.
    pub(super) fn peers_of(&self, rank: usize) -> Vec<SocketAddr> {
        let routes = &self.config.assignments[rank].routes;
        let addr = |(peer, slot): (usize, &Slot)| {
            let reported = slot.data_addr.expect("a rank that said hello reported its address");
            routes.get(peer).map_or(reported, |ip| SocketAddr::new(*ip, reported.port()))
        };
        self.slots.iter().enumerate().map(addr).collect()
    }

    /// Replaces all ranks by those of another assignment to machines.
    pub(super) fn reassign(&mut self, assignments: Vec<RankAssignment>, now: Instant) {
        assert!(!assignments.is_empty(), "there is at least one rank");
        info!(ranks = assignments.len(), "the cluster is planned anew");
        for slot in &mut self.slots {
            bury(slot.release(now));
        }
        self.sent.clear();
        (self.broken, self.broken_link, self.dying) = (None, None, None);
        self.slots = assignments.iter().map(|_| Slot::new(now)).collect();
        let hosts = assignments.iter().map(|assignment| assignment.host.clone()).collect();
        self.tickets.set(&assignments);
        self.config.assignments = assignments;
        self.events.push_back(GroupEvent::Reassigned { hosts });
    }

    pub(super) fn stand_if_joined(&mut self) {
        if self.stage != Stage::Forming
            || !self.slots.iter().all(|slot| matches!(slot.state, State::Standing))
        {
            return;
        }
        self.stage = Stage::Standing;
        self.num_refused = self.acceptor.as_ref().map_or(0, Acceptor::num_refused);
        self.has_stood = true;
        let facts = self.slots.iter().map(|slot| slot.facts.clone());
        let facts = facts.map(|facts| facts.expect("a rank that joined has loaded")).collect();
        self.events.push_back(GroupEvent::Ready { epoch: self.epoch, facts });
    }
}

/// Returns the pairs of ranks whose connection is not encrypted, for the log: `0-1, 0-2`.
fn pairs_in_clear(encrypts: &[Vec<bool>]) -> String {
    let of_rank = |(a, row): (usize, &Vec<bool>)| -> Vec<String> {
        (a + 1..row.len()).filter(|&b| !row[b]).map(|b| format!("{a}-{b}")).collect()
    };
    encrypts.iter().enumerate().flat_map(of_rank).collect::<Vec<_>>().join(", ")
}
