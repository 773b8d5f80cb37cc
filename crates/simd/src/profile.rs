//! Profile of the kernels: number of calls, time, and bytes of weights read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Calls, time and bytes of one kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KernelTime {
    /// Name of the kernel, or the name given to [`crate::Threads::span`].
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
    pub(crate) fn start(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take(&self) -> Vec<KernelTime> {
        std::mem::take(&mut *self.times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[inline]
    pub(crate) fn span(&self, name: &'static str, bytes: usize) -> ProfileSpan<'_> {
        let is_on = self.is_on.load(Ordering::Relaxed);
        ProfileSpan { running: is_on.then(|| (self, Instant::now())), name, bytes }
    }

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

/// A running kernel, which is entered into the profile when this value is dropped.
#[derive(Debug)]
#[must_use = "the time counts until the span is dropped"]
pub struct ProfileSpan<'a> {
    running: Option<(&'a Profile, Instant)>,
    name: &'static str,
    bytes: usize,
}

impl Drop for ProfileSpan<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((profile, begun)) = self.running {
            profile.record(self.name, self.bytes, begun.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_add_up_by_name_once_wanted() {
        let profile = Profile::default();
        drop(profile.span("early", 1));
        assert_eq!(profile.take(), []);
        profile.start();
        for bytes in [3, 4] {
            let _span = profile.span("a", bytes);
            drop(profile.span("b", 0));
        }
        let times = profile.take();
        let found: Vec<_> = times.iter().map(|it| (it.name, it.calls, it.bytes)).collect();
        assert_eq!(found, [("b", 2, 0), ("a", 2, 7)]);
        assert!(times[0].time <= times[1].time);
        assert_eq!(profile.take(), []);
    }
}
