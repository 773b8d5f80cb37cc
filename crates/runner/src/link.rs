//! Measures a group without a model: whether every operation is correct, how long each takes, and
//! what waiting costs. Measures the native group directly and through MLX evaluations, stock groups
//! through MLX, and a bare exchange over the same sockets, all in one run.
//!
//! Every rank runs the same program; rank 0 prints one JSON object per line.

mod check;
mod contestants;
mod watchdog;

use std::io::{BufRead, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use jackalope_mlx as mlx;
use jackalope_transport::bench::{Effort, LinkRow, measure_idle};
use jackalope_transport::{Dtype, Group, GroupConfig, group_key};
use serde_json::{Value, json};

use self::check::{Checked, Collectives, Evaluated};
use self::contestants::Contestants;
use self::watchdog::Watchdog;
use crate::control::end_with_standard_input;
use crate::startup::{PortRange, listen, read_secret};

/// Time by which the last rank is late when the idle cost of the others is measured.
const IDLE_TIME: Duration = Duration::from_secs(2);

/// Epochs of the native groups that are measured: used directly, from MLX, and encrypted.
const EPOCH_TRANSPORT: u64 = 1;
const EPOCH_MLX: u64 = 2;
const EPOCH_ENCRYPTED: u64 = 3;

#[derive(Debug, clap::Args)]
pub(crate) struct LinkArgs {
    /// Number of this rank.
    #[arg(long)]
    rank: usize,
    /// Addresses on which to accept the native group's connections, with the same port on each.
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1")]
    data: Vec<IpAddr>,
    /// Port, or range FIRST-LAST from which a free port is selected; 0 selects any free port.
    #[arg(long, default_value = "0")]
    data_ports: PortRange,
    /// Payload sizes in bytes, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "4096,65536,1048576,67108864")]
    sizes: Vec<usize>,
    /// Groups to measure; the native group is always measured.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp")]
    backends: Vec<BackendArg>,
    /// Number of sockets between two ranks of the native group.
    #[arg(long, default_value_t = 1)]
    sockets: usize,
    /// Verify a checksum of every payload of the native group.
    #[arg(long)]
    checksums: bool,
    /// Encrypt the connections of the native group.
    #[arg(long)]
    encrypt: bool,
    /// Also measure sums in an encrypted native group.
    #[arg(long, conflicts_with = "encrypt")]
    compare_encrypted: bool,
    /// Time to measure each operation and size, in milliseconds.
    #[arg(long, default_value_t = 500)]
    budget_ms: u64,
    /// Number of measurements of each operation and size, instead of a time.
    #[arg(long)]
    rounds: Option<u32>,
    /// Also print the time of each round.
    #[arg(long)]
    every_round: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BackendArg {
    Tcp,
    Ring,
    Jaccl,
    Nccl,
}

impl BackendArg {
    fn stock(self) -> Option<mlx::Backend> {
        match self {
            BackendArg::Tcp => None,
            BackendArg::Ring => Some(mlx::Backend::Ring),
            BackendArg::Jaccl => Some(mlx::Backend::Jaccl),
            BackendArg::Nccl => Some(mlx::Backend::Nccl),
        }
    }
}

/// A group used inside evaluations, with the name it has in rows.
struct MlxGroup {
    backend: &'static str,
    group: mlx::Group,
}

/// Joins, checks and measures. Standard input provides the secret and then the ranks' addresses,
/// and must stay open: the process ends when it closes.
pub(crate) fn run(args: &LinkArgs) -> anyhow::Result<()> {
    let secret = read_secret()?;
    let listener = listen(&args.data, args.data_ports)?;
    let addr = listener.local_addr().to_string();
    print(&json!({ "row": "listening", "rank": args.rank, "addr": addr }))?;
    let peers = read_peers()?;
    end_with_standard_input();
    let watchdog = Watchdog::start();

    let config = GroupConfig {
        sockets_per_peer: args.sockets,
        checksums: args.checksums,
        encrypt: vec![args.encrypt; peers.len()],
        ..GroupConfig::new(args.rank, peers, EPOCH_TRANSPORT, group_key(&secret.0))
    };
    watchdog.expect("join", config.join_timeout * 2);
    let mut group = Group::join(&listener, config.clone())?;
    print_on_first(&group, &describe(&config))?;
    let for_mlx = GroupConfig { epoch: EPOCH_MLX, ..config.clone() };
    let native = mlx::Group::native(Group::join(&listener, for_mlx)?);
    let mut groups = vec![MlxGroup { backend: "tcp", group: native }];
    let encrypted =
        GroupConfig { epoch: EPOCH_ENCRYPTED, encrypt: vec![true; config.size()], ..config };
    let compare = || Group::join(&listener, encrypted);
    let mut compared = args.compare_encrypted.then(compare).transpose()?;
    for backend in args.backends.iter().filter_map(|backend| backend.stock()) {
        watchdog.expect("forming a stock group", Duration::from_secs(120));
        groups.extend(form_stock(&mut group, backend)?);
    }

    let all_right = check(&mut group, &groups, &watchdog)?;
    let contestants = Contestants { groups: &groups, encrypted: compared.as_mut() };
    measure(&mut group, contestants, args, &watchdog)?;
    watchdog.expect("waiting", IDLE_TIME * 10);
    let core_share = measure_idle(&mut group, IDLE_TIME)?;
    print_on_first(&group, &json!({ "row": "idle", "core_share": core_share }))?;
    // No rank leaves while others still measure.
    group.barrier()?;
    print_on_first(&group, &json!({ "row": "done" }))?;
    if !all_right {
        bail!("an operation gave a wrong result");
    }
    Ok(())
}

/// Reads the second line of standard input: the addresses of all ranks, by rank.
fn read_peers() -> anyhow::Result<Vec<SocketAddr>> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("reading the ranks' addresses")?;
    line.trim()
        .split(',')
        .map(|addr| addr.parse().with_context(|| format!("reading the address {addr:?}")))
        .collect()
}

fn describe(config: &GroupConfig) -> Value {
    json!({
        "row": "group",
        "size": config.size(),
        "device": match mlx::device() { mlx::Device::Cpu => "cpu", mlx::Device::Gpu => "gpu" },
        "mlx": mlx::version(),
        "sockets_per_peer": config.sockets_per_peer,
        "checksums": config.checksums,
        "encrypted": config.encrypt.contains(&true),
        "spin_us": config.spin.as_micros() as u64,
    })
}

/// Forms a stock group if all ranks can; otherwise prints the reason and returns `None`.
fn form_stock(group: &mut Group, backend: mlx::Backend) -> anyhow::Result<Option<MlxGroup>> {
    let formed = mlx::Group::stock(backend, group.rank(), group.size());
    let num_formed = count(group, formed.is_ok())?;
    let reason = match formed {
        Ok(formed) if num_formed == group.size() => {
            return Ok(Some(MlxGroup { backend: backend.name(), group: formed }));
        }
        Ok(_) => "another rank could not form the group".to_owned(),
        Err(err) => err.to_string(),
    };
    let refused = json!({ "row": "refused", "backend": backend.name(), "reason": reason });
    print_on_first(group, &refused)?;
    Ok(None)
}

/// Returns the number of ranks on which `is_so` is true.
fn count(group: &mut Group, is_so: bool) -> anyhow::Result<usize> {
    let mut vote = u32::from(is_so).to_le_bytes();
    group.all_sum(&mut vote, Dtype::U32)?;
    Ok(u32::from_le_bytes(vote) as usize)
}

/// Checks every operation and type of every group. Returns whether all were correct on all ranks.
fn check(group: &mut Group, groups: &[MlxGroup], watchdog: &Watchdog) -> anyhow::Result<bool> {
    watchdog.expect("checking the native group", Duration::from_secs(120));
    let mut all_right = report(group, "tcp", "transport", None)?;
    for MlxGroup { backend, group: inside } in groups {
        watchdog.expect("checking a group inside evaluations", Duration::from_secs(120));
        all_right &= report(group, backend, "mlx", Some(inside))?;
    }
    Ok(all_right)
}

/// Checks one group, `inside` evaluations or else `group` itself, and prints a row per check.
/// Returns whether all checks passed on all ranks.
fn report(
    group: &mut Group,
    backend: &str,
    via: &str,
    inside: Option<&mlx::Group>,
) -> anyhow::Result<bool> {
    let checked: Vec<Checked> = match inside {
        Some(inside) => check::all(&mut Evaluated(inside), backend == "tcp"),
        None => check::all(group as &mut dyn Collectives, true),
    };
    let mut all_right = true;
    for Checked { op, dtype, error } in checked {
        // A failed group cannot be used, so the count runs over the group that is used directly.
        let num_right = count(group, error.is_none())?;
        let ok = num_right == group.size();
        all_right &= ok;
        let mut row = json!({
            "row": "check", "backend": backend, "via": via,
            "op": op, "dtype": dtype.name(), "ok": ok,
        });
        if let Some(error) = error {
            row["error"] = json!(error);
        }
        print_on_first(group, &row)?;
    }
    Ok(all_right)
}

fn measure(
    group: &mut Group,
    mut contestants: Contestants<'_>,
    args: &LinkArgs,
    watchdog: &Watchdog,
) -> anyhow::Result<()> {
    let effort = match args.rounds {
        Some(rounds) => {
            Effort { budget: Duration::ZERO, iterations_min: rounds, iterations_max: rounds }
        }
        None => Effort { budget: Duration::from_millis(args.budget_ms), ..Effort::default() },
    };
    for (size_idx, bytes) in args.sizes.iter().enumerate() {
        watchdog.expect("measuring", Duration::from_secs(600));
        let bytes = bytes.next_multiple_of(4).max(4);
        for timed in contestants::take(group, &mut contestants, bytes, size_idx == 0, &effort)? {
            let LinkRow {
                op,
                bytes,
                iterations,
                median_us,
                p90_us,
                p99_us,
                bytes_per_s,
                rounds_us,
            } = timed.row;
            let mut row = json!({
                "row": "time", "backend": timed.backend, "via": timed.via, "op": op.name(),
                "bytes": bytes, "iterations": iterations, "median_us": median_us,
                "p90_us": p90_us, "p99_us": p99_us, "bytes_per_s": bytes_per_s,
            });
            if args.every_round {
                row["rounds_us"] = json!(rounds_us);
            }
            print_on_first(group, &row)?;
        }
    }
    Ok(())
}

fn print_on_first(group: &Group, row: &Value) -> anyhow::Result<()> {
    if group.rank() == 0 { print(row) } else { Ok(()) }
}

fn print(row: &Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{row}").and_then(|()| out.flush()).context("writing to standard output")
}
