//! `jackalope fingerprint` and `jackalope cluster-info`: describe machines, one alone or several
//! side by side.

use std::time::Duration;

use anyhow::{Context, ensure};
use jackalope_console::output::{self, OutputError};
use jackalope_fleet::shell::{ShellError, SystemShell};
use jackalope_inspect::probe;
use jackalope_inspect::report::{NodeReport, RdmaDevice};
use serde_json::{Value, json};

use crate::args::{ClusterInfoArgs, FingerprintArgs};
use crate::doctor::machines;
use crate::environment::Environment;

/// Timeout for the report of one machine.
const REPORT_TIMEOUT: Duration = Duration::from_secs(20);

const GIB: f64 = (1u64 << 30) as f64;

/// Severity of a difference between machines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mark {
    /// Expected to differ, such as names.
    Free,
    /// Works, but should be checked.
    Warn,
    /// Ranks would reject each other.
    Error,
}

/// One line of the comparison.
struct Row {
    name: &'static str,
    mark: Mark,
    cells: Vec<Option<String>>,
}

pub(crate) fn run(args: &FingerprintArgs) -> anyhow::Result<()> {
    let shell = SystemShell::new(Vec::new());
    let report =
        probe::report(&shell, "127.0.0.1", REPORT_TIMEOUT).context("inspecting this machine")?;
    let object = fingerprint(&report);
    if let Some(dir) = &args.save {
        let path = dir.join(format!(".node_fingerprint_{}.json", report.facts.hostname));
        std::fs::write(&path, format!("{object:#}\n"))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if args.json {
        output::line(object)?;
        return Ok(());
    }
    for (key, value) in object.as_object().into_iter().flatten().filter(|(key, _)| *key != "facts")
    {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        output::line(format!("{key:<14} {text}"))?;
    }
    Ok(())
}

/// Returns the keys that cluster tools know, and all facts beside them. Values that only Metal can
/// report are null unless they were set: this program does not load libmlx.
fn fingerprint(report: &NodeReport) -> Value {
    let facts = &report.facts;
    let mac = report.mac.as_ref();
    json!({
        "hostname": facts.hostname,
        "version": env!("CARGO_PKG_VERSION"),
        "model": mac.map(|it| &it.model),
        "chip": facts.chip,
        "memory_gb": gib(facts.total_bytes),
        "cpu_cores": facts.cores,
        "macos": mac.and_then(|it| it.version).map(|it| it.to_string()),
        "mlx_version": report.mlx,
        "gpu": mac.map(|_| &facts.chip),
        "architecture": facts.arch,
        "max_wset_gb": mac.and_then(|it| it.gpu_limit_bytes).map(gib),
        "max_buffer_gb": Value::Null,
        "rdma_active": active(report),
        "facts": facts,
    })
}

/// Converts bytes to gibibytes with one decimal.
fn gib(bytes: u64) -> f64 {
    (bytes as f64 / GIB * 10.0).round() / 10.0
}

fn active(report: &NodeReport) -> Vec<&str> {
    let devices = report.mac.iter().filter_map(|mac| mac.rdma_devices.as_ref()).flatten();
    devices.filter(|it| it.is_active()).map(|it: &RdmaDevice| it.name.as_str()).collect()
}

/// Names of the rows that `--hardware` shows.
const HARDWARE: [&str; 5] = ["hostname", "memory", "free", "load", "heat"];

pub(crate) fn cluster_info(
    args: &ClusterInfoArgs,
    environment: &Environment,
) -> anyhow::Result<()> {
    let Some(seconds) = args.every else { return look(args, environment) };
    let mut num_left = args.count;
    while num_left != Some(0) {
        // A machine that cannot be reached now may be back at the next attempt.
        if let Err(err) = look(args, environment) {
            if err.downcast_ref::<OutputError>().is_some() {
                return Err(err);
            }
            output::note(&crate::report::text(&err));
        }
        num_left = num_left.map(|it| it - 1);
        if num_left != Some(0) {
            std::thread::sleep(Duration::from_secs(seconds));
        }
    }
    Ok(())
}

fn look(args: &ClusterInfoArgs, environment: &Environment) -> anyhow::Result<()> {
    let (names, _) = machines(&args.machines)?;
    let shell = environment.shell(args.machines.ssh.as_deref());
    let reports = probe::reports(&shell, &names, REPORT_TIMEOUT);
    let mut rows = rows(&reports);
    rows.retain(|row| !args.hardware || HARDWARE.contains(&row.name));
    let num_failed = reports.iter().filter(|it| it.is_err()).count();
    let differing: Vec<&Row> = rows.iter().filter(|row| row.differs()).collect();
    let bad: Vec<&str> =
        differing.iter().filter(|row| row.mark == Mark::Error).map(|row| row.name).collect();
    if args.machines.json {
        let node = |(name, report): (&String, &Result<NodeReport, ShellError>)| match report {
            Ok(report) => json!({"host": name, "fingerprint": fingerprint(report)}),
            Err(err) => json!({"host": name, "error": err.to_string()}),
        };
        let differing: Vec<&str> = differing.iter().map(|row| row.name).collect();
        let nodes: Vec<Value> = names.iter().zip(&reports).map(node).collect();
        output::line(json!({"nodes": nodes, "differing": differing, "errors": bad}))?;
    } else {
        for line in table(&names, &rows) {
            output::line(line)?;
        }
        for err in reports.iter().filter_map(|it| it.as_ref().err()) {
            output::line(format!("{err}\n  > {}", err.kind.hint(&err.host)))?;
        }
    }
    ensure!(
        num_failed == 0,
        "could not inspect {}",
        jackalope_protocol::counted(num_failed, "machine")
    );
    ensure!(
        bad.is_empty(),
        "must be the same on all machines: {}\nhint: install the same version of jackalope everywhere",
        bad.join(", ")
    );
    Ok(())
}

impl Row {
    fn differs(&self) -> bool {
        let mut known = self.cells.iter().flatten();
        let first = known.next();
        self.mark != Mark::Free && known.any(|cell| Some(cell) != first)
    }
}

fn rows(reports: &[Result<NodeReport, ShellError>]) -> Vec<Row> {
    let row = |name, mark, cell: &dyn Fn(&NodeReport) -> Option<String>| {
        let cells = reports.iter().map(|it| it.as_ref().ok().and_then(cell)).collect();
        Row { name, mark, cells }
    };
    let mac_rdma = |it: &NodeReport| {
        let devices = it.mac.as_ref()?.rdma_devices.as_ref()?;
        Some(devices.iter().map(|it| it.name.as_str()).collect::<Vec<&str>>().join(" "))
    };
    vec![
        row("hostname", Mark::Free, &|it| Some(it.facts.hostname.clone())),
        row("model", Mark::Warn, &|it| it.mac.as_ref().map(|mac| mac.model.clone())),
        row("chip", Mark::Warn, &|it| Some(it.facts.chip.clone())),
        row("memory", Mark::Warn, &|it| Some(format!("{} GiB", gib(it.facts.total_bytes)))),
        row("free", Mark::Free, &|it| Some(format!("{} GiB", gib(it.facts.free_bytes)))),
        row("cores", Mark::Warn, &|it| Some(it.facts.cores.to_string())),
        row("load", Mark::Free, &|it| it.facts.load_percent.map(|load| format!("{load} %"))),
        row("heat", Mark::Free, &|it| it.facts.thermal.map(|it| it.to_string())),
        row("GPU", Mark::Warn, &|it| it.facts.gpu.clone()),
        row("system", Mark::Warn, &|it| Some(it.facts.os.clone())),
        row("architecture", Mark::Warn, &|it| Some(it.facts.arch.clone())),
        row("GPU limit", Mark::Warn, &|it| {
            Some(format!("{} GiB", gib(it.mac.as_ref()?.gpu_limit_bytes?)))
        }),
        row("jackalope", Mark::Error, &|it| it.jackalope.clone()),
        row("mlx", Mark::Error, &|it| it.mlx.clone()),
        row("rdma", Mark::Free, &mac_rdma),
        row("rdma active", Mark::Free, &|it| it.mac.as_ref().map(|_| active(it).join(" "))),
    ]
}

/// Formats one column per machine. A row that differs is marked `!`, or `x` where it must not
/// differ.
fn table(names: &[String], rows: &[Row]) -> Vec<String> {
    let cell = |it: &Option<String>| match it.as_deref() {
        None | Some("") => "-".to_owned(),
        Some(text) => text.to_owned(),
    };
    let widths: Vec<usize> = names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let cells = rows.iter().map(|row| cell(&row.cells[at]).chars().count());
            cells.chain([name.chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let line = |mark: &str, name: &str, cells: &mut dyn Iterator<Item = String>| {
        let cells: Vec<String> =
            cells.zip(&widths).map(|(text, width)| format!("{text:<width$}")).collect();
        format!("{mark} {name:<13}{}", cells.join("  ")).trim_end().to_owned()
    };
    let mut lines = vec![line(" ", "", &mut names.iter().cloned())];
    for row in rows {
        let mark = match (row.differs(), row.mark) {
            (true, Mark::Error) => "x",
            (true, _) => "!",
            (false, _) => " ",
        };
        lines.push(line(mark, row.name, &mut row.cells.iter().map(cell)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, bytes: u64, version: &str) -> Result<NodeReport, ShellError> {
        let mut report = NodeReport::default();
        report.facts.hostname = name.to_owned();
        report.facts.chip = "Apple M4 Max".to_owned();
        report.facts.total_bytes = bytes;
        report.jackalope = Some(version.to_owned());
        Ok(report)
    }

    #[test]
    fn what_differs_is_marked_by_how_much_it_matters() {
        let nodes = [node("a", 64 << 30, "0.1.0"), node("b", 128 << 30, "0.2.0")];
        let rows = rows(&nodes);
        let names = ["a".to_owned(), "mac-studio-b".to_owned()];
        let lines = table(&names, &rows);
        let marked: Vec<&String> = lines.iter().filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(
            marked,
            ["! memory       64 GiB        128 GiB", "x jackalope    0.1.0         0.2.0"]
        );
        assert!(lines[1].starts_with("  hostname"));
    }

    #[test]
    fn a_fingerprint_has_the_keys_that_other_tools_know() {
        let Ok(report) = node("a", 64 << 30, "0.1.0") else { unreachable!("just made") };
        let found = fingerprint(&report);
        for key in ["hostname", "model", "chip", "memory_gb", "cpu_cores", "macos", "mlx_version"] {
            assert!(found.get(key).is_some(), "{key}");
        }
        for key in ["gpu", "architecture", "max_wset_gb", "max_buffer_gb", "rdma_active"] {
            assert!(found.get(key).is_some(), "{key}");
        }
        assert_eq!(found["memory_gb"], 64.0);
    }
}
