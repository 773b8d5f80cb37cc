//! Tickets by which the ranks of a server authenticate to it.

use std::path::Path;

use jackalope_protocol::{Identity, PublicKey, Secret};

use crate::config::Beside;
use crate::error::DeployError;

/// Derives the ticket of each rank of one server from this machine's private key, which no other
/// machine has, and from the parameters of the server. A server that is started again with the same
/// parameters derives the same tickets, and so finds the ranks of its predecessor.
#[derive(Clone, Copy)]
pub(crate) struct Tickets(Secret);

impl Tickets {
    /// Creates the tickets of the server that listens for ranks on `port` and serves the model in
    /// `dir`.
    ///
    /// # Errors
    /// If the system provides no randomness.
    pub(crate) fn new(
        identity: &Identity,
        port: u16,
        dir: &Path,
        beside: Option<&Beside>,
    ) -> Result<Tickets, DeployError> {
        let name = beside.map_or("", |it| it.name.as_str());
        // A random part ensures that no other server derives the same tickets when the system
        // selects the port.
        let once = match port {
            0 => Secret::random().map_err(DeployError::Ticket)?.0.to_vec(),
            _ => Vec::new(),
        };
        let dir = dir.to_string_lossy();
        let parts = [&port.to_le_bytes()[..], name.as_bytes(), dir.as_bytes(), &once];
        Ok(Tickets(identity.derive("jackalope: tickets of ranks", &parts)))
    }

    /// Returns the ticket of a rank on the machine with this key; on other machines the same rank
    /// has another ticket.
    pub(crate) fn of(self, rank: usize, machine: &PublicKey) -> Secret {
        self.0.derive("jackalope: ticket", &[&(rank as u64).to_le_bytes(), &machine.0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_for_one_rank_on_one_machine_of_one_server() {
        let identity = Identity::generate("here").unwrap();
        let other = Identity::generate("other").unwrap();
        let machines = [PublicKey([1; 32]), PublicKey([2; 32])];
        let of = |identity: &Identity, port: u16, dir: &str, beside: Option<&Beside>| {
            let tickets = Tickets::new(identity, port, Path::new(dir), beside).unwrap();
            [(0, 0), (1, 0), (0, 1)]
                .map(|(rank, at): (usize, usize)| tickets.of(rank, &machines[at]))
        };
        let beside = Beside { name: "other".to_owned(), slot: 1, kv_bytes: 0 };
        let first = of(&identity, 18080, "/m", None);
        assert_eq!(
            first,
            of(&identity, 18080, "/m", None),
            "the next coordinator derives the same"
        );
        let mut all = first.to_vec();
        all.extend(of(&identity, 18082, "/m", None));
        all.extend(of(&identity, 18080, "/n", None));
        all.extend(of(&identity, 18080, "/m", Some(&beside)));
        all.extend(of(&other, 18080, "/m", None));
        all.extend(of(&identity, 0, "/m", None));
        all.extend(of(&identity, 0, "/m", None));
        let mut texts: Vec<String> = all.iter().map(Secret::to_hex).collect();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), all.len(), "no two are the same");
    }
}
