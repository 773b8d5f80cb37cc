//! `jackalope hosts`, as typed.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use jackalope_fleet::hostfile::Shape;

use super::BackendArg;

#[derive(Debug, clap::Args)]
pub(crate) struct HostsArgs {
    #[command(subcommand)]
    pub(crate) command: HostsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HostsCommand {
    /// Check a hostfile: what is wrong, with line and column, and what deserves a look.
    Lint(LintArgs),
    /// Write a hostfile in another shape.
    Convert(ConvertArgs),
    /// Make a hostfile.
    New(NewHostsArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct LintArgs {
    /// The hostfile.
    pub(crate) file: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ConvertArgs {
    /// The hostfile.
    pub(crate) file: PathBuf,
    /// The shape to write.
    #[arg(long, value_enum)]
    pub(crate) to: ShapeArg,
    /// First port of a ring. Default: the file's ports, else 32323.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Connections of a ring over each address. Default: the file's, else 1.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) connections: Option<u16>,
    #[command(flatten)]
    pub(crate) out: OutArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NewHostsArgs {
    /// What you type after `ssh`, one for each rank; 127.0.0.1 is this machine.
    #[arg(long, value_delimiter = ',', required_unless_present = "discover", value_name = "NAMES")]
    pub(crate) hosts: Vec<String>,
    /// The machines that `jackalope discover` finds, this one first, then by memory and name; with `=N`,
    /// once N are there.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "0", value_parser = clap::value_parser!(u16).range(0..=64), conflicts_with_all = ["hosts", "ips"])]
    pub(crate) discover: Option<u16>,
    /// Where agents listen that are discovered.
    #[arg(long, value_name = "PORT", default_value_t = 18081, requires = "discover")]
    pub(crate) agent_port: u16,
    /// Addresses, one for each host; `+` joins several of one host, and a host may have none.
    #[arg(long, value_delimiter = ',', value_name = "IPS")]
    pub(crate) ips: Vec<String>,
    /// Transport.
    #[arg(long, value_enum)]
    pub(crate) backend: Option<BackendArg>,
    /// What joins the machines. `thunderbolt` gives every cable two addresses of its own and says
    /// where they belong.
    #[arg(long, value_enum, default_value_t = OverArg::Ethernet)]
    pub(crate) over: OverArg,
    /// RDMA devices: a file with JACCL's matrix.
    #[arg(long, value_name = "FILE")]
    pub(crate) rdma: Option<PathBuf>,
    /// Variables for every rank.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    #[command(flatten)]
    pub(crate) out: OutArgs,
}

/// Where a file goes.
#[derive(Debug, clap::Args)]
pub(crate) struct OutArgs {
    /// File to write. Default: standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Overwrite it.
    #[arg(long, requires = "out")]
    pub(crate) force: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum OverArg {
    /// Cables between the machines.
    Thunderbolt,
    /// A network all machines are in.
    Ethernet,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ShapeArg {
    /// A list of {ssh, ips, rdma}.
    Array,
    /// The list with backend and variables.
    Object,
    /// Addresses with ports, as MLX's ring reads them.
    Ring,
    /// Devices, as JACCL reads them.
    Matrix,
}

impl From<ShapeArg> for Shape {
    fn from(shape: ShapeArg) -> Shape {
        match shape {
            ShapeArg::Array => Shape::Array,
            ShapeArg::Object => Shape::Object,
            ShapeArg::Ring => Shape::Ring,
            ShapeArg::Matrix => Shape::Matrix,
        }
    }
}
