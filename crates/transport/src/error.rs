//! Errors of a group, each with rank, address, operation, phase and elapsed time.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jackalope_protocol::counted;

use crate::dtype::Dtype;

/// Why a group could not be joined, or why an operation failed.
///
/// Any error from [`PeerLost`](TransportError::PeerLost) to
/// [`Interrupted`](TransportError::Interrupted), and [`Resources`](TransportError::Resources)
/// during an operation, poisons the group: every later operation returns
/// [`Poisoned`](TransportError::Poisoned) with the first cause.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TransportError {
    /// The listening socket could not be opened.
    #[error("cannot listen on {addr}: {cause}")]
    Bind {
        /// Requested address.
        addr: SocketAddr,
        /// Error of the operating system.
        cause: Arc<io::Error>,
    },
    /// The operating system refused a socket, a pipe, a poll or random bytes.
    #[error("the system refuses a socket: {cause}")]
    Resources {
        /// Error of the operating system.
        cause: Arc<io::Error>,
    },
    /// The configuration has no ranks or too many.
    #[error("a group of {} is outside of 1 to {max}", counted(size, "rank"))]
    GroupSize {
        /// Requested number of ranks.
        size: usize,
        /// [`RANKS_MAX`](crate::RANKS_MAX).
        max: usize,
    },
    /// The rank is not one of the group's, or is this rank where a peer is required.
    #[error("rank {rank} is not a peer in a group of {size}")]
    RankOutside {
        /// Requested rank.
        rank: usize,
        /// Number of ranks in the group.
        size: usize,
    },
    /// The configuration has no sockets between two ranks or too many.
    #[error("sockets per peer: {found} is outside of 1 to {max}")]
    SocketsPerPeer {
        /// Requested number of sockets.
        found: usize,
        /// [`SOCKETS_PER_PEER_MAX`](crate::SOCKETS_PER_PEER_MAX).
        max: usize,
    },
    /// `encrypt` does not have one entry per rank.
    #[error("whether to encrypt is given for {} in a group of {size}", counted(found, "rank"))]
    EncryptFlags {
        /// Number of entries.
        found: usize,
        /// Number of ranks in the group.
        size: usize,
    },
    /// The size of a buffer is not a multiple of the element size.
    #[error("{} cannot be divided into {dtype} elements", counted(bytes, "byte"))]
    UnevenBytes {
        /// Size of the buffer in bytes.
        bytes: usize,
        /// Element type of the buffer.
        dtype: Dtype,
    },
    /// The result buffer of an all_gather does not have the size of all parts together.
    #[error(
        "all_gather of {} from {} does not fill {}",
        counted(local, "byte"),
        counted(size, "rank"),
        counted(out, "byte")
    )]
    GatherSize {
        /// Size of this rank's part in bytes.
        local: usize,
        /// Size of the result buffer in bytes.
        out: usize,
        /// Number of ranks in the group.
        size: usize,
    },
    /// Some ranks did not join in time.
    #[error("the group of epoch {epoch} did not form within {elapsed:.1?}: {absent}")]
    JoinTimeout {
        /// Epoch of the group that was to be joined.
        epoch: u64,
        /// Time for which this rank waited.
        elapsed: Duration,
        /// The missing ranks, each with the reason as far as it is known.
        absent: Box<Absences>,
    },
    /// The connection to a rank ended.
    #[error("{moment}: rank {rank} ({addr}) is lost: {cause}")]
    PeerLost {
        /// The rank that is gone.
        rank: usize,
        /// Listening address of the rank.
        addr: SocketAddr,
        /// Operation of this rank that failed, and when.
        moment: Box<Moment>,
        /// Error of the socket.
        cause: Arc<io::Error>,
    },
    /// A rank left the group because of an error of its own, and reported it.
    #[error("{moment}: rank {rank} ({addr}) gave up: {reason}")]
    PeerFailed {
        /// The rank that gave up.
        rank: usize,
        /// Listening address of the rank.
        addr: SocketAddr,
        /// Operation of this rank that failed, and when.
        moment: Box<Moment>,
        /// Error that the rank reported.
        reason: String,
    },
    /// Some ranks did not answer in time.
    #[error("{moment}: no answer from {}", Ranks(waiting))]
    Deadline {
        /// The ranks that this rank waited for, with their listening addresses.
        waiting: Vec<(usize, SocketAddr)>,
        /// Operation of this rank that failed, and after how long.
        moment: Box<Moment>,
    },
    /// A rank is in another operation than this rank.
    #[error("{moment}: rank {rank} ({addr}) is out of step: we are in {expected}, it sent {found}")]
    Desync {
        /// The rank that sent something else.
        rank: usize,
        /// Listening address of the rank.
        addr: SocketAddr,
        /// Operation of this rank that failed, and when.
        moment: Box<Moment>,
        /// Message that was expected.
        expected: Box<Message>,
        /// Message that the rank sent.
        found: Box<Message>,
    },
    /// A rank sent bytes that are not a frame of this protocol.
    #[error("{moment}: rank {rank} ({addr}) sent no frame but {found:02x?}")]
    Garbled {
        /// The rank that sent the bytes.
        rank: usize,
        /// Listening address of the rank.
        addr: SocketAddr,
        /// Operation of this rank that failed, and when.
        moment: Box<Moment>,
        /// The first bytes that the rank sent.
        found: [u8; 8],
    },
    /// The hash of a payload does not match the one that its sender computed.
    #[error("{moment}: the payload from rank {rank} ({addr}) was changed on its way")]
    Checksum {
        /// The rank that sent the payload.
        rank: usize,
        /// Listening address of the rank.
        addr: SocketAddr,
        /// Operation of this rank that failed, and when.
        moment: Box<Moment>,
    },
    /// Data on an encrypted connection failed authentication: it was modified in transit, or the
    /// peer did not send it.
    #[error("{moment}: bytes from rank {rank} ({addr}) were changed on the way or are not from it")]
    Forged {
        /// The rank at the other end of the connection.
        rank: usize,
        /// Listening address of the rank.
        addr: SocketAddr,
        /// Operation of this rank that failed, and when.
        moment: Box<Moment>,
    },
    /// [`Interrupter::interrupt`](crate::Interrupter::interrupt) was called.
    #[error("{moment}: interrupted")]
    Interrupted {
        /// Operation of this rank that failed, and when.
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
    /// Returns the first error of a poisoned group, or this error itself.
    pub fn first_cause(&self) -> &TransportError {
        match self {
            TransportError::Poisoned { cause, .. } => cause.first_cause(),
            other => other,
        }
    }

    /// Returns the ranks that this error holds responsible, if any.
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
    /// Collection of every rank's part on every rank.
    AllGather = 3,
    /// One message to one rank.
    Send = 4,
    /// One message from one rank.
    Recv = 5,
    /// Waiting until every rank has called it.
    Barrier = 6,
    /// A raw exchange without frames, the baseline of benchmarks.
    Bare = 7,
    /// Last message of a rank after an error, with the reason.
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

    /// Returns the usual name: `all_sum`, `send`, …
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

/// Contents of a frame's header: the operation that the frame belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Epoch of the group.
    pub epoch: u64,
    /// Number of the collective in the group, or of the message from that rank, counted from 0.
    pub sequence: u64,
    /// The operation.
    pub operation: Operation,
    /// The element type.
    pub dtype: Dtype,
    /// Size of the caller's buffer in bytes.
    pub bytes: u64,
    /// Payload bytes of this frame; less than `bytes` if the operation is cut into several frames.
    pub frame_bytes: u64,
    /// Part of the operation: 0, or 1 for the second half of a large all_sum.
    pub part: u8,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Message { epoch, sequence, operation, dtype, bytes, frame_bytes, part } = self;
        let (bytes, frame_bytes) = (counted(bytes, "byte"), counted(frame_bytes, "byte"));
        write!(f, "{operation} #{sequence} of {bytes} {dtype} in epoch {epoch}")?;
        write!(f, " (part {part}, {frame_bytes})")
    }
}

/// Phase in which an operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationPhase {
    /// Before any byte was sent.
    Start,
    /// Forming the mesh of sockets.
    Connect,
    /// Exchanging a small message as one frame.
    Exchange,
    /// Sending the other ranks their parts and summing this rank's own.
    ReduceScatter,
    /// Collecting finished parts.
    Gather,
    /// Moving a large message.
    Stream,
}

impl fmt::Display for OperationPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OperationPhase::Start => "start",
            OperationPhase::Connect => "connect",
            OperationPhase::Exchange => "exchange",
            OperationPhase::ReduceScatter => "reduce-scatter",
            OperationPhase::Gather => "gather",
            OperationPhase::Stream => "stream",
        })
    }
}

/// When an operation failed or was interrupted: its phase, and the time since its call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// The rank that reports.
    pub rank: usize,
    /// The operation.
    pub operation: Operation,
    /// Number of the operation, see [`Message::sequence`]; the epoch while the group is formed.
    pub sequence: u64,
    /// The element type.
    pub dtype: Dtype,
    /// Size of the caller's buffer in bytes.
    pub bytes: u64,
    /// Phase of the operation.
    pub phase: OperationPhase,
    /// Time since the call of the operation.
    pub elapsed: Duration,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Moment { rank, operation, sequence, dtype, bytes, phase, elapsed } = self;
        write!(f, "rank {rank} in {operation}")?;
        if !matches!(operation, Operation::Join) {
            write!(f, " #{sequence} ({} {dtype})", counted(bytes, "byte"))?;
        }
        write!(f, ", {phase}, after {elapsed:.1?}")
    }
}

/// The ranks that are missing when a group does not form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absences {
    /// The ranks that are missing.
    pub ranks: Vec<Absence>,
    /// Number of rejected connections that were not part of the group.
    pub strangers: u64,
    /// The last rejected connection, with the reason.
    pub last_stranger: Option<(SocketAddr, AbsenceReason)>,
}

impl fmt::Display for Absences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, Absence { rank, addr, reason }) in self.ranks.iter().enumerate() {
            let comma = if idx == 0 { "" } else { ", " };
            write!(f, "{comma}rank {rank} ({addr}) is missing: {reason}")?;
        }
        if let Some((addr, reason)) = &self.last_stranger {
            let strangers = counted(self.strangers, "connection");
            write!(f, "; turned away {strangers}, the last from {addr}: {reason}")?;
        }
        Ok(())
    }
}

/// One missing rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absence {
    /// The missing rank.
    pub rank: usize,
    /// Listening address of the rank.
    pub addr: SocketAddr,
    /// Reason, as far as it is known.
    pub reason: AbsenceReason,
}

/// Why a connection did not become part of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbsenceReason {
    /// The rank should have connected to this rank and did not.
    NeverConnected,
    /// The network has not answered yet.
    NoConnection,
    /// The operating system could not connect.
    Unreachable(io::ErrorKind),
    /// The connection is open, but the rank has sent nothing: it is not joining.
    Silent,
    /// The connection was closed before the handshake was complete.
    Closed,
    /// The other end speaks another protocol.
    Foreign,
    /// The other end speaks this protocol in another version, which is given.
    Version(u32),
    /// The other end is in another epoch, which is given.
    Epoch(u64),
    /// The other end's group has another size or other settings, or it takes this rank for another
    /// one.
    Settings,
    /// Another process already has the rank's place in the group.
    Taken,
    /// The other end does not know the key of the group, or its messages were modified in transit.
    Secret,
    /// The rank is connected to this rank but not yet to all the others.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_something_is_singular_in_messages() {
        let group = |size| TransportError::GroupSize { size, max: 64 }.to_string();
        assert_eq!(group(1), "a group of 1 rank is outside of 1 to 64");
        assert_eq!(group(65), "a group of 65 ranks is outside of 1 to 64");
        let odd = TransportError::UnevenBytes { bytes: 1, dtype: Dtype::F32 };
        assert_eq!(
            odd.to_string(),
            format!("1 byte cannot be divided into {} elements", Dtype::F32)
        );
        let stranger = (([10, 0, 0, 9], 4000).into(), AbsenceReason::Silent);
        let absences = Absences { ranks: Vec::new(), strangers: 1, last_stranger: Some(stranger) };
        let text = absences.to_string();
        assert!(text.starts_with("; turned away 1 connection, the last from "), "{text}");
    }
}
