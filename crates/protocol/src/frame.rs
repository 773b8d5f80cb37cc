//! How messages travel over a byte stream: a preamble that any version can read, then frames of
//! a little-endian `u32` length and a `postcard` body. Sizes are checked before memory is taken.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Raised with every change of a message.
pub const PROTOCOL_VERSION: u16 = 1;

/// Longest body of a frame, in bytes: a plan of a million prompt tokens fits.
pub const MAX_FRAME_BYTES: usize = 16 << 20;

const MAGIC: [u8; 4] = *b"JKLP";

/// A connection that cannot go on.
#[derive(Debug, Error)]
pub enum FrameError {
    /// The other end is gone, between two frames.
    #[error("connection closed by the peer")]
    Closed,
    /// The stream failed, or ended inside a frame.
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
    /// The other end speaks something else.
    #[error("not a jackalope connection: found {found:02x?} instead of {MAGIC:02x?}")]
    Foreign {
        /// The first bytes received.
        found: [u8; 4],
    },
    /// The other end speaks another version.
    #[error(
        "protocol version differs: ours is {ours}, theirs is {theirs}\n\
         hint: install the same build of jackalope and jackalope-rank on every machine"
    )]
    Version {
        /// Our [`PROTOCOL_VERSION`].
        ours: u16,
        /// The peer's.
        theirs: u16,
    },
    /// A length beyond [`MAX_FRAME_BYTES`].
    #[error("frame of {bytes} bytes exceeds the limit of {MAX_FRAME_BYTES}")]
    Oversized {
        /// The length found.
        bytes: usize,
    },
    /// A body that does not decode, or has bytes left over.
    #[error("frame of {bytes} bytes does not decode: {reason}")]
    Malformed {
        /// Length of the body.
        bytes: usize,
        /// What the decoder says.
        reason: String,
    },
}

/// Announces our version. The first bytes in each direction.
pub fn write_preamble(stream: &mut impl Write) -> Result<(), FrameError> {
    let mut bytes = [0; 6];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    stream.write_all(&bytes)?;
    Ok(stream.flush()?)
}

/// Checks the peer's version.
///
/// # Errors
/// [`FrameError::Foreign`] or [`FrameError::Version`] if the peer is not one of ours.
pub fn read_preamble(stream: &mut impl Read) -> Result<(), FrameError> {
    let mut bytes = [0; 6];
    stream.read_exact(&mut bytes)?;
    let [m0, m1, m2, m3, v0, v1] = bytes;
    let found = [m0, m1, m2, m3];
    if found != MAGIC {
        return Err(FrameError::Foreign { found });
    }
    match u16::from_le_bytes([v0, v1]) {
        PROTOCOL_VERSION => Ok(()),
        theirs => Err(FrameError::Version { ours: PROTOCOL_VERSION, theirs }),
    }
}

/// The bytes of one frame, length included.
///
/// # Errors
/// [`FrameError::Oversized`] if the message is too long to be read by a peer.
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, FrameError> {
    let mut bytes = postcard::to_extend(message, vec![0; 4])
        .map_err(|err| FrameError::Malformed { bytes: 0, reason: err.to_string() })?;
    let length = bytes.len() - 4;
    if MAX_FRAME_BYTES < length {
        return Err(FrameError::Oversized { bytes: length });
    }
    let prefix = u32::try_from(length).expect("a frame is far below 4 GiB").to_le_bytes();
    bytes[..4].copy_from_slice(&prefix);
    Ok(bytes)
}

/// Sends one message in one write.
///
/// # Errors
/// [`FrameError::Io`] if the stream fails, [`FrameError::Oversized`] if the message is too long.
pub fn write<M: Serialize>(stream: &mut impl Write, message: &M) -> Result<(), FrameError> {
    stream.write_all(&encode(message)?)?;
    Ok(stream.flush()?)
}

/// Receives one message.
///
/// # Errors
/// [`FrameError::Closed`] at the end of the stream; the others if the peer misbehaves.
pub fn read<M: DeserializeOwned>(stream: &mut impl Read) -> Result<M, FrameError> {
    let mut prefix = [0; 4];
    let mut filled = 0;
    while filled < prefix.len() {
        match stream.read(&mut prefix[filled..]) {
            Ok(0) if filled == 0 => return Err(FrameError::Closed),
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(num_read) => filled += num_read,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err.into()),
        }
    }
    let length = u32::from_le_bytes(prefix) as usize;
    if MAX_FRAME_BYTES < length {
        return Err(FrameError::Oversized { bytes: length });
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    decode(&body)
}

fn decode<M: DeserializeOwned>(body: &[u8]) -> Result<M, FrameError> {
    let malformed = |reason: String| FrameError::Malformed { bytes: body.len(), reason };
    let (message, rest) =
        postcard::take_from_bytes(body).map_err(|err| malformed(err.to_string()))?;
    match rest.len() {
        0 => Ok(message),
        excess => Err(malformed(format!("{excess} bytes are left over"))),
    }
}
