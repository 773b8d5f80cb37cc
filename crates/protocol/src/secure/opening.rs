//! Reads the opening of a dialling peer incrementally, so that a silent peer does not occupy a
//! thread.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use super::HANDSHAKE_BYTES_MAX;
use crate::frame::FrameError;
use crate::secret::HINT_BYTES_MAX;
use crate::version::{Build, MAGIC, VERSION_BYTES_MAX};

/// Magic, protocol version, and length of the version string.
const HEAD_BYTES: usize = MAGIC.len() + 3;

/// A connection with a complete and well-formed opening.
#[derive(Debug)]
pub struct Caller {
    /// The connection, in blocking mode.
    pub stream: TcpStream,
    /// The peer's address.
    pub from: SocketAddr,
    /// Deadline for the peer's authentication.
    pub deadline: Instant,
    /// Bytes that have been read from the connection.
    pub opening: Opening,
}

/// The part of the preamble, the hint and the first handshake message that has arrived.
#[derive(Debug, Default)]
pub struct Opening {
    bytes: Vec<u8>,
}

impl Opening {
    /// Sends our preamble on a newly accepted connection without blocking.
    ///
    /// # Errors
    /// Fails if the connection is closed.
    pub fn greet(mut stream: &TcpStream) -> io::Result<()> {
        stream.write_all(&Build::ours().preamble())
    }

    /// Reads the available bytes, but none beyond the first message. Returns true once the opening
    /// is complete.
    ///
    /// # Errors
    /// Fails if the connection ends, or the bytes are not a valid opening.
    pub fn read(&mut self, mut stream: impl Read) -> Result<bool, FrameError> {
        loop {
            let num_missing = self.num_missing()?;
            if num_missing == 0 {
                return Ok(true);
            }
            let num_before = self.bytes.len();
            self.bytes.resize(num_before + num_missing, 0);
            let read = stream.read(&mut self.bytes[num_before..]);
            self.bytes.truncate(num_before + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(FrameError::Closed),
                Ok(_) => {}
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(err) => return Err(err.into()),
            }
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of bytes needed before more can be parsed; 0 once the opening is complete. From
    /// another build only the preamble is read, because the handshake ends there.
    fn num_missing(&self) -> Result<usize, FrameError> {
        let length = self.bytes.len();
        if let Some(found) = self.bytes.first_chunk()
            && *found != MAGIC
        {
            return Err(FrameError::Foreign { found: *found });
        }
        let Some(version_bytes) = self.bytes.get(HEAD_BYTES - 1).copied().map(usize::from) else {
            return Ok(HEAD_BYTES - length);
        };
        if VERSION_BYTES_MAX < version_bytes {
            return Err(FrameError::Oversized { bytes: version_bytes });
        }
        let preamble_bytes = HEAD_BYTES + version_bytes;
        if length < preamble_bytes {
            return Ok(preamble_bytes - length);
        }
        if self.bytes[..preamble_bytes] != Build::ours().preamble() {
            return Ok(0);
        }
        let Some(hint_bytes) = self.bytes.get(preamble_bytes).copied().map(usize::from) else {
            return Ok(1);
        };
        if HINT_BYTES_MAX < hint_bytes {
            return Err(FrameError::Oversized { bytes: hint_bytes });
        }
        let message_start = preamble_bytes + 1 + hint_bytes;
        let prefix = self.bytes.get(message_start..).and_then(|rest| rest.first_chunk());
        let Some(prefix) = prefix else {
            return Ok(message_start + 2 - length);
        };
        let message_bytes = usize::from(u16::from_be_bytes(*prefix));
        if HANDSHAKE_BYTES_MAX < message_bytes {
            return Err(FrameError::Oversized { bytes: message_bytes });
        }
        Ok(message_start + 2 + message_bytes - length)
    }
}
