//! Forms the full mesh of sockets, in any start order.
//!
//! The higher rank dials, the lower accepts. One thread drives every connection at once:
//!
//! ```text
//! dialled:   Paused ─▶ Connecting ─▶ Greeting ─▶ Linked          accepted:  Open ─▶ Linked
//!              ▲            │            │          │                         ▲        │
//!              └────────────┴────────────┴──────────┘                         └────────┘
//!                      refused, silent, closed                                  closed
//! ```
//!
//! An accepted connection is a guest until it has proved that it belongs to this group. Guests that
//! send nothing, or the wrong thing, are dropped without harm: strangers, and connections of an
//! earlier epoch that were still in the backlog.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jackalope_protocol::admission::{Admission, AdmissionId, AdmissionLimits};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketType};

use crate::config::GroupConfig;
use crate::dtype::Dtype;
use crate::error::{
    Absence, AbsenceReason, Absences, Moment, Operation, OperationPhase, TransportError,
};
use crate::hello::{self, HELLO_BYTES, Hello, PROOF_BYTES, REPLY_BYTES, Reply, Verdict};
use crate::interrupt::Interrupter;
use crate::listener::Listener;
use crate::seal::{self, Opener, Sealer};
use crate::wait::{deadline, poll_until};
use crate::wire::Wire;

/// Limits on connections during their handshake; the addresses of peers are expected.
const GUESTS: AdmissionLimits = AdmissionLimits { total: 128, per_source: 24, reserve: 64 };
/// Number of connections accepted before pending ones are served again.
const BATCH: usize = 64;
/// Maximum duration of the handshake of an accepted connection.
const GUEST_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum time for connecting before dialling again. If the peer's listen queue is full and drops
/// the first packet, the system retransmits it only after a second.
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);
/// Maximum time to wait for the reply of a rank that has not begun to join, before dialling again
/// (the machine behind the connection may have vanished).
const DIAL_PATIENCE: Duration = Duration::from_secs(10);
/// Pause before the second attempt to dial; it doubles after each failure, up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_millis(250);

/// Connects to every peer. The returned wires are ordered by (socket, peer).
pub(crate) fn connect(
    listener: &Listener,
    config: &GroupConfig,
    interrupter: &Interrupter,
    started: Instant,
) -> Result<Vec<Wire>, TransportError> {
    let mut mesh = Mesh {
        listener,
        config,
        links: links(config),
        guests: Admission::new(GUESTS, config.peers.iter().map(SocketAddr::ip)),
        strangers: 0,
        last_stranger: None,
    };
    let deadline = deadline(started, config.join_timeout);
    loop {
        mesh.accept()?;
        mesh.advance_guests();
        for link in &mut mesh.links {
            link.advance(config);
        }
        if mesh.links.iter().all(|link| matches!(link.place, LinkState::Linked { .. })) {
            return mesh.into_wires();
        }
        if interrupter.is_interrupted() {
            let moment = Box::new(moment(config, OperationPhase::Connect, started));
            return Err(TransportError::Interrupted { moment });
        }
        if Instant::now() >= deadline {
            return Err(mesh.timeout(started));
        }
        mesh.sleep(interrupter, deadline)?;
    }
}

/// Returns the moment at which forming the group failed.
pub(crate) fn moment(config: &GroupConfig, phase: OperationPhase, started: Instant) -> Moment {
    Moment {
        rank: config.rank,
        operation: Operation::Join,
        sequence: config.epoch,
        dtype: Dtype::U32,
        bytes: 0,
        phase,
        elapsed: started.elapsed(),
    }
}

fn links(config: &GroupConfig) -> Vec<Link> {
    let peers = || (0..config.size()).filter(|peer| *peer != config.rank);
    (0..config.sockets_per_peer)
        .flat_map(|socket| peers().map(move |peer| (socket, peer)))
        .map(|(socket, peer)| {
            let dials = peer < config.rank;
            let (place, reason) = if dials {
                (LinkState::Paused { until: Instant::now() }, AbsenceReason::NoConnection)
            } else {
                (LinkState::Open, AbsenceReason::NeverConnected)
            };
            Link { peer, socket, dials, place, reason, backoff: BACKOFF_MIN }
        })
        .collect()
}

fn resources(cause: io::Error) -> TransportError {
    TransportError::Resources { cause: Arc::new(cause) }
}

/// A message of fixed size that arrives in pieces.
struct Words<const N: usize> {
    bytes: [u8; N],
    got: usize,
}

impl<const N: usize> Words<N> {
    fn new() -> Words<N> {
        Words { bytes: [0; N], got: 0 }
    }

    /// Reads the available bytes, but never more than `N`, as frames may follow. Returns the
    /// message once it is complete.
    fn read(&mut self, mut stream: &TcpStream) -> Result<Option<[u8; N]>, AbsenceReason> {
        while self.got < N {
            match stream.read(&mut self.bytes[self.got..]) {
                Ok(0) => return Err(AbsenceReason::Closed),
                Ok(read_bytes) => self.got += read_bytes,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(AbsenceReason::Unreachable(e.kind())),
            }
        }
        Ok(Some(self.bytes))
    }
}

/// Writes a handshake message at once: it always fits into the buffer of a socket that was just
/// opened.
fn say(mut stream: &TcpStream, words: &[u8]) -> Result<(), AbsenceReason> {
    stream.write_all(words).map_err(|e| AbsenceReason::Unreachable(e.kind()))
}

/// Keys of a connection; `None` if it is not encrypted.
type Keys = Option<Box<(Sealer, Opener)>>;

/// One socket of the mesh that is being formed.
struct Link {
    peer: usize,
    socket: usize,
    /// Whether this rank dials; otherwise the peer does.
    dials: bool,
    place: LinkState,
    /// Reason why the socket is not linked, as far as it is known.
    reason: AbsenceReason,
    backoff: Duration,
}

enum LinkState {
    Open,
    Paused {
        until: Instant,
    },
    Connecting {
        stream: TcpStream,
        give_up: Instant,
    },
    Greeting {
        stream: TcpStream,
        hello: [u8; HELLO_BYTES],
        reply: Words<REPLY_BYTES>,
        give_up: Instant,
    },
    Linked {
        stream: TcpStream,
        keys: Keys,
        /// Whether the peer has not sent a frame yet. Until then the connection is watched for its
        /// end.
        quiet: bool,
    },
}

impl Link {
    /// Makes one step towards `Linked`, if the socket allows it.
    fn advance(&mut self, config: &GroupConfig) {
        let now = Instant::now();
        let next = match std::mem::replace(&mut self.place, LinkState::Open) {
            LinkState::Open => return,
            LinkState::Paused { until } if now < until => Ok(LinkState::Paused { until }),
            LinkState::Paused { .. } => {
                self.reason = AbsenceReason::NoConnection;
                let stream = dial(config.peers[self.peer]);
                stream
                    .map(|stream| LinkState::Connecting { stream, give_up: now + CONNECT_PATIENCE })
            }
            LinkState::Connecting { give_up, .. } | LinkState::Greeting { give_up, .. }
                if now >= give_up =>
            {
                Err(self.reason)
            }
            LinkState::Connecting { stream, give_up } => self.greet(stream, give_up, config),
            LinkState::Greeting { stream, hello, reply, give_up } => {
                answered(stream, hello, reply, config).map(|outcome| match outcome {
                    Answer::Linked(stream, keys) => LinkState::Linked { stream, keys, quiet: true },
                    Answer::Pending(stream, reply) => {
                        LinkState::Greeting { stream, hello, reply, give_up }
                    }
                })
            }
            LinkState::Linked { stream, keys, quiet } => {
                watch(&stream, quiet).map(|quiet| LinkState::Linked { stream, keys, quiet })
            }
        };
        match next {
            Ok(place) => self.place = place,
            Err(reason) => self.fail(reason),
        }
    }

    /// Sends the hello once the connection is established.
    fn greet(
        &mut self,
        stream: TcpStream,
        give_up: Instant,
        config: &GroupConfig,
    ) -> Result<LinkState, AbsenceReason> {
        if !established(&stream)? {
            return Ok(LinkState::Connecting { stream, give_up });
        }
        self.reason = AbsenceReason::Silent;
        let nonce = hello::nonce().map_err(|e| unreachable(&e))?;
        let hello = Hello::new(config, self.peer, self.socket, nonce).encode();
        say(&stream, &hello)?;
        let give_up = Instant::now() + DIAL_PATIENCE;
        Ok(LinkState::Greeting { stream, hello, reply: Words::new(), give_up })
    }

    fn fail(&mut self, reason: AbsenceReason) {
        self.reason = reason;
        self.place = if self.dials {
            let until = Instant::now() + self.backoff;
            self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
            LinkState::Paused { until }
        } else {
            LinkState::Open
        };
    }
}

fn unreachable(e: &io::Error) -> AbsenceReason {
    AbsenceReason::Unreachable(e.kind())
}

/// Starts to connect, without waiting.
fn dial(addr: SocketAddr) -> Result<TcpStream, AbsenceReason> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let start = || {
        let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(true)?;
        match rustix::net::connect(&stream, &addr) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => Ok(stream),
            Err(e) => Err(io::Error::from(e)),
        }
    };
    start().map_err(|e| unreachable(&e))
}

/// Whether the connection is established.
fn established(stream: &TcpStream) -> Result<bool, AbsenceReason> {
    if let Some(e) = stream.take_error().map_err(|e| unreachable(&e))? {
        return Err(unreachable(&e));
    }
    match stream.peer_addr() {
        // If nothing listens on a port of this machine, and the system chose that very port for the
        // local end, TCP connects the socket to itself.
        Ok(peer) if stream.local_addr().is_ok_and(|local| local == peer) => {
            Err(AbsenceReason::Unreachable(io::ErrorKind::ConnectionRefused))
        }
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(e) => Err(unreachable(&e)),
    }
}

enum Answer {
    Linked(TcpStream, Keys),
    Pending(TcpStream, Words<REPLY_BYTES>),
}

/// Checks the reply once it is complete, and sends the proof that this rank knows the key.
fn answered(
    stream: TcpStream,
    hello: [u8; HELLO_BYTES],
    mut reply: Words<REPLY_BYTES>,
    config: &GroupConfig,
) -> Result<Answer, AbsenceReason> {
    let Some(bytes) = reply.read(&stream)? else { return Ok(Answer::Pending(stream, reply)) };
    Reply::check(&bytes, &config.key, &hello)?;
    say(&stream, &hello::proof(&config.key, &hello, &bytes))?;
    Ok(Answer::Linked(stream, hello::keys(config, true, &hello, &bytes)))
}

/// Whether a linked peer has still sent nothing; an error if it has closed the connection.
fn watch(stream: &TcpStream, quiet: bool) -> Result<bool, AbsenceReason> {
    if !quiet {
        return Ok(false);
    }
    match stream.peek(&mut [0]) {
        Ok(0) => Err(AbsenceReason::Closed),
        Ok(_) => Ok(false),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(e) => Err(unreachable(&e)),
    }
}

/// An accepted connection that has not yet proved that it belongs to this group.
struct Guest {
    stream: TcpStream,
    addr: SocketAddr,
    stage: GuestStage,
    give_up: Instant,
}

enum GuestStage {
    Hello(Words<HELLO_BYTES>),
    Proof { link_idx: usize, expected: [u8; PROOF_BYTES], words: Words<PROOF_BYTES>, keys: Keys },
}

/// Result of one step of a guest.
enum Visit {
    Waiting(Guest),
    Linked { link_idx: usize, stream: TcpStream, keys: Keys },
    Dropped { addr: SocketAddr, reason: AbsenceReason, rank: Option<usize> },
}

struct Mesh<'a> {
    listener: &'a Listener,
    config: &'a GroupConfig,
    links: Vec<Link>,
    /// Accepted connections whose handshake is not complete; `None` while a guest is processed.
    guests: Admission<Option<Guest>>,
    strangers: u64,
    last_stranger: Option<(SocketAddr, AbsenceReason)>,
}

impl Mesh<'_> {
    fn accept(&mut self) -> Result<(), TransportError> {
        for _ in 0..BATCH {
            let accepted = self.listener.accept().map_err(resources)?;
            let Some((stream, addr)) = accepted else { break };
            stream.set_nonblocking(true).map_err(resources)?;
            let give_up = Instant::now() + GUEST_PATIENCE;
            let stage = GuestStage::Hello(Words::new());
            // If the hello arrived while the connection was in the listen queue, no slot is needed.
            if let Some(guest) = self.receive(Guest { stream, addr, stage, give_up }) {
                self.guests.admit(addr.ip(), Some(guest));
            }
        }
        Ok(())
    }

    fn advance_guests(&mut self) {
        let ids: Vec<AdmissionId> = self.guests.iter().map(|(id, _)| id).collect();
        for id in ids {
            let guest = self.guests.get_mut(id).and_then(Option::take);
            match guest.and_then(|guest| self.receive(guest)) {
                Some(guest) => {
                    *self.guests.get_mut(id).expect("nobody came meanwhile") = Some(guest)
                }
                None => drop(self.guests.remove(id)),
            }
        }
    }

    /// Processes the data of one guest; returns the guest unless it has finished.
    fn receive(&mut self, guest: Guest) -> Option<Guest> {
        match self.visit(guest) {
            Visit::Waiting(guest) => return Some(guest),
            Visit::Linked { link_idx, stream, keys } => {
                self.links[link_idx].place = LinkState::Linked { stream, keys, quiet: true };
            }
            Visit::Dropped { addr, reason, rank } => {
                self.strangers += 1;
                self.last_stranger = Some((addr, reason));
                for link in self.links.iter_mut().filter(|link| Some(link.peer) == rank) {
                    link.reason = reason;
                }
            }
        }
        None
    }

    /// Makes one step of a guest's handshake, if its socket allows it.
    fn visit(&self, mut guest: Guest) -> Visit {
        let addr = guest.addr;
        match &mut guest.stage {
            GuestStage::Hello(words) => match words.read(&guest.stream) {
                Err(reason) => Visit::Dropped { addr, reason, rank: None },
                Ok(Some(hello)) => self.answer(guest, hello),
                Ok(None) => self.keep(guest),
            },
            GuestStage::Proof { link_idx, expected, words, keys } => {
                let (link_idx, expected) = (*link_idx, *expected);
                let rank = Some(self.links[link_idx].peer);
                match words.read(&guest.stream) {
                    Err(reason) => Visit::Dropped { addr, reason, rank },
                    Ok(None) => self.keep(guest),
                    Ok(Some(proof)) if !hello::same(&proof, &expected) => {
                        Visit::Dropped { addr, reason: AbsenceReason::Secret, rank }
                    }
                    Ok(Some(_)) if self.is_taken(link_idx) => {
                        Visit::Dropped { addr, reason: AbsenceReason::Taken, rank: None }
                    }
                    Ok(Some(_)) => {
                        Visit::Linked { link_idx, stream: guest.stream, keys: keys.take() }
                    }
                }
            }
        }
    }

    fn keep(&self, guest: Guest) -> Visit {
        if Instant::now() < guest.give_up {
            return Visit::Waiting(guest);
        }
        Visit::Dropped { addr: guest.addr, reason: AbsenceReason::Silent, rank: None }
    }

    fn is_taken(&self, link_idx: usize) -> bool {
        matches!(self.links[link_idx].place, LinkState::Linked { .. })
    }

    /// Replies to a complete hello; the reply to an unwelcome guest contains the reason.
    fn answer(&self, guest: Guest, words: [u8; HELLO_BYTES]) -> Visit {
        let addr = guest.addr;
        let (hello, mut verdict) = match Hello::decode(&words) {
            Ok(hello) => (Some(hello), hello.verdict(self.config)),
            Err(AbsenceReason::Version(_)) => (None, Verdict::Version),
            Err(reason) => return Visit::Dropped { addr, reason, rank: None },
        };
        let link_idx = hello.and_then(|hello| {
            let (peer, socket) = (hello.rank as usize, hello.socket as usize);
            self.links.iter().position(|link| link.peer == peer && link.socket == socket)
        });
        if verdict == Verdict::Welcome && link_idx.is_some_and(|idx| self.is_taken(idx)) {
            verdict = Verdict::Taken;
        }
        let key = &self.config.key;
        let reply = hello::nonce().map_err(|e| unreachable(&e)).and_then(|nonce| {
            let (epoch, has_aes) = (self.config.epoch, seal::has_aes());
            let reply = Reply { verdict, epoch, has_aes, nonce }.encode(key, &words);
            say(&guest.stream, &reply).map(|()| reply)
        });
        let rank = hello.map(|hello| hello.rank as usize);
        let reason = match (reply, verdict) {
            (Err(reason), _) => reason,
            (Ok(reply), Verdict::Welcome) => {
                let link_idx = link_idx.expect("a welcome hello names a peer and a socket");
                let expected = hello::proof(key, &words, &reply);
                let keys = hello::keys(self.config, false, &words, &reply);
                let stage = GuestStage::Proof { link_idx, expected, words: Words::new(), keys };
                return Visit::Waiting(Guest { stage, ..guest });
            }
            (Ok(_), Verdict::Version) => AbsenceReason::Foreign,
            (Ok(_), Verdict::Epoch) => AbsenceReason::Epoch(hello.map_or(0, |hello| hello.epoch)),
            (Ok(_), Verdict::Settings) => AbsenceReason::Settings,
            (Ok(_), Verdict::Taken) => AbsenceReason::Taken,
        };
        Visit::Dropped { addr, reason, rank }
    }

    /// Sleeps until a socket is ready or a pause is over.
    fn sleep(&self, interrupter: &Interrupter, deadline: Instant) -> Result<(), TransportError> {
        let mut wake_at = deadline;
        let mut fds = vec![PollFd::from_borrowed_fd(interrupter.wake_fd(), PollFlags::IN)];
        fds.extend(self.listener.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        for guest in self.guests.iter().filter_map(|(_, guest)| guest.as_ref()) {
            fds.push(PollFd::from_borrowed_fd(guest.stream.as_fd(), PollFlags::IN));
            wake_at = wake_at.min(guest.give_up);
        }
        for link in &self.links {
            let (stream, flags) = match &link.place {
                LinkState::Paused { until } => {
                    wake_at = wake_at.min(*until);
                    continue;
                }
                LinkState::Connecting { stream, give_up } => {
                    wake_at = wake_at.min(*give_up);
                    (stream, PollFlags::OUT)
                }
                LinkState::Greeting { stream, give_up, .. } => {
                    wake_at = wake_at.min(*give_up);
                    (stream, PollFlags::IN)
                }
                LinkState::Linked { stream, quiet: true, .. } => (stream, PollFlags::IN),
                LinkState::Open | LinkState::Linked { .. } => continue,
            };
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), flags));
        }
        poll_until(&mut fds, wake_at).map_err(resources)
    }

    fn into_wires(self) -> Result<Vec<Wire>, TransportError> {
        let linked = self.links.into_iter().filter_map(|link| match link.place {
            LinkState::Linked { stream, keys, .. } => Some((stream, keys)),
            _ => None,
        });
        linked
            .map(|(stream, keys)| {
                stream.set_nodelay(true)?;
                Ok(Wire::new(stream, keys))
            })
            .collect::<io::Result<_>>()
            .map_err(resources)
    }

    fn timeout(&self, started: Instant) -> TransportError {
        let config = self.config;
        let mut ranks: Vec<Absence> = Vec::new();
        for link in &self.links {
            let linked = matches!(link.place, LinkState::Linked { .. });
            if !linked && !ranks.iter().any(|absence| absence.rank == link.peer) {
                let (rank, addr) = (link.peer, config.peers[link.peer]);
                ranks.push(Absence { rank, addr, reason: link.reason });
            }
        }
        ranks.sort_by_key(|absence| absence.rank);
        TransportError::JoinTimeout {
            epoch: config.epoch,
            elapsed: started.elapsed(),
            absent: Box::new(Absences {
                ranks,
                strangers: self.strangers,
                last_stranger: self.last_stranger,
            }),
        }
    }
}
