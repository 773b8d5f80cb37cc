//! Arguments of `token`.

use clap::Subcommand;

/// Create or show the token with which machines without SSH join a cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token and store it on this machine.
    New {
        /// Replace the token of this machine; workers with the old one are no longer found.
        #[arg(long)]
        replace: bool,
        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Print the token of this machine.
    Show {
        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
}
