//! `pull` and `models`.

use std::path::PathBuf;

use clap::Subcommand;
use jackalope_store::{ModelRef, Revision};

use super::machines::ReachArgs;
use jackalope_store::pull::{RETRIES, STALL_SECONDS};

#[derive(Debug, clap::Args)]
pub(crate) struct PullArgs {
    /// The model on the hub, perhaps with a revision: ORG/NAME or ORG/NAME@REVISION.
    #[arg(value_name = "ORG/NAME")]
    pub(crate) model: ModelRef,
    /// Branch, tag or commit. Default: main.
    #[arg(long)]
    pub(crate) revision: Option<Revision>,
    /// Directory to put the files into. Default: Hugging Face's cache, which other programs share.
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// Seconds without a byte after which a connection is given up.
    #[arg(long, default_value_t = STALL_SECONDS, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) stall_timeout: u64,
    /// Attempts after a failure, as long as they bring nothing.
    #[arg(long, default_value_t = RETRIES, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) retries: u32,
    /// Fetch the model even if this version cannot load it.
    #[arg(long)]
    pub(crate) unsupported: bool,
    /// Then copy it to these machines, as `models sync` does: a hostfile, or names for ssh separated by
    /// commas.
    #[arg(long, value_name = "FILE|NAMES")]
    pub(crate) hosts: Option<String>,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// Print one JSON object.
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
    /// Check that a model is whole.
    Check(CheckArgs),
    /// Copy a model to other machines: over the slowest link once, then from one to the next.
    Sync(ModelsSyncArgs),
    /// Remove a model.
    Rm(RemoveArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Directory of the model, or its name: ORG/NAME.
    #[arg(value_name = "DIR|ORG/NAME")]
    pub(crate) model: PathBuf,
    /// Read every byte and compare it with what was fetched; with `--hosts`, with the other machines'.
    #[arg(long)]
    pub(crate) hash: bool,
    /// Compare these machines: a hostfile, or names for ssh separated by commas.
    #[arg(long, value_name = "FILE|NAMES")]
    pub(crate) hosts: Option<String>,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ModelsSyncArgs {
    /// Directory of the model, or its name: ORG/NAME.
    #[arg(value_name = "DIR|ORG/NAME")]
    pub(crate) model: PathBuf,
    /// The machines that shall have it: a hostfile, or names for ssh separated by commas.
    #[arg(long, value_name = "FILE|NAMES")]
    pub(crate) hosts: String,
    /// The one of them that has it. Default: this machine.
    #[arg(long, value_name = "HOST")]
    pub(crate) from: Option<String>,
    /// Connections between two machines.
    #[arg(long, default_value_t = Self::CONNECTIONS, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) connections: u32,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// Print one JSON object for each machine.
    #[arg(long)]
    pub(crate) json: bool,
}

impl ModelsSyncArgs {
    /// Connections, unless others are asked for.
    pub(crate) const CONNECTIONS: u32 = 4;
}

#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// Name of the model, ORG/NAME or ORG/NAME@REVISION, or its directory.
    #[arg(value_name = "ORG/NAME|DIR")]
    pub(crate) model: PathBuf,
    /// Do not ask; also remove a model outside the folders for models.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
