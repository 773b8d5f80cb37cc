//! Renders the cables as text, for the terminal and for GraphViz.

use std::fmt::Write as _;

use jackalope_protocol::counted;

use super::{Cabling, CablingShape, Choice, End};
use crate::report::ThunderboltPort;

/// Renders every machine with its ports and the machines to which they lead.
pub fn terminal(cabling: &Cabling, choice: &Choice) -> String {
    let mut text = String::new();
    for host_idx in 0..cabling.hosts.len() {
        host(&mut text, cabling, host_idx).expect("a String takes everything");
    }
    let names = |order: &[usize]| -> Vec<&str> {
        order.iter().map(|&idx| cabling.hosts[idx].name.as_str()).collect()
    };
    let line = match &choice.shape {
        CablingShape::Ring(order) => {
            let names = names(order);
            format!("a ring: {} ── {}", names.join(" ── "), names[0])
        }
        CablingShape::Chain(order) => format!("a chain: {}", names(order).join(" ── ")),
        CablingShape::Apart(groups) => {
            let groups: Vec<String> = groups.iter().map(|it| names(it).join(" ── ")).collect();
            format!("{}: {}", counted(groups.len(), "piece"), groups.join(" | "))
        }
        shape => shape.name().to_owned(),
    };
    let cables = counted(cabling.cables.len(), "cable");
    writeln!(text, "{cables}, {line}").expect("a String takes everything");
    text
}

fn host(text: &mut String, cabling: &Cabling, host_idx: usize) -> std::fmt::Result {
    let host = &cabling.hosts[host_idx];
    writeln!(text, "{}  ({})", host.name, host.about)?;
    for (port_idx, port) in host.ports.iter().enumerate() {
        let interface = port.interface.as_deref().unwrap_or("?");
        let has_rdma = !host.without_rdma.iter().any(|it| it == interface);
        let mark = if has_rdma { "" } else { "  [no RDMA on this port]" };
        let leads = leads_to(cabling, End { host_idx, port_idx }, port);
        writeln!(text, "  port {} {interface:<5} {leads}{mark}", port.receptacle)?;
    }
    if host.ports.is_empty() {
        writeln!(text, "  no Thunderbolt ports")?;
    }
    writeln!(text)
}

fn leads_to(cabling: &Cabling, end: End, port: &ThunderboltPort) -> String {
    let speed = port.link_bits_per_s.map(|it| format!(" {} Gbit/s ", it / 1_000_000_000));
    let speed = speed.unwrap_or_default();
    let cable = cabling.cables.iter().find(|it| it.ends.contains(&end));
    let peer = cable.and_then(|it| it.end_facing(end.host_idx));
    match (peer, &port.attached, &port.peer_uuid) {
        (Some(peer), ..) => {
            let host = &cabling.hosts[peer.host_idx];
            let peer = cabling.port(peer);
            let interface = peer.interface.as_deref().unwrap_or("?");
            format!("━━{speed}━━▶ {} port {} {interface}", host.name, peer.receptacle)
        }
        (None, Some(name), Some(_)) => format!("━━{speed}━━▶ {name}, which is not in --hosts"),
        (None, Some(name), None) => format!("──{speed}── {name}"),
        (None, None, _) => "·".to_owned(),
    }
}

/// Renders the cables in GraphViz's language.
pub fn dot(cabling: &Cabling) -> String {
    let mut text = "graph cabling {\n  node [shape=box];\n".to_owned();
    let quoted = |it: &str| format!("\"{}\"", it.replace('\\', r"\\").replace('"', "\\\""));
    for host in &cabling.hosts {
        let label = quoted(&format!("{}\n{}", host.name, host.about)).replace('\n', "\\n");
        writeln!(text, "  {} [label={label}];", quoted(&host.name))
            .expect("a String takes everything");
    }
    for cable in &cabling.cables {
        let [a, b] = cable.ends;
        let name = |end: End| quoted(&cabling.hosts[end.host_idx].name);
        let interface = |end: End| quoted(cabling.interface(end).unwrap_or("?"));
        let speed = cable.bits_per_s.map_or(0, |it| it / 1_000_000_000);
        writeln!(
            text,
            "  {} -- {} [taillabel={}, headlabel={}, label=\"{speed} Gbit/s\"];",
            name(a),
            name(b),
            interface(a),
            interface(b),
        )
        .expect("a String takes everything");
    }
    text.push_str("}\n");
    text
}
