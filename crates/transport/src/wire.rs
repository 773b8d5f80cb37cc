//! The byte stream of one connection, in clear or sealed in records.
//!
//! Neither kind ever blocks; both report how many bytes they moved, so the code above is the same
//! for both. A sealed wire returns no byte before the tag of its record has been verified.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use crate::fault::Fault;
use crate::seal::{HEAD_BYTES, Opener, RECORD_BYTES_MAX, RECORD_EXTRA_BYTES, Sealer};

/// Maximum size of a record.
const SEALED_BYTES_MAX: usize = RECORD_BYTES_MAX + RECORD_EXTRA_BYTES;
/// Size of the receive buffer: several of the longest records.
const ARRIVED_BYTES_MAX: usize = 4 * SEALED_BYTES_MAX;

/// An authenticated connection to a peer.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: TcpStream,
    sealed: Option<Box<Sealed>>,
}

/// The state of a sealed wire besides its socket.
pub(crate) struct Sealed {
    sealer: Sealer,
    opener: Opener,
    /// The record being sent, and the number of its bytes that the socket has taken.
    out: Vec<u8>,
    sent: usize,
    /// Sealed bytes from the socket; records are opened in place.
    arrived: Vec<u8>,
    /// The part of `arrived` that is not opened yet.
    closed: Range<usize>,
    /// The part of `arrived` that is opened and not returned yet.
    opened: Range<usize>,
    /// Length of the record body whose head was opened.
    body_bytes: Option<usize>,
}

impl fmt::Debug for Sealed {
    /// Omits the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed")
            .field("sealer", &self.sealer)
            .field("opener", &self.opener)
            .finish_non_exhaustive()
    }
}

impl Wire {
    /// The wire over `socket`, sealed if there are keys.
    pub(crate) fn new(socket: TcpStream, keys: Option<Box<(Sealer, Opener)>>) -> Wire {
        let sealed = keys.map(|keys| {
            let (sealer, opener) = *keys;
            Box::new(Sealed {
                sealer,
                opener,
                out: Vec::new(),
                sent: 0,
                arrived: vec![0; ARRIVED_BYTES_MAX],
                closed: 0..0,
                opened: 0..0,
                body_bytes: None,
            })
        });
        Wire { socket, sealed }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes as many of `bytes` as can be sent; 0 if the socket is full. On a sealed wire, the
    /// bytes have been sent only once the wire [is flushed](Wire::is_flushed).
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.sealed {
            None => write(&self.socket, bytes),
            Some(sealed) => sealed.write(&self.socket, bytes),
        }
    }

    /// Sends more of the bytes taken before. Returns whether any byte moved.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match &mut self.sealed {
            None => Ok(false),
            Some(sealed) => sealed.flush(&self.socket),
        }
    }

    /// Whether all bytes taken have been passed to the system.
    pub(crate) fn is_flushed(&self) -> bool {
        self.sealed.as_ref().is_none_or(|sealed| sealed.is_flushed())
    }

    /// Reads available bytes; 0 if there are none.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Fault> {
        match &mut self.sealed {
            None => read(&self.socket, bytes).map_err(Fault::Lost),
            Some(sealed) => sealed.read(&self.socket, bytes),
        }
    }

    /// Closes the sending side.
    pub(crate) fn close(&self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

impl Sealed {
    fn is_flushed(&self) -> bool {
        self.sent == self.out.len()
    }

    fn flush(&mut self, socket: &TcpStream) -> io::Result<bool> {
        let sent = write(socket, &self.out[self.sent..])?;
        self.sent += sent;
        Ok(sent > 0)
    }

    fn write(&mut self, socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        loop {
            if !self.is_flushed() {
                self.flush(socket)?;
            }
            if !self.is_flushed() || taken == bytes.len() {
                return Ok(taken);
            }
            let end = bytes.len().min(taken + RECORD_BYTES_MAX);
            self.out.clear();
            self.sent = 0;
            self.sealer.seal(&bytes[taken..end], &mut self.out);
            taken = end;
        }
    }

    fn read(&mut self, socket: &TcpStream, bytes: &mut [u8]) -> Result<usize, Fault> {
        if bytes.is_empty() {
            return Ok(0);
        }
        while self.opened.is_empty() {
            if self.open()? {
                break;
            }
            self.make_room();
            let got = read(socket, &mut self.arrived[self.closed.end..]).map_err(Fault::Lost)?;
            if got == 0 {
                return Ok(0);
            }
            self.closed.end += got;
        }
        let count = bytes.len().min(self.opened.len());
        let end = self.opened.start + count;
        bytes[..count].copy_from_slice(&self.arrived[self.opened.start..end]);
        self.opened.start = end;
        Ok(count)
    }

    /// Opens the next record if all of it has arrived.
    fn open(&mut self) -> Result<bool, Fault> {
        let body_bytes = match self.body_bytes {
            Some(body_bytes) => body_bytes,
            None if self.closed.len() < HEAD_BYTES => return Ok(false),
            None => {
                let start = self.closed.start;
                let head = &mut self.arrived[start..start + HEAD_BYTES];
                let body_bytes = self.opener.open_head(head).map_err(|_| Fault::Forged)?;
                self.closed.start += HEAD_BYTES;
                *self.body_bytes.insert(body_bytes)
            }
        };
        if self.closed.len() < body_bytes {
            return Ok(false);
        }
        let (start, end) = (self.closed.start, self.closed.start + body_bytes);
        let payload = self.opener.open_body(&mut self.arrived[start..end]);
        let payload_bytes = payload.map_err(|_| Fault::Forged)?;
        self.opened = start..start + payload_bytes;
        self.closed.start = end;
        self.body_bytes = None;
        Ok(true)
    }

    /// Moves the unopened bytes to the front if the rest of the buffer may be too short for a whole
    /// record.
    fn make_room(&mut self) {
        let is_short = self.arrived.len() - self.closed.start < SEALED_BYTES_MAX;
        if is_short || self.closed.is_empty() {
            self.arrived.copy_within(self.closed.clone(), 0);
            self.closed = 0..self.closed.len();
        }
    }
}

/// Writes as many bytes as the socket takes; 0 if it is full.
///
/// std writes to sockets with `MSG_NOSIGNAL` where the system has it, and Rust programs ignore
/// `SIGPIPE` elsewhere: a peer that is gone is an error, never a signal.
fn write(mut socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match socket.write(bytes) {
            Ok(0) if !bytes.is_empty() => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => return Ok(sent),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Reads available bytes; 0 if there are none.
fn read(mut socket: &TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
    if bytes.is_empty() {
        return Ok(0);
    }
    loop {
        match socket.read(bytes) {
            Ok(0) => {
                let closed = "the connection was closed";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, closed));
            }
            Ok(got) => return Ok(got),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
