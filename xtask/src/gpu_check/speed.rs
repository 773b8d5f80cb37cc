//! The speed of a prompt and of decode steps beside mlx-lm's, on random weights.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::generation::generation;
use super::measurements::{lines, number};
use super::outcome::Outcome;
use super::programs::Programs;
use crate::process;
use crate::running::output;

/// Tokens of each sequence before the first step.
const CONTEXT_TOKENS: &str = "64";

/// The table's head; times are in milliseconds.
const HEADER: &str =
    "| sequences | step, ms | mlx-lm | faster by | building, ms | mlx-lm | nodes | mlx-lm |
|---|---|---|---|---|---|---|---|";

/// Maximum size of a checkpoint's header in bytes.
const HEADER_BYTES_MAX: u64 = 16 << 20;

/// A Qwen3 of random weights.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Option of `jackalope synth` that chooses the dimensions, and its value.
    dimensions: [&'static str; 2],
    /// Bits of the weights; 16 are bf16.
    bits: &'static str,
}

/// Three layers that are so small that a CPU measures them in seconds.
pub(super) const TINY: Shape =
    Shape { dimensions: ["--config", "xtask/src/bench/tiny/qwen3.json"], bits: "16" };

impl Shape {
    /// A published size.
    pub(super) const fn published(size: &'static str, bits: &'static str) -> Shape {
        Shape { dimensions: ["--size", size], bits }
    }

    fn is_published(self) -> bool {
        self.dimensions[0] == "--size"
    }

    /// Writes the checkpoint if it is not there.
    fn write(self, programs: &Programs, dir: &Path, deadline: Instant) -> anyhow::Result<()> {
        if dir.join("config.json").is_file() {
            return Ok(());
        }
        let mut synth = programs.command(&programs.jackalope);
        synth.arg("synth").args(self.dimensions).args(["--bits", self.bits, "--out"]).arg(dir);
        output(&mut synth, deadline).map(drop)
    }
}

/// Measures a prompt and decode steps, beside mlx-lm's.
pub(super) fn speed(
    programs: &Programs,
    shape: Shape,
    deadline: Instant,
) -> anyhow::Result<Outcome> {
    let name = Path::new(shape.dimensions[1]).file_stem().context("a shape has a name")?;
    let name = format!("{}-{}bit", name.to_string_lossy(), shape.bits);
    let dir = process::target_dir().join("gpu-check-models").join(name);
    shape.write(programs, &dir, deadline)?;
    let mut ours = programs.command(&programs.steps);
    let ours = lines(&output(ours.args(["--context", CONTEXT_TOKENS]).arg(&dir), deadline)?)?;
    let first = ours.first().context("nothing was measured")?;
    let mut found = vec![share_of_memory(first, &dir)?];
    // Our own times are worth having without a peer's.
    let theirs = match peer(programs, &dir, deadline) {
        Ok(theirs) => {
            found.insert(0, beside(&ours, &theirs));
            theirs
        }
        Err(err) => {
            found.push(format!("mlx-lm was not measured: {err:#}").replace('\n', " "));
            Vec::new()
        }
    };
    let mut table = table(&ours, &theirs);
    if shape.is_published() {
        let (summary, of_generation) = generation(programs, &dir, deadline)?;
        found.push(summary);
        table = format!("{table}\n\n{of_generation}");
    }
    Ok(Outcome::Measured { summary: found.join("; "), table })
}

/// Measures mlx-lm on its default device.
fn peer(programs: &Programs, dir: &Path, deadline: Instant) -> anyhow::Result<Vec<Value>> {
    let script = programs.root.join("xtask/src/bench/batched_steps.py");
    let mut peer = programs.python()?;
    let theirs = peer.arg(script).arg(dir).args([CONTEXT_TOKENS, "default"]);
    lines(&output(theirs, deadline)?)
}

/// Says how many times as fast as mlx-lm this is.
fn beside(ours: &[Value], theirs: &[Value]) -> String {
    let ratio = |own: &Value, peer: &Value, key| number(peer, key) / number(own, key);
    let steps = ours
        .iter()
        .zip(theirs)
        .map(|(own, peer)| format!("{:.2} with {}", ratio(own, peer, "step_ms"), own["sequences"]));
    let steps = steps.collect::<Vec<_>>().join(", ");
    let prompt = ratio(&ours[0], &theirs[0], "prompt_ms");
    format!("speed in mlx-lm's: steps {steps}, a prompt {prompt:.2}")
}

/// Says at which part of the memory's speed a step of one sequence reads the weights.
fn share_of_memory(first: &Value, dir: &Path) -> anyhow::Result<String> {
    let bytes = bytes_of_step(dir)? as f64;
    let read_gb_s = bytes / 1e6 / number(first, "step_ms");
    let memory_gb_s = number(first, "memory_gb_s");
    let percent = 100.0 * read_gb_s / memory_gb_s;
    Ok(format!("{percent:.0} % of the memory's {memory_gb_s:.0} GB/s with one sequence"))
}

/// Returns the bytes of the weights that a step reads: all but those embeddings that are not also the
/// matrix of the logits.
fn bytes_of_step(dir: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "safetensors") {
            bytes += bytes_of_file(&path)?;
        }
    }
    Ok(bytes)
}

/// The part of [`bytes_of_step`] that lies in a file.
fn bytes_of_file(path: &Path) -> anyhow::Result<u64> {
    let mut file = fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut len = [0; 8];
    file.read_exact(&mut len)?;
    let len = u64::from_le_bytes(len);
    ensure!(len <= HEADER_BYTES_MAX, "the header of {} has {len} bytes", path.display());
    let mut header = Vec::new();
    file.take(len).read_to_end(&mut header)?;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&header)?;
    let has_logits = header.keys().any(|name| name.starts_with("lm_head."));
    let read = header.iter().filter(|(name, _)| {
        name.as_str() != "__metadata__" && !(has_logits && name.contains("embed_tokens."))
    });
    let of_tensor = |tensor: &Value| {
        let at = |idx: usize| tensor["data_offsets"][idx].as_u64().unwrap_or(0);
        at(1) - at(0)
    };
    Ok(read.map(|(_, tensor)| of_tensor(tensor)).sum())
}

fn table(ours: &[Value], theirs: &[Value]) -> String {
    let mut table = HEADER.to_owned();
    for (idx, own) in ours.iter().enumerate() {
        let peer = theirs.get(idx).unwrap_or(&Value::Null);
        let ratio = number(peer, "step_ms") / number(own, "step_ms");
        table.push_str(&format!(
            "\n| {} | {:.2} | {:.2} | {ratio:.2} | {:.2} | {:.2} | {} | {} |",
            own["sequences"],
            number(own, "step_ms"),
            number(peer, "step_ms"),
            number(own, "build_ms"),
            number(peer, "build_ms"),
            own["nodes"],
            peer["nodes"],
        ));
    }
    let prompts =
        [ours, theirs].map(|lines| lines.first().map_or(f64::NAN, |it| number(it, "prompt_ms")));
    table.push_str(&format!(
        "\n\nA prompt of 512 tokens: {:.1} ms, mlx-lm {:.1} ms.",
        prompts[0], prompts[1]
    ));
    table
}
