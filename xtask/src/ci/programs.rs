//! The tests of the workspace as programs: cargo builds them, and they run in lanes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::compiler::Compiler;
use super::lanes::{Job, JobResult};
use crate::process::command;

/// Programs that take longest, in the order in which they begin. The others follow.
pub(super) const LONGEST: [&str; 3] = ["models/it", "cli/it", "cli/hosts"];

/// Of these, the programs that compute all the time, where the others wait for processes and deadlines.
const COMPUTING: [&str; 1] = ["models/it"];

/// Of these, the program whose tests wait nearly all the time for faults to be noticed, and the number of
/// its tests that run at the same time.
const WAITING: (&str, &str) = ("cli/hosts", "3");

/// Targets that a step of its own runs.
const LEFT_OUT: [&str; 1] = ["cli/chaos"];

/// Builds all programs of tests, and returns them as jobs named `CRATE/TARGET`, the longest first.
pub(super) fn jobs(compiler: &Compiler) -> anyhow::Result<Vec<Job>> {
    let mut build = compiler.cargo(&["test", "--workspace", "--no-run", "--message-format=json"]);
    build.args(["--lib", "--bins", "--tests"]).stderr(Stdio::inherit());
    let built = build.output().context("starting cargo")?;
    ensure!(built.status.success(), "the build failed; cargo's messages above say why");
    let text = String::from_utf8_lossy(&built.stdout).into_owned();
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs: Vec<Program> = messages.filter_map(|it| Program::read(&it)).collect();
    programs.retain(|it| !LEFT_OUT.contains(&it.name.as_str()));
    for name in LONGEST {
        ensure!(programs.iter().any(|it| it.name == name), "cargo names no tests {name}");
    }
    let place = |name: &str| LONGEST.iter().position(|it| *it == name).unwrap_or(LONGEST.len());
    programs.sort_by_key(|it| (place(&it.name), it.name.clone()));
    Ok(programs.into_iter().map(Program::job).collect())
}

/// Prints how long the tests of each crate took.
pub(super) fn report(results: &[JobResult]) {
    let mut times: BTreeMap<&str, Duration> = BTreeMap::new();
    for result in results {
        let part = result.name.split('/').next().unwrap_or_default();
        *times.entry(part).or_default() += result.time;
    }
    let mut times: Vec<(&str, Duration)> = times.into_iter().collect();
    times.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    println!("── time of tests, several at a time");
    for (part, time) in times {
        println!("   {part:<12} {:>4} s", time.as_secs());
    }
}

/// A program with tests.
#[derive(Debug, Eq, PartialEq)]
struct Program {
    /// `CRATE/TARGET`.
    name: String,
    path: PathBuf,
    /// Folder of the crate, where cargo starts its tests.
    crate_dir: PathBuf,
}

impl Program {
    /// Reads a message of cargo; `None` if it is about something else.
    fn read(message: &Value) -> Option<Program> {
        let is_test = message["profile"]["test"].as_bool()?;
        let path = PathBuf::from(message["executable"].as_str().filter(|_| is_test)?);
        let crate_dir = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        let crate_name = crate_dir.file_name()?.to_str()?;
        let name = format!("{crate_name}/{}", message["target"]["name"].as_str()?);
        Some(Program { name, path, crate_dir })
    }

    fn job(self) -> Job {
        let mut command: Command = command(&self.path.to_string_lossy());
        command.arg("--quiet").current_dir(&self.crate_dir);
        command.env("CARGO_MANIFEST_DIR", &self.crate_dir);
        // Some tests panic on purpose, a thousand times; their backtraces would hide what matters.
        command.env("RUST_BACKTRACE", "0");
        if self.name == WAITING.0 {
            command.env("RUST_TEST_THREADS", WAITING.1);
        }
        let num_lanes = if COMPUTING.contains(&self.name.as_str()) { 2 } else { 1 };
        Job { name: self.name, command, num_lanes }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cargo_names_the_programs_with_tests() {
        let message = json!({
            "reason": "compiler-artifact",
            "manifest_path": "/source/crates/spec/Cargo.toml",
            "target": {"kind": ["test"], "name": "it"},
            "profile": {"test": true},
            "executable": "/source/target/debug/deps/it-0123",
        });
        let expected = Program {
            name: "spec/it".to_owned(),
            path: PathBuf::from("/source/target/debug/deps/it-0123"),
            crate_dir: PathBuf::from("/source/crates/spec"),
        };
        assert_eq!(Program::read(&message), Some(expected));
        let mut library = message.clone();
        library["executable"] = Value::Null;
        assert_eq!(Program::read(&library), None);
        let mut program = message;
        program["profile"]["test"] = json!(false);
        assert_eq!(Program::read(&program), None);
        assert_eq!(Program::read(&json!({"reason": "build-finished"})), None);
    }
}
