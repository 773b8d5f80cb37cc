//! Machines of this cluster on the networks that this machine is in, found without a name or a file.
//!
//! ```text
//!   finder                                          agents that were told to answer
//!     query: nonce, proof of the secret ──multicast──▶
//!                                      ◀──unicast── answer: id, port, addresses, proof
//!     Noise, facts                     ◀──TCP─────▶ the agent's usual port
//! ```
//!
//! Nobody announces anything: an agent is silent until it is asked. Whoever asks without the secret
//! is told the version and nothing else, as by a connection to the agent's port. An answer is worth
//! something only with the proof over the nonce of this query, from an address that it names; what a
//! machine is and has it tells in a session of Noise. So a stranger can neither add a machine nor
//! replace one, and what it sends costs a hash.
//!
//! Plain datagrams rather than DNS-SD, because a responder of that hears and keeps what anybody says:
//! records of strangers, without a bound, in every agent; and a stranger may make it give up its name.
//!
//! Queries go out over each interface by its own address and number, so that no route for multicast
//! is needed, and answers come back the same way: over a Thunderbolt cable with nothing but link-local
//! addresses as over Ethernet.

mod answer;
mod find;
mod link;
mod list;
mod wire;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use answer::Responder;
pub use find::{
    DiscoverError, FindConfig, Found, FoundMachine, MachineState, STRANGERS_MAX, Stranger, find,
};
pub use list::{LeftOut, Listed, ListedHost, list};

/// Where agents that answer listen for queries: UDP.
pub const DISCOVERY_PORT: u16 = 18081;

/// Of the addresses that organisations may use as they like (RFC 2365).
const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 255, 74, 75);

/// Not assigned by anybody, on the link alone (RFC 4291, section 2.7).
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x4a4b, 0x4c50);
