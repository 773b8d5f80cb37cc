//! The speed of generation as its users run it, beside mlx-lm's: requests with random prompts that are
//! computed together.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use serde_json::Value;

use super::measurements::{lines, number};
use super::programs::Programs;
use crate::running::output;

const PROMPT_TOKENS: &str = "512";
const ANSWER_TOKENS: &str = "128";

/// Numbers of requests.
const REQUESTS: &str = "1,8,32";

/// The table's head; speeds are in tokens per second of all requests together.
const HEADER: &str =
    "| requests | answers, tokens/s | mlx-lm | faster by | prompts, tokens/s | mlx-lm | faster by |
|---|---|---|---|---|---|---|";

/// Measures a checkpoint. Returns a summary and a table.
pub(super) fn generation(
    programs: &Programs,
    dir: &Path,
    deadline: Instant,
) -> anyhow::Result<(String, String)> {
    let mut bench = programs.command(&programs.jackalope);
    bench.args([
        "bench",
        "--json",
        "--prompt-tokens",
        PROMPT_TOKENS,
        "--gen-tokens",
        ANSWER_TOKENS,
    ]);
    // The first run compiles kernels.
    bench.args(["--concurrency", REQUESTS, "--runs", "2", "--model"]).arg(dir);
    let report: Value = serde_json::from_str(&output(&mut bench, deadline)?)?;
    let runs = report["runs"].as_array().context("a report has runs")?;
    let ours: Vec<&Value> = runs.iter().skip(1).step_by(2).collect();
    let script = programs.root.join("xtask/src/bench/generation.py");
    let mut peer = programs.python()?;
    let theirs = peer.arg(script).arg(dir).args([PROMPT_TOKENS, ANSWER_TOKENS, REQUESTS]);
    let theirs = output(theirs, deadline).and_then(|text| lines(&text));
    let (theirs, remark) = match theirs {
        Ok(theirs) => (theirs, String::new()),
        Err(err) => (Vec::new(), format!("; mlx-lm was not measured: {err:#}").replace('\n', " ")),
    };
    let mut table = HEADER.to_owned();
    let mut ratios = Vec::new();
    for (idx, own) in ours.iter().enumerate() {
        let peer = theirs.get(idx).unwrap_or(&Value::Null);
        let decode = [number(own, "decode_tokens_per_s"), number(peer, "decode")];
        let prefill = [number(own, "prefill_tokens_per_s"), number(peer, "prefill")];
        let [faster_decode, faster_prefill] = [decode, prefill].map(|[own, peer]| own / peer);
        table.push_str(&format!(
            "\n| {} | {:.0} | {:.0} | {faster_decode:.2} | {:.0} | {:.0} | {faster_prefill:.2} |",
            own["concurrency"], decode[0], decode[1], prefill[0], prefill[1]
        ));
        ratios.push(format!("{faster_decode:.2} with {}", own["concurrency"]));
    }
    Ok((format!("answers: {}{remark}", ratios.join(", ")), table))
}
