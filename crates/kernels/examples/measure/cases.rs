//! The kernels, formats and shapes that are measured.

use half::bf16;
use jackalope_kernels::{
    AttentionConfig, DenseMatrix, Elements, ElementsMut, KvPage, Matrix, Product, QuantFormat,
    QuantMatrix, QuantMode, Scales, SequenceKv, advise_huge_pages, attention, matmul, matmul_each,
    quantized_matmul,
};

use super::{Report, Work};

/// Bytes of the matrices that a pass over few tokens streams.
const STREAM_BYTES: usize = 160 << 20;

/// Multiplications of a pass over many tokens, about.
const PASS_MACS: usize = 2 << 30;

/// Output and input features of Qwen3 0.6B's matrices.
const SHAPES: [(&str, usize, usize); 5] = [
    ("q", 2048, 1024),
    ("kv", 1024, 1024),
    ("mlp", 3072, 1024),
    ("down", 1024, 3072),
    ("vocab", 151_936, 1024),
];

/// The shape on which all numbers of tokens are measured.
const MLP: (&str, usize, usize) = SHAPES[2];

pub(super) fn measure_all(report: &mut Report<'_>) {
    let common = QuantFormat { mode: QuantMode::Affine, bits: 4, group_size: 64 };
    for shape in SHAPES {
        measure_quantized(report, common, shape, &[1]);
    }
    measure_quantized(report, common, MLP, &[2, 3, 4, 8, 16, 64, 512]);
    for (mode, bits, group_size) in [
        (QuantMode::Affine, 4, 32),
        (QuantMode::Affine, 4, 128),
        (QuantMode::Affine, 8, 64),
        (QuantMode::Affine, 2, 64),
        (QuantMode::Affine, 3, 64),
        (QuantMode::Affine, 5, 64),
        (QuantMode::Affine, 6, 64),
        (QuantMode::Mxfp4, 4, 32),
        (QuantMode::Nvfp4, 4, 16),
        (QuantMode::Mxfp8, 8, 32),
    ] {
        let format = QuantFormat { mode, bits, group_size };
        measure_quantized(report, format, MLP, &[1, 8, 512]);
    }
    measure_step(report, common);
    measure_dense(report, MLP, &[1, 8, 512]);
    measure_attention(report);
}

/// How often a matrix is in memory, so that a pass does not find it in a cache.
pub(super) fn num_copies(matrix_bytes: usize, macs: usize, tokens: usize) -> usize {
    if tokens <= 16 { STREAM_BYTES.div_ceil(matrix_bytes) } else { PASS_MACS.div_ceil(macs) }
}

/// A buffer in huge pages.
pub(super) fn filled<T: Copy>(len: usize, value: impl Fn(usize) -> T) -> Vec<T> {
    let mut values = Vec::with_capacity(len);
    advise_huge_pages(values.spare_capacity_mut());
    values.extend((0..len).map(value));
    values
}

fn measure_quantized(
    report: &mut Report<'_>,
    format: QuantFormat,
    (shape, out, input): (&str, usize, usize),
    all_tokens: &[usize],
) {
    let QuantFormat { mode, bits, group_size } = format;
    let mode_name = format!("{mode:?}").to_lowercase();
    let name =
        |tokens: usize| format!("{mode_name}-{bits} group {group_size}, {shape}, {tokens} tokens");
    let wanted = all_tokens.iter().copied().filter(|tokens| report.wants(&name(*tokens)));
    let wanted: Vec<usize> = wanted.collect();
    if wanted.is_empty() {
        return;
    }
    let num_words = out * format.words_per_row(input);
    let num_groups = out * format.groups_per_row(input);
    let is_affine = mode == QuantMode::Affine;
    let matrix_bytes = num_words * 4 + num_groups * if is_affine { 4 } else { 1 };
    let macs = |tokens: usize| tokens * out * input;
    let copies = |tokens: usize| num_copies(matrix_bytes, macs(tokens), tokens);
    let most = wanted.iter().map(|tokens| copies(*tokens)).max().unwrap_or(0);
    // Without the codes of E4M3 that are no numbers.
    let words = filled(most * num_words, |idx| {
        (idx as u32).wrapping_mul(2_654_435_761).rotate_left(9) & 0x3f3f_3f3f
    });
    let floats = filled(if is_affine { most * num_groups * 2 } else { 0 }, |_| bf16::ONE);
    let codes = filled(if is_affine { 0 } else { most * num_groups }, |_| 120_u8);
    let matrix = |copy: usize| {
        let groups = copy * num_groups..(copy + 1) * num_groups;
        let (scales, biases) = match mode {
            QuantMode::Affine => {
                let (scales, biases) = floats.split_at(most * num_groups);
                let scales = Scales::Elements(Elements::Bf16(&scales[groups.clone()]));
                (scales, Some(Elements::Bf16(&biases[groups])))
            }
            _ => (Scales::Bytes(&codes[groups]), None),
        };
        let words = &words[copy * num_words..][..num_words];
        QuantMatrix { format, out, input, words, scales, biases }
    };
    for tokens in wanted {
        let x = filled(tokens * input, |idx| bf16::from_f32((idx % 251) as f32 - 125.0));
        let mut y = filled(tokens * out, |_| bf16::ZERO);
        let copies = copies(tokens);
        let work = Work {
            bytes: copies * matrix_bytes,
            macs: copies * macs(tokens),
            is_whole: mode != QuantMode::Mxfp8,
        };
        report.measure(&name(tokens), work, |threads| {
            for copy in 0..copies {
                let (x, y) = (Elements::Bf16(&x), ElementsMut::Bf16(&mut y));
                quantized_matmul(x, &matrix(copy), y, threads);
            }
        });
    }
}

/// All products of a step with one row, in the order of the layers.
fn measure_step(report: &mut Report<'_>, format: QuantFormat) {
    const LAYERS: usize = 28;
    /// The matrices that meet the same row.
    const TOGETHER: [&[(usize, usize)]; 4] = [
        &[(2048, 1024), (1024, 1024), (1024, 1024)],
        &[(1024, 2048)],
        &[(3072, 1024), (3072, 1024)],
        &[(1024, 3072)],
    ];
    let name = "affine-4 group 64, a whole step, 1 tokens";
    if !report.wants(name) {
        return;
    }
    let (_, vocab, hidden) = SHAPES[4];
    let vocabulary: &[(usize, usize)] = &[(vocab, hidden)];
    let calls = || std::iter::repeat_n(TOGETHER, LAYERS).flatten().chain([vocabulary]);
    let macs: usize = calls().flatten().map(|(out, input)| out * input).sum();
    let words = filled(macs / 8, |idx| (idx as u32).wrapping_mul(2_654_435_761).rotate_left(9));
    let floats = filled(macs / 32, |_| bf16::ONE);
    let x = filled(3072, |idx| bf16::from_f32((idx % 251) as f32 - 125.0));
    let mut y = filled(vocab, |_| bf16::ZERO);
    let work = Work { bytes: macs / 2 + macs / 16, macs, is_whole: true };
    report.measure(name, work, |threads| {
        let (mut words, mut floats) = (&words[..], &floats[..]);
        for matrices in calls() {
            let (mut products, mut y) = (Vec::new(), &mut y[..]);
            for &(out, input) in matrices {
                let (own, num_groups) = (words.split_at(out * input / 8), out * input / 64);
                let (scales, rest) = floats.split_at(num_groups);
                let (biases, rest) = rest.split_at(num_groups);
                let (scales, biases) = (Elements::Bf16(scales), Some(Elements::Bf16(biases)));
                let scales = Scales::Elements(scales);
                let matrix = QuantMatrix { format, out, input, words: own.0, scales, biases };
                let (own_y, rest_y) = std::mem::take(&mut y).split_at_mut(out);
                products.push(Product {
                    matrix: Matrix::Quantized(matrix),
                    out: ElementsMut::Bf16(own_y),
                });
                (words, floats, y) = (own.1, rest, rest_y);
            }
            let input = matrices[0].1;
            matmul_each(Elements::Bf16(&x[..input]), products, threads);
        }
    });
}

fn measure_dense(
    report: &mut Report<'_>,
    (shape, out, input): (&str, usize, usize),
    all_tokens: &[usize],
) {
    for &tokens in all_tokens {
        let name = format!("bf16, {shape}, {tokens} tokens");
        if !report.wants(&name) {
            continue;
        }
        let len = out * input;
        let copies = num_copies(len * 2, tokens * len, tokens);
        let weights = filled(copies * len, |idx| bf16::from_f32((idx % 255) as f32));
        let x = filled(tokens * input, |_| bf16::ONE);
        let mut y = filled(tokens * out, |_| bf16::ZERO);
        let work = Work { bytes: copies * len * 2, macs: copies * tokens * len, is_whole: false };
        report.measure(&name, work, |threads| {
            for values in weights.chunks(len) {
                let matrix = DenseMatrix { out, input, values: Elements::Bf16(values) };
                matmul(Elements::Bf16(&x), &matrix, ElementsMut::Bf16(&mut y), threads);
            }
        });
    }
}

/// Heads, KV heads and their size in Qwen3 0.6B.
const HEADS: AttentionConfig<'_> = AttentionConfig {
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    value_dim: 128,
    scale: 0.09,
    window: None,
    chunk: None,
    soft_cap: None,
    sinks: None,
};

/// Positions of a page, as in a cache.
const PAGE_TOKENS: usize = 256;

fn measure_attention(report: &mut Report<'_>) {
    for (num_sequences, length, num_queries) in [
        (1, 64, 1),
        (1, 1024, 1),
        (1, 4096, 1),
        (1, 16384, 1),
        (8, 512, 1),
        (1, 512, 512),
        (1, 4096, 512),
    ] {
        measure_sequences(report, num_sequences, length, num_queries);
    }
}

/// Equal sequences of `length` keys, the last `num_queries` of them with queries.
fn measure_sequences(
    report: &mut Report<'_>,
    num_sequences: usize,
    length: usize,
    num_queries: usize,
) {
    let name = match num_sequences {
        1 => format!("attention, {num_queries} queries, {length} keys"),
        _ => format!("attention, {num_sequences} sequences, {num_queries} queries, {length} keys"),
    };
    if !report.wants(&name) {
        return;
    }
    let AttentionConfig { heads, kv_heads, head_dim, .. } = HEADS;
    let position_len = kv_heads * head_dim;
    let num_pages = length.div_ceil(PAGE_TOKENS);
    let call_pages = num_sequences * num_pages;
    let page_len = PAGE_TOKENS * position_len;
    let copies =
        if num_queries == 1 { STREAM_BYTES.div_ceil(call_pages * page_len * 4) } else { 1 };
    let len = copies * call_pages * page_len;
    let keys = filled(len, |idx| bf16::from_f32((idx % 255) as f32 / 255.0));
    let values = filled(len, |idx| bf16::from_f32((idx % 251) as f32));
    let pages = keys.chunks(page_len).zip(values.chunks(page_len)).map(|(keys, values)| KvPage {
        keys: Elements::Bf16(keys),
        values: Some(Elements::Bf16(values)),
    });
    let pages: Vec<KvPage<'_>> = pages.collect();
    let q = filled(num_sequences * num_queries * heads * head_dim, |_| bf16::from_f32(0.1));
    let mut out = q.clone();
    let visible = num_queries * (2 * length - num_queries + 1) / 2;
    let work = Work {
        bytes: copies * num_sequences * length * position_len * 4,
        macs: copies * num_sequences * visible * heads * head_dim * 2,
        is_whole: false,
    };
    report.measure(&name, work, |threads| {
        for pages in pages.chunks(call_pages) {
            let sequences = pages.chunks(num_pages);
            let sequences = sequences.map(|pages| SequenceKv { pages, length, num_queries });
            let sequences: Vec<SequenceKv<'_>> = sequences.collect();
            let out = ElementsMut::Bf16(&mut out);
            attention(Elements::Bf16(&q), &sequences, &HEADS, out, threads);
        }
    });
}
