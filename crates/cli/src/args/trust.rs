//! Arguments of `trust`.

use clap::Subcommand;

/// Show and change which machines this one trusts.
#[derive(Debug, clap::Args)]
pub(crate) struct TrustArgs {
    #[command(subcommand)]
    pub(crate) command: TrustCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TrustCommand {
    /// List this machine's key, the coordinators that may use it, the machines that it may use, and
    /// refused machines.
    List {
        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Accept a refused machine, as one that this machine may use or as a coordinator.
    Accept {
        /// Name or key of a machine to use, or key of a coordinator, as `trust list` shows it.
        #[arg(value_name = "HOST|KEY")]
        machine: String,
    },
    /// Stop trusting a machine; its connections and programs on this machine end at once.
    Revoke {
        /// Name or key of the machine, as `trust list` shows it.
        #[arg(value_name = "HOST|KEY")]
        machine: String,
    },
}
