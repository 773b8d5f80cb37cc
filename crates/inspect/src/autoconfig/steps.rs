//! The addresses of cables, and the commands that set them. A setting that is right already is left
//! alone, so that a plan made after running the commands is empty.

use std::net::IpAddr;

use jackalope_protocol::machine::InterfaceAddr;
use serde::{Deserialize, Serialize};

use super::subnets::{PREFIX_LEN, Subnets};
use super::{Cabling, End, PlanError, ReportedMachine};
use crate::report::{Network, NodeReport};

/// A command to run on one machine.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Step {
    /// The machine.
    pub host: String,
    /// Purpose of the command.
    pub purpose: String,
    /// Command to run as root.
    pub command: String,
    /// Command that undoes `command`, to run as root.
    pub undo: String,
}

/// A ping that must be answered after all steps.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PingCheck {
    /// Machine that sends the ping.
    pub host: String,
    /// Machine that answers.
    pub peer: String,
    /// Address of the answering machine on the cable.
    pub ip: IpAddr,
}

/// The address of a machine on a cable.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct AssignedAddress {
    /// The machine.
    pub host: String,
    /// Network interface.
    pub interface: String,
    /// The address.
    pub ip: IpAddr,
}

/// A cable and the addresses of its ends.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// Ends of the cable.
    pub(super) ends: [LinkEnd; 2],
    /// False if the ends have these addresses already.
    pub(super) is_new: bool,
}

/// One end of a cable, and its address.
#[derive(Clone, Debug)]
pub(super) struct LinkEnd {
    pub(super) host_idx: usize,
    pub(super) interface: String,
    pub(super) ip: IpAddr,
}

impl Link {
    /// Returns the end on this machine and the opposite one; `None` if the machine has no end.
    pub(super) fn seen_from(&self, host_idx: usize) -> Option<(&LinkEnd, &LinkEnd)> {
        let [a, b] = &self.ends;
        match host_idx {
            it if it == a.host_idx => Some((a, b)),
            it if it == b.host_idx => Some((b, a)),
            _ => None,
        }
    }
}

/// Returns every cable with its addresses: the present ones if they are usable, else the ones it
/// had `before`, else new ones.
pub(super) fn links(
    members: &[ReportedMachine<'_>],
    cabling: &Cabling,
    before: &[AssignedAddress],
) -> Result<Vec<Link>, PlanError> {
    let network = |ip: IpAddr| Network::of(InterfaceAddr { ip, prefix_len: PREFIX_LEN });
    let mut taken = taken(members);
    taken.extend(before.iter().map(|it| network(it.ip)));
    let mut subnets = Subnets::new(taken);
    let given = |host_idx: usize, interface: &str| {
        let name = members[host_idx].name;
        before.iter().find(|it| it.host == name && it.interface == interface).map(|it| it.ip)
    };
    let mut links = Vec::new();
    for cable in &cabling.cables {
        let interface = |end: End| cabling.interface(end).map(str::to_owned);
        // A port that networksetup does not list cannot be configured.
        let [Some(a), Some(b)] = cable.ends.map(interface) else { continue };
        let [first, second] = cable.ends.map(|end| end.host_idx);
        let kept = kept(members[first].report, &a, members[second].report, &b);
        let is_new = kept.is_none();
        let pair = given(first, &a).zip(given(second, &b));
        let pair = pair.filter(|(a, b)| a != b && network(*a) == network(*b));
        let [a_ip, b_ip] = match kept.or(pair.map(|(a, b)| [a, b])) {
            Some(kept) => kept,
            None => subnets.take().ok_or(PlanError::NoNetwork)?,
        };
        links.push(Link {
            ends: [
                LinkEnd { host_idx: first, interface: a, ip: a_ip },
                LinkEnd { host_idx: second, interface: b, ip: b_ip },
            ],
            is_new,
        });
    }
    Ok(links)
}

/// Returns the addresses of all ends.
pub(super) fn given(members: &[ReportedMachine<'_>], links: &[Link]) -> Vec<AssignedAddress> {
    let given = |end: &LinkEnd| AssignedAddress {
        host: members[end.host_idx].name.to_owned(),
        interface: end.interface.clone(),
        ip: end.ip,
    };
    links.iter().flat_map(|link| &link.ends).map(given).collect()
}

/// Returns all networks in which any machine has an address or to which it has a route.
fn taken(members: &[ReportedMachine<'_>]) -> Vec<Network> {
    let of = |report: &NodeReport| -> Vec<Network> {
        let own = report.addrs().map(|(_, addr)| Network::of(addr));
        let routed = report.routes.iter().map(|route| route.to).filter(|it| 0 < it.prefix_len);
        own.chain(routed).collect()
    };
    members.iter().flat_map(|member| of(member.report)).collect()
}

/// Returns the addresses of a cable's two ends, if they are in one network that nothing else uses.
fn kept(a: &NodeReport, a_name: &str, b: &NodeReport, b_name: &str) -> Option<[IpAddr; 2]> {
    let pairs = usable(a, a_name).flat_map(|ours| usable(b, b_name).map(move |it| (ours, it)));
    let mut pairs = pairs.filter(|(ours, theirs)| {
        ours.ip != theirs.ip && Network::of(*ours) == Network::of(*theirs)
    });
    pairs.find_map(|(ours, theirs)| {
        let network = Network::of(ours);
        let is_ours_alone = is_alone(a, a_name, network) && is_alone(b, b_name, network);
        is_ours_alone.then_some([ours.ip, theirs.ip])
    })
}

/// Returns the interface's configured IPv4 addresses. Link-local addresses (169.254) are excluded
/// because they change.
fn usable(report: &NodeReport, interface: &str) -> impl Iterator<Item = InterfaceAddr> {
    let on = report.addrs().filter(move |(name, _)| *name == interface).map(|(_, addr)| addr);
    on.filter(|addr| matches!(addr.ip, IpAddr::V4(ip) if !ip.is_link_local()))
}

/// Returns true if no other interface and no default gateway is in this network.
fn is_alone(report: &NodeReport, interface: &str, network: Network) -> bool {
    let mut others = report.addrs().filter(|(name, _)| *name != interface);
    let gateway = report.default_route().and_then(|route| route.gateway);
    !others.any(|(_, addr)| Network::of(addr).overlaps(network))
        && gateway.is_none_or(|it| !network.holds(it))
}

/// Returns the commands, machine by machine.
pub(super) fn steps(members: &[ReportedMachine<'_>], links: &[Link]) -> Vec<Step> {
    let mut steps = Vec::new();
    for (host_idx, member) in members.iter().enumerate() {
        for link in links {
            let Some((end, peer)) = link.seen_from(host_idx) else { continue };
            let peer_name = members[peer.host_idx].name;
            let mut push = |purpose: String, command: String, undo: String| {
                steps.push(Step { host: member.name.to_owned(), purpose, command, undo });
            };
            let interface = &end.interface;
            let mac = member.report.mac.as_ref();
            if let Some(bridge) = mac.and_then(|mac| mac.bridge_of(interface)) {
                push(
                    format!("{interface} leaves {bridge}; its other ports stay in it"),
                    format!("ifconfig {bridge} deletem {interface}"),
                    format!("ifconfig {bridge} addm {interface}"),
                );
            }
            if link.is_new {
                let (command, undo) = address(member.report, end);
                push(format!("an address on the cable to {peer_name}"), command, undo);
            } else if let Some(other) = detour(member.report, interface, peer.ip) {
                push(
                    format!("packets for {peer_name} take the cable"),
                    format!("route -n change -host {} -interface {interface}", peer.ip),
                    format!("route -n change -host {} -interface {other}", peer.ip),
                );
            }
        }
    }
    steps
}

/// Returns the command that sets an address, and the one that restores the previous state.
fn address(report: &NodeReport, end: &LinkEnd) -> (String, String) {
    let LinkEnd { interface, ip, .. } = end;
    let set = |ip: IpAddr, prefix_len: u8| {
        format!("ifconfig {interface} inet {ip} netmask {}", netmask(prefix_len))
    };
    let undo = match usable(report, interface).next() {
        Some(before) => set(before.ip, before.prefix_len),
        None => format!("ifconfig {interface} inet {ip} delete"),
    };
    (format!("{} up", set(*ip, PREFIX_LEN)), undo)
}

/// Returns the other interface through which a host route to the peer's address leads, if there is
/// one.
fn detour<'a>(report: &'a NodeReport, interface: &str, peer: IpAddr) -> Option<&'a str> {
    let mut own = report.routes.iter().filter(|it| it.to.prefix_len == 32 && it.to.ip == peer);
    own.find(|it| it.interface != interface).map(|it| it.interface.as_str())
}

fn netmask(prefix_len: u8) -> std::net::Ipv4Addr {
    let bits = u32::MAX.checked_shl(32 - u32::from(prefix_len.min(32))).unwrap_or(0);
    std::net::Ipv4Addr::from_bits(bits)
}

/// Returns warnings for machines that are reached over an interface that the commands change.
pub(super) fn risks(members: &[ReportedMachine<'_>], steps: &[Step]) -> Vec<String> {
    let risk = |member: &ReportedMachine<'_>| {
        let host = member.name.rsplit('@').next()?;
        let interface = member.report.interface_of(host.parse().ok()?)?;
        let mut own = steps.iter().filter(|step| step.host == member.name);
        let touches = |step: &Step| step.command.split(' ').any(|word| word == interface);
        own.any(touches).then(|| {
            format!(
                "{} is reached through {interface}, which these commands change: the connection \
                 may break; name the machine by an address on another network",
                member.name
            )
        })
    };
    members.iter().filter_map(risk).collect()
}

/// Returns one ping for each direction of each cable.
pub(super) fn checks(members: &[ReportedMachine<'_>], links: &[Link]) -> Vec<PingCheck> {
    let both = links.iter().flat_map(|link| {
        let [a, b] = &link.ends;
        [(a, b), (b, a)]
    });
    let check = |(end, peer): (&LinkEnd, &LinkEnd)| PingCheck {
        host: members[end.host_idx].name.to_owned(),
        peer: members[peer.host_idx].name.to_owned(),
        ip: peer.ip,
    };
    both.map(check).collect()
}
