//! The beginning of every control connection, and its encryption.
//!
//! ```text
//! dialling side                                  accepting side
//!   magic, protocol, version ──▶      ◀── magic, protocol, version     in clear: any version reads it
//!   Noise e, psk             ──▶
//!                                     ◀── Noise e, ee                  both have proved the secret
//!   chunks                   ──▶      ◀── chunks                       encrypted, numbered
//! ```
//!
//! Noise `NNpsk0` (Noise Protocol Framework, revision 34, section 9) with the cluster's secret as the
//! pre-shared key. Both preambles are its prologue, so that nobody can change them on the way. A
//! chunk is a big-endian `u16` length and that many bytes of ciphertext; its number is the nonce, so
//! that a chunk that is changed, repeated or left out ends the connection.

use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use snow::{Builder, HandshakeState, StatelessTransportState};

use crate::{FrameError, Secret};

/// Raised with every change of a message.
pub const PROTOCOL_VERSION: u16 = 8;

/// What every connection begins with.
pub(crate) const MAGIC: [u8; 4] = *b"JKLP";

const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const TAG_BYTES: usize = 16;
/// Longest ciphertext of a chunk: a Noise message.
const CHUNK_BYTES_MAX: usize = 65535;
const VERSION_BYTES_MAX: usize = 64;

/// Which program speaks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Build {
    /// Of the messages.
    pub protocol: u16,
    /// Of the program.
    pub version: String,
}

impl Build {
    /// This program.
    pub fn ours() -> Build {
        Build { protocol: PROTOCOL_VERSION, version: env!("CARGO_PKG_VERSION").to_owned() }
    }

    fn preamble(&self) -> Vec<u8> {
        let version = self.version.as_bytes();
        let version = &version[..version.len().min(VERSION_BYTES_MAX)];
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.protocol.to_le_bytes());
        bytes.push(version.len() as u8);
        bytes.extend(version);
        bytes
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (protocol {})", self.version, self.protocol)
    }
}

/// Connects to `addr`; connecting and the handshake together take at most `timeout`.
///
/// # Errors
/// [`FrameError`] if nobody answers there, or somebody who does not belong to this cluster.
pub fn dial(
    addr: SocketAddr,
    secret: &Secret,
    timeout: Duration,
) -> Result<(Sender, Receiver), FrameError> {
    let deadline = Instant::now() + timeout;
    let stream = TcpStream::connect_timeout(&addr, timeout)?;
    greet(stream, secret, deadline, Side::Dialling, &Build::ours())
}

/// Shakes hands with whoever has connected, within `timeout`.
///
/// # Errors
/// [`FrameError`] if they do not belong to this cluster.
pub fn accept(
    stream: TcpStream,
    secret: &Secret,
    timeout: Duration,
) -> Result<(Sender, Receiver), FrameError> {
    greet(stream, secret, Instant::now() + timeout, Side::Accepting, &Build::ours())
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Side {
    Dialling,
    Accepting,
}

fn greet(
    stream: TcpStream,
    secret: &Secret,
    deadline: Instant,
    side: Side,
    build: &Build,
) -> Result<(Sender, Receiver), FrameError> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(deadline.saturating_duration_since(Instant::now()).max(SOON)))?;
    let ours = build.preamble();
    (&stream).write_all(&ours)?;
    let mut reader = UntilDeadline { stream: &stream, deadline };
    let (theirs, preamble) = read_preamble(&mut reader)?;
    if theirs != *build {
        return Err(FrameError::Version { ours: build.clone(), theirs });
    }
    let prologue = match side {
        Side::Dialling => [ours, preamble].concat(),
        Side::Accepting => [preamble, ours].concat(),
    };
    let noise = shake_hands(&stream, &mut reader, secret, &prologue, side)?;
    stream.set_read_timeout(None)?;
    let noise = Arc::new(noise);
    let sender = Sender { stream: stream.try_clone()?, noise: Arc::clone(&noise), num_sent: 0 };
    let receiver = Receiver {
        stream: BufReader::new(stream),
        noise,
        num_received: 0,
        plain: Vec::new(),
        position: 0,
    };
    Ok((sender, receiver))
}

/// A timeout of zero is none at all.
const SOON: Duration = Duration::from_millis(1);

fn read_preamble(stream: &mut impl Read) -> Result<(Build, Vec<u8>), FrameError> {
    let mut found = [0; 4];
    stream.read_exact(&mut found)?;
    if found != MAGIC {
        return Err(FrameError::Foreign { found });
    }
    let mut head = [0; 3];
    stream.read_exact(&mut head)?;
    let [v0, v1, length] = head;
    if VERSION_BYTES_MAX < usize::from(length) {
        return Err(FrameError::Oversized { bytes: usize::from(length) });
    }
    let mut version = vec![0; usize::from(length)];
    stream.read_exact(&mut version)?;
    let bytes = [&found[..], &head, &version].concat();
    let version = String::from_utf8_lossy(&version).into_owned();
    Ok((Build { protocol: u16::from_le_bytes([v0, v1]), version }, bytes))
}

fn shake_hands(
    stream: &TcpStream,
    reader: &mut impl Read,
    secret: &Secret,
    prologue: &[u8],
    side: Side,
) -> Result<StatelessTransportState, FrameError> {
    let params = NOISE.parse().expect("the pattern is one that the library knows");
    let builder = Builder::new(params)
        .prologue(prologue)
        .and_then(|builder| builder.psk(0, &secret.0))
        .expect("a pre-shared key has 32 bytes");
    let mut noise = match side {
        Side::Dialling => builder.build_initiator(),
        Side::Accepting => builder.build_responder(),
    }
    .expect("the pattern needs nothing but the key");
    match side {
        Side::Dialling => {
            say(&mut noise, stream)?;
            hear(&mut noise, reader)?;
        }
        Side::Accepting => {
            hear(&mut noise, reader)?;
            say(&mut noise, stream)?;
        }
    }
    noise.into_stateless_transport_mode().map_err(|_| FrameError::Secret)
}

fn say(noise: &mut HandshakeState, mut stream: &TcpStream) -> Result<(), FrameError> {
    let mut bytes = [0; 256];
    let length = noise.write_message(&[], &mut bytes[2..]).map_err(|_| FrameError::Secret)?;
    bytes[..2].copy_from_slice(&(length as u16).to_be_bytes());
    Ok(stream.write_all(&bytes[..2 + length])?)
}

/// An end in place of the answer means that the other side could not read our first words.
fn hear(noise: &mut HandshakeState, reader: &mut impl Read) -> Result<(), FrameError> {
    let mut length = [0; 2];
    reader.read_exact(&mut length).map_err(|err| match err.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => FrameError::Secret,
        _ => err.into(),
    })?;
    let mut bytes = [0; 256];
    let length = usize::from(u16::from_be_bytes(length));
    let message = bytes.get_mut(..length).ok_or(FrameError::Oversized { bytes: length })?;
    reader.read_exact(message)?;
    noise.read_message(message, &mut []).map_err(|_| FrameError::Secret)?;
    Ok(())
}

/// Bounds all reads together, so that a byte now and then does not hold a handshake open.
struct UntilDeadline<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for UntilDeadline<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut stream = self.stream;
        stream.read(bytes)
    }
}

/// The half of a connection that sends. What is written in one call arrives or the call fails.
pub struct Sender {
    stream: TcpStream,
    noise: Arc<StatelessTransportState>,
    num_sent: u64,
}

/// The half of a connection that receives.
pub struct Receiver {
    stream: BufReader<TcpStream>,
    noise: Arc<StatelessTransportState>,
    num_received: u64,
    /// A chunk's content, of which `position` bytes have been read.
    plain: Vec<u8>,
    position: usize,
}

impl Sender {
    /// The connection below: for timeouts and addresses, and to end it.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl Receiver {
    /// The connection below: for timeouts and addresses, and to end it.
    pub fn stream(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    fn read_chunk(&mut self) -> io::Result<bool> {
        let mut length = [0; 2];
        if !read_or_end(&mut self.stream, &mut length)? {
            return Ok(false);
        }
        let length = usize::from(u16::from_be_bytes(length));
        let mut cipher = vec![0; length];
        self.stream.read_exact(&mut cipher)?;
        self.plain.resize(length, 0);
        let read = self.noise.read_message(self.num_received, &cipher, &mut self.plain);
        let length = read.map_err(|_| io::Error::other(FrameError::Forged))?;
        self.num_received += 1;
        self.plain.truncate(length);
        self.position = 0;
        Ok(true)
    }
}

/// False if the stream ends before the first byte.
fn read_or_end(stream: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < bytes.len() {
        match stream.read(&mut bytes[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            Ok(num_read) => filled += num_read,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(true)
}

impl Write for Sender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut out = Vec::with_capacity(bytes.len() + 64);
        for plain in bytes.chunks(CHUNK_BYTES_MAX - TAG_BYTES) {
            let start = out.len();
            out.resize(start + 2 + plain.len() + TAG_BYTES, 0);
            let cipher = &mut out[start + 2..];
            let written = self.noise.write_message(self.num_sent, plain, cipher);
            let length = written.map_err(|err| io::Error::other(err.to_string()))?;
            out[start..start + 2].copy_from_slice(&(length as u16).to_be_bytes());
            self.num_sent += 1;
        }
        self.stream.write_all(&out)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Receiver {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.position == self.plain.len() {
            if !self.read_chunk()? {
                return Ok(0);
            }
        }
        let length = bytes.len().min(self.plain.len() - self.position);
        bytes[..length].copy_from_slice(&self.plain[self.position..self.position + length]);
        self.position += length;
        Ok(length)
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("stream", &self.stream).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
