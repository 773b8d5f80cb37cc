//! The log, as the page shows it.

use jackalope_protocol::log::{LogLine, recent_lines};
use serde_json::{Value, json};

/// Returns the content of `/v1/logs`: the lines with numbers greater than `after`. Ranks and agents send
/// their lines to the server, so its log has those of all machines.
pub fn log_lines(after: u64) -> Value {
    let line = |LogLine { number, text }| json!({"number": number, "text": text});
    json!({"lines": recent_lines(after).into_iter().map(line).collect::<Vec<_>>()})
}
