//! `jackalope trust`.

use clap::Subcommand;

/// Show and change which machines this one trusts.
#[derive(Debug, clap::Args)]
pub(crate) struct TrustArgs {
    #[command(subcommand)]
    pub(crate) command: TrustCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TrustCommand {
    /// List this machine's key, who may command it, which machines it commands, and who was refused.
    List {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Accept a machine that was refused: to be commanded by this one, or to command it.
    Accept {
        /// As `trust list` shows it: the name or key of one to command, the key of one that commands.
        #[arg(value_name = "HOST|KEY")]
        machine: String,
    },
    /// Trust a machine no longer; its sessions and programs here end at once.
    Revoke {
        /// Its name or key, as `trust list` shows it.
        #[arg(value_name = "HOST|KEY")]
        machine: String,
    },
}
