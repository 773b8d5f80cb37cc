//! Defines what a peer of an agent may do, by what it has proved.
//!
//! ```text
//!   proved                             may
//!   this machine's own key, or that    everything: start and end programs, write and read the
//!   of a trusted coordinator           library, ask about the machine, stop the agent
//!   a grant of such a coordinator      read the one model that the grant names, until it ends
//!   a token, where the agent was       start ranks, and read and write the library
//!   started with that token
//!   the cluster's secret alone         nothing; its key is pending until a person accepts it
//!   nothing                            nothing
//! ```
//!
//! A coordinator that is revoked loses its sessions, its readers and its programs within
//! [`REREAD_INTERVAL`].

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jackalope_protocol::agent::{Order, OrderedProgram};
use jackalope_protocol::grant::Grant;
use jackalope_protocol::secure::{Peer, PeerPolicy};
use jackalope_protocol::{Identity, PublicKey, Secret};
use tracing::{info, warn};

use crate::trust::{Role, TrustStore};

/// How often the list of trusted machines is read.
pub const REREAD_INTERVAL: Duration = Duration::from_millis(250);

/// Prefix of the variables that a token holder may set; others could change what a program runs.
const TOKEN_VARIABLES: &str = "MLX_";

/// Peers whose orders an agent accepts, besides its own machine.
#[derive(Clone, Debug)]
pub enum Trust {
    /// The coordinators in this list.
    Listed(TrustStore),
    /// Every holder of the agent's secret, which is a token made for this purpose. Limited to ranks
    /// and models.
    TokenHolders,
}

/// The orders that a session may give.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Powers {
    All,
    /// Ranks only, without settings that could make them run something else.
    Ranks,
}

impl Powers {
    /// Checks whether the order is allowed; the error says why not.
    pub(super) fn check(self, order: &Order) -> Result<(), String> {
        if order.program == OrderedProgram::Rank && order.ticket.is_none() {
            return Err("an order of a rank without its ticket".to_owned());
        }
        let is_plain = |name: &str| name.starts_with(TOKEN_VARIABLES);
        let is_rank = order.program == OrderedProgram::Rank
            && order.cwd.is_none()
            && order.env.iter().all(|(name, _)| is_plain(name))
            && order.files.iter().all(|file| is_plain(&file.variable));
        match self {
            Powers::Ranks if !is_rank => Err(format!(
                "a token starts ranks alone, with no variable but {TOKEN_VARIABLES}…\n\
                 hint: `jackalope trust accept` makes this coordinator a trusted one of an agent \
                 that runs without a token"
            )),
            _ => Ok(()),
        }
    }
}

/// Decides which peers the agent trusts, and holds the connections that depend on that trust.
#[derive(Debug)]
pub(super) struct AgentAdmission {
    secret: Secret,
    identity: Identity,
    trust: Trust,
    /// Sessions: for each, the key whose trust it depends on, and the socket to shut down.
    sessions: Mutex<HashMap<u64, (PublicKey, TcpStream)>>,
}

impl AgentAdmission {
    pub(super) fn new(secret: Secret, identity: Identity, trust: Trust) -> AgentAdmission {
        AgentAdmission { secret, identity, trust, sessions: Mutex::default() }
    }

    /// Returns what the machine with this key may order; `None` if nothing.
    pub(super) fn powers(&self, key: &PublicKey) -> Option<Powers> {
        if *key == self.identity.public() {
            return Some(Powers::All);
        }
        match &self.trust {
            Trust::TokenHolders => Some(Powers::Ranks),
            Trust::Listed(store) => match store.load() {
                Ok(list) => list.takes_orders_from(key).then_some(Powers::All),
                Err(err) => {
                    warn!(%err, "nobody is trusted");
                    None
                }
            },
        }
    }

    /// Returns the admission check for one connection from `from`.
    pub(super) fn door(&self, from: SocketAddr) -> Door<'_> {
        Door { gate: self, from }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<u64, (PublicKey, TcpStream)>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a session, which lasts while this key is trusted.
    pub(super) fn enter(&self, session: u64, key: PublicKey, stream: &TcpStream) {
        match stream.try_clone() {
            Ok(stream) => drop(self.sessions().insert(session, (key, stream))),
            // A session that could not be ended later is ended now.
            Err(_) => drop(stream.shutdown(Shutdown::Both)),
        }
    }

    pub(super) fn leave(&self, session: u64) {
        self.sessions().remove(&session);
    }

    /// Ends the sessions whose key is no longer trusted.
    pub(super) fn sweep(&self) {
        for (session, (key, stream)) in &*self.sessions() {
            if self.powers(key).is_none() {
                info!(session, %key, "its coordinator was revoked");
                // An error means that the connection is closed already.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

/// The admission check of one connection.
pub(super) struct Door<'a> {
    gate: &'a AgentAdmission,
    from: SocketAddr,
}

impl PeerPolicy for Door<'_> {
    fn key_of(&self, hint: &[u8]) -> Option<Secret> {
        let grant = Grant::read(hint)?;
        self.gate.powers(&grant.coordinator)?;
        grant.secret(&self.gate.identity, &self.gate.secret, hint)
    }

    fn own(&self) -> Option<(&Identity, &Secret)> {
        Some((&self.gate.identity, &self.gate.secret))
    }

    fn trusts(&self, peer: &Peer) -> bool {
        if self.gate.powers(&peer.key).is_some() {
            return true;
        }
        if let Trust::Listed(store) = &self.gate.trust {
            let from = self.from.ip().to_string();
            let noted = store.update(|list| {
                list.note(Role::Coordinator, peer, &from);
                Ok(())
            });
            if let Err(err) = noted {
                warn!(%err, "a refused coordinator was not written down");
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::EnvFile;

    #[test]
    fn a_token_starts_ranks_and_nothing_that_could_become_something_else() {
        let rank = Order {
            name: "rank 0".to_owned(),
            program: OrderedProgram::Rank,
            args: Vec::new(),
            env: vec![("MLX_RANK".to_owned(), "0".to_owned())],
            files: Vec::new(),
            cwd: None,
            lease_ms: 0,
            ticket: Some(Secret([1; 32])),
        };
        assert!(Powers::Ranks.check(&rank).is_ok());
        let preload = vec![("LD_PRELOAD".to_owned(), "/tmp/x".to_owned())];
        let file = EnvFile { variable: "NCCL_NET_PLUGIN".to_owned(), content: String::new() };
        for order in [
            Order { program: OrderedProgram::Other("sh".to_owned()), ..rank.clone() },
            Order { env: preload, ..rank.clone() },
            Order { files: vec![file], ..rank.clone() },
            Order { cwd: Some("/".to_owned()), ..rank.clone() },
        ] {
            let refused = Powers::Ranks.check(&order).unwrap_err();
            assert!(refused.contains("a token starts ranks alone"), "{refused}");
            assert!(Powers::All.check(&order).is_ok());
        }
        assert!(Powers::All.check(&Order { ticket: None, ..rank }).is_err());
    }
}
