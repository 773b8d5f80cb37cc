//! Exports spans of ended answers to a trace collector: OTLP over HTTP, as JSON.
//!
//! A span is built from an answer's record after the answer has ended, so a server without a
//! collector pays nothing. A slow collector loses spans, which are counted, but never delays an
//! answer. The protocol is implemented here instead of with OpenTelemetry's crates, whose
//! dependency tree is larger than the server's.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thiserror::Error;
use tracing::warn;

use super::record::{AnswerEnding, AnswerRecord};
use crate::ids::random_u64;

/// Maximum number of spans that wait to be sent.
const WAITING_MAX: usize = 2048;

/// Maximum number of spans per message.
const BATCH_MAX: usize = 256;

/// Maximum time that a span waits for others.
const BATCH_TIME: Duration = Duration::from_secs(1);

/// Time for the collector to accept a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Path for spans below a collector's base address.
const TRACES_PATH: &str = "/v1/traces";

/// Reason why no exporter can be started.
#[derive(Debug, Error)]
pub enum SpanExporterError {
    /// The address is not an HTTP address.
    #[error(
        "{url} is no address of a collector\nhint: for example http://127.0.0.1:4318, with OTLP over HTTP"
    )]
    Url {
        /// The address as it was given.
        url: String,
    },
    /// The thread cannot be started.
    #[error("no thread can be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// Handle of the thread that sends the spans.
pub struct SpanExporter {
    records: SyncSender<Arc<AnswerRecord>>,
    num_dropped: Arc<AtomicU64>,
}

impl fmt::Debug for SpanExporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanExporter").finish_non_exhaustive()
    }
}

impl SpanExporter {
    /// Starts a thread that sends spans to a collector, given by its base address or its traces
    /// endpoint.
    ///
    /// # Errors
    /// Returns an error if the address is not an HTTP address, or the thread cannot be started.
    pub fn new(url: &str) -> Result<SpanExporter, SpanExporterError> {
        let base = url.trim_end_matches('/');
        let is_http = base.starts_with("http://") || base.starts_with("https://");
        if !is_http || base.split("//").nth(1).is_none_or(str::is_empty) {
            return Err(SpanExporterError::Url { url: url.to_owned() });
        }
        let has_path = base.ends_with(TRACES_PATH);
        let url = if has_path { base.to_owned() } else { format!("{base}{TRACES_PATH}") };
        let (records, waiting) = sync_channel(WAITING_MAX);
        let num_dropped = Arc::new(AtomicU64::new(0));
        let dropped = Arc::clone(&num_dropped);
        let send = move || send_all(&url, &waiting, &dropped);
        // The thread ends when the last sender is dropped; shutdown does not wait for a collector
        // that may not answer.
        std::thread::Builder::new().name("otlp".to_owned()).spawn(send)?;
        Ok(SpanExporter { records, num_dropped })
    }

    /// Queues the span of an answer; drops it if the queue is full.
    pub fn push(&self, record: &Arc<AnswerRecord>) {
        if self.records.try_send(Arc::clone(record)).is_err() {
            self.num_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of spans that were dropped or not accepted by the collector.
    pub fn num_dropped(&self) -> u64 {
        self.num_dropped.load(Ordering::Relaxed)
    }
}

fn send_all(url: &str, waiting: &Receiver<Arc<AnswerRecord>>, dropped: &AtomicU64) {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().timeout_global(Some(SEND_TIMEOUT)).build().into();
    let mut is_warned = false;
    while let Some(batch) = next_batch(waiting) {
        let spans: Vec<Value> = batch.iter().map(|record| span(record)).collect();
        let body = message(&spans).to_string();
        let sent = agent.post(url).header("content-type", "application/json").send(body);
        let Err(err) = sent else { continue };
        dropped.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if !std::mem::replace(&mut is_warned, true) {
            warn!(%err, url, "the collector of traces takes no spans");
        }
    }
}

/// Waits for a span, then briefly for more; none once the sender has been dropped.
fn next_batch(waiting: &Receiver<Arc<AnswerRecord>>) -> Option<Vec<Arc<AnswerRecord>>> {
    let mut batch = vec![waiting.recv().ok()?];
    let deadline = Instant::now() + BATCH_TIME;
    while batch.len() < BATCH_MAX {
        match waiting.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(record) => batch.push(record),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    Some(batch)
}

/// The OTLP message that contains the spans (opentelemetry-proto 1.x, `ExportTraceServiceRequest`
/// as JSON).
fn message(spans: &[Value]) -> Value {
    json!({"resourceSpans": [{
        "resource": {"attributes": [
            text("service.name", "jackalope"),
            text("service.version", env!("CARGO_PKG_VERSION")),
        ]},
        "scopeSpans": [{"scope": {"name": "jackalope"}, "spans": spans}],
    }]})
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn count(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

/// The span of an answer, with attributes named by OpenTelemetry's conventions for generative AI.
fn span(record: &AnswerRecord) -> Value {
    let ended = Duration::from_secs_f64(record.ended_unix.max(0.0));
    let began = ended.saturating_sub(record.summary.total_time);
    let nanos = |at: Duration| at.as_nanos().to_string();
    let event = |name: &str, at: Duration| json!({"name": name, "timeUnixNano": nanos(at)});
    let mut events = vec![event("queued", began)];
    if let Some(time) = record.time_to_first_token() {
        events.push(event("started", began + record.summary.queue_time));
        events.push(event("first_token", began + time));
    }
    events.push(event("end", ended));
    let mut attributes = vec![
        text("gen_ai.operation.name", record.kind),
        text("gen_ai.request.model", &record.model),
        text("gen_ai.request.id", &record.request_id),
        count("gen_ai.request.max_tokens", record.start.max_tokens.into()),
        count("gen_ai.usage.input_tokens", record.summary.prompt_tokens.into()),
        count("gen_ai.usage.output_tokens", record.summary.completion_tokens.into()),
        count("jackalope.cached_tokens", record.summary.cached_tokens.into()),
        text("jackalope.status", record.ending.name()),
    ];
    attributes.extend(record.key.as_deref().map(|key| text("jackalope.key", key)));
    attributes
        .extend(record.finish_reason.map(|reason| text("gen_ai.response.finish_reason", reason)));
    let (trace, parent) = match &record.trace_parent {
        Some(parent) => (parent.trace_id.clone(), Some(parent.span_id.clone())),
        None => (format!("{:016x}{:016x}", random_u64(), random_u64()), None),
    };
    let status = match &record.ending {
        AnswerEnding::Ok => json!({"code": 1}),
        AnswerEnding::Error(message) => json!({"code": 2, "message": message}),
        AnswerEnding::Timeout | AnswerEnding::Cancelled => {
            json!({"code": 2, "message": record.ending.name()})
        }
    };
    json!({
        "traceId": trace,
        "spanId": format!("{:016x}", random_u64()),
        "parentSpanId": parent.unwrap_or_default(),
        "name": record.kind,
        "kind": 2,
        "startTimeUnixNano": nanos(began),
        "endTimeUnixNano": nanos(ended),
        "attributes": attributes,
        "events": events,
        "status": status,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_http_are_taken() {
        for url in ["", "collector:4317", "grpc://collector", "http://"] {
            assert!(SpanExporter::new(url).is_err(), "{url}");
        }
    }
}
