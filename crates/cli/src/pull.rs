//! `jackalope pull`: fetches a model from a hub.

use std::time::Duration;

use anyhow::ensure;
use indicatif::HumanBytes;
use jackalope_console::output;
use jackalope_deploy::models::DEFAULT_CONNECTIONS;
use jackalope_store::Revision;
use jackalope_store::pull::{Destination, Pull, PullConfig, Pulled};
use serde_json::json;

use crate::args::{ModelsSyncArgs, PullArgs};
use crate::environment::Environment;
use crate::models;
use crate::report::Interrupted;

pub(crate) async fn run(args: PullArgs, environment: &Environment) -> anyhow::Result<()> {
    let destination = match &args.to {
        Some(dir) => Destination::Directory(std::path::absolute(dir)?),
        None => environment.local.pull_destination(&args.model.repo)?,
    };
    let config = PullConfig {
        stall: Duration::from_secs(args.stall_timeout),
        retries: args.retries,
        takes_unsupported: args.unsupported,
        ..environment.local.pull_config()
    };
    let pull = Pull::new(args.model.repo.clone(), revision(&args)?, destination, config)?;
    // Waiting for the network blocks, so it runs on its own threads. They end with the process.
    let work = tokio::task::spawn_blocking(move || pull.run());
    let pulled = tokio::select! {
        result = work => result??,
        _ = tokio::signal::ctrl_c() => {
            let hint = "interrupted\nhint: the same command continues the download";
            return Err(anyhow::Error::new(Interrupted).context(hint));
        }
    };
    report(&args, &pulled)?;
    let PullArgs { hosts, copy_port, reach, json, .. } = args;
    let Some(hosts) = hosts else { return Ok(()) };
    let model = pulled.dir().to_path_buf();
    let connections = DEFAULT_CONNECTIONS;
    let sync = ModelsSyncArgs { model, hosts, from: None, connections, copy_port, reach, json };
    models::sync(sync, environment).await
}

fn revision(args: &PullArgs) -> anyhow::Result<Revision> {
    let (behind_at, option) = (&args.model.revision, &args.revision);
    ensure!(
        behind_at.is_none() || option.is_none() || behind_at == option,
        "two revisions are named\nhint: name one, behind an @ or with `--revision`"
    );
    Ok(behind_at.clone().or_else(|| option.clone()).unwrap_or_default())
}

fn report(args: &PullArgs, pulled: &Pulled) -> anyhow::Result<()> {
    let Pulled { commit, num_files, bytes, fetched_bytes, .. } = pulled;
    let dir = pulled.dir();
    let problems = pulled.problems();
    if args.json {
        output::line(json!({
            "event": "pulled", "model": args.model.repo.as_str(), "revision": commit, "path": dir,
            "files": num_files, "bytes": bytes, "fetched_bytes": fetched_bytes,
            "complete": problems.is_empty(), "problems": problems,
        }))?;
    }
    pulled.check()?;
    if args.json {
        return Ok(());
    }
    let (size, fetched) = (HumanBytes(*bytes), HumanBytes(*fetched_bytes));
    let name = match &args.to {
        Some(_) => dir.display().to_string(),
        None => args.model.to_string(),
    };
    output::line(format_args!(
        "{}: {}, {size} ({fetched} fetched now)\n  in         {}\n  \
         serve it   jackalope serve --model {name}",
        args.model,
        jackalope_protocol::counted(num_files, "file"),
        dir.display()
    ))?;
    Ok(())
}
