//! Measures decode steps of several sequences with MLX's own operations, as GPUs compute them:
//! `cargo run --release -p jackalope-models --example batched_steps -- [--context N] DIR`. Prints one
//! line of JSON for each number of sequences.
#![expect(clippy::print_stdout, reason = "a program reads it")]

use std::path::PathBuf;
use std::time::Instant;

use jackalope_mlx::{Array, count_nodes, eval};
use jackalope_models::{Batch, Compute, Model, Parallel, SequenceCache, Span};
use serde_json::json;

type Failure = Box<dyn std::error::Error>;

/// Numbers of sequences.
const SEQUENCES: [usize; 4] = [1, 8, 32, 64];

/// Steps of which the median is taken.
const STEPS: usize = 41;

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
    for num_sequences in SEQUENCES {
        let mut caches: Vec<SequenceCache> =
            (0..num_sequences).map(|_| model.new_cache()).collect();
        for cache in &mut caches {
            eval_all(model.forward(&batch(1, context), &mut [cache]), cache)?;
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
        println!(
            "{}",
            json!({
                "sequences": num_sequences, "step_ms": step_ms, "build_ms": build_ms, "nodes": nodes
            })
        );
    }
    Ok(())
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
