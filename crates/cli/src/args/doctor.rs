//! Arguments of the commands that inspect machines.

use std::path::PathBuf;

/// The machines to inspect, and how they are reached.
#[derive(Debug, clap::Args)]
pub(crate) struct MachinesArgs {
    /// Machines: a hostfile, or SSH host names separated by commas.
    #[arg(long, value_name = "FILE|NAMES", conflicts_with = "host")]
    pub(crate) hosts: Option<String>,
    /// SSH host names, separated by commas. Default: this machine.
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    pub(crate) host: Vec<String>,
    /// Command to run as ssh, optionally with arguments: `ssh -F FILE` (JACKALOPE_SSH).
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ssh: Option<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) machines: MachinesArgs,
    /// Directory of a model whose file sizes are compared on all machines.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<String>,
    /// Compare hashes of the model's files instead of sizes, which reads them completely.
    #[arg(long, requires = "model")]
    pub(crate) hash: bool,
    /// Log file whose errors to explain, instead of inspecting machines; `-` reads standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hosts", "host", "model"])]
    pub(crate) log: Option<PathBuf>,
    /// Print all possible findings, as in `docs/troubleshooting.md`.
    #[arg(long, hide = true)]
    pub(crate) catalogue: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClusterInfoArgs {
    #[command(flatten)]
    pub(crate) machines: MachinesArgs,
    /// Show only values that change: memory, load and temperature state.
    #[arg(long)]
    pub(crate) hardware: bool,
    /// Repeat at this interval until Ctrl-C, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) every: Option<u64>,
    /// Number of repetitions. Default: unlimited.
    #[arg(long, value_name = "TIMES", requires = "every", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FingerprintArgs {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    /// Directory in which to also write `.node_fingerprint_HOSTNAME.json`.
    #[arg(long, value_name = "DIR")]
    pub(crate) save: Option<PathBuf>,
}
