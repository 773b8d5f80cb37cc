//! Parses addresses and routes on Linux. `ip` is tried first; the files under `/proc/net` exist even
//! in the smallest container.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use jackalope_protocol::machine::{Interface, InterfaceAddr};

use crate::platform::{Network, Route};

/// Parses `ip -o addr show up`.
pub(super) fn ip_addr(text: &str) -> Vec<Interface> {
    let mut interfaces: Vec<Interface> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, name, "inet" | "inet6", addr, ..] = words[..] else { continue };
        let Some(addr) = address(addr) else { continue };
        match interfaces.iter_mut().find(|it| it.name == name) {
            Some(interface) => interface.addrs.push(addr),
            None => {
                let name = name.to_owned();
                interfaces.push(Interface { name, addrs: vec![addr], bits_per_s: None });
            }
        }
    }
    interfaces
}

/// Parses an address with its prefix length, such as `10.0.0.1/24`.
pub fn address(text: &str) -> Option<InterfaceAddr> {
    let (ip, prefix_len) = text.split_once('/').unwrap_or((text, "32"));
    Some(InterfaceAddr { ip: ip.parse().ok()?, prefix_len: prefix_len.parse().ok()? })
}

/// Parses the speed of each interface from `/sys/class/net`, which is in Mbit/s, or -1 if the
/// driver does not report it. Returns bits per second.
pub(super) fn speeds(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().filter_map(|line| {
        let (name, mbit) = line.split_once(' ')?;
        let mbit: u64 = mbit.trim().parse().ok()?;
        Some((name.to_owned(), mbit * 1_000_000))
    });
    lines.collect()
}

/// Parses `/proc/net/route`: hexadecimal addresses in this machine's byte order.
pub fn net_route(text: &str) -> Vec<Route> {
    let lines = text.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let bits = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::swap_bytes);
        let [name, to, gateway, .., mask, _, _, _] = words[..] else { return None };
        let prefix_len = u8::try_from(bits(mask)?.leading_ones()).ok()?;
        let gateway = Some(bits(gateway)?).filter(|it| *it != 0);
        Some(Route {
            to: Network { ip: IpAddr::V4(bits(to)?.into()), prefix_len },
            gateway: gateway.map(|it| IpAddr::V4(it.into())),
            interface: name.to_owned(),
        })
    });
    lines.collect()
}

/// Derives interfaces from `/proc/net/fib_trie` and `/proc/net/route`, for machines without `ip`:
/// each of this machine's own addresses is assigned to the interface whose network contains it.
pub(super) fn without_ip(fib_trie: &str, route: &str) -> Vec<Interface> {
    let mut interfaces: Vec<Interface> = Vec::new();
    let routes = net_route(route);
    let mut last = None;
    for line in fib_trie.lines() {
        if let Some(ip) = line.trim().strip_prefix("|-- ") {
            last = ip.parse::<Ipv4Addr>().ok();
        }
        let Some(ip) = last.filter(|_| line.contains("/32 host LOCAL")) else { continue };
        let ip = IpAddr::V4(ip);
        let near = routes.iter().filter(|it| it.gateway.is_none() && it.to.holds(ip));
        let near = near.max_by_key(|it| it.to.prefix_len);
        let (name, prefix_len) = match near {
            Some(route) => (route.interface.as_str(), route.to.prefix_len),
            None if ip.is_loopback() => ("lo", 8),
            None => continue,
        };
        let addr = InterfaceAddr { ip, prefix_len };
        match interfaces.iter_mut().find(|it| it.name == name) {
            Some(interface) if interface.addrs.contains(&addr) => {}
            Some(interface) => interface.addrs.push(addr),
            None => interfaces.push(Interface {
                name: name.to_owned(),
                addrs: vec![addr],
                bits_per_s: None,
            }),
        }
    }
    interfaces
}

#[cfg(test)]
mod tests {
    use super::*;

    // Recorded on Linux 6.12 in a container.
    const NET_ROUTE: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
    const FIB_TRIE: &str = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
        Local:\n     +-- 127.0.0.0/8 2 0 2\n        +-- 127.0.0.0/31 1 0 0\n           |-- 127.0.0.0\n              /8 host LOCAL\n\
                   |-- 127.0.0.1\n              /32 host LOCAL\n        |-- 127.255.255.255\n           /32 link BROADCAST\n\
             +-- 172.17.0.0/16 2 0 2\n           |-- 172.17.0.2\n              /32 host LOCAL\n";

    #[test]
    fn addresses_come_from_ip() {
        let text = "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever\n\
            1: lo    inet6 ::1/128 scope host \\       valid_lft forever\n\
            2: eth0    inet 192.168.7.5/24 brd 192.168.7.255 scope global dynamic eth0\\ valid\n\
            3: tb0    inet6 fe80::1/64 scope link \\ valid_lft forever\n";
        let found = ip_addr(text);
        let names: Vec<&str> = found.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["lo", "eth0", "tb0"]);
        assert_eq!(found[0].addrs.len(), 2);
        assert_eq!(found[1].addrs[0].prefix_len, 24);
        assert_eq!(speeds("eth0 10000\ntb0 -1\nlo \n")["eth0"], 10_000_000_000);
    }

    #[test]
    fn addresses_and_routes_come_from_proc_where_ip_is_missing() {
        let found = without_ip(FIB_TRIE, NET_ROUTE);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[1].name, "eth0");
        assert_eq!(found[1].addrs[0].ip.to_string(), "172.17.0.2");
        assert_eq!(found[1].addrs[0].prefix_len, 16);
        let routes = net_route(NET_ROUTE);
        assert_eq!(routes[0].gateway.unwrap().to_string(), "172.17.0.1");
        assert_eq!(routes[1].to.to_string(), "172.17.0.0/16");
    }
}
