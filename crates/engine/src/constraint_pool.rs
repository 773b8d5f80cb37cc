//! Runs constraints on threads of their own, so that no step waits for a slow one.
//!
//! ```text
//!  scheduler ──Question──▶ fast threads ──┬─ Answer ─▶ scheduler, which waits for GRACE at most
//!                │                        │
//!                └───────▶ slow thread ───┘  later: wake(), and the scheduler then takes it
//! ```
//!
//! A constraint whose answers are slow runs on the slow thread, so that the fast threads stay free for
//! the other constraints; for each fast thread that is blocked meanwhile, another one is started. The
//! slow thread runs the constraint first that has used the least CPU time, so that one that is slow for
//! once does not wait for several that always are. The pool knows nothing of grammars.

use std::fmt;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::constraint_question::{Answer, Question};
use crate::cost_history::thread_cpu_time;

/// Maximum time for which a step waits for constraints. Most constraints answer within about ten
/// microseconds.
const GRACE: Duration = Duration::from_millis(1);

/// Number of threads for fast constraints while none of them is blocked.
const FAST_THREADS: usize = 4;

/// Maximum number of threads for fast constraints.
const FAST_THREADS_MAX: usize = 32;

/// The threads; they end when the pool is dropped.
pub(crate) struct ConstraintPool {
    fast: Lane,
    slow: Lane,
    answers: Receiver<Done>,
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

/// An answer of a thread.
struct Done {
    answer: Answer,
    /// Whether a step can have waited for it.
    is_in_time: bool,
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
    done: Sender<Done>,
    wake: Arc<dyn Fn() + Send + Sync>,
    is_left: Arc<AtomicBool>,
    num_threads: Arc<AtomicUsize>,
    order: Order,
}

/// The order in which questions are taken from a queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Order {
    Arrival,
    /// The constraint first that has used the least CPU time.
    LeastCost,
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
        let mut taken = Vec::new();
        while let Some(question) = self.next(&mut taken) {
            let was_slow = question.costs.is_slow();
            let (begin, cpu_begin) = (Instant::now(), thread_cpu_time());
            let mut answer = question.ask();
            answer.costs.add(thread_cpu_time().saturating_sub(cpu_begin));
            let is_in_time = !was_slow && begin.elapsed() <= GRACE;
            let was_held_up = self.order == Order::Arrival && !is_in_time;
            if self.done.send(Done { answer, is_in_time }).is_err() {
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

    /// Blocks until there is a question; returns `None` once the pool is gone. `taken` holds
    /// questions that this thread has taken from the queue before their turn.
    fn next(&self, taken: &mut Vec<Question>) -> Option<Question> {
        let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.is_empty() {
            taken.push(inbox.recv().ok()?);
        }
        if self.order == Order::LeastCost {
            taken.extend(inbox.try_iter());
        }
        let next = (0..taken.len()).min_by_key(|&idx| taken[idx].costs.total())?;
        Some(taken.remove(next))
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
        let lane = |num_threads: usize, order: Order| {
            let (questions, inbox) = mpsc::channel();
            let worker = Worker {
                inbox: Arc::new(Mutex::new(inbox)),
                done: done.clone(),
                wake: Arc::clone(&wake),
                is_left: Arc::clone(&is_left),
                num_threads: Arc::default(),
                order,
            };
            Lane::new(num_threads, worker, questions)
        };
        let fast = lane(num_cores.min(FAST_THREADS), Order::Arrival);
        let slow = lane(1, Order::LeastCost);
        ConstraintPool { fast, slow, answers, num_open: 0, is_left }
    }

    /// Asks constraints, and returns the answers that arrive within [`GRACE`]. The others follow by
    /// [`ConstraintPool::take`] after a wake.
    pub(crate) fn ask(&mut self, questions: Vec<Question>) -> Vec<Answer> {
        let num_fast = questions.iter().filter(|question| !question.costs.is_slow()).count();
        questions.into_iter().for_each(|question| self.send(question));
        self.wait(num_fast)
    }

    fn send(&mut self, question: Question) {
        let lane = if question.costs.is_slow() { &self.slow } else { &self.fast };
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
            let Ok(done) = self.answers.recv_timeout(left) else { break };
            num_awaited -= usize::from(done.is_in_time);
            answers.push(done.answer);
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
        let answers: Vec<Answer> = self.answers.try_iter().map(|done| done.answer).collect();
        self.num_open -= answers.len();
        answers
    }
}
