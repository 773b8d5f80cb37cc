//! The listening sockets of a rank, one port on each of its addresses; they outlive every epoch.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::error::TransportError;

/// Length of the listen queue; unauthenticated connections would fill a short one.
const BACKLOG: i32 = 1024;

/// Listening sockets for the connections of higher ranks. A process keeps one for its lifetime;
/// each epoch of the group is joined through it.
#[derive(Debug)]
pub struct Listener {
    /// At least one socket, all with the same port.
    sockets: Vec<TcpListener>,
    addr: SocketAddr,
    missing: Vec<IpAddr>,
}

impl Listener {
    /// Listens on `addr`; port 0 selects any free port.
    ///
    /// # Errors
    /// [`TransportError::Bind`] with the address and the reason.
    pub fn bind(addr: SocketAddr) -> Result<Listener, TransportError> {
        Listener::bind_all(&[addr.ip()], addr.port()..=addr.port())
    }

    /// Listens on one port of `ports` on all of these addresses; a range that begins with 0 means
    /// any free port. Addresses that this machine does not have are skipped and returned by
    /// [`Listener::missing`].
    ///
    /// # Errors
    /// [`TransportError::Bind`] if the machine has none of the addresses, or no port is free.
    ///
    /// # Panics
    /// If `ips` is empty.
    pub fn bind_all(
        ips: &[IpAddr],
        ports: RangeInclusive<u16>,
    ) -> Result<Listener, TransportError> {
        assert!(!ips.is_empty(), "a listener has an address");
        let (first, last) = (*ports.start(), *ports.end());
        let num_ports = u32::from(last.saturating_sub(first)) + 1;
        // Ranks that start together begin with different ports.
        let offset = std::process::id() % num_ports;
        let mut cause = io::Error::from(io::ErrorKind::AddrInUse);
        for step in 0..num_ports {
            let port = first + ((offset + step) % num_ports) as u16;
            match listen_on(ips, port) {
                Ok(listener) => return Ok(listener),
                Err(err) if err.kind() == io::ErrorKind::AddrInUse => cause = err,
                Err(err) => {
                    cause = err;
                    break;
                }
            }
        }
        let addr = SocketAddr::new(ips[0], first);
        if 1 < num_ports && cause.kind() == io::ErrorKind::AddrInUse {
            cause = io::Error::new(cause.kind(), format!("ports {first} to {last} are all in use"));
        }
        Err(TransportError::Bind { addr, cause: Arc::new(cause) })
    }

    /// Returns the first address listened on, with the selected port.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the requested addresses that this machine does not have.
    pub fn missing(&self) -> &[IpAddr] {
        &self.missing
    }

    /// Returns the next connection in the backlog, or `None`.
    pub(crate) fn accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        for socket in &self.sockets {
            match socket.accept() {
                Ok(connection) => return Ok(Some(connection)),
                // The peer may have closed the connection while it was in the backlog.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::Interrupted
                            | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }
}

/// Listens on one port of those addresses that this machine has.
fn listen_on(ips: &[IpAddr], port: u16) -> io::Result<Listener> {
    let mut sockets: Vec<TcpListener> = Vec::new();
    let (mut missing, mut absent) = (Vec::new(), None);
    let mut addr = SocketAddr::new(ips[0], port);
    for &ip in ips {
        match TcpListener::bind((ip, addr.port())) {
            Ok(socket) => {
                socket.set_nonblocking(true)?;
                rustix::net::listen(&socket, BACKLOG)?;
                if sockets.is_empty() {
                    addr = socket.local_addr()?;
                }
                sockets.push(socket);
            }
            Err(err) if err.kind() == io::ErrorKind::AddrNotAvailable => {
                missing.push(ip);
                absent = Some(err);
            }
            Err(err) => return Err(err),
        }
    }
    match absent {
        Some(err) if sockets.is_empty() => Err(err),
        _ => Ok(Listener { sockets, addr, missing }),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn a_port_of_the_range_is_taken_until_none_is_left() {
        // Two consecutive ports that are free; other programs may take one of them in between.
        let (range, [first, second]) = (0..50)
            .find_map(|_| {
                let first = TcpListener::bind((HOME, 0)).ok()?.local_addr().ok()?.port();
                let range = first..=first.checked_add(1)?;
                let bind = || Listener::bind_all(&[HOME], range.clone()).ok();
                let both = [bind()?, bind()?];
                Some((range, both))
            })
            .unwrap();
        assert_ne!(first.local_addr(), second.local_addr());
        assert!(range.contains(&second.local_addr().port()));
        let err = Listener::bind_all(&[HOME], range).unwrap_err();
        assert!(err.to_string().contains("are all in use"), "{err}");
    }

    #[test]
    fn addresses_that_are_not_here_are_left_out_and_named() {
        // An address from a block reserved for documentation (RFC 5737).
        let elsewhere: IpAddr = [192, 0, 2, 1].into();
        let listener = Listener::bind_all(&[elsewhere, HOME], 0..=0).unwrap();
        assert_eq!((listener.local_addr().ip(), listener.missing()), (HOME, &[elsewhere][..]));
        assert!(Listener::bind_all(&[elsewhere], 0..=0).is_err());
    }
}
