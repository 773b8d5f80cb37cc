//! What can go wrong with a group, with rank, address, operation, phase and elapsed time.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::dtype::Dtype;

/// Why a group could not be joined, or why an operation failed.
///
/// After any of the *world* errors (from [`PeerLost`](TransportError::PeerLost) to
/// [`Interrupted`](TransportError::Interrupted)) the group is poisoned: every later operation
/// returns [`Poisoned`](TransportError::Poisoned) with the first cause.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TransportError {
    /// The listening socket could not be had.
    #[error("cannot listen on {addr}: {cause}")]
    Bind {
        /// The address asked for.
        addr: SocketAddr,
        /// What the system said.
        cause: Arc<io::Error>,
    },
    /// The system gave no socket, pipe or random bytes.
    #[error("the system refuses a socket: {cause}")]
    Resources {
        /// What the system said.
        cause: Arc<io::Error>,
    },
    /// A configuration with no ranks or too many.
    #[error("a group of {size} ranks is outside of 1 to {max}")]
    GroupSize {
        /// Ranks asked for.
        size: usize,
        /// [`RANKS_MAX`](crate::RANKS_MAX).
        max: usize,
    },
    /// A rank that is not one of the group's, or our own where a peer is needed.
    #[error("rank {rank} is not a peer in a group of {size}")]
    RankOutside {
        /// The rank asked for.
        rank: usize,
        /// Ranks in the group.
        size: usize,
    },
    /// A configuration with no sockets between two ranks or too many.
    #[error("{found} sockets per peer are outside of 1 to {max}")]
    SocketsPerPeer {
        /// Sockets asked for.
        found: usize,
        /// [`SOCKETS_PER_PEER_MAX`](crate::SOCKETS_PER_PEER_MAX).
        max: usize,
    },
    /// `encrypt` does not have one entry per rank.
    #[error("whether to encrypt is given for {found} ranks in a group of {size}")]
    EncryptFlags {
        /// Number of entries.
        found: usize,
        /// Number of ranks in the group.
        size: usize,
    },
    /// A buffer that does not hold whole elements.
    #[error("{bytes} bytes are no whole number of {dtype} elements")]
    UnevenBytes {
        /// Bytes of the buffer.
        bytes: usize,
        /// Its element type.
        dtype: Dtype,
    },
    /// The result of an all_gather has another size than all parts together.
    #[error("all_gather of {local} bytes from {size} ranks does not fill {out} bytes")]
    GatherSize {
        /// Bytes of this rank's part.
        local: usize,
        /// Bytes of the result buffer.
        out: usize,
        /// Ranks in the group.
        size: usize,
    },
    /// Not everybody came in time.
    #[error("the group of epoch {epoch} did not form within {elapsed:.1?}: {absent}")]
    JoinTimeout {
        /// The epoch that was joined.
        epoch: u64,
        /// How long we waited.
        elapsed: Duration,
        /// Who was missing, and why as far as we know.
        absent: Box<Absences>,
    },
    /// The connection to a rank ended.
    #[error("{moment}: rank {rank} ({addr}) is lost: {cause}")]
    PeerLost {
        /// The rank that is gone.
        rank: usize,
        /// Its listening address.
        addr: SocketAddr,
        /// In which operation, and when.
        moment: Box<Moment>,
        /// What the socket said.
        cause: Arc<io::Error>,
    },
    /// A rank left the group because of an error of its own, and said so.
    #[error("{moment}: rank {rank} ({addr}) gave up: {reason}")]
    PeerFailed {
        /// The rank that gave up.
        rank: usize,
        /// Its listening address.
        addr: SocketAddr,
        /// In which operation of ours, and when.
        moment: Box<Moment>,
        /// Its own error.
        reason: String,
    },
    /// Ranks did not answer in time.
    #[error("{moment}: no answer from {}", Ranks(waiting))]
    Deadline {
        /// The ranks waited for, with their listening addresses.
        waiting: Vec<(usize, SocketAddr)>,
        /// In which operation, and after how long.
        moment: Box<Moment>,
    },
    /// A rank is doing something else than we are.
    #[error("{moment}: rank {rank} ({addr}) is out of step: we are in {expected}, it sent {found}")]
    Desync {
        /// The rank that sent something else.
        rank: usize,
        /// Its listening address.
        addr: SocketAddr,
        /// In which operation, and when.
        moment: Box<Moment>,
        /// What we expected of it.
        expected: Box<Message>,
        /// What it sent.
        found: Box<Message>,
    },
    /// What a rank sent is no frame of ours at all.
    #[error("{moment}: rank {rank} ({addr}) sent no frame but {found:02x?}")]
    Garbled {
        /// The rank.
        rank: usize,
        /// Its listening address.
        addr: SocketAddr,
        /// In which operation, and when.
        moment: Box<Moment>,
        /// The first bytes of what it sent.
        found: [u8; 8],
    },
    /// A payload does not have the hash that its sender computed.
    #[error("{moment}: the payload from rank {rank} ({addr}) was changed on its way")]
    Checksum {
        /// The rank that sent it.
        rank: usize,
        /// Its listening address.
        addr: SocketAddr,
        /// In which operation, and when.
        moment: Box<Moment>,
    },
    /// Data on an encrypted connection failed authentication: it was modified in transit, or the
    /// peer did not send it.
    #[error("{moment}: bytes from rank {rank} ({addr}) were changed on the way or are not from it")]
    Forged {
        /// The rank at the other end of the connection.
        rank: usize,
        /// Its listening address.
        addr: SocketAddr,
        /// In which operation, and when.
        moment: Box<Moment>,
    },
    /// [`Interrupter::interrupt`](crate::Interrupter::interrupt) was called.
    #[error("{moment}: interrupted")]
    Interrupted {
        /// In which operation, and when.
        moment: Box<Moment>,
    },
    /// The group failed in an earlier operation and can only be joined anew.
    #[error("the group of epoch {epoch} has failed before: {cause}")]
    Poisoned {
        /// The epoch of the group.
        epoch: u64,
        /// The first error.
        cause: Arc<TransportError>,
    },
}

impl TransportError {
    /// The first error of a poisoned group, or this error itself.
    pub fn first_cause(&self) -> &TransportError {
        match self {
            TransportError::Poisoned { cause, .. } => cause.first_cause(),
            other => other,
        }
    }

    /// The ranks that this error holds responsible, if any.
    pub fn ranks(&self) -> Vec<usize> {
        match self.first_cause() {
            TransportError::PeerLost { rank, .. }
            | TransportError::PeerFailed { rank, .. }
            | TransportError::Desync { rank, .. }
            | TransportError::Garbled { rank, .. }
            | TransportError::Forged { rank, .. }
            | TransportError::Checksum { rank, .. } => vec![*rank],
            TransportError::Deadline { waiting, .. } => {
                waiting.iter().map(|(rank, _)| *rank).collect()
            }
            TransportError::JoinTimeout { absent, .. } => {
                absent.ranks.iter().map(|absence| absence.rank).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// A collective or point-to-point operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// Forming the group.
    Join = 1,
    /// Element-wise sum over all ranks.
    AllSum = 2,
    /// Every rank's part, on every rank.
    AllGather = 3,
    /// One message to one rank.
    Send = 4,
    /// One message from one rank.
    Recv = 5,
    /// Nothing but waiting for everyone.
    Barrier = 6,
    /// A raw exchange without frames, the yardstick of benchmarks.
    Bare = 7,
    /// A rank's farewell after an error.
    Abort = 8,
}

impl Operation {
    const ALL: [Operation; 8] = [
        Operation::Join,
        Operation::AllSum,
        Operation::AllGather,
        Operation::Send,
        Operation::Recv,
        Operation::Barrier,
        Operation::Bare,
        Operation::Abort,
    ];

    /// The name people write: `all_sum`, `send`, …
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Join => "join",
            Operation::AllSum => "all_sum",
            Operation::AllGather => "all_gather",
            Operation::Send => "send",
            Operation::Recv => "recv",
            Operation::Barrier => "barrier",
            Operation::Bare => "bare exchange",
            Operation::Abort => "abort",
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Operation> {
        Operation::ALL.into_iter().find(|operation| *operation as u8 == code)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a frame says about the operation it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The group's epoch.
    pub epoch: u64,
    /// Which collective of the group, or which message from that rank, counted from 0.
    pub sequence: u64,
    /// The operation.
    pub operation: Operation,
    /// The element type.
    pub dtype: Dtype,
    /// Bytes of the caller's buffer.
    pub bytes: u64,
    /// Bytes in the frame, where the operation is cut into several.
    pub frame_bytes: u64,
    /// Which part of the operation: 0, or 1 for the second half of a large all_sum.
    pub part: u8,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Message { epoch, sequence, operation, dtype, bytes, frame_bytes, part } = self;
        write!(f, "{operation} #{sequence} of {bytes} bytes {dtype} in epoch {epoch}")?;
        write!(f, " (part {part}, {frame_bytes} bytes)")
    }
}

/// What an operation was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Before anything was sent.
    Start,
    /// Forming the mesh of sockets.
    Connect,
    /// Exchanging a small message whole.
    Exchange,
    /// Sending the others their parts and adding up our own.
    ReduceScatter,
    /// Collecting finished parts.
    Gather,
    /// Moving a large message.
    Stream,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Start => "start",
            Phase::Connect => "connect",
            Phase::Exchange => "exchange",
            Phase::ReduceScatter => "reduce-scatter",
            Phase::Gather => "gather",
            Phase::Stream => "stream",
        })
    }
}

/// The operation, its phase and the time since its call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// The rank that reports.
    pub rank: usize,
    /// The operation.
    pub operation: Operation,
    /// Its number, see [`Message::sequence`].
    pub sequence: u64,
    /// The element type.
    pub dtype: Dtype,
    /// Bytes of the caller's buffer.
    pub bytes: u64,
    /// What it was doing.
    pub phase: Phase,
    /// Time since it was called.
    pub elapsed: Duration,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Moment { rank, operation, sequence, dtype, bytes, phase, elapsed } = self;
        write!(f, "rank {rank} in {operation}")?;
        if !matches!(operation, Operation::Join) {
            write!(f, " #{sequence} ({bytes} bytes {dtype})")?;
        }
        write!(f, ", {phase}, after {elapsed:.1?}")
    }
}

/// Who is missing when a group does not form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absences {
    /// The ranks that are missing.
    pub ranks: Vec<Absence>,
    /// Connections that were turned away because they were none of ours.
    pub strangers: u64,
    /// The last of those.
    pub last_stranger: Option<(SocketAddr, AbsenceReason)>,
}

impl fmt::Display for Absences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, Absence { rank, addr, reason }) in self.ranks.iter().enumerate() {
            let comma = if idx == 0 { "" } else { ", " };
            write!(f, "{comma}rank {rank} ({addr}) is missing: {reason}")?;
        }
        if let Some((addr, reason)) = &self.last_stranger {
            let strangers = self.strangers;
            write!(f, "; turned away {strangers} connections, the last from {addr}: {reason}")?;
        }
        Ok(())
    }
}

/// One missing rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absence {
    /// The rank.
    pub rank: usize,
    /// Its listening address.
    pub addr: SocketAddr,
    /// Why, as far as we know.
    pub reason: AbsenceReason,
}

/// Why a connection did not become part of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbsenceReason {
    /// It was to connect to us and did not.
    NeverConnected,
    /// The network has not answered yet.
    NoConnection,
    /// The operating system could not connect.
    Unreachable(io::ErrorKind),
    /// The connection is open and nothing was said on it: the rank is not joining.
    Silent,
    /// The connection was closed before the handshake was complete.
    Closed,
    /// It speaks something else.
    Foreign,
    /// It speaks another version of this protocol.
    Version(u32),
    /// It is in another epoch.
    Epoch(u64),
    /// Its group has another size, other settings, or it takes us for another rank.
    Settings,
    /// Another process has already taken that place.
    Taken,
    /// It does not know the key of the group, or its messages were modified in transit.
    Secret,
    /// It is connected to us but has not met all the others.
    Unready,
}

impl fmt::Display for AbsenceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AbsenceReason::NeverConnected => f.write_str("it has not connected"),
            AbsenceReason::NoConnection => f.write_str("no answer from the network"),
            AbsenceReason::Unreachable(kind) => write!(f, "{kind}"),
            AbsenceReason::Silent => f.write_str("connected, but it is not joining"),
            AbsenceReason::Closed => f.write_str("it closed the connection"),
            AbsenceReason::Foreign => f.write_str("no rank of ours speaks there"),
            AbsenceReason::Version(version) => write!(f, "it speaks version {version}"),
            AbsenceReason::Epoch(epoch) => write!(f, "it is in epoch {epoch}"),
            AbsenceReason::Settings => f.write_str("its group has other settings"),
            AbsenceReason::Taken => f.write_str("its place is taken by another process"),
            AbsenceReason::Secret => {
                f.write_str("it has another key, or the handshake was changed on the way")
            }
            AbsenceReason::Unready => f.write_str("connected, but it has not met all others"),
        }
    }
}

/// Displays ranks with their addresses: `rank 1 (10.0.0.2:7000), rank 2 (…)`.
struct Ranks<'a>(&'a [(usize, SocketAddr)]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, (rank, addr)) in self.0.iter().enumerate() {
            let comma = if idx == 0 { "" } else { ", " };
            write!(f, "{comma}rank {rank} ({addr})")?;
        }
        Ok(())
    }
}
