//! What handles send to the engine's thread, and what both share.

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use crate::MemoryReading;
use crate::event::{Event, Usage};
use crate::metrics::RequestRecord;
use crate::request::{Request, RequestId, TenantId};
use crate::status::MachineHeat;

/// A message that wakes the engine's thread.
#[derive(Debug)]
pub(crate) enum Message<R> {
    /// Sent by a handle or a generation.
    Command(Command),
    /// Sent by the group's threads.
    Report(R),
}

#[derive(Debug)]
pub(crate) enum Command {
    Submit {
        id: RequestId,
        request: Box<Request>,
        listener: Listener,
    },
    /// The caller of a request reads no more events of it.
    Leave {
        id: RequestId,
        departure: Departure,
    },
    Ask(Question),
    Memory(MemoryReading),
    Heat(Vec<MachineHeat>),
    /// A constraint has answered after a step was planned without it.
    ConstraintAnswered,
    HandOver,
    Shutdown,
}

/// Why the caller of a request reads no more events of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Departure {
    /// The output is complete for the caller.
    Complete,
    /// The caller has dropped the generation.
    Left,
}

/// A question to the engine's thread, with the channel for the answer.
#[derive(Debug)]
pub(crate) enum Question {
    Cancel { id: RequestId, answer: oneshot::Sender<bool> },
    ClearPrefixes { answer: oneshot::Sender<usize> },
    OpenRequests { answer: oneshot::Sender<Vec<OpenRequest>> },
    Ping { answer: oneshot::Sender<()> },
}

/// An event on the way to its caller.
#[derive(Debug)]
pub(crate) struct SentEvent {
    pub(crate) sent_at: Instant,
    pub(crate) event: Event,
}

/// The engine's end of one request's stream.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) events: mpsc::Sender<SentEvent>,
    /// Set before the last event is sent.
    pub(crate) record: Arc<OnceLock<RequestRecord>>,
}

impl Listener {
    pub(crate) fn keep(&self, record: RequestRecord) {
        // There is exactly one last event, hence one record.
        let _ = self.record.set(record);
    }

    pub(crate) fn send(&self, event: Event) {
        // Fails if the caller has left; its cancellation is already queued.
        let _ = self.events.try_send(SentEvent { sent_at: Instant::now(), event });
    }
}

/// Numbers that handles and the engine's thread share.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    /// Number of requests submitted and not yet ended.
    pub(crate) num_open: AtomicUsize,
    pub(crate) num_refused: AtomicU64,
    /// Moving average of the time between the ends of two consecutive requests, in microseconds.
    pub(crate) finish_interval_us: AtomicU64,
    pub(crate) next_id: AtomicU64,
}

/// A request that has not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenRequest {
    /// Id of the request.
    pub id: RequestId,
    /// Tenant that submitted it.
    pub tenant: Option<TenantId>,
    /// Priority of the request.
    pub priority: i32,
    /// Whether the request owns a cache; otherwise it waits.
    pub is_running: bool,
    /// Time since its submission.
    pub age: Duration,
    /// Tokens so far. Preemptions are not included until the end.
    pub usage: Usage,
}
