//! `cargo xtask chaos --minutes N --seed S`: runs a real server under random faults. The run itself
//! is a test target of the CLI (`crates/cli/tests/chaos`), next to the hosts that it shares with
//! the tests; this command builds that program and replaces itself with it.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::process::{command, workspace_dir};

/// Default length of a run in minutes.
const MINUTES: &str = "5";

pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let mut chaos = chaos(command("cargo"), args)?;
    if !args.iter().any(|it| it.starts_with("--minutes") || it == "--help") {
        chaos.args(["--minutes", MINUTES]);
    }
    // `exec` replaces this process, so that an interrupt reaches only the run, which then reports.
    let err = chaos.exec();
    Err(err).with_context(|| format!("starting {:?}", chaos.get_program()))
}

/// The command of the run. It uses the programs that the tests use, and `cargo` rebuilds nothing that
/// exists.
pub(crate) fn chaos(cargo: Command, args: &[String]) -> anyhow::Result<Command> {
    let mut chaos = command(&program(cargo)?.to_string_lossy());
    chaos.args(args).current_dir(workspace_dir());
    Ok(chaos)
}

/// Builds the program with cargo, if needed, and returns its path.
fn program(mut build: Command) -> anyhow::Result<PathBuf> {
    // Built like all tests, because another selection of packages could enable other features.
    build.args(["test", "--workspace", "--test", "chaos", "--no-run", "--message-format=json"]);
    build.current_dir(workspace_dir()).stderr(Stdio::inherit());
    let built = build.output().context("starting cargo")?;
    ensure!(built.status.success(), "the build failed; cargo's messages above say why");
    let text = String::from_utf8_lossy(&built.stdout).into_owned();
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut of_chaos = messages.filter(|it| it["target"]["name"] == "chaos");
    let program = of_chaos.find_map(|it| Some(PathBuf::from(it["executable"].as_str()?)));
    program.context("cargo names no program of the test target `chaos`")
}
