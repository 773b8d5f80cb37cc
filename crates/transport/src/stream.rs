//! Large messages: streamed over all sockets of a peer, from and into the caller's memory.
//!
//! A large all_sum is a reduce-scatter and an all-gather in one go. Every rank owns a segment of
//! the buffer. On the lane to each peer it first sends the peer's segment of its own buffer, then
//! its own segment as it is summed; it first receives the peer's share of its own segment into a
//! ring, then the peer's finished segment into place:
//!
//! ```text
//! out:  | header | our part of their segment | header | our segment, as far as it is summed |
//! in:   | header | their part of our segment → ring | header | their segment → in place     |
//!                                     └─ a chunk has come from everybody: add in rank order ─┘
//! ```
//!
//! A finished chunk of a peer's segment overwrites the data that this rank sent for it; it cannot
//! arrive before the peer has received this rank's part of that chunk. Every wait is for bytes that
//! the peers send unconditionally, so there is no deadlock, however late or full a socket is.

use std::ops::Range;

use crate::config::RANKS_MAX;
use crate::dtype::Dtype;
use crate::error::Message;
use crate::fault::Stop;
use crate::lane::Lane;
use crate::sum::sum_in_rank_order;
use crate::wait::Wait;
use crate::whole::pull_early;

/// Number of bytes that are summed at a time, once they have arrived from every rank; a multiple of
/// `UNIT_BYTES`.
const CHUNK_BYTES: usize = 48 << 10;
/// Maximum number of bytes of a peer's part that wait to be summed; a multiple of `CHUNK_BYTES`.
pub(crate) const RING_BYTES: usize = 192 << 10;
/// Pieces are cut at multiples of this number of bytes: between cache lines and between elements of
/// every type.
const UNIT_BYTES: usize = 192;
const _: () = assert!(CHUNK_BYTES.is_multiple_of(UNIT_BYTES));
const _: () = assert!(RING_BYTES.is_multiple_of(CHUNK_BYTES));

/// Memory that streams read and write.
#[derive(Debug)]
pub(crate) struct Memory<'a> {
    /// Data to send; `None` if `data` is sent.
    pub(crate) local: Option<&'a [u8]>,
    /// Buffer for received data. Also the data to send if `local` is `None`.
    pub(crate) data: &'a mut [u8],
}

/// A frame to send.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) message: Message,
    /// Range of the payload in the data to send.
    pub(crate) range: Range<usize>,
    /// Whether only those bytes may be sent that are already summed in the flow's stripe.
    pub(crate) is_gated: bool,
}

/// A frame to receive.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) message: Message,
    /// Range of [`Memory::data`] into which the payload is received; `None` for the ring.
    pub(crate) range: Option<Range<usize>>,
}

/// Frames of one lane: at most two in each direction, one after the other.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) lane_idx: usize,
    pub(crate) stripe_idx: usize,
    pub(crate) outbound: [Option<Outbound>; 2],
    pub(crate) inbound: [Option<Inbound>; 2],
}

/// A piece of this rank's segment that is summed from the flows of one socket.
#[derive(Debug)]
pub(crate) struct Stripe {
    pub(crate) range: Range<usize>,
    /// Number of bytes, from the stripe's start, that are summed.
    pub(crate) summed: usize,
}

/// All frames and sums of a large operation.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Frames of each lane, ordered by stripe, then by peer.
    pub(crate) flows: Vec<Flow>,
    /// Stripes that are summed while frames arrive; empty if the operation does not sum.
    pub(crate) stripes: Vec<Stripe>,
}

/// A large operation in progress.
#[derive(Debug)]
pub(crate) struct Streams<'a> {
    pub(crate) rank: usize,
    pub(crate) dtype: Dtype,
    pub(crate) lanes: &'a mut [Lane],
    pub(crate) memory: Memory<'a>,
    pub(crate) plan: Plan,
    /// Memory for the peers' parts that wait to be summed: `RING_BYTES` for each flow whose stripe
    /// is summed.
    pub(crate) ring: &'a mut [u8],
    /// Whether messages that have not been requested yet are received while the sockets are full.
    pub(crate) takes_early: bool,
}

impl Streams<'_> {
    pub(crate) fn run(&mut self, wait: &mut Wait<'_>) -> Result<(), Stop> {
        for flow_idx in 0..self.plan.flows.len() {
            self.begin_outbound(flow_idx);
            self.begin_inbound(flow_idx)?;
        }
        loop {
            let mut moved = false;
            for flow_idx in 0..self.plan.flows.len() {
                moved |= self.push(flow_idx)?;
                moved |= self.pull(flow_idx)?;
            }
            moved |= self.sum();
            if self.is_done() {
                wait.progressed();
                return Ok(());
            }
            if moved || (self.takes_early && pull_early(self.lanes)?) {
                wait.progressed();
                wait.check()?;
            } else {
                wait.stalled(self.lanes)?;
            }
        }
    }

    fn is_done(&self) -> bool {
        self.plan.flows.iter().all(|flow| flow.outbound[0].is_none() && flow.inbound[0].is_none())
    }

    fn begin_outbound(&mut self, flow_idx: usize) {
        let flow = &self.plan.flows[flow_idx];
        if let Some(outbound) = &flow.outbound[0] {
            self.lanes[flow.lane_idx].begin_push(&outbound.message, self.rank);
        }
    }

    fn begin_inbound(&mut self, flow_idx: usize) -> Result<(), Stop> {
        let flow = &self.plan.flows[flow_idx];
        let Some(inbound) = &flow.inbound[0] else { return Ok(()) };
        // Only point-to-point messages arrive early, and those never go to the ring.
        let payload = match &inbound.range {
            Some(range) => &mut self.memory.data[range.clone()],
            None => &mut [],
        };
        self.lanes[flow.lane_idx].begin_pull_stream(inbound.message, payload)
    }

    fn push(&mut self, flow_idx: usize) -> Result<bool, Stop> {
        let flow = &mut self.plan.flows[flow_idx];
        let Some(outbound) = &flow.outbound[0] else { return Ok(false) };
        let payload = &self.memory.local.unwrap_or(self.memory.data)[outbound.range.clone()];
        let available = if outbound.is_gated {
            self.plan.stripes[flow.stripe_idx].summed
        } else {
            payload.len()
        };
        let lane = &mut self.lanes[flow.lane_idx];
        let moved = lane.push(payload, available)?;
        if lane.is_sent() {
            flow.outbound.rotate_left(1);
            flow.outbound[1] = None;
            self.begin_outbound(flow_idx);
        }
        Ok(moved)
    }

    fn pull(&mut self, flow_idx: usize) -> Result<bool, Stop> {
        let flow = &mut self.plan.flows[flow_idx];
        let Some(inbound) = &flow.inbound[0] else { return Ok(false) };
        let lane = &mut self.lanes[flow.lane_idx];
        let got = lane.payload_received();
        let window = match &inbound.range {
            Some(range) => &mut self.memory.data[range.start + got..range.end],
            None => {
                let stripe = &self.plan.stripes[flow.stripe_idx];
                let room = stripe.range.len().min(stripe.summed + RING_BYTES) - got;
                let at = got % RING_BYTES;
                let start = flow_idx * RING_BYTES + at;
                &mut self.ring[start..start + room.min(RING_BYTES - at)]
            }
        };
        let moved = lane.pull(window)?;
        if lane.is_received() {
            flow.inbound.rotate_left(1);
            flow.inbound[1] = None;
            self.begin_inbound(flow_idx)?;
        }
        Ok(moved)
    }

    /// Sums the chunks that have arrived from every rank. Returns whether any chunk was summed.
    fn sum(&mut self) -> bool {
        let mut moved = false;
        for stripe_idx in 0..self.plan.stripes.len() {
            while let Some(chunk) = self.next_chunk(stripe_idx) {
                self.sum_chunk(stripe_idx, chunk);
                moved = true;
            }
        }
        moved
    }

    /// Returns the range of the next chunk within its stripe, if it has arrived from every rank.
    fn next_chunk(&self, stripe_idx: usize) -> Option<Range<usize>> {
        let stripe = &self.plan.stripes[stripe_idx];
        let end = stripe.range.len().min(stripe.summed + CHUNK_BYTES);
        // The last chunk waits for the end of the frames: no rank may receive a complete segment
        // that contains a part with a wrong hash.
        let is_last = end == stripe.range.len();
        let has_come = |flow: &Flow| match &flow.inbound[0] {
            Some(Inbound { range: None, .. }) => {
                !is_last && self.lanes[flow.lane_idx].payload_received() >= end
            }
            // The part for the ring is complete.
            _ => true,
        };
        let mut flows = self.plan.flows.iter().filter(|flow| flow.stripe_idx == stripe_idx);
        (stripe.summed < end && flows.all(has_come)).then_some(stripe.summed..end)
    }

    fn sum_chunk(&mut self, stripe_idx: usize, chunk: Range<usize>) {
        let stripe = &mut self.plan.stripes[stripe_idx];
        let at = chunk.start % RING_BYTES;
        let mut others: [&[u8]; RANKS_MAX] = [&[]; RANKS_MAX];
        let mut num_others = 0;
        for (flow_idx, flow) in self.plan.flows.iter().enumerate() {
            if flow.stripe_idx == stripe_idx {
                let start = flow_idx * RING_BYTES + at;
                others[num_others] = &self.ring[start..start + chunk.len()];
                num_others += 1;
            }
        }
        let own = stripe.range.start + chunk.start..stripe.range.start + chunk.end;
        let own = &mut self.memory.data[own];
        sum_in_rank_order(own, self.rank, &others[..num_others], self.dtype);
        stripe.summed = chunk.end;
    }
}

/// Returns piece `idx` of `count` nearly equal pieces of `range`, cut at multiples of
/// [`UNIT_BYTES`].
pub(crate) fn piece(range: &Range<usize>, idx: usize, count: usize) -> Range<usize> {
    let units = range.len().div_ceil(UNIT_BYTES);
    let cut = |idx: usize| (range.start + units * idx / count * UNIT_BYTES).min(range.end);
    cut(idx)..cut(idx + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_range_without_gaps_and_cut_no_element() {
        for bytes in [0, 1, 63, 64, 65, 1000, 4096, 100_001] {
            for count in 1..=7 {
                let range = 128..128 + bytes;
                let pieces: Vec<_> = (0..count).map(|idx| piece(&range, idx, count)).collect();
                assert_eq!(pieces[0].start, range.start);
                assert_eq!(pieces[count - 1].end, range.end);
                for pair in pieces.windows(2) {
                    assert_eq!(pair[0].end, pair[1].start);
                    assert!(
                        (pair[0].end - range.start) % UNIT_BYTES == 0 || pair[0].end == range.end
                    );
                }
            }
        }
    }
}
