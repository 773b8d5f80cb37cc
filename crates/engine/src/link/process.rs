//! Who computes, and what starts and ends a rank's process. Implemented where machines and processes
//! are known.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use jackalope_protocol::{Secret, Setup};
use thiserror::Error;

/// A rank's place: what it loads, and on which machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Seat {
    /// What it loads. All seats agree but for what belongs to a machine: the model's directory and
    /// the number of threads.
    pub setup: Setup,
    /// The machine, for people; empty where all ranks are on this one.
    pub host: String,
    /// By which address it reaches each rank, by rank. None at all where ranks tell their addresses
    /// themselves.
    pub routes: Vec<IpAddr>,
}

impl Seat {
    /// One seat for each rank of the setup, all on this machine.
    pub fn local(setup: &Setup) -> Vec<Seat> {
        let seat = || Seat { setup: setup.clone(), host: String::new(), routes: Vec::new() };
        (0..setup.num_ranks).map(|_| seat()).collect()
    }
}

/// What a rank's process has to be told.
#[derive(Clone, Debug)]
pub struct LaunchOrder {
    /// The rank it shall be.
    pub rank: usize,
    /// Counts the launches of this rank, from 0.
    pub attempt: u64,
    /// Where the brain listens; not specified where it does on every address.
    pub control_addr: SocketAddr,
    /// What the rank proves itself with; goes over its standard input.
    pub secret: Secret,
}

/// Starts ranks.
pub trait Launcher: Send {
    /// Who shall compute from now on, if that is not who did before. Asked before ranks are started
    /// and now and then while they compute, so that machines may leave and come back.
    fn reseat(&mut self) -> Option<Vec<Seat>> {
        None
    }

    /// Whether [`Launcher::reseat`] is worth asking now and then.
    fn is_elastic(&self) -> bool {
        false
    }

    /// Leaves without a word, so that ranks which may outlive us do.
    fn hand_over(&mut self) {}

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
    /// Why its machine cannot be spoken to now, if so: then nobody knows how it is, and it is waited
    /// for.
    fn trouble(&self) -> Option<String> {
        None
    }
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
