//! The beginning of every control connection, and its encryption.
//!
//! ```text
//! dialling side                                  accepting side
//!   magic, protocol, version ──▶      ◀── magic, protocol, version     in clear: any version reads it
//!   hint                     ──▶                                       in clear: which key is meant
//!   Noise e, psk             ──▶
//!                                     ◀── Noise e, ee                  both have proved the key
//!   chunks                   ──▶      ◀── chunks                       encrypted, numbered
//! ```
//!
//! With a hint, both sides prove knowledge of one pre-shared key that grants access to a single
//! thing: Noise `NNpsk0` (Noise Protocol Framework, revision 34, section 9). Ranks use it with
//! their ticket, and readers of a checkpoint library with the grant for one model.
//!
//! Without a hint, machines authenticate each other: Noise `XXpsk0` with the cluster's secret as
//! the pre-shared key, which rejects outsiders, and both machines' static keys, which identify
//! them. The dialling side checks the other's key before it sends its own. The accepting side ends
//! the handshake with one byte that says whether it trusts the dialling machine's key.
//!
//! Both preambles and the hint are the prologue, so they cannot be modified in transit. A chunk is
//! a big-endian `u16` length and that many bytes of ciphertext; its number is the nonce, so that a
//! chunk that is changed, repeated or left out ends the connection.

use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use snow::{Builder, HandshakeState, StatelessTransportState};

use crate::frame::FrameError;
use crate::identity::{Identity, NAME_BYTES_MAX, PublicKey, clean_name};
use crate::secret::Secret;
use crate::version::{MAGIC, VERSION_BYTES_MAX};

pub use crate::secret::{HINT_BYTES_MAX, HintedKey, rank_of_hint};
pub use crate::version::{Build, PROTOCOL_VERSION};
pub use opening::{Caller, Opening};

const NOISE_OF_KEY: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const NOISE_OF_MACHINES: &str = "Noise_XXpsk0_25519_ChaChaPoly_BLAKE2s";
/// Last byte that the accepting side sends in a handshake between machines, if it trusts the
/// dialling machine's key; otherwise it sends `UNTRUSTED`.
const TRUSTED: u8 = 1;
const UNTRUSTED: u8 = 0;
const TAG_BYTES: usize = 16;
/// Maximum length of a chunk's ciphertext, which is a Noise message.
const CHUNK_BYTES_MAX: usize = 65535;
/// Maximum length of a handshake message.
const HANDSHAKE_BYTES_MAX: usize = 256;

/// The machine on the other side of a connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Peer {
    /// The key that the peer has proved to hold.
    pub key: PublicKey,
    /// The name that the machine gives itself; not authenticated.
    pub name: String,
}

/// How a machine authenticates to another one, and how it checks that machine.
#[derive(Clone, Copy)]
pub struct Introduction<'a> {
    /// The cluster's secret.
    pub secret: &'a Secret,
    /// Identity of this machine.
    pub identity: &'a Identity,
    /// Check of the other side's key, called before our key is sent.
    pub check: &'a dyn Fn(&PublicKey) -> Result<(), FrameError>,
}

impl fmt::Debug for Introduction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Introduction").field("identity", self.identity).finish_non_exhaustive()
    }
}

/// A machine that commands others: what it presents to them, and which keys it accepts.
pub trait Coordinator: Sync {
    /// Returns the cluster's secret.
    fn secret(&self) -> &Secret;

    /// Returns the identity of this machine.
    fn identity(&self) -> &Identity;

    /// Checks that the machine called `host` may have this key.
    ///
    /// # Errors
    /// [`FrameError::UnknownKey`] or [`FrameError::ChangedKey`].
    fn check(&self, host: &str, found: &PublicKey) -> Result<(), FrameError>;
}

/// Decides which peers the accepting side accepts.
pub trait PeerPolicy {
    /// Returns the pre-shared key for a hint, if there is one.
    fn key_of(&self, hint: &[u8]) -> Option<Secret>;

    /// Returns the identity of this machine and the cluster's secret, if machines are accepted.
    fn own(&self) -> Option<(&Identity, &Secret)> {
        None
    }

    /// Whether to accept a machine that has proved its key and knowledge of the cluster's secret.
    fn trusts(&self, _peer: &Peer) -> bool {
        false
    }
}

/// The identity that the dialling side has proved.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Proof {
    /// The peer knows the pre-shared key for this hint.
    Key(Vec<u8>),
    /// The peer holds a machine's key and knows the cluster's secret.
    Machine(Peer),
}

/// An authenticated connection.
#[derive(Debug)]
pub struct Accepted {
    /// Identity that the dialling side has proved.
    pub proof: Proof,
    /// Half of the connection that sends to the peer.
    pub sender: Sender,
    /// Half of the connection that receives from the peer.
    pub receiver: Receiver,
}

/// Connects to `addr` with a key that grants access to one thing. Connecting and the handshake
/// together take at most `timeout`.
///
/// # Errors
/// [`FrameError`] if the peer cannot be reached or does not hold the key.
pub fn dial(
    addr: SocketAddr,
    key: &HintedKey,
    timeout: Duration,
) -> Result<(Sender, Receiver), FrameError> {
    let deadline = Instant::now() + timeout;
    let stream = TcpStream::connect_timeout(&addr, timeout)?;
    let met =
        greet(Call::new(stream, deadline), &Side::Dialling(&Approach::Key(key)), &Build::ours())?;
    Ok((met.sender, met.receiver))
}

/// Connects to a machine at `addr` and returns its key. Connecting and the handshake together take
/// at most `timeout`.
///
/// # Errors
/// [`FrameError`] if the peer cannot be reached, is a machine of another cluster, has a key that
/// `check` refuses, or does not trust us.
pub fn dial_machine(
    addr: SocketAddr,
    introduction: Introduction<'_>,
    timeout: Duration,
) -> Result<(PublicKey, Sender, Receiver), FrameError> {
    let deadline = Instant::now() + timeout;
    let stream = TcpStream::connect_timeout(&addr, timeout)?;
    let side = Side::Dialling(&Approach::Machine(introduction));
    let Accepted { proof, sender, receiver } =
        greet(Call::new(stream, deadline), &side, &Build::ours())?;
    match proof {
        Proof::Machine(peer) => Ok((peer.key, sender, receiver)),
        Proof::Key(_) => unreachable!("a machine was dialled"),
    }
}

/// Performs the accepting side of the handshake, within `timeout`.
///
/// # Errors
/// [`FrameError`] if the peer is not accepted.
pub fn accept(
    stream: TcpStream,
    policy: &dyn PeerPolicy,
    timeout: Duration,
) -> Result<Accepted, FrameError> {
    let call = Call::new(stream, Instant::now() + timeout);
    greet(call, &Side::Accepting(policy), &Build::ours())
}

/// Performs the accepting side of the handshake with a caller whose opening has arrived, until its
/// deadline.
///
/// # Errors
/// [`FrameError`] if the peer is not accepted.
pub fn accept_caller(caller: Caller, policy: &dyn PeerPolicy) -> Result<Accepted, FrameError> {
    let Caller { stream, deadline, opening, .. } = caller;
    let call = Call { opening, is_greeted: true, ..Call::new(stream, deadline) };
    greet(call, &Side::Accepting(policy), &Build::ours())
}

/// A connection before its handshake.
struct Call {
    stream: TcpStream,
    deadline: Instant,
    /// Bytes that have been read from the connection.
    opening: Opening,
    /// Whether our preamble has been sent.
    is_greeted: bool,
}

impl Call {
    /// Creates a call from whose connection nothing has been read.
    fn new(stream: TcpStream, deadline: Instant) -> Call {
        Call { stream, deadline, opening: Opening::default(), is_greeted: false }
    }
}

enum Approach<'a> {
    Key(&'a HintedKey),
    Machine(Introduction<'a>),
}

enum Side<'a> {
    Dialling(&'a Approach<'a>),
    Accepting(&'a dyn PeerPolicy),
}

fn greet(call: Call, side: &Side<'_>, build: &Build) -> Result<Accepted, FrameError> {
    let Call { stream, deadline, opening, is_greeted } = call;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(deadline.saturating_duration_since(Instant::now()).max(SOON)))?;
    let ours = build.preamble();
    if !is_greeted {
        (&stream).write_all(&ours)?;
    }
    let mut reader = opening.bytes().chain(UntilDeadline { stream: &stream, deadline });
    let (theirs, preamble) = read_preamble(&mut reader)?;
    if theirs != *build {
        return Err(FrameError::Version { ours: build.clone(), theirs });
    }
    let (noise, proof) = match side {
        Side::Dialling(approach) => {
            let hint = approach.hint_bytes();
            (&stream).write_all(&hint)?;
            let prologue = [ours, preamble, hint].concat();
            let mut wire = Wire { stream: &stream, reader: &mut reader };
            approach.shake_hands(&mut wire, &prologue).map_err(|err| match approach {
                Approach::Key(_) => of_ticket(err),
                Approach::Machine(_) => err,
            })?
        }
        Side::Accepting(policy) => {
            let hint = read_hint(&mut reader)?;
            let prologue = [preamble, ours, hint.clone()].concat();
            let mut wire = Wire { stream: &stream, reader: &mut reader };
            let welcomed = welcome(*policy, &mut wire, &prologue, &hint[1..]);
            welcomed.map_err(|err| if hint.len() == 1 { err } else { of_ticket(err) })?
        }
    };
    let mut met = connected(stream, noise, proof)?;
    match (side, &met.proof) {
        (Side::Dialling(approach), Proof::Machine(_)) => {
            let left = deadline.saturating_duration_since(Instant::now()).max(SOON);
            met.receiver.stream().set_read_timeout(Some(left))?;
            approach.read_verdict(&mut met.receiver)?;
        }
        (Side::Accepting(policy), Proof::Machine(peer)) => {
            let is_trusted = policy.trusts(peer);
            met.sender.write_all(&[if is_trusted { TRUSTED } else { UNTRUSTED }])?;
            if !is_trusted {
                return Err(FrameError::Refused { theirs: peer.key });
            }
        }
        (_, Proof::Key(_)) => {}
    }
    met.receiver.stream().set_read_timeout(None)?;
    Ok(met)
}

/// Converts the error of a handshake with a [`HintedKey`], which does not involve the cluster's
/// secret.
fn of_ticket(err: FrameError) -> FrameError {
    match err {
        FrameError::Secret => FrameError::Ticket,
        err => err,
    }
}

fn connected(
    stream: TcpStream,
    noise: StatelessTransportState,
    proof: Proof,
) -> Result<Accepted, FrameError> {
    let noise = Arc::new(noise);
    let sender = Sender { stream: stream.try_clone()?, noise: Arc::clone(&noise), num_sent: 0 };
    let receiver = Receiver {
        stream: BufReader::new(stream),
        noise,
        num_received: 0,
        plain: Vec::new(),
        position: 0,
    };
    Ok(Accepted { proof, sender, receiver })
}

/// Shortest timeout that is set on a socket; the standard library refuses zero.
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
    // The version is displayed before the peer has authenticated.
    let version = String::from_utf8_lossy(&version).replace(char::is_control, "?");
    Ok((Build { protocol: u16::from_le_bytes([v0, v1]), version }, bytes))
}

/// Reads a hint with its length prefix; empty if the peer is a machine.
fn read_hint(stream: &mut impl Read) -> Result<Vec<u8>, FrameError> {
    let mut length = [0];
    stream.read_exact(&mut length)?;
    if HINT_BYTES_MAX < usize::from(length[0]) {
        return Err(FrameError::Oversized { bytes: usize::from(length[0]) });
    }
    let mut hint = vec![length[0]; 1 + usize::from(length[0])];
    stream.read_exact(&mut hint[1..])?;
    Ok(hint)
}

impl Approach<'_> {
    fn hint_bytes(&self) -> Vec<u8> {
        match self {
            Approach::Machine(_) => vec![0],
            Approach::Key(key) => {
                assert!((1..=HINT_BYTES_MAX).contains(&key.hint.len()), "a hint has a length");
                let length = u8::try_from(key.hint.len()).expect("it was just compared");
                [&[length], &key.hint[..]].concat()
            }
        }
    }

    fn shake_hands(
        &self,
        wire: &mut Wire<'_>,
        prologue: &[u8],
    ) -> Result<(StatelessTransportState, Proof), FrameError> {
        let ours = match self {
            Approach::Key(key) => {
                let builder = builder(NOISE_OF_KEY, prologue, &key.secret);
                let mut noise = builder.build_initiator().expect("the pattern needs no more");
                wire.say(&mut noise, &[])?;
                wire.receive(&mut noise)?;
                return Ok((transport(noise)?, Proof::Key(key.hint.clone())));
            }
            Approach::Machine(ours) => ours,
        };
        let builder = builder(NOISE_OF_MACHINES, prologue, ours.secret);
        let builder = builder.local_private_key(&ours.identity.private().0);
        let mut noise = builder
            .and_then(Builder::build_initiator)
            .expect("a private key of 32 bytes is all that is missing");
        wire.say(&mut noise, &[])?;
        wire.receive(&mut noise)?;
        let key = remote_key(&noise)?;
        (ours.check)(&key)?;
        wire.say(&mut noise, ours.identity.name().as_bytes())?;
        Ok((transport(noise)?, Proof::Machine(Peer { key, name: String::new() })))
    }

    /// Reads whether the accepting side trusts our key. If the connection closes instead, it could
    /// not decrypt our key.
    fn read_verdict(&self, receiver: &mut Receiver) -> Result<(), FrameError> {
        let Approach::Machine(ours) = self else { return Ok(()) };
        let mut verdict = [0];
        receiver.read_exact(&mut verdict).map_err(|err| match err.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => FrameError::Secret,
            _ => err.into(),
        })?;
        match verdict {
            [TRUSTED] => Ok(()),
            _ => Err(FrameError::Untrusted { ours: ours.identity.public() }),
        }
    }
}

fn welcome(
    policy: &dyn PeerPolicy,
    wire: &mut Wire<'_>,
    prologue: &[u8],
    hint: &[u8],
) -> Result<(StatelessTransportState, Proof), FrameError> {
    if !hint.is_empty() {
        let secret = policy.key_of(hint).ok_or(FrameError::Secret)?;
        let builder = builder(NOISE_OF_KEY, prologue, &secret);
        let mut noise = builder.build_responder().expect("the pattern needs no more");
        wire.receive(&mut noise)?;
        wire.say(&mut noise, &[])?;
        return Ok((transport(noise)?, Proof::Key(hint.to_vec())));
    }
    let (identity, secret) = policy.own().ok_or(FrameError::Secret)?;
    let builder = builder(NOISE_OF_MACHINES, prologue, secret);
    let mut noise = builder
        .local_private_key(&identity.private().0)
        .and_then(Builder::build_responder)
        .expect("a private key of 32 bytes is all that is missing");
    wire.receive(&mut noise)?;
    wire.say(&mut noise, &[])?;
    let name = clean_name(&String::from_utf8_lossy(&wire.receive(&mut noise)?));
    let key = remote_key(&noise)?;
    Ok((transport(noise)?, Proof::Machine(Peer { key, name })))
}

fn builder<'a>(pattern: &str, prologue: &'a [u8], secret: &'a Secret) -> Builder<'a> {
    let params = pattern.parse().expect("the pattern is one that the library knows");
    Builder::new(params)
        .prologue(prologue)
        .and_then(|builder| builder.psk(0, &secret.0))
        .expect("a pre-shared key has 32 bytes")
}

fn remote_key(noise: &HandshakeState) -> Result<PublicKey, FrameError> {
    let key = noise.get_remote_static().and_then(|key| key.try_into().ok());
    key.map(PublicKey).ok_or(FrameError::Secret)
}

fn transport(noise: HandshakeState) -> Result<StatelessTransportState, FrameError> {
    noise.into_stateless_transport_mode().map_err(|_| FrameError::Secret)
}

/// Both directions of a connection during its handshake.
struct Wire<'a> {
    stream: &'a TcpStream,
    reader: &'a mut dyn Read,
}

impl Wire<'_> {
    fn say(&mut self, noise: &mut HandshakeState, payload: &[u8]) -> Result<(), FrameError> {
        let payload = &payload[..payload.len().min(NAME_BYTES_MAX)];
        let mut bytes = [0; HANDSHAKE_BYTES_MAX];
        let length =
            noise.write_message(payload, &mut bytes[2..]).map_err(|_| FrameError::Secret)?;
        bytes[..2].copy_from_slice(&(length as u16).to_be_bytes());
        let mut stream = self.stream;
        Ok(stream.write_all(&bytes[..2 + length])?)
    }

    /// Reads a handshake message and returns its payload. If the connection closes instead, the
    /// other side could not decrypt our message.
    fn receive(&mut self, noise: &mut HandshakeState) -> Result<Vec<u8>, FrameError> {
        let mut length = [0; 2];
        self.reader.read_exact(&mut length).map_err(|err| match err.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => FrameError::Secret,
            _ => err.into(),
        })?;
        let mut bytes = [0; HANDSHAKE_BYTES_MAX];
        let length = usize::from(u16::from_be_bytes(length));
        let message = bytes.get_mut(..length).ok_or(FrameError::Oversized { bytes: length })?;
        self.reader.read_exact(message)?;
        let mut payload = vec![0; HANDSHAKE_BYTES_MAX];
        let length = noise.read_message(message, &mut payload).map_err(|_| FrameError::Secret)?;
        payload.truncate(length);
        Ok(payload)
    }
}

/// Limits all reads together, so that a peer that sends single bytes slowly cannot hold a handshake
/// open.
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

/// The sending half of a connection. Bytes written in one call are sent at once, or the call fails.
pub struct Sender {
    stream: TcpStream,
    noise: Arc<StatelessTransportState>,
    num_sent: u64,
}

/// The receiving half of a connection.
pub struct Receiver {
    stream: BufReader<TcpStream>,
    noise: Arc<StatelessTransportState>,
    num_received: u64,
    /// Content of the current chunk, of which `position` bytes have been read.
    plain: Vec<u8>,
    position: usize,
}

impl Sender {
    /// Returns the underlying connection, for timeouts and addresses, and to close it.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl Receiver {
    /// Returns the underlying connection, for timeouts and addresses, and to close it.
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

/// Fills `bytes`; returns false if the stream ends before the first byte.
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

mod opening;
#[cfg(test)]
mod tests;
