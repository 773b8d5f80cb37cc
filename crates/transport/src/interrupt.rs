//! Interrupts and observes an operation from another thread.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::TransportError;

/// Makes every blocked and every later operation of its group fail at once, and reports how long
/// the running one has been waiting for a peer.
///
/// Clones belong to the same group. An interrupt cannot be undone: the ranks must join the group
/// again, in its next epoch.
#[derive(Debug, Clone)]
pub struct Interrupter {
    shared: Arc<InterruptState>,
}

/// Value of `asleep_since_ns` while no operation sleeps.
const AWAKE: u64 = u64::MAX;

#[derive(Debug)]
struct InterruptState {
    raised: AtomicBool,
    made_at: Instant,
    /// Time at which the running operation began to sleep, in nanoseconds after `made_at`;
    /// [`AWAKE`] while none sleeps.
    asleep_since_ns: AtomicU64,
    /// Stays readable once `raised` is set, so that a sleeping poll wakes; it is never drained.
    wake: UnixStream,
    waker: UnixStream,
}

impl Interrupter {
    /// Creates an interrupter that is not yet raised, for
    /// [`Group::join_interruptible`](crate::Group::join_interruptible).
    ///
    /// # Errors
    /// [`TransportError::Resources`] if the process has no file descriptors left.
    pub fn new() -> Result<Interrupter, TransportError> {
        let (wake, waker) = UnixStream::pair()
            .and_then(|(wake, waker)| {
                waker.set_nonblocking(true)?;
                Ok((wake, waker))
            })
            .map_err(|cause| TransportError::Resources { cause: Arc::new(cause) })?;
        let shared = InterruptState {
            raised: AtomicBool::new(false),
            made_at: Instant::now(),
            asleep_since_ns: AtomicU64::new(AWAKE),
            wake,
            waker,
        };
        Ok(Interrupter { shared: Arc::new(shared) })
    }

    /// Ends the running operation, if any, and every later one with
    /// [`TransportError::Interrupted`].
    pub fn interrupt(&self) {
        self.shared.raised.store(true, Ordering::Release);
        // If the pipe is full, the write fails, but the other end is readable already.
        let _ = (&self.shared.waker).write(&[1]);
    }

    /// Whether [`interrupt`](Interrupter::interrupt) was called.
    pub fn is_interrupted(&self) -> bool {
        self.shared.raised.load(Ordering::Acquire)
    }

    /// Returns how long the running operation has slept because no byte could be moved, which is
    /// the fault of the peers and not of this rank. Zero while it computes or makes progress.
    pub fn waiting(&self) -> Duration {
        match self.shared.asleep_since_ns.load(Ordering::Relaxed) {
            AWAKE => Duration::ZERO,
            since => self.shared.made_at.elapsed().saturating_sub(Duration::from_nanos(since)),
        }
    }

    pub(crate) fn falls_asleep(&self) {
        let since = self.shared.made_at.elapsed().as_nanos();
        let since = u64::try_from(since).unwrap_or(AWAKE - 1);
        self.shared.asleep_since_ns.store(since, Ordering::Relaxed);
    }

    pub(crate) fn wakes_up(&self) {
        self.shared.asleep_since_ns.store(AWAKE, Ordering::Relaxed);
    }

    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }
}
