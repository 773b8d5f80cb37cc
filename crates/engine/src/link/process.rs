//! Who computes, and what starts and ends a rank's process. Implemented where machines and processes
//! are known.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Instant;

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
    /// Whether its connection to each rank's data plane is encrypted, by rank. None given at all: to
    /// every rank.
    pub encrypt: Vec<bool>,
    /// What its rank proves, and no other rank can: given to its process, and derived anew by a later
    /// coordinator where ranks outlive one.
    pub ticket: Secret,
}

impl Seat {
    /// One seat for each rank of the setup, all on this machine, with tickets that nobody knows yet.
    ///
    /// # Panics
    /// If the system has no randomness.
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

    /// A rank's own connection brought something at this moment, whatever is known of its machine's agent.
    fn heard(&mut self, rank: usize, at: Instant) {
        let _ = (rank, at);
    }

    /// Begins to find out whether the machines of the ranks that compute reach each other: the ranks all
    /// live, and none gets any further. `addrs[i][j]` is where rank i reaches the data plane of rank j.
    fn suspect_links(&mut self, addrs: &[Vec<SocketAddr>]) {
        let _ = addrs;
    }

    /// While a group was formed, rank `from` could not connect to rank `to` although both live.
    fn link_failed(&mut self, from: usize, to: usize) {
        let _ = (from, to);
    }

    /// In words, a link between two machines that compute which is known to be broken: no group can be
    /// formed now. Asked often while [`Launcher::is_watching_links`]; does not wait.
    fn broken_link(&mut self, now: Instant) -> Option<String> {
        let _ = now;
        None
    }

    /// Whether there is a link that [`Launcher::broken_link`] has news of soon.
    fn is_watching_links(&self) -> bool {
        false
    }

    /// What a rank is to load, as it is sent to it now: what lets it read elsewhere lasts for a while
    /// only, and the content that it must find may have become known.
    fn refresh(&mut self, _rank: usize, setup: &Setup) -> Setup {
        setup.clone()
    }

    /// Leaves without a word, so that ranks which may outlive us do.
    fn hand_over(&mut self) {}

    /// Prepares the start of one rank's process, without blocking. What is returned starts it, on a
    /// thread of its own that nobody waits for; it does not wait for the rank to connect.
    fn launch(&mut self, order: &LaunchOrder) -> Launch;
}

/// Starts a process. May block, for as long as the system takes to execute a program.
///
/// # Errors
/// [`LaunchError`] if there is no process now.
pub type Launch = Box<dyn FnOnce() -> Result<Box<dyn RankProcess>, LaunchError> + Send>;

/// A rank's process. Dropped on a thread of its own, where it may wait for the process to be gone.
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
    /// Ends it at once, whatever it does. Does not wait until it is gone.
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
