//! A connection to one peer, with at most one outgoing and one incoming frame at a time.
//!
//! A lane never blocks. A driver calls its steps in turn with those of other lanes; each step moves
//! as many bytes as the socket accepts or holds, and returns whether any byte moved.
//!
//! Small frames are moved *whole*, header and payload in one system call; the payload is then in
//! the lane's inbox. Large frames are *streamed* from and into the caller's memory.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use crate::checksum::Xxh64;
use crate::error::{Message, Operation};
use crate::fault::{Fault, Stop};
use crate::frame::{self, HEADER_BYTES, HeaderBytes, REASON_BYTES_MAX, TRAILER_BYTES};
use crate::wire::Wire;

/// Maximum number of bytes that one step writes or reads, so that no lane starves another.
const STEP_BYTES_MAX: usize = 256 << 10;
/// Maximum number of bytes of point-to-point messages that a lane buffers before they are
/// requested.
const EARLY_BYTES_MAX: usize = 64 << 20;

/// A connection to a peer and the frames in flight on it.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) peer: usize,
    wire: Wire,
    checksums: bool,
    out: Outgoing,
    inc: Incoming,
    early: VecDeque<Early>,
    wants_read: bool,
    wants_write: bool,
}

#[derive(Debug)]
struct Outgoing {
    header: HeaderBytes,
    part: u8,
    payload_bytes: usize,
    total_bytes: usize,
    sent: usize,
    hash: Xxh64,
    trailer: [u8; TRAILER_BYTES],
}

#[derive(Debug)]
struct Incoming {
    expected: Message,
    expected_header: HeaderBytes,
    header: HeaderBytes,
    payload_bytes: usize,
    total_bytes: usize,
    got: usize,
    hash: Xxh64,
    trailer: [u8; TRAILER_BYTES],
    /// Whether the frame is received into `inbox`.
    whole: bool,
    inbox: Vec<u8>,
}

/// The beginning of a frame, or all of it, that arrived before the caller requested it.
#[derive(Debug)]
struct Early {
    frame: Vec<u8>,
    got: usize,
    /// Whether reading of the frame is paused: it is not a point-to-point message, or it is too
    /// large.
    parked: bool,
}

const NOTHING: Message = Message {
    epoch: 0,
    sequence: 0,
    operation: Operation::Join,
    dtype: crate::dtype::Dtype::U32,
    bytes: 0,
    frame_bytes: 0,
    part: 0,
};

impl Lane {
    pub(crate) fn new(peer: usize, wire: Wire, checksums: bool) -> Lane {
        let header = frame::encode(&NOTHING, peer);
        Lane {
            peer,
            wire,
            checksums,
            out: Outgoing {
                header,
                part: 0,
                payload_bytes: 0,
                total_bytes: 0,
                sent: 0,
                hash: Xxh64::new(),
                trailer: [0; TRAILER_BYTES],
            },
            inc: Incoming {
                expected: NOTHING,
                expected_header: header,
                header,
                payload_bytes: 0,
                total_bytes: 0,
                got: 0,
                hash: Xxh64::new(),
                trailer: [0; TRAILER_BYTES],
                whole: true,
                inbox: Vec::new(),
            },
            early: VecDeque::new(),
            wants_read: false,
            wants_write: false,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wire.fd()
    }

    /// The byte stream below the frames.
    pub(crate) fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    /// Whether the lane waits for bytes from the peer.
    pub(crate) fn wants_read(&self) -> bool {
        self.wants_read
    }

    /// Whether the lane has bytes that the socket has not accepted yet.
    pub(crate) fn wants_write(&self) -> bool {
        self.wants_write
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.out.sent == self.out.total_bytes && self.wire.is_flushed()
    }

    pub(crate) fn is_received(&self) -> bool {
        self.inc.got == self.inc.total_bytes
    }

    /// Returns the part number of the unfinished frames, if any; the lower one if both are
    /// unfinished.
    pub(crate) fn unfinished_part(&self) -> Option<u8> {
        let out = (!self.is_sent()).then_some(self.out.part);
        let inc = (!self.is_received()).then_some(self.inc.expected.part);
        match (out, inc) {
            (Some(out), Some(inc)) => Some(out.min(inc)),
            (out, inc) => out.or(inc),
        }
    }

    /// Returns the number of payload bytes of the current frame that have arrived.
    pub(crate) fn payload_received(&self) -> usize {
        self.inc.got.saturating_sub(HEADER_BYTES).min(self.inc.payload_bytes)
    }

    /// Makes the lane wait for nothing: neither to read nor to write.
    pub(crate) fn rest(&mut self) {
        self.wants_read = false;
        self.wants_write = false;
    }

    fn frame_bytes(&self, payload_bytes: usize) -> usize {
        HEADER_BYTES + payload_bytes + if self.checksums { TRAILER_BYTES } else { 0 }
    }

    fn stop(&self, fault: Fault) -> Stop {
        Stop::Peer { peer: self.peer, fault }
    }

    // Whole frames.

    /// Begins to send a frame that the driver keeps in memory.
    pub(crate) fn begin_push_whole(&mut self, frame_bytes: usize) {
        debug_assert!(self.is_sent(), "the last frame is still on its way");
        self.out.part = 0;
        self.out.sent = 0;
        self.out.total_bytes = frame_bytes;
    }

    /// Sends more of `frame`, which must be the same on every call. Returns whether any byte moved.
    pub(crate) fn push_whole(&mut self, frame: &[u8]) -> Result<bool, Stop> {
        if self.is_sent() {
            return Ok(false);
        }
        let moved = self.wire.flush();
        let written =
            moved.and_then(|moved| Ok((moved, self.wire.write(&frame[self.out.sent..])?)));
        match written {
            Ok((moved, sent)) => {
                self.out.sent += sent;
                self.wants_write = !self.is_sent();
                Ok(moved || sent > 0)
            }
            Err(e) => Err(self.lost(e)),
        }
    }

    /// Begins to receive a small frame into the inbox.
    pub(crate) fn begin_pull_whole(&mut self, expected: Message) -> Result<(), Stop> {
        let total_bytes = self.begin_pull(expected, true);
        if self.inc.inbox.len() < total_bytes {
            self.inc.inbox.resize(total_bytes, 0);
        }
        if let Some(early) = self.early.pop_front() {
            let got = early.got.min(total_bytes);
            self.inc.inbox[..got].copy_from_slice(&early.frame[..got]);
            self.inc.got = got;
            if got >= HEADER_BYTES {
                self.check_inbox_header()?;
            }
            self.finish_whole()?;
        }
        Ok(())
    }

    /// Receives more of a small frame. Returns whether any byte moved.
    pub(crate) fn pull_whole(&mut self) -> Result<bool, Stop> {
        if self.is_received() {
            return Ok(false);
        }
        let inc = &mut self.inc;
        let got = match self.wire.read(&mut inc.inbox[inc.got..inc.total_bytes]) {
            Ok(0) => {
                self.wants_read = true;
                return Ok(false);
            }
            Ok(got) => got,
            Err(fault) => return Err(self.stop(fault)),
        };
        let header_was_checked = inc.got >= HEADER_BYTES;
        inc.got += got;
        if !header_was_checked && inc.got >= HEADER_BYTES {
            self.check_inbox_header()?;
        }
        self.finish_whole()?;
        Ok(true)
    }

    fn check_inbox_header(&mut self) -> Result<(), Stop> {
        let inc = &self.inc;
        let (header, rest) = inc.inbox[..inc.got]
            .split_first_chunk::<HEADER_BYTES>()
            .expect("the caller has seen a whole header arrive");
        if *header == inc.expected_header {
            return Ok(());
        }
        let (header, rest) = (*header, rest.to_vec());
        self.check_header(&header, &rest).map_err(|fault| self.stop(fault))
    }

    fn finish_whole(&mut self) -> Result<(), Stop> {
        self.wants_read = !self.is_received();
        if !self.is_received() || !self.checksums {
            return Ok(());
        }
        let trailer = &self.inc.inbox[HEADER_BYTES + self.inc.payload_bytes..self.inc.total_bytes];
        if trailer != frame::trailer(self.payload()) {
            return Err(self.stop(Fault::Checksum));
        }
        Ok(())
    }

    /// Returns the payload of a whole frame that has been received.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.inc.inbox[HEADER_BYTES..HEADER_BYTES + self.inc.payload_bytes]
    }

    // Streamed frames.

    /// Begins to send a frame of `message.frame_bytes` payload bytes as `rank`.
    pub(crate) fn begin_push(&mut self, message: &Message, rank: usize) {
        debug_assert!(self.is_sent(), "the last frame is still on its way");
        let payload_bytes = message.frame_bytes as usize;
        self.out.header = frame::encode(message, rank);
        self.out.part = message.part;
        self.out.payload_bytes = payload_bytes;
        self.out.total_bytes = self.frame_bytes(payload_bytes);
        self.out.sent = 0;
        self.out.hash = Xxh64::new();
    }

    /// Sends more of the frame with this `payload`, of which only the first `available` bytes may
    /// be sent yet. Returns whether any byte moved.
    pub(crate) fn push(&mut self, payload: &[u8], available: usize) -> Result<bool, Stop> {
        self.wants_write = false;
        if self.is_sent() {
            return Ok(false);
        }
        let mut moved = match self.wire.flush() {
            Ok(moved) => moved,
            Err(e) => return Err(self.lost(e)),
        };
        self.wants_write = !self.wire.is_flushed();
        if self.wants_write || self.is_sent() {
            return Ok(moved);
        }
        // Header, payload and trailer are at most three writes.
        for _ in 0..3 {
            let sent = match self.push_piece(payload, available) {
                Ok(Some(sent)) => sent,
                Ok(None) => break,
                Err(e) => return Err(self.lost(e)),
            };
            moved |= sent > 0;
            if self.wants_write || self.is_sent() {
                break;
            }
        }
        Ok(moved)
    }

    /// Writes once; returns `None` if nothing may be sent yet.
    fn push_piece(&mut self, payload: &[u8], available: usize) -> io::Result<Option<usize>> {
        let out = &mut self.out;
        let at = out.sent.checked_sub(HEADER_BYTES);
        let payload_piece = at.filter(|at| *at < out.payload_bytes);
        let piece = match (at, payload_piece) {
            (None, _) => &out.header[out.sent..],
            (Some(_), Some(at)) => {
                let end = available.min(at + STEP_BYTES_MAX);
                if at >= end {
                    return Ok(None);
                }
                &payload[at..end]
            }
            (Some(at), None) => &out.trailer[at - out.payload_bytes..],
        };
        let sent = self.wire.write(piece)?;
        self.wants_write = sent < piece.len() || !self.wire.is_flushed();
        out.sent += sent;
        if let (true, Some(at)) = (self.checksums, payload_piece) {
            out.hash.update(&payload[at..at + sent]);
        }
        if self.checksums && out.sent == HEADER_BYTES + out.payload_bytes {
            out.trailer = out.hash.finish().to_le_bytes();
        }
        Ok(Some(sent))
    }

    /// Begins to receive a large frame; the payload bytes that have arrived early are copied to
    /// `payload`.
    pub(crate) fn begin_pull_stream(
        &mut self,
        expected: Message,
        payload: &mut [u8],
    ) -> Result<(), Stop> {
        self.begin_pull(expected, false);
        let Some(early) = self.early.pop_front() else { return Ok(()) };
        let head_bytes = early.got.min(HEADER_BYTES);
        self.inc.header[..head_bytes].copy_from_slice(&early.frame[..head_bytes]);
        self.inc.got = early.got;
        if early.got < HEADER_BYTES {
            return Ok(());
        }
        let header = self.inc.header;
        self.check_header(&header, &early.frame[HEADER_BYTES..early.got])
            .map_err(|fault| self.stop(fault))?;
        let inc = &mut self.inc;
        let arrived = &early.frame[HEADER_BYTES..early.got];
        let (body, tail) = arrived.split_at(arrived.len().min(inc.payload_bytes));
        payload[..body.len()].copy_from_slice(body);
        inc.trailer[..tail.len()].copy_from_slice(tail);
        if self.checksums {
            inc.hash.update(body);
        }
        self.finish_stream()
    }

    /// Receives more of a large frame. Writes its next payload bytes to `window`, which may be shorter
    /// than the rest of the payload. Returns whether any byte moved.
    pub(crate) fn pull(&mut self, window: &mut [u8]) -> Result<bool, Stop> {
        self.wants_read = false;
        if self.is_received() {
            return Ok(false);
        }
        let mut moved = false;
        // Header, payload and trailer are at most three reads; `window` serves only one.
        for _ in 0..3 {
            let in_payload = self.is_in_payload();
            if self.is_received() || (in_payload && window.is_empty()) {
                break;
            }
            match self.pull_piece(window) {
                Ok(0) => {
                    self.wants_read = true;
                    break;
                }
                Ok(_) => moved = true,
                Err(fault) => return Err(self.stop(fault)),
            }
            if in_payload && self.is_in_payload() {
                break;
            }
        }
        self.finish_stream()?;
        Ok(moved)
    }

    fn is_in_payload(&self) -> bool {
        (HEADER_BYTES..HEADER_BYTES + self.inc.payload_bytes).contains(&self.inc.got)
    }

    /// Reads once; returns 0 if there is nothing to read.
    fn pull_piece(&mut self, window: &mut [u8]) -> Result<usize, Fault> {
        let inc = &mut self.inc;
        let got = match inc.got.checked_sub(HEADER_BYTES) {
            None => self.wire.read(&mut inc.header[inc.got..]),
            Some(at) if at < inc.payload_bytes => {
                let end = window.len().min(STEP_BYTES_MAX);
                let got = self.wire.read(&mut window[..end]);
                if let (true, Ok(got)) = (self.checksums, &got) {
                    inc.hash.update(&window[..*got]);
                }
                got
            }
            Some(at) => self.wire.read(&mut inc.trailer[at - inc.payload_bytes..]),
        }?;
        let header_was_checked = inc.got >= HEADER_BYTES;
        inc.got += got;
        if !header_was_checked && inc.got >= HEADER_BYTES {
            let header = inc.header;
            self.check_header(&header, &[])?;
        }
        Ok(got)
    }

    fn finish_stream(&self) -> Result<(), Stop> {
        let inc = &self.inc;
        let wrong = self.checksums && inc.trailer != inc.hash.finish().to_le_bytes();
        if self.is_received() && wrong { Err(self.stop(Fault::Checksum)) } else { Ok(()) }
    }

    // Both kinds of frames.

    fn begin_pull(&mut self, expected: Message, whole: bool) -> usize {
        debug_assert!(self.is_received(), "the last frame is still arriving");
        let payload_bytes = expected.frame_bytes as usize;
        let total_bytes = self.frame_bytes(payload_bytes);
        self.inc.expected = expected;
        self.inc.expected_header = frame::encode(&expected, self.peer);
        self.inc.payload_bytes = payload_bytes;
        self.inc.total_bytes = total_bytes;
        self.inc.got = 0;
        self.inc.hash = Xxh64::new();
        self.inc.whole = whole;
        self.wants_read = true;
        total_bytes
    }

    /// Compares the header that arrived with the expected one. `rest` has the bytes that arrived
    /// after the header.
    fn check_header(&mut self, header: &HeaderBytes, rest: &[u8]) -> Result<(), Fault> {
        if *header == self.inc.expected_header {
            return Ok(());
        }
        match frame::decode(header) {
            None => Err(Fault::Garbled(*header.first_chunk().expect("a header is longer"))),
            Some(found) if found.operation == Operation::Abort => {
                Err(Fault::Failed(self.reason(&found, rest)))
            }
            Some(found) => Err(Fault::Desync { expected: self.inc.expected, found }),
        }
    }

    /// Returns the reason that follows the header of an abort frame; both were written together.
    fn reason(&mut self, abort: &Message, rest: &[u8]) -> String {
        let reason_bytes = (abort.frame_bytes as usize).min(REASON_BYTES_MAX);
        let mut reason = rest[..rest.len().min(reason_bytes)].to_vec();
        let mut more = vec![0; reason_bytes - reason.len()];
        if let Ok(got) = self.wire.read(&mut more) {
            reason.extend_from_slice(&more[..got]);
        }
        String::from_utf8_lossy(&reason).into_owned()
    }

    /// Returns the reason why writing failed: the error found in reading the peer's last message,
    /// such as the reason of an abort, if there is one, else the error of the operating system.
    fn lost(&mut self, cause: io::Error) -> Stop {
        let said = if self.is_received() {
            self.pull_early().err()
        } else if self.inc.whole {
            self.pull_whole().err()
        } else {
            self.pull(&mut []).err()
        };
        match said {
            Some(stop @ Stop::Peer { fault: Fault::Lost(_), .. }) => drop(stop),
            Some(stop) => return stop,
            None => {}
        }
        self.stop(Fault::Lost(cause))
    }

    /// Receives point-to-point messages that have not been requested yet, so that two ranks that
    /// send to each other at the same time do not block each other.
    pub(crate) fn pull_early(&mut self) -> Result<bool, Stop> {
        let held: usize = self.early.iter().map(|early| early.frame.len()).sum();
        let is_full = |early: &Early| early.parked || early.got < early.frame.len();
        if !self.early.back().is_some_and(is_full) {
            self.early.push_back(Early { frame: vec![0; HEADER_BYTES], got: 0, parked: false });
        }
        let early = self.early.back_mut().expect("one was just pushed");
        if early.parked {
            self.wants_read = false;
            return Ok(false);
        }
        let got = match self.wire.read(&mut early.frame[early.got..]) {
            Ok(got) => got,
            Err(fault) => return Err(self.stop(fault)),
        };
        early.got += got;
        if got > 0 && early.got == HEADER_BYTES && early.frame.len() == HEADER_BYTES {
            self.size_early(held)?;
        }
        if self.early.back().is_some_and(|early| early.got == 0) {
            self.early.pop_back();
        }
        self.wants_read = !self.early.back().is_some_and(|early| early.parked);
        Ok(got > 0)
    }

    /// Allocates memory for the message whose header has just arrived early, or parks it.
    fn size_early(&mut self, held: usize) -> Result<(), Stop> {
        let early = self.early.back().expect("its header has just arrived");
        let header: HeaderBytes = *early.frame.first_chunk().expect("its header has just arrived");
        let message = match frame::decode(&header) {
            None => {
                let found = *header.first_chunk().expect("a header is longer");
                return Err(self.stop(Fault::Garbled(found)));
            }
            Some(found) if found.operation == Operation::Abort => {
                let reason = self.reason(&found, &[]);
                return Err(self.stop(Fault::Failed(reason)));
            }
            Some(found) => found,
        };
        let fits = message.frame_bytes <= EARLY_BYTES_MAX.saturating_sub(held) as u64;
        let is_keepable = message.operation == Operation::Send && fits;
        let frame_bytes =
            if is_keepable { self.frame_bytes(message.frame_bytes as usize) } else { 0 };
        let early = self.early.back_mut().expect("its header has just arrived");
        if is_keepable {
            early.frame.resize(frame_bytes, 0);
        } else {
            early.parked = true;
        }
        Ok(())
    }

    /// Sends the abort frame if no other frame is half sent, and closes the sending side.
    pub(crate) fn abort(&mut self, frame: &[u8]) {
        if self.out.sent == 0 || self.is_sent() {
            let _ = self.wire.write(frame);
        }
        self.wire.close();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

    use super::*;
    use crate::seal::{self, Cipher, HEAD_BYTES, Opener, RECORD_BYTES_MAX};

    /// Test timeout: long enough for a loaded machine, short enough to end a hanging test.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Returns both ends of a connection with the smallest buffers that the system allows.
    fn narrow() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_socket_recv_buffer_size(&listener, 1).unwrap();
        let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_socket_send_buffer_size(&out, 1).unwrap();
        let (inc, _) = listener.accept().unwrap();
        out.set_nonblocking(true).unwrap();
        inc.set_nonblocking(true).unwrap();
        (out, inc)
    }

    fn opened(opener: &mut Opener, mut sealed: &mut [u8]) -> Vec<u8> {
        let mut all = Vec::new();
        while !sealed.is_empty() {
            let (head, rest) = sealed.split_at_mut(HEAD_BYTES);
            let body_bytes = opener.open_head(head).unwrap();
            let (body, rest) = rest.split_at_mut(body_bytes);
            let payload_bytes = opener.open_body(body).unwrap();
            all.extend_from_slice(&body[..payload_bytes]);
            sealed = rest;
        }
        all
    }

    #[test]
    fn nothing_follows_a_frame_however_little_the_socket_takes_at_a_time() {
        for is_sealed in [false, true] {
            for payload_bytes in [1, 1000, RECORD_BYTES_MAX, 5 * RECORD_BYTES_MAX + 77] {
                let (out, mut inc) = narrow();
                let keys = |is_dialler| {
                    seal::keys(&[1; 32], Cipher::Aes256Gcm, is_dialler, b"hello", b"reply")
                };
                let wire = Wire::new(out, is_sealed.then(|| Box::new(keys(true))));
                let mut lane = Lane::new(1, wire, false);
                let payload: Vec<u8> = (0..payload_bytes).map(|idx| idx as u8).collect();
                let message = Message { frame_bytes: payload_bytes as u64, ..NOTHING };
                lane.begin_push(&message, 0);
                let mut arrived = Vec::new();
                let mut piece = [0; 1500];
                let started = Instant::now();
                while !lane.is_sent() {
                    assert!(started.elapsed() < PATIENCE, "sent {} bytes", lane.out.sent);
                    lane.push(&payload, payload_bytes).unwrap();
                    match inc.read(&mut piece) {
                        Ok(got) => arrived.extend_from_slice(&piece[..got]),
                        Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock),
                    }
                }
                // The kernel has accepted every byte; the last ones may still be on their way.
                lane.wire.close();
                inc.set_nonblocking(false).unwrap();
                inc.set_read_timeout(Some(PATIENCE)).unwrap();
                inc.read_to_end(&mut arrived).unwrap();
                if is_sealed {
                    arrived = opened(&mut keys(false).1, &mut arrived);
                }
                assert_eq!(arrived.len(), HEADER_BYTES + payload_bytes, "sealed: {is_sealed}");
                assert!(arrived[HEADER_BYTES..] == payload);
            }
        }
    }
}
