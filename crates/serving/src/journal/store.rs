//! The records and totals of a server.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::open_request::{AnswerInProgress, Finishes};
use super::record::AnswerRecord;
use super::request_log::RequestLog;
use super::spans::SpanExporter;
use super::totals::{HttpTotals, KeyTotals, ModelTotals};
use crate::caller::ApiCaller;
use crate::error::ApiError;
use crate::ids::unix_time;
use crate::numbers::rounded;

/// Number of ended answers that are kept.
pub const RECENT_MAX: usize = 200;

/// Number of errors that are kept.
pub(super) const ERRORS_MAX: usize = 50;

/// The period over which recent rates are computed.
pub const WINDOW: Duration = Duration::from_secs(60);

/// Maximum number of models and of keys that are counted separately; the others are counted
/// together.
const NAMES_MAX: usize = 256;

/// An error that was returned to a client.
#[derive(Clone, Debug)]
pub struct ErrorRecord {
    /// Time of the error, in seconds since 1970.
    at_unix: f64,
    request_id: Arc<str>,
    kind: &'static str,
    key: Option<String>,
    code: &'static str,
    status: u16,
    message: String,
}

impl ErrorRecord {
    /// Converts to JSON, as `/errors` returns it.
    pub fn to_json(&self) -> Value {
        json!({
            "timestamp": rounded(self.at_unix, 3),
            "request_id": *self.request_id,
            "kind": self.kind,
            "key": self.key,
            "code": self.code,
            "status": self.status,
            "message": self.message,
        })
    }
}

/// An ended answer, and the time it ended.
#[derive(Clone, Debug)]
pub struct Recent {
    /// Time when the answer ended.
    pub ended: Instant,
    /// Record of the answer.
    pub record: Arc<AnswerRecord>,
}

/// Method, route and status; HTTP requests with the same values are counted together.
pub type HttpClass = (&'static str, String, u16);

/// The records and totals of everything that the server has answered.
#[derive(Debug)]
pub struct Journal {
    /// Time when the server was started.
    pub started: Instant,
    pages: Mutex<Pages>,
    http_open: AtomicUsize,
    next_open_id: AtomicU64,
    log: Option<RequestLog>,
    spans: Option<SpanExporter>,
}

#[derive(Debug, Default)]
struct Pages {
    recent: VecDeque<Recent>,
    errors: VecDeque<ErrorRecord>,
    num_errors: u64,
    open: BTreeMap<u64, Arc<AnswerInProgress>>,
    models: BTreeMap<String, ModelTotals>,
    keys: BTreeMap<String, KeyTotals>,
    http: BTreeMap<HttpClass, HttpTotals>,
}

/// The totals of a journal at one moment.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Totals by model id.
    pub models: BTreeMap<String, ModelTotals>,
    /// Totals by name of the key.
    pub keys: BTreeMap<String, KeyTotals>,
    /// Totals of HTTP requests.
    pub http: BTreeMap<HttpClass, HttpTotals>,
    /// Number of HTTP requests being answered.
    pub http_open: usize,
    /// Number of errors of the server and of requests refused for lack of capacity.
    pub num_errors: u64,
    /// Number of records that the request log dropped; none without a log.
    pub log_dropped: Option<u64>,
    /// Number of spans that were not exported; none without an exporter.
    pub spans_dropped: Option<u64>,
}

impl Journal {
    /// Creates an empty journal, which also passes its records to `log` and `spans`.
    pub fn new(log: Option<RequestLog>, spans: Option<SpanExporter>) -> Journal {
        Journal {
            started: Instant::now(),
            pages: Mutex::default(),
            http_open: AtomicUsize::new(0),
            next_open_id: AtomicU64::new(0),
            log,
            spans,
        }
    }

    /// Locks the pages, even if a thread panicked while it held them: counters stay usable.
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open(&self, request: Arc<AnswerInProgress>) -> u64 {
        let id = self.next_open_id.fetch_add(1, Ordering::Relaxed);
        self.pages().open.insert(id, request);
        id
    }

    pub(super) fn close(&self, open_id: u64, record: AnswerRecord, finishes: &Finishes) {
        let record = Arc::new(record);
        if let Some(log) = &self.log {
            log.push(&record);
        }
        if let Some(spans) = &self.spans {
            spans.push(&record);
        }
        let mut pages = self.pages();
        pages.open.remove(&open_id);
        named(&mut pages.models, &record.model).add(&record, finishes);
        if let Some(key) = &record.key {
            let totals = named(&mut pages.keys, key);
            totals.requests += 1;
            totals.prompt_tokens += u64::from(record.summary.prompt_tokens);
            totals.completion_tokens += u64::from(record.summary.completion_tokens);
        }
        push_bounded(&mut pages.recent, Recent { ended: Instant::now(), record }, RECENT_MAX);
    }

    /// Records an error of the server, or a request refused for lack of capacity. Errors of clients
    /// are not recorded.
    pub fn note_error(&self, caller: &ApiCaller, err: &ApiError) {
        let (status, code) = (err.status(), err.code());
        if let ApiError::KeyLimit { .. } = err
            && let Some(key) = caller.key_name()
        {
            named(&mut self.pages().keys, key).limited += 1;
        }
        if !status.is_server_error() && status.as_u16() != 429 {
            return;
        }
        let record = ErrorRecord {
            at_unix: unix_time(),
            request_id: Arc::clone(&caller.request_id),
            kind: caller.kind,
            key: caller.key_name().map(str::to_owned),
            code,
            status: status.as_u16(),
            message: err.message(),
        };
        let mut pages = self.pages();
        pages.num_errors += 1;
        push_bounded(&mut pages.errors, record, ERRORS_MAX);
    }

    /// Counts an HTTP request that has begun.
    pub fn http_began(&self) {
        self.http_open.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an HTTP request whose answer has ended.
    pub fn http_ended(&self, class: HttpClass, time: Duration) {
        self.http_open.fetch_sub(1, Ordering::Relaxed);
        self.pages().http.entry(class).or_default().seconds.record(time.as_secs_f64());
    }

    /// Ended answers, the newest last.
    pub fn recent(&self) -> Vec<Recent> {
        self.pages().recent.iter().cloned().collect()
    }

    /// Errors, the newest last.
    pub fn errors(&self) -> Vec<ErrorRecord> {
        self.pages().errors.iter().cloned().collect()
    }

    /// Requests in progress, the oldest first.
    pub fn open_requests(&self) -> Vec<Arc<AnswerInProgress>> {
        self.pages().open.values().map(Arc::clone).collect()
    }

    /// The current totals.
    pub fn totals(&self) -> Totals {
        let pages = self.pages();
        Totals {
            models: pages.models.clone(),
            keys: pages.keys.clone(),
            http: pages.http.clone(),
            http_open: self.http_open.load(Ordering::Relaxed),
            num_errors: pages.num_errors,
            log_dropped: self.log.as_ref().map(RequestLog::num_dropped),
            spans_dropped: self.spans.as_ref().map(SpanExporter::num_dropped),
        }
    }

    /// Recent mean time between the ends of two answers; none if there were too few.
    pub fn end_interval(&self) -> Option<Duration> {
        let pages = self.pages();
        let late = pages.recent.iter().filter(|it| it.ended.elapsed() < WINDOW);
        let times: Vec<Instant> = late.map(|it| it.ended).collect();
        let (first, last) = (times.first()?, times.last()?);
        let gaps = u32::try_from(times.len() - 1).ok().filter(|gaps| 0 < *gaps)?;
        Some(last.duration_since(*first) / gaps)
    }
}

/// The totals under a name; under `other` if there are too many names already.
fn named<'a, T: Default>(totals: &'a mut BTreeMap<String, T>, name: &str) -> &'a mut T {
    let is_one_too_many = NAMES_MAX <= totals.len() && !totals.contains_key(name);
    let name = if is_one_too_many { "other" } else { name };
    totals.entry(name.to_owned()).or_default()
}

fn push_bounded<T>(list: &mut VecDeque<T>, value: T, limit: usize) {
    if list.len() == limit {
        list.pop_front();
    }
    list.push_back(value);
}
