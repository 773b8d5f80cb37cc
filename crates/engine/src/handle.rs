//! The interface of the engine: submit a request, read its events, read the status.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use jackalope_protocol::Phase;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

use crate::command::{Command, Departure, Gauges, Listener, OpenRequest, Question, SentEvent};
use crate::{
    EngineState, Event, Failure, MachineHeat, MemoryReading, Request, RequestId, RequestLimits,
    RequestRecord, Status,
};

/// The channel to the engine's thread. Sending never blocks. The channel holds at most one `Submit`
/// and one `Leave` per open request, whose number is bounded, one question of each caller that
/// waits for its answer, and occasional readings of the machines. Dropping the last reference ends
/// the engine.
pub(crate) struct Commands {
    send: Box<dyn Fn(Command) -> bool + Send + Sync>,
}

impl Commands {
    pub(crate) fn new(send: impl Fn(Command) -> bool + Send + Sync + 'static) -> Commands {
        Commands { send: Box::new(send) }
    }

    /// Sends a command; returns false if the engine has ended.
    fn send(&self, command: Command) -> bool {
        (self.send)(command)
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        self.send(Command::Shutdown);
    }
}

/// Submits requests. Cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct EngineHandle {
    commands: Arc<Commands>,
    status: watch::Receiver<Status>,
    gauges: Arc<Gauges>,
}

impl fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineHandle").field("gauges", &self.gauges).finish_non_exhaustive()
    }
}

/// Reason for which a request was refused.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SubmitError {
    /// Too many requests are waiting already.
    #[error(
        "the queue is full: {} waiting, the limit is {limit}",
        jackalope_protocol::counted(queued, "request")
    )]
    QueueFull {
        /// Number of waiting requests.
        queued: usize,
        /// Maximum number of waiting requests.
        limit: usize,
        /// Time after which a slot is likely to be free, estimated from the recent rate.
        retry_after: Duration,
    },
    /// The ranks are not available now.
    #[error("the model is not available: {reason}")]
    Unavailable {
        /// State of the engine.
        reason: String,
    },
    /// Other programs have used too much memory for too long.
    #[error(
        "{host} has {} MiB of memory left, and has been short of it for {} s\n\
         hint: end other programs on {host}, or serve with less memory for keys and values \
         (`--kv-mib`)", free_bytes >> 20, since.as_secs()
    )]
    MemoryShort {
        /// Name of the machine.
        host: String,
        /// Memory that its programs can still allocate, in bytes.
        free_bytes: u64,
        /// Time for which this has lasted.
        since: Duration,
    },
    /// Prompt and output exceed the memory for keys and values.
    #[error(
        "{needed_tokens} tokens of prompt and output need {needed_bytes} bytes of cache, \
         the budget is {budget_bytes} bytes ({capacity_tokens} tokens)"
    )]
    NeverFits {
        /// Maximum number of positions that the request may occupy.
        needed_tokens: u64,
        /// Size of these positions over all ranks, in bytes.
        needed_bytes: u64,
        /// Memory budget over all ranks, in bytes.
        budget_bytes: u64,
        /// Number of tokens that fit into the budget.
        capacity_tokens: u64,
    },
}

impl EngineHandle {
    pub(crate) fn new(
        commands: Arc<Commands>,
        status: watch::Receiver<Status>,
        gauges: Arc<Gauges>,
    ) -> EngineHandle {
        EngineHandle { commands, status, gauges }
    }

    /// Submits a request. Its events are read from the [`Generation`]; dropping that cancels the
    /// request.
    ///
    /// # Errors
    /// Fails with [`SubmitError`] if the request is refused.
    pub fn submit(&self, mut request: Request) -> Result<Generation, SubmitError> {
        self.check_state()?;
        self.check_pressure()?;
        self.check_memory(&mut request)?;
        self.open()?;
        let id = RequestId(self.gauges.next_id.fetch_add(1, Ordering::Relaxed));
        // The channel also has slots for Started, PromptScored, Embedded and the last event. So it
        // is never full, and a slow reader never blocks the engine.
        let (events, receiver) = mpsc::channel(request.max_tokens() as usize + 4);
        let record = Arc::new(OnceLock::new());
        let listener = Listener { events, record: Arc::clone(&record) };
        let request = Box::new(request);
        let submitted_at = Instant::now();
        if !self.commands.send(Command::Submit { id, request, listener }) {
            self.gauges.num_open.fetch_sub(1, Ordering::Relaxed);
            return Err(SubmitError::Unavailable { reason: "the engine has ended".to_owned() });
        }
        Ok(Generation {
            id,
            events: receiver,
            event_at: submitted_at,
            record,
            is_over: false,
            commands: Arc::clone(&self.commands),
        })
    }

    /// Returns the engine's status, as of the last step.
    pub fn status(&self) -> Status {
        let mut status = self.status.borrow().clone();
        status.counters.refused = self.gauges.num_refused.load(Ordering::Relaxed);
        status
    }

    /// Whether the model has layers with states or with windows that free positions, so that prompts
    /// are reused only up to lengths that are kept; false before the ranks have loaded.
    pub fn keeps_lengths(&self) -> bool {
        let kv = self.status.borrow().kv;
        0 < kv.state_bytes || 0 < kv.window_tokens
    }

    /// Returns the limits that requests are checked against; `None` until the ranks have been ready
    /// for the first time.
    pub fn limits(&self) -> Option<RequestLimits> {
        self.status.borrow().limits.clone()
    }

    /// Waits until the engine has left [`EngineState::Starting`]; returns true if it is then ready.
    pub async fn started(&self) -> bool {
        let mut status = self.status.clone();
        let state = status.wait_for(|status| status.state != EngineState::Starting).await;
        state.is_ok_and(|status| status.state == EngineState::Ready)
    }

    /// Like [`EngineHandle::started`], for callers without an async runtime; returns false once
    /// `timeout` has passed.
    pub fn started_blocking(&self, timeout: Duration) -> bool {
        block_on(self.started(), Instant::now() + timeout).unwrap_or(false)
    }

    /// Cancels a request: its stream ends with [`FinishReason::Cancelled`]. Returns false if the
    /// request has ended already. Answered within one iteration of the engine's thread, as are
    /// [`EngineHandle::clear_prefixes`] and [`EngineHandle::open_requests`]. If that thread hangs,
    /// none of them returns, so callers should use a timeout.
    ///
    /// [`FinishReason::Cancelled`]: crate::FinishReason::Cancelled
    pub async fn cancel(&self, id: RequestId) -> bool {
        self.ask(|answer| Question::Cancel { id, answer }).await.unwrap_or(false)
    }

    /// Frees the caches of finished sequences and returns their number. Caches of running sequences
    /// stay.
    pub async fn clear_prefixes(&self) -> usize {
        self.ask(|answer| Question::ClearPrefixes { answer }).await.unwrap_or(0)
    }

    /// Returns all requests that have not ended, oldest first.
    pub async fn open_requests(&self) -> Vec<OpenRequest> {
        self.ask(|answer| Question::OpenRequests { answer }).await.unwrap_or_default()
    }

    /// Waits until the engine's thread has processed a message; returns false if the engine has
    /// ended. If the thread hangs, this never returns, so callers should use a timeout.
    pub async fn responds(&self) -> bool {
        self.ask(|answer| Question::Ping { answer }).await.is_some()
    }

    /// Asks the engine's thread; returns `None` if the engine has ended.
    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Option<T> {
        let (sender, answer) = oneshot::channel();
        self.commands.send(Command::Ask(question(sender)));
        answer.await.ok()
    }

    /// Ends the engine and every rank. Open requests end with [`Event::Failed`]. Join the
    /// [`EngineThread`](crate::EngineThread) to wait for the end.
    pub fn shutdown(&self) {
        self.commands.send(Command::Shutdown);
    }

    /// Ends the engine so that a later one can take over the ranks: ranks that can outlive their
    /// coordinator keep their weights for their lease, the others end. Open requests end with
    /// [`Event::Failed`].
    pub fn hand_over(&self) {
        self.commands.send(Command::HandOver);
    }

    fn check_state(&self) -> Result<(), SubmitError> {
        let reason = match &self.status.borrow().state {
            EngineState::Ready | EngineState::Recovering { .. } => return Ok(()),
            EngineState::Starting => "the ranks are loading".to_owned(),
            EngineState::Failed { failure, .. } => failure.to_string(),
            EngineState::Stopping => "the engine is stopping".to_owned(),
        };
        Err(SubmitError::Unavailable { reason })
    }

    /// Reports the memory of the machines; see [`MemoryReading`]. Returns false if the engine has
    /// ended.
    pub fn report_memory(&self, reading: MemoryReading) -> bool {
        self.commands.send(Command::Memory(reading))
    }

    /// Reports temperature, power and GPU load of the machines, which only its status shows. Returns
    /// false if the engine has ended.
    pub fn report_heat(&self, heat: Vec<MachineHeat>) -> bool {
        self.commands.send(Command::Heat(heat))
    }

    fn check_pressure(&self) -> Result<(), SubmitError> {
        let status = self.status.borrow();
        let Some(since) = status.pressure.refuses(Instant::now()) else { return Ok(()) };
        self.gauges.num_refused.fetch_add(1, Ordering::Relaxed);
        let MemoryReading { host, free_bytes, .. } = status.pressure.reading.clone();
        Err(SubmitError::MemoryShort { host, free_bytes, since })
    }

    fn check_memory(&self, request: &mut Request) -> Result<(), SubmitError> {
        let kv = self.status.borrow().kv;
        if request.fit(kv.capacity_tokens) {
            return Ok(());
        }
        let needed_tokens = u64::from(request.max_cached_tokens());
        Err(SubmitError::NeverFits {
            needed_tokens,
            needed_bytes: needed_tokens * kv.bytes_per_token
                + needed_tokens.min(kv.window_tokens) * kv.window_bytes_per_token,
            budget_bytes: kv.budget_bytes,
            capacity_tokens: kv.capacity_tokens,
        })
    }

    fn open(&self) -> Result<(), SubmitError> {
        let (limit, running_max) = {
            let status = self.status.borrow();
            (status.queue_max, status.running_max)
        };
        let open_max = limit + running_max;
        let count = |open: usize| (open < open_max).then_some(open + 1);
        match self.gauges.num_open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) {
            Ok(_) => Ok(()),
            Err(open) => {
                self.gauges.num_refused.fetch_add(1, Ordering::Relaxed);
                let interval_us = self.gauges.finish_interval_us.load(Ordering::Relaxed);
                let retry_after = Duration::from_micros(interval_us)
                    .clamp(Duration::from_secs(1), Duration::from_secs(60));
                let queued = open.saturating_sub(running_max);
                Err(SubmitError::QueueFull { queued, limit, retry_after })
            }
        }
    }
}

/// The events of one request. Dropping it cancels the request on every rank within one step; what
/// was computed stays in the prefix cache until its memory is needed. [`Generation::complete`] does
/// the same for a request whose caller has all that it needs.
pub struct Generation {
    id: RequestId,
    events: mpsc::Receiver<SentEvent>,
    event_at: Instant,
    record: Arc<OnceLock<RequestRecord>>,
    is_over: bool,
    commands: Arc<Commands>,
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation")
            .field("id", &self.id)
            .field("is_over", &self.is_over)
            .finish_non_exhaustive()
    }
}

impl Generation {
    /// Returns the request's id, which also names it in logs.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Returns the record of the request; available from its last event on, unless the engine's
    /// thread has died.
    pub fn record(&self) -> Option<&RequestRecord> {
        self.record.get()
    }

    /// Returns when the engine sent the latest event that was returned, however late that was; before
    /// the first one, the time of the submission.
    pub fn event_at(&self) -> Instant {
        self.event_at
    }

    /// Returns the next event; `None` after the last one. Cancel safe.
    pub async fn next(&mut self) -> Option<Event> {
        if self.is_over {
            return None;
        }
        let event = self.events.recv().await;
        Some(self.note(event))
    }

    /// Like [`Generation::next`], for callers that poll several generations at once.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        self.events.poll_recv(context).map(|event| Some(self.note(event)))
    }

    /// Like [`Generation::next`], for callers without an async runtime.
    ///
    /// # Panics
    /// Panics if called from within an async runtime.
    pub fn next_blocking(&mut self) -> Option<Event> {
        if self.is_over {
            return None;
        }
        let event = self.events.blocking_recv();
        Some(self.note(event))
    }

    /// Ends a request whose output is complete for its caller, for example because of a stop string.
    /// The engine counts it as finished, unless it has ended already.
    pub fn complete(mut self) {
        self.leave(Departure::Complete);
    }

    fn leave(&mut self, departure: Departure) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.commands.send(Command::Leave { id: self.id, departure });
        }
    }

    /// Records an event. If the engine's thread has died, supplies the last event.
    fn note(&mut self, sent: Option<SentEvent>) -> Event {
        let SentEvent { sent_at, event } = sent.unwrap_or_else(|| {
            let failure = Failure {
                rank: None,
                host: None,
                phase: Phase::Waiting,
                message: "the engine has ended".to_owned(),
                last_words: String::new(),
            };
            SentEvent { sent_at: Instant::now(), event: Event::Failed(failure) }
        });
        self.event_at = sent_at;
        self.is_over = event.is_last();
        event
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.leave(Departure::Left);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>, deadline: Instant) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Some(value);
        }
        let left = deadline.checked_duration_since(Instant::now())?;
        std::thread::park_timeout(left);
    }
}
