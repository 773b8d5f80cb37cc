//! Compares a checkpoint with what mlx-lm computed for it:
//! `cargo run -p jackalope-models --example compare -- DIR…`, each with a `reference.json` that holds
//! `prompt`, `last` (`ids`, `logits`), `greedy` and `greedy_margins`.
#![expect(clippy::print_stdout, reason = "it speaks to a person")]

use std::path::Path;

use jackalope_mlx as mlx;
use jackalope_models::{Batch, Compute, Model, Parallel, SequenceCache, Span};
use serde_json::Value;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let stock = std::env::args().any(|arg| arg == "--stock");
    for dir in std::env::args().skip(1).filter(|arg| !arg.starts_with("--")) {
        let compute = if stock { Compute::Stock } else { Compute::for_device(mlx::device(), 2)? };
        match compare(Path::new(&dir), compute) {
            Ok(line) => println!("{dir}: {line}"),
            Err(err) => println!("{dir}: FAILED: {err}"),
        }
    }
    Ok(())
}

fn compare(dir: &Path, compute: Compute) -> Result<String, Failure> {
    let reference: Value = serde_json::from_slice(&std::fs::read(dir.join("reference.json"))?)?;
    let model = Model::load(dir, &Parallel::single(compute), &mut |_| {})?;
    let numbers = |value: &Value| -> Vec<f64> {
        value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
    };
    let prompt: Vec<u32> = numbers(&reference["prompt"]).iter().map(|&id| id as u32).collect();
    let mut cache = model.new_cache();
    let mut logits = forward(&model, &mut cache, &prompt)?;
    let ids = numbers(&reference["last"]["ids"]);
    let wanted = numbers(&reference["last"]["logits"]);
    let largest = wanted.iter().fold(0.0_f64, |max, logit| max.max(logit.abs()));
    let worst = ids.iter().zip(&wanted).fold(0.0_f64, |worst, (&id, &logit)| {
        worst.max((f64::from(logits[id as usize]) - logit).abs())
    });
    let greedy = numbers(&reference["greedy"]);
    let margins = numbers(&reference["greedy_margins"]);
    let mut agreed = 0;
    for (&token, &margin) in greedy.iter().zip(&margins) {
        let best = argmax(&logits);
        if best != token as u32 {
            let line = format!("DIFFERS at token {agreed} (margin {margin})");
            return Ok(format!("{line}, {:.2e} of the largest logit", worst / largest));
        }
        agreed += 1;
        logits = forward(&model, &mut cache, &[best])?;
    }
    Ok(format!("{agreed} tokens agree, {:.2e} of the largest logit", worst / largest))
}

fn forward(
    model: &Model,
    cache: &mut SequenceCache,
    tokens: &[u32],
) -> Result<Vec<f32>, mlx::Error> {
    let rows = vec![Span { start_idx: 0, len: tokens.len() }];
    let batch = Batch { tokens, rows, logits_at: vec![tokens.len() - 1] };
    model.forward(&batch, &mut [cache]).to_vec::<f32>()
}

fn argmax(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
    best.expect("a vocabulary has entries") as u32
}
