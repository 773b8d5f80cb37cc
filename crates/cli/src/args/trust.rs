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
    /// List this machine's key, the coordinators that may command it, the machines that it
    /// commands, and refused machines.
    List {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Accept a refused machine: as one that this machine commands, or as a coordinator.
    Accept {
        /// Name or key of a machine to command, or key of a coordinator, as `trust list` shows it.
        #[arg(value_name = "HOST|KEY")]
        machine: String,
    },
    /// Stop trusting a machine; its sessions and programs here end at once.
    Revoke {
        /// Its name or key, as `trust list` shows it.
        #[arg(value_name = "HOST|KEY")]
        machine: String,
    },
}
