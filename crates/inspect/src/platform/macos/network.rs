//! Parses bridges, routes and ports on macOS.

use std::net::Ipv4Addr;

use jackalope_fleet::platform::macos::network::blocks;

use crate::report::{Bridge, HardwarePort, ListeningPort, Network, Route};

/// Parses the members of bridges from `ifconfig -a`.
pub(super) fn bridges(text: &str) -> Vec<Bridge> {
    let bridges = blocks(text).into_iter().filter(|(name, _)| name.starts_with("bridge"));
    let bridges = bridges.map(|(name, lines)| Bridge {
        name: name.to_owned(),
        members: lines
            .iter()
            .filter_map(|line| line.trim().strip_prefix("member: ")?.split(' ').next())
            .map(str::to_owned)
            .collect(),
    });
    bridges.collect()
}

/// Parses `networksetup -listallhardwareports`.
pub(super) fn hardware_ports(text: &str) -> Vec<HardwarePort> {
    let mut ports = Vec::new();
    let mut name = None;
    for line in text.lines() {
        if let Some(found) = line.trim().strip_prefix("Hardware Port: ") {
            name = Some(found.to_owned());
        } else if let Some(interface) = line.trim().strip_prefix("Device: ") {
            let interface = interface.to_owned();
            ports.extend(name.take().map(|name| HardwarePort { name, interface }));
        }
    }
    ports
}

/// Parses `netstat -rn -f inet`. Lines for single neighbours (flag L) are not routes.
pub(super) fn routes(text: &str) -> Vec<Route> {
    let lines = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [to, gateway, flags, interface, ..] = words[..] else { return None };
        if flags.contains('L') && flags.contains('H') {
            return None;
        }
        let to = destination(to, flags.contains('H'))?;
        let gateway = gateway.parse().ok();
        Some(Route { to, gateway, interface: interface.to_owned() })
    });
    lines.collect()
}

/// Parses `default`, `10.254.0/30`, `192.168.1` or `127`. BSD omits trailing zeros, and the prefix
/// length if it is that of the address class.
fn destination(text: &str, is_host: bool) -> Option<Network> {
    if text == "default" {
        return Some(Network { ip: Ipv4Addr::UNSPECIFIED.into(), prefix_len: 0 });
    }
    let text = text.split('%').next()?;
    let (ip, prefix_len) = match text.split_once('/') {
        Some((ip, prefix_len)) => (ip, Some(prefix_len.parse().ok()?)),
        None => (text, None),
    };
    let mut bytes = [0; 4];
    let mut count = 0;
    for (byte, part) in bytes.iter_mut().zip(ip.split('.')) {
        *byte = part.parse().ok()?;
        count += 1;
    }
    let prefix_len = prefix_len.unwrap_or(if is_host { 32 } else { count * 8 });
    Some(Network { ip: Ipv4Addr::from(bytes).into(), prefix_len })
}

/// Parses `netstat -an -p tcp`, in which an address ends with a dot and the port.
pub(super) fn listeners(text: &str) -> Vec<ListeningPort> {
    let lines = text.lines().filter(|line| line.contains("LISTEN"));
    let ports = lines.filter_map(|line| line.split_whitespace().nth(3)?.rsplit_once('.'));
    let ports = ports.filter_map(|(_, port)| port.parse().ok());
    ports.map(|port| ListeningPort { port, ..ListeningPort::default() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IFCONFIG: &str = include_str!("../../../../fleet/tests/recorded/ifconfig-macos.txt");
    const NETSTAT: &str = include_str!("../../../tests/recorded/netstat-rn-macos.txt");
    const PORTS: &str = include_str!("../../../tests/recorded/hardware-ports-studio.txt");

    #[test]
    fn bridges_have_their_members() {
        let found = bridges(IFCONFIG);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].name.as_str(), &found[0].members[..]),
            ("bridge0", &["en2".to_owned(), "en4".to_owned()][..])
        );
    }

    #[test]
    fn ports_have_their_interfaces() {
        let found = hardware_ports(PORTS);
        let port = |name: &str| &found.iter().find(|it| it.name == name).unwrap().interface;
        assert_eq!((port("Ethernet").as_str(), port("Thunderbolt 1").as_str()), ("en0", "en2"));
        assert_eq!(port("Thunderbolt 6"), "en7");
        assert_eq!(found.len(), 10);
    }

    #[test]
    fn routes_are_read_with_bsds_abbreviations() {
        let found = routes(NETSTAT);
        let all: Vec<String> =
            found.iter().map(|it| format!("{} {}", it.to, it.interface)).collect();
        assert_eq!(
            all,
            [
                "0.0.0.0/0 en0",
                "10.254.0.0/30 en3",
                "127.0.0.0/8 lo0",
                "127.0.0.1/32 lo0",
                "169.254.0.0/16 en0",
                "192.168.1.0/24 en0",
                "224.0.0.0/4 en0",
                "255.255.255.255/32 en0",
            ]
        );
        assert_eq!(found[0].gateway.unwrap().to_string(), "192.168.1.1");
    }

    #[test]
    fn listeners_are_read_without_their_programs() {
        let text = "Active Internet connections (including servers)\n\
            Proto Recv-Q Send-Q  Local Address          Foreign Address        (state)    \n\
            tcp4       0      0  127.0.0.1.8080         *.*                    LISTEN     \n\
            tcp46      0      0  *.22                   *.*                    LISTEN     \n\
            tcp4       0      0  192.168.1.237.49999    192.168.1.1.443        ESTABLISHED\n";
        assert_eq!(listeners(text).iter().map(|it| it.port).collect::<Vec<u16>>(), [8080, 22]);
    }
}
