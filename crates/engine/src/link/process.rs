//! The assignment of ranks to machines, and the interface that starts and ends a rank's process.
//! Implemented by crates that know machines and processes.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Instant;

use jackalope_protocol::{Secret, Setup};
use rustix::io::Errno;
use thiserror::Error;

use crate::BrokenLink;

/// The assignment of a rank: what it loads, and on which machine.
#[derive(Clone, Debug, PartialEq)]
pub struct RankAssignment {
    /// Setup of the rank. All setups are equal except for the machine-specific settings: the
    /// model's directory and the number of threads.
    pub setup: Setup,
    /// Name of the machine; empty if all ranks are on this one.
    pub host: String,
    /// Addresses at which it reaches each rank, by rank. Empty if ranks report their addresses
    /// themselves.
    pub routes: Vec<IpAddr>,
    /// Whether its connection to each rank's data plane is encrypted, by rank. If empty, all are.
    pub encrypt: Vec<bool>,
    /// RDMA devices through which it reaches the other ranks, if the transport uses RDMA.
    pub rdma: Vec<String>,
    /// Secret with which its rank authenticates, known to no other rank. It is passed to the rank's
    /// process; where ranks outlive a coordinator, the next coordinator derives the same one.
    pub ticket: Secret,
}

impl RankAssignment {
    /// Creates one assignment for each rank of the setup, all on this machine, with freshly
    /// generated tickets.
    ///
    /// # Panics
    /// Panics if the system has no source of randomness.
    pub fn local(setup: &Setup) -> Vec<RankAssignment> {
        let ticket = || Secret::random().expect("the system has a source of randomness");
        let assignment = || RankAssignment {
            setup: setup.clone(),
            host: String::new(),
            routes: Vec::new(),
            encrypt: Vec::new(),
            rdma: Vec::new(),
            ticket: ticket(),
        };
        (0..setup.num_ranks).map(|_| assignment()).collect()
    }
}

/// The information that a rank's process needs to start.
#[derive(Clone, Debug)]
pub struct LaunchOrder {
    /// Rank that the process becomes.
    pub rank: usize,
    /// Number of earlier launches of this rank, from 0.
    pub attempt: u64,
    /// Address at which the coordinator listens; unspecified if it listens on every address.
    pub control_addr: SocketAddr,
    /// Secret with which the rank authenticates; passed over its standard input.
    pub ticket: Secret,
}

/// Starts ranks' processes.
pub trait Launcher: Send {
    /// Returns the new assignment of ranks if it has changed. Called before ranks are started and
    /// regularly while they compute, so that machines can leave and come back.
    fn reassign(&mut self) -> Option<Vec<RankAssignment>> {
        None
    }

    /// Whether [`Launcher::reassign`] should be polled.
    fn is_elastic(&self) -> bool {
        false
    }

    /// Records that a rank's own connection delivered data at `at`, even if its machine's agent is
    /// unreachable.
    fn note_message(&mut self, rank: usize, at: Instant) {
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

    /// Disconnects without stopping the ranks, so that ranks which can outlive this process do.
    fn hand_over(&mut self) {}

    /// Prepares the start of a rank's process without blocking. The returned closure starts it on a
    /// thread of its own and does not wait for the rank to connect.
    fn launch(&mut self, order: &LaunchOrder) -> Launch;
}

/// Starts a process. May block while the system executes the program.
///
/// # Errors
/// Fails with [`LaunchError`] if the process cannot be started.
pub type Launch = Box<dyn FnOnce() -> Result<Box<dyn RankProcess>, LaunchError> + Send>;

/// A rank's process. Dropped on a thread of its own, where it may block until the process has
/// exited.
pub trait RankProcess: Send {
    /// Returns the process id, if it runs on this machine.
    fn pid(&self) -> Option<u32>;
    /// Returns why the machine cannot be reached now, if so. The state of the process is then
    /// unknown, and the link waits for it.
    fn trouble(&self) -> Option<String> {
        None
    }
    /// Returns why the machine is not trusted any more, if so. Its connections are then closed and
    /// the rank is replaced.
    fn distrust(&self) -> Option<String> {
        None
    }
    /// Whether somebody else starts the process, so that the link waits for its connection without a
    /// deadline of its own. The engine gives up starts without progress in any case.
    fn is_started_elsewhere(&self) -> bool {
        false
    }
    /// Returns how the process ended, once it has: `exit status 1`, `killed by signal 9`. Does not
    /// block.
    fn try_wait(&mut self) -> Option<String>;
    /// Kills the process immediately. Does not wait until it has exited.
    fn kill(&mut self);
    /// Returns the end of its standard error.
    fn last_words(&self) -> String;
}

/// Error of a process that could not be started.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// The operating system could not start the program.
    #[error("starting {program} failed: {source}")]
    Spawn {
        /// Path of the program.
        program: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The program does not exist.
    #[error("{program} is not there\nhint: {hint}")]
    Missing {
        /// Path of the program.
        program: PathBuf,
        /// How to get the program.
        hint: String,
    },
}

impl LaunchError {
    /// Whether another attempt may succeed: the system was too slow, or had no memory, process, thread or file
    /// descriptor to spare.
    pub fn is_passing(&self) -> bool {
        let LaunchError::Spawn { source, .. } = self else { return false };
        let exhausted = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::TXTBSY];
        let is_exhausted = Errno::from_io_error(source).is_some_and(|it| exhausted.contains(&it));
        source.kind() == ErrorKind::TimedOut || is_exhausted
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_system_without_resources_is_asked_again() {
        let failed = |source| LaunchError::Spawn { program: PathBuf::new(), source };
        for errno in [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::TXTBSY] {
            assert!(failed(errno.into()).is_passing(), "{errno}");
        }
        assert!(failed(ErrorKind::TimedOut.into()).is_passing());
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::NOEXEC] {
            assert!(!failed(io::Error::from(errno)).is_passing(), "{errno}");
        }
    }
}
