//! Measures what sums that do not depend on the split cost a model: exact and rounded sums take turns
//! on the same tokens, so that other load falls on both alike. `jackalope synth` makes a checkpoint:
//! `cargo run --release -p jackalope-runner --example exact_sums -- [--threads N] DIR`.
#![expect(clippy::print_stdout, reason = "it speaks to a person")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use jackalope_kernels::Threads;
use jackalope_mlx::{Array, eval};
use jackalope_models::{Batch, Compute, Model, Parallel, SequenceCache, Span, Sums};

type Failure = Box<dyn std::error::Error>;

/// Tokens of a prompt.
const PROMPT_TOKENS: u32 = 512;

/// Tokens that follow each prompt one by one.
const DECODE_TOKENS: usize = 24;

/// Number of turns of each kind of sum.
const TURNS: usize = 7;

/// Seconds of a turn.
struct Turn {
    prefill: f64,
    decode: f64,
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let (mut num_threads, mut dir) = (1, None);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--threads" => num_threads = args.next().ok_or("--threads takes a number")?.parse()?,
            _ => dir = Some(PathBuf::from(arg)),
        }
    }
    let dir = dir.ok_or("which checkpoint?\nhint: `jackalope synth --out DIR` makes one")?;
    let threads = Arc::new(Threads::new(num_threads));
    let load = |sums| {
        let parallel = Parallel::single(Compute::Kernels(Arc::clone(&threads))).with_sums(sums);
        Model::load(&dir, &parallel, &mut |_| {})
    };
    let models = [load(Sums::Exact)?, load(Sums::Rounded)?];
    for model in &models {
        take_turn(model)?;
    }
    let mut turns: [Vec<Turn>; 2] = Default::default();
    for _ in 0..TURNS {
        for (model, turns) in models.iter().zip(&mut turns) {
            turns.push(take_turn(model)?);
        }
    }
    report("prompt", &turns, |turn| turn.prefill / f64::from(PROMPT_TOKENS));
    report("decode", &turns, |turn| turn.decode / DECODE_TOKENS as f64);
    Ok(())
}

/// Prints the speeds of exact and rounded sums, and their ratio: medians over the turns.
fn report(what: &str, turns: &[Vec<Turn>; 2], seconds_per_token: impl Fn(&Turn) -> f64) {
    let [exact, rounded] = turns.each_ref().map(|turns| {
        let mut times: Vec<f64> = turns.iter().map(&seconds_per_token).collect();
        times.sort_by(f64::total_cmp);
        1.0 / times[times.len() / 2]
    });
    let ratio = exact / rounded;
    println!("{what}: exact {exact:.1}, rounded {rounded:.1} tokens/s, ratio {ratio:.3}");
}

fn take_turn(model: &Model) -> Result<Turn, Failure> {
    let vocab = model.facts().vocab_size;
    let prompt: Vec<u32> = (0..PROMPT_TOKENS).map(|idx| idx * 7919 % vocab).collect();
    let mut cache = model.new_cache();
    let started = Instant::now();
    step(model, &mut cache, &prompt)?;
    let prefill = started.elapsed().as_secs_f64();
    let started = Instant::now();
    for token in prompt.chunks(1).take(DECODE_TOKENS) {
        step(model, &mut cache, token)?;
    }
    Ok(Turn { prefill, decode: started.elapsed().as_secs_f64() })
}

fn step(model: &Model, cache: &mut SequenceCache, tokens: &[u32]) -> Result<(), Failure> {
    let rows = vec![Span { start_idx: 0, len: tokens.len() }];
    let batch = Batch { tokens, rows, logits_at: vec![tokens.len() - 1] };
    let logits = model.forward(&batch, &mut [cache]);
    let mut arrays: Vec<Array> = cache.arrays();
    arrays.push(logits);
    Ok(eval(&arrays.iter().collect::<Vec<_>>())?)
}
