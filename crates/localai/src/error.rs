//! Why a backend or one of its ranks is not started.

use std::io;

use jackalope_deploy::DeployError;
use jackalope_deploy::error::{HostsError, LocateError};
use jackalope_protocol::counted;
use thiserror::Error;

/// Why a backend, a rank or a model of LocalAI is not started.
#[derive(Debug, Error)]
pub enum LocalAiError {
    /// There is no such transport.
    #[error("the backend {word} is not known\nhint: ring or jaccl")]
    Backend {
        /// Name of the transport.
        word: String,
    },
    /// A rank needs a hostfile.
    #[error("a hostfile is needed\nhint: pass `--hostfile FILE`, or set MLX_DISTRIBUTED_HOSTFILE")]
    NoHostfile,
    /// The hostfile is empty.
    #[error("the hostfile names no host")]
    NoHost,
    /// The hostfile has no such rank.
    #[error(
        "`--rank {rank}` does not exist: {hostfile} has {}\nhint: ranks are numbered from 0",
        counted(*num_ranks, "rank")
    )]
    NoRank {
        /// The rank.
        rank: u32,
        /// Path of the hostfile.
        hostfile: String,
        /// Number of the hostfile's entries.
        num_ranks: usize,
    },
    /// A model's option contradicts the configuration.
    #[error(
        "the model's options name the {what} {option}, and this backend was started with \
         {configured}\nhint: leave one of them out"
    )]
    Contradiction {
        /// Name of the option.
        what: &'static str,
        /// Value in the model's options.
        option: String,
        /// The configured value.
        configured: String,
    },
    /// LocalAI named too many models.
    #[error("more models were named than a server knows")]
    TooManyModels,
    /// A model cannot be located.
    #[error(transparent)]
    Locate(#[from] LocateError),
    /// The hostfile cannot be used.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// The rank cannot be started.
    #[error("starting the rank: {0}")]
    Start(io::Error),
    /// The model cannot be deployed.
    #[error(transparent)]
    Deploy(#[from] DeployError),
}
