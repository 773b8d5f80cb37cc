//! Profile of the kernels: number of calls, time, and bytes of weights read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::threads::Threads;

/// Calls, time and bytes of one kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KernelTime {
    /// Name of the kernel, or the name given to [`Threads::span`].
    pub name: &'static str,
    /// Number of calls.
    pub calls: u64,
    /// Total time, measured on the calling thread.
    pub time: Duration,
    /// Bytes of weights read, each counted once per call.
    pub bytes: u64,
}

/// A collection of [`KernelTime`]s. While it is off, no clock is read.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    is_on: AtomicBool,
    times: Mutex<Vec<KernelTime>>,
}

impl Profile {
    fn record(&self, name: &'static str, bytes: usize, time: Duration) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let idx = times.iter().position(|it| it.name == name).unwrap_or_else(|| {
            times.push(KernelTime { name, calls: 0, time: Duration::ZERO, bytes: 0 });
            times.len() - 1
        });
        let entry = &mut times[idx];
        entry.calls += 1;
        entry.time += time;
        entry.bytes += bytes as u64;
    }
}

/// A running kernel. It is entered into the profile when this is dropped.
#[derive(Debug)]
#[must_use = "the time counts until the span is dropped"]
pub struct Span<'a> {
    running: Option<(&'a Profile, Instant)>,
    name: &'static str,
    bytes: usize,
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        if let Some((profile, begun)) = self.running {
            profile.record(self.name, self.bytes, begun.elapsed());
        }
    }
}

impl Threads {
    /// Starts to measure spans.
    pub fn start_profile(&self) {
        self.profile.is_on.store(true, Ordering::Relaxed);
    }

    /// Returns the measurements since the last call.
    pub fn take_profile(&self) -> Vec<KernelTime> {
        std::mem::take(&mut *self.profile.times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Measures the time until the span is dropped, if the profile was started. Kernels call it
    /// themselves.
    pub fn span(&self, name: &'static str, bytes: usize) -> Span<'_> {
        let is_on = self.profile.is_on.load(Ordering::Relaxed);
        Span { running: is_on.then(|| (&self.profile, Instant::now())), name, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_add_up_by_name_once_wanted() {
        let threads = Threads::new(1);
        drop(threads.span("early", 1));
        assert_eq!(threads.take_profile(), []);
        threads.start_profile();
        for bytes in [3, 4] {
            let _span = threads.span("a", bytes);
            drop(threads.span("b", 0));
        }
        let times = threads.take_profile();
        let found: Vec<_> = times.iter().map(|it| (it.name, it.calls, it.bytes)).collect();
        assert_eq!(found, [("b", 2, 0), ("a", 2, 7)]);
        assert!(times[0].time <= times[1].time);
        assert_eq!(threads.take_profile(), []);
    }
}
