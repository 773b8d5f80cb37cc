//! Behaviour of a group when a rank does something else, does nothing, or leaves.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use jackalope_transport::{Dtype, Group, GroupConfig, Operation, TransportError};

use super::proxy::{Cable, forwarding};
use super::{PATIENCE, config, fails, listeners, noise, together};

/// Time for an operation that is expected to end at its deadline.
const SHORT: Duration = Duration::from_secs(1);

type Act = fn(&mut Group) -> Result<(), TransportError>;

fn sum_of(group: &mut Group, bytes: usize, dtype: Dtype) -> Result<(), TransportError> {
    group.all_sum(&mut vec![0; bytes], dtype)
}

#[test]
fn ranks_out_of_step_report_what_the_other_does() {
    let small: Act = |group| sum_of(group, 4096, Dtype::F32);
    let cases: [(Act, Act, &str); 8] = [
        (small, |group| sum_of(group, 4100, Dtype::F32), "all_sum #0 of 4100 bytes f32"),
        (small, |group| sum_of(group, 4096, Dtype::I32), "all_sum #0 of 4096 bytes i32"),
        (small, |group| sum_of(group, 8 << 20, Dtype::F32), "all_sum #0 of 8388608 bytes f32"),
        (small, Group::barrier, "barrier #0"),
        (Group::barrier, small, "all_sum #0 of 4096 bytes f32"),
        (
            small,
            |group| group.all_gather(&[0; 4096], &mut [0; 8192], Dtype::F32),
            "all_gather #0 of 4096 bytes",
        ),
        (
            |group| sum_of(group, 8 << 20, Dtype::Bf16),
            |group| sum_of(group, 16 << 20, Dtype::Bf16),
            "all_sum #0 of 16777216 bytes bf16",
        ),
        (
            |group| group.recv(&mut vec![0; 1 << 20], Dtype::U32, 1),
            |group| group.send(&vec![0; 1 << 19], Dtype::U32, 0),
            "send #0 of 524288 bytes u32",
        ),
    ];
    for (on_zero, on_one, said) in cases {
        let both_have_failed = Barrier::new(2);
        let results = together(
            2,
            |_| {},
            |mut group| {
                let act = if group.rank() == 0 { on_zero } else { on_one };
                let result = act(&mut group);
                // Neither leaves before the other has seen what it sent.
                both_have_failed.wait();
                result
            },
        );
        let error = fails(results[0].clone());
        assert!(matches!(error, TransportError::Desync { rank: 1, .. }), "{error}");
        assert!(error.to_string().contains(&format!("it sent {said}")), "{error}");
        // A sender may be done before the receiver reads its data.
        if let Err(error) = &results[1] {
            assert!(matches!(error, TransportError::Desync { rank: 0, .. }), "{error}");
        }
    }
}

#[test]
fn an_unexpected_message_is_not_taken_for_a_collective() {
    let results = together(
        2,
        |_| {},
        |mut group| {
            if group.rank() == 0 {
                // Rank 1's frame was on its way before it saw ours: the first barrier passes.
                group.send(&[1; 64], Dtype::U32, 1)?;
                group.barrier()?;
                group.barrier()
            } else {
                group.barrier()
            }
        },
    );
    let error = fails(results[1].clone());
    assert!(matches!(error, TransportError::Desync { rank: 0, .. }), "{error}");
    assert!(error.to_string().contains("we are in barrier #0"), "{error}");
    assert!(error.to_string().contains("it sent send #0 of 64 bytes u32"), "{error}");
    assert_eq!(fails(results[0].clone()).ranks(), [1]);
}

#[test]
fn a_rank_that_leaves_is_lost_in_every_operation_and_the_group_stays_poisoned() {
    let acts: [Act; 6] = [
        |group| sum_of(group, 4096, Dtype::F32),
        |group| sum_of(group, 32 << 20, Dtype::F32),
        |group| group.all_gather(&vec![0; 1 << 20], &mut vec![0; 2 << 20], Dtype::F32),
        |group| group.recv(&mut [0; 64], Dtype::F32, 1),
        |group| group.send(&vec![0; 32 << 20], Dtype::F32, 1),
        Group::barrier,
    ];
    for act in acts {
        together(
            2,
            |_| {},
            |mut group| {
                if group.rank() == 1 {
                    return;
                }
                let error = fails(act(&mut group));
                assert!(matches!(error, TransportError::PeerLost { rank: 1, .. }), "{error}");
                let later = fails(group.barrier());
                assert!(matches!(later, TransportError::Poisoned { epoch: 1, .. }), "{later}");
                assert_eq!(later.first_cause().to_string(), error.to_string());
                assert_eq!(later.ranks(), [1]);
            },
        );
    }
}

#[test]
fn a_silent_rank_is_named_at_the_deadline_and_the_others_are_not() {
    let acts: [Act; 4] = [
        |group| sum_of(group, 4096, Dtype::F32),
        |group| sum_of(group, 32 << 20, Dtype::F32),
        |group| group.all_gather(&vec![0; 1 << 20], &mut vec![0; 3 << 20], Dtype::F32),
        Group::barrier,
    ];
    for act in acts {
        let silence = Barrier::new(3);
        let errors = together(
            3,
            |config| config.op_timeout = SHORT,
            |mut group| {
                if group.rank() == 1 {
                    silence.wait();
                    return None;
                }
                let error = fails(act(&mut group));
                silence.wait();
                Some((error, group.stats()))
            },
        );
        let errors: Vec<_> = errors.into_iter().flatten().collect();
        // The rank whose deadline passes first blames rank 1 and reports that to the other.
        assert!(errors.iter().any(|(e, _)| matches!(e, TransportError::Deadline { .. })));
        for (error, stats) in errors {
            let blames_one = match &error {
                TransportError::Deadline { .. } => error.ranks() == [1],
                TransportError::PeerFailed { reason, .. } => {
                    reason.contains("no answer from rank 1 (") && !reason.contains("), rank")
                }
                _ => false,
            };
            assert!(blames_one, "{error}");
            // It slept and was woken by arriving data, instead of spinning.
            assert!(stats.sleeps < 2000, "{stats:?}");
        }
    }
}

#[test]
fn a_receiver_that_never_comes_ends_a_send_at_its_deadline() {
    let silence = Barrier::new(2);
    together(
        2,
        |config| config.op_timeout = SHORT,
        |mut group| {
            if group.rank() == 0 {
                let error = fails(group.send(&vec![0; 64 << 20], Dtype::F32, 1));
                assert!(matches!(error, TransportError::Deadline { .. }), "{error}");
                assert_eq!(error.ranks(), [1]);
            }
            silence.wait();
        },
    );
}

#[test]
fn a_rank_that_gives_up_sends_the_others_its_reason() {
    let both_have_failed = Barrier::new(2);
    together(
        2,
        |_| {},
        |mut group| {
            if group.rank() == 0 {
                group.interrupter().interrupt();
            }
            let error = fails(group.barrier());
            both_have_failed.wait();
            if group.rank() == 0 {
                assert!(matches!(error, TransportError::Interrupted { .. }), "{error}");
            } else {
                assert!(matches!(error, TransportError::PeerFailed { rank: 0, .. }), "{error}");
                assert!(error.to_string().contains("interrupted"), "{error}");
            }
        },
    );
}

#[test]
fn an_interrupt_ends_blocked_and_later_operations() {
    for (spin, bytes) in [(0, 4096), (0, 8 << 20), (50, 4096), (1_000_000, 4096)] {
        let silence = Barrier::new(2);
        together(
            2,
            |config| config.spin = Duration::from_micros(spin),
            |mut group| {
                if group.rank() == 0 {
                    let interrupter = group.interrupter();
                    let blocked = thread::scope(|scope| {
                        let blocked = scope.spawn(|| sum_of(&mut group, bytes, Dtype::F32));
                        interrupter.interrupt();
                        fails(blocked.join().unwrap())
                    });
                    let TransportError::Interrupted { moment } = &blocked else {
                        panic!("{blocked}");
                    };
                    assert!(moment.elapsed < PATIENCE, "the deadline ended it: {blocked}");
                    let later = fails(group.barrier());
                    let first = later.first_cause();
                    assert!(matches!(first, TransportError::Interrupted { .. }), "{later}");
                }
                silence.wait();
            },
        );
    }
}

#[test]
fn a_rank_that_waits_for_a_peer_reports_for_how_long() {
    for bytes in [4096, 8 << 20] {
        let is_seen = Barrier::new(2);
        together(
            2,
            |_| {},
            |mut group| {
                let interrupter = group.interrupter();
                assert_eq!(interrupter.waiting(), Duration::ZERO);
                if group.rank() == 1 {
                    is_seen.wait();
                    sum_of(&mut group, bytes, Dtype::F32).unwrap();
                    return;
                }
                let started = Instant::now();
                let (told, elapsed) = thread::scope(|scope| {
                    let waiting = scope.spawn(|| sum_of(&mut group, bytes, Dtype::F32));
                    let is_long = |told| Duration::from_millis(50) <= told;
                    while !is_long(interrupter.waiting()) && started.elapsed() < PATIENCE {
                        thread::sleep(Duration::from_millis(1));
                    }
                    let told = (interrupter.waiting(), started.elapsed());
                    is_seen.wait();
                    waiting.join().unwrap().unwrap();
                    told
                });
                assert!(Duration::from_millis(50) <= told, "it says {told:?}");
                assert!(told <= elapsed, "it says {told:?} after {elapsed:?}");
                assert_eq!(interrupter.waiting(), Duration::ZERO);
            },
        );
    }
}

#[test]
fn an_interrupt_ends_joining() {
    let (listeners, addrs) = listeners(2);
    for (rank, listener) in listeners.iter().enumerate() {
        let interrupter = jackalope_transport::Interrupter::new().unwrap();
        thread::scope(|scope| {
            let join = scope.spawn(|| {
                let config = config(rank, &addrs);
                fails(Group::join_interruptible(listener, config, interrupter.clone()))
            });
            interrupter.interrupt();
            let error = join.join().unwrap();
            let TransportError::Interrupted { moment } = &error else { panic!("{error}") };
            assert!(moment.elapsed < PATIENCE, "the deadline ended it: {error}");
        });
    }
}

/// Bytes that the dialling side sends before its first operation: hello, proof, and the frame
/// with which it joins.
const BEFORE_FIRST_BYTES: usize = 76 + 32 + 48 + 8;

/// Returns both ranks' results of a sum of `bytes` when rank 1's stream to rank 0 passes a faulty cable,
/// whose positions count from the first frame of the sum.
fn sum_over(bytes: usize, checksums: bool, cable: Cable) -> [Result<Vec<u8>, TransportError>; 2] {
    let (listeners, addrs) = listeners(2);
    let handshake_bytes = if checksums { BEFORE_FIRST_BYTES } else { BEFORE_FIRST_BYTES - 8 };
    let cable = Cable {
        flip_at: cable.flip_at.map(|at| handshake_bytes + at),
        flip_bits: 0x10,
        stutter_at: cable.stutter_at.map(|at| handshake_bytes + at),
    };
    let cable = forwarding(addrs[0], cable);
    thread::scope(|scope| {
        let join = |rank: usize| {
            let encrypt = vec![false; 2];
            let mut config = GroupConfig { checksums, encrypt, ..config(rank, &addrs) };
            if rank == 1 {
                config.peers[0] = cable;
            }
            let listener = &listeners[rank];
            scope.spawn(move || {
                let mut group = Group::join(listener, config).unwrap();
                let mut data = noise(bytes, rank as u64);
                group.all_sum(&mut data, Dtype::U32).map(|()| data)
            })
        };
        [join(0), join(1)].map(|rank| rank.join().unwrap())
    })
}

fn flipping(at: usize) -> Cable {
    Cable { flip_at: Some(at), ..Cable::default() }
}

#[test]
fn a_flipped_byte_is_caught_by_checksums() {
    const SMALL: usize = 4096;
    const LARGE: usize = 4 << 20;
    // In the payload of a small sum, in both parts of a large one, and in the hashes themselves.
    let cases = [
        (SMALL, 48),
        (SMALL, 48 + SMALL - 1),
        (SMALL, 48 + SMALL + 3),
        (LARGE, 48),
        (LARGE, 48 + LARGE / 2 - 1),
        (LARGE, 48 + LARGE / 2 + 1),
        (LARGE, 2 * 48 + 8 + LARGE / 2 + 12_345),
        (LARGE, 2 * 48 + 8 + LARGE - 1),
    ];
    for (bytes, flip_at) in cases {
        let [zero, one] = sum_over(bytes, true, flipping(flip_at));
        let error = fails(zero);
        let is_caught = matches!(error, TransportError::Checksum { rank: 1, .. });
        assert!(is_caught, "byte {flip_at} of {bytes}: {error}");
        // Rank 1 has the right sum or none.
        if let Ok(sum) = one {
            let right = sum_over(bytes, true, Cable::default())[1].clone().unwrap();
            assert!(sum == right, "byte {flip_at} of {bytes}");
        }
    }
}

#[test]
fn a_segment_whose_hash_is_late_and_wrong_reaches_no_rank_whole() {
    const BYTES: usize = 4 << 20;
    // Rank 1's part of rank 0's segment is all there, its hash is not.
    let hash_at = 48 + BYTES / 2;
    let cable = Cable { stutter_at: Some(hash_at), ..flipping(hash_at - 4) };
    let [zero, one] = sum_over(BYTES, true, cable);
    let error = fails(zero);
    assert!(matches!(error, TransportError::Checksum { rank: 1, .. }), "{error}");
    let error = fails(one);
    assert_eq!(error.ranks(), [0], "{error}");
}

#[test]
fn without_checksums_the_same_byte_passes_unseen() {
    let right = sum_over(4096, false, Cable::default())[0].clone().unwrap();
    let wrong = sum_over(4096, false, flipping(48 + 100))[0].clone().unwrap();
    assert_ne!(right, wrong);
}

#[test]
fn a_flipped_byte_in_a_header_is_an_error_with_or_without_checksums() {
    for checksums in [false, true] {
        for at in [0, 4, 5, 6, 7, 8, 16, 24, 32, 40, 47] {
            let [zero, _] = sum_over(4096, checksums, flipping(at));
            let error = fails(zero);
            assert_eq!(error.ranks(), [1], "byte {at}: {error}");
        }
    }
}

#[test]
fn an_error_says_where_and_when_it_happened() {
    let errors = together(
        2,
        |config| config.op_timeout = SHORT,
        |mut group| match group.rank() {
            0 => Some(fails(group.all_sum(&mut [0; 64], Dtype::F16))),
            _ => None,
        },
    );
    let Some(TransportError::PeerLost { rank, addr, moment, .. }) = errors[0].clone() else {
        panic!("rank 1 left: {errors:?}");
    };
    assert_eq!((rank, moment.rank, moment.bytes), (1, 0, 64));
    assert_eq!((moment.operation, moment.dtype), (Operation::AllSum, Dtype::F16));
    let text = errors[0].as_ref().unwrap().to_string();
    let start = "rank 0 in all_sum #0 (64 bytes f16), exchange, after ";
    assert!(text.starts_with(start), "{text}");
    assert!(text.contains(&format!("rank 1 ({addr}) is lost: ")), "{text}");
}
