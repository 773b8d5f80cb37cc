//! Measures a prompt and decode steps of several sequences with MLX's own operations, as GPUs compute
//! them: `cargo run --release -p jackalope-models --example batched_steps -- [--context N] DIR`. Prints
//! one line of JSON for each number of sequences; the first also has the prompt's time and the memory's
//! speed.
#![expect(clippy::print_stdout, reason = "a program reads it")]

use std::path::PathBuf;
use std::time::Instant;

use jackalope_mlx::{Array, Dtype, count_nodes, eval};
use jackalope_models::{Batch, Compute, Model, Parallel, SequenceCache, Span};
use serde_json::json;

type Failure = Box<dyn std::error::Error>;

/// Numbers of sequences.
const SEQUENCES: [usize; 4] = [1, 8, 32, 64];

/// Steps of which the median is taken.
const STEPS: usize = 41;

/// Tokens of the prompt that is measured.
const PROMPT_TOKENS: usize = 512;

/// How often the prompt and the memory are measured; the fastest counts.
const REPETITIONS: usize = 5;

/// Elements of the array with which the memory's speed is measured, 256 MiB of f32: bf16 would measure
/// conversions on a CPU.
const MEMORY_ELEMENTS: i32 = 64 << 20;

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let (mut context, mut dir) = (64, None);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--context" => context = args.next().ok_or("--context takes a number")?.parse()?,
            _ => dir = Some(PathBuf::from(arg)),
        }
    }
    let dir = dir.ok_or("which checkpoint?\nhint: `jackalope synth --out DIR` makes one")?;
    let model = Model::load(&dir, &Parallel::single(Compute::Stock), &mut |_| {})?;
    let (prompt_ms, memory_gb_s) = (prompt_ms(&model)?, memory_gb_s()?);
    for num_sequences in SEQUENCES {
        let mut caches: Vec<SequenceCache> =
            (0..num_sequences).map(|_| model.new_cache()).collect();
        // The lengths differ, as those of requests do.
        for (idx, cache) in caches.iter_mut().enumerate() {
            eval_all(model.forward(&batch(1, context + idx), &mut [cache]), cache)?;
        }
        let mut all: Vec<&mut SequenceCache> = caches.iter_mut().collect();
        let decode = batch(num_sequences, 1);
        let (mut totals, mut builds) = (Vec::new(), Vec::new());
        for _ in 0..STEPS {
            let started = Instant::now();
            let logits = model.forward(&decode, &mut all);
            builds.push(started.elapsed().as_secs_f64());
            eval_all(logits.argmax(-1), all[0])?;
            totals.push(started.elapsed().as_secs_f64());
        }
        let nodes = count_nodes(|| vec![model.forward(&decode, &mut all)]);
        let (step_ms, build_ms) = (median(totals) * 1e3, median(builds) * 1e3);
        let mut line = json!({
            "sequences": num_sequences, "step_ms": step_ms, "build_ms": build_ms, "nodes": nodes
        });
        if num_sequences == 1 {
            line["prompt_ms"] = prompt_ms.into();
            line["memory_gb_s"] = memory_gb_s.into();
        }
        println!("{line}");
    }
    Ok(())
}

/// Returns how long a prompt takes whose last position's logits are wanted, in milliseconds.
fn prompt_ms(model: &Model) -> Result<f64, Failure> {
    let prompt = batch(1, PROMPT_TOKENS);
    let mut fastest = f64::INFINITY;
    for _ in 0..REPETITIONS {
        let mut cache = model.new_cache();
        let started = Instant::now();
        eval_all(model.forward(&prompt, &mut [&mut cache]).argmax(-1), &cache)?;
        fastest = fastest.min(started.elapsed().as_secs_f64());
    }
    Ok(fastest * 1e3)
}

/// Returns the speed at which the device reads and writes memory, in 10⁹ bytes per second.
fn memory_gb_s() -> Result<f64, Failure> {
    let source = Array::full(&[MEMORY_ELEMENTS], 1.0, Dtype::F32);
    let two = Array::full(&[1], 2.0, Dtype::F32);
    eval(&[&source, &two])?;
    let mut fastest = f64::INFINITY;
    for _ in 0..REPETITIONS {
        let started = Instant::now();
        eval(&[&source.mul(&two)])?;
        fastest = fastest.min(started.elapsed().as_secs_f64());
    }
    // Each element of four bytes is read once and written once.
    Ok(f64::from(MEMORY_ELEMENTS) * 8.0 / fastest / 1e9)
}

/// `len` tokens for each of `num_sequences` sequences.
fn batch(num_sequences: usize, len: usize) -> Batch<'static> {
    let tokens: &'static [u32] = (0..num_sequences * len)
        .map(|idx| u32::try_from(idx * 31 % 97).expect("a small number"))
        .collect::<Vec<_>>()
        .leak();
    let rows = (0..num_sequences).map(|idx| Span { start_idx: idx * len, len }).collect();
    let logits_at = (0..num_sequences).map(|idx| (idx + 1) * len - 1).collect();
    Batch { tokens, rows, logits_at }
}

fn eval_all(result: Array, cache: &SequenceCache) -> Result<(), Failure> {
    let mut arrays = cache.arrays();
    arrays.push(result);
    Ok(eval(&arrays.iter().collect::<Vec<_>>())?)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
