//! Ends the process if a step takes too long: stock groups have no deadlines of their own.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Watches one step at a time, beginning with the first call of [`Watchdog::expect`].
#[derive(Debug)]
pub(super) struct Watchdog {
    steps: Sender<(&'static str, Duration)>,
}

impl Watchdog {
    pub(super) fn start() -> Watchdog {
        let (steps, next) = channel();
        let watch = move || {
            let Ok((mut what, mut limit)) = next.recv() else { return };
            loop {
                match next.recv_timeout(limit) {
                    Ok(step) => (what, limit) = step,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        eprintln!("error: {what} has not ended within {limit:?}");
                        jackalope_mlx::exit_now(1)
                    }
                }
            }
        };
        thread::Builder::new()
            .name("watchdog".into())
            .spawn(watch)
            .expect("a thread can be started when the process has just begun");
        Watchdog { steps }
    }

    /// Begins a step; the process ends if no other step begins within `limit`.
    pub(super) fn expect(&self, what: &'static str, limit: Duration) {
        self.steps.send((what, limit)).expect("the watchdog lives as long as its sender");
    }
}
