//! Runs constraints on threads of their own, so that no step waits for a slow one.
//!
//! ```text
//!  scheduler ──Question──▶ fast threads ──┬─ Answer ─▶ scheduler, which waits for GRACE at most
//!                │                        │
//!                └───────▶ slow thread ───┘  later: wake(), and the scheduler then takes it
//! ```
//!
//! A constraint that was slow once runs on the slow thread from then on, so that the fast threads
//! stay free for the other constraints; for each fast thread that is blocked meanwhile, another one
//! is started. The pool knows nothing of grammars.

use std::fmt;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::constraint_question::{Answer, Question};

/// Maximum time for which a step waits for constraints. Most constraints answer within about ten
/// microseconds.
const GRACE: Duration = Duration::from_millis(1);

/// Time after which a constraint counts as slow.
const SLOW: Duration = Duration::from_millis(1);

/// Number of threads for fast constraints while none of them is blocked.
const FAST_THREADS: usize = 4;

/// Maximum number of threads for fast constraints.
const FAST_THREADS_MAX: usize = 32;

/// The threads; they end when the pool is dropped.
pub(crate) struct ConstraintPool {
    fast: Lane,
    slow: Lane,
    answers: Receiver<Answer>,
    /// Number of questions without an answer; at most one for each request.
    num_open: usize,
    /// Whether the scheduler has stopped waiting for open questions.
    is_left: Arc<AtomicBool>,
}

impl fmt::Debug for ConstraintPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstraintPool").field("num_open", &self.num_open).finish_non_exhaustive()
    }
}

/// Threads that take questions from one queue.
struct Lane {
    questions: Sender<Question>,
    worker: Worker,
    /// Number of threads while none is blocked.
    num_usual: usize,
}

/// The state that a thread needs.
#[derive(Clone)]
struct Worker {
    inbox: Arc<Mutex<Receiver<Question>>>,
    done: Sender<Answer>,
    wake: Arc<dyn Fn() + Send + Sync>,
    is_left: Arc<AtomicBool>,
    num_threads: Arc<AtomicUsize>,
}

impl Lane {
    fn new(num_usual: usize, worker: Worker, questions: Sender<Question>) -> Lane {
        let lane = Lane { questions, worker, num_usual };
        (0..num_usual).for_each(|_| lane.start_thread());
        lane
    }

    fn start_thread(&self) {
        let (worker, num_usual) = (self.worker.clone(), self.num_usual);
        self.worker.num_threads.fetch_add(1, Ordering::SeqCst);
        std::thread::Builder::new()
            .name("constraint".to_owned())
            .spawn(move || worker.run(num_usual))
            .expect("a process that just started can start a thread");
    }

    /// Starts threads in place of `num_held_up` blocked ones.
    fn replace(&self, num_held_up: usize) {
        let num_threads = self.worker.num_threads.load(Ordering::SeqCst);
        let num_more = num_held_up.min(FAST_THREADS_MAX.saturating_sub(num_threads));
        (0..num_more).for_each(|_| self.start_thread());
    }
}

impl Worker {
    fn run(self, num_usual: usize) {
        while let Some(question) = self.next() {
            let was_slow = question.is_slow;
            let begin = Instant::now();
            let mut answer = question.ask();
            answer.is_slow |= SLOW < begin.elapsed();
            let was_held_up = answer.is_slow && !was_slow;
            if self.done.send(answer).is_err() {
                return;
            }
            if self.is_left.load(Ordering::SeqCst) {
                (self.wake)();
            }
            if was_held_up && num_usual < self.num_threads.load(Ordering::SeqCst) {
                self.num_threads.fetch_sub(1, Ordering::SeqCst);
                return;
            }
        }
    }

    /// Blocks until there is a question; returns `None` once the pool is gone.
    fn next(&self) -> Option<Question> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }
}

impl ConstraintPool {
    /// Starts the threads. `wake` is called when there is an answer for which the scheduler does
    /// not wait.
    pub(crate) fn new(wake: impl Fn() + Send + Sync + 'static) -> ConstraintPool {
        let num_cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let is_left = Arc::new(AtomicBool::new(false));
        let (done, answers) = mpsc::channel();
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new(wake);
        let lane = |num_threads: usize| {
            let (questions, inbox) = mpsc::channel();
            let worker = Worker {
                inbox: Arc::new(Mutex::new(inbox)),
                done: done.clone(),
                wake: Arc::clone(&wake),
                is_left: Arc::clone(&is_left),
                num_threads: Arc::default(),
            };
            Lane::new(num_threads, worker, questions)
        };
        let (fast, slow) = (lane(num_cores.min(FAST_THREADS)), lane(1));
        ConstraintPool { fast, slow, answers, num_open: 0, is_left }
    }

    /// Asks constraints, and returns the answers that arrive within [`GRACE`]. The others follow by
    /// [`ConstraintPool::take`] after a wake.
    pub(crate) fn ask(&mut self, questions: Vec<Question>) -> Vec<Answer> {
        let num_fast = questions.iter().filter(|question| !question.is_slow).count();
        questions.into_iter().for_each(|question| self.send(question));
        self.wait(num_fast)
    }

    fn send(&mut self, question: Question) {
        let lane = if question.is_slow { &self.slow } else { &self.fast };
        lane.questions.send(question).expect("the threads live as long as the pool");
        self.num_open += 1;
    }

    /// Returns the answers that arrive within [`GRACE`]; returns at once if only slow constraints
    /// are open.
    fn wait(&mut self, num_fast: usize) -> Vec<Answer> {
        self.is_left.store(false, Ordering::SeqCst);
        let deadline = Instant::now() + GRACE;
        let mut answers = Vec::new();
        let mut num_awaited = num_fast;
        while 0 < num_awaited {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(answer) = self.answers.recv_timeout(left) else { break };
            num_awaited -= usize::from(!answer.is_slow);
            answers.push(answer);
        }
        self.fast.replace(num_awaited);
        // Answers from now on wake the scheduler; answers that arrived just before are taken below.
        self.is_left.store(true, Ordering::SeqCst);
        self.num_open -= answers.len();
        answers.extend(self.take());
        answers
    }

    /// Returns the answers that have arrived.
    pub(crate) fn take(&mut self) -> Vec<Answer> {
        let answers: Vec<Answer> = self.answers.try_iter().collect();
        self.num_open -= answers.len();
        answers
    }
}
