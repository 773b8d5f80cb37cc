//! The API key that a command sends to a server.

use std::path::PathBuf;

/// An API key for a server, as an argument or from a file.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ClientKeyArgs {
    /// API key for the server. Every user of this machine can read the command line: prefer
    /// `--api-key-file`. Default: the key of the server that runs on this machine, else, for a
    /// server on this machine, JACKALOPE_API_KEY.
    #[arg(long, value_name = "KEY", conflicts_with = "api_key_file")]
    pub(crate) api_key: Option<String>,
    /// File whose first key is the API key for the server; lines that begin with `#` are skipped.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
}
