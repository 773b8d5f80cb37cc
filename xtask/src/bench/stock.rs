//! `cargo xtask bench stock [DIR]`: decode steps of several sequences with MLX's own operations, as
//! GPUs compute them, beside mlx-lm's batches of the same model. Without a checkpoint, those of
//! [`SHAPES`], whose dimensions are so small that the host's time is most of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::example;
use crate::{golden, process};

/// Tokens of each sequence before the first step.
const CONTEXT_TOKENS: &str = "64";

/// Configurations in `xtask/src/bench/tiny` that are measured if no checkpoint is named.
const SHAPES: [&str; 4] = ["qwen3", "qwen3-moe", "gpt-oss", "qwen3-next"];

/// Results of a measurement with this number of sequences.
struct Measured {
    sequences: u64,
    step_ms: f64,
    build_ms: f64,
    nodes: u64,
}

pub(super) fn run(args: &[String]) -> anyhow::Result<()> {
    match args {
        [] => SHAPES.iter().try_for_each(|shape| {
            println!("\n{shape}:\n");
            measure(&tiny(shape)?)
        }),
        [dir] => measure(Path::new(dir)),
        _ => bail!("usage: cargo xtask bench stock [DIR]"),
    }
}

/// Measures both programs with a checkpoint, and prints a table.
fn measure(dir: &Path) -> anyhow::Result<()> {
    let mut ours = example("jackalope-models", "batched_steps", &[]);
    ours.args(["--context", CONTEXT_TOKENS]).arg(dir);
    let script = process::workspace_dir().join("xtask/src/bench/batched_steps.py");
    let mut theirs = process::command(&golden::python()?.to_string_lossy());
    theirs.arg(script).arg(dir).arg(CONTEXT_TOKENS);
    let (ours, theirs) = (measured(&mut ours)?, measured(&mut theirs)?);
    println!("| sequences | step, ms | mlx-lm | ratio | building, ms | mlx-lm | nodes | mlx-lm |");
    println!("|---|---|---|---|---|---|---|---|");
    for (own, peer) in ours.iter().zip(&theirs) {
        println!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {} | {} |",
            own.sequences,
            own.step_ms,
            peer.step_ms,
            own.step_ms / peer.step_ms,
            own.build_ms,
            peer.build_ms,
            own.nodes,
            peer.nodes
        );
    }
    Ok(())
}

/// Writes a small checkpoint of this shape in f32, and returns its folder.
fn tiny(shape: &str) -> anyhow::Result<PathBuf> {
    let dir = process::target_dir().join("bench/stock");
    std::fs::create_dir_all(&dir)?;
    let configs = process::workspace_dir().join("xtask/src/bench/tiny");
    let out = dir.join(shape);
    write_checkpoint(&configs.join(shape).with_extension("json"), &out)?;
    Ok(out)
}

/// Writes a checkpoint of random numbers with mlx-lm's own model.
fn write_checkpoint(config: &Path, out: &Path) -> anyhow::Result<()> {
    let script = process::workspace_dir().join("xtask/src/bench/random_checkpoint.py");
    let status = process::command(&golden::python()?.to_string_lossy())
        .args([script.as_path(), config, out])
        .status()?;
    ensure!(status.success(), "the checkpoint could not be written");
    Ok(())
}

fn measured(program: &mut Command) -> anyhow::Result<Vec<Measured>> {
    let output = program.stderr(std::process::Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the measurement ended with {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let lines = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let number = |key: &str| line[key].as_f64().with_context(|| format!("{key} in {line}"));
        Ok(Measured {
            sequences: number("sequences")? as u64,
            step_ms: number("step_ms")?,
            build_ms: number("build_ms")?,
            nodes: number("nodes")? as u64,
        })
    });
    lines.collect()
}
