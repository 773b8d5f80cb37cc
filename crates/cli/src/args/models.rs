//! Arguments of `pull` and `models`.

use std::path::PathBuf;

use clap::Subcommand;
use jackalope_deploy::models::DEFAULT_CONNECTIONS;
use jackalope_store::{ModelRef, Revision};

use super::machines::ReachArgs;
use jackalope_store::pull::{RETRIES, STALL_SECONDS};

#[derive(Debug, clap::Args)]
pub(crate) struct PullArgs {
    /// Model on the hub, optionally with a revision: ORG/NAME or ORG/NAME@REVISION.
    #[arg(value_name = "ORG/NAME")]
    pub(crate) model: ModelRef,
    /// Branch, tag or commit to download. Default: main.
    #[arg(long)]
    pub(crate) revision: Option<Revision>,
    /// Directory to write the files to. Default: Hugging Face's cache, which other programs use as well.
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// Time without received data after which a connection is closed, in seconds.
    #[arg(long, default_value_t = STALL_SECONDS, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) stall_timeout: u64,
    /// Maximum number of consecutive retries of a file that bring no data.
    #[arg(long, default_value_t = RETRIES, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) retries: u32,
    /// Download the model even if this version cannot load it.
    #[arg(long)]
    pub(crate) unsupported: bool,
    /// Machines to copy the model to afterwards, as `models sync` does: a hostfile, or SSH host names
    /// separated by commas.
    #[arg(long, value_name = "FILE|NAMES")]
    pub(crate) hosts: Option<String>,
    /// Port on which the other machines copy the model from this one; 0: any free port.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) copy_port: u16,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    pub(crate) command: ModelsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// List the models on this machine.
    Ls(ListArgs),
    /// Check that a model is complete.
    Check(CheckArgs),
    /// Copy a model to other machines in a chain, so that it crosses the slowest link only once.
    Sync(ModelsSyncArgs),
    /// Remove a model.
    Rm(RemoveArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Directory of the model, or its name ORG/NAME.
    #[arg(value_name = "DIR|ORG/NAME")]
    pub(crate) model: PathBuf,
    /// Read every file and compare its hash with the one recorded at download; with `--hosts`, with the
    /// other machines'.
    #[arg(long)]
    pub(crate) hash: bool,
    /// Machines to compare: a hostfile, or SSH host names separated by commas.
    #[arg(long, value_name = "FILE|NAMES")]
    pub(crate) hosts: Option<String>,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ModelsSyncArgs {
    /// Directory of the model, or its name ORG/NAME.
    #[arg(value_name = "DIR|ORG/NAME")]
    pub(crate) model: PathBuf,
    /// Machines to copy the model to: a hostfile, or SSH host names separated by commas.
    #[arg(long, value_name = "FILE|NAMES")]
    pub(crate) hosts: String,
    /// Machine to copy the model from, one of these machines. Default: this machine.
    #[arg(long, value_name = "HOST")]
    pub(crate) from: Option<String>,
    /// Number of connections between two machines.
    #[arg(long, default_value_t = DEFAULT_CONNECTIONS, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) connections: u32,
    /// Port on which the other machines copy the model from this one; 0: any free port.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) copy_port: u16,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// Print one JSON object per machine instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// Name of the model, ORG/NAME or ORG/NAME@REVISION, or its directory.
    #[arg(value_name = "ORG/NAME|DIR")]
    pub(crate) model: PathBuf,
    /// Do not ask for confirmation; also remove a model outside the model folders.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}
