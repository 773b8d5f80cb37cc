//! Unauthenticated peers that open connections and send nothing.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Rate of new connections, over all peers.
const CONNECTIONS_PER_S: u64 = 2000;

/// Maximum number of open connections; at that rate each one is held for about a second.
const HELD_MAX: usize = 1900;

/// Maximum length of a flood.
const LENGTH_MAX: Duration = Duration::from_secs(10);

/// Pause between two batches of connections.
const TICK: Duration = Duration::from_millis(5);

/// Source addresses of the peers: addresses of this machine without other use.
const STRANGERS: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];

/// A flood that runs for its length, or until it is dropped.
pub(crate) struct Flood {
    is_over: Arc<AtomicBool>,
    num_opened: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Starts to connect to these ports of this machine in turn.
    pub(crate) fn begin(ports: Vec<u16>, length: Duration) -> Flood {
        let is_over = Arc::new(AtomicBool::new(false));
        let num_opened = Arc::new(AtomicU64::new(0));
        let (over, opened) = (Arc::clone(&is_over), Arc::clone(&num_opened));
        let until = Instant::now() + length.min(LENGTH_MAX);
        let thread = std::thread::spawn(move || flood(&ports, until, &over, &opened));
        Flood { is_over, num_opened, thread: Some(thread) }
    }

    /// Waits for the end of the flood, and returns the number of connections that were opened.
    pub(crate) fn end(mut self) -> u64 {
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
        self.num_opened.load(Ordering::SeqCst)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

fn flood(ports: &[u16], until: Instant, is_over: &AtomicBool, num_opened: &AtomicU64) {
    let began = Instant::now();
    let mut held: VecDeque<OwnedFd> = VecDeque::new();
    let mut num_tried = 0;
    while Instant::now() < until && !is_over.load(Ordering::SeqCst) {
        let due = began.elapsed().as_millis() as u64 * CONNECTIONS_PER_S / 1000;
        while num_tried < due {
            let port = ports[num_tried as usize % ports.len()];
            let from = STRANGERS[(num_tried as usize / ports.len()) % STRANGERS.len()];
            num_tried += 1;
            if let Ok(connection) = knock(from, port) {
                held.push_back(connection);
                num_opened.fetch_add(1, Ordering::SeqCst);
            }
            while HELD_MAX < held.len() {
                held.pop_front();
            }
        }
        std::thread::sleep(TICK);
    }
}

/// Starts a connection. It ends with a reset, so that no socket of this machine lingers.
fn knock(from: Ipv4Addr, port: u16) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    bind(&socket, &SocketAddr::V4(SocketAddrV4::new(from, 0)))?;
    match connect(&socket, &SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(err) => Err(err),
    }
}

/// Raises this process's limit of open files to its maximum.
pub(crate) fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If this fails, the flood is smaller.
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).ok();
}
