//! Waits for sockets: spins briefly, then sleeps, never beyond the deadline.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::fault::Stop;
use crate::interrupt::Interrupter;
use crate::lane::Lane;

/// Maximum duration of one sleep; some systems refuse more than `c_int::MAX` milliseconds.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// Returns the deadline of a wait that begins at `started`; timeouts beyond a year are cut to one.
pub(crate) fn deadline(started: Instant, timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    started + timeout.min(YEAR)
}

/// Sleeps until one of `fds` is ready, at most until `wake_at`.
pub(crate) fn poll_until(fds: &mut [PollFd<'_>], wake_at: Instant) -> io::Result<()> {
    let left = wake_at.saturating_duration_since(Instant::now()).min(SLEEP_MAX);
    let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
    match rustix::event::poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// State of one operation while it waits.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    interrupter: &'a Interrupter,
    spin: Duration,
    deadline: Instant,
    stalled_since: Option<Instant>,
    /// Whether the stall has outlasted the spinning.
    is_asleep: bool,
    /// Time without progress so far.
    pub(crate) waited: Duration,
    pub(crate) sleeps: u64,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(interrupter: &'a Interrupter, spin: Duration, deadline: Instant) -> Wait<'a> {
        let waited = Duration::ZERO;
        Wait {
            interrupter,
            spin,
            deadline,
            stalled_since: None,
            is_asleep: false,
            waited,
            sleeps: 0,
        }
    }

    /// Must be called after a round that moved bytes.
    pub(crate) fn progressed(&mut self) {
        if let Some(since) = self.stalled_since.take() {
            self.waited += since.elapsed();
            if std::mem::take(&mut self.is_asleep) {
                self.interrupter.wakes_up();
            }
        }
    }

    /// Returns an error if the operation must end although it makes progress.
    pub(crate) fn check(&self) -> Result<(), Stop> {
        if self.interrupter.is_interrupted() {
            return Err(Stop::Interrupted);
        }
        if Instant::now() >= self.deadline { Err(Stop::Deadline) } else { Ok(()) }
    }

    /// Must be called after a round that moved nothing. Returns at once while spinning; later
    /// sleeps until one of the `lanes` can read or write, whichever it waits for.
    pub(crate) fn stalled(&mut self, lanes: &[Lane]) -> Result<(), Stop> {
        if self.interrupter.is_interrupted() {
            return Err(Stop::Interrupted);
        }
        let now = Instant::now();
        if now >= self.deadline {
            return Err(Stop::Deadline);
        }
        let since = *self.stalled_since.get_or_insert(now);
        if now - since < self.spin {
            // Yields the core to other threads, above all to a peer on this machine.
            std::thread::yield_now();
            return Ok(());
        }
        self.sleeps += 1;
        if !std::mem::replace(&mut self.is_asleep, true) {
            self.interrupter.falls_asleep();
        }
        let mut fds = vec![PollFd::from_borrowed_fd(self.interrupter.wake_fd(), PollFlags::IN)];
        fds.extend(lanes.iter().filter_map(|lane| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, lane.wants_read());
            flags.set(PollFlags::OUT, lane.wants_write());
            (!flags.is_empty()).then(|| PollFd::from_borrowed_fd(lane.fd(), flags))
        }));
        poll_until(&mut fds, self.deadline).map_err(Stop::System)
    }
}
