//! Helpers shared by the tests.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use jackalope_transport::{Group, GroupConfig, Listener, TransportError};

/// Long enough for a loaded machine, short enough to end a hanging test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
pub(crate) const KEY: [u8; 32] = [42; 32];

/// One listener per rank on free ports, and their addresses.
pub(crate) fn listeners(size: usize) -> (Vec<Listener>, Vec<SocketAddr>) {
    let any = "127.0.0.1:0".parse().unwrap();
    let listeners: Vec<Listener> = (0..size).map(|_| Listener::bind(any).unwrap()).collect();
    let addrs = listeners.iter().map(Listener::local_addr).collect();
    (listeners, addrs)
}

pub(crate) fn config(rank: usize, peers: &[SocketAddr]) -> GroupConfig {
    GroupConfig {
        join_timeout: PATIENCE,
        op_timeout: PATIENCE,
        encrypt: vec![crate::ENCRYPT; peers.len()],
        ..GroupConfig::new(rank, peers.to_vec(), 1, KEY)
    }
}

/// Runs `body` on every rank of a group, each in its own thread; results by rank.
pub(crate) fn together<T: Send>(
    size: usize,
    configure: impl Fn(&mut GroupConfig) + Sync,
    body: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    let (listeners, addrs) = listeners(size);
    thread::scope(|scope| {
        let ranks: Vec<_> = listeners
            .iter()
            .enumerate()
            .map(|(rank, listener)| {
                let mut config = config(rank, &addrs);
                let (configure, body) = (&configure, &body);
                scope.spawn(move || {
                    configure(&mut config);
                    body(Group::join(listener, config).unwrap())
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Pseudorandom bytes that depend only on `seed`.
pub(crate) fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// Returns the error, or panics with the value.
#[track_caller]
pub(crate) fn fails<T: std::fmt::Debug>(result: Result<T, TransportError>) -> TransportError {
    match result {
        Ok(value) => panic!("an error should have come, not {value:?}"),
        Err(error) => error,
    }
}
