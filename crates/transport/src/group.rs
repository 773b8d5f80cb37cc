//! One epoch of a group, and its operations.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{GroupConfig, RANKS_MAX};
use crate::dtype::Dtype;
use crate::error::{
    Absence, AbsenceReason, Absences, Message, Moment, Operation, OperationPhase, TransportError,
};
use crate::fault::{Fault, Stop};
use crate::frame;
use crate::interrupt::Interrupter;
use crate::lane::Lane;
use crate::listener::Listener;
use crate::mesh;
use crate::stream::{Flow, Inbound, Memory, Outbound, Plan, RING_BYTES, Streams, Stripe, piece};
use crate::sum::sum_in_rank_order;
use crate::wait::{Wait, deadline};
use crate::whole;

/// Largest buffer that an all_sum of two ranks exchanges as one frame. Among more ranks a direct
/// exchange sends more bytes than one in segments, so the limit is divided by the square of the
/// number of peers.
const DIRECT_BYTES_MAX: usize = 256 << 10;
/// Largest message of the other operations that is sent as one frame.
const WHOLE_BYTES_MAX: usize = 32 << 10;
/// Smallest message that is spread over all sockets of a peer.
const STRIPED_BYTES_MIN: usize = 1 << 20;

/// One rank's part in one epoch of a group.
///
/// Every rank must call the same collectives in the same order with the same type and size;
/// messages between two ranks are matched in the order of the calls. Any mismatch is
/// [`TransportError::Desync`].
///
/// After an error of the network, a peer or the system the group is *poisoned*: the peers receive
/// the reason if they can still be reached, every later operation returns the first cause, and the
/// ranks join the next epoch. Errors in the caller's own arguments are detected before any byte is
/// sent and do not poison the group.
///
/// Ranks should end with a [`barrier`](Group::barrier): closing a connection with unread messages
/// may discard what was sent last.
#[derive(Debug)]
pub struct Group {
    config: GroupConfig,
    interrupter: Interrupter,
    /// Lanes to all peers, ordered by (socket, peer).
    lanes: Vec<Lane>,
    /// Number of collectives that this rank has begun.
    collectives: u64,
    /// Number of messages to each rank that this rank has begun to send, by rank.
    sends: Vec<u64>,
    recvs: Vec<u64>,
    /// A small frame that is being sent to every peer.
    outbox: Vec<u8>,
    ring: Vec<u8>,
    stats: GroupStats,
    failed: Option<Arc<TransportError>>,
}

/// Counters of what a group has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Number of operations that completed.
    pub operations: u64,
    /// Payload bytes sent to all peers.
    pub bytes_sent: u64,
    /// Payload bytes received from all peers.
    pub bytes_received: u64,
    /// Time spent in operations.
    pub spent: Duration,
    /// Part of `spent` in which no byte moved.
    pub waited: Duration,
    /// Number of times that a waiting operation went to sleep.
    pub sleeps: u64,
}

/// One call of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) operation: Operation,
    pub(crate) sequence: u64,
    pub(crate) dtype: Dtype,
    pub(crate) bytes: usize,
    pub(crate) deadline: Instant,
    pub(crate) started: Instant,
}

impl Group {
    /// Joins the group of this epoch. Returns when every rank is connected to every other.
    ///
    /// Ranks may start in any order. The higher rank dials, the lower accepts; connections that do
    /// not belong to this epoch of this group are dropped.
    ///
    /// # Errors
    /// [`TransportError::JoinTimeout`] names the ranks that are missing; a rank that leaves again
    /// while others still join is [`TransportError::PeerLost`].
    pub fn join(listener: &Listener, config: GroupConfig) -> Result<Group, TransportError> {
        Group::join_interruptible(listener, config, Interrupter::new()?)
    }

    /// Joins as [`Group::join`] does; `interrupter` can interrupt the join, and later the
    /// operations of the group.
    ///
    /// # Errors
    /// As [`Group::join`], and [`TransportError::Interrupted`].
    pub fn join_interruptible(
        listener: &Listener,
        config: GroupConfig,
        interrupter: Interrupter,
    ) -> Result<Group, TransportError> {
        config.check()?;
        let started = Instant::now();
        let deadline = deadline(started, config.join_timeout);
        let wires = mesh::connect(listener, &config, &interrupter, started)?;
        let peers = (0..config.size()).filter(|peer| *peer != config.rank).cycle();
        let lanes = peers.zip(wires);
        let lanes = lanes.map(|(peer, wire)| Lane::new(peer, wire, config.checksums)).collect();
        let size = config.size();
        let mut group = Group {
            config,
            interrupter,
            lanes,
            collectives: 0,
            sends: vec![0; size],
            recvs: vec![0; size],
            outbox: Vec::new(),
            ring: Vec::new(),
            stats: GroupStats::default(),
            failed: None,
        };
        let call = Call {
            operation: Operation::Join,
            sequence: 0,
            dtype: Dtype::U32,
            bytes: 0,
            deadline,
            started,
        };
        group.run(call, |group, wait| group.exchange(&call, &[], wait)).map_err(|e| match e {
            TransportError::Deadline { waiting, moment } => {
                unready(group.config.epoch, &waiting, moment.elapsed)
            }
            e => e,
        })?;
        group.stats = GroupStats::default();
        Ok(group)
    }

    /// Returns this rank.
    pub fn rank(&self) -> usize {
        self.config.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.config.size()
    }

    /// Returns the epoch of the group.
    pub fn epoch(&self) -> u64 {
        self.config.epoch
    }

    /// Returns the counters of the group since it was joined.
    pub fn stats(&self) -> GroupStats {
        self.stats
    }

    /// Returns a handle that ends the blocked and all later operations from another thread.
    pub fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }

    /// Replaces `data` by the element-wise sum over all ranks.
    ///
    /// The buffers are added in rank order, `((x0 + x1) + x2) + …`, whatever the size and timing,
    /// so the result has the same bits on every rank and in every run. f16 and bf16 are accumulated
    /// in f32 and rounded once; integers wrap.
    ///
    /// # Errors
    /// See [`Group`]. After an error the contents of `data` are unspecified.
    pub fn all_sum(&mut self, data: &mut [u8], dtype: Dtype) -> Result<(), TransportError> {
        whole_elements(data.len(), dtype)?;
        let call = self.collective(Operation::AllSum, dtype, data.len());
        let num_peers = self.size() - 1;
        self.run(call, |group, wait| {
            if is_direct(data.len(), num_peers) {
                group.exchange(&call, data, wait)?;
                let mut others: [&[u8]; RANKS_MAX] = [&[]; RANKS_MAX];
                for (other, lane) in others.iter_mut().zip(&group.lanes[..num_peers]) {
                    *other = lane.payload();
                }
                sum_in_rank_order(data, group.config.rank, &others[..num_peers], dtype);
                Ok(())
            } else {
                group.sum_streams(&call, data, wait)
            }
        })
    }

    /// Collects `local` of every rank in `out`, in rank order. All parts must have the same size.
    ///
    /// # Errors
    /// See [`Group`]; [`TransportError::GatherSize`] if `out` is not `size` times as long as
    /// `local`.
    pub fn all_gather(
        &mut self,
        local: &[u8],
        out: &mut [u8],
        dtype: Dtype,
    ) -> Result<(), TransportError> {
        whole_elements(local.len(), dtype)?;
        let size = self.size();
        if local.len().checked_mul(size) != Some(out.len()) {
            return Err(TransportError::GatherSize { local: local.len(), out: out.len(), size });
        }
        let call = self.collective(Operation::AllGather, dtype, local.len());
        let own = self.config.rank * local.len();
        self.run(call, |group, wait| {
            out[own..own + local.len()].copy_from_slice(local);
            if local.len() <= WHOLE_BYTES_MAX {
                group.exchange(&call, local, wait)?;
                for lane in &group.lanes[..size - 1] {
                    let start = lane.peer * local.len();
                    out[start..start + local.len()].copy_from_slice(lane.payload());
                }
                Ok(())
            } else {
                group.gather_streams(&call, local, out, wait)
            }
        })
    }

    /// Sends `data` to rank `to`, which must call [`Group::recv`] with the same type and size.
    ///
    /// Returns when the operating system has accepted all of it. Two ranks may both send to each
    /// other before they receive: meanwhile up to 64 MiB per socket are received and buffered.
    ///
    /// # Errors
    /// See [`Group`].
    pub fn send(&mut self, data: &[u8], dtype: Dtype, to: usize) -> Result<(), TransportError> {
        whole_elements(data.len(), dtype)?;
        let lane_idx = self.lane_idx(to)?;
        let call = self.call(Operation::Send, self.sends[to], dtype, data.len());
        self.run(call, |group, wait| {
            group.sends[to] += 1;
            group.stats.bytes_sent += data.len() as u64;
            if data.len() <= WHOLE_BYTES_MAX {
                group.fill_outbox(&call, data);
                whole::send(&mut group.lanes, lane_idx, &group.outbox, wait)
            } else {
                let plan = group.point_to_point(&call, lane_idx, true);
                group.streams(&call, plan, Memory { local: Some(data), data: &mut [] }, wait)
            }
        })
    }

    /// Receives into `data` the message that rank `from` sends with the same type and size.
    ///
    /// # Errors
    /// See [`Group`].
    pub fn recv(
        &mut self,
        data: &mut [u8],
        dtype: Dtype,
        from: usize,
    ) -> Result<(), TransportError> {
        whole_elements(data.len(), dtype)?;
        let lane_idx = self.lane_idx(from)?;
        let call = self.call(Operation::Recv, self.recvs[from], dtype, data.len());
        self.run(call, |group, wait| {
            group.recvs[from] += 1;
            group.stats.bytes_received += data.len() as u64;
            if data.len() <= WHOLE_BYTES_MAX {
                let expected = group.message(&call, data.len(), 0);
                let lane = &mut group.lanes[lane_idx..lane_idx + 1];
                whole::exchange(lane, None, Some(expected), wait)?;
                data.copy_from_slice(group.lanes[lane_idx].payload());
                Ok(())
            } else {
                let plan = group.point_to_point(&call, lane_idx, false);
                group.streams(&call, plan, Memory { local: None, data }, wait)
            }
        })
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// See [`Group`].
    pub fn barrier(&mut self) -> Result<(), TransportError> {
        let call = self.collective(Operation::Barrier, Dtype::U32, 0);
        self.run(call, |group, wait| group.exchange(&call, &[], wait))
    }

    // Building of operations.

    fn call(&self, operation: Operation, sequence: u64, dtype: Dtype, bytes: usize) -> Call {
        let started = Instant::now();
        let deadline = deadline(started, self.config.op_timeout);
        Call { operation, sequence, dtype, bytes, deadline, started }
    }

    fn collective(&mut self, operation: Operation, dtype: Dtype, bytes: usize) -> Call {
        let sequence = self.collectives;
        self.collectives += 1;
        self.call(operation, sequence, dtype, bytes)
    }

    pub(crate) fn op_timeout(&self) -> Duration {
        self.config.op_timeout
    }

    pub(crate) fn lane(&mut self, lane_idx: usize) -> &mut Lane {
        &mut self.lanes[lane_idx]
    }

    /// Returns the index of the first lane to a peer.
    pub(crate) fn lane_idx(&self, peer: usize) -> Result<usize, TransportError> {
        let own = self.config.rank;
        match peer {
            _ if peer == own || peer >= self.size() => {
                Err(TransportError::RankOutside { rank: peer, size: self.size() })
            }
            _ if peer < own => Ok(peer),
            _ => Ok(peer - 1),
        }
    }

    /// Runs an operation: returns an error if the group is poisoned, and poisons it on an error.
    fn run(
        &mut self,
        call: Call,
        body: impl FnOnce(&mut Group, &mut Wait<'_>) -> Result<(), Stop>,
    ) -> Result<(), TransportError> {
        if let Some(cause) = &self.failed {
            let (epoch, cause) = (self.config.epoch, Arc::clone(cause));
            return Err(TransportError::Poisoned { epoch, cause });
        }
        for lane in &mut self.lanes {
            lane.rest();
        }
        let interrupter = self.interrupter.clone();
        let mut wait = Wait::new(&interrupter, self.config.spin, call.deadline);
        let result = if interrupter.is_interrupted() {
            Err(Stop::Interrupted)
        } else {
            body(self, &mut wait)
        };
        wait.progressed();
        self.stats.spent += call.started.elapsed();
        self.stats.waited += wait.waited;
        self.stats.sleeps += wait.sleeps;
        match result {
            Ok(()) => {
                self.stats.operations += 1;
                Ok(())
            }
            Err(stop) => Err(self.fail(stop, &call)),
        }
    }

    fn message(&self, call: &Call, frame_bytes: usize, part: u8) -> Message {
        let operation = match call.operation {
            Operation::Recv => Operation::Send,
            operation => operation,
        };
        Message {
            epoch: self.config.epoch,
            sequence: call.sequence,
            operation,
            dtype: call.dtype,
            bytes: call.bytes as u64,
            frame_bytes: frame_bytes as u64,
            part,
        }
    }

    fn fill_outbox(&mut self, call: &Call, payload: &[u8]) {
        let header = frame::encode(&self.message(call, payload.len(), 0), self.config.rank);
        self.outbox.clear();
        self.outbox.extend_from_slice(&header);
        self.outbox.extend_from_slice(payload);
        if self.config.checksums {
            self.outbox.extend_from_slice(&frame::trailer(payload));
        }
    }

    /// Sends `payload` to every peer and receives a frame of the same size from each into the
    /// lane's inbox.
    fn exchange(&mut self, call: &Call, payload: &[u8], wait: &mut Wait<'_>) -> Result<(), Stop> {
        let num_peers = self.size() - 1;
        self.fill_outbox(call, payload);
        let expected = self.message(call, payload.len(), 0);
        self.stats.bytes_sent += (payload.len() * num_peers) as u64;
        self.stats.bytes_received += (payload.len() * num_peers) as u64;
        whole::exchange(&mut self.lanes[..num_peers], Some(&self.outbox), Some(expected), wait)
    }

    /// Returns the number of sockets per peer that an operation of this size uses.
    fn num_stripes(&self, bytes: usize) -> usize {
        if bytes < STRIPED_BYTES_MIN { 1 } else { self.config.sockets_per_peer }
    }

    fn sum_streams(
        &mut self,
        call: &Call,
        data: &mut [u8],
        wait: &mut Wait<'_>,
    ) -> Result<(), Stop> {
        let (size, num_peers) = (self.size(), self.size() - 1);
        let num_stripes = self.num_stripes(data.len());
        let stripe_of = |rank: usize, stripe_idx: usize| {
            piece(&piece(&(0..data.len()), rank, size), stripe_idx, num_stripes)
        };
        let own = |stripe_idx| stripe_of(self.config.rank, stripe_idx);
        let flow = |lane_idx: usize| {
            let stripe_idx = lane_idx / num_peers;
            let (ours, theirs) =
                (own(stripe_idx), stripe_of(self.lanes[lane_idx].peer, stripe_idx));
            let share = |range: &Range<usize>, part| self.message(call, range.len(), part);
            Flow {
                lane_idx,
                stripe_idx,
                outbound: [
                    Some(Outbound {
                        message: share(&theirs, 0),
                        range: theirs.clone(),
                        is_gated: false,
                    }),
                    Some(Outbound {
                        message: share(&ours, 1),
                        range: ours.clone(),
                        is_gated: true,
                    }),
                ],
                inbound: [
                    Some(Inbound { message: share(&ours, 0), range: None }),
                    Some(Inbound { message: share(&theirs, 1), range: Some(theirs) }),
                ],
            }
        };
        let flows: Vec<Flow> = (0..num_stripes * num_peers).map(flow).collect();
        let stripes = (0..num_stripes).map(|idx| Stripe { range: own(idx), summed: 0 }).collect();
        self.streams(call, Plan { flows, stripes }, Memory { local: None, data }, wait)
    }

    fn gather_streams(
        &mut self,
        call: &Call,
        local: &[u8],
        out: &mut [u8],
        wait: &mut Wait<'_>,
    ) -> Result<(), Stop> {
        let num_peers = self.size() - 1;
        let num_stripes = self.num_stripes(local.len());
        let flow = |lane_idx: usize| {
            let range = piece(&(0..local.len()), lane_idx / num_peers, num_stripes);
            let message = self.message(call, range.len(), 0);
            let start = self.lanes[lane_idx].peer * local.len();
            let place = start + range.start..start + range.end;
            Flow {
                lane_idx,
                stripe_idx: 0,
                outbound: [Some(Outbound { message, range, is_gated: false }), None],
                inbound: [Some(Inbound { message, range: Some(place) }), None],
            }
        };
        let flows = (0..num_stripes * num_peers).map(flow).collect();
        let plan = Plan { flows, stripes: Vec::new() };
        self.streams(call, plan, Memory { local: Some(local), data: out }, wait)
    }

    fn point_to_point(&self, call: &Call, first_lane_idx: usize, sends: bool) -> Plan {
        let num_stripes = self.num_stripes(call.bytes);
        let flow = |stripe_idx: usize| {
            let range = piece(&(0..call.bytes), stripe_idx, num_stripes);
            let message = self.message(call, range.len(), 0);
            let outbound = Outbound { message, range: range.clone(), is_gated: false };
            let inbound = Inbound { message, range: Some(range) };
            Flow {
                lane_idx: first_lane_idx + stripe_idx * (self.size() - 1),
                stripe_idx: 0,
                outbound: [sends.then_some(outbound), None],
                inbound: [(!sends).then_some(inbound), None],
            }
        };
        Plan { flows: (0..num_stripes).map(flow).collect(), stripes: Vec::new() }
    }

    fn streams(
        &mut self,
        call: &Call,
        plan: Plan,
        memory: Memory<'_>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Stop> {
        let Plan { flows, stripes } = &plan;
        if !stripes.is_empty() {
            self.ring.resize(flows.len() * RING_BYTES, 0);
        }
        if call.operation == Operation::AllSum || call.operation == Operation::AllGather {
            let sent = flows.iter().flat_map(|flow| flow.outbound.iter().flatten());
            self.stats.bytes_sent += sent.map(|out| out.message.frame_bytes).sum::<u64>();
            let received = flows.iter().flat_map(|flow| flow.inbound.iter().flatten());
            self.stats.bytes_received += received.map(|inc| inc.message.frame_bytes).sum::<u64>();
        }
        let mut streams = Streams {
            rank: self.config.rank,
            dtype: call.dtype,
            lanes: &mut self.lanes,
            memory,
            plan,
            ring: &mut self.ring,
            takes_early: call.operation == Operation::Send,
        };
        streams.run(wait)
    }

    // Failure of operations.

    pub(crate) fn fail(&mut self, stop: Stop, call: &Call) -> TransportError {
        let moment = Box::new(Moment {
            rank: self.config.rank,
            operation: call.operation,
            sequence: call.sequence,
            dtype: call.dtype,
            bytes: call.bytes as u64,
            phase: self.phase(call),
            elapsed: call.started.elapsed(),
        });
        let error = match stop {
            Stop::Interrupted => TransportError::Interrupted { moment },
            Stop::System(cause) => TransportError::Resources { cause: Arc::new(cause) },
            Stop::Deadline => TransportError::Deadline { waiting: self.waiting(call), moment },
            Stop::Peer { peer: rank, fault } => {
                let addr = self.config.peers[rank];
                match fault {
                    Fault::Lost(cause) => {
                        let cause = Arc::new(cause);
                        TransportError::PeerLost { rank, addr, moment, cause }
                    }
                    Fault::Desync { expected, found } => {
                        let (expected, found) = (Box::new(expected), Box::new(found));
                        TransportError::Desync { rank, addr, moment, expected, found }
                    }
                    Fault::Garbled(found) => TransportError::Garbled { rank, addr, moment, found },
                    Fault::Checksum => TransportError::Checksum { rank, addr, moment },
                    Fault::Forged => TransportError::Forged { rank, addr, moment },
                    Fault::Failed(reason) => {
                        TransportError::PeerFailed { rank, addr, moment, reason }
                    }
                }
            }
        };
        let reason = match &error {
            // Forwards the first reason rather than a chain of who reported it to whom.
            TransportError::PeerFailed { reason, .. } => reason.clone(),
            error => error.to_string(),
        };
        let farewell = frame::abort(self.config.epoch, self.config.rank, &reason);
        for lane in &mut self.lanes {
            lane.abort(&farewell);
        }
        self.failed = Some(Arc::new(error.clone()));
        error
    }

    fn phase(&self, call: &Call) -> OperationPhase {
        let num_peers = self.size() - 1;
        let is_whole = match call.operation {
            Operation::AllSum => is_direct(call.bytes, num_peers),
            _ => call.bytes <= WHOLE_BYTES_MAX,
        };
        let is_first_part = || self.lanes.iter().any(|lane| lane.unfinished_part() == Some(0));
        match call.operation {
            Operation::Bare => OperationPhase::Stream,
            _ if is_whole => OperationPhase::Exchange,
            Operation::AllSum if is_first_part() => OperationPhase::ReduceScatter,
            Operation::AllSum | Operation::AllGather => OperationPhase::Gather,
            _ => OperationPhase::Stream,
        }
    }

    /// Returns the ranks that an operation waited for when its deadline passed.
    ///
    /// A late rank holds up the others, so nearly every lane is unfinished. The late rank is the
    /// one whose lane waited to read and received nothing, in the earliest part of the operation.
    fn waiting(&self, call: &Call) -> Vec<(usize, std::net::SocketAddr)> {
        let part = self.lanes.iter().filter_map(Lane::unfinished_part).min();
        let unfinished = || {
            self.lanes.iter().filter(move |lane| lane.unfinished_part() == part && part.is_some())
        };
        let mut ranks: Vec<usize> = match call.operation {
            Operation::Send => Vec::new(),
            _ => unfinished().filter(|lane| lane.wants_read()).map(|lane| lane.peer).collect(),
        };
        if ranks.is_empty() {
            ranks = unfinished().map(|lane| lane.peer).collect();
        }
        ranks.sort_unstable();
        ranks.dedup();
        ranks.into_iter().map(|rank| (rank, self.config.peers[rank])).collect()
    }
}

/// Whether an all_sum of this size is exchanged as one frame per peer.
fn is_direct(bytes: usize, num_peers: usize) -> bool {
    bytes.saturating_mul(num_peers * num_peers) <= DIRECT_BYTES_MAX
}

fn whole_elements(bytes: usize, dtype: Dtype) -> Result<(), TransportError> {
    if bytes.is_multiple_of(dtype.size_bytes()) {
        return Ok(());
    }
    Err(TransportError::UnevenBytes { bytes, dtype })
}

/// Returns the error for a group that did not form because these ranks are connected to this rank
/// but not to every other.
fn unready(
    epoch: u64,
    waiting: &[(usize, std::net::SocketAddr)],
    elapsed: Duration,
) -> TransportError {
    let absence = |(rank, addr): &(usize, _)| Absence {
        rank: *rank,
        addr: *addr,
        reason: AbsenceReason::Unready,
    };
    let ranks = waiting.iter().map(absence).collect();
    let absent = Box::new(Absences { ranks, strangers: 0, last_stranger: None });
    TransportError::JoinTimeout { epoch, elapsed, absent }
}
