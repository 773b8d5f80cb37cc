//! Formats rows for people.

use std::collections::BTreeMap;

use jackalope_inspect::report::ThunderboltGeneration;
use jackalope_protocol::counted;
use serde_json::{Value, json};

/// Ratings by minimum bandwidth in GB/s; the same words as in mlx-jaccl-cluster's test of its
/// links.
const BANDWIDTHS: &[(f64, &str)] = &[(5.0, "EXCELLENT"), (2.0, "GREAT"), (0.5, "OK")];

/// Ratings by maximum latency in microseconds.
const LATENCIES: &[(f64, &str)] = &[(100.0, "EXCELLENT"), (500.0, "GOOD")];

/// Size in bytes of the payload whose time counts as the latency.
const LATENCY_BYTES: u64 = 4096;

/// Formats rows as they arrive, with a heading before the first measured one.
#[derive(Debug, Default)]
pub(super) struct Table {
    num_checks: u32,
    has_heading: bool,
}

impl Table {
    pub(super) fn text(&mut self, row: &Value) -> Option<String> {
        let word = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        match row["row"].as_str()? {
            "group" => {
                let hosts: Vec<&str> = row["hosts"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect();
                let on = if hosts.is_empty() { "" } else { " on " };
                Some(format!(
                    "{}{on}{}, libmlx {}",
                    jackalope_protocol::counted(row["size"].as_u64().unwrap_or(0), "rank"),
                    hosts.join(", "),
                    word("mlx")
                ))
            }
            "verdict" => Some(verdict(row)),
            "check" if row["ok"] == true => {
                self.num_checks += 1;
                None
            }
            "check" => Some(format!(
                "FAILED  {} {} {} {}: {}",
                word("backend"),
                word("via"),
                word("op"),
                word("dtype"),
                word("error")
            )),
            "refused" => Some(format!("{:<6} refused: {}", word("backend"), word("reason"))),
            "idle" => {
                Some(format!("share of a core while waiting, by rank: {}", row["core_share"]))
            }
            "time" => Some(self.time(row)),
            "done" => Some(format!("{} passed", counted(self.num_checks, "check"))),
            _ => None,
        }
    }

    fn time(&mut self, row: &Value) -> String {
        let mut text = String::new();
        if !self.has_heading {
            self.has_heading = true;
            text += &format!(
                "{:<8}{:<11}{:<15}{:>10}{:>11}{:>11}{:>11}{:>10}\n",
                "backend", "through", "operation", "bytes", "median µs", "p90 µs", "p99 µs", "GB/s"
            );
        }
        let word = |key: &str| row[key].as_str().unwrap_or_default();
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        text += &format!(
            "{:<8}{:<11}{:<15}{:>10}{:>11.1}{:>11.1}{:>11.1}{:>10.3}",
            word("backend"),
            word("via"),
            word("op"),
            row["bytes"].to_string(),
            number("median_us"),
            number("p90_us"),
            number("p99_us"),
            number("bytes_per_s") / 1e9
        );
        for (idx, round_us) in row["rounds_us"].as_array().into_iter().flatten().enumerate() {
            text +=
                &format!("\n  round {:<6} {:>34.1} µs", idx + 1, round_us.as_f64().unwrap_or(0.0));
        }
        text
    }
}

/// Ratings of the link by the times of sums, for each transport.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// For each backend: the highest number of bytes per second, and the least time in microseconds
    /// for a small payload.
    best: BTreeMap<String, (f64, Option<f64>)>,
}

impl Verdicts {
    pub(super) fn note(&mut self, row: &Value) {
        let (Some(backend), Some(bytes_per_s), Some(median_us)) =
            (row["backend"].as_str(), row["bytes_per_s"].as_f64(), row["median_us"].as_f64())
        else {
            return;
        };
        if row["op"] != "all_sum" {
            return;
        }
        let (peak, latency_us) = self.best.entry(backend.to_owned()).or_default();
        *peak = peak.max(bytes_per_s);
        if row["bytes"] == LATENCY_BYTES {
            *latency_us = Some(latency_us.map_or(median_us, |it| it.min(median_us)));
        }
    }

    /// Returns one row per backend, with the throughput that cables of this generation usually
    /// reach between `num_ranks` ranks.
    pub(super) fn rows(
        &self,
        cables: Option<ThunderboltGeneration>,
        num_ranks: usize,
    ) -> Vec<Value> {
        let row = |(backend, (peak, latency_us)): (&String, &(f64, Option<f64>))| {
            let peak = peak / 1e9;
            let bandwidth = BANDWIDTHS.iter().find(|(least, _)| *least < peak);
            let latency = latency_us.map(|it| {
                let below = LATENCIES.iter().find(|(most, _)| it < *most);
                below.map_or("HIGH", |(_, word)| word)
            });
            let expected = cables.and_then(|it| Some((it, it.expected(backend == "jaccl")?)));
            let expected = expected.map(|(generation, usual)| {
                // Share of a sum that each rank sends, and receives.
                let parts = 2.0 * (num_ranks as f64 - 1.0) / num_ranks.max(1) as f64;
                let bits_per_s = peak * 8e9 * parts;
                json!({
                    "cable": generation.name(),
                    "gbit_per_s": bits_per_s / 1e9,
                    "least_gbit_per_s": usual.least_bits_per_s / 1e9,
                    "most_gbit_per_s": usual.most_bits_per_s / 1e9,
                    "far_below": usual.is_missed_by(bits_per_s),
                })
            });
            json!({
                "row": "verdict", "backend": backend, "expected": expected,
                "peak_gb_per_s": peak, "bandwidth": bandwidth.map_or("LOW", |(_, word)| word),
                "latency_us": latency_us, "latency": latency,
            })
        };
        self.best.iter().map(row).collect()
    }
}

fn verdict(row: &Value) -> String {
    let word = |key: &str| row[key].as_str().unwrap_or_default();
    let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    let (backend, bandwidth) = (word("backend"), word("bandwidth"));
    let peak = number("peak_gb_per_s");
    let mut text = format!("verdict: {backend} {bandwidth}, at most {peak:.2} GB/s");
    if !row["latency"].is_null() {
        let (latency_us, latency) = (number("latency_us"), word("latency"));
        text += &format!("; latency {latency}, 4 KB in {latency_us:.0} µs");
    }
    let expected = &row["expected"];
    if let Some(cable) = expected["cable"].as_str() {
        let gbit = |key: &str| expected[key].as_f64().unwrap_or(f64::NAN);
        let (found, least, most) =
            (gbit("gbit_per_s"), gbit("least_gbit_per_s"), gbit("most_gbit_per_s"));
        text += &format!("\n  {found:.1} Gbit/s; {cable} usually carries {least} to {most} so");
        if expected["far_below"] == true {
            text +=
                ", which is FAR MORE\n  hint: `jackalope doctor` looks at cables, ports and routes";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_is_shown_and_a_passed_one_counted() {
        let mut table = Table::default();
        let passed = serde_json::json!({"row": "check", "ok": true});
        assert_eq!(table.text(&passed), None);
        let failed = serde_json::json!({"row": "check", "ok": false, "backend": "tcp",
            "via": "mlx", "op": "all_sum", "dtype": "bf16", "error": "1 is not 2"});
        assert!(table.text(&failed).unwrap().contains("all_sum bf16: 1 is not 2"));
        let done = serde_json::json!({"row": "done"});
        assert_eq!(table.text(&done).unwrap(), "1 check passed");
    }

    #[test]
    fn a_link_is_judged_by_its_peak_and_by_its_small_payloads() {
        let verdicts = |rows: &[(u64, f64, f64)]| {
            let mut verdicts = Verdicts::default();
            for (bytes, median_us, bytes_per_s) in rows {
                verdicts.note(&json!({"row": "time", "backend": "tcp", "op": "all_sum",
                    "bytes": bytes, "median_us": median_us, "bytes_per_s": bytes_per_s}));
            }
            verdicts.note(&json!({"row": "time", "backend": "bare", "op": "bare_exchange",
                "bytes": 4096, "median_us": 1.0, "bytes_per_s": 9e9}));
            verdicts.rows(None, 2).iter().map(verdict).collect::<Vec<_>>()
        };
        assert_eq!(
            verdicts(&[(4096, 99.0, 4e7), (1 << 20, 190.0, 5.1e9)]),
            ["verdict: tcp EXCELLENT, at most 5.10 GB/s; latency EXCELLENT, 4 KB in 99 µs"]
        );
        assert_eq!(
            verdicts(&[(4096, 100.0, 5e8)]),
            ["verdict: tcp LOW, at most 0.50 GB/s; latency GOOD, 4 KB in 100 µs"]
        );
        assert_eq!(verdicts(&[(65536, 9.0, 2.5e9)]), ["verdict: tcp GREAT, at most 2.50 GB/s"]);
        let slow = verdicts(&[(4096, 500.0, 6e8)]);
        assert_eq!(slow, ["verdict: tcp OK, at most 0.60 GB/s; latency HIGH, 4 KB in 500 µs"]);
        assert!(verdicts(&[]).is_empty());
    }

    #[test]
    fn a_link_is_held_against_what_its_cables_usually_carry() {
        let judge = |backend: &str, bytes_per_s: f64, cables| {
            let mut verdicts = Verdicts::default();
            verdicts.note(&json!({"row": "time", "backend": backend, "op": "all_sum",
                "bytes": 1 << 20, "median_us": 1.0, "bytes_per_s": bytes_per_s}));
            let rows = verdicts.rows(Some(cables), 2);
            (rows[0]["expected"]["far_below"].clone(), verdict(&rows[0]))
        };
        let (far_below, text) = judge("tcp", 1.5e9, ThunderboltGeneration::Five);
        assert_eq!(far_below, false);
        assert!(text.ends_with("12.0 Gbit/s; Thunderbolt 5 usually carries 10 to 20 so"), "{text}");
        let (far_below, text) = judge("jaccl", 1.5e9, ThunderboltGeneration::Five);
        assert_eq!(far_below, true);
        assert!(text.contains("50 to 80 so, which is FAR MORE\n  hint: "), "{text}");
        assert_eq!(judge("jaccl", 1.5e9, ThunderboltGeneration::Four).0, Value::Null);
    }

    #[test]
    fn the_heading_names_the_machines() {
        let group = json!({"row": "group", "size": 2, "mlx": "0.1", "hosts": ["mac1", "mac2"]});
        let text = Table::default().text(&group).unwrap();
        assert_eq!(text, "2 ranks on mac1, mac2, libmlx 0.1");
    }
}
