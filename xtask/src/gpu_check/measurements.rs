//! What programs print of their measurements: one line of JSON for each.

use anyhow::Context;
use serde_json::Value;

/// Returns a number of a measurement, or not a number where it is missing.
pub(super) fn number(line: &Value, key: &str) -> f64 {
    line[key].as_f64().unwrap_or(f64::NAN)
}

/// Reads one measurement from each line.
pub(super) fn lines(text: &str) -> anyhow::Result<Vec<Value>> {
    let parsed = text.lines().map(|line| {
        serde_json::from_str(line).with_context(|| format!("found {line:?} among the measurements"))
    });
    parsed.collect()
}
