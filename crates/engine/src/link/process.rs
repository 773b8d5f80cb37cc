//! What starts and ends a rank's process. Implemented where processes are known.

use std::net::SocketAddr;
use std::path::PathBuf;

use jackalope_protocol::Secret;
use thiserror::Error;

/// What a rank's process has to be told.
#[derive(Clone, Debug)]
pub struct LaunchOrder {
    /// The rank it shall be.
    pub rank: usize,
    /// Counts the launches of this rank, from 0.
    pub attempt: u64,
    /// Where the brain listens.
    pub control_addr: SocketAddr,
    /// What the rank proves itself with; goes over its standard input.
    pub secret: Secret,
}

/// Starts ranks.
pub trait Launcher: Send {
    /// Starts the process of one rank. Does not wait for it to connect.
    ///
    /// # Errors
    /// [`LaunchError`] if there is no process now.
    fn launch(&mut self, order: &LaunchOrder) -> Result<Box<dyn RankProcess>, LaunchError>;
}

/// A rank's process.
pub trait RankProcess: Send {
    /// Its number, if it runs on this machine.
    fn pid(&self) -> Option<u32>;
    /// How it ended, once it has: `exit status 1`, `killed by signal 9`. Does not wait.
    fn try_wait(&mut self) -> Option<String>;
    /// Ends it at once, whatever it does.
    fn kill(&mut self);
    /// The end of what it wrote to its standard error.
    fn last_words(&self) -> String;
}

/// A process that could not be started.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// The system refuses.
    #[error("starting {program} failed: {source}")]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no such program.
    #[error("{program} is not there\nhint: {hint}")]
    Missing {
        /// The program.
        program: PathBuf,
        /// Where it comes from.
        hint: String,
    },
}
