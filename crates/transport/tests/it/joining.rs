//! Forming groups: any order, unauthenticated peers, wrong keys, old epochs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use jackalope_transport::{
    AbsenceReason, Dtype, Group, GroupConfig, Interrupter, Listener, TransportError,
};

use super::{KEY, config, fails, listeners, together};

/// Time for a join that is expected to fail.
const SHORT: Duration = Duration::from_secs(1);

fn sums_up(group: &mut Group) {
    let mut ones = 1u32.to_le_bytes();
    group.all_sum(&mut ones, Dtype::U32).unwrap();
    assert_eq!(ones, (group.size() as u32).to_le_bytes());
}

/// Returns once the rank that listens on `addr` is joining: only then does it reject
/// unauthenticated peers.
fn wait_until_joining(addr: SocketAddr) {
    let mut stranger = TcpStream::connect(addr).unwrap();
    stranger.write_all(&[0x55; 200]).unwrap();
    // The end of the stream or a reset, but not silence.
    let _ = stranger.read(&mut [0; 1]);
}

#[test]
fn ranks_may_come_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (listeners, addrs) = listeners(3);
        thread::scope(|scope| {
            for rank in order {
                let (listener, config) = (&listeners[rank], config(rank, &addrs));
                scope.spawn(move || sums_up(&mut Group::join(listener, config).unwrap()));
                if rank != order[2] {
                    wait_until_joining(addrs[rank]);
                }
            }
        });
    }
}

#[test]
fn a_rank_that_does_not_listen_yet_is_dialled_until_it_does() {
    let first = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = first.local_addr().unwrap();
    let own = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addrs = [addr, own.local_addr()];
    thread::scope(|scope| {
        let dialling = scope.spawn(|| sums_up(&mut Group::join(&own, config(1, &addrs)).unwrap()));
        // Rank 1 has connected; then the listener closes, and rank 0 listens there.
        drop(first.accept().unwrap());
        drop(first);
        let listener = Listener::bind(addr).unwrap();
        sums_up(&mut Group::join(&listener, config(0, &addrs)).unwrap());
        dialling.join().unwrap();
    });
}

#[test]
fn strangers_do_no_harm() {
    let (listeners, addrs) = listeners(2);
    let mut strangers: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(addrs[0]).unwrap()).collect();
    for (idx, stranger) in strangers.iter_mut().enumerate() {
        match idx % 5 {
            0 => stranger.write_all(&super::noise(5000, idx as u64)).unwrap(),
            1 => stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap(),
            2 => stranger.write_all(b"JKLPDIAL").unwrap(),
            3 => stranger.shutdown(std::net::Shutdown::Both).unwrap(),
            _ => {}
        }
    }
    thread::scope(|scope| {
        for (rank, listener) in listeners.iter().enumerate() {
            let config = config(rank, &addrs);
            scope.spawn(move || sums_up(&mut Group::join(listener, config).unwrap()));
        }
    });
}

#[test]
fn a_missing_rank_is_named() {
    let (listeners, addrs) = listeners(3);
    let absent = thread::scope(|scope| {
        let joins: Vec<_> = (0..2)
            .map(|rank| {
                let mut config = config(rank, &addrs);
                config.join_timeout = SHORT;
                let listener = &listeners[rank];
                scope.spawn(move || fails(Group::join(listener, config)))
            })
            .collect();
        joins.into_iter().map(|join| join.join().unwrap()).collect::<Vec<_>>()
    });
    // One of the two may have left first, which the other then sees as well.
    for (rank, error) in absent.iter().enumerate() {
        assert!(matches!(error, TransportError::JoinTimeout { epoch: 1, .. }), "{error}");
        assert!(error.ranks().contains(&2), "rank {rank}: {error}");
        let text = format!("rank 2 ({}) is missing: it has not connected", addrs[2]);
        assert!(error.to_string().contains(&text), "{error}");
    }
}

#[test]
fn a_rank_that_has_not_met_everyone_holds_up_the_others() {
    // Rank 0 knows a wrong address of rank 1's peer 2: it meets both, they never meet each other.
    let (listeners, addrs) = listeners(3);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let interrupter = Interrupter::new().unwrap();
    thread::scope(|scope| {
        for (rank, listener) in listeners.iter().enumerate() {
            let mut config = config(rank, &addrs);
            if rank == 2 {
                config.peers[1] = nobody.local_addr().unwrap();
            }
            // Rank 0 gives up first, and that ends it for the others too.
            let interrupter = interrupter.clone();
            if rank == 0 {
                config.join_timeout = 2 * SHORT;
            }
            scope.spawn(move || {
                let error = fails(Group::join_interruptible(listener, config, interrupter.clone()));
                if rank == 0 {
                    interrupter.interrupt();
                    assert_eq!(error.ranks(), [1, 2], "{error}");
                    let reason = AbsenceReason::Unready.to_string();
                    assert!(error.to_string().contains(&reason), "{error}");
                }
            });
        }
    });
}

type Change<'a> = &'a (dyn Fn(&mut GroupConfig) + Sync);

fn both_fail(change: Change<'_>) -> [TransportError; 2] {
    let (listeners, addrs) = listeners(2);
    thread::scope(|scope| {
        let join = |rank: usize| {
            let mut config = config(rank, &addrs);
            config.join_timeout = SHORT;
            if rank == 1 {
                change(&mut config);
            }
            let listener = &listeners[rank];
            scope.spawn(move || fails(Group::join(listener, config)))
        };
        [join(0), join(1)].map(|join| join.join().unwrap())
    })
}

#[test]
fn a_wrong_key_keeps_a_rank_out() {
    let [accepting, dialling] = both_fail(&|config| config.key[31] ^= 1);
    assert!(dialling.to_string().contains("it has another key"), "{dialling}");
    assert_eq!(dialling.ranks(), [0]);
    assert!(accepting.to_string().contains("turned away"), "{accepting}");
    assert_eq!(accepting.ranks(), [1]);
    for error in [accepting, dialling] {
        assert!(!format!("{error:?}").contains(&format!("{:?}", &KEY[..4])));
    }
}

#[test]
fn an_impostor_without_the_key_is_refused_whatever_it_sends() {
    let (listeners, addrs) = listeners(2);
    thread::scope(|scope| {
        let (listener, zero) = (&listeners[0], config(0, &addrs));
        scope.spawn(move || sums_up(&mut Group::join(listener, zero).unwrap()));
        // Rank 1 to rank 0, of two, first of one socket, no checksums, in epoch 1.
        let settings = if crate::ENCRYPT { 2 } else { 0 };
        let mut hello = [b"JKLPDIAL".as_slice(), &2u32.to_le_bytes(), &1u64.to_le_bytes()].concat();
        for word in [1u32, 0, 2, 0, 1, settings] {
            hello.extend(word.to_le_bytes());
        }
        hello.extend([7; 32]);
        let mut impostor = TcpStream::connect(addrs[0]).unwrap();
        impostor.write_all(&hello).unwrap();
        let mut reply = [0; 92];
        impostor.read_exact(&mut reply).unwrap();
        assert_eq!(&reply[..8], b"JKLPTAKE");
        assert_eq!(&reply[12..16], [0; 4], "the words were the right ones");
        impostor.write_all(&[0; 32]).unwrap();
        let end = impostor.read(&mut [0; 1]);
        assert!(matches!(end, Ok(0) | Err(_)), "the place of rank 1 was given away: {end:?}");
        let (listener, one) = (&listeners[1], config(1, &addrs));
        scope.spawn(move || sums_up(&mut Group::join(listener, one).unwrap()));
    });
}

#[test]
fn another_epoch_and_other_settings_keep_a_rank_out() {
    let cases: [(Change<'_>, &str, &str); 5] = [
        (&|config| config.encrypt = vec![!crate::ENCRYPT; 2], "other settings", "other settings"),
        (&|config| config.epoch = 2, "it is in epoch 2", "it is in epoch 1"),
        (&|config| config.checksums = true, "other settings", "other settings"),
        (&|config| config.sockets_per_peer = 2, "other settings", "other settings"),
        (
            &|config| {
                config.peers.push("127.0.0.1:1".parse().unwrap());
                config.encrypt.push(crate::ENCRYPT);
            },
            "other settings",
            "other settings",
        ),
    ];
    for (change, accepting_says, dialling_says) in cases {
        let [accepting, dialling] = both_fail(change);
        assert!(accepting.to_string().contains(accepting_says), "{accepting}");
        assert!(dialling.to_string().contains(dialling_says), "{dialling}");
    }
}

#[test]
fn connections_of_an_old_epoch_in_the_backlog_are_discarded() {
    let (listeners, addrs) = listeners(2);
    // Rank 1 dials in epoch 1 while rank 0 does not join at all, and gives up.
    let mut early = config(1, &addrs);
    early.join_timeout = SHORT;
    let error = fails(Group::join(&listeners[1], early));
    assert!(error.to_string().contains("it is not joining"), "{error}");
    // Another process of epoch 1 still dials while epoch 2 forms.
    let stubborn = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    thread::scope(|scope| {
        let mut old = config(1, &addrs);
        old.join_timeout = 4 * SHORT;
        let old = scope.spawn(|| fails(Group::join(&stubborn, old)));
        let new: Vec<_> = (0..2)
            .map(|rank| {
                let config = GroupConfig { epoch: 2, ..config(rank, &addrs) };
                let listener = &listeners[rank];
                scope.spawn(move || {
                    let mut group = Group::join(listener, config).unwrap();
                    sums_up(&mut group);
                    group
                })
            })
            .collect();
        assert_eq!(old.join().unwrap().ranks(), [0]);
        drop(new);
    });
}

#[test]
fn survivors_join_the_next_epoch_through_the_same_listeners() {
    let (listeners, addrs) = listeners(3);
    for epoch in 1..=5u64 {
        // Another rank is lost in each epoch, in the middle of an operation of the others.
        let lost = epoch as usize % 3;
        thread::scope(|scope| {
            for (rank, listener) in listeners.iter().enumerate() {
                let config = GroupConfig { epoch, ..config(rank, &addrs) };
                scope.spawn(move || {
                    let mut group = Group::join(listener, config).unwrap();
                    assert_eq!(group.epoch(), epoch);
                    sums_up(&mut group);
                    if rank != lost {
                        let error = fails(group.all_sum(&mut vec![0; 1 << 20], Dtype::F32));
                        assert!(!error.ranks().is_empty(), "{error}");
                    }
                });
            }
        });
    }
}

#[test]
fn a_process_that_is_restarted_while_others_join_takes_its_old_place() {
    let (listeners, addrs) = listeners(3);
    thread::scope(|scope| {
        let wait = |rank: usize| {
            let (listener, config) = (&listeners[rank], config(rank, &addrs));
            scope.spawn(move || sums_up(&mut Group::join(listener, config).unwrap()))
        };
        let zero = wait(0);
        // Rank 1 comes and goes; rank 2 comes only afterwards.
        let interrupter = Interrupter::new().unwrap();
        let first = {
            let (listener, config) = (&listeners[1], config(1, &addrs));
            let interrupter = interrupter.clone();
            scope.spawn(move || fails(Group::join_interruptible(listener, config, interrupter)))
        };
        wait_until_joining(addrs[1]);
        interrupter.interrupt();
        assert!(matches!(first.join().unwrap(), TransportError::Interrupted { .. }));
        let rest = [wait(1), wait(2)];
        zero.join().unwrap();
        for rank in rest {
            rank.join().unwrap();
        }
    });
}

#[test]
fn endless_timeouts_are_allowed() {
    let endless = |config: &mut GroupConfig| {
        config.join_timeout = Duration::MAX;
        config.op_timeout = Duration::MAX;
        config.spin = Duration::MAX;
    };
    together(2, endless, |mut group| sums_up(&mut group));
}

#[test]
fn impossible_configurations_are_refused() {
    let (listeners, addrs) = listeners(1);
    let check = |change: &dyn Fn(&mut GroupConfig)| {
        let mut config = config(0, &addrs);
        change(&mut config);
        fails(Group::join(&listeners[0], config))
    };
    let error = check(&|config| config.rank = 1);
    assert!(matches!(error, TransportError::RankOutside { rank: 1, size: 1 }), "{error}");
    let error = check(&|config| config.peers.clear());
    assert!(matches!(error, TransportError::GroupSize { size: 0, .. }), "{error}");
    let error = check(&|config| config.encrypt.clear());
    assert!(matches!(error, TransportError::EncryptFlags { found: 0, size: 1 }), "{error}");
    let error = check(&|config| config.sockets_per_peer = 17);
    assert!(matches!(error, TransportError::SocketsPerPeer { found: 17, .. }), "{error}");
    let error = fails(Listener::bind(addrs[0]));
    assert!(error.to_string().contains(&addrs[0].to_string()), "{error}");
}

#[test]
fn impossible_arguments_are_refused_and_poison_nothing() {
    together(
        2,
        |_| {},
        |mut group| {
            let own = group.rank();
            let error = fails(group.all_sum(&mut [0; 3], Dtype::F32));
            assert!(matches!(error, TransportError::UnevenBytes { bytes: 3, .. }), "{error}");
            let error = fails(group.all_gather(&[0; 4], &mut [0; 12], Dtype::F32));
            assert!(matches!(error, TransportError::GatherSize { .. }), "{error}");
            let error = fails(group.send(&[], Dtype::F32, own));
            assert!(matches!(error, TransportError::RankOutside { .. }), "{error}");
            let error = fails(group.recv(&mut [], Dtype::F32, 2));
            assert!(matches!(error, TransportError::RankOutside { rank: 2, .. }), "{error}");
            sums_up(&mut group);
        },
    );
}
