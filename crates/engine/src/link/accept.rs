//! Lets ranks in and keeps strangers out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use jackalope_protocol::{FrameError, Hello, Secret, frame, secure};

use super::{LinkReport, Report};
use crate::Reporter;

/// A connection has this long to prove itself.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Connections that may be about to prove themselves; more are dropped.
const HANDSHAKES_MAX: usize = 16;
/// Pause after the system refused to accept, so that a lasting lack of files does not burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A connection that proved itself.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) hello: Hello,
    pub(super) sender: secure::Sender,
    pub(super) receiver: secure::Receiver,
}

/// The thread that accepts connections. Ends when dropped.
#[derive(Debug)]
pub(super) struct Acceptor {
    addr: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    pub(super) fn start(
        listener: TcpListener,
        addr: SocketAddr,
        secret: Secret,
        reporter: Reporter<LinkReport>,
    ) -> Acceptor {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let thread = std::thread::Builder::new()
            .name("ranks".to_owned())
            .spawn(move || accept_all(&listener, secret, &reporter, &told))
            .expect("a process that just started can start a thread");
        Acceptor { addr: reached_at(addr), is_over, thread: Some(thread) }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread from its wait; if this fails it is not waiting.
        let woken = TcpStream::connect_timeout(&self.addr, Duration::from_millis(200));
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn accept_all(
    listener: &TcpListener,
    secret: Secret,
    reporter: &Reporter<LinkReport>,
    is_over: &AtomicBool,
) {
    let num_handshakes = Arc::new(AtomicUsize::new(0));
    loop {
        let accepted = listener.accept();
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        let Ok((stream, _)) = accepted else {
            std::thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        if HANDSHAKES_MAX <= num_handshakes.load(Ordering::SeqCst) {
            continue;
        }
        num_handshakes.fetch_add(1, Ordering::SeqCst);
        let (reporter, num_handshakes) = (reporter.clone(), Arc::clone(&num_handshakes));
        // Not joined: it ends by its deadline, and holds nothing that outlives the report.
        let handshake = move || {
            let report = match shake_hands(stream, &secret) {
                Ok(arrival) => Report::Arrived(arrival),
                Err(err) => Report::Refused { reason: err.to_string() },
            };
            num_handshakes.fetch_sub(1, Ordering::SeqCst);
            reporter.report(LinkReport(report));
        };
        if std::thread::Builder::new().name("handshake".to_owned()).spawn(handshake).is_err() {
            std::thread::sleep(ACCEPT_PAUSE);
        }
    }
}

fn shake_hands(stream: TcpStream, secret: &Secret) -> Result<Arrival, FrameError> {
    let (sender, mut receiver) = secure::accept(stream, secret, HANDSHAKE)?;
    receiver.stream().set_read_timeout(Some(HANDSHAKE))?;
    let hello = frame::read(&mut receiver)?;
    receiver.stream().set_read_timeout(None)?;
    Ok(Arrival { hello, sender, receiver })
}

/// Where this machine reaches a listener of its own.
fn reached_at(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, addr.port())
}
