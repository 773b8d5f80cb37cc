//! Why an operation of the group ends early.

use std::io;

use crate::error::Message;

/// Why an operation stopped, before rank, address and phase are added to it.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A fault of one peer.
    Peer { peer: usize, fault: Fault },
    /// The deadline has passed.
    Deadline,
    /// [`Interrupter::interrupt`](crate::Interrupter::interrupt) was called.
    Interrupted,
    /// The system call that waits has failed.
    System(io::Error),
}

/// Fault of a peer.
#[derive(Debug)]
pub(crate) enum Fault {
    Lost(io::Error),
    Desync {
        expected: Message,
        found: Message,
    },
    Garbled([u8; 8]),
    Checksum,
    /// A record that failed authentication.
    Forged,
    Failed(String),
}
