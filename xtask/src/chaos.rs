//! `cargo xtask chaos --minutes N --seed S`: a real server under random faults. The run itself is a
//! test target of the CLI (`crates/cli/tests/chaos`), beside the hosts it shares with the tests; this
//! finds its program and becomes it.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::process::{command, workspace_dir};

/// Minutes of a run that nobody gave a length.
const MINUTES: &str = "5";

pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let mut chaos = chaos(args)?;
    if !args.iter().any(|it| it.starts_with("--minutes") || it == "--help") {
        chaos.args(["--minutes", MINUTES]);
    }
    // In its place, so that an interrupt reaches the run alone, which then reports.
    let err = chaos.exec();
    Err(err).with_context(|| format!("starting {:?}", chaos.get_program()))
}

/// The run, with the programs that tests are built with; nothing is built that tests have built.
pub(crate) fn chaos(args: &[String]) -> anyhow::Result<Command> {
    let mut chaos = command(&program()?.to_string_lossy());
    chaos.args(args).current_dir(workspace_dir());
    Ok(chaos)
}

/// What cargo has built, or builds now.
fn program() -> anyhow::Result<PathBuf> {
    let mut build = command("cargo");
    // As all tests are built: another choice of packages could mean other features.
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
