//! Prints the speed of the kernels on this machine: GB/s of packed weights read, and GMAC/s.
//!
//! `cargo run --release -p jackalope-kernels --example throughput -- [threads] [filter]`
#![expect(clippy::print_stdout, reason = "speaks to people")]

use std::time::{Duration, Instant};

use half::bf16;
use jackalope_kernels::{
    AttentionConfig, DenseMatrix, Elements, ElementsMut, InstructionSet, KvPage, QuantFormat,
    QuantMatrix, QuantMode, Scales, SequenceKv, Threads, attention, matmul, quantized_matmul,
};

/// Time spent on each line.
const MEASURE: Duration = Duration::from_millis(300);

/// Weight bytes well beyond the last-level cache.
const WEIGHTS: usize = 96 << 20;

/// Output features where many tokens share the weights.
const PROMPT_ROWS: usize = 384;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let count = arguments.next().map_or(1, |text| text.parse().expect("a number of threads"));
    let filter = arguments.next().unwrap_or_default();
    for instructions in InstructionSet::available() {
        let threads = Threads::with_instructions(count, instructions);
        let lines = Lines { title: format!("{instructions:?}, {count} threads"), filter: &filter };
        for (mode, bits, group_size) in [
            (QuantMode::Affine, 2, 64),
            (QuantMode::Affine, 3, 64),
            (QuantMode::Affine, 4, 32),
            (QuantMode::Affine, 4, 64),
            (QuantMode::Affine, 5, 64),
            (QuantMode::Affine, 6, 64),
            (QuantMode::Affine, 8, 64),
            (QuantMode::Mxfp4, 4, 32),
            (QuantMode::Nvfp4, 4, 16),
            (QuantMode::Mxfp8, 8, 32),
        ] {
            measure_quantized(&lines, QuantFormat { mode, bits, group_size }, &threads);
        }
        measure_dense(&lines, &threads);
        measure_attention(&lines, &threads);
    }
}

/// What every line begins with, and which lines are wanted.
struct Lines<'a> {
    title: String,
    filter: &'a str,
}

impl Lines<'_> {
    fn wants(&self, name: &str) -> bool {
        format!("{} | {name}", self.title).contains(self.filter)
    }

    /// Best time of one call.
    fn measure(&self, name: &str, bytes: usize, macs: usize, mut work: impl FnMut()) {
        let begin = Instant::now();
        let mut best = Duration::MAX;
        let mut calls = 0;
        while best == Duration::MAX || begin.elapsed() < MEASURE {
            let start = Instant::now();
            work();
            calls += 1;
            best = best.min(start.elapsed());
        }
        let seconds = best.as_secs_f64();
        let (gigabytes, gigamacs) = (bytes as f64 / seconds / 1e9, macs as f64 / seconds / 1e9);
        println!(
            "{} | {name:40} | {gigabytes:6.2} GB/s | {gigamacs:6.1} GMAC/s | {calls} calls of {macs} MAC",
            self.title
        );
    }
}

fn measure_quantized(lines: &Lines<'_>, format: QuantFormat, threads: &Threads) {
    let input = 1024;
    for tokens in [1, 2, 4, 8, 16, 64, 512] {
        let name = format!(
            "{:?} {} bits group {}, {tokens} tokens",
            format.mode, format.bits, format.group_size
        );
        if !lines.wants(&name) {
            continue;
        }
        let row_bytes = format.words_per_row(input) * 4;
        let out = if tokens <= 4 { WEIGHTS / row_bytes } else { PROMPT_ROWS };
        // Without the codes of E4M3 that are no numbers.
        let mix = |word: usize| (word as u32).wrapping_mul(2_654_435_761) & 0x3f3f_3f3f;
        let words: Vec<u32> = (0..out * row_bytes / 4).map(mix).collect();
        let num_groups = out * format.groups_per_row(input);
        let (floats, bytes) = (vec![bf16::from_f32(0.01); num_groups], vec![120; num_groups]);
        let (scales, biases) = match format.mode {
            QuantMode::Affine => {
                (Scales::Elements(Elements::Bf16(&floats)), Some(Elements::Bf16(&floats)))
            }
            _ => (Scales::Bytes(&bytes), None),
        };
        let matrix = QuantMatrix { format, out, input, words: &words, scales, biases };
        let x = vec![bf16::ONE; tokens * input];
        let mut y = vec![bf16::ZERO; tokens * out];
        lines.measure(&name, words.len() * 4, tokens * out * input, || {
            quantized_matmul(Elements::Bf16(&x), &matrix, ElementsMut::Bf16(&mut y), threads);
        });
    }
}

fn measure_dense(lines: &Lines<'_>, threads: &Threads) {
    let input = 1024;
    for tokens in [1, 4, 512] {
        let name = format!("bf16, {tokens} tokens");
        if !lines.wants(&name) {
            continue;
        }
        let out = if tokens <= 4 { WEIGHTS / 2 / input } else { PROMPT_ROWS };
        let weights = vec![bf16::ONE; out * input];
        let matrix = DenseMatrix { out, input, values: Elements::Bf16(&weights) };
        let x = vec![bf16::ONE; tokens * input];
        let mut y = vec![bf16::ZERO; tokens * out];
        lines.measure(&name, weights.len() * 2, tokens * out * input, || {
            matmul(Elements::Bf16(&x), &matrix, ElementsMut::Bf16(&mut y), threads);
        });
    }
}

fn measure_attention(lines: &Lines<'_>, threads: &Threads) {
    let (heads, kv_heads, head_dim) = (16, 8, 128);
    let config = AttentionConfig { heads, kv_heads, head_dim, scale: 0.09, window: None };
    for (length, num_queries) in [(512, 1), (4096, 1), (512, 512), (4096, 512)] {
        let name = format!("attention, {num_queries} queries, {length} keys");
        if !lines.wants(&name) {
            continue;
        }
        let buffer = vec![bf16::ONE; kv_heads * length * head_dim];
        let kv = Elements::Bf16(&buffer);
        let pages = [KvPage { keys: kv, values: kv }];
        let sequence = SequenceKv { pages: &pages, length, num_queries };
        let q = vec![bf16::ONE; num_queries * heads * head_dim];
        let mut out = q.clone();
        let visible = num_queries * (2 * length - num_queries + 1) / 2;
        lines.measure(&name, buffer.len() * 4, visible * heads * head_dim * 2, || {
            let out = ElementsMut::Bf16(&mut out);
            attention(Elements::Bf16(&q), &[sequence], &config, out, threads);
        });
    }
}
