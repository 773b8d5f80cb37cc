//! Copies a model to many machines. The first copy is made from its source; machines that have the
//! model serve further copies. Each machine sends to one other at a time, so that n copies take
//! about log2(n + 1) rounds and no link carries more than one of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use jackalope_protocol::PublicKey;
use jackalope_protocol::grant::Granter;
use jackalope_protocol::secure::Coordinator;

use super::client::{ExchangeError, LibraryClient};
use super::messages::{FetchOrder, Fetched, Source};

/// A machine and the addresses of its agent.
#[derive(Clone, Debug)]
pub struct CopyPeer {
    /// Name of the machine.
    pub host: String,
    /// Addresses at which we reach the machine's agent.
    pub addrs: Vec<SocketAddr>,
    /// Key of the machine's agent.
    pub key: PublicKey,
    /// Addresses at which each peer reaches the machine's agent, by the peer's position.
    pub addrs_from: Vec<Vec<SocketAddr>>,
}

/// Decides which machine copies from which. Pure.
#[derive(Clone, Debug)]
pub struct Spread {
    /// State of each machine, by position.
    states: Vec<State>,
    failed: Vec<CopyPair>,
}

/// A copy from one machine to another, each by its position.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CopyPair {
    /// The machine that has the model.
    pub source: usize,
    /// The machine that lacks the model.
    pub target: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Lacks the model and waits for a source.
    Lacks,
    /// Is receiving the model.
    Receives,
    /// Has the model.
    Has,
    /// Has the model and is sending it to another machine.
    Sends,
}

/// The result of copying to one machine.
#[derive(Debug)]
pub struct Copied {
    /// Position of the machine.
    pub peer: usize,
    /// Position of the first source that was tried.
    pub source: usize,
    /// Result of the copy.
    pub result: Result<Fetched, ExchangeError>,
}

impl Spread {
    /// Creates the plan for `num_peers` machines, of which `source` has the model.
    pub fn new(num_peers: usize, source: usize) -> Spread {
        let mut states = vec![State::Lacks; num_peers];
        states[source] = State::Has;
        Spread { states, failed: Vec::new() }
    }

    /// Starts the next possible copy.
    pub fn begin(&mut self) -> Option<CopyPair> {
        let states = &self.states;
        let with = |state| (0..states.len()).filter(move |&it| states[it] == state);
        let transfer = with(State::Lacks).find_map(|target| {
            let mut transfers = with(State::Has).map(|source| CopyPair { source, target });
            transfers.find(|it| !self.failed.contains(it))
        });
        let CopyPair { source, target } = transfer?;
        (self.states[source], self.states[target]) = (State::Sends, State::Receives);
        transfer
    }

    /// Records the end of a copy. A copy that failed is not repeated from the same source, but may
    /// be made from another one.
    pub fn end(&mut self, transfer: CopyPair, went_well: bool) {
        self.states[transfer.source] = State::Has;
        self.states[transfer.target] = if went_well { State::Has } else { State::Lacks };
        if !went_well {
            self.failed.push(transfer);
        }
    }

    /// Returns true if a machine lacks the model and is not receiving it.
    pub fn lacks(&self, peer: usize) -> bool {
        self.states[peer] == State::Lacks
    }

    /// Returns other machines that have the model, for a target whose source fails.
    fn others(&self, source: usize) -> impl Iterator<Item = usize> {
        let has = |it: &usize| matches!(self.states[*it], State::Has | State::Sends);
        (0..self.states.len()).filter(has).filter(move |&it| it != source)
    }
}

/// A model to copy to every peer.
#[derive(Clone, Copy)]
pub struct SpreadOrder<'a> {
    /// The machines.
    pub peers: &'a [CopyPeer],
    /// Position of the peer that has the model.
    pub source: usize,
    /// Name of the model at the source.
    pub model: &'a str,
    /// The order that each of the other machines gets, after its sources have been filled in.
    pub order: &'a FetchOrder,
    /// Proves to the agents that this machine is their coordinator.
    pub ours: &'a dyn Coordinator,
    /// Once set, no copy is started, and those that run end.
    pub is_cancelled: &'a Arc<AtomicBool>,
}

impl std::fmt::Debug for SpreadOrder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpreadOrder").field("model", &self.model).finish_non_exhaustive()
    }
}

/// Copies a model from one machine to all others. `on_bytes(peer, more)` is called with further
/// bytes that have arrived; `on_end` is called for each machine that has the model or has failed
/// for good, but not for machines whose copy was not started before everything was cancelled.
pub fn spread(
    what: SpreadOrder<'_>,
    on_bytes: &(dyn Fn(usize, u64) + Sync),
    on_end: &mut dyn FnMut(Copied),
) {
    let SpreadOrder { peers, source, model, order, ours, is_cancelled } = what;
    let mut plan = Spread::new(peers.len(), source);
    let called = |peer: usize| if peer == source { model } else { order.name.as_str() };
    thread::scope(|scope| {
        let (ended, ends) = channel();
        let mut num_under_way = 0;
        let mut failures = BTreeMap::new();
        loop {
            while !is_cancelled.load(Ordering::Relaxed) {
                let Some(transfer) = plan.begin() else { break };
                let CopyPair { source: from, target: to } = transfer;
                num_under_way += 1;
                let all = std::iter::once(from).chain(plan.others(from));
                let sources = all.map(|it| Source {
                    host: peers[it].host.clone(),
                    addrs: peers[it].addrs_from[to].clone(),
                    model: called(it).to_owned(),
                    grant: Granter::new(ours, peers[it].key, called(it)).grant(),
                });
                let order = FetchOrder { sources: sources.collect(), ..order.clone() };
                let ended = ended.clone();
                scope.spawn(move || {
                    let on_bytes = |more| on_bytes(to, more);
                    let peer = &peers[to];
                    let fetched = LibraryClient::dial(&peer.host, &peer.addrs, ours)
                        .map(|client| client.cancelled_by(is_cancelled))
                        .and_then(|mut client| client.fetch(order, &on_bytes));
                    ended.send((transfer, fetched)).ok();
                });
            }
            if num_under_way == 0 {
                break;
            }
            let (transfer, result) = ends.recv().expect("we hold a sender");
            num_under_way -= 1;
            plan.end(transfer, result.is_ok());
            let copied = Copied { peer: transfer.target, source: transfer.source, result };
            match copied.result {
                Ok(_) => on_end(copied),
                // Another source may succeed.
                Err(_) => drop(failures.insert(copied.peer, copied)),
            }
        }
        for (target, copied) in failures {
            if plan.lacks(target) {
                on_end(copied);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whoever_has_it_sends_it_on() {
        for (num_peers, wanted_rounds) in [(1, 0), (2, 1), (3, 2), (4, 2), (8, 3), (9, 4)] {
            let mut spread = Spread::new(num_peers, 0);
            let mut rounds = 0;
            loop {
                let pairs: Vec<_> = std::iter::from_fn(|| spread.begin()).collect();
                if pairs.is_empty() {
                    break;
                }
                rounds += 1;
                pairs.into_iter().for_each(|pair| spread.end(pair, true));
            }
            assert_eq!(rounds, wanted_rounds, "{num_peers}");
            assert!(spread.states.iter().all(|&it| it == State::Has));
        }
    }

    proptest! {
        #[test]
        fn every_machine_has_it_in_the_end_or_everybody_failed_to_bring_it(
            num_peers in 1..9usize, source in any::<prop::sample::Index>(),
            fails in prop::collection::vec(any::<(u8, u8)>(), 0..20),
            order in prop::collection::vec(any::<prop::sample::Index>(), 100),
        ) {
            let source = source.index(num_peers);
            let position = |byte| usize::from(byte) % num_peers;
            let fails: Vec<CopyPair> = fails
                .iter()
                .map(|&(from, to)| CopyPair { source: position(from), target: position(to) })
                .collect();
            let mut spread = Spread::new(num_peers, source);
            let mut under_way = Vec::new();
            for step in order {
                under_way.extend(std::iter::from_fn(|| spread.begin()));
                if under_way.is_empty() {
                    break;
                }
                let pair = under_way.swap_remove(step.index(under_way.len()));
                spread.end(pair, !fails.contains(&pair));
            }
            prop_assert!(under_way.is_empty(), "it comes to an end");
            let has: Vec<usize> =
                (0..num_peers).filter(|&it| spread.states[it] == State::Has).collect();
            for target in (0..num_peers).filter(|&it| spread.states[it] != State::Has) {
                let failed = |&source: &usize| fails.contains(&CopyPair { source, target });
                prop_assert!(has.iter().all(failed));
            }
        }
    }
}
