//! The journal of the server's answers: the last requests, the last errors, totals, and the
//! requests in progress. One [`Recorder`] per answer writes here when the answer ends; metrics, the
//! request log, traces and all endpoints about requests read from here.
//!
//! The journal contains counts, times and names, but no prompts and no answers.

mod open_request;
mod record;
mod recorder;
mod request_log;
mod spans;
mod store;
mod totals;

pub use open_request::{AnswerInProgress, AnswerStart};
pub use record::{AnswerEnding, AnswerRecord};
pub use recorder::Recorder;
pub use request_log::{RequestLog, RequestLogError};
pub use spans::{SpanExporter, SpanExporterError};
pub use store::{ErrorRecord, HttpClass, Journal, RECENT_MAX, Recent, Totals, WINDOW};
pub use totals::{HttpTotals, KeyTotals, ModelTotals};
