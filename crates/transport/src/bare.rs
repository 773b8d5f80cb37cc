//! The benchmark baseline: a raw exchange over the sockets of a group.
//!
//! Both ranks write their bytes and read the other's on one socket and spin until both are done: no
//! frames, no sums, no sleeping. This is close to the maximum that the socket can carry. If the
//! group encrypts the connection, the exchange is encrypted too.

use std::time::Instant;

use crate::dtype::Dtype;
use crate::error::{Operation, TransportError};
use crate::fault::{Fault, Stop};
use crate::group::{Call, Group};
use crate::wait::deadline;

/// Number of rounds between two checks of the clock.
const ROUNDS_PER_LOOK: u32 = 1 << 12;
/// Number of rounds without progress after which every further round yields the core first. A spin
/// that burns its time slice while the peer waits for the core would be a baseline that is too easy
/// to beat.
const ROUNDS_UNTIL_YIELD: u32 = 16;
/// Maximum number of bytes per system call.
const STEP_BYTES_MAX: usize = 256 << 10;

/// A raw exchange between two ranks of a group, over their first socket.
#[derive(Debug)]
pub struct Bare<'g> {
    group: &'g mut Group,
    lane_idx: usize,
}

impl<'g> Bare<'g> {
    /// Prepares exchanges with `peer`, which must do the same with this rank. The group cannot run
    /// other operations meanwhile.
    ///
    /// # Errors
    /// [`TransportError::RankOutside`] if `peer` is not another rank of the group.
    pub fn new(group: &'g mut Group, peer: usize) -> Result<Bare<'g>, TransportError> {
        let lane_idx = group.lane_idx(peer)?;
        Ok(Bare { group, lane_idx })
    }

    /// Sends all of `out` and, at the same time, receives as many bytes as `into` holds.
    ///
    /// # Errors
    /// [`TransportError::PeerLost`] or, after the group's `op_timeout`,
    /// [`TransportError::Deadline`]. Any error poisons the group.
    pub fn exchange(&mut self, out: &[u8], into: &mut [u8]) -> Result<(), TransportError> {
        let started = Instant::now();
        self.rounds(out, into, started).map_err(|stop| {
            let call = Call {
                operation: Operation::Bare,
                sequence: 0,
                dtype: Dtype::U32,
                bytes: out.len(),
                deadline: deadline(started, self.group.op_timeout()),
                started,
            };
            self.group.fail(stop, &call)
        })
    }

    fn rounds(&mut self, out: &[u8], into: &mut [u8], started: Instant) -> Result<(), Stop> {
        let op_timeout = self.group.op_timeout();
        let lane = self.group.lane(self.lane_idx);
        let peer = lane.peer;
        let wire = lane.wire();
        let lost = |cause| Stop::Peer { peer, fault: Fault::Lost(cause) };
        let (mut sent, mut got) = (0, 0);
        let (mut round_idx, mut idle_rounds) = (0u32, 0u32);
        while sent < out.len() || got < into.len() || !wire.is_flushed() {
            let before = sent + got;
            let flushed = wire.flush().map_err(lost)?;
            if sent < out.len() {
                let end = out.len().min(sent + STEP_BYTES_MAX);
                sent += wire.write(&out[sent..end]).map_err(lost)?;
            }
            if got < into.len() {
                let end = into.len().min(got + STEP_BYTES_MAX);
                let read = wire.read(&mut into[got..end]);
                got += read.map_err(|fault| Stop::Peer { peer, fault })?;
            }
            idle_rounds = if flushed || sent + got > before { 0 } else { idle_rounds + 1 };
            if idle_rounds > ROUNDS_UNTIL_YIELD {
                std::thread::yield_now();
            }
            round_idx = round_idx.wrapping_add(1);
            let is_time_to_look = round_idx.is_multiple_of(ROUNDS_PER_LOOK);
            if is_time_to_look && started.elapsed() >= op_timeout {
                return Err(Stop::Deadline);
            }
        }
        Ok(())
    }
}
