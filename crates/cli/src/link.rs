//! `jackalope link`: checks and measures the group that ranks compute over, without a model.

mod ranks;
mod table;

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use jackalope_console::output;
use jackalope_protocol::{Backend, counted};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use self::ranks::{AgentRanks, OwnRanks, Ranks};
use self::table::{Table, Verdicts};
use crate::args::LinkArgs;
use crate::environment::Environment;
use crate::report::interruptible;

/// Maximum time from starting a rank to its first line.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum time between two rows: the largest payload over a slow link takes long.
const ROW_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum time in which ranks must end after the last row.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Time without a row after which the ranks are checked; by then the output of an ended rank has
/// been read.
const POLL: Duration = Duration::from_millis(200);

/// Receives the rows that ranks write, each with its rank.
type Rows = mpsc::Receiver<(usize, Value)>;

pub(crate) async fn run(args: &LinkArgs, environment: &Environment) -> anyhow::Result<()> {
    interruptible(start_and_measure(args, environment)).await
}

async fn start_and_measure(args: &LinkArgs, environment: &Environment) -> anyhow::Result<()> {
    let (sender, rows) = mpsc::channel(256);
    let backends: Vec<Backend> = args.backend.iter().map(|&arg| arg.into()).collect();
    match &args.hosts {
        None => measure(OwnRanks::start(args, &backends, &sender)?, rows, args).await,
        Some(hosts) => {
            let (ranks, refused) =
                AgentRanks::start(hosts, environment, args, &backends, sender).await?;
            for (backend, reason) in refused {
                let row = json!({"row": "refused", "backend": backend.name(), "reason": reason});
                show(&row, &mut Table::default(), args.json)?;
            }
            measure(ranks, rows, args).await
        }
    }
}

async fn measure(mut ranks: impl Ranks, mut rows: Rows, args: &LinkArgs) -> anyhow::Result<()> {
    let mut addrs: Vec<Option<String>> = vec![None; ranks.len()];
    while addrs.contains(&None) {
        let (rank, row) = next(&mut rows, &mut ranks, START_TIMEOUT).await?;
        let addr = row["addr"].as_str().context("a rank did not report its address")?;
        addrs[rank] = Some(addr.to_owned());
    }
    let addrs: Vec<String> = addrs.into_iter().flatten().collect();
    ranks.send_addrs(&addrs)?;
    let hosts = ranks.hosts();
    let (mut table, mut verdicts) = (Table::default(), Verdicts::default());
    let mut failed = 0;
    loop {
        let (_, mut row) = next(&mut rows, &mut ranks, ROW_TIMEOUT).await?;
        failed += u32::from(row["ok"] == false);
        verdicts.note(&row);
        let is_over = row["row"] == "done";
        if is_over && !hosts.is_empty() {
            for verdict in verdicts.rows(ranks.cables(), ranks.len()) {
                show(&verdict, &mut table, args.json)?;
            }
        }
        if row["row"] == "group" && !hosts.is_empty() {
            row["hosts"] = json!(hosts);
        }
        show(&row, &mut table, args.json)?;
        if is_over {
            break;
        }
    }
    let deadline = Instant::now() + END_TIMEOUT;
    for rank in 0..ranks.len() {
        while ranks.ended(rank).is_none() {
            ensure!(Instant::now() < deadline, "rank {rank} does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    ensure!(failed == 0, "{} failed; see the rows above", counted(failed, "check"));
    Ok(())
}

/// Returns the next row. Fails if a rank ends or cannot be reached, or if no row arrives within
/// `timeout`.
async fn next(
    rows: &mut Rows,
    ranks: &mut impl Ranks,
    timeout: Duration,
) -> anyhow::Result<(usize, Value)> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Ok(Some(row)) = tokio::time::timeout(POLL, rows.recv()).await {
            return Ok(row);
        }
        for rank in 0..ranks.len() {
            if let Some(end) = ranks.ended(rank).or_else(|| ranks.trouble(rank)) {
                bail!("{} {end}", ranks.name(rank));
            }
        }
        ensure!(Instant::now() < deadline, "ranks sent nothing for {timeout:?}");
        // Without this pause, a channel whose senders are all gone would make this a busy loop.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn show(row: &Value, table: &mut Table, json: bool) -> anyhow::Result<()> {
    if json {
        output::line(row)?;
    } else if let Some(text) = table.text(row) {
        output::line(text)?;
    }
    Ok(())
}
