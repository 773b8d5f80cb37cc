//! `cargo xtask bench kernels|grammar|peers`: measurements. Those of one crate are its examples, which only the peers'
//! comparison puts side by side.

mod dllama;
mod gguf;
mod peers;

use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::process::command;

pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    match args.split_first().map(|(name, args)| (name.as_str(), args)) {
        Some(("kernels", args)) => measure(kernels(args)),
        Some(("grammar", args)) => measure(example("jackalope-text", "mask_cost", args)),
        Some(("peers", args)) => peers::run(args),
        _ => bail!(
            "nothing to measure was named\nhint: cargo xtask bench kernels, grammar, or peers"
        ),
    }
}

/// The CPU kernels, and what this machine can do at best.
fn kernels(args: &[String]) -> Command {
    example("jackalope-kernels", "measure", args)
}

/// An example of a crate, as users' programs are built: assertions are not measured.
fn example(package: &str, name: &str, args: &[String]) -> Command {
    let mut cargo = command("cargo");
    cargo.args(["run", "--quiet", "--release", "--package", package, "--example", name, "--"]);
    cargo.args(args);
    cargo
}

fn measure(mut measuring: Command) -> anyhow::Result<()> {
    let status = measuring.status().context("starting cargo")?;
    ensure!(status.success(), "the measurement ended with {status}");
    Ok(())
}
