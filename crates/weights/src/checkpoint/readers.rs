//! Reads several parts of files at once: a single thread lets the disk idle while it copies, and the
//! processor while it waits for the disk.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Number of threads that read one tensor.
pub(crate) const NUM_READERS: usize = 4;

/// Runs `work` once for each of `jobs`, in any order, on at most `num_threads` threads, one of which is
/// the caller's. After an error no further job is begun.
///
/// # Errors
/// Returns one of the errors of `work`.
///
/// # Panics
/// Panics if `work` does.
pub fn in_parallel<J: Send, E: Send>(
    jobs: impl IntoIterator<Item = J>,
    num_threads: usize,
    work: impl Fn(J) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let jobs: VecDeque<J> = jobs.into_iter().collect();
    let num_threads = num_threads.min(jobs.len()).max(1);
    let jobs = Mutex::new(jobs);
    let lock = || jobs.lock().unwrap_or_else(PoisonError::into_inner);
    let take = || lock().pop_front();
    let work_on = || -> Result<(), E> {
        while let Some(job) = take() {
            work(job).inspect_err(|_| lock().clear())?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..num_threads).map(|_| scope.spawn(work_on)).collect();
        let own = work_on();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        others.into_iter().map(join).fold(own, Result::and)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_job_is_done_once_by_any_number_of_threads() {
        for (num_jobs, num_threads) in [(0, 4), (1, 4), (3, 0), (50, 1), (50, 4), (3, 50)] {
            let mut done = vec![0; num_jobs];
            in_parallel(done.iter_mut(), num_threads, |times| {
                *times += 1;
                Ok::<(), ()>(())
            })
            .unwrap();
            assert!(done.iter().all(|times| *times == 1), "{num_jobs} on {num_threads}");
        }
    }

    #[test]
    fn an_error_ends_the_work() {
        for num_threads in [1, 4] {
            let begun = AtomicUsize::new(0);
            let result = in_parallel(0..1000, num_threads, |job| {
                begun.fetch_add(1, Ordering::Relaxed);
                if job == 5 { Err(job) } else { Ok(()) }
            });
            assert_eq!(result, Err(5));
            assert!(1 < num_threads || begun.into_inner() == 6);
        }
    }
}
