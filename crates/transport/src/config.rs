//! Parameters with which a rank joins a group, and the limits of this crate.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::error::TransportError;

/// Maximum number of ranks in a group. The mesh is full, so every rank holds a socket per peer.
pub const RANKS_MAX: usize = 64;

/// Maximum number of sockets between two ranks.
pub const SOCKETS_PER_PEER_MAX: usize = 16;

/// Parameters with which one rank joins one epoch of a group.
///
/// `epoch`, `key`, `sockets_per_peer`, `checksums` and the number of `peers` must be equal on every
/// rank, and `encrypt` at both ends of each connection; the handshake compares them.
#[derive(Clone)]
pub struct GroupConfig {
    /// This rank, in `0..peers.len()`.
    pub rank: usize,
    /// Listening address of every rank, by rank; `peers[rank]` is this rank's own.
    pub peers: Vec<SocketAddr>,
    /// Epoch of the group. A rank only ever communicates with ranks of the same epoch.
    pub epoch: u64,
    /// Key that only the ranks of this group share. Both ends of a connection prove that they know
    /// it, and derive their encryption keys from it. [`group_key`](crate::group_key) derives one
    /// where no coordinator provides a fresh key for each epoch.
    pub key: [u8; 32],
    /// Whether the connection to each rank is encrypted, by rank.
    pub encrypt: Vec<bool>,
    /// Maximum time that [`Group::join`](crate::Group::join) waits for the other ranks.
    pub join_timeout: Duration,
    /// Maximum duration of one operation, from its call to its return.
    pub op_timeout: Duration,
    /// Number of sockets between each pair of ranks; a link of high bandwidth may need more than
    /// one.
    pub sockets_per_peer: usize,
    /// Whether every payload is followed by its hash (XXH64).
    pub checksums: bool,
    /// How long a waiting operation polls its sockets before it sleeps.
    pub spin: Duration,
}

impl GroupConfig {
    /// Default of [`GroupConfig::join_timeout`].
    pub const JOIN_TIMEOUT: Duration = Duration::from_secs(60);
    /// Default of [`GroupConfig::op_timeout`].
    pub const OP_TIMEOUT: Duration = Duration::from_secs(60);
    /// Default of [`GroupConfig::spin`]: longer than a message takes on a fast link, and shorter
    /// than a time slice of the operating system's scheduler.
    pub const SPIN: Duration = Duration::from_micros(100);

    /// Returns a configuration with the default timeouts, one socket per peer, encryption for every
    /// connection and no checksums.
    pub fn new(rank: usize, peers: Vec<SocketAddr>, epoch: u64, key: [u8; 32]) -> GroupConfig {
        GroupConfig {
            rank,
            encrypt: vec![true; peers.len()],
            peers,
            epoch,
            key,
            join_timeout: GroupConfig::JOIN_TIMEOUT,
            op_timeout: GroupConfig::OP_TIMEOUT,
            sockets_per_peer: 1,
            checksums: false,
            spin: GroupConfig::SPIN,
        }
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.peers.len()
    }

    pub(crate) fn check(&self) -> Result<(), TransportError> {
        let size = self.size();
        if !(1..=RANKS_MAX).contains(&size) {
            return Err(TransportError::GroupSize { size, max: RANKS_MAX });
        }
        if self.rank >= size {
            return Err(TransportError::RankOutside { rank: self.rank, size });
        }
        if self.encrypt.len() != size {
            return Err(TransportError::EncryptFlags { found: self.encrypt.len(), size });
        }
        if !(1..=SOCKETS_PER_PEER_MAX).contains(&self.sockets_per_peer) {
            return Err(TransportError::SocketsPerPeer {
                found: self.sockets_per_peer,
                max: SOCKETS_PER_PEER_MAX,
            });
        }
        Ok(())
    }
}

impl fmt::Debug for GroupConfig {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupConfig")
            .field("rank", &self.rank)
            .field("peers", &self.peers)
            .field("epoch", &self.epoch)
            .field("encrypt", &self.encrypt)
            .field("join_timeout", &self.join_timeout)
            .field("op_timeout", &self.op_timeout)
            .field("sockets_per_peer", &self.sockets_per_peer)
            .field("checksums", &self.checksums)
            .field("spin", &self.spin)
            .finish_non_exhaustive()
    }
}
