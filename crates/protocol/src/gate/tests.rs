//! Tests with real sockets on loopback and several kinds of unauthenticated peers.

use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::secure::{self, HintedKey, Sender};
use crate::{Secret, ToRank, frame};

const OURS: Secret = Secret([7; 32]);
const LONG: Duration = Duration::from_secs(20);

/// Accepts rank 0.
struct Doorkeeper;

impl secure::PeerPolicy for Doorkeeper {
    fn key_of(&self, hint: &[u8]) -> Option<Secret> {
        (secure::rank_of_hint(hint) == Some(0)).then_some(OURS)
    }
}

/// A gate that passes on authenticated connections.
fn gate() -> (Gate, SocketAddr, Receiver<(Sender, secure::Receiver)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let (arrived, arrivals) = channel();
    let arrived = Mutex::new(arrived);
    let prove = move |caller| {
        let met = secure::accept_caller(caller, &Doorkeeper)?;
        arrived.lock().unwrap().send((met.sender, met.receiver)).unwrap();
        Ok(())
    };
    let expected = vec!["127.0.0.1".parse().unwrap()];
    let config = GateConfig { listeners: vec![listener], expected, purpose: "test" };
    (Gate::start(config, Box::new(prove)).unwrap(), addr, arrivals)
}

fn check_lets_in(addr: SocketAddr, arrivals: &Receiver<(Sender, secure::Receiver)>) {
    let (mut sender, _) = secure::dial(addr, &HintedKey::of_rank(0, OURS), LONG).unwrap();
    let (_, mut receiver) = arrivals.recv_timeout(LONG).unwrap();
    frame::write(&mut sender, &ToRank::Stop).unwrap();
    assert_eq!(frame::read::<ToRank>(&mut receiver).unwrap(), ToRank::Stop);
}

fn threads_called(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|it| it.trim() == name).count()
}

/// Waits until the peer has closed or reset the connection.
fn wait_for_end(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(LONG)).unwrap();
    loop {
        match stream.read(&mut [0; 256]) {
            Ok(0) => return,
            Ok(_) => {}
            Err(err) => return assert_eq!(err.kind(), io::ErrorKind::ConnectionReset),
        }
    }
}

#[test]
fn hundreds_of_silent_strangers_block_no_peer_and_cost_no_threads() {
    let (gate, addr, arrivals) = gate();
    let mut silent: Vec<TcpStream> = Vec::new();
    for _ in 0..400 {
        silent.push(TcpStream::connect(addr).unwrap());
    }
    check_lets_in(addr, &arrivals);
    assert!(threads_called("handshake") <= 4, "the silent ones have none");
    // The peer notices the eviction.
    wait_for_end(&silent[0]);
    // A new peer is still accepted although all have the same address.
    check_lets_in(addr, &arrivals);
    drop(gate);
    wait_for_end(&silent[399]);
}

#[test]
fn handshakes_that_stop_in_the_middle_time_out_and_block_no_peer() {
    let (gate, addr, arrivals) = gate();
    let began = Instant::now();
    // Half a preamble; a whole preamble; an invalid first message with one byte missing.
    let mut whole = secure::Build::ours().preamble();
    let preamble = whole.len();
    whole.extend([0, 48]);
    whole.extend([1; 47]);
    let streams: Vec<TcpStream> = [5, preamble, whole.len()]
        .into_iter()
        .cycle()
        .take(90)
        .map(|num_bytes| {
            let mut stream = TcpStream::connect(addr).unwrap();
            stream.write_all(&whole[..num_bytes]).unwrap();
            stream
        })
        .collect();
    check_lets_in(addr, &arrivals);
    streams.iter().for_each(wait_for_end);
    assert!(SILENCE_MAX / 2 < began.elapsed(), "they had their time");
    assert!(gate.last_refusal().is_some_and(|it| it.contains("said nothing")));
}

#[test]
fn a_byte_now_and_then_does_not_hold_a_place() {
    let (_gate, addr, arrivals) = gate();
    let preamble = secure::Build::ours().preamble();
    let mut dribbling = TcpStream::connect(addr).unwrap();
    let began = Instant::now();
    let mut at = 0;
    while dribbling.write_all(&preamble[at..=at]).is_ok() {
        assert!(began.elapsed() < LONG, "it still holds its place");
        at = (at + 1).min(preamble.len() - 2);
        thread::sleep(Duration::from_millis(50));
        if at == preamble.len() - 2 {
            wait_for_end(&dribbling);
            break;
        }
    }
    check_lets_in(addr, &arrivals);
}

#[test]
fn garbage_is_refused_at_once_and_named() {
    let (gate, addr, arrivals) = gate();
    let mut browser = TcpStream::connect(addr).unwrap();
    browser.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    wait_for_end(&browser);
    assert!(gate.last_refusal().is_some_and(|it| it.contains("not a jackalope connection")));
    let thief = secure::dial(addr, &HintedKey::of_rank(0, Secret([1; 32])), LONG);
    assert!(matches!(thief, Err(FrameError::Ticket)), "{thief:?}");
    check_lets_in(addr, &arrivals);
    // The worker counts a refusal only after it has closed the connection.
    let began = Instant::now();
    while gate.num_refused() < 2 {
        assert!(began.elapsed() < LONG, "only {} were counted", gate.num_refused());
        thread::yield_now();
    }
}

// Other systems have only one loopback address.
#[cfg(target_os = "linux")]
#[test]
fn another_address_is_listened_on_later() {
    let (gate, addr, arrivals) = gate();
    let later = TcpListener::bind(("127.0.0.2", addr.port())).unwrap();
    let later_addr = later.local_addr().unwrap();
    gate.listen_also(later).unwrap();
    check_lets_in(later_addr, &arrivals);
    check_lets_in(addr, &arrivals);
}
