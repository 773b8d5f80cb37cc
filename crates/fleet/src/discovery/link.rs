//! The networks of this machine, and the sockets for all of them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};
use tracing::debug;

use super::{DISCOVERY_PORT, GROUP_V4, GROUP_V6};

/// Maximum number of this machine's addresses that are used.
const ADDRS_MAX: usize = 128;

/// Requested size of a socket's receive buffer in bytes; the system may grant less. A burst of
/// datagrams from others should not displace a query or an answer.
const RECEIVE_BUFFER_BYTES: usize = 1 << 20;

/// An address of this machine on a network with other machines.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct LinkAddr {
    /// Index of the interface.
    pub(super) index: u32,
    pub(super) ip: IpAddr,
}

/// Returns all addresses, including those of interfaces without a cable, because systems report
/// late that one was plugged in. Tunnels are skipped, because they lead to foreign networks.
pub(super) fn addrs() -> io::Result<Vec<LinkAddr>> {
    let all = if_addrs::get_if_addrs()?.into_iter();
    let others = all.filter(|it| !it.is_loopback() && !it.is_p2p());
    let addr = |it: if_addrs::Interface| {
        Some(LinkAddr { index: it.index.filter(|&it| it != 0)?, ip: it.ip() })
    };
    Ok(others.filter_map(addr).take(ADDRS_MAX).collect())
}

/// Creates a socket address. `scope_id` is used for link-local IPv6 addresses only.
pub(super) fn socket_addr(ip: IpAddr, port: u16, scope_id: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, port, 0, scope_id).into()
        }
        _ => SocketAddr::new(ip, port),
    }
}

/// Enlarges the receive buffer as far as the system permits; without that, the socket works too.
fn enlarge_receive_buffer(socket: &impl AsFd) {
    if let Err(err) = sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER_BYTES) {
        debug!(%err, "the receive buffer keeps its size");
    }
}

/// Opens a socket that other programs on this machine may bind too; each of them receives every
/// query.
fn listening(family: AddressFamily, addr: SocketAddr) -> io::Result<UdpSocket> {
    let listening = socket(family, SocketType::DGRAM, None)?;
    rustix::io::fcntl_setfd(&listening, rustix::io::FdFlags::CLOEXEC)?;
    sockopt::set_socket_reuseaddr(&listening, true)?;
    // With this option, Linux would distribute the datagrams among the sockets; other systems
    // require it.
    if !cfg!(target_os = "linux") {
        sockopt::set_socket_reuseport(&listening, true)?;
    }
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&listening, true)?;
    }
    enlarge_receive_buffer(&listening);
    bind(&listening, &addr)?;
    Ok(listening.into())
}

/// Opens the socket for queries over IPv4; it receives them after [`join`].
pub(super) fn listening_v4() -> io::Result<UdpSocket> {
    let addr = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, DISCOVERY_PORT);
    listening(AddressFamily::INET, addr.into())
}

/// Opens the socket for queries over IPv6; it receives them after [`join`].
pub(super) fn listening_v6() -> io::Result<UdpSocket> {
    let addr = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, DISCOVERY_PORT, 0, 0);
    listening(AddressFamily::INET6, addr.into())
}

/// Joins the multicast group on the network of `addr`, to receive its queries.
pub(super) fn join(socket: &UdpSocket, addr: &LinkAddr) -> io::Result<()> {
    match addr.ip {
        IpAddr::V4(ip) => socket.join_multicast_v4(&GROUP_V4, &ip),
        IpAddr::V6(_) => socket.join_multicast_v6(&GROUP_V6, addr.index),
    }
}

/// The sockets from which queries are sent and on which answers arrive.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) v4: UdpSocket,
    /// Absent if this machine has no IPv6.
    pub(super) v6: Option<UdpSocket>,
}

impl Asking {
    pub(super) fn new() -> io::Result<Asking> {
        let v4 = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        v4.set_nonblocking(true)?;
        v4.set_multicast_ttl_v4(1)?;
        enlarge_receive_buffer(&v4);
        let v6 = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).ok();
        if let Some(v6) = &v6 {
            v6.set_nonblocking(true)?;
            enlarge_receive_buffer(v6);
        }
        Ok(Asking { v4, v6 })
    }

    /// Sends the query over every network. Returns the number of networks over which it was sent,
    /// and the last error.
    pub(super) fn ask(&self, addrs: &[LinkAddr], query: &[u8]) -> (usize, Option<io::Error>) {
        let mut asked_v6 = Vec::new();
        let (mut num_asked, mut failed) = (0, None);
        for addr in addrs {
            let sent = match (addr.ip, &self.v6) {
                (IpAddr::V4(ip), _) => sockopt::set_ip_multicast_if(&self.v4, &ip)
                    .map_err(io::Error::from)
                    .and_then(|()| self.v4.send_to(query, (GROUP_V4, DISCOVERY_PORT))),
                (IpAddr::V6(_), Some(v6)) if !asked_v6.contains(&addr.index) => {
                    asked_v6.push(addr.index);
                    v6.send_to(query, SocketAddrV6::new(GROUP_V6, DISCOVERY_PORT, 0, addr.index))
                }
                _ => continue,
            };
            match sent {
                Ok(_) => num_asked += 1,
                Err(err) => failed = Some(err),
            }
        }
        (num_asked, failed)
    }
}
