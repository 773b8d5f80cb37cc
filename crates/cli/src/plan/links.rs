//! The connections between the ranks of a plan, and which of them are encrypted.

use jackalope_fleet::routes::{self, Encryption, RouteNode};
use jackalope_protocol::Backend;
use serde_json::{Value, json};

/// A connection between two ranks.
#[derive(Debug, PartialEq)]
pub(super) struct PlannedLink {
    ranks: [usize; 2],
    names: [String; 2],
    is_encrypted: bool,
}

/// Returns the connection of each pair of ranks. A machine that has not reported its addresses
/// counts as one without cables, as it does where ranks are started.
pub(super) fn of_ranks(
    machines: &[RouteNode<'_>],
    backend: Backend,
    encryption: Encryption,
) -> Vec<PlannedLink> {
    let is_encrypted = |a: usize, b: usize| {
        let ends = [machines[a], machines[b]];
        let routes = routes::routes(&ends);
        let is_encrypted = match &routes {
            Ok(routes) => routes::encrypted(&ends, routes, encryption)[0][1],
            // Without known addresses the link does not count as a cable either.
            Err(_) => encryption != Encryption::Off,
        };
        is_encrypted && !backend.is_stock()
    };
    let pairs = (0..machines.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
    let link = |(a, b): (usize, usize)| PlannedLink {
        ranks: [a, b],
        names: [a, b].map(|rank| machines[rank].host.name()),
        is_encrypted: is_encrypted(a, b),
    };
    pairs.map(link).collect()
}

/// Formats for people the connections that are encrypted, and those in clear; empty for one rank.
pub(super) fn text(links: &[PlannedLink], backend: Backend) -> String {
    let mut text = String::new();
    for (is_encrypted, words) in [(true, "encrypted"), (false, "in clear")] {
        let of_kind = links.iter().filter(|link| link.is_encrypted == is_encrypted);
        let names = of_kind.map(|PlannedLink { ranks: [a, b], names: [one, other], .. }| {
            format!("{one} - {other} (ranks {a} and {b})")
        });
        let names: Vec<String> = names.collect();
        if !names.is_empty() {
            text += &format!("{words}: {}\n", names.join(", "));
        }
    }
    if backend.is_stock() && !links.is_empty() {
        text += &format!(
            "{} is MLX's own transport, which does not encrypt; `--backend tcp` does\n",
            backend.name()
        );
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// Returns the connections as JSON: ranks and names of both ends, and whether each is encrypted.
pub(super) fn json(links: &[PlannedLink]) -> Value {
    let link = |link: &PlannedLink| json!({"ranks": link.ranks, "names": link.names, "encrypted": link.is_encrypted});
    links.iter().map(link).collect()
}

#[cfg(test)]
mod tests {
    use jackalope_fleet::hostfile::Host;
    use jackalope_protocol::machine::{Interface, InterfaceAddr, NodeFacts};

    use super::*;

    fn facts(addrs: &[(&str, u8)]) -> NodeFacts {
        let addr =
            |&(ip, prefix_len): &(&str, u8)| InterfaceAddr { ip: ip.parse().unwrap(), prefix_len };
        let addrs = addrs.iter().map(addr).collect();
        let interfaces = vec![Interface { addrs, ..Interface::default() }];
        NodeFacts { interfaces, ..NodeFacts::default() }
    }

    #[test]
    fn each_link_says_whether_it_is_encrypted() {
        let names = ["mac1", "mac2", "mac3", "mac3"];
        let hosts = names.map(|name| Host { ssh: name.to_owned(), ..Host::default() });
        // A cable joins the first two machines; nothing is known about the third.
        let one = facts(&[("10.0.0.1", 24), ("192.168.7.1", 30)]);
        let other = facts(&[("10.0.0.2", 24), ("192.168.7.2", 30)]);
        let facts = [Some(&one), Some(&other), None, None];
        let machines: Vec<RouteNode<'_>> =
            hosts.iter().zip(facts).map(|(host, facts)| RouteNode { host, facts }).collect();
        let encrypted = |backend, encryption| -> Vec<bool> {
            let links = of_ranks(&machines, backend, encryption);
            links.iter().map(|link| link.is_encrypted).collect()
        };
        // 0-1, 0-2, 1-2, 0-3, 1-3, 2-3
        let auto = [false, true, true, true, true, false];
        assert_eq!(encrypted(Backend::Tcp, Encryption::Auto), auto);
        assert_eq!(encrypted(Backend::Tcp, Encryption::On), [true; 6]);
        assert_eq!(encrypted(Backend::Tcp, Encryption::Off), [false; 6]);
        assert_eq!(encrypted(Backend::Ring, Encryption::Auto), [false; 6]);
        let links = of_ranks(&machines[..3], Backend::Tcp, Encryption::Auto);
        assert_eq!(
            text(&links, Backend::Tcp),
            "\nencrypted: mac1 - mac3 (ranks 0 and 2), mac2 - mac3 (ranks 1 and 2)\n\
             in clear: mac1 - mac2 (ranks 0 and 1)\n"
        );
        let first = json!({"ranks": [0, 1], "names": ["mac1", "mac2"], "encrypted": false});
        assert_eq!(json(&links)[0], first);
        assert_eq!(text(&of_ranks(&machines[..1], Backend::Tcp, Encryption::On), Backend::Tcp), "");
        let clear = of_ranks(&machines[..2], Backend::Ring, Encryption::Auto);
        assert!(text(&clear, Backend::Ring).ends_with("`--backend tcp` does\n"));
    }
}
