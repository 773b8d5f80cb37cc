//! The rank's own small pool: the calling thread plus workers that spin briefly after a job and then sleep.
//!
//! A job is a list of independent items. A free thread takes the next one, so slow cores take fewer. Since
//! each item is computed by one thread from start to end, neither the number of threads nor the assignment changes a
//! bit. The caller works too and never waits for a worker that has not begun: on a busy machine the job is done by
//! the threads that are running.
//!
//! ```text
//!   caller   publish job, epoch += 1 ── take items until none is left ── withdraw job ── wait for active == 0
//!   worker   spin on epoch, then park ── enter (active += 1) ── take items ── leave (active -= 1, wake the caller)
//! ```

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::profile::{KernelTime, Profile, ProfileSpan};
use crate::simd::InstructionSet;

/// Time for which a worker spins for the next job before it sleeps: longer than MLX's pause between
/// two nodes of a graph, shorter than the pause between two steps.
const SPIN: Duration = Duration::from_micros(50);

/// Maximum number of threads of a pool.
const THREADS_MAX: usize = 256;

/// The threads that compute a rank's kernels, and the instruction set that they use.
///
/// May be shared; while one caller's job runs, another caller computes alone on its own thread.
pub struct Threads {
    instructions: InstructionSet,
    pool: Option<Pool>,
    profile: Profile,
}

impl Threads {
    /// `count` threads, the caller included, with the best instruction set of this machine.
    ///
    /// Zero counts as one. When the system refuses a thread there are fewer; see [`Threads::count`].
    pub fn new(count: usize) -> Threads {
        Threads::with_instructions(count, InstructionSet::best())
    }

    /// Like [`Threads::new`] with a chosen instruction set.
    ///
    /// # Panics
    /// If this machine lacks the set.
    #[track_caller]
    pub fn with_instructions(count: usize, instructions: InstructionSet) -> Threads {
        assert!(instructions.is_available(), "this machine has no {instructions:?}");
        let pool = (count > 1).then(|| Pool::new(count.min(THREADS_MAX) - 1));
        Threads { instructions, pool, profile: Profile::default() }
    }

    /// Returns the number of computing threads, including the caller.
    #[inline]
    pub fn count(&self) -> usize {
        1 + self.pool.as_ref().map_or(0, |pool| pool.workers.len())
    }

    /// The instruction set of all kernels run with these threads.
    #[inline]
    pub fn instructions(&self) -> InstructionSet {
        self.instructions
    }

    /// Starts the profile, which measures spans from now on.
    pub fn start_profile(&self) {
        self.profile.start();
    }

    /// Returns the measurements since the profile was started or last taken.
    pub fn take_profile(&self) -> Vec<KernelTime> {
        self.profile.take()
    }

    /// Measures the time until the span is dropped, if the profile was started. Kernels call it
    /// themselves.
    #[inline]
    pub fn span(&self, name: &'static str, bytes: usize) -> ProfileSpan<'_> {
        self.profile.span(name, bytes)
    }

    /// Calls `work` once for each item, on whichever thread is free. If `work` panics, this call
    /// panics too, after every thread has stopped.
    pub fn for_each<T: Send>(&self, items: Vec<T>, work: impl Fn(T) + Sync) {
        let idle_pool = match &self.pool {
            Some(pool) if items.len() > 1 => pool.claim().map(|claim| (pool, claim)),
            _ => None,
        };
        let Some((pool, _claim)) = idle_pool else {
            return items.into_iter().for_each(work);
        };
        let wanted = items.len() - 1;
        let items: Vec<Mutex<Option<T>>> =
            items.into_iter().map(|item| Mutex::new(Some(item))).collect();
        let next = AtomicUsize::new(0);
        pool.run(wanted, &|| {
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Some(item) = lock(item).take() {
                    work(item);
                }
            }
        });
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads")
            .field("count", &self.count())
            .field("instructions", &self.instructions)
            .finish()
    }
}

/// A job as the workers see it; the reference is valid while the job is published or a thread is active in it.
#[derive(Clone)]
struct Job {
    work: &'static (dyn Fn() + Sync),
    caller: Thread,
}

struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the caller whose job runs.
    claim: Mutex<()>,
}

struct Shared {
    /// Counts jobs; workers watch it.
    epoch: AtomicUsize,
    /// The published job. `active` only grows while this is locked and holds a job.
    job: Mutex<Option<Job>>,
    /// Number of workers inside the job.
    active: AtomicUsize,
    /// Whether each worker sleeps, or is about to.
    parked: Vec<AtomicBool>,
    /// The first panic of a worker in the current job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    closing: AtomicBool,
}

impl Pool {
    fn new(num_workers: usize) -> Pool {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            job: Mutex::new(None),
            active: AtomicUsize::new(0),
            parked: (0..num_workers).map(|_| AtomicBool::new(false)).collect(),
            panic: Mutex::new(None),
            closing: AtomicBool::new(false),
        });
        let spawn = |worker_idx: usize| {
            let shared = Arc::clone(&shared);
            let name = format!("kernels-{}", worker_idx + 1);
            thread::Builder::new().name(name).spawn(move || shared.serve(worker_idx)).ok()
        };
        let workers = (0..num_workers).map_while(spawn).collect();
        Pool { shared, workers, claim: Mutex::new(()) }
    }

    /// Acquires the right to run a job, unless another caller has it.
    fn claim(&self) -> Option<MutexGuard<'_, ()>> {
        match self.claim.try_lock() {
            Ok(claim) => Some(claim),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Runs `work` here and on up to `wanted` workers at once, until every call of it has returned.
    fn run(&self, wanted: usize, work: &(dyn Fn() + Sync)) {
        #[expect(unsafe_code, reason = "lends the caller's closure to threads that outlive it")]
        // SAFETY: only the lifetime changes. Workers reach the reference through `shared.job` alone and count
        // themselves in `active`, under its lock, before they use it. Below the job is withdrawn under the same lock,
        // and then this function stays until `active` is zero, also when `work` panics; so no use outlives the borrow.
        let work_anywhere =
            unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work) };
        let shared = &*self.shared;
        *lock(&shared.job) = Some(Job { work: work_anywhere, caller: thread::current() });
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        self.wake(wanted);
        let outcome = catch_unwind(AssertUnwindSafe(work));
        *lock(&shared.job) = None;
        shared.wait_until_left();
        let panic = outcome.err().or_else(|| lock(&shared.panic).take());
        if let Some(panic) = panic {
            *lock(&shared.panic) = None;
            resume_unwind(panic);
        }
    }

    fn wake(&self, wanted: usize) {
        for (parked, worker) in self.shared.parked.iter().zip(&self.workers).take(wanted) {
            if parked.swap(false, Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        self.wake(self.workers.len());
        for worker in self.workers.drain(..) {
            // A worker catches every panic of a job, so there is none to report.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Main loop of a worker.
    fn serve(&self, worker_idx: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_epoch(seen, &self.parked[worker_idx]);
            if self.closing.load(Ordering::SeqCst) {
                return;
            }
            let Some(job) = self.enter() else { continue };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(job.work)) {
                lock(&self.panic).get_or_insert(panic);
            }
            // After this line the closure may no longer exist.
            if self.active.fetch_sub(1, Ordering::SeqCst) == 1 {
                job.caller.unpark();
            }
        }
    }

    /// Waits until the epoch differs from `seen`.
    fn next_epoch(&self, seen: usize, parked: &AtomicBool) -> usize {
        let changed = || Some(self.epoch.load(Ordering::SeqCst)).filter(|epoch| *epoch != seen);
        if let Some(epoch) = spin_until(changed) {
            return epoch;
        }
        loop {
            // Either this load sees the new epoch, or the caller's swap sees the flag and unparks.
            parked.store(true, Ordering::SeqCst);
            if let Some(epoch) = changed() {
                parked.store(false, Ordering::SeqCst);
                return epoch;
            }
            thread::park();
        }
    }

    /// Joins the published job, if there still is one.
    fn enter(&self) -> Option<Job> {
        let job = lock(&self.job);
        let job = job.as_ref()?.clone();
        self.active.fetch_add(1, Ordering::SeqCst);
        Some(job)
    }

    /// Waits until no worker is inside the withdrawn job.
    fn wait_until_left(&self) {
        let left = || (self.active.load(Ordering::SeqCst) == 0).then_some(());
        if spin_until(left).is_none() {
            while left().is_none() {
                thread::park();
            }
        }
    }
}

/// Polls `condition` for at most [`SPIN`].
fn spin_until<T>(condition: impl Fn() -> Option<T>) -> Option<T> {
    const LOOKS_PER_CLOCK: u32 = 64;
    let mut deadline = None;
    loop {
        for _ in 0..LOOKS_PER_CLOCK {
            if let Some(value) = condition() {
                return Some(value);
            }
            std::hint::spin_loop();
        }
        let now = Instant::now();
        if now >= *deadline.get_or_insert(now + SPIN) {
            return None;
        }
    }
}

/// Locks a mutex, even if a thread has panicked with the lock: no panic can leave the state behind
/// these locks half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
