//! `cargo xtask gpu-check`: everything that has to be seen on a GPU, in one command: goldens, node
//! counts, steps that run ahead, two ranks, a killed rank, and decode steps beside mlx-lm's. Prints
//! one table.
//!
//! ```text
//!   build ─▶ programs ─┬─▶ checks, each with a part of the time ─▶ table
//!                      └─▶ bundle: parts, hashes and a script for a machine without a network
//! ```
//!
//! On a machine without a GPU it checks the same operations on the CPU.

mod bundle;
mod generation;
mod measurements;
mod outcome;
mod programs;
mod speed;
mod stages;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::process;
use outcome::Outcome;
use programs::{GPU, Programs};
use stages::STAGES;

const USAGE: &str = "usage: cargo xtask gpu-check [--device auto|cpu] [--minutes N] \
[--bundle DIR [--cuda] | --prepared DIR]";

/// Default time for all checks, in minutes.
const MINUTES: u64 = 10;

/// Maximum of `--minutes`.
const MINUTES_MAX: u64 = 240;

/// The device that is checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Device {
    /// The GPU if libmlx finds one, else the CPU.
    Auto,
    Cpu,
}

#[derive(Debug, Eq, PartialEq)]
struct Options {
    device: Device,
    minutes: u64,
    /// Folder to write a bundle to, instead of checking.
    bundle: Option<PathBuf>,
    /// Whether the bundle is for a machine with an NVIDIA GPU.
    for_cuda: bool,
    /// Folder of an unpacked bundle, whose programs are used instead of building them.
    prepared: Option<PathBuf>,
}

pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let options = parse(args)?;
    let programs = match &options.prepared {
        Some(dir) => Programs::unpacked(dir)?,
        None => {
            crate::mlx::run(&wanted_mlx(options.device))?;
            Programs::build()?
        }
    };
    if let Some(dir) = &options.bundle {
        return bundle::write(&programs, options.for_cuda, dir);
    }
    check(&programs, &options)
}

fn parse(args: &[String]) -> anyhow::Result<Options> {
    let mut options = Options {
        device: Device::Auto,
        minutes: MINUTES,
        bundle: None,
        for_cuda: false,
        prepared: None,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} takes a value\n{USAGE}"));
        match arg.as_str() {
            "--device" => {
                options.device = match value()?.as_str() {
                    "auto" => Device::Auto,
                    "cpu" => Device::Cpu,
                    other => bail!("unknown device {other}\n{USAGE}"),
                }
            }
            "--minutes" => options.minutes = value()?.parse().context("--minutes")?,
            "--bundle" => options.bundle = Some(value()?.into()),
            "--cuda" => options.for_cuda = true,
            "--prepared" => options.prepared = Some(value()?.into()),
            other => bail!("unknown option {other}\n{USAGE}"),
        }
    }
    ensure!(
        (1..=MINUTES_MAX).contains(&options.minutes),
        "--minutes {} is not in 1..={MINUTES_MAX}",
        options.minutes
    );
    ensure!(
        options.bundle.is_none() || options.prepared.is_none(),
        "--bundle makes a bundle and --prepared uses one\n{USAGE}"
    );
    ensure!(
        !options.for_cuda || options.bundle.is_some(),
        "--cuda chooses what a bundle is for\n{USAGE}"
    );
    Ok(options)
}

/// Returns the options of `cargo xtask mlx` for this machine.
fn wanted_mlx(device: Device) -> Vec<String> {
    let has_cuda = process::in_path("nvidia-smi").is_some();
    let wants_cuda = device == Device::Auto && cfg!(target_os = "linux") && has_cuda;
    wants_cuda.then(|| "--cuda".to_owned()).into_iter().collect()
}

/// Runs all checks that fit into the time, and prints the table.
fn check(programs: &Programs, options: &Options) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60 * options.minutes);
    let device = programs.device(options.device == Device::Cpu)?;
    println!("checking on {device}\n");
    let mut rows = Vec::new();
    for stage in STAGES {
        let started = Instant::now();
        let outcome = if stage.needs_gpu && device != GPU {
            Outcome::NotRun("a CPU would need hours")
        } else if Instant::now() < deadline {
            // No stage takes the time of all that follow.
            let end = started + deadline.saturating_duration_since(started) / 2;
            (stage.run)(programs, end).unwrap_or_else(|err| Outcome::failed(&err))
        } else {
            Outcome::NotRun("the time was over")
        };
        let seconds = started.elapsed().as_secs_f64();
        println!("{}: {} ({seconds:.1} s)", stage.name, outcome.word());
        rows.push((stage.name, outcome, seconds));
    }
    println!("\n| check on {device} | result | seconds | found |\n|---|---|---|---|");
    for (name, outcome, seconds) in &rows {
        println!("| {name} | {} | {seconds:.1} | {} |", outcome.word(), outcome.found());
    }
    for (_, outcome, _) in &rows {
        if let Outcome::Measured { table, .. } = outcome {
            println!("\n{table}");
        }
    }
    let failed = rows.iter().filter(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_)));
    let failed: Vec<&str> = failed.map(|(name, ..)| *name).collect();
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> anyhow::Result<Options> {
        parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_and_wrong_ones_refused() {
        let options = parsed("--device cpu --minutes 3 --prepared there").unwrap();
        assert_eq!((options.device, options.minutes), (Device::Cpu, 3));
        assert_eq!(options.prepared, Some(PathBuf::from("there")));
        for wrong in ["--minutes 0", "--device tpu", "--bundle a --prepared b", "--cuda", "--what"]
        {
            parsed(wrong).unwrap_err();
        }
    }
}
