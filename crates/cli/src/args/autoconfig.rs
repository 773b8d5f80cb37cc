//! Arguments of `autoconfig`.

use std::path::PathBuf;

use clap::ValueEnum;

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["hosts", "undo"])))]
pub(crate) struct AutoconfigArgs {
    /// SSH host names, separated by commas; the first is rank 0.
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    pub(crate) hosts: Vec<String>,
    /// Network between the ranks.
    #[arg(long, value_enum, default_value_t = OverArg::Thunderbolt)]
    pub(crate) over: OverArg,
    /// Transport of the collectives.
    #[arg(long, value_enum, default_value_t = WantedBackend::Auto)]
    pub(crate) backend: WantedBackend,
    /// Print the cables in Graphviz format without changing anything.
    #[arg(long)]
    pub(crate) dot: bool,
    /// Print the commands without running them.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Run the commands without asking for confirmation.
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Undo an earlier run, from the undo file that it wrote.
    #[arg(long, value_name = "FILE")]
    pub(crate) undo: Option<PathBuf>,
    /// Undo file to write. Default: autoconfig-undo.json. An existing file is never overwritten.
    #[arg(long, value_name = "FILE")]
    pub(crate) undo_out: Option<PathBuf>,
    /// Hostfile to write. Default: standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Command to run as ssh, optionally with arguments: `ssh -F FILE` (JACKALOPE_SSH).
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ssh: Option<String>,
    /// Print the plan as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OverArg {
    /// Thunderbolt cables.
    Thunderbolt,
    /// The network with the default route, unchanged.
    Ethernet,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WantedBackend {
    /// The fastest transport that the cables support.
    Auto,
    /// Stock MLX over RDMA.
    Jaccl,
    /// Stock MLX over TCP.
    Ring,
    /// Jackalope's native group over TCP.
    Tcp,
}
