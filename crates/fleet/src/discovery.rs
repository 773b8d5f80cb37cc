//! Finds machines of this cluster on the networks of this machine, without a name or a file.
//!
//! ```text
//!   finder                                          agents that answer queries
//!     query: nonce, proof of the secret ──multicast──▶
//!                                      ◀──unicast── answer: id, port, addresses, proof
//!     Noise, facts                     ◀──TCP─────▶ the agent's usual port
//! ```
//!
//! Agents do not announce themselves; they are silent until they receive a query. A query without
//! the secret is answered with the version and nothing else, as is a connection to the agent's
//! port. An answer counts only with the proof over this query's nonce, from an address that it
//! names; the machine's facts are sent in a Noise session. So a stranger can neither add nor
//! replace a machine, and a datagram from a stranger costs one hash.
//!
//! Plain datagrams are used rather than DNS-SD, because every agent would need a DNS-SD responder,
//! which stores the records of any sender without a bound and which a stranger may force to give up
//! its name.
//!
//! Queries are sent over each interface by its own address and number, so that no multicast route
//! is needed. Answers come back the same way. Therefore a Thunderbolt cable that has only
//! link-local addresses works as well as Ethernet does.

mod answer;
mod find;
mod link;
mod list;
mod wire;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use answer::Responder;
pub use find::{
    DiscoverError, DiscoveryResult, FindConfig, FoundMachine, MachineState, STRANGERS_MAX,
    Stranger, find,
};
pub use list::{LeftOut, Listed, ListedHost, list};

/// UDP port on which agents that answer listen for queries.
pub const DISCOVERY_PORT: u16 = 18081;

/// Multicast group of IPv4, from the range for use within organisations (RFC 2365).
const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 255, 74, 75);

/// Multicast group of IPv6: not assigned, link-local scope (RFC 4291, section 2.7).
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x4a4b, 0x4c50);
