//! The addresses on which programs of this machine listen: those by which the cluster reaches it,
//! and not the wildcard address unless the user asks for it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;

use tracing::warn;

/// Maximum size of the list of further addresses; a larger file is ignored.
const LIST_BYTES_MAX: u64 = 4096;

/// Returns the addresses of this machine's interfaces that can be announced to other machines.
/// Excludes IPv6 link-local addresses, which are meaningless without an interface.
pub fn own_addresses() -> Vec<IpAddr> {
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    let ips: BTreeSet<IpAddr> = all.into_iter().map(|interface| interface.ip()).collect();
    let is_announced = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    };
    ips.into_iter().filter(is_announced).collect()
}

/// Returns this machine's addresses on point-to-point cables: those in private IPv4 subnets for two
/// machines only (/30 or /31).
fn own_cables() -> Vec<IpAddr> {
    let all = if_addrs::get_if_addrs().unwrap_or_default().into_iter();
    let on_cable = |interface: if_addrs::Interface| match interface.addr {
        if_addrs::IfAddr::V4(addr) => {
            let is_cable = (30..32).contains(&addr.netmask.to_bits().count_ones());
            (is_cable && addr.ip.is_private()).then_some(addr.ip.into())
        }
        if_addrs::IfAddr::V6(_) => None,
    };
    all.filter_map(on_cable).collect()
}

/// Returns true if the Internet does not route the address: private, shared (RFC 6598), IPv4
/// link-local or loopback.
pub fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            // RFC 6598: shared by the customers of a provider, and used by VPNs.
            let is_shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            ip.is_private() || ip.is_loopback() || ip.is_link_local() || is_shared
        }
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_loopback(),
    }
}

/// Returns the local address from which `ip` is reached, if there is a route. Sends no packet.
pub fn address_towards(ip: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Any port will do: connecting a datagram socket only looks up the route.
    socket.connect((ip, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Listens on `port` at each of `ips` that this machine has; skips the others. Port 0 picks a free
/// port, the same for all addresses.
///
/// # Errors
/// The address on which listening failed, for example because the port is taken, and why.
pub fn listen_on(ips: &[IpAddr], port: u16) -> Result<Vec<TcpListener>, (SocketAddr, io::Error)> {
    let mut port = port;
    let mut listeners = Vec::new();
    for &ip in ips {
        let addr = SocketAddr::new(ip, port);
        match TcpListener::bind(addr) {
            Ok(listener) => {
                port = listener.local_addr().map_err(|err| (addr, err))?.port();
                listeners.push(listener);
            }
            Err(err) if err.kind() == io::ErrorKind::AddrNotAvailable => {}
            Err(err) => return Err((addr, err)),
        }
    }
    Ok(listeners)
}

/// The addresses that an agent listens on, updated as they appear and disappear.
#[derive(Debug)]
pub struct AgentAddresses {
    /// Requested addresses; if empty, the private addresses of this machine's interfaces.
    wanted: Vec<IpAddr>,
    port: u16,
    /// File to which `agent --start` adds addresses for an agent that already runs.
    list: PathBuf,
    open: BTreeSet<IpAddr>,
    /// Addresses on which listening failed; each is logged once.
    failed: BTreeSet<IpAddr>,
}

impl AgentAddresses {
    /// Creates the addresses of an agent with these `--listen` addresses and this port. `list` is
    /// the file of further addresses.
    pub fn new(wanted: Vec<IpAddr>, port: u16, list: PathBuf) -> AgentAddresses {
        let (open, failed) = (BTreeSet::new(), BTreeSet::new());
        AgentAddresses { wanted, port, list, open, failed }
    }

    /// Opens the first listeners.
    ///
    /// # Errors
    /// The address and the cause, if the port is taken on one of the addresses or this machine has
    /// none of them.
    pub fn first(&mut self) -> Result<Vec<TcpListener>, (SocketAddr, io::Error)> {
        let ips: Vec<IpAddr> = self.all().into_iter().collect();
        let listeners = listen_on(&ips, self.port)?;
        for addr in listeners.iter().filter_map(|listener| listener.local_addr().ok()) {
            self.port = addr.port();
            self.open.insert(addr.ip());
        }
        if listeners.is_empty() {
            let ip = ips.first().copied().unwrap_or(Ipv4Addr::LOCALHOST.into());
            let addr = SocketAddr::new(ip, self.port);
            return Err((addr, io::ErrorKind::AddrNotAvailable.into()));
        }
        Ok(listeners)
    }

    /// Opens listeners on addresses that are new to this machine or to the list.
    pub fn appeared(&mut self) -> Vec<TcpListener> {
        let mut listeners = Vec::new();
        let all = self.all();
        // An address that disappeared may come back.
        self.open.retain(|ip| all.contains(ip));
        for ip in all.into_iter().filter(|ip| !self.open.contains(ip)).collect::<Vec<_>>() {
            match listen_on(&[ip], self.port) {
                Ok(mut new) if !new.is_empty() => {
                    listeners.append(&mut new);
                    self.open.insert(ip);
                }
                Ok(_) => {}
                Err((addr, err)) => {
                    if self.failed.insert(ip) {
                        warn!(%addr, %err, "the agent cannot listen there");
                    }
                }
            }
        }
        listeners
    }

    /// Returns the port. If it was given as 0, it is known once the first listeners are open.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the addresses that the agent listens on.
    pub fn open(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.open.iter().copied()
    }

    fn all(&self) -> BTreeSet<IpAddr> {
        let listed = read_list(&self.list);
        let given = self.wanted.iter().copied().chain(listed);
        let mut all: BTreeSet<IpAddr> = given.collect();
        if self.wanted.is_empty() {
            all.extend(own_addresses().into_iter().filter(|ip| is_private(*ip)));
        } else if !self.wanted.iter().all(IpAddr::is_loopback) {
            // Models are copied over these cables.
            all.extend(own_cables());
        }
        if all.iter().any(IpAddr::is_unspecified) {
            all.retain(IpAddr::is_unspecified);
        }
        let has_loopback = all.iter().any(IpAddr::is_loopback);
        if !has_loopback && !all.iter().any(IpAddr::is_unspecified) {
            all.insert(Ipv4Addr::LOCALHOST.into());
        }
        all
    }
}

/// Adds addresses to the list that a running agent watches.
///
/// # Errors
/// If the list cannot be written.
pub fn add_to_list(list: &PathBuf, ips: &[IpAddr]) -> io::Result<()> {
    let all: BTreeSet<IpAddr> = read_list(list).into_iter().chain(ips.iter().copied()).collect();
    let lines: String = all.iter().map(|ip| format!("{ip}\n")).collect();
    fs::write(list, lines)
}

fn read_list(list: &PathBuf) -> Vec<IpAddr> {
    let is_short = fs::metadata(list).is_ok_and(|it| it.len() <= LIST_BYTES_MAX);
    let text = if is_short { fs::read_to_string(list).unwrap_or_default() } else { String::new() };
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn what_the_internet_does_not_route_is_private() {
        let private = ["10.0.0.1", "192.168.1.2", "172.31.0.1", "169.254.1.1", "127.0.0.1", "::1"];
        assert!(private.iter().all(|it| is_private(ip(it))));
        assert!(
            ["100.64.0.1", "100.127.9.9", "fd00::1", "::ffff:10.0.0.1"]
                .iter()
                .all(|it| is_private(ip(it)))
        );
        assert!(
            ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2001:db8::1", "0.0.0.0"]
                .iter()
                .all(|it| !is_private(ip(it)))
        );
    }

    #[test]
    fn the_way_to_this_machine_is_its_loopback() {
        assert_eq!(address_towards(ip("127.0.0.1")), Some(ip("127.0.0.1")));
    }

    // Only Linux has further loopback addresses.
    #[cfg(target_os = "linux")]
    #[test]
    fn an_agent_listens_on_the_given_addresses_and_later_on_those_of_the_list() {
        let list = std::env::temp_dir().join(format!("jackalope-listen-{}", std::process::id()));
        fs::remove_file(&list).ok();
        let elsewhere = ip("192.0.2.1");
        let mut addresses = AgentAddresses::new(vec![ip("127.0.0.2"), elsewhere], 0, list.clone());
        let first = addresses.first().unwrap();
        assert_eq!(first.len(), 1, "the other address is not here");
        assert_eq!(first[0].local_addr().unwrap().ip(), ip("127.0.0.2"));
        assert!(addresses.appeared().is_empty());
        add_to_list(&list, &[ip("127.0.0.3")]).unwrap();
        let new = addresses.appeared();
        assert_eq!(
            new[0].local_addr().unwrap().to_string(),
            format!("127.0.0.3:{}", addresses.port())
        );
        assert!(addresses.appeared().is_empty());
        fs::remove_file(&list).unwrap();
        let mut nowhere =
            AgentAddresses::new(vec![elsewhere, ip("127.0.0.2")], addresses.port(), list);
        assert!(nowhere.first().is_err(), "the port is taken");
    }
}
