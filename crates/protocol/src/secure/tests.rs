//! Tests with real sockets, both sides, and a wire in between.

use std::net::TcpListener;
use std::thread;

use super::*;
use crate::{ToRank, frame};

const LONG: Duration = Duration::from_secs(20);
const OURS: Secret = Secret([7; 32]);

type Connected = Result<(Sender, Receiver), FrameError>;

fn call(stream: TcpStream) -> Call {
    Call::new(stream, Instant::now() + LONG)
}

/// Accepts ranks by their tickets.
struct Tickets(Vec<Secret>);

impl PeerPolicy for Tickets {
    fn key_of(&self, hint: &[u8]) -> Option<Secret> {
        self.0.get(rank_of_hint(hint)? as usize).copied()
    }
}

/// A machine that accepts the machines it trusts.
struct Machine {
    identity: Identity,
    secret: Secret,
    trusted: Vec<PublicKey>,
}

impl Machine {
    fn new(trusted: &[&Machine]) -> Machine {
        let trusted = trusted.iter().map(|it| it.identity.public()).collect();
        Machine { identity: Identity::generate("mac 1\n").unwrap(), secret: OURS, trusted }
    }
}

impl PeerPolicy for Machine {
    fn key_of(&self, _: &[u8]) -> Option<Secret> {
        None
    }

    fn own(&self) -> Option<(&Identity, &Secret)> {
        Some((&self.identity, &self.secret))
    }

    fn trusts(&self, peer: &Peer) -> bool {
        self.trusted.contains(&peer.key)
    }
}

/// Runs both sides of a handshake over one connection; returns both results.
fn meet<T: Send>(
    dial: impl FnOnce(TcpStream) -> T + Send,
    policy: &(dyn PeerPolicy + Sync),
    build: &Build,
) -> (T, Result<Accepted, FrameError>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let dialled = scope.spawn(move || dial(TcpStream::connect(addr).unwrap()));
        let stream = listener.accept().unwrap().0;
        let accepted = greet(call(stream), &Side::Accepting(policy), build);
        (dialled.join().unwrap(), accepted)
    })
}

/// Connects two sides with the given secrets and versions.
fn connect(secrets: [Secret; 2], versions: [&str; 2]) -> [Connected; 2] {
    let build = |version: &str| Build { version: version.to_owned(), ..Build::ours() };
    let builds = versions.map(build);
    let key = HintedKey::of_rank(0, secrets[0]);
    let dial = |stream| {
        let side = Side::Dialling(&Approach::Key(&key));
        greet(call(stream), &side, &builds[0])
    };
    let (dialled, accepted) = meet(dial, &Tickets(vec![secrets[1]]), &builds[1]);
    [dialled, accepted].map(|it| it.map(|met| (met.sender, met.receiver)))
}

fn pair() -> [(Sender, Receiver); 2] {
    connect([OURS; 2], ["1"; 2]).map(Result::unwrap)
}

/// Runs a handshake between two machines.
fn introduce(
    from: &Machine,
    to: &Machine,
    check: impl Fn(&PublicKey) -> Result<(), FrameError> + Sync,
) -> [Result<Accepted, FrameError>; 2] {
    let dial = |stream| {
        let ours = Introduction { secret: &from.secret, identity: &from.identity, check: &check };
        let side = Side::Dialling(&Approach::Machine(ours));
        greet(call(stream), &side, &Build::ours())
    };
    let (dialled, accepted) = meet(dial, to, &Build::ours());
    [dialled, accepted]
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
fn another_ticket_is_reported_to_both_sides() {
    for result in connect([OURS, Secret([8; 32])], ["1"; 2]) {
        assert!(matches!(result, Err(FrameError::Ticket)), "{result:?}");
    }
}

#[test]
fn another_version_is_reported_to_both_sides_with_both_names() {
    for result in connect([OURS; 2], ["1.2.3", "1.3.0"]) {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("1.2.3 (protocol") && text.contains("1.3.0 (protocol"), "{text}");
        assert!(text.contains("hint: bring every machine to one version"), "{text}");
    }
}

#[test]
fn strangers_are_distinguished() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let says = |bytes: &'static [u8], timeout| {
        let mut stranger = TcpStream::connect(addr).unwrap();
        stranger.write_all(bytes).unwrap();
        let tickets = Tickets(vec![OURS]);
        let result = accept(listener.accept().unwrap().0, &tickets, timeout).unwrap_err();
        drop(stranger);
        result
    };
    assert!(matches!(says(b"GET / HTTP/1.1\r\n", LONG), FrameError::Foreign { .. }));
    assert!(matches!(says(b"JKLP\x02\x00\xff", LONG), FrameError::Oversized { bytes: 255 }));
    let silent = says(b"", Duration::from_millis(30));
    assert!(matches!(&silent, FrameError::Io(err) if err.kind() != io::ErrorKind::UnexpectedEof));
}

/// Sends the first chunk of `sender` through a wire that applies `tamper` to its bytes.
fn tampered(tamper: impl Fn(Vec<u8>) -> Vec<u8>) -> Result<ToRank, FrameError> {
    let [(mut sender, _), (_, mut receiver)] = pair();
    // A separate wire: the same keys, other sockets.
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
    // The first frame repeated in place of the second, and the second in place of the first.
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

#[test]
fn a_ticket_admits_one_rank_and_nothing_else() {
    let tickets = Tickets(vec![Secret([1; 32]), Secret([2; 32])]);
    let proved = |hint: &[u8], ticket: u8| {
        let key = HintedKey { hint: hint.to_vec(), secret: Secret([ticket; 32]) };
        let dial = move |stream| {
            let side = Side::Dialling(&Approach::Key(&key));
            greet(call(stream), &side, &Build::ours()).map(|_| ())
        };
        let (dialled, accepted) = meet(dial, &tickets, &Build::ours());
        assert_eq!(dialled.is_ok(), accepted.is_ok());
        accepted.map(|met| met.proof)
    };
    let of_rank = |rank: u32| rank.to_le_bytes();
    assert_eq!(proved(&of_rank(1), 2).unwrap(), Proof::Key(of_rank(1).to_vec()));
    // Rank 1's ticket used for rank 0, for a rank that does not exist, and with another hint.
    for (hint, ticket) in
        [(&of_rank(0)[..], 2), (&of_rank(2)[..], 2), (b"x", 2), (&[0; HINT_BYTES_MAX], 2)]
    {
        assert!(matches!(proved(hint, ticket), Err(FrameError::Ticket)), "{hint:?}");
    }
    // Where only ranks are accepted, no machine is, whatever keys it holds.
    let machine = Machine::new(&[]);
    let dial = |stream| {
        let ours = Introduction {
            secret: &OURS,
            identity: &machine.identity,
            check: &|_: &PublicKey| Ok(()),
        };
        let side = Side::Dialling(&Approach::Machine(ours));
        greet(call(stream), &side, &Build::ours()).map(|_| ())
    };
    let (dialled, accepted) = meet(dial, &tickets, &Build::ours());
    assert!(matches!(dialled, Err(FrameError::Secret)), "{dialled:?}");
    assert!(matches!(accepted, Err(FrameError::Secret)), "{accepted:?}");
}

#[test]
fn machines_prove_their_keys_to_each_other() {
    let client = Machine::new(&[]);
    let server = Machine::new(&[&client]);
    let [dialled, accepted] = introduce(&client, &server, |_| Ok(()));
    let (mut dialled, mut accepted) = (dialled.unwrap(), accepted.unwrap());
    let Proof::Machine(seen) = &dialled.proof else { panic!("{dialled:?}") };
    assert_eq!(seen.key, server.identity.public());
    let client_peer = Peer { key: client.identity.public(), name: "mac1".to_owned() };
    assert_eq!(accepted.proof, Proof::Machine(client_peer));
    for epoch in 0..3 {
        frame::write(&mut dialled.sender, &ToRank::Leave { epoch }).unwrap();
        frame::write(&mut accepted.sender, &ToRank::Leave { epoch }).unwrap();
        let leave = ToRank::Leave { epoch };
        assert_eq!(frame::read::<ToRank>(&mut accepted.receiver).unwrap(), leave);
        assert_eq!(frame::read::<ToRank>(&mut dialled.receiver).unwrap(), leave);
    }
}

#[test]
fn the_secret_alone_admits_no_machine() {
    let (stranger, client) = (Machine::new(&[]), Machine::new(&[]));
    let server = Machine::new(&[&client]);
    let [dialled, accepted] = introduce(&stranger, &server, |_| Ok(()));
    let ours = stranger.identity.public();
    assert!(matches!(dialled, Err(FrameError::Untrusted { ours: it }) if it == ours));
    assert!(matches!(accepted, Err(FrameError::Refused { theirs: it }) if it == ours));
    // A trusted key without the secret is not accepted either.
    let outsider = Machine { secret: Secret([8; 32]), ..client };
    for result in introduce(&outsider, &server, |_| Ok(())) {
        assert!(matches!(result, Err(FrameError::Secret)), "{result:?}");
    }
}

#[test]
fn a_machine_with_another_key_than_expected_does_not_learn_ours() {
    let client = Machine::new(&[]);
    let server = Machine::new(&[&client]);
    let expected = client.identity.public();
    let [dialled, accepted] = introduce(&client, &server, |found| {
        let pinned = Box::new(expected);
        Err(FrameError::ChangedKey { host: "mac2".to_owned(), found: *found, pinned })
    });
    let text = dialled.unwrap_err().to_string();
    assert!(text.contains("the key of mac2 has changed"), "{text}");
    assert!(text.contains(&server.identity.public().to_string()), "{text}");
    assert!(text.contains("hint: ") && text.contains("`jackalope trust accept mac2`"), "{text}");
    // The handshake ended before our key was sent.
    assert!(matches!(accepted, Err(FrameError::Secret)), "{accepted:?}");
}

#[test]
fn a_recorded_handshake_admits_no_peer() {
    let client = Machine::new(&[]);
    let server = Machine::new(&[&client]);
    // A proxy that records what the client sends.
    let (wire, listener) = (TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0"));
    let (wire, listener) = (wire.unwrap(), listener.unwrap());
    let addrs = [&wire, &listener].map(|it| it.local_addr().unwrap());
    let said = thread::scope(|scope| {
        scope.spawn(|| {
            let ours = Introduction {
                secret: &client.secret,
                identity: &client.identity,
                check: &|_: &PublicKey| Ok(()),
            };
            dial_machine(addrs[0], ours, LONG).unwrap();
        });
        let accepted = scope.spawn(|| {
            accept(listener.accept().unwrap().0, &server, LONG).unwrap();
        });
        let mut from = wire.accept().unwrap().0;
        let to = TcpStream::connect(addrs[1]).unwrap();
        let (mut back_from, mut back_to) = (to.try_clone().unwrap(), from.try_clone().unwrap());
        scope.spawn(move || io::copy(&mut back_from, &mut back_to).ok());
        let mut said = Vec::new();
        let mut bytes = [0; 512];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            said.extend(&bytes[..length]);
            if (&to).write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        to.shutdown(std::net::Shutdown::Both).ok();
        accepted.join().unwrap();
        said
    });
    let replay = |mut stream: TcpStream| {
        stream.write_all(&said).unwrap();
        // An accepting side that takes the replay for a peer keeps the connection open.
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).ok();
    };
    let ((), accepted) = meet(replay, &server, &Build::ours());
    assert!(matches!(accepted, Err(FrameError::Secret)), "{accepted:?}");
}
