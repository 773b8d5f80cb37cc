//! A faulty cable: forwards one connection after the other, flips bits at one position of the
//! stream from the dialling to the accepting side, and stutters at another.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Faults on the way from the dialling to the accepting side.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cable {
    /// Position of the byte to change.
    pub(crate) flip_at: Option<usize>,
    /// The bits of that byte to flip.
    pub(crate) flip_bits: u8,
    /// Position of the byte that is delayed, with all later ones.
    pub(crate) stutter_at: Option<usize>,
}

/// How long a stutter lasts: enough for the accepting side to act on what came before it.
const STUTTER: Duration = Duration::from_millis(50);

/// Forwards connections to `target`; returns the address to dial. The threads end with their
/// connections.
pub(crate) fn forwarding(target: SocketAddr, cable: Cable) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((dialler, _)) = listener.accept() {
            let acceptor = TcpStream::connect(target).unwrap();
            acceptor.set_nodelay(true).unwrap();
            let (dialler_back, acceptor_back) =
                (dialler.try_clone().unwrap(), acceptor.try_clone().unwrap());
            thread::spawn(move || forward(dialler, acceptor, cable));
            thread::spawn(move || forward(acceptor_back, dialler_back, Cable::default()));
        }
    });
    addr
}

fn forward(mut from: TcpStream, mut to: TcpStream, cable: Cable) {
    let mut buffer = vec![0; 64 << 10];
    let mut passed = 0;
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        let place_of = |at: &usize| (passed..passed + got).contains(at).then(|| *at - passed);
        if let Some(at) = cable.flip_at.as_ref().and_then(place_of) {
            buffer[at] ^= cable.flip_bits;
        }
        let (now, late) =
            buffer[..got].split_at(cable.stutter_at.as_ref().and_then(place_of).unwrap_or(0));
        let mut sent = to.write_all(now);
        if !now.is_empty() {
            thread::sleep(STUTTER);
        }
        sent = sent.and_then(|()| to.write_all(late));
        passed += got;
        if sent.is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
