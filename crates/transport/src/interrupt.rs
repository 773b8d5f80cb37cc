//! Ending an operation from another thread.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::TransportError;

/// Makes every blocked and every later operation of its group fail at once.
///
/// Clones belong to the same group. There is no way back: a group that was interrupted is joined
/// anew, in its next epoch.
#[derive(Debug, Clone)]
pub struct Interrupter {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    raised: AtomicBool,
    /// Readable for ever once `raised`, so that a sleeping poll wakes. Nobody drains it.
    wake: UnixStream,
    waker: UnixStream,
}

impl Interrupter {
    /// An interrupter that is not yet raised, for
    /// [`Group::join_interruptible`](crate::Group::join_interruptible).
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub fn new() -> Result<Interrupter, TransportError> {
        let (wake, waker) = UnixStream::pair()
            .and_then(|(wake, waker)| {
                waker.set_nonblocking(true)?;
                Ok((wake, waker))
            })
            .map_err(|cause| TransportError::Resources { cause: Arc::new(cause) })?;
        Ok(Interrupter { shared: Arc::new(Shared { raised: AtomicBool::new(false), wake, waker }) })
    }

    /// Ends the running operation, if any, and every later one with
    /// [`TransportError::Interrupted`].
    pub fn interrupt(&self) {
        self.shared.raised.store(true, Ordering::Release);
        // A full pipe is readable too, which is all that is wanted.
        let _ = (&self.shared.waker).write(&[1]);
    }

    /// Whether [`interrupt`](Interrupter::interrupt) was called.
    pub fn is_interrupted(&self) -> bool {
        self.shared.raised.load(Ordering::Acquire)
    }

    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }
}
