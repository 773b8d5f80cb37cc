//! Who computes, and what starts and ends a rank's process. Implemented where machines and processes
//! are known.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Instant;

use jackalope_protocol::{Secret, Setup};
use thiserror::Error;

use crate::BrokenLink;

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
    /// Whether its connection to each rank's data plane is encrypted, by rank. If empty, all are.
    pub encrypt: Vec<bool>,
    /// Secret with which its rank authenticates, known to no other rank. It is passed to the rank's
    /// process; where ranks outlive a coordinator, the next coordinator derives the same one.
    pub ticket: Secret,
}

impl Seat {
    /// One seat for each rank of the setup, all on this machine, with freshly generated tickets.
    ///
    /// # Panics
    /// If the system has no source of randomness.
    pub fn local(setup: &Setup) -> Vec<Seat> {
        let ticket = || Secret::draw().expect("the system has a source of randomness");
        let seat = || Seat {
            setup: setup.clone(),
            host: String::new(),
            routes: Vec::new(),
            encrypt: Vec::new(),
            ticket: ticket(),
        };
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
    pub ticket: Secret,
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

    /// Records that a rank's own connection delivered data at `at`, even if its machine's agent is
    /// unreachable.
    fn heard(&mut self, rank: usize, at: Instant) {
        let _ = (rank, at);
    }

    /// Starts to test whether the machines of the ranks reach each other. Called when all ranks are
    /// alive and none makes progress. `addrs[i][j]` is the address at which rank i reaches the data
    /// plane of rank j.
    fn suspect_links(&mut self, addrs: &[Vec<SocketAddr>]) {
        let _ = addrs;
    }

    /// Records that rank `from` could not connect to rank `to` while a group was formed, although
    /// both are alive.
    fn link_failed(&mut self, from: usize, to: usize) {
        let _ = (from, to);
    }

    /// Describes a broken link between two machines of the group, if one is known; no group can
    /// form until it is repaired. Polled while [`Launcher::is_watching_links`]; does not block.
    fn broken_link(&mut self, now: Instant) -> Option<String> {
        let _ = now;
        None
    }

    /// Returns all links between machines that are known to be broken, also of machines that do not
    /// compute now. Polled while [`Launcher::is_watching_links`].
    fn broken_links(&self) -> Vec<BrokenLink> {
        Vec::new()
    }

    /// Whether links are being tested, so that [`Launcher::broken_link`] should be polled.
    fn is_watching_links(&self) -> bool {
        false
    }

    /// Returns the setup to send to a rank now. Grants to read a checkpoint from another machine
    /// expire and are renewed here, and the expected content of the checkpoint may have become
    /// known.
    fn refresh(&mut self, _rank: usize, setup: &Setup) -> Setup {
        setup.clone()
    }

    /// Leaves without a word, so that ranks which may outlive us do.
    fn hand_over(&mut self) {}

    /// Prepares the start of a rank's process without blocking. The returned closure starts it on a
    /// thread of its own and does not wait for the rank to connect.
    fn launch(&mut self, order: &LaunchOrder) -> Launch;
}

/// Starts a process. May block while the system executes the program.
///
/// # Errors
/// [`LaunchError`] if the process cannot be started.
pub type Launch = Box<dyn FnOnce() -> Result<Box<dyn RankProcess>, LaunchError> + Send>;

/// A rank's process. Dropped on a thread of its own, where it may wait for the process to exit.
pub trait RankProcess: Send {
    /// Its number, if it runs on this machine.
    fn pid(&self) -> Option<u32>;
    /// Why its machine cannot be spoken to now, if so: then nobody knows how it is, and it is waited
    /// for.
    fn trouble(&self) -> Option<String> {
        None
    }
    /// Why its machine is not trusted any more, if so: then its connections are closed and it is
    /// replaced.
    fn distrust(&self) -> Option<String> {
        None
    }
    /// How it ended, once it has: `exit status 1`, `killed by signal 9`. Does not wait.
    fn try_wait(&mut self) -> Option<String>;
    /// Kills it immediately. Does not wait until it has exited.
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

impl LaunchError {
    /// True if another attempt may succeed: the system was too slow.
    pub fn is_passing(&self) -> bool {
        matches!(self, LaunchError::Spawn { source, .. } if source.kind() == ErrorKind::TimedOut)
    }
}
