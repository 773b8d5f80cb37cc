//! `jackalope models sync`: copies a model to other machines.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use indicatif::HumanBytes;
use jackalope_console::output;
use jackalope_deploy::machines;
use jackalope_deploy::models::{Member, locate};
use jackalope_fleet::hostfile::Host;
use jackalope_fleet::nodes;
use jackalope_fleet::trust::Credentials;
use jackalope_protocol::counted;
use jackalope_store::exchange::{Copied, CopyPeer, FetchOrder, LibraryClient, SpreadOrder, spread};
use serde_json::json;

use crate::args::ModelsSyncArgs;
use crate::environment::Environment;
use crate::progress::{Transfer, Uploads};

pub(crate) async fn run(args: ModelsSyncArgs, environment: &Environment) -> anyhow::Result<()> {
    let (machines, _) = nodes::machines(&machines::hostfile(&args.hosts)?.hosts);
    let remote: Vec<Host> = machines.iter().filter(|host| !host.is_local()).cloned().collect();
    ensure!(!remote.is_empty(), "`{}` names no other machine than this one", args.hosts);
    let here = machines.iter().find(|host| host.is_local()).cloned();
    let config = machines::nodes_config(&args.reach.config(environment), &environment.local)?;
    let ours = config.ours.clone();
    let nodes = machines::bring_up(
        remote.clone(),
        config,
        &environment.local.observer,
        machines::log_lines,
    )
    .await?;
    let mut members: Vec<Member> = remote
        .into_iter()
        .zip(&nodes.nodes)
        .map(|(host, node)| Member::there(host, node))
        .collect();
    if args.from.is_none() || here.is_some() {
        let here = Member::here(here, &environment.local, &ours, &members)?;
        members.push(here);
    }
    let source = match &args.from {
        None => members.len() - 1,
        Some(from) => members.iter().position(|it| it.host.name() == *from).with_context(|| {
            format!("`--from {from}` is none of the machines of `--hosts {}`", args.hosts)
        })?,
    };
    let model = if members[source].is_here {
        locate(&args.model, &environment.local)?.dir
    } else {
        args.model.clone()
    };
    let work = move || {
        let copied = copy(&args, &members, source, &model, &ours);
        // The agents were needed until now.
        drop(nodes);
        copied
    };
    tokio::task::spawn_blocking(work).await?
}

fn copy(
    args: &ModelsSyncArgs,
    members: &[Member],
    source: usize,
    model: &Path,
    ours: &Credentials,
) -> anyhow::Result<()> {
    let model = model.to_str().context("the model's path is not UTF-8")?;
    let from = members[source].host.name();
    let mut client = LibraryClient::dial(&from, &members[source].addrs, ours)?;
    let found = client.find(model)?;
    let num_bytes: u64 = found.files.iter().map(|(_, bytes)| bytes).sum();
    let bar = Transfer::new("reading", num_bytes);
    let manifest = client.manifest(model, &|more| bar.add(more))?;
    bar.finish();
    drop(client);
    let peers: Vec<CopyPeer> = members
        .iter()
        .map(|member| CopyPeer {
            host: member.host.name(),
            addrs: member.addrs.clone(),
            key: member.key,
            addrs_from: members.iter().map(|other| member.addrs_from(other)).collect(),
        })
        .collect();
    let uploads = Uploads::new();
    let bars: Vec<_> = peers
        .iter()
        .enumerate()
        .map(|(at, peer)| (at != source).then(|| uploads.add(&peer.host)))
        .collect();
    bars.iter().flatten().for_each(|bar| bar.expect(num_bytes));
    let on_bytes = |peer: usize, more: u64| bars[peer].iter().for_each(|bar| bar.add(more));
    let (name, commit, num_connections) = (found.name, found.commit, args.connections);
    let order =
        FetchOrder { name: name.clone(), commit, manifest, sources: Vec::new(), num_connections };
    let mut ends: Vec<Copied> = Vec::new();
    let what = SpreadOrder { peers: &peers, source, model, order: &order, ours };
    spread(what, &on_bytes, &mut |end| {
        bars[end.peer].iter().for_each(crate::progress::Upload::finish);
        ends.push(end);
    });
    ends.sort_by_key(|end| end.peer);
    tell(args.json, &name, &peers, &ends)
}

fn tell(json: bool, name: &str, peers: &[CopyPeer], ends: &[Copied]) -> anyhow::Result<()> {
    let num_failed = ends.iter().filter(|end| end.result.is_err()).count();
    for end in ends {
        let (host, from) = (&peers[end.peer].host, &peers[end.source].host);
        match (json, &end.result) {
            (true, Ok(fetched)) => output::line(json!({
                "host": host, "ok": true, "model": name, "path": fetched.dir,
                "bytes_copied": fetched.bytes_copied, "from": from,
            }))?,
            (true, Err(err)) => output::line(json!({
                "host": host, "ok": false, "model": name, "error": err.to_string(),
            }))?,
            (false, Ok(fetched)) if fetched.bytes_copied == 0 => {
                output::line(format_args!("{host}: {name} is there already, in {}", fetched.dir))?;
            }
            (false, Ok(fetched)) => {
                let size = HumanBytes(fetched.bytes_copied);
                output::line(format_args!(
                    "{host}: {name} is there, {size} copied from {from} into {}",
                    fetched.dir
                ))?;
            }
            (false, Err(err)) => output::note(&format!("error: {err}")),
        }
    }
    match num_failed {
        0 => Ok(()),
        _ => bail!("{name} is missing on {num_failed} of {}", counted(ends.len(), "machine")),
    }
}
