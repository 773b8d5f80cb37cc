//! Framing of messages on a byte stream: a little-endian `u32` length and a `postcard` body. Sizes
//! are checked before memory is allocated.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::counted;
use crate::identity::PublicKey;
use crate::version::{Build, MAGIC};

/// Maximum length of a frame's body in bytes; a plan of a million prompt tokens fits.
pub const MAX_FRAME_BYTES: usize = 16 << 20;

/// Error after which a connection cannot be used any more.
#[derive(Debug, Error)]
pub enum FrameError {
    /// The peer closed the connection between two frames.
    #[error("connection closed by the peer")]
    Closed,
    /// The stream failed, or ended inside a frame.
    #[error("connection failed: {0}")]
    Io(#[source] io::Error),
    /// The peer does not speak this protocol.
    #[error("not a jackalope connection: found {found:02x?} instead of {MAGIC:02x?}")]
    Foreign {
        /// The first bytes received.
        found: [u8; 4],
    },
    /// The peer has another version of this program or of the protocol.
    #[error(
        "versions differ: ours is {ours}, theirs is {theirs}\n\
         hint: bring every machine to one version with `jackalope sync --hosts FILE`"
    )]
    Version {
        /// Version of this side.
        ours: Build,
        /// Version of the peer.
        theirs: Build,
    },
    /// The peer does not hold this cluster's secret.
    #[error(
        "the other side holds another secret of the cluster\n\
         hint: hand this machine's secret to every node with `jackalope sync --hosts FILE`"
    )]
    Secret,
    /// The two ends do not hold the same ticket or grant.
    #[error(
        "the ticket is not accepted: it is for another rank or machine, was issued by another \
         server, has expired, or the machine's key was revoked\n\
         hint: a server starts its ranks anew by itself; if this goes on, compare the keys that \
         `jackalope trust list` shows on the coordinator and on this machine"
    )]
    Ticket,
    /// The peer does not trust this machine.
    #[error(
        "it does not trust this machine, whose key is {ours}\n\
         hint: on that machine run `jackalope trust accept {ours}`; with an SSH login \
         `jackalope bootstrap HOST` does it from here"
    )]
    Untrusted {
        /// Public key of this machine.
        ours: PublicKey,
    },
    /// The peer is a machine that is not trusted here.
    #[error("a machine that is not trusted here, with the key {theirs}")]
    Refused {
        /// Public key of the peer.
        theirs: PublicKey,
    },
    /// The peer is a machine whose key is unknown here.
    #[error(
        "the key of {host}, {found}, is not known here\n\
         hint: compare it with `jackalope trust list` on that machine, then run \
         `jackalope trust accept {host}` here; with an SSH login `jackalope bootstrap {host}` does both"
    )]
    UnknownKey {
        /// Name of the machine on this side.
        host: String,
        /// The key that the peer presented.
        found: PublicKey,
    },
    /// The peer presented another key than the one pinned for it.
    #[error(
        "the key of {host} has changed from {pinned} to {found}: it was installed anew, or another \
         machine answers in its name\n\
         hint: compare it with `jackalope trust list` on that machine, and if it is right run \
         `jackalope trust accept {host}`"
    )]
    ChangedKey {
        /// Name of the machine on this side.
        host: String,
        /// The key that the peer presented.
        found: PublicKey,
        /// The pinned key.
        pinned: Box<PublicKey>,
    },
    /// A chunk was not encrypted for this position of this connection: it was changed, repeated or
    /// left out.
    #[error("the connection carries bytes that the peer did not send there")]
    Forged,
    /// The length of a frame exceeds [`MAX_FRAME_BYTES`].
    #[error("frame of {bytes} bytes exceeds the limit of {MAX_FRAME_BYTES}")]
    Oversized {
        /// Length of the body in bytes.
        bytes: usize,
    },
    /// A body does not decode, or has bytes left over.
    #[error("frame of {} does not decode: {reason}", counted(bytes, "byte"))]
    Malformed {
        /// Length of the body in bytes.
        bytes: usize,
        /// Message of the decoder.
        reason: String,
    },
}

impl From<io::Error> for FrameError {
    /// Unwraps errors of an encrypted connection, which [`Read`] and [`Write`] return inside an
    /// [`io::Error`].
    fn from(err: io::Error) -> FrameError {
        match err.downcast() {
            Ok(inner) => inner,
            Err(err) => FrameError::Io(err),
        }
    }
}

/// Encodes a message as one frame, including its length.
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
        excess => Err(malformed(format!("it is followed by {}", counted(excess, "byte")))),
    }
}
