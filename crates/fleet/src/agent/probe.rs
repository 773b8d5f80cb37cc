//! Tests whether this machine can connect to addresses of another one.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use jackalope_protocol::agent::PROBE_TARGETS_MAX;

/// Maximum number of probes in progress; further ones get no answer.
const PROBES_MAX: usize = 16;

/// Upper bound of a probe's deadline.
const DEADLINE_MAX: Duration = Duration::from_secs(5);

static NUM_PROBES: AtomicUsize = AtomicUsize::new(0);

/// Tries all `targets` in parallel, on separate threads. Calls `answer` with the reason if none
/// of them answers within the deadline, or with `None` if one does.
pub(super) fn start(
    targets: Vec<SocketAddr>,
    deadline: Duration,
    answer: impl FnOnce(Option<String>) + Send + 'static,
) {
    if PROBES_MAX <= NUM_PROBES.fetch_add(1, Ordering::SeqCst) {
        NUM_PROBES.fetch_sub(1, Ordering::SeqCst);
        return;
    }
    let probe = move || {
        let failure = failure(&targets, deadline);
        NUM_PROBES.fetch_sub(1, Ordering::SeqCst);
        answer(failure);
    };
    // If no thread can be started, no answer is sent; the client ignores a probe without an answer.
    if thread::Builder::new().name("probe".to_owned()).spawn(probe).is_err() {
        NUM_PROBES.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns why none of the targets can be reached, or `None` if one can. A connection that is refused or
/// reset counts as reached: the machine has answered.
fn failure(targets: &[SocketAddr], deadline: Duration) -> Option<String> {
    let deadline = deadline.min(DEADLINE_MAX);
    let (results, received) = channel();
    for &target in targets.iter().take(PROBE_TARGETS_MAX) {
        let results = results.clone();
        let attempt = move || {
            // The receiver is gone once another target has answered.
            results.send(attempt(target, deadline)).ok();
        };
        thread::Builder::new().name("attempt".to_owned()).spawn(attempt).ok();
    }
    drop(results);
    let mut reasons = Vec::new();
    for result in received {
        reasons.push(result?);
    }
    Some(if reasons.is_empty() { "nothing was tried".to_owned() } else { reasons.join("; ") })
}

fn attempt(target: SocketAddr, deadline: Duration) -> Option<String> {
    match TcpStream::connect_timeout(&target, deadline) {
        Ok(_) => None,
        Err(err)
            if matches!(err.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset) =>
        {
            None
        }
        Err(err) if err.kind() == ErrorKind::TimedOut => {
            Some(format!("{target}: no answer within {:.1} s", deadline.as_secs_f32()))
        }
        Err(err) => Some(format!("{target}: {err}")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// An address of this machine that answers no connection while the returned sockets are kept:
    /// the listen backlog is full.
    fn silent_address() -> (SocketAddr, (TcpListener, Vec<TcpStream>)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let addr = listener.local_addr().unwrap();
        let connect = |_| TcpStream::connect_timeout(&addr, Duration::from_millis(200)).ok();
        let waiting: Vec<TcpStream> = (0..64).map_while(connect).collect();
        assert!(waiting.len() < 64, "its queue is never full");
        (addr, (listener, waiting))
    }

    #[test]
    fn a_machine_that_accepts_or_refuses_is_reached_and_one_that_is_silent_is_not() {
        let deadline = Duration::from_secs(2);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepting = listener.local_addr().unwrap();
        assert_eq!(failure(&[accepting], deadline), None);
        drop(listener);
        assert_eq!(failure(&[accepting], deadline), None, "a refusal is an answer");
        let (silent, _full) = silent_address();
        let reason = failure(&[silent], Duration::from_millis(100)).unwrap();
        assert!(reason.contains(&silent.to_string()), "{reason}");
        assert_eq!(failure(&[silent, accepting], deadline), None, "one of them is enough");
        assert!(failure(&[], deadline).is_some());
    }
}
