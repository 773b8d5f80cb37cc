//! The key that a command presents to a server.

use std::path::PathBuf;

/// A key for a server, typed or from a file.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ClientKeyArgs {
    /// Key for the server. Every user of this machine can read a command line: prefer
    /// `--api-key-file`. Default: the key of the server that runs on this machine, else, for a
    /// server on this machine, JACKALOPE_API_KEY.
    #[arg(long, value_name = "KEY", conflicts_with = "api_key_file")]
    pub(crate) api_key: Option<String>,
    /// File whose first line is the key for the server.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
}
