//! The door of a rank: one listening socket that outlives every epoch.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::error::TransportError;

/// Listens for the connections of higher ranks as long as the process lives; each epoch of the
/// group joins through it anew.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    addr: SocketAddr,
}

impl Listener {
    /// Listens on `addr`; port 0 takes any free one.
    ///
    /// # Errors
    /// [`TransportError::Bind`] with the address and the reason.
    pub fn bind(addr: SocketAddr) -> Result<Listener, TransportError> {
        let bind = |addr| {
            let socket = TcpListener::bind(addr)?;
            socket.set_nonblocking(true)?;
            let addr = socket.local_addr()?;
            Ok(Listener { socket, addr })
        };
        bind(addr).map_err(|cause: io::Error| TransportError::Bind { addr, cause: Arc::new(cause) })
    }

    /// The address that the socket is bound to, with the port that was chosen.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// The next connection in the backlog, or `None`.
    pub(crate) fn accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        match self.socket.accept() {
            Ok(connection) => Ok(Some(connection)),
            // The peer may have left again while it stood in the backlog.
            Err(e)
                if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
            {
                Ok(None)
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
