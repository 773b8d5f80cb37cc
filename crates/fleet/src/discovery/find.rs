//! The side that searches: sends queries, collects answers for a while, and then connects to the
//! machines whose answers are valid.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use jackalope_protocol::machine::NodeFacts;
use jackalope_protocol::secure::{self, Build, Introduction};
use jackalope_protocol::{FrameError, PublicKey, Secret, frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;

use super::link::{self, Asking, LinkAddr};
use super::wire::{self, Answer, DATAGRAM_BYTES_MAX, Nonce, OurAgent};
use crate::agent::{FromAgent, ToAgent};
use crate::facts;
use crate::trust::Credentials;

/// Pauses between queries, because a datagram may be lost, above all over Wi-Fi. The last pause
/// repeats.
const ASK_PAUSES: [Duration; 4] = [
    Duration::from_millis(200),
    Duration::from_millis(300),
    Duration::from_millis(500),
    Duration::from_secs(1),
];

/// Maximum number of other machines in one cluster.
const MACHINES_MAX: usize = 63;

/// Maximum number of addresses kept for one machine.
const PATHS_MAX: usize = 16;

/// Maximum number of strangers that are reported in full; the others are only counted.
pub const STRANGERS_MAX: usize = 16;

/// Maximum number of strangers that are distinguished.
const STRANGERS_COUNTED_MAX: usize = 1024;

/// Maximum number of datagrams received from one socket between two checks of the time.
const DATAGRAMS_AT_ONCE: usize = 64;

/// Number of latest queries whose answers are still received.
const QUERIES_OPEN: usize = 4;

/// Time for one attempt to connect to one address of a machine that has just answered.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for all attempts to get a machine's facts.
const FACTS_TIMEOUT: Duration = Duration::from_secs(5);

/// The parameters of a search.
#[derive(Clone, Debug)]
pub struct FindConfig {
    /// Credentials to present to agents, and the keys expected of them.
    pub ours: Credentials,
    /// How long to wait for answers.
    pub window: Duration,
    /// Expected number of machines, this one included, and how long to wait until they are found.
    pub expected: Option<(usize, Duration)>,
}

/// Result of a search.
#[derive(Clone, Debug)]
pub struct DiscoveryResult {
    /// Facts of this machine.
    pub here: NodeFacts,
    /// Other machines with our secret.
    pub machines: Vec<FoundMachine>,
    /// Agents with another secret; anybody can claim to be one.
    pub strangers: Vec<Stranger>,
    /// Number of strangers that are not in `strangers`.
    pub num_more_strangers: usize,
}

/// A machine whose agent has proved our secret.
#[derive(Clone, Debug)]
pub struct FoundMachine {
    /// Addresses at which the machine's agent was reached, the most useful one first.
    pub addrs: Vec<SocketAddr>,
    /// Version of the machine's agent.
    pub build: Build,
    /// Facts of the machine, or why there are none.
    pub state: MachineState,
    /// Key that the machine's agent has proved, if it was reached.
    pub key: Option<PublicKey>,
}

/// Whether a machine that was found can be used.
#[derive(Clone, Debug)]
pub enum MachineState {
    /// The machine's agent has our version and sent these facts.
    Ready(Box<NodeFacts>),
    /// The machine's agent has another version.
    OtherVersion,
    /// The machine's agent has answered, but cannot be connected to.
    Unreachable(String),
    /// One side does not trust the other: the reason, and what to do.
    Refused(String),
}

/// An agent that does not hold our secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stranger {
    /// Address from which the agent answered.
    pub ip: IpAddr,
    /// Version that the agent claims to have.
    pub build: Build,
}

/// Reason why no search is possible.
#[derive(Debug, Error)]
pub enum DiscoverError {
    /// The system refuses a network operation.
    #[error("looking for machines: {0}")]
    Io(#[from] io::Error),
    /// This machine is in no network.
    #[error(
        "this machine is in no network that others could be in\n\
         hint: connect a cable; `ifconfig` (Linux: `ip address`) shows the interfaces"
    )]
    NoNetwork,
    /// No network accepts our queries.
    #[error(
        "no query could be sent: {0}\n\
         hint: on macOS allow your terminal under System Settings, Privacy & Security, Local Network"
    )]
    NotSent(io::Error),
}

/// Looks for the machines of this cluster. Takes the configured time, and up to a few seconds more
/// to fetch the facts of the machines that have answered.
///
/// # Errors
/// [`DiscoverError`] if no query can be sent. An empty result is not an error.
pub fn find(config: &FindConfig) -> Result<DiscoveryResult, DiscoverError> {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).map_err(io::Error::from)?;
    let mut received = ReceivedAnswers::new(config.ours.secret, nonce);
    listen(config, &mut received)?;
    let ours = &config.ours;
    let (machines, here) = thread::scope(|scope| {
        let meet = |it: Machine| scope.spawn(move || it.meet(ours));
        let threads: Vec<_> = received.machines.drain(..).map(meet).collect();
        let here = facts::facts_here();
        let met = threads.into_iter().map(|it| it.join().expect("it does not panic"));
        (met.collect(), here)
    });
    let num_strangers = received.strangers.len();
    received.strangers.truncate(STRANGERS_MAX);
    let num_more_strangers = num_strangers - received.strangers.len();
    Ok(DiscoveryResult { here, machines, strangers: received.strangers, num_more_strangers })
}

/// Sends queries and collects answers until the time is over. Networks may appear meanwhile.
///
/// Each query has sockets of its own: whoever received a query and floods its sockets cannot
/// displace the answers to the next one, which arrive before the sender of the flood knows where to
/// send it.
fn listen(config: &FindConfig, received: &mut ReceivedAnswers) -> Result<(), DiscoverError> {
    let query = wire::query(&config.ours.secret, &received.nonce);
    let mut latest: VecDeque<Asking> = VecDeque::new();
    let began = Instant::now();
    let (mut ask_at, mut num_asked) = (began, 0);
    let mut unasked = Some(DiscoverError::NoNetwork);
    loop {
        let now = Instant::now();
        let until = match config.expected {
            Some((machines, longest)) if received.machines.len() + 1 < machines => {
                longest.max(config.window)
            }
            Some(_) | None => config.window,
        };
        let until = began + until;
        if until <= now {
            return unasked.map_or(Ok(()), Err);
        }
        if ask_at <= now {
            let addrs = link::addrs()?;
            received.meet_networks(&addrs);
            if latest.len() == QUERIES_OPEN {
                latest.pop_front();
            }
            let asking = Asking::new()?;
            unasked = match (asking.ask(&addrs, &query), unasked) {
                ((0, Some(err)), Some(_)) => Some(DiscoverError::NotSent(err)),
                ((0, _), unasked) => unasked,
                _ => None,
            };
            ask_at = now + ASK_PAUSES[num_asked.min(ASK_PAUSES.len() - 1)];
            num_asked += 1;
            latest.push_back(asking);
        }
        let sockets = || latest.iter().flat_map(|it| std::iter::once(&it.v4).chain(&it.v6));
        let mut fds: Vec<PollFd<'_>> = sockets().map(|it| PollFd::new(it, PollFlags::IN)).collect();
        let wait = until.min(ask_at).saturating_duration_since(now);
        let wait = Timespec::try_from(wait).expect("it is a matter of seconds");
        match poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(DiscoverError::Io(err.into())),
        }
        sockets().for_each(|socket| received.receive(socket));
    }
}

/// A machine whose agent has proved the secret.
#[derive(Clone, Debug)]
struct Machine {
    agent: OurAgent,
    /// Addresses from which the machine's answers came.
    paths: Vec<SocketAddr>,
}

/// The answers received so far.
struct ReceivedAnswers {
    secret: Secret,
    nonce: Nonce,
    own: Vec<IpAddr>,
    machines: Vec<Machine>,
    strangers: Vec<Stranger>,
}

impl ReceivedAnswers {
    fn new(secret: Secret, nonce: Nonce) -> ReceivedAnswers {
        ReceivedAnswers {
            secret,
            nonce,
            own: Vec::new(),
            machines: Vec::new(),
            strangers: Vec::new(),
        }
    }

    /// Remembers our own addresses, whose answers are ignored.
    fn meet_networks(&mut self, addrs: &[LinkAddr]) {
        self.own = addrs.iter().map(|it| it.ip).collect();
    }

    fn receive(&mut self, socket: &UdpSocket) {
        let mut bytes = [0; DATAGRAM_BYTES_MAX];
        for _ in 0..DATAGRAMS_AT_ONCE {
            // The error may concern an earlier datagram. A missed answer is sent again after the
            // next query.
            let Ok((length, from)) = socket.recv_from(&mut bytes) else { return };
            self.take(&bytes[..length], from);
        }
    }

    /// Ignores answers of this machine's own agent, and datagrams that do not answer this query.
    fn take(&mut self, bytes: &[u8], from: SocketAddr) {
        let ip = from.ip().to_canonical();
        if self.own.contains(&ip) || ip.is_loopback() {
            return;
        }
        match wire::read_answer(bytes, &self.secret, &self.nonce) {
            Some(Answer::Ours(agent)) => self.take_ours(agent, from),
            Some(Answer::Stranger(build)) => {
                let is_known = self.strangers.iter().any(|it| it.ip == ip);
                if !is_known && self.strangers.len() < STRANGERS_COUNTED_MAX {
                    self.strangers.push(Stranger { ip, build });
                }
            }
            None => {}
        }
    }

    /// Takes an answer of one of our agents, but ignores it if it came from an address that the
    /// answer does not name, because it may have been relayed.
    fn take_ours(&mut self, agent: OurAgent, from: SocketAddr) {
        let ip = from.ip().to_canonical();
        if !agent.addrs.contains(&ip) {
            return;
        }
        let scope_id = match from {
            SocketAddr::V6(from) => from.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let path = link::socket_addr(ip, agent.port, scope_id);
        match self.machines.iter_mut().find(|it| it.agent.id == agent.id) {
            Some(known) => {
                if !known.paths.contains(&path) && known.paths.len() < PATHS_MAX {
                    known.paths.push(path);
                }
            }
            None => {
                if self.machines.len() < MACHINES_MAX {
                    self.machines.push(Machine { agent, paths: vec![path] });
                }
            }
        }
    }
}

/// Sorts addresses by usefulness: globally usable ones first, those that are valid on one link only
/// last.
fn usefulness(addr: &SocketAddr) -> u8 {
    match addr.ip() {
        IpAddr::V4(ip) if !ip.is_link_local() => 0,
        IpAddr::V4(_) => 1,
        IpAddr::V6(ip) if !ip.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 3,
    }
}

impl Machine {
    /// Connects to the machine and requests its facts.
    fn meet(mut self, ours: &Credentials) -> FoundMachine {
        self.paths.sort_by_key(usefulness);
        let (state, key) = if self.agent.build == Build::ours() {
            self.ask(ours, Instant::now() + FACTS_TIMEOUT)
        } else {
            (MachineState::OtherVersion, None)
        };
        FoundMachine { addrs: self.paths, build: self.agent.build, state, key }
    }

    /// Tries the paths in order. Removes the paths before the one that works, although answers came
    /// over them, because a link-local address may be routed over another cable.
    fn ask(&mut self, ours: &Credentials, deadline: Instant) -> (MachineState, Option<PublicKey>) {
        let mut reason = String::new();
        for (idx, path) in self.paths.iter().enumerate() {
            match facts(*path, ours, deadline) {
                Ok((facts, key)) => {
                    self.paths.drain(..idx);
                    return (MachineState::Ready(Box::new(facts)), Some(key));
                }
                Err(err @ (FrameError::Untrusted { .. } | FrameError::UnknownKey { .. })) => {
                    return (MachineState::Refused(err.to_string()), None);
                }
                Err(err) => reason = format!("no agent at {path}: {err}"),
            }
        }
        (MachineState::Unreachable(reason), None)
    }
}

/// Requests the facts of the machine whose agent is at `addr`.
fn facts(
    addr: SocketAddr,
    ours: &Credentials,
    deadline: Instant,
) -> Result<(NodeFacts, PublicKey), FrameError> {
    let late = || FrameError::from(io::Error::from(io::ErrorKind::TimedOut));
    let left = || {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(late()) } else { Ok(left) }
    };
    let check = |key: &PublicKey| ours.check_any(&addr.ip().to_string(), key);
    let (secret, identity) = (&ours.secret, &ours.identity);
    let introduction = Introduction { secret, identity, check: &check };
    let timeout = DIAL_TIMEOUT.min(left()?);
    let (key, mut sender, mut receiver) = secure::dial_machine(addr, introduction, timeout)?;
    frame::write(&mut sender, &ToAgent::Facts)?;
    loop {
        receiver.stream().set_read_timeout(Some(left()?))?;
        if let FromAgent::Facts(facts) = frame::read(&mut receiver)? {
            // The agent takes a session that ends without a goodbye for a failure.
            frame::write(&mut sender, &ToAgent::Bye)?;
            return Ok((facts, key));
        }
    }
}

impl FoundMachine {
    /// Returns the port on which the machine's agent listens.
    pub fn port(&self) -> u16 {
        self.addrs.first().map_or(0, SocketAddr::port)
    }

    /// Returns the addresses that can be used in a hostfile: all except link-local IPv6 ones, which
    /// are meaningless on other machines.
    pub fn ips(&self) -> Vec<IpAddr> {
        let is_local = |it: &IpAddr| matches!(it, IpAddr::V6(ip) if ip.is_unicast_link_local());
        self.addrs.iter().map(SocketAddr::ip).filter(|it| !is_local(it)).collect()
    }
}

#[cfg(test)]
mod tests {
    use jackalope_protocol::Identity;

    use super::*;
    use crate::home::Home;
    use crate::trust::{Expected, TrustStore};

    const OURS: Secret = Secret([1; 32]);
    const OTHER: Secret = Secret([2; 32]);
    const NONCE: Nonce = [5; 16];

    fn received() -> ReceivedAnswers {
        let own = LinkAddr { index: 2, ip: [10, 0, 0, 1].into() };
        let mut received = ReceivedAnswers::new(OURS, NONCE);
        received.meet_networks(&[own]);
        received
    }

    fn agent(id: u64, last: u8) -> OurAgent {
        let addrs = vec![[10, 0, 0, last].into(), [10, 254, 0, last].into()];
        OurAgent { build: Build::ours(), port: 18081, id, addrs }
    }

    fn from(ip: [u8; 4]) -> SocketAddr {
        SocketAddr::new(ip.into(), super::super::DISCOVERY_PORT)
    }

    #[test]
    fn a_machine_is_found_once_over_all_its_networks() {
        let mut received = received();
        for ip in [[10, 254, 0, 2], [10, 0, 0, 2], [10, 0, 0, 2]] {
            received.take(&agent(7, 2).answer(&OURS, &NONCE), from(ip));
        }
        received.take(&agent(8, 3).answer(&OURS, &NONCE), from([10, 0, 0, 3]));
        let ids: Vec<u64> = received.machines.iter().map(|it| it.agent.id).collect();
        assert_eq!(ids, [7, 8]);
        let paths: Vec<String> =
            received.machines[0].paths.iter().map(ToString::to_string).collect();
        assert_eq!(paths, ["10.254.0.2:18081", "10.0.0.2:18081"]);
    }

    #[test]
    fn forged_misaddressed_and_truncated_answers_are_ignored() {
        let mut received = received();
        let good = agent(7, 2).answer(&OURS, &NONCE);
        received.take(&good, from([10, 0, 0, 66]));
        received.take(&good, from([10, 0, 0, 1]));
        received.take(&agent(7, 2).answer(&OTHER, &NONCE), from([10, 0, 0, 2]));
        received.take(&agent(7, 2).answer(&OURS, &[6; 16]), from([10, 0, 0, 2]));
        received.take(&good[..good.len() - 1], from([10, 0, 0, 2]));
        received.take(b"", from([10, 0, 0, 2]));
        assert!(received.machines.is_empty() && received.strangers.is_empty());
    }

    #[test]
    fn a_flood_of_strangers_has_a_bound_and_hides_no_machine() {
        let mut received = received();
        let bare = wire::answer_to_strangers(&Build::ours(), &NONCE);
        for idx in 0..3000_u16 {
            let [a, b] = idx.to_be_bytes();
            received.take(&bare, from([172, 16, a, b]));
        }
        received.take(&agent(7, 2).answer(&OURS, &NONCE), from([10, 0, 0, 2]));
        assert_eq!(received.strangers.len(), STRANGERS_COUNTED_MAX);
        assert_eq!(received.machines.len(), 1);
    }

    #[test]
    fn a_machine_is_asked_at_the_address_that_leads_there() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let is_over = std::sync::Arc::default();
        let scratch = jackalope_testing::Scratch::new();
        let store = TrustStore::new(&Home::new(scratch.path()));
        let agent_key = Identity::generate("agent").unwrap();
        let of = |secret| Credentials {
            secret,
            identity: Identity::generate("finder").unwrap(),
            expected: Expected::Pinned(TrustStore::new(&Home::new(scratch.path().join("f")))),
        };
        let (ours, other) = (of(OURS), of(OTHER));
        let config = crate::agent::AgentConfig {
            secret: OURS,
            identity: agent_key.clone(),
            trust: crate::agent::Trust::Listed(store.clone()),
            rank_program: "/bin/cat".into(),
            files_dir: std::env::temp_dir(),
            library: crate::agent::no_library(),
            linger: None,
            is_over: std::sync::Arc::clone(&is_over),
        };
        let nowhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let machine = Machine { agent: agent(7, 2), paths: vec![nowhere, there] };
        thread::scope(|scope| {
            scope.spawn(|| crate::agent::serve(&listener, config).unwrap());
            // Neither machine trusts the other; each refusal names the next command to run.
            let found = machine.clone().meet(&ours);
            let MachineState::Refused(reason) = &found.state else { panic!("{found:?}") };
            assert!(reason.contains("`jackalope trust accept 127.0.0.1` here"), "{reason}");
            let Expected::Pinned(known) = &ours.expected else { unreachable!() };
            known.update(|list| list.accept("127.0.0.1")).unwrap();
            let found = machine.clone().meet(&ours);
            let MachineState::Refused(reason) = &found.state else { panic!("{found:?}") };
            assert!(reason.contains("on that machine run `jackalope trust accept"), "{reason}");
            let key = ours.identity.public().fingerprint();
            store.update(|list| list.accept(&key)).unwrap();
            let found = machine.clone().meet(&ours);
            assert!(matches!(&found.state, MachineState::Ready(it) if 0 < it.cores), "{found:?}");
            assert_eq!((found.addrs, found.key), (vec![there], Some(agent_key.public())));
            let found = machine.clone().meet(&other);
            assert!(matches!(&found.state, MachineState::Unreachable(_)), "{found:?}");
            assert_eq!(found.addrs, [nowhere, there]);
            is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        });
    }

    #[test]
    fn addresses_for_a_hostfile_come_first_and_those_of_one_link_are_left_out() {
        let addrs = ["[fe80::2%3]:9", "169.254.1.2:9", "[fd00::2]:9", "10.0.0.2:9"];
        let mut addrs: Vec<SocketAddr> = addrs.map(|it| it.parse().unwrap()).to_vec();
        addrs.sort_by_key(usefulness);
        let state = MachineState::OtherVersion;
        let machine = FoundMachine { addrs, build: Build::ours(), state, key: None };
        let ips: Vec<String> = machine.ips().iter().map(ToString::to_string).collect();
        assert_eq!(ips, ["10.0.0.2", "169.254.1.2", "fd00::2"]);
    }
}
