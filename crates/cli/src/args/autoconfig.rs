//! Arguments of `autoconfig`.

use std::path::PathBuf;

use clap::ValueEnum;

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["hosts", "undo"])))]
pub(crate) struct AutoconfigArgs {
    /// Machines as `ssh` knows them, separated by commas; the first is rank 0.
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    pub(crate) hosts: Vec<String>,
    /// What ranks talk over.
    #[arg(long, value_enum, default_value_t = OverArg::Thunderbolt)]
    pub(crate) over: OverArg,
    /// Transport of the collectives.
    #[arg(long, value_enum, default_value_t = WantedBackend::Auto)]
    pub(crate) backend: WantedBackend,
    /// Print the cables for GraphViz and stop.
    #[arg(long)]
    pub(crate) dot: bool,
    /// Print the commands and stop.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Run the commands without asking.
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Take back what an earlier run did, from the file that it wrote.
    #[arg(long, value_name = "FILE")]
    pub(crate) undo: Option<PathBuf>,
    /// Where to keep what takes this run back. Default: autoconfig-undo.json, never written over.
    #[arg(long, value_name = "FILE")]
    pub(crate) undo_out: Option<PathBuf>,
    /// Where to write the hostfile. Default: standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// The `ssh` to use, with arguments: `ssh -F FILE`.
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
    /// The network that leads to the internet, as it is.
    Ethernet,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WantedBackend {
    /// The fastest that the cables allow.
    Auto,
    /// Stock MLX over RDMA.
    Jaccl,
    /// Stock MLX over TCP.
    Ring,
    /// Jackalope's own group.
    Tcp,
}
