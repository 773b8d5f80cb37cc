//! Loads and runs a checkpoint, or one of random 4-bit weights in the shape of Qwen3 0.6B:
//! `cargo run --release -p jackalope-models --example throughput -- [--threads N] [--stock] [DIR]`.
#![expect(clippy::print_stdout, reason = "it speaks to a person")]

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use jackalope_kernels::Threads;
use jackalope_mlx::{Array, eval, memory};
use jackalope_models::{Batch, Compute, Model, SequenceCache, Span, TensorParallel};
use serde_json::{Map, json};

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
    let dir = dir.map_or_else(random_checkpoint, Ok)?;
    let compute = match is_stock {
        true => Compute::Stock,
        false => Compute::Kernels(Arc::new(Threads::new(num_threads))),
    };
    println!("{compute:?}");
    let started = Instant::now();
    let model = Model::load(&dir, &TensorParallel::single(compute), &mut |_| {})?;
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

/// Writes the checkpoint once, beside the build.
fn random_checkpoint() -> Result<PathBuf, Failure> {
    const LAYERS: usize = 28;
    const HIDDEN: usize = 1024;
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp/qwen3-0.6b-random");
    if dir.join("config.json").exists() {
        return Ok(dir);
    }
    std::fs::create_dir_all(&dir)?;
    let mut tensors = Vec::new();
    let mut matrix = |path: String, output: usize, input: usize| {
        tensors.push((format!("{path}.weight"), "U32", vec![output, input / 8]));
        tensors.push((format!("{path}.scales"), "BF16", vec![output, input / 64]));
        tensors.push((format!("{path}.biases"), "BF16", vec![output, input / 64]));
    };
    matrix("model.embed_tokens".into(), 151_936, HIDDEN);
    for idx in 0..LAYERS {
        let layer = format!("model.layers.{idx}");
        matrix(format!("{layer}.self_attn.q_proj"), 2048, HIDDEN);
        matrix(format!("{layer}.self_attn.k_proj"), 1024, HIDDEN);
        matrix(format!("{layer}.self_attn.v_proj"), 1024, HIDDEN);
        matrix(format!("{layer}.self_attn.o_proj"), HIDDEN, 2048);
        matrix(format!("{layer}.mlp.gate_proj"), 3072, HIDDEN);
        matrix(format!("{layer}.mlp.up_proj"), 3072, HIDDEN);
        matrix(format!("{layer}.mlp.down_proj"), HIDDEN, 3072);
    }
    let mut norm = |path: String, width| tensors.push((path + ".weight", "BF16", vec![width]));
    for idx in 0..LAYERS {
        let layer = format!("model.layers.{idx}");
        norm(format!("{layer}.input_layernorm"), HIDDEN);
        norm(format!("{layer}.post_attention_layernorm"), HIDDEN);
        norm(format!("{layer}.self_attn.q_norm"), 128);
        norm(format!("{layer}.self_attn.k_norm"), 128);
    }
    norm("model.norm".into(), HIDDEN);
    write_tensors(&dir.join("model.safetensors"), &tensors)?;
    let config = json!({
        "model_type": "qwen3", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151_936, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "max_position_embeddings": 40_960, "tie_word_embeddings": true,
        "quantization": {"group_size": 64, "bits": 4},
    });
    std::fs::write(dir.join("config.json"), config.to_string())?;
    Ok(dir)
}

fn write_tensors(path: &Path, tensors: &[(String, &str, Vec<usize>)]) -> Result<(), Failure> {
    let (mut header, mut offset) = (Map::new(), 0);
    for (name, dtype, shape) in tensors {
        let end = offset + shape.iter().product::<usize>() * if *dtype == "U32" { 4 } else { 2 };
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, end]});
        header.insert(name.clone(), entry);
        offset = end;
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for (name, dtype, shape) in tensors {
        for _ in 0..shape.iter().product::<usize>() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if *dtype == "U32" {
                file.write_all(&((state >> 32) as u32).to_le_bytes())?;
                continue;
            }
            // 1.0 for norms, about 0.01 for scales, about -0.075 for biases.
            let bits: u16 = match name.rsplit('.').next() {
                Some("weight") => 0x3f80,
                Some("scales") => 0x3c20,
                _ => 0xbd9a,
            };
            file.write_all(&(bits ^ (state & 3) as u16).to_le_bytes())?;
        }
    }
    Ok(file.flush()?)
}
