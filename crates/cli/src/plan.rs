//! `jackalope plan`: shows whether a model fits, on which machines, and the expected speed. Loads
//! nothing.

mod links;
mod text;

use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use jackalope_console::output;
use jackalope_deploy::cluster::check_encryption;
use jackalope_deploy::machines;
use jackalope_deploy::models::locate_loadable;
use jackalope_deploy::split_constraints::kind_over;
use jackalope_fleet::facts::at_once;
use jackalope_fleet::hostfile::{Host, Hostfile};
use jackalope_fleet::shell::Shell;
use jackalope_fleet::{facts, routes};
use jackalope_placement::{
    LinkKind, LinkSpeed, Links, NodeOffer, PlacementConstraints, PlacementModel, faster_with_fewer,
};
use jackalope_protocol::machine::NodeFacts;
use jackalope_protocol::{Backend, counted};

use crate::args::hosts::OverArg;
use crate::args::plan::{MemoryArg, PlanArgs};
use crate::environment::Environment;

/// Timeout for the facts of one machine.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn run(args: &PlanArgs, environment: &Environment) -> anyhow::Result<()> {
    let model = PlacementModel::read(&locate_loadable(&args.model, &environment.local)?.dir)?;
    let (hostfile, facts) = machines_of(args, environment)?;
    let offers = offers(&hostfile.hosts, &facts, &args.memory)?;
    let num_machines = args.machines.map(|machines| machines as usize);
    ensure!(
        num_machines.is_none_or(|requested| requested <= offers.len()),
        "`--machines {}` asks for more than the {} there are\nhint: name more with --hosts",
        num_machines.unwrap_or(0),
        counted(offers.len(), "machine")
    );
    let backend = hostfile.backend.unwrap_or(Backend::Tcp);
    let split = kind_over(backend, args.split.map(Into::into))?;
    check_encryption(args.encrypt_data.into(), backend)?;
    let constraints = PlacementConstraints { context_tokens: args.context, num_machines, split };
    if let Some(requested) = args.context.filter(|it| model.context_tokens < *it) {
        let longest = counted(model.context_tokens, "token");
        output::note(&format!(
            "warning: the model was made for contexts of {longest}, so this plan is for that \
             instead of {requested}"
        ));
    }
    let links = links(&hostfile, args.over);
    match jackalope_placement::place(&model, &offers, &links, constraints) {
        Ok(placement) => {
            let fewer = faster_with_fewer(&model, &offers, &links, constraints, &placement);
            let fewer = fewer.as_ref();
            let machines: Vec<routes::RouteNode<'_>> = placement
                .ranks
                .iter()
                .map(|rank| rank.offer_idx)
                .map(|at| routes::RouteNode {
                    host: &hostfile.hosts[at],
                    facts: facts[at].as_ref(),
                })
                .collect();
            let links = links::of_ranks(&machines, backend, args.encrypt_data.into());
            if args.json {
                let mut plan = text::placement_json(&model, &offers, &placement, fewer);
                plan["links"] = links::json(&links);
                return Ok(output::line(plan)?);
            }
            output::piece(text::placement(&model, &offers, &placement, fewer))?;
            Ok(output::piece(links::text(&links, backend))?)
        }
        Err(refusal) => {
            if args.json {
                output::line(text::refusal_json(&model, &refusal))?;
            }
            bail!("{}: {refusal}", args.model.display())
        }
    }
}

/// Returns the machines and the facts that each reports.
fn machines_of(
    args: &PlanArgs,
    environment: &Environment,
) -> anyhow::Result<(Hostfile, Vec<Option<NodeFacts>>)> {
    if let Some(num_machines) = args.discover {
        let ours = environment.credentials(None)?;
        let listed = machines::discover(
            num_machines.into(),
            args.agent_port,
            &ours,
            &*environment.local.observer,
        )?;
        // The discovered machines have reported already, so none is queried over ssh.
        let machines = listed.hosts.into_iter().map(|it| (it.host, Some(it.facts)));
        let (hosts, facts) = machines.unzip();
        return Ok((Hostfile { hosts, ..Hostfile::default() }, facts));
    }
    let hostfile = match &args.hosts {
        Some(hosts) => machines::hostfile(hosts)?,
        None => this_machine(),
    };
    let shell = environment.shell(args.ssh.as_deref());
    let facts = at_once(&hostfile.hosts, |host| facts(host, args, &shell));
    Ok((hostfile, facts.into_iter().collect::<anyhow::Result<_>>()?))
}

fn this_machine() -> Hostfile {
    let host = Host { ssh: "127.0.0.1".to_owned(), ..Host::default() };
    Hostfile { hosts: vec![host], ..Hostfile::default() }
}

/// Returns the facts that a machine reports. A machine whose memory was given is not queried,
/// because it may not exist yet.
fn facts(host: &Host, args: &PlanArgs, shell: &dyn Shell) -> anyhow::Result<Option<NodeFacts>> {
    let name = host.name();
    let is_typed = |it: &MemoryArg| it.name.as_ref().is_none_or(|typed| *typed == name);
    let facts = match host.is_local() {
        true => facts::facts_here(),
        false if args.memory.iter().any(is_typed) => return Ok(None),
        false => jackalope_fleet::facts::facts(shell, &name, PROBE_TIMEOUT).map_err(|err| {
            let hint = err.kind.hint(&name);
            anyhow!("{err}\nhint: {hint}; or pass --memory {name}=48GiB")
        })?,
    };
    Ok((0 < facts.free_bytes).then_some(facts))
}

/// Returns the memory that each rank's machine offers: as given, or else as the machine reports it;
/// divided among the ranks that run there.
fn offers(
    hosts: &[Host],
    facts: &[Option<NodeFacts>],
    memory: &[MemoryArg],
) -> anyhow::Result<Vec<NodeOffer>> {
    for (nth, typed) in memory.iter().enumerate() {
        let is_repeated = memory[..nth].iter().any(|earlier| earlier.name == typed.name);
        let of = typed.name.as_deref().unwrap_or("the other machines");
        ensure!(
            !is_repeated,
            "the memory of {of} is given twice\nhint: give one size for each name"
        );
    }
    for typed in memory.iter().filter_map(|it| it.name.as_ref()) {
        let known: Vec<String> = hosts.iter().map(Host::name).collect();
        let names = known.join(", ");
        ensure!(known.contains(typed), "no host is called {typed:?}\nhint: hosts are {names}");
    }
    let offers = hosts.iter().zip(facts).map(|(host, facts)| {
        let name = host.name();
        let typed = memory.iter().find(|it| it.name.as_ref() == Some(&name));
        let typed = typed.or_else(|| memory.iter().find(|it| it.name.is_none()));
        let mut facts = match (facts, typed) {
            (Some(facts), _) => facts.clone(),
            (None, Some(_)) => NodeFacts::default(),
            (None, None) => {
                bail!("the memory of {name} is unknown\nhint: pass --memory {name}=48GiB")
            }
        };
        if let Some(typed) = typed {
            facts.free_bytes = typed.bytes;
        }
        let num_ranks = hosts.iter().filter(|other| other.is_same_machine(host)).count();
        Ok(NodeOffer::from_facts(name, &facts, num_ranks as u64))
    });
    offers.collect()
}

/// Returns the usual properties of the links between the machines.
fn links(hostfile: &Hostfile, over: OverArg) -> Links {
    let hosts = &hostfile.hosts;
    let kind = match (hostfile.backend, over) {
        (Some(Backend::Jaccl), _) => LinkKind::Rdma,
        (_, OverArg::Thunderbolt) => LinkKind::Thunderbolt,
        (_, OverArg::Ethernet) => LinkKind::Ethernet,
    };
    let mut links = Links::usual(hosts.len(), kind);
    for a in 0..hosts.len() {
        for b in (0..a).filter(|&b| hosts[a].is_same_machine(&hosts[b])) {
            links.set(a, b, LinkSpeed::usual(LinkKind::Loopback));
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use jackalope_placement::RESERVE_BYTES;

    use super::*;

    fn hosts(names: &[&str]) -> Vec<Host> {
        let host = |name: &&str| Host { ssh: (*name).to_owned(), ..Host::default() };
        names.iter().map(host).collect()
    }

    fn memory(name: Option<&str>, bytes: u64) -> MemoryArg {
        MemoryArg { name: name.map(str::to_owned), bytes }
    }

    #[test]
    fn typed_memory_wins_and_ranks_of_one_machine_share_it() {
        const GIB: u64 = 1 << 30;
        let hosts = hosts(&["mac1", "mac2", "me@mac2"]);
        let facts = NodeFacts { free_bytes: 7 * GIB, ..NodeFacts::default() };
        let facts = [Some(facts.clone()), Some(facts), None];
        let typed = [memory(Some("mac2"), 9 * GIB), memory(Some("me@mac2"), 9 * GIB)];
        let usable: Vec<u64> =
            offers(&hosts, &facts, &typed).unwrap().iter().map(|it| it.usable_bytes).collect();
        let half = (9 * GIB - RESERVE_BYTES) / 2;
        assert_eq!(usable, [7 * GIB - RESERVE_BYTES, half, half]);
    }

    #[test]
    fn unknown_memory_and_unknown_names_are_refused_with_a_hint() {
        let hosts = hosts(&["mac1"]);
        let refusal =
            |typed: &[MemoryArg]| format!("{:#}", offers(&hosts, &[None], typed).unwrap_err());
        assert!(refusal(&[]).ends_with("hint: pass --memory mac1=48GiB"), "{}", refusal(&[]));
        let other = refusal(&[memory(Some("mac9"), 1)]);
        assert!(other.ends_with("hint: hosts are mac1"), "{other}");
        let twice = refusal(&[memory(Some("mac1"), 1), memory(Some("mac1"), 2)]);
        assert!(twice.starts_with("the memory of mac1 is given twice"), "{twice}");
        assert!(offers(&hosts, &[None], &[memory(None, 1 << 30)]).is_ok());
    }
}
