//! The checks. Each runs a program and reads what it prints.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::programs::Programs;
use crate::process;

/// Time between two looks at a running program.
const POLL: Duration = Duration::from_millis(50);

/// A check.
pub(super) struct Stage {
    pub(super) name: &'static str,
    pub(super) run: fn(&Programs, Instant) -> anyhow::Result<Outcome>,
}

/// The checks, the most important first.
pub(super) const STAGES: &[Stage] = &[
    Stage {
        name: "goldens of all families",
        run: |it, end| tests(it, &it.model_tests, "golden", end),
    },
    Stage { name: "recurrences", run: |it, end| tests(it, &it.recurrence_tests, "chunks", end) },
    Stage { name: "sampling, steps ahead", run: |it, end| tests(it, &it.rank_tests, "ahead", end) },
    Stage {
        name: "batches with joins and leaves",
        run: |it, end| tests(it, &it.model_tests, "decoding", end),
    },
    Stage { name: "nodes of a step", run: |it, end| tests(it, &it.model_tests, "nodes", end) },
    Stage { name: "two ranks on one device", run: two_ranks },
    Stage { name: "a killed rank", run: killed_rank },
    Stage { name: "Qwen3 0.6B, 4 bits", run: |it, end| steps(it, "0.6b", Some(4), end) },
    Stage { name: "Qwen3 0.6B, bf16", run: |it, end| steps(it, "0.6b", None, end) },
    Stage { name: "Qwen3 8B, 4 bits", run: |it, end| steps(it, "8b", Some(4), end) },
    Stage { name: "Qwen3 8B, bf16", run: |it, end| steps(it, "8b", None, end) },
];

/// Result of a check.
pub(super) enum Outcome {
    Passed(String),
    /// A table of measurements.
    Measured {
        summary: String,
        table: String,
    },
    Failed(String),
    /// The deadline had passed before the check could begin.
    NotRun,
}

impl Outcome {
    pub(super) fn failed(err: &anyhow::Error) -> Outcome {
        Outcome::Failed(format!("{err:#}").replace('\n', " "))
    }

    pub(super) fn word(&self) -> &'static str {
        match self {
            Outcome::Passed(_) => "passed",
            Outcome::Measured { .. } => "measured",
            Outcome::Failed(_) => "**failed**",
            Outcome::NotRun => "not run: the time was over",
        }
    }

    pub(super) fn found(&self) -> &str {
        match self {
            Outcome::Passed(text) | Outcome::Failed(text) => text,
            Outcome::Measured { summary, .. } => summary,
            Outcome::NotRun => "",
        }
    }
}

/// Runs the tests whose names contain `filter`.
fn tests(
    programs: &Programs,
    program: &Path,
    filter: &str,
    deadline: Instant,
) -> anyhow::Result<Outcome> {
    let mut command = programs.command(program);
    let text = output(command.args([filter, "--test-threads", "1"]), deadline)?;
    let summary = text.lines().find(|line| line.starts_with("test result:"));
    let summary = summary.context("the tests ended without a result")?;
    ensure!(!summary.contains(" 0 passed"), "no test is called {filter}");
    let summary = summary.trim_start_matches("test result: ").split(';').next();
    Ok(Outcome::Passed(summary.unwrap_or_default().to_owned()))
}

/// Returns the text that `jackalope generate` prints with the shipped model.
fn generated(programs: &Programs, options: &[&str], deadline: Instant) -> anyhow::Result<String> {
    let mut command = programs.command(&programs.jackalope);
    command.args(["generate", "--model", "models/jackalope-mini", "--max-tokens", "48"]);
    command.args(["--prompt", "Tell me a short story about a fox."]).args(options);
    output(&mut command, deadline)
}

/// Compares two ranks, over TCP on one device, with one.
fn two_ranks(programs: &Programs, deadline: Instant) -> anyhow::Result<Outcome> {
    let alone = generated(programs, &[], deadline)?;
    let both = generated(programs, &["--ranks", "2"], deadline)?;
    let num_same = alone.chars().zip(both.chars()).take_while(|(a, b)| a == b).count();
    ensure!(8 <= num_same.min(both.len()), "one rank wrote {alone:?}, two wrote {both:?}");
    Ok(Outcome::Passed(format!("{num_same} of {} characters are the same", alone.len())))
}

/// Kills a rank while it computes; the stream must continue.
fn killed_rank(programs: &Programs, deadline: Instant) -> anyhow::Result<Outcome> {
    let mut command = programs.command(&programs.jackalope);
    command.args(["generate", "--model", "models/jackalope-mini", "--ranks", "2", "--max-tokens"]);
    command.args(["1500", "--prompt", "Tell me a short story about a fox."]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let rank = loop {
        ensure!(Instant::now() < deadline, "no rank started in time");
        ensure!(child.try_wait()?.is_none(), "the program ended before a rank was killed");
        let found = process::command("pgrep")
            .args(["-P", &child.id().to_string(), "-f", "jackalope-rank"])
            .output()
            .context("starting pgrep")?;
        let pids = String::from_utf8_lossy(&found.stdout).into_owned();
        if let [_, second, ..] = pids.lines().collect::<Vec<_>>().as_slice() {
            break (*second).to_owned();
        }
        std::thread::sleep(POLL);
    };
    std::thread::sleep(Duration::from_secs(2));
    let killed = process::command("kill").args(["-KILL", &rank]).status()?;
    ensure!(killed.success(), "rank {rank} could not be killed");
    let text = finished(child, deadline)?;
    Ok(Outcome::Passed(format!("{} characters after rank {rank} was killed", text.len())))
}

/// Measures decode steps of a Qwen3 with random weights, beside mlx-lm's.
fn steps(
    programs: &Programs,
    size: &str,
    bits: Option<u32>,
    deadline: Instant,
) -> anyhow::Result<Outcome> {
    let name = bits.map_or(format!("{size}-bf16"), |bits| format!("{size}-{bits}bit"));
    let dir = process::target_dir().join("gpu-check-models").join(name);
    if !dir.join("config.json").is_file() {
        let mut synth = programs.command(&programs.jackalope);
        synth.args(["synth", "--size", size, "--bits", &bits.unwrap_or(16).to_string(), "--out"]);
        synth.arg(&dir);
        output(&mut synth, deadline)?;
    }
    let mut ours = programs.command(&programs.steps);
    let ours = lines(&output(ours.args(["--context", "64"]).arg(&dir), deadline)?)?;
    let script = programs.root.join("xtask/src/bench/batched_steps.py");
    let peers = || -> anyhow::Result<Vec<Value>> {
        let mut peer = process::command(&crate::golden::python()?.to_string_lossy());
        lines(&output(peer.arg(&script).arg(&dir).args(["64", "default"]), deadline)?)
    };
    // Our own times are worth having without a peer's.
    let (theirs, missing) = match peers() {
        Ok(theirs) => (theirs, None),
        Err(err) => (Vec::new(), Some(format!("mlx-lm was not measured: {err:#}"))),
    };
    let mut table = String::from(
        "| sequences | step, ms | mlx-lm | faster by | building, ms | nodes | mlx-lm |\n|---|---|---|---|---|---|---|",
    );
    let mut ratios = Vec::new();
    let nothing = Value::Null;
    for (idx, own) in ours.iter().enumerate() {
        let peer = theirs.get(idx).unwrap_or(&nothing);
        let number = |line: &Value, key: &str| line[key].as_f64().unwrap_or(f64::NAN);
        let ratio = number(peer, "step_ms") / number(own, "step_ms");
        ratios.push(format!("{ratio:.2}"));
        table.push_str(&format!(
            "\n| {} | {:.2} | {:.2} | {ratio:.2} | {:.2} | {} | {} |",
            own["sequences"],
            number(own, "step_ms"),
            number(peer, "step_ms"),
            number(own, "build_ms"),
            own["nodes"],
            peer["nodes"],
        ));
    }
    let summary = match missing {
        Some(missing) => missing.replace('\n', " "),
        None => format!("{} times as fast as mlx-lm", ratios.join(" / ")),
    };
    Ok(Outcome::Measured { summary, table })
}

fn lines(text: &str) -> anyhow::Result<Vec<Value>> {
    let parsed = text.lines().map(|line| {
        serde_json::from_str(line).with_context(|| format!("found {line:?} among the measurements"))
    });
    parsed.collect()
}

/// Runs a program until the deadline and returns what it prints.
fn output(command: &mut Command, deadline: Instant) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    finished(child.with_context(|| format!("starting {name}"))?, deadline)
}

/// Waits for a program until the deadline and returns what it printed.
fn finished(mut child: std::process::Child, deadline: Instant) -> anyhow::Result<String> {
    let readers = [
        child
            .stdout
            .take()
            .map(|mut pipe| reader(move |text| std::io::Read::read_to_end(&mut pipe, text))),
        child
            .stderr
            .take()
            .map(|mut pipe| reader(move |text| std::io::Read::read_to_end(&mut pipe, text))),
    ];
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if deadline <= Instant::now() {
            child.kill().ok();
            child.wait().ok();
            bail!("the time was over before it ended");
        }
        std::thread::sleep(POLL);
    };
    let texts = readers.map(|reader| reader.and_then(|it| it.join().ok()).unwrap_or_default());
    let [printed, errors] = texts;
    let last = |text: &str| text.lines().rev().take(6).collect::<Vec<_>>().join(" < ");
    ensure!(status.success(), "it ended with {status}: {} {}", last(&errors), last(&printed));
    Ok(printed)
}

fn reader(
    read: impl FnOnce(&mut Vec<u8>) -> std::io::Result<usize> + Send + 'static,
) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        // What was read before an error is enough for a message.
        read(&mut text).ok();
        String::from_utf8_lossy(&text).into_owned()
    })
}
