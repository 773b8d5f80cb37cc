//! `jackalope link`: the group that ranks compute over, checked and measured without a model.

use std::io::{BufRead, BufReader};
use std::process::ChildStdout;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use jackalope_cluster::local::{LocalError, LocalRanks, find_rank_program};
use jackalope_cluster::process::{Child, describe};
use jackalope_protocol::{Backend, Secret};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::args::LinkArgs;
use crate::cluster::random_bytes;
use crate::output;

/// From starting a rank to its first line.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Bound of the silence between two rows: the largest payload over a slow link takes its time.
const ROW_TIMEOUT: Duration = Duration::from_secs(120);

/// How long ranks may take to end after the last row.
const END_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) async fn run(args: &LinkArgs) -> anyhow::Result<()> {
    let work = measure(args);
    tokio::select! {
        result = work => result,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
    }
}

async fn measure(args: &LinkArgs) -> anyhow::Result<()> {
    // The settings of stock groups live as long as `_local`.
    let (_local, mut ranks) = start(args)?;
    let (sender, mut rows) = mpsc::channel(256);
    let mut addrs = Vec::new();
    for (rank, child) in ranks.iter_mut().enumerate() {
        let stdout = child.take_stdout().context("a rank's output is read once")?;
        let (first, rest) = first_row(stdout).await.with_context(|| last_words(rank, child))?;
        addrs.push(
            first["addr"].as_str().context("a rank did not say where it listens")?.to_owned(),
        );
        if rank == 0 {
            forward(rest, sender.clone());
        }
    }
    drop(sender);
    let line = format!("{}\n", addrs.join(","));
    for child in &mut ranks {
        child.send_input(line.as_bytes()).context("telling a rank the addresses")?;
    }
    let mut table = Table::default();
    let mut failed = 0;
    loop {
        let row = tokio::time::timeout(ROW_TIMEOUT, rows.recv()).await.with_context(|| {
            format!("no row within {ROW_TIMEOUT:?}\n{}", last_words(0, &mut ranks[0]))
        })?;
        let Some(row) = row else { bail!("{}", last_words(0, &mut ranks[0])) };
        failed += u32::from(row["ok"] == false);
        if args.json {
            output::line(&row)?;
        } else if let Some(text) = table.text(&row) {
            output::line(text)?;
        }
        if row["row"] == "done" {
            break;
        }
    }
    let deadline = Instant::now() + END_TIMEOUT;
    for (rank, child) in ranks.iter_mut().enumerate() {
        ensure!(child.wait_until(deadline).is_some(), "rank {rank} does not end");
    }
    ensure!(failed == 0, "{failed} checks failed; the rows above say which");
    Ok(())
}

fn start(args: &LinkArgs) -> anyhow::Result<(LocalRanks, Vec<Child>)> {
    let secret = Secret(random_bytes().context("drawing the group's secret")?);
    let backends: Vec<Backend> = args.backend.iter().map(|&arg| arg.into()).collect();
    // The ring's settings are the ones that have to be made; they do not disturb the others.
    let settings = if backends.contains(&Backend::Ring) { Backend::Ring } else { Backend::Tcp };
    let mut local = LocalRanks::new(&find_rank_program()?, settings, args.ranks as usize);
    let sizes: Vec<String> = args.sizes.iter().map(usize::to_string).collect();
    let names: Vec<&str> = backends.iter().map(|backend| backend.name()).collect();
    let mut words = vec![format!("--sizes={}", sizes.join(","))];
    words.push(format!("--budget-ms={}", args.budget_ms));
    words.extend(args.rounds.map(|rounds| format!("--rounds={rounds}")));
    if !names.is_empty() {
        words.push(format!("--backends={}", names.join(",")));
    }
    if args.checksums {
        words.push("--checksums".to_owned());
    }
    let ranks: Result<Vec<Child>, LocalError> =
        (0..args.ranks as usize).map(|rank| local.start_link(rank, &words, &secret)).collect();
    Ok((local, ranks?))
}

async fn first_row(stdout: ChildStdout) -> anyhow::Result<(Value, BufReader<ChildStdout>)> {
    let read = tokio::task::spawn_blocking(move || {
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        Ok::<_, std::io::Error>((line, reader))
    });
    let (line, reader) = tokio::time::timeout(START_TIMEOUT, read)
        .await
        .with_context(|| format!("a rank did not start within {START_TIMEOUT:?}"))???;
    Ok((serde_json::from_str(&line).context("a rank ended early")?, reader))
}

/// Reads rank 0's rows on a thread of its own; ends with the rank.
fn forward(reader: BufReader<ChildStdout>, rows: mpsc::Sender<Value>) {
    std::thread::spawn(move || {
        for line in reader.lines() {
            let Ok(line) = line else { return };
            let Ok(row) = serde_json::from_str(&line) else { continue };
            if rows.blocking_send(row).is_err() {
                return;
            }
        }
    });
}

fn last_words(rank: usize, child: &mut Child) -> String {
    let end = child.try_wait().map_or_else(|| "still runs".to_owned(), describe);
    format!("rank {rank} {end}: {}", child.last_words())
}

/// Prints rows as they come, with a heading before the first measured one.
#[derive(Debug, Default)]
struct Table {
    num_checks: u32,
    has_heading: bool,
}

impl Table {
    fn text(&mut self, row: &Value) -> Option<String> {
        let word = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        match row["row"].as_str()? {
            "group" => Some(format!("{} ranks, libmlx {}", row["size"], word("mlx"))),
            "check" if row["ok"] == true => {
                self.num_checks += 1;
                None
            }
            "check" => Some(format!(
                "FAILED  {} {} {} {}: {}",
                word("backend"),
                word("via"),
                word("op"),
                word("dtype"),
                word("error")
            )),
            "refused" => Some(format!("{:<6} refused: {}", word("backend"), word("reason"))),
            "idle" => {
                Some(format!("share of a core while waiting, by rank: {}", row["core_share"]))
            }
            "time" => Some(self.time(row)),
            "done" => Some(format!("{} checks passed", self.num_checks)),
            _ => None,
        }
    }

    fn time(&mut self, row: &Value) -> String {
        let mut text = String::new();
        if !self.has_heading {
            self.has_heading = true;
            text += &format!(
                "{:<8}{:<11}{:<15}{:>10}{:>11}{:>11}{:>11}{:>10}\n",
                "backend", "through", "operation", "bytes", "median µs", "p90 µs", "p99 µs", "GB/s"
            );
        }
        let word = |key: &str| row[key].as_str().unwrap_or_default();
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        text += &format!(
            "{:<8}{:<11}{:<15}{:>10}{:>11.1}{:>11.1}{:>11.1}{:>10.3}",
            word("backend"),
            word("via"),
            word("op"),
            row["bytes"].to_string(),
            number("median_us"),
            number("p90_us"),
            number("p99_us"),
            number("bytes_per_s") / 1e9
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_is_shown_and_a_passed_one_counted() {
        let mut table = Table::default();
        let passed = serde_json::json!({"row": "check", "ok": true});
        assert_eq!(table.text(&passed), None);
        let failed = serde_json::json!({"row": "check", "ok": false, "backend": "tcp",
            "via": "mlx", "op": "all_sum", "dtype": "bf16", "error": "1 is not 2"});
        assert!(table.text(&failed).unwrap().contains("all_sum bf16: 1 is not 2"));
        let done = serde_json::json!({"row": "done"});
        assert_eq!(table.text(&done).unwrap(), "1 checks passed");
    }
}
