//! Arguments of `hosts`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use jackalope_fleet::hostfile::HostfileShape;

use super::BackendArg;

#[derive(Debug, clap::Args)]
pub(crate) struct HostsArgs {
    #[command(subcommand)]
    pub(crate) command: HostsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HostsCommand {
    /// Check a hostfile and report errors and warnings with line and column.
    Lint(LintArgs),
    /// Convert a hostfile to another format.
    Convert(ConvertArgs),
    /// Create a hostfile.
    New(NewHostsArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct LintArgs {
    /// Hostfile to read.
    pub(crate) file: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ConvertArgs {
    /// Hostfile to read.
    pub(crate) file: PathBuf,
    /// Format to write.
    #[arg(long, value_enum)]
    pub(crate) to: ShapeArg,
    /// First port of a ring. Default: the ports in the file, else 32323.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Number of connections of a ring per address. Default: the number in the file, else 1.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) connections: Option<u16>,
    #[command(flatten)]
    pub(crate) out: OutArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NewHostsArgs {
    /// SSH host names, one per rank, separated by commas; 127.0.0.1 is this machine.
    #[arg(long, value_delimiter = ',', required_unless_present = "discover", value_name = "NAMES")]
    pub(crate) hosts: Vec<String>,
    /// Use the machines that `jackalope discover` finds, this machine first, then by memory and name; with
    /// `=N`, wait until N are found.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "0", value_parser = clap::value_parser!(u16).range(0..=64), conflicts_with_all = ["hosts", "ips"])]
    pub(crate) discover: Option<u16>,
    /// Port of the agents to discover.
    #[arg(long, value_name = "PORT", default_value_t = 18081, value_parser = clap::value_parser!(u16).range(1..), requires = "discover")]
    pub(crate) agent_port: u16,
    /// IP addresses, one per host, separated by commas; `+` joins several of one host, and a host may have
    /// none.
    #[arg(long, value_delimiter = ',', value_name = "IPS")]
    pub(crate) ips: Vec<String>,
    /// Transport of the collectives.
    #[arg(long, value_enum)]
    pub(crate) backend: Option<BackendArg>,
    /// Network between the machines. `thunderbolt` assigns two addresses to every cable and prints where
    /// they belong.
    #[arg(long, value_enum, default_value_t = OverArg::Ethernet)]
    pub(crate) over: OverArg,
    /// File with JACCL's matrix of RDMA devices.
    #[arg(long, value_name = "FILE")]
    pub(crate) rdma: Option<PathBuf>,
    /// Environment variable for every rank: `NAME=VALUE`. May be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    #[command(flatten)]
    pub(crate) out: OutArgs,
}

/// Destination of a file.
#[derive(Debug, clap::Args)]
pub(crate) struct OutArgs {
    /// File to write. Default: standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Overwrite the file if it exists.
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum OverArg {
    /// Cables between the machines.
    Thunderbolt,
    /// A network that all machines share.
    Ethernet,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ShapeArg {
    /// A list of objects with ssh, ips and rdma.
    Array,
    /// An object with that list, the backend and environment variables.
    Object,
    /// Addresses with ports, as MLX's ring backend reads them.
    Ring,
    /// RDMA devices, as JACCL reads them.
    Matrix,
}

impl From<ShapeArg> for HostfileShape {
    fn from(shape: ShapeArg) -> HostfileShape {
        match shape {
            ShapeArg::Array => HostfileShape::Array,
            ShapeArg::Object => HostfileShape::Object,
            ShapeArg::Ring => HostfileShape::Ring,
            ShapeArg::Matrix => HostfileShape::Matrix,
        }
    }
}
