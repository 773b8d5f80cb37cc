//! `jackalope models sync`: copies a model to other machines.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::bail;
use indicatif::HumanBytes;
use jackalope_console::output;
use jackalope_deploy::models::{CopyEvent, CopyGroup, CopyMembers, CopyOrder, CopyOutcome};
use jackalope_protocol::counted;
use serde_json::json;

use crate::args::ModelsSyncArgs;
use crate::environment::Environment;
use crate::progress::{Transfer, Upload, Uploads};

pub(crate) async fn run(args: ModelsSyncArgs, environment: &Environment) -> anyhow::Result<()> {
    let reach = args.reach.config(environment);
    let (hosts, from) = (args.hosts.as_str(), args.from.as_deref());
    let copy_port = args.copy_port;
    let members = CopyMembers { hosts, only: None, from, reach: &reach, copy_port };
    let group = CopyGroup::reach(members, &environment.local).await?.all_reached()?;
    let model = group.at_source(&args.model, &environment.local)?;
    let num_connections = args.connections;
    let order = CopyOrder { model, name: None, num_connections, is_cancelled: Arc::default() };
    let work = move || copy(&group, &order);
    let outcome = tokio::task::spawn_blocking(work).await??;
    print_outcome(args.json, &outcome)
}

/// Copies the model and shows the progress as bars.
fn copy(group: &CopyGroup, order: &CopyOrder) -> anyhow::Result<CopyOutcome> {
    let hashing: Mutex<Option<Transfer>> = Mutex::default();
    let bar = || hashing.lock().unwrap_or_else(PoisonError::into_inner);
    let uploads = Uploads::new();
    let bars: HashMap<String, Upload> =
        group.targets().map(|host| (host.clone(), uploads.add(&host))).collect();
    let outcome = group.copy(order, &|event| match event {
        CopyEvent::Hashing { total_bytes } => {
            *bar() = Some(Transfer::new("reading", total_bytes));
            bars.values().for_each(|it| it.expect(total_bytes));
        }
        CopyEvent::Hashed { num_bytes } => bar().iter().for_each(|it| it.add(num_bytes)),
        CopyEvent::Copying => *bar() = None,
        CopyEvent::Held { host, num_bytes } | CopyEvent::Received { host, num_bytes } => {
            bars[host].add(num_bytes);
        }
        CopyEvent::Ended(end) => bars[&end.host].finish(),
    })?;
    Ok(outcome)
}

fn print_outcome(json: bool, outcome: &CopyOutcome) -> anyhow::Result<()> {
    let CopyOutcome { name, ends } = outcome;
    let num_failed = ends.iter().filter(|end| end.result.is_err()).count();
    for end in ends {
        let (host, from) = (&end.host, &end.from);
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
