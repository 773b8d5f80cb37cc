//! Loads and runs a checkpoint without engine and processes; `jackalope synth` makes one of any shape:
//! `cargo run --release -p jackalope-runner --example throughput -- [--threads N] [--stock] DIR`.
#![expect(clippy::print_stdout, reason = "it speaks to a person")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use jackalope_kernels::Threads;
use jackalope_mlx::{Array, eval, memory};
use jackalope_models::{Batch, Compute, Model, Parallel, SequenceCache, Span};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let (mut num_threads, mut dir, mut is_stock) = (2, None, false);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--threads" => num_threads = args.next().ok_or("--threads takes a number")?.parse()?,
            "--stock" => is_stock = true,
            _ => dir = Some(PathBuf::from(arg)),
        }
    }
    let dir = dir.ok_or("which checkpoint?\nhint: `jackalope synth --out DIR` makes one")?;
    let compute = if is_stock {
        Compute::Stock
    } else {
        Compute::Kernels(Arc::new(Threads::new(num_threads)))
    };
    println!("{compute:?}");
    let started = Instant::now();
    let model = Model::load(&dir, &Parallel::single(compute), &mut |_| {})?;
    let megabytes = model.facts().weights_bytes as f64 / 1e6;
    println!("load: {megabytes:.0} MB in {:.2} s", started.elapsed().as_secs_f64());

    let vocab = model.facts().vocab_size;
    let prompt: Vec<u32> = (0..512).map(|idx| idx * 7919 % vocab).collect();
    let mut cache = model.new_cache();
    step(&model, &mut [&mut model.new_cache()], &prompt[..16])?;
    let prefill = seconds(|| step(&model, &mut [&mut cache], &prompt))?;
    println!("prefill of 512: {:.1} tokens/s", 512.0 / prefill);
    for context in [512, 2048] {
        while cache.len() < context {
            step(&model, &mut [&mut cache], &prompt)?;
        }
        memory::reset_peak();
        let active = memory::active_bytes();
        let mut times: Vec<f64> = (0..24)
            .map(|idx| seconds(|| step(&model, &mut [&mut cache], &prompt[idx..=idx])))
            .collect::<Result<_, _>>()?;
        times.sort_by(f64::total_cmp);
        let (median, best) = (times[times.len() / 2], times[0]);
        println!(
            "decode after {context}: {:.1} tokens/s, best {:.1}; {} KB of MLX memory at the peak",
            1.0 / median,
            1.0 / best,
            memory::peak_bytes().saturating_sub(active) / 1000
        );
    }
    let mut caches: Vec<SequenceCache> = (0..8).map(|_| model.new_cache()).collect();
    let mut all: Vec<&mut SequenceCache> = caches.iter_mut().collect();
    for _ in 0..4 {
        step(&model, &mut all, &prompt[..8])?;
    }
    let time = seconds(|| (0..16).try_for_each(|_| step(&model, &mut all, &prompt[..8])))?;
    println!("decode of 8 sequences: {:.1} tokens/s together", 16.0 * 8.0 / time);
    Ok(())
}

fn seconds<E>(work: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed().as_secs_f64())
}

/// The tokens in equal parts for each cache; the logits of the last one of each.
fn step(model: &Model, caches: &mut [&mut SequenceCache], tokens: &[u32]) -> Result<(), Failure> {
    let len = tokens.len() / caches.len();
    let rows = (0..caches.len()).map(|idx| Span { start_idx: idx * len, len }).collect();
    let logits_at = (0..caches.len()).map(|idx| (idx + 1) * len - 1).collect();
    let logits = model.forward(&Batch { tokens, rows, logits_at }, caches);
    let mut arrays: Vec<Array> = caches[0].arrays();
    arrays.push(logits);
    Ok(eval(&arrays.iter().collect::<Vec<_>>())?)
}
