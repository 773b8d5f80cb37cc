//! Arguments of the commands that look at machines.

use std::path::PathBuf;

/// Which machines, and how they are reached.
#[derive(Debug, clap::Args)]
pub(crate) struct MachinesArgs {
    /// The machines: a hostfile, or names for ssh separated by commas.
    #[arg(long, value_name = "FILE|NAMES", conflicts_with = "host")]
    pub(crate) hosts: Option<String>,
    /// Machines as `ssh` knows them, separated by commas. Default: this one.
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    pub(crate) host: Vec<String>,
    /// The `ssh` to use, with arguments: `ssh -F FILE`.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ssh: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) machines: MachinesArgs,
    /// A model's folder, to compare its files on all machines by size.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<String>,
    /// Compare the model's files byte by byte, which reads them all.
    #[arg(long, requires = "model")]
    pub(crate) hash: bool,
    /// Explain the errors in a log instead; `-` for standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hosts", "host", "model"])]
    pub(crate) log: Option<PathBuf>,
    /// Print everything that can be found, as `docs/troubleshooting.md`.
    #[arg(long, hide = true)]
    pub(crate) catalogue: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClusterInfoArgs {
    #[command(flatten)]
    pub(crate) machines: MachinesArgs,
    /// Only what changes: memory, load and heat.
    #[arg(long)]
    pub(crate) hardware: bool,
    /// Look again every so many seconds, until Ctrl-C.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) every: Option<u64>,
    /// End after so many looks.
    #[arg(long, value_name = "TIMES", requires = "every")]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FingerprintArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write it to `.node_fingerprint_HOSTNAME.json` in this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) save: Option<PathBuf>,
}
