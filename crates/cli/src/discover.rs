//! `jackalope discover`: lists the machines on the network.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use jackalope_console::output;
use jackalope_deploy::error::HOW_TO_ANSWER;
use jackalope_deploy::machines::find;
use jackalope_fleet::discovery::{
    self, DiscoveryResult, FoundMachine, LeftOut, Listed, MachineState,
};
use jackalope_protocol::machine::{Interface, NodeFacts};
use jackalope_protocol::secure::Build;
use serde_json::{Value, json};

use crate::args::DiscoverArgs;
use crate::environment::Environment;
use crate::split::bytes;

pub(crate) async fn run(args: DiscoverArgs, environment: &Environment) -> anyhow::Result<()> {
    let window = Duration::from_secs(args.timeout);
    let ours = environment.credentials(args.token.as_deref())?;
    let looking = tokio::task::spawn_blocking(move || find(window, 0, ours));
    let found = looking.await??;
    let listed = discovery::list(&found, args.agent_port);
    if args.json {
        Ok(output::line(object(&found, &listed))?)
    } else {
        Ok(output::line(text(&found, &listed))?)
    }
}

/// An address of a machine, the interface that has it, and the interface's kind if its name shows
/// it.
struct Reached<'a> {
    ip: IpAddr,
    interface: Option<&'a Interface>,
    kind: Option<&'static str>,
}

impl<'a> Reached<'a> {
    fn new(ip: IpAddr, facts: &'a NodeFacts) -> Reached<'a> {
        let has_it = |it: &&Interface| it.addrs.iter().any(|addr| addr.ip == ip);
        let interface = facts.interfaces.iter().find(has_it);
        let kind = interface.and_then(|it| kind(&facts.os, &it.name));
        Reached { ip, interface, kind }
    }

    fn text(&self) -> String {
        let speed = self.interface.and_then(|it| it.bits_per_s);
        let about: Vec<String> = [
            self.interface.map(|it| format!("on {}", it.name)),
            self.kind.map(str::to_owned),
            speed.map(|it| format!("{} Mbit/s", it / 1_000_000)),
        ]
        .into_iter()
        .flatten()
        .collect();
        format!("{} {}", self.ip, about.join(", ")).trim_end().to_owned()
    }

    fn object(&self) -> Value {
        json!({
            "ip": self.ip, "interface": self.interface.map(|it| &it.name), "kind": self.kind,
            "bits_per_s": self.interface.and_then(|it| it.bits_per_s),
        })
    }
}

/// Returns the kind of an interface as far as its name shows it. On a Mac `en0` may be Ethernet or
/// Wi-Fi; the bridge `bridge0`, which always exists, joins its Thunderbolt ports.
fn kind(os: &str, interface: &str) -> Option<&'static str> {
    let begins = |with: &[&str]| with.iter().any(|it| interface.starts_with(it));
    match os.starts_with("macOS") {
        true => (interface == "bridge0").then_some("Thunderbolt"),
        false if begins(&["eth", "eno", "enp", "ens", "enx"]) => Some("Ethernet"),
        false if begins(&["wl"]) => Some("Wi-Fi"),
        false => begins(&["thunderbolt"]).then_some("Thunderbolt"),
    }
}

/// A machine as shown in both output formats.
struct Row<'a> {
    name: String,
    is_here: bool,
    build: Build,
    facts: Option<&'a NodeFacts>,
    reached: Vec<Reached<'a>>,
    left_out: Option<&'a LeftOut>,
}

fn rows<'a>(found: &'a DiscoveryResult, listed: &'a Listed) -> Vec<Row<'a>> {
    let usable = listed.hosts.iter().enumerate().map(|(rank, it)| {
        let ips = it.host.ips.iter();
        Row {
            name: if it.facts.hostname.is_empty() {
                it.host.name()
            } else {
                it.facts.hostname.clone()
            },
            is_here: rank == 0,
            build: Build::ours(),
            facts: Some(&it.facts),
            reached: ips.map(|ip| Reached::new(*ip, &it.facts)).collect(),
            left_out: None,
        }
    });
    let others = listed.left_out.iter().filter_map(|left_out| {
        let is_it = |it: &&FoundMachine| {
            it.addrs.first().is_some_and(|at| at.ip().to_string() == left_out.at)
        };
        let machine = found.machines.iter().find(is_it)?;
        let facts = match &machine.state {
            MachineState::Ready(facts) => Some(&**facts),
            MachineState::OtherVersion
            | MachineState::Unreachable(_)
            | MachineState::Refused(_) => None,
        };
        let reached = machine.addrs.iter().map(SocketAddr::ip).map(|ip| match facts {
            Some(facts) => Reached::new(ip, facts),
            None => Reached { ip, interface: None, kind: None },
        });
        Some(Row {
            name: facts.map_or_else(|| left_out.at.clone(), |it| it.hostname.clone()),
            is_here: false,
            build: machine.build.clone(),
            facts,
            reached: reached.collect(),
            left_out: Some(left_out),
        })
    });
    usable.chain(others).collect()
}

fn text(found: &DiscoveryResult, listed: &Listed) -> String {
    let mut lines = Vec::new();
    for row in rows(found, listed) {
        let here = if row.is_here { " (this machine)" } else { "" };
        let what = row.facts.map(|it| {
            let (total, free) = (bytes(it.total_bytes), bytes(it.free_bytes));
            format!("{}, {total} ({free} free), ", it.chip)
        });
        lines.push(format!(
            "{}{here}: {}{}",
            row.name,
            what.unwrap_or_default(),
            row.build.version
        ));
        lines.extend(row.reached.iter().map(|it| format!("  {}", it.text())));
        if let Some(LeftOut { reason, hint, .. }) = row.left_out {
            lines.push(format!("  left out: {reason}\n  hint: {hint}"));
        }
    }
    for stranger in &found.strangers {
        lines.push(format!(
            "{}: {}, does not have our secret\n  hint: if it is yours, `jackalope bootstrap {}`",
            stranger.ip, stranger.build.version, stranger.ip
        ));
    }
    if 0 < found.num_more_strangers {
        lines.push(format!("and {} more without our secret", found.num_more_strangers));
    }
    lines.push(match listed.hosts.len() {
        1 => format!("no other machine with our secret can be used\nhint: {HOW_TO_ANSWER}"),
        _ => "next:\n  \
              jackalope plan --model MODEL --discover\n  \
              jackalope serve --model MODEL --discover\n  \
              jackalope hosts new --discover --out hosts.local.json"
            .to_owned(),
    });
    lines.join("\n")
}

fn object(found: &DiscoveryResult, listed: &Listed) -> Value {
    let machine = |row: &Row<'_>| {
        json!({
            "name": row.name, "is_here": row.is_here, "secret": "ours",
            "version": row.build.version, "protocol": row.build.protocol,
            "addresses": row.reached.iter().map(Reached::object).collect::<Vec<_>>(),
            "os": row.facts.map(|it| &it.os), "chip": row.facts.map(|it| &it.chip),
            "memory_bytes": row.facts.map(|it| it.total_bytes),
            "free_bytes": row.facts.map(|it| it.free_bytes),
            "usable": row.left_out.is_none(),
            "reason": row.left_out.map(|it| &it.reason), "hint": row.left_out.map(|it| &it.hint),
        })
    };
    let strangers = found.strangers.iter().map(|it| {
        json!({
            "ip": it.ip, "version": it.build.version, "protocol": it.build.protocol,
            "secret": "other",
        })
    });
    json!({
        "machines": rows(found, listed).iter().map(machine).collect::<Vec<_>>(),
        "strangers": strangers.collect::<Vec<_>>(),
        "num_more_strangers": found.num_more_strangers,
    })
}
