//! Computes ratios between two reports of one server, or of two servers.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::{Map, Value};

/// Maximum size of a report.
const REPORT_BYTES_MAX: u64 = 16 << 20;

/// The values that are compared: name, JSON pointer in a row, and whether more is better.
const COMPARED: [(&str, &str, bool); 7] = [
    ("tokens_per_s", "/tokens_per_s", true),
    ("requests_per_s", "/requests_per_s", true),
    ("first_token_p50", "/first_token_ms/p50", false),
    ("first_token_p99", "/first_token_ms/p99", false),
    ("inter_token_p50", "/inter_token_ms/p50", false),
    ("inter_token_p99", "/inter_token_ms/p99", false),
    ("request_p50", "/request_ms/p50", false),
];

/// An earlier report of `bench --url --json`.
#[derive(Debug)]
pub(super) struct Earlier {
    rows: Vec<Value>,
}

impl Earlier {
    pub(super) fn read(path: &Path) -> anyhow::Result<Earlier> {
        let mut text = String::new();
        let file = std::fs::File::open(path);
        let read = file.and_then(|it| it.take(REPORT_BYTES_MAX).read_to_string(&mut text));
        read.with_context(|| format!("reading {}", path.display()))?;
        let hint = "hint: `--compare` takes what `jackalope bench --url URL --json` has printed";
        let report: Value = serde_json::from_str(&text)
            .with_context(|| format!("{} is not valid JSON\n{hint}", path.display()))?;
        let rows = report["rows"].as_array().cloned().unwrap_or_default();
        ensure!(!rows.is_empty(), "{} has no rows\n{hint}", path.display());
        Ok(Earlier { rows })
    }

    /// Returns the ratios of this row to the earlier row of the same shape (now / then); `None` if
    /// that shape was not measured.
    pub(super) fn ratios(&self, row: &Value) -> Option<Map<String, Value>> {
        let shape = |row: &Value| {
            ["prompt_tokens", "gen_tokens", "concurrency"].map(|key| row[key].as_u64())
        };
        let then = self.rows.iter().find(|it| shape(it) == shape(row))?;
        let ratio = |&(name, place, _): &(&str, &str, bool)| {
            let number = |row: &Value| row.pointer(place)?.as_f64().filter(|it| 0.0 < *it);
            Some((name.to_owned(), Value::from(number(row)? / number(then)?)))
        };
        Some(COMPARED.iter().filter_map(ratio).collect())
    }
}

/// Formats ratios for people: `tokens_per_s 1.20 ×, first_token_p50 2.00 × (worse)`.
pub(super) fn text(ratios: Option<&Map<String, Value>>) -> String {
    let Some(ratios) = ratios else { return "the earlier report has no such row".to_owned() };
    let words = COMPARED.iter().filter_map(|(name, _, more_is_better)| {
        let ratio = ratios.get(*name)?.as_f64()?;
        // Differences of 5 % are noise on most machines.
        let is_worse = if *more_is_better { ratio < 0.95 } else { 1.05 < ratio };
        Some(format!("{name} {ratio:.2} ×{}", if is_worse { " (worse)" } else { "" }))
    });
    format!("ratio to the earlier report: {}", words.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(concurrency: u32, tokens_per_s: f64, first_ms: f64) -> Value {
        json!({
            "prompt_tokens": 512, "gen_tokens": 64, "concurrency": concurrency,
            "tokens_per_s": tokens_per_s, "first_token_ms": {"p50": first_ms, "p99": 0.0},
        })
    }

    #[test]
    fn rows_of_the_same_shape_are_compared() {
        let earlier = Earlier { rows: vec![row(1, 10.0, 100.0), row(4, 20.0, 200.0)] };
        let ratios = earlier.ratios(&row(4, 30.0, 400.0)).unwrap();
        assert_eq!(
            Value::from(ratios.clone()),
            json!({"tokens_per_s": 1.5, "first_token_p50": 2.0})
        );
        let printed = text(Some(&ratios));
        assert_eq!(
            printed,
            "ratio to the earlier report: tokens_per_s 1.50 ×, first_token_p50 2.00 × (worse)"
        );
        assert_eq!(earlier.ratios(&row(8, 30.0, 400.0)), None);
        assert_eq!(text(None), "the earlier report has no such row");
    }

    #[test]
    fn what_is_no_report_is_refused_with_its_name() {
        let path = std::env::temp_dir().join(format!("jackalope-report-{}", std::process::id()));
        for (content, said) in
            [("nonsense", "is not valid JSON"), ("{\"rows\": []}", "has no rows")]
        {
            std::fs::write(&path, content).unwrap();
            let err = format!("{:#}", Earlier::read(&path).unwrap_err());
            assert!(err.contains(said) && err.contains("hint:"), "{err}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Earlier::read(&path).is_err());
    }
}
