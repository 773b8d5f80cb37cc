//! The checks. Each runs a program and reads what it prints.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::outcome::Outcome;
use super::programs::Programs;
use super::speed::{Shape, TINY, speed};
use crate::process;
use crate::running::{POLL, finished, output};

/// How long the ranks compute before one is killed.
const BEFORE_KILL: Duration = Duration::from_secs(2);

/// Number of characters at which two texts of the same prompt must be the same.
const SAME_MIN: usize = 8;

/// Folder of mlx-lm's values, in the sources.
const GOLDEN_VALUES: &str = "crates/models/tests/data/golden";

/// Maximum number of families that are checked at the same time: each takes part of the GPU's memory.
const FAMILIES_AT_ONCE_MAX: usize = 16;

/// A check.
pub(super) struct Stage {
    pub(super) name: &'static str,
    /// Whether a CPU would need hours for it.
    pub(super) needs_gpu: bool,
    pub(super) run: fn(&Programs, Instant) -> anyhow::Result<Outcome>,
}

/// The checks, the most important first.
pub(super) const STAGES: &[Stage] = &[
    check("goldens of all families", goldens),
    check("recurrences", |it, end| tests(it, &it.recurrence_tests, &["chunks"], end)),
    // That a sequence samples the same tokens in any batch does not hold on GPUs.
    check("steps ahead", |it, end| {
        tests(it, &it.rank_tests, &["steps_that_run_ahead", "the_host_submits"], end)
    }),
    check("sampling on the device", |it, end| tests(it, &it.rank_tests, &["device_sampler"], end)),
    check("batches with joins and leaves", |it, end| {
        tests(it, &it.model_tests, &["decoding"], end)
    }),
    check("nodes of a step", |it, end| tests(it, &it.model_tests, &["nodes"], end)),
    check("two ranks on one device", two_ranks),
    check("a killed rank", killed_rank),
    check("Qwen3 with three small layers, bf16", |it, end| speed(it, TINY, end)),
    speed_of("Qwen3 0.6B, 4 bits", |it, end| speed(it, Shape::published("0.6b", "4"), end)),
    speed_of("Qwen3 0.6B, bf16", |it, end| speed(it, Shape::published("0.6b", "16"), end)),
    speed_of("Qwen3 8B, 4 bits", |it, end| speed(it, Shape::published("8b", "4"), end)),
    speed_of("Qwen3 8B, bf16", |it, end| speed(it, Shape::published("8b", "16"), end)),
];

type Run = fn(&Programs, Instant) -> anyhow::Result<Outcome>;

const fn check(name: &'static str, run: Run) -> Stage {
    Stage { name, needs_gpu: false, run }
}

/// A measurement for which only a GPU is fast enough.
const fn speed_of(name: &'static str, run: Run) -> Stage {
    Stage { name, needs_gpu: true, run }
}

/// Runs the tests whose names contain any of `filters`.
fn tests(
    programs: &Programs,
    program: &Path,
    filters: &[&str],
    deadline: Instant,
) -> anyhow::Result<Outcome> {
    let text = output(&mut test(programs, program, filters), deadline)?;
    let summary = text.lines().find(|line| line.starts_with("test result:"));
    let summary = summary.context("the tests ended without a result")?;
    ensure!(!summary.contains(" 0 passed"), "no test is called {}", filters.join(" or "));
    let summary = summary.trim_start_matches("test result: ").split(';').next();
    Ok(Outcome::Passed(summary.unwrap_or_default().to_owned()))
}

/// Returns a command that runs the tests whose names contain any of `filters` in turn, and computes
/// products of f32 in f32: MLX would round their factors to TF32 on some GPUs, as mlx-lm does.
fn test(programs: &Programs, program: &Path, filters: &[&str]) -> Command {
    let mut command = programs.command(program);
    command.args(filters).args(["--test-threads", "1"]).env("MLX_ENABLE_TF32", "0");
    command
}

/// Compares all families with mlx-lm's values, several at a time: compiling their kernels takes
/// longer than computing them.
fn goldens(programs: &Programs, deadline: Instant) -> anyhow::Result<Outcome> {
    let families = golden_cases(&programs.root.join(GOLDEN_VALUES))?;
    let num_cases: usize = families.iter().map(|(_, cases)| cases.len()).sum();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let check_families = || {
        while let Some((name, cases)) = families.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut command = test(programs, &programs.model_tests, &["golden::one_rank"]);
            command.env("JACKALOPE_GOLDEN", cases.join(","));
            if let Err(err) = output(&mut command, deadline) {
                failures.lock().expect("no thread panics").push(format!("{name}: {err:#}"));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..num_at_once() {
            scope.spawn(check_families);
        }
    });
    let failures = failures.into_inner().expect("no thread panics");
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(Outcome::Passed(format!("{num_cases} checkpoints of {} families", families.len())))
}

/// Returns the number of programs that check families at the same time.
fn num_at_once() -> usize {
    std::thread::available_parallelism().map_or(1, |it| it.get() / 2).clamp(1, FAMILIES_AT_ONCE_MAX)
}

/// Returns each family's name and the names of its cases.
fn golden_cases(folder: &Path) -> anyhow::Result<Vec<(String, Vec<String>)>> {
    let mut families = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let values: Value = serde_json::from_str(&fs::read_to_string(&path)?)
            .with_context(|| format!("reading {}", path.display()))?;
        let cases = values["cases"].as_array().context("a family has cases")?;
        let names = cases.iter().filter_map(|case| case["name"].as_str().map(str::to_owned));
        families.push((name, names.collect()));
    }
    families.sort();
    Ok(families)
}

/// Compares two ranks, over TCP on one device, with one.
fn two_ranks(programs: &Programs, deadline: Instant) -> anyhow::Result<Outcome> {
    let alone = output(&mut generate(programs, &["--max-tokens", "48"]), deadline)?;
    let both = output(&mut generate(programs, &["--max-tokens", "48", "--ranks", "2"]), deadline)?;
    compared(["one rank", "two ranks"], [&alone, &both])
}

/// Returns `jackalope generate` with the shipped model.
fn generate(programs: &Programs, options: &[&str]) -> Command {
    let mut command = programs.command(&programs.jackalope);
    command.args(["generate", "--model", "models/jackalope-mini"]);
    command.args(["--prompt", "Tell me a short story about a fox."]).args(options);
    command
}

/// Compares two texts of the same prompt, whose first characters must be the same: later ones may
/// differ where a device computes other last bits in batches of other sizes.
fn compared(names: [&str; 2], texts: [&str; 2]) -> anyhow::Result<Outcome> {
    let [wanted, found] = texts;
    let num_same = wanted.chars().zip(found.chars()).take_while(|(a, b)| a == b).count();
    let num_wanted = wanted.chars().count();
    ensure!(SAME_MIN <= num_same, "{} wrote {wanted:?}, {} wrote {found:?}", names[0], names[1]);
    Ok(Outcome::Passed(format!("{num_same} of {num_wanted} characters are the same")))
}

/// Kills a rank while it computes; the stream must continue as without that.
fn killed_rank(programs: &Programs, deadline: Instant) -> anyhow::Result<Outcome> {
    let options = ["--ranks", "2", "--max-tokens", "1500"];
    let undisturbed = output(&mut generate(programs, &options), deadline)?;
    let mut command = generate(programs, &options);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let rank = second_rank(&mut child, deadline)?;
    std::thread::sleep(BEFORE_KILL);
    ensure!(child.try_wait()?.is_none(), "the program ended before a rank was killed");
    let killed = process::command("kill").args(["-KILL", &rank]).status()?;
    ensure!(killed.success(), "rank {rank} could not be killed");
    let text = finished(child, deadline)?;
    compared(["two ranks", "those of which one was killed"], [&undisturbed, &text])
}

/// Waits for the second rank's process and returns its number.
fn second_rank(program: &mut std::process::Child, deadline: Instant) -> anyhow::Result<String> {
    loop {
        ensure!(Instant::now() < deadline, "no rank started in time");
        ensure!(program.try_wait()?.is_none(), "the program ended before its ranks started");
        let found = process::command("pgrep")
            .args(["-P", &program.id().to_string(), "-f", "jackalope-rank"])
            .output()
            .context("starting pgrep")?;
        let pids = String::from_utf8_lossy(&found.stdout).into_owned();
        if let [_, second, ..] = pids.lines().collect::<Vec<_>>().as_slice() {
            return Ok((*second).to_owned());
        }
        std::thread::sleep(POLL);
    }
}
