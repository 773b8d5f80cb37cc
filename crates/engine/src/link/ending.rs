//! Ends ranks. Operations that may block, such as waiting for a process to exit or reading the end
//! of its output, run on detached threads.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use tracing::warn;

use super::{LinkReport, RankProcess, Report};
use crate::{Failure, Reporter};

/// Time in which a process whose socket closed usually exits.
pub(super) const EXIT_GRACE: Duration = Duration::from_millis(300);

/// Time in which a killed process usually exits.
pub(super) const KILL_GRACE: Duration = Duration::from_millis(500);

/// Additional time for collecting the last output of the process.
const LAST_WORDS_GRACE: Duration = Duration::from_millis(500);

const EXIT_POLL: Duration = Duration::from_millis(2);

/// A loss that is reported once it is known how the rank's process ended.
#[derive(Debug)]
pub(super) struct Dying {
    /// Number of the loss; matches [`Report::Examined`].
    pub(super) number: u64,
    /// The failure, without the last output of the process.
    pub(super) failure: Failure,
    pub(super) is_fatal: bool,
    /// Whether the exit status of the process replaces the failure's message.
    pub(super) asks_exit: bool,
    /// Appended to the message.
    pub(super) circumstances: String,
    /// Deadline after which the loss is reported without the result of the examination.
    pub(super) until: Instant,
}

/// How a process ended and its last output.
#[derive(Debug, Default)]
pub(super) struct Remains {
    /// Exit status, if it ended by itself.
    pub(super) exit: Option<String>,
    /// End of its standard error.
    pub(super) last_words: String,
}

impl Dying {
    /// Deadline for examining a process that is killed after `grace`.
    pub(super) fn until(grace: Duration, now: Instant) -> Instant {
        now + grace + KILL_GRACE + LAST_WORDS_GRACE
    }

    /// Builds the complete failure; the second value is true if it is fatal.
    pub(super) fn conclude(self, remains: Remains) -> (Failure, bool) {
        let Remains { exit, last_words } = remains;
        let mut message = match exit.filter(|_| self.asks_exit) {
            Some(exit) => format!("the process ended: {exit}"),
            None => self.failure.message.clone(),
        };
        message += &self.circumstances;
        (Failure { message, last_words, ..self.failure }, self.is_fatal)
    }
}

/// A started process inside a report. Dropping it without [`Spawned::take`] kills the process.
pub(super) struct Spawned(Option<Box<dyn RankProcess>>);

impl Spawned {
    pub(super) fn new(process: Box<dyn RankProcess>) -> Spawned {
        Spawned(Some(process))
    }

    pub(super) fn take(mut self) -> Box<dyn RankProcess> {
        self.0.take().expect("it is taken once")
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        if let Some(process) = &mut self.0 {
            process.kill();
        }
    }
}

impl fmt::Debug for Spawned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.0.as_ref().and_then(|process| process.pid());
        f.debug_tuple("Spawned").field(&pid).finish()
    }
}

/// Waits up to `grace` for a process to exit by itself, kills it otherwise, and reports how it
/// ended.
pub(super) fn examine(
    mut process: Box<dyn RankProcess>,
    grace: Duration,
    number: u64,
    reporter: Reporter<LinkReport>,
) {
    aside("examine", move || {
        let exit = wait_for_exit(process.as_mut(), grace);
        if exit.is_none() {
            process.kill();
            wait_for_exit(process.as_mut(), KILL_GRACE);
        }
        let remains = Remains { exit, last_words: process.last_words() };
        reporter.report(LinkReport(Report::Examined { number, remains }));
        drop(process);
    });
}

/// Kills processes without waiting for them or reporting how they ended.
pub(super) fn bury(processes: impl IntoIterator<Item = Box<dyn RankProcess>>) {
    for mut process in processes {
        process.kill();
        aside("bury", move || drop(process));
    }
}

/// Waits until `have_ended` returns true or the deadline passes. Returns whether it did.
pub(super) fn have_ended_by(mut have_ended: impl FnMut() -> bool, deadline: Instant) -> bool {
    loop {
        if have_ended() {
            return true;
        }
        if deadline <= Instant::now() {
            return false;
        }
        thread::sleep(EXIT_POLL);
    }
}

fn wait_for_exit(process: &mut dyn RankProcess, grace: Duration) -> Option<String> {
    let mut exit = None;
    have_ended_by(
        || {
            exit = process.try_wait();
            exit.is_some()
        },
        Instant::now() + grace,
    );
    exit
}

/// Runs blocking work on a detached thread. Returns false if the system cannot start one; `work` is
/// dropped then without being run.
pub(super) fn aside(name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    if let Err(err) = &started {
        warn!(%err, name, "a thread could not be started");
    }
    started.is_ok()
}
