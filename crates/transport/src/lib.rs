//! The native TCP group: a full mesh of sockets between the ranks of one model, and collectives
//! on it.
//!
//! Guarantees that stock transports do not give:
//!
//! - **Every wait has a deadline and a name.** Joining and every operation end within their
//!   timeout, and the error names the ranks and addresses at fault. A lost peer is noticed at once,
//!   and a rank that gives up reports the reason to the others.
//! - **No silent errors.** Every message carries epoch, sequence, operation, type and size; a rank
//!   that is out of step causes an error that names both sides. Payload hashes are optional.
//! - **The same bits on every rank, in every run.** Sums are computed in rank order, whatever the
//!   timing, the size or the number of sockets.
//! - **Idle costs nothing.** A waiting operation spins briefly, yielding its core to other threads,
//!   and then sleeps.
//! - **Authentication.** Every peer has to prove that it knows the group's key, for the current
//!   epoch.
//! - **Confidentiality and integrity** on encrypted connections. All connections are encrypted
//!   unless [`GroupConfig::encrypt`] disables it.
//!
//! A rank process binds one [`Listener`] for its lifetime. For each epoch it joins a [`Group`]
//! through it; after an error the group is dropped and the survivors join the next epoch.
//!
//! This crate knows nothing of models, MLX or the control plane: buffers are bytes of a [`Dtype`].
//!
//! ```
//! use jackalope_transport::{Dtype, Group, GroupConfig, Listener};
//!
//! # fn main() -> Result<(), jackalope_transport::TransportError> {
//! let listener = Listener::bind("127.0.0.1:0".parse().expect("this is an address"))?;
//! let peers = vec![listener.local_addr()]; // one address per rank
//! let mut group = Group::join(&listener, GroupConfig::new(0, peers, 1, [0; 32]))?;
//! let mut data = 1.5f32.to_le_bytes();
//! group.all_sum(&mut data, Dtype::F32)?;
//! assert_eq!(f32::from_le_bytes(data), 1.5);
//! # Ok(())
//! # }
//! ```

pub mod bare;
pub mod bench;
mod checksum;
mod config;
mod dtype;
mod error;
mod fault;
mod frame;
mod group;
mod hello;
mod interrupt;
mod lane;
mod listener;
mod mesh;
mod packed;
mod seal;
mod stream;
mod sum;
mod wait;
mod whole;
mod wire;

pub use config::{GroupConfig, RANKS_MAX, SOCKETS_PER_PEER_MAX};
pub use dtype::Dtype;
pub use error::{
    Absence, AbsenceReason, Absences, Message, Moment, Operation, OperationPhase, TransportError,
};
pub use group::{Group, GroupStats};
pub use interrupt::Interrupter;
pub use listener::Listener;
pub use packed::{pack, unpack};
pub use seal::group_key;
