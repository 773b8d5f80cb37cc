//! Tests with an attacker between two ranks who reads all traffic and modifies it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use jackalope_transport::{Dtype, Group, GroupConfig, TransportError};

use super::{PATIENCE, config, fails, listeners, noise};

const HELLO_BYTES: usize = 76;
const REPLY_BYTES: usize = 92;
const PROOF_BYTES: usize = 32;
/// Offset of the settings in a hello.
const SETTINGS_AT: usize = 40;

const HEADER_BYTES: usize = 48;
/// Bytes that a record adds to its frame: the sealed length with its tag, and the payload's tag.
const RECORD_EXTRA_BYTES: usize = 4 + 16 + 16;
/// The first record of a connection, which joins the group.
const JOIN_BYTES: usize = HEADER_BYTES + RECORD_EXTRA_BYTES;
/// Size of the payload of each sum, and of its record.
const SUM_BYTES: usize = 4096;
const SUM_RECORD_BYTES: usize = HEADER_BYTES + SUM_BYTES + RECORD_EXTRA_BYTES;
const NUM_SUMS: u64 = 4;

/// Time for a join that is expected to fail.
const SHORT: Duration = Duration::from_secs(1);

/// The modification that the man in the middle makes.
#[derive(Debug, Clone, PartialEq)]
enum Attack {
    None,
    /// Changes a bit of the second sum's record.
    Flip {
        bit: usize,
    },
    /// Sends the second sum's record twice.
    Replay,
    /// Sends the third record before the second.
    Reorder,
    /// Drops the second record.
    Omit,
    /// Drops the last byte of the second record.
    Truncate,
    /// Closes the connection within the second record.
    Cut,
    /// Inserts these bytes before the second record.
    Inject(Vec<u8>),
    /// Sends data of the accepting rank back to it instead of the second record.
    Reflect,
    /// Sends this record, from another connection, instead of the second.
    Splice(Vec<u8>),
}

/// The recorded bytes of both directions.
#[derive(Debug, Default)]
struct Seen {
    dialled: Vec<u8>,
    accepted: Vec<u8>,
}

/// The man in the middle: forwards one connection to `target`.
struct Middle {
    addr: SocketAddr,
    seen: Receiver<Seen>,
}

impl Middle {
    fn before(target: SocketAddr, attack: Attack) -> Middle {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (report, seen) = channel();
        thread::spawn(move || {
            let (dialler, _) = listener.accept().unwrap();
            let acceptor = TcpStream::connect(target).unwrap();
            acceptor.set_nodelay(true).unwrap();
            let (back_from, back_to) =
                (acceptor.try_clone().unwrap(), dialler.try_clone().unwrap());
            let (copy, copies) = channel();
            let back = thread::spawn(move || carry_back(back_from, back_to, &copy));
            let dialled = carry(dialler, acceptor, &attack, &copies);
            let accepted = back.join().unwrap();
            let _ = report.send(Seen { dialled, accepted });
        });
        Middle { addr, seen }
    }

    /// The recorded bytes, once both ranks have closed the connection.
    fn seen(&self) -> Seen {
        self.seen.recv_timeout(PATIENCE).unwrap()
    }
}

/// Forwards data from the accepting rank, and copies it for the other direction.
fn carry_back(mut from: TcpStream, mut to: TcpStream, copy: &Sender<Vec<u8>>) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        all.extend_from_slice(&buffer[..got]);
        let _ = copy.send(buffer[..got].to_vec());
        if to.write_all(&buffer[..got]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    all
}

/// Forwards data from the dialling rank, with the attack. Returns the original data.
fn carry(
    mut from: TcpStream,
    mut to: TcpStream,
    attack: &Attack,
    copies: &Receiver<Vec<u8>>,
) -> Vec<u8> {
    let mut all = Vec::new();
    let mut kept = Vec::new();
    let goes_at_once = |idx: usize| idx == 0 || *attack == Attack::None;
    let sizes = [HELLO_BYTES + PROOF_BYTES, JOIN_BYTES];
    for (idx, size) in sizes.into_iter().chain(std::iter::repeat(SUM_RECORD_BYTES)).enumerate() {
        let mut piece = Vec::new();
        // Forwarded in pieces, because the proof is sent only after the hello has been answered.
        while piece.len() < size {
            let mut part = vec![0; size - piece.len()];
            let got = from.read(&mut part).unwrap_or(0);
            piece.extend_from_slice(&part[..got]);
            if got == 0 || (goes_at_once(idx) && to.write_all(&part[..got]).is_err()) {
                break;
            }
        }
        all.extend_from_slice(&piece);
        let is_end = piece.len() < size;
        let out = match (idx, is_end) {
            _ if goes_at_once(idx) => Vec::new(),
            (3, false) => strike(attack, piece, &mut kept, copies),
            _ => [piece, std::mem::take(&mut kept)].concat(),
        };
        let is_cut = idx == 3 && *attack == Attack::Cut;
        if to.write_all(&out).is_err() || is_end || is_cut {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.read_to_end(&mut all);
    all
}

/// Returns the bytes to send instead of `record`; `kept` is sent after the next record.
fn strike(
    attack: &Attack,
    mut record: Vec<u8>,
    kept: &mut Vec<u8>,
    copies: &Receiver<Vec<u8>>,
) -> Vec<u8> {
    match attack {
        Attack::None => record,
        Attack::Flip { bit } => {
            record[bit / 8] ^= 1 << (bit % 8);
            record
        }
        Attack::Replay => [record.clone(), record].concat(),
        Attack::Reorder => {
            *kept = record;
            Vec::new()
        }
        Attack::Omit => Vec::new(),
        Attack::Truncate => {
            record.pop();
            record
        }
        Attack::Cut => {
            record.truncate(SUM_RECORD_BYTES / 2);
            record
        }
        Attack::Inject(bytes) => [bytes.clone(), record].concat(),
        Attack::Reflect => {
            // The accepting rank sends its second record without waiting for ours.
            let mut back: Vec<u8> = Vec::new();
            let start = REPLY_BYTES + JOIN_BYTES + SUM_RECORD_BYTES;
            while back.len() < start + SUM_RECORD_BYTES {
                back.extend(copies.recv_timeout(PATIENCE).unwrap());
            }
            back[start..start + SUM_RECORD_BYTES].to_vec()
        }
        Attack::Splice(other) => other.clone(),
    }
}

type Sums = Vec<Result<Vec<u8>, TransportError>>;

/// Results of several sums on both ranks while rank 1's connection to rank 0 is under attack: all
/// sums until the first error.
fn sums_under(attack: Attack, change: impl Fn(&mut GroupConfig) + Sync) -> ([Sums; 2], Seen) {
    let (listeners, addrs) = listeners(2);
    let middle = Middle::before(addrs[0], attack);
    let outcomes = thread::scope(|scope| {
        let join = |rank: usize| {
            let mut config = config(rank, &addrs);
            if rank == 1 {
                config.peers[0] = middle.addr;
            }
            change(&mut config);
            let listener = &listeners[rank];
            scope.spawn(move || {
                let mut group = Group::join(listener, config).unwrap();
                let mut sums = Sums::new();
                for idx in 0..NUM_SUMS {
                    let mut data = noise(SUM_BYTES, 2 * idx + rank as u64);
                    let sum = group.all_sum(&mut data, Dtype::U32).map(|()| data);
                    sums.push(sum);
                    if sums.last().is_some_and(Result::is_err) {
                        break;
                    }
                }
                sums
            })
        };
        [join(0), join(1)].map(|rank| rank.join().unwrap())
    });
    (outcomes, middle.seen())
}

/// The expected sum, computed directly.
fn right(idx: u64) -> Vec<u8> {
    let [zero, one] = [0, 1].map(|rank| noise(SUM_BYTES, 2 * idx + rank));
    let words = zero.as_chunks::<4>().0.iter().zip(one.as_chunks::<4>().0);
    let add = |(a, b): (&[u8; 4], &[u8; 4])| {
        u32::from_le_bytes(*a).wrapping_add(u32::from_le_bytes(*b)).to_le_bytes()
    };
    words.flat_map(add).collect()
}

/// Checks that every returned sum is correct and that rank 0 detected the attack.
#[track_caller]
fn is_found(attack: &Attack, [zero, one]: &[Sums; 2]) -> TransportError {
    for (idx, sum) in zero.iter().enumerate().chain(one.iter().enumerate()) {
        if let Ok(sum) = sum {
            assert!(*sum == right(idx as u64), "{attack:?}: a wrong sum {idx}");
        }
    }
    assert!(zero.len() < NUM_SUMS as usize || zero[NUM_SUMS as usize - 1].is_err());
    let error = fails(zero.last().unwrap().clone());
    assert_eq!(error.ranks(), [1], "{attack:?}: {error}");
    // The other rank notices that its peer is gone or receives the reason, unless it had completed.
    if let Some(Err(error)) = one.last() {
        assert_eq!(error.ranks(), [0], "{attack:?}: {error}");
    }
    error
}

#[test]
fn without_an_attack_the_middle_changes_nothing() {
    let ([zero, one], _) = sums_under(Attack::None, |_| {});
    for sums in [zero, one] {
        assert_eq!(sums.len(), NUM_SUMS as usize);
        for (idx, sum) in sums.into_iter().enumerate() {
            assert!(sum.unwrap() == right(idx as u64));
        }
    }
}

#[test]
fn no_attack_on_the_bytes_of_a_connection_gives_a_wrong_sum() {
    let (_, earlier) = sums_under(Attack::None, |_| {});
    let second = HELLO_BYTES + PROOF_BYTES + JOIN_BYTES + SUM_RECORD_BYTES;
    let old_record = earlier.dialled[second..second + SUM_RECORD_BYTES].to_vec();
    let last_bit = 8 * SUM_RECORD_BYTES - 1;
    // Bits in the sealed length, its tag, the header, the payload and the payload's tag.
    let flips = [0, 17, 31, 32, 8 * 20, 8 * 25, 8 * 70, 8 * 2000 + 3, last_bit - 128, last_bit];
    let attacks = flips.map(|bit| Attack::Flip { bit }).into_iter().chain([
        Attack::Replay,
        Attack::Reorder,
        Attack::Omit,
        Attack::Truncate,
        Attack::Inject(vec![0]),
        Attack::Inject(noise(SUM_RECORD_BYTES, 99)),
        Attack::Reflect,
        Attack::Splice(old_record),
    ]);
    for attack in attacks {
        let (outcomes, _) = sums_under(attack.clone(), |_| {});
        let error = is_found(&attack, &outcomes);
        assert!(matches!(error, TransportError::Forged { .. }), "{attack:?}: {error}");
        let said = ") were changed on the way or are not from it";
        assert!(error.to_string().contains("bytes from rank 1 ("), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn a_record_of_an_older_epoch_does_not_open() {
    let (_, earlier) = sums_under(Attack::None, |_| {});
    let second = HELLO_BYTES + PROOF_BYTES + JOIN_BYTES + SUM_RECORD_BYTES;
    let record = earlier.dialled[second..second + SUM_RECORD_BYTES].to_vec();
    let attack = Attack::Splice(record);
    let (outcomes, _) = sums_under(attack.clone(), |config| config.epoch = 2);
    let error = is_found(&attack, &outcomes);
    assert!(matches!(error, TransportError::Forged { .. }), "{error}");
}

#[test]
fn a_connection_that_ends_within_a_record_is_lost() {
    let (outcomes, _) = sums_under(Attack::Cut, |_| {});
    let error = is_found(&Attack::Cut, &outcomes);
    assert!(matches!(error, TransportError::PeerLost { .. }), "{error}");
}

#[test]
fn whoever_listens_finds_nothing_that_was_summed() {
    // Every sum starts with known bytes, like the embedding of a known token.
    const NEEDLE_BYTES: usize = 8;
    let secrets: Vec<Vec<u8>> = (0..2 * NUM_SUMS).map(|seed| noise(SUM_BYTES, seed)).collect();
    let found = |seen: &Seen| -> usize {
        let wire = [seen.dialled.as_slice(), &seen.accepted];
        let known: std::collections::HashSet<&[u8]> =
            secrets.iter().flat_map(|secret| secret.chunks(NEEDLE_BYTES)).collect();
        let windows = wire.into_iter().flat_map(|bytes| bytes.windows(NEEDLE_BYTES));
        windows.filter(|window| known.contains(window)).count()
    };
    let (_, sealed) = sums_under(Attack::None, |_| {});
    assert_eq!(found(&sealed), 0);
    assert!(SUM_RECORD_BYTES * NUM_SUMS as usize <= sealed.dialled.len());
    // The same search finds everything if nothing is encrypted.
    let (_, clear) = sums_under(Attack::None, |config| config.encrypt = vec![false; 2]);
    assert_eq!(found(&clear), secrets.len() * SUM_BYTES / NEEDLE_BYTES);
}

#[test]
fn zeros_look_like_noise_on_the_wire() {
    let (listeners, addrs) = listeners(2);
    let middle = Middle::before(addrs[0], Attack::None);
    thread::scope(|scope| {
        for (rank, listener) in listeners.iter().enumerate() {
            let mut config = config(rank, &addrs);
            if rank == 1 {
                config.peers[0] = middle.addr;
            }
            scope.spawn(move || {
                let mut group = Group::join(listener, config).unwrap();
                group.all_sum(&mut vec![0; 1 << 20], Dtype::F32).unwrap();
                group.barrier().unwrap();
            });
        }
    });
    let seen = middle.seen();
    for bytes in [&seen.dialled[HELLO_BYTES + PROOF_BYTES..], &seen.accepted[REPLY_BYTES..]] {
        let mut counts = [0f64; 256];
        bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1.0);
        let expected = bytes.len() as f64 / 256.0;
        let chi_square: f64 =
            counts.iter().map(|count| (count - expected).powi(2) / expected).sum();
        // 255 degrees of freedom: mean 255, standard deviation 22.6; zeros in clear give 10^8.
        assert!(chi_square < 500.0, "chi square {chi_square} of {} bytes", bytes.len());
    }
}

#[test]
fn two_sockets_that_are_swapped_are_found() {
    let (listeners, addrs) = listeners(2);
    let addr = swapping(addrs[0]);
    let errors = thread::scope(|scope| {
        let join = |rank: usize| {
            let mut config = GroupConfig { sockets_per_peer: 2, ..config(rank, &addrs) };
            if rank == 1 {
                config.peers[0] = addr;
            }
            let listener = &listeners[rank];
            scope.spawn(move || {
                let mut group = Group::join(listener, config).unwrap();
                group.all_sum(&mut noise(4 << 20, rank as u64), Dtype::U32)
            })
        };
        [join(0), join(1)].map(|rank| rank.join().unwrap())
    });
    let [zero, one] = errors.map(fails);
    assert!(matches!(zero, TransportError::Forged { rank: 1, .. }), "{zero}");
    assert_eq!(one.ranks(), [0], "{one}");
}

/// Forwards two connections to `target`; from the first sum on, data of each is forwarded to the
/// other.
fn swapping(target: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut ends = Vec::new();
        for _ in 0..2 {
            let (mut dialler, _) = listener.accept().unwrap();
            let mut acceptor = TcpStream::connect(target).unwrap();
            acceptor.set_nodelay(true).unwrap();
            let (from, to) = (acceptor.try_clone().unwrap(), dialler.try_clone().unwrap());
            thread::spawn(move || carry_back(from, to, &channel().0));
            // The ranks join over their first socket.
            let mut hello = [0; HELLO_BYTES];
            dialler.read_exact(&mut hello).unwrap();
            acceptor.write_all(&hello).unwrap();
            let is_first = hello[32..36] == [0; 4];
            ends.push((dialler, acceptor, if is_first { JOIN_BYTES } else { 0 }));
        }
        for (dialler, acceptor, join_bytes) in &mut ends {
            let mut before = vec![0; PROOF_BYTES + *join_bytes];
            dialler.read_exact(&mut before).unwrap();
            acceptor.write_all(&before).unwrap();
        }
        let (one, other) = (ends.remove(0), ends.remove(0));
        thread::spawn(move || carry_back(one.0, other.1, &channel().0));
        carry_back(other.0, one.1, &channel().0);
    });
    addr
}

/// Results of joining while bits of the hello's settings are flipped, for the given `encrypt`
/// settings.
fn joins_with(flipped: u32, encrypt: [bool; 2]) -> [Result<(), TransportError>; 2] {
    let (listeners, addrs) = listeners(2);
    let cable = super::proxy::Cable {
        flip_at: Some(SETTINGS_AT),
        flip_bits: flipped as u8,
        ..super::proxy::Cable::default()
    };
    let addr = super::proxy::forwarding(addrs[0], cable);
    thread::scope(|scope| {
        let join = |rank: usize| {
            let mut config = GroupConfig { join_timeout: SHORT, ..config(rank, &addrs) };
            config.encrypt = vec![encrypt[rank]; 2];
            if rank == 1 {
                config.peers[0] = addr;
            }
            let listener = &listeners[rank];
            scope.spawn(move || Group::join(listener, config).map(drop))
        };
        [join(0), join(1)].map(|rank| rank.join().unwrap())
    })
}

#[test]
fn two_ranks_cannot_be_downgraded_to_weaker_or_no_encryption() {
    const ENCRYPT: u32 = 2;
    const AES: u32 = 4;
    let cases = [
        // Both encrypt; the accepting rank is made to believe that the other does not.
        (ENCRYPT, [true, true]),
        // The ranks are configured differently; the attack hides that.
        (ENCRYPT, [false, true]),
        (ENCRYPT, [true, false]),
        // Makes the accepting rank select another cipher.
        (AES, [true, true]),
    ];
    for (flipped, encrypt) in cases {
        let [zero, one] = joins_with(flipped, encrypt).map(fails);
        assert!(matches!(zero, TransportError::JoinTimeout { .. }), "{zero}");
        let said = "it has another key, or the handshake was changed on the way";
        assert!(one.to_string().contains(said), "{flipped} {encrypt:?}: {one}");
        assert_eq!((zero.ranks(), one.ranks()), (vec![1], vec![0]));
    }
}
