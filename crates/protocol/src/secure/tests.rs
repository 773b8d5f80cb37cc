//! Real sockets, both sides, and a wire in between.

use std::net::TcpListener;
use std::thread;

use super::*;
use crate::{ToRank, frame};

const LONG: Duration = Duration::from_secs(20);
const OURS: Secret = Secret([7; 32]);

type Connected = Result<(Sender, Receiver), FrameError>;

/// Both ends of a connection whose sides differ in what is given.
fn connect(secrets: [Secret; 2], versions: [&str; 2]) -> [Connected; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let build = |version: &str| Build { version: version.to_owned(), ..Build::ours() };
    let builds = versions.map(build);
    let deadline = Instant::now() + LONG;
    thread::scope(|scope| {
        let dialled = scope.spawn(|| {
            let stream = TcpStream::connect(addr).unwrap();
            greet(stream, &secrets[0], deadline, Side::Dialling, &builds[0])
        });
        let stream = listener.accept().unwrap().0;
        let accepted = greet(stream, &secrets[1], deadline, Side::Accepting, &builds[1]);
        [dialled.join().unwrap(), accepted]
    })
}

fn pair() -> [(Sender, Receiver); 2] {
    connect([OURS; 2], ["1"; 2]).map(Result::unwrap)
}

#[test]
fn what_one_side_sends_the_other_receives_whatever_its_size() {
    let [(mut sender, _), (_, mut receiver)] = pair();
    for size in [0, 1, CHUNK_BYTES_MAX - TAG_BYTES, CHUNK_BYTES_MAX, 1_000_000] {
        let sent: Vec<u8> = (0..size).map(|idx| (idx * 31) as u8).collect();
        let mut received = vec![0; size];
        thread::scope(|scope| {
            scope.spawn(|| sender.write_all(&sent).unwrap());
            receiver.read_exact(&mut received).unwrap();
        });
        assert!(received == sent, "{size} bytes");
    }
}

#[test]
fn both_directions_are_independent() {
    let [(mut to_b, mut from_b), (mut to_a, mut from_a)] = pair();
    for epoch in 0..9 {
        frame::write(&mut to_b, &ToRank::Leave { epoch }).unwrap();
        frame::write(&mut to_a, &ToRank::Stop).unwrap();
    }
    for epoch in 0..9 {
        assert_eq!(frame::read::<ToRank>(&mut from_a).unwrap(), ToRank::Leave { epoch });
        assert_eq!(frame::read::<ToRank>(&mut from_b).unwrap(), ToRank::Stop);
    }
    drop((to_b, from_b));
    assert!(matches!(frame::read::<ToRank>(&mut from_a), Err(FrameError::Closed)));
}

#[test]
fn another_secret_is_told_to_both_sides() {
    for result in connect([OURS, Secret([8; 32])], ["1"; 2]) {
        assert!(matches!(result, Err(FrameError::Secret)), "{result:?}");
    }
}

#[test]
fn another_version_is_told_to_both_sides_with_both_names() {
    for result in connect([OURS; 2], ["1.2.3", "1.3.0"]) {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("1.2.3 (protocol") && text.contains("1.3.0 (protocol"), "{text}");
        assert!(text.contains("hint: bring every machine to one version"), "{text}");
    }
}

#[test]
fn strangers_are_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let says = |bytes: &'static [u8], timeout| {
        let mut stranger = TcpStream::connect(addr).unwrap();
        stranger.write_all(bytes).unwrap();
        let result = accept(listener.accept().unwrap().0, &OURS, timeout).unwrap_err();
        drop(stranger);
        result
    };
    assert!(matches!(says(b"GET / HTTP/1.1\r\n", LONG), FrameError::Foreign { .. }));
    assert!(matches!(says(b"JKLP\x02\x00\xff", LONG), FrameError::Oversized { bytes: 255 }));
    let silent = says(b"", Duration::from_millis(30));
    assert!(matches!(&silent, FrameError::Io(err) if err.kind() != io::ErrorKind::UnexpectedEof));
}

/// Lets the first chunk of `sender` through a wire that does `tamper` to its bytes.
fn tampered(tamper: impl Fn(Vec<u8>) -> Vec<u8>) -> Result<ToRank, FrameError> {
    let [(mut sender, _), (_, mut receiver)] = pair();
    // A wire of our own: the same keys, other sockets.
    let wire = TcpListener::bind("127.0.0.1:0").unwrap();
    let out = TcpStream::connect(wire.local_addr().unwrap()).unwrap();
    let mut tap = wire.accept().unwrap().0;
    let end = TcpStream::connect(wire.local_addr().unwrap()).unwrap();
    let mut into = wire.accept().unwrap().0;
    (sender.stream, receiver.stream) = (out, BufReader::new(end));
    frame::write(&mut sender, &ToRank::Leave { epoch: 5 }).unwrap();
    frame::write(&mut sender, &ToRank::Stop).unwrap();
    drop(sender);
    let mut bytes = Vec::new();
    tap.read_to_end(&mut bytes).unwrap();
    into.write_all(&tamper(bytes)).unwrap();
    drop(into);
    frame::read::<ToRank>(&mut receiver)?;
    frame::read(&mut receiver)
}

fn is_forged(result: &Result<ToRank, FrameError>) -> bool {
    matches!(result, Err(FrameError::Forged))
}

#[test]
fn a_changed_repeated_or_missing_frame_ends_the_connection() {
    assert_eq!(tampered(|bytes| bytes).unwrap(), ToRank::Stop);
    assert!(is_forged(&tampered(|mut bytes| {
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        bytes
    })));
    // The first frame again in place of the second, and the second in place of the first.
    let first = |bytes: &[u8]| 2 + usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    assert!(is_forged(&tampered(|bytes| bytes[..first(&bytes)].repeat(2))));
    assert!(is_forged(&tampered(|bytes| bytes[first(&bytes)..].to_vec())));
}

#[test]
fn nothing_of_a_message_can_be_read_on_the_wire() {
    let [(mut sender, _), (_, receiver)] = pair();
    sender.write_all(b"the secret of the cluster").unwrap();
    drop(sender);
    let mut bytes = vec![0; 27 + TAG_BYTES];
    let mut stream = receiver.stream();
    stream.read_exact(&mut bytes).unwrap();
    assert!(!bytes.windows(6).any(|window| window == b"secret"));
}
