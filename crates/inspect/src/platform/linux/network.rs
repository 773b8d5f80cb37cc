//! Parses routes and ports on Linux. `ip` and `ss` are tried first; the files under `/proc/net` exist
//! even in the smallest container.

use std::net::Ipv4Addr;

use jackalope_fleet::platform::linux::network::address;

use crate::report::{ListeningPort, Network, Route};

/// Parses `ip -4 route show`.
pub(super) fn ip_route(text: &str) -> Vec<Route> {
    let lines = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |word: &str| {
            let at = words.iter().position(|it| *it == word)?;
            words.get(at + 1).copied()
        };
        let to = match *words.first()? {
            "default" => Network { ip: Ipv4Addr::UNSPECIFIED.into(), prefix_len: 0 },
            to => Network::of(address(to)?),
        };
        let gateway = after("via").and_then(|ip| ip.parse().ok());
        Some(Route { to, gateway, interface: after("dev")?.to_owned() })
    });
    lines.collect()
}

/// Parses `ss -Hltnp`.
pub(super) fn ss(text: &str) -> Vec<ListeningPort> {
    let lines = text.lines().filter_map(|line| {
        let local = line.split_whitespace().nth(3)?;
        let port = local.rsplit_once(':')?.1.parse().ok()?;
        // `users:(("python3",pid=812,fd=3))`
        let program = line.split_once("((\"").and_then(|(_, rest)| rest.split_once('"'));
        let pid = line.split_once("pid=").map(|(_, rest)| rest);
        let pid = pid.and_then(|rest| rest.split(',').next()?.parse().ok());
        Some(ListeningPort { port, pid, program: program.map(|(name, _)| name.to_owned()) })
    });
    lines.collect()
}

/// Parses `/proc/net/tcp` and `/proc/net/tcp6`; state 0A means listening.
pub(super) fn net_tcp(text: &str) -> Vec<ListeningPort> {
    let lines = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, "0A", ..] = words[..] else { return None };
        let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        Some(ListeningPort { port, ..ListeningPort::default() })
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_come_from_ip() {
        let text = "default via 192.168.7.1 dev eth0 proto dhcp metric 100 \n\
            10.254.0.0/30 dev tb0 proto kernel scope link src 10.254.0.1 \nunreachable\n";
        let found = ip_route(text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].to.prefix_len, found[0].interface.as_str()), (0, "eth0"));
        assert_eq!(found[1].to.to_string(), "10.254.0.0/30");
        assert_eq!(found[1].gateway, None);
    }

    #[test]
    fn ports_come_from_ss_or_from_proc() {
        let text = "LISTEN 0 128 0.0.0.0:8080 0.0.0.0:* users:((\"python3\",pid=812,fd=3))\n\
            LISTEN 0 128 [::]:22 [::]:* \n";
        let found = ss(text);
        assert_eq!((found[0].port, found[0].pid), (8080, Some(812)));
        assert_eq!(found[0].program.as_deref(), Some("python3"));
        assert_eq!((found[1].port, found[1].pid), (22, None));
        let text = "  sl  local_address rem_address   st tx_queue\n\
            \u{20}  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n\
            \u{20}  1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000\n";
        assert_eq!(net_tcp(text).iter().map(|it| it.port).collect::<Vec<u16>>(), [8080]);
    }
}
