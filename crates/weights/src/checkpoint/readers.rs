//! Reads several parts of files at once: a single thread lets the disk idle while it copies, and the
//! processor while it waits for the disk.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Number of threads that read one tensor.
pub(crate) const NUM_READERS: usize = 4;

thread_local! {
    /// Whether this thread shares jobs with others.
    static IS_SHARING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` once for each of `jobs`, in any order, on at most `num_threads` threads, one of which is
/// the caller's. If `work` calls this function on one of several threads, that call begins no others. After an
/// error no further job is begun.
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
    if jobs.len() < 2 || num_threads < 2 || IS_SHARING.get() {
        return jobs.into_iter().try_for_each(work);
    }
    let num_threads = num_threads.min(jobs.len());
    let jobs = Mutex::new(jobs);
    let lock = || jobs.lock().unwrap_or_else(PoisonError::into_inner);
    let take = || lock().pop_front();
    let work_on = || -> Result<(), E> {
        IS_SHARING.set(true);
        while let Some(job) = take() {
            work(job).inspect_err(|_| lock().clear())?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..num_threads).map(|_| scope.spawn(work_on)).collect();
        let own = work_on();
        IS_SHARING.set(false);
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        others.into_iter().map(join).fold(own, Result::and)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

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
    fn a_call_within_another_begins_no_threads() {
        let threads = Mutex::new(HashSet::new());
        let note = |_| {
            // Long enough for other threads to take jobs, if there are any.
            thread::sleep(Duration::from_millis(1));
            threads.lock().unwrap().insert(thread::current().id());
            Ok::<(), ()>(())
        };
        in_parallel(0..6, 3, |_| in_parallel(0..20, 4, note)).unwrap();
        assert!(threads.into_inner().unwrap().len() <= 3);
    }

    /// The same holds within a call that has a single job, and after earlier calls on the same thread.
    #[test]
    fn two_jobs_run_at_the_same_time() {
        in_parallel(0..2, 2, |_| Ok::<(), ()>(())).unwrap();
        let (sender, receiver) = channel();
        let receiver = Mutex::new(receiver);
        let meet = |job| match job {
            0 => receiver.lock().unwrap().recv_timeout(Duration::from_secs(30)).map_err(|_| ()),
            _ => sender.send(()).map_err(|_| ()),
        };
        assert_eq!(in_parallel(0..1, 2, |_| in_parallel(0..2, 2, meet)), Ok(()));
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
