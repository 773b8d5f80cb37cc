//! `cargo xtask bench kernels|grammar|stock|peers`: measurements. Those of a single crate are its
//! examples; only the comparisons with peers are implemented here.

mod dllama;
mod gguf;
mod peers;
mod stock;

use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::process::command;

pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    match args.split_first().map(|(name, args)| (name.as_str(), args)) {
        Some(("kernels", args)) => measure(kernels(args)),
        Some(("grammar", args)) => measure(example("jackalope-text", "mask_cost", args)),
        Some(("stock", args)) => stock::run(args),
        Some(("peers", args)) => peers::run(args),
        _ => bail!(
            "nothing to measure was named\nhint: cargo xtask bench kernels, grammar, stock, or peers"
        ),
    }
}

/// Returns the command that measures the CPU kernels and the limits of this machine.
fn kernels(args: &[String]) -> Command {
    example("jackalope-kernels", "measure", args)
}

/// Returns the command that runs an example of a crate, built in release mode without assertions.
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
