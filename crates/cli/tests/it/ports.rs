//! Ports for programs that a test starts.

use std::net::TcpListener;
use std::ops::Range;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports that systems give to connections and to listeners that ask for any (Linux: from 32768, macOS: from
/// 49152). One of those could be taken while the program that listens on it is not running yet, or started again.
const PORTS: Range<u16> = 20_000..32_000;

/// Distance between the first ports of two test programs that run at the same time, whose process ids are close.
const PORTS_PER_PROCESS: u32 = 211;

/// Returns a port on which nothing listens, and that no other call returns.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = process::id().wrapping_mul(PORTS_PER_PROCESS);
    let num_ports = u32::from(PORTS.end - PORTS.start);
    let candidates = (0..num_ports).map(|_| {
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % num_ports;
        PORTS.start + u16::try_from(number).expect("a port is small")
    });
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    candidates.into_iter().find(is_free).expect("a port is free")
}
