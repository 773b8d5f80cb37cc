//! `jackalope token`.

use clap::Subcommand;

/// Make and show the token by which machines without SSH join a cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and keep it on this machine.
    New {
        /// Replace the token of this machine; workers with the old one are not found any more.
        #[arg(long)]
        replace: bool,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Print the token of this machine.
    Show {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}
