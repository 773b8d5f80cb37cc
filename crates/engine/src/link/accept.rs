//! Authenticates ranks and rejects all other connections.

use std::net::{IpAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};

use jackalope_protocol::gate::{Gate, GateConfig, HANDSHAKE};
use jackalope_protocol::secure::{self, Accepted, Caller, PeerPolicy, Proof, rank_of_hint};
use jackalope_protocol::{FrameError, Hello, Secret, frame};

use super::{LinkReport, RankAssignment, Report};
use crate::Reporter;

/// An authenticated connection.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) hello: Hello,
    pub(super) sender: secure::Sender,
    pub(super) receiver: secure::Receiver,
}

/// The ticket that each rank authenticates with, by rank. Clones share one list.
#[derive(Clone, Debug, Default)]
pub(super) struct Tickets(Arc<Mutex<Vec<Secret>>>);

impl Tickets {
    /// Replaces the tickets with those of `assignments`.
    pub(super) fn set(&self, assignments: &[RankAssignment]) {
        let tickets = assignments.iter().map(|assignment| assignment.ticket).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = tickets;
    }
}

impl PeerPolicy for Tickets {
    fn key_of(&self, hint: &[u8]) -> Option<Secret> {
        let rank = usize::try_from(rank_of_hint(hint)?).ok()?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(rank).copied()
    }
}

/// Accepts connections until it is dropped.
#[derive(Debug)]
pub(super) struct Acceptor(Gate);

impl Acceptor {
    pub(super) fn start(
        listeners: Vec<TcpListener>,
        expected: Vec<IpAddr>,
        tickets: Tickets,
        reporter: Reporter<LinkReport>,
    ) -> Acceptor {
        let prove = move |caller| {
            let arrival = shake_hands(caller, &tickets)?;
            reporter.report(LinkReport(Report::Arrived(arrival)));
            Ok(())
        };
        let config = GateConfig { listeners, expected, purpose: "ranks" };
        let gate = Gate::start(config, Box::new(prove));
        Acceptor(gate.expect("a process that just started can start a thread"))
    }

    /// Returns the number of refused connections.
    pub(super) fn num_refused(&self) -> u64 {
        self.0.num_refused()
    }

    /// Returns the reason for the last refusal.
    pub(super) fn last_refusal(&self) -> Option<String> {
        self.0.last_refusal()
    }
}

fn shake_hands(caller: Caller, tickets: &Tickets) -> Result<Arrival, FrameError> {
    let Accepted { proof, sender, mut receiver } = secure::accept_caller(caller, tickets)?;
    receiver.stream().set_read_timeout(Some(HANDSHAKE))?;
    let hello: Hello = frame::read(&mut receiver)?;
    // A ticket is valid for its own rank only.
    if !matches!(&proof, Proof::Key(hint) if rank_of_hint(hint) == Some(hello.rank)) {
        return Err(FrameError::Ticket);
    }
    receiver.stream().set_read_timeout(None)?;
    Ok(Arrival { hello, sender, receiver })
}
