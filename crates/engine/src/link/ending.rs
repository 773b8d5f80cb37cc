//! How ranks end. What may block (a process that takes its time to be gone, the end of what it wrote)
//! happens on threads that nobody waits for.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use tracing::warn;

use super::{LinkReport, RankProcess, Report};
use crate::{Failure, Reporter};

/// A process whose socket closed shows how it ended within this time.
pub(super) const EXIT_GRACE: Duration = Duration::from_millis(300);

/// A killed process is gone within this time.
pub(super) const KILL_GRACE: Duration = Duration::from_millis(500);

/// After these two, its last words are there within this time.
const LAST_WORDS_GRACE: Duration = Duration::from_millis(500);

const EXIT_POLL: Duration = Duration::from_millis(2);

/// A loss that is told once it is known how the rank's process ended.
#[derive(Debug)]
pub(super) struct Dying {
    /// Which of these it is.
    pub(super) number: u64,
    /// Complete but for what the process leaves behind.
    pub(super) failure: Failure,
    pub(super) is_fatal: bool,
    /// Whether how the process ended says more than the failure's message does.
    pub(super) asks_exit: bool,
    /// Added to the message.
    pub(super) circumstances: String,
    /// When the loss is told in any case.
    pub(super) until: Instant,
}

/// What a process left behind.
#[derive(Debug, Default)]
pub(super) struct Remains {
    /// How it ended by itself, if it did.
    pub(super) exit: Option<String>,
    /// The end of what it wrote to its standard error.
    pub(super) last_words: String,
}

impl Dying {
    /// The deadline for a process that is killed after `grace`.
    pub(super) fn until(grace: Duration, now: Instant) -> Instant {
        now + grace + KILL_GRACE + LAST_WORDS_GRACE
    }

    /// The whole failure.
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

/// A process, as reports carry it. Ended if nobody takes it out.
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

/// Kills a process and reports what it left behind, once it had `grace` to end by itself.
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

/// Ends processes of which nothing more is asked.
pub(super) fn bury(processes: impl IntoIterator<Item = Box<dyn RankProcess>>) {
    for mut process in processes {
        process.kill();
        aside("bury", move || drop(process));
    }
}

/// Waits until the deadline for all of them to end. True if they have.
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

/// Runs what may block where nobody waits for it. False if the system has no thread left; it is done
/// at once then, or not at all.
pub(super) fn aside(name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    if let Err(err) = &started {
        warn!(%err, name, "a thread could not be started");
    }
    started.is_ok()
}
