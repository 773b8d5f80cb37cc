//! Problems with addresses, subnets, bridges and firewalls.

use super::{Entry, entries};
use crate::doctor::Severity;

entries! { NETWORK:
    /// A machine does not have an address that the hostfile gives it.
    ADDRESS_LOST = Entry {
        code: "address-lost",
        severity: Severity::Error,
        title: "an address of the hostfile is not on the machine",
        explain: "Addresses set with `ifconfig` are lost at a reboot; the router may change those of Wi-Fi and Ethernet at any time.",
        type_this: &["jackalope autoconfig --hosts {hosts} --out hosts.json", "on {node}: `ifconfig | grep 'inet '` shows what it has"],
        signs: &["Can't assign requested address", "Cannot assign requested address"],
        origin: "DI-08 TS-20",
    };
    /// Two machines have no network in common.
    NO_COMMON_NETWORK = Entry {
        code: "no-common-network",
        severity: Severity::Error,
        title: "two machines of the hostfile share no network",
        explain: "Neither has an address in a network of the other, so their ranks cannot find each other directly.",
        type_this: &["jackalope autoconfig --hosts {node},{peer} --dry-run", "jackalope autoconfig --hosts {node},{peer} --over ethernet"],
        signs: &[],
        origin: "TOP-14 TS-15",
    };
    /// A cable's network overlaps that of the default gateway.
    GATEWAY_OVERLAP = Entry {
        code: "gateway-overlap",
        severity: Severity::Error,
        title: "a cable's network covers the route to the internet",
        explain: "An address on a Thunderbolt port is in the network of the router. Packets for the router are sent over the cable, and the machine loses the internet.",
        type_this: &[
            "on {node}: `sudo ifconfig {interface} inet {ip} delete`",
            "on {node}: `sudo arp -ad`, then `ping -c 3 {gateway}`",
            "jackalope autoconfig --hosts {hosts}   (assigns addresses without conflicts)",
        ],
        signs: &[],
        origin: "TS-18 DI-07",
    };
    /// A cable's network is one that home routers use.
    HOME_NETWORK = Entry {
        code: "home-network",
        severity: Severity::Warn,
        title: "a cable's network is one that home routers use",
        explain: "192.168.0.x and 192.168.1.x work until a machine joins a network with the same numbers, and then it loses one of the two.",
        type_this: &["jackalope autoconfig --hosts {hosts}   (assigns networks in 10.254.0.0 with two addresses each)"],
        signs: &[],
        origin: "DI-07 TS-18",
    };
    /// A cable's network is larger than it needs to be.
    WIDE_NETWORK = Entry {
        code: "wide-network",
        severity: Severity::Warn,
        title: "a cable's network is larger than the cable",
        explain: "Two cables with a /24 each easily have the same network, and then all packets use the first cable. A network of two addresses (/30) identifies one cable.",
        type_this: &["on {node}: `sudo ifconfig {interface} inet {ip} netmask 255.255.255.252`, the same at the other end", "or jackalope autoconfig --hosts {hosts}"],
        signs: &[],
        origin: "DI-08 TOP-05",
    };
    /// Thunderbolt cables form a loop through bridges.
    BRIDGE_LOOP = Entry {
        code: "bridge-loop",
        severity: Severity::Error,
        title: "Thunderbolt cables form a loop through bridges",
        explain: "macOS puts all Thunderbolt ports into one bridge. If cables form a ring through several bridges, or two cables connect the same two, every broadcast circulates for ever: the Macs become slow and the network fails.",
        type_this: &["on {node}: `sudo ifconfig {bridge} deletem {interface}`   (undo: `sudo ifconfig {bridge} addm {interface}`)", "or jackalope autoconfig --hosts {hosts}   (removes every port with a cable from its bridge)"],
        signs: &[],
        origin: "DI-10",
    };
    /// The port of a cable belongs to a bridge.
    BRIDGE_MEMBER = Entry {
        code: "bridge-member",
        severity: Severity::Warn,
        title: "a port that the hostfile uses is in a bridge",
        explain: "Its packets then go through the bridge's address, and RDMA may report errno 22. Only this port has to be removed; the bridge remains for the others.",
        type_this: &["on {node}: `sudo ifconfig {bridge} deletem {interface}`   (undo: `sudo ifconfig {bridge} addm {interface}`)"],
        signs: &[],
        origin: "DI-10 TS-26",
    };
    /// The default route leads over a Thunderbolt cable.
    DEFAULT_OVER_CABLE = Entry {
        code: "default-over-cable",
        severity: Severity::Warn,
        title: "the route to the internet leads through Thunderbolt",
        explain: "macOS uses the first network service of its list for the internet, and Thunderbolt comes before Ethernet or Wi-Fi.",
        type_this: &["on {node}: System Settings, Network, ..., Set Service Order: Thunderbolt last"],
        signs: &[],
        origin: "TS-18",
    };
    /// A firewall is active.
    FIREWALL_ON = Entry {
        code: "firewall-on",
        severity: Severity::Warn,
        title: "a firewall is active",
        explain: "It blocks connections to unknown programs and asks on the screen, where no user may see it.",
        type_this: &[
            "on {node}: `sudo /usr/libexec/ApplicationFirewall/socketfilterfw --add ~/.jackalope/current/bin/jackalope-rank --unblockapp ~/.jackalope/current/bin/jackalope-rank`",
            "on Linux: `sudo firewall-cmd --zone=trusted --add-interface={interface}`",
        ],
        signs: &[],
        origin: "TS-15 TS-23",
    };
}
