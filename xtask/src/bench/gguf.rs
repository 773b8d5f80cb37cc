//! A GGUF file with a checkpoint's dimensions and random 4-bit weights, with which llama.cpp is
//! measured.
//!
//! Format: `docs/gguf.md` of the ggml repository, version 3. `Q4_0` has blocks of 32 codes of 4 bits under one f16
//! scale, 4.5 bits a weight: as many as MLX's 4 bits with groups of 64.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

const ALIGNMENT: u64 = 32;
const BLOCK: u64 = 32;
const BLOCK_BYTES: u64 = 18;

/// Number of bytes of random codes, which are repeated through the file.
const PATTERN_BYTES: usize = BLOCK_BYTES as usize * 7919;

#[derive(Clone, Copy)]
enum Kind {
    F32 = 0,
    Q4_0 = 2,
}

struct Tensor {
    name: String,
    /// Dimensions, fastest-varying first.
    dims: Vec<u64>,
    kind: Kind,
}

impl Tensor {
    fn bytes(&self) -> u64 {
        let len: u64 = self.dims.iter().product();
        match self.kind {
            Kind::F32 => 4 * len,
            Kind::Q4_0 => q4_0_bytes(len),
        }
    }
}

/// Writes `path` with the dimensions of a `config.json` of Qwen3, dense or with experts.
pub(super) fn write(config: &Value, path: &Path) -> anyhow::Result<()> {
    let tensors = tensors(config)?;
    let metadata = metadata(config)?;
    let mut header = Vec::new();
    header.extend_from_slice(b"GGUF");
    header.extend_from_slice(&3_u32.to_le_bytes());
    header.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    header.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
    for (key, value) in &metadata {
        put_string(&mut header, key);
        value.put(&mut header);
    }
    let mut offset = 0_u64;
    for tensor in &tensors {
        put_string(&mut header, &tensor.name);
        header.extend_from_slice(&(tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().for_each(|dim| header.extend_from_slice(&dim.to_le_bytes()));
        header.extend_from_slice(&(tensor.kind as u32).to_le_bytes());
        header.extend_from_slice(&offset.to_le_bytes());
        offset = (offset + tensor.bytes()).next_multiple_of(ALIGNMENT);
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    let mut file = BufWriter::new(file);
    file.write_all(&header)?;
    let (ones, codes) = (ones(), random_blocks());
    for tensor in &tensors {
        let pattern = match tensor.kind {
            Kind::F32 => &ones,
            Kind::Q4_0 => &codes,
        };
        put_repeated(&mut file, pattern, tensor.bytes())?;
        let padding = tensor.bytes().next_multiple_of(ALIGNMENT) - tensor.bytes();
        file.write_all(&[0; ALIGNMENT as usize][..padding as usize])?;
    }
    file.flush().with_context(|| format!("writing {}", path.display()))
}

/// Repeats `pattern` up to `len` bytes.
pub(super) fn put_repeated(
    file: &mut impl std::io::Write,
    pattern: &[u8],
    len: u64,
) -> std::io::Result<()> {
    let mut left = len as usize;
    while 0 < left {
        let part = left.min(pattern.len());
        file.write_all(&pattern[..part])?;
        left -= part;
    }
    Ok(())
}

/// Returns the size of `len` weights in blocks of `Q4_0`, in bytes.
pub(super) fn q4_0_bytes(len: u64) -> u64 {
    len / BLOCK * BLOCK_BYTES
}

pub(super) fn ones() -> Vec<u8> {
    1_f32.to_le_bytes().repeat(1024)
}

/// Returns random codes with a scale that keeps activations small.
pub(super) fn random_blocks() -> Vec<u8> {
    let mut state = 1_u64;
    let mut bytes = vec![0; PATTERN_BYTES];
    for block in bytes.chunks_exact_mut(BLOCK_BYTES as usize) {
        let scale = half::f16::from_f32(0.005);
        block[..2].copy_from_slice(&scale.to_le_bytes());
        for byte in &mut block[2..] {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
    }
    bytes
}

enum Metadata {
    U32(u32),
    F32(f32),
    Text(&'static str),
}

impl Metadata {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Metadata::U32(number) => {
                out.extend_from_slice(&4_u32.to_le_bytes());
                out.extend_from_slice(&number.to_le_bytes());
            }
            Metadata::F32(number) => {
                out.extend_from_slice(&6_u32.to_le_bytes());
                out.extend_from_slice(&number.to_le_bytes());
            }
            Metadata::Text(text) => {
                out.extend_from_slice(&8_u32.to_le_bytes());
                put_string(out, text);
            }
        }
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn number(config: &Value, key: &str) -> anyhow::Result<u64> {
    config[key].as_u64().with_context(|| format!("config.json has no number {key}"))
}

/// The experts of a mixture, in all layers.
struct Experts {
    count: u64,
    chosen: u64,
    inner: u64,
}

/// Returns the experts; `None` if the model is dense.
fn experts(config: &Value) -> anyhow::Result<Option<Experts>> {
    match config["model_type"].as_str() {
        Some("qwen3_moe") => {
            let is_everywhere = config["decoder_sparse_step"] == 1
                && config["mlp_only_layers"].as_array().is_none_or(Vec::is_empty);
            ensure!(is_everywhere, "llama.cpp's qwen3moe has experts in every layer");
            Ok(Some(Experts {
                count: number(config, "num_experts")?,
                chosen: number(config, "num_experts_per_tok")?,
                inner: number(config, "moe_intermediate_size")?,
            }))
        }
        None | Some("qwen3") => Ok(None),
        Some(other) => bail!("no GGUF is written for {other}\nhint: take qwen3 or qwen3_moe"),
    }
}

/// Returns the fraction of the weights' bytes that are read for one token: of a mixture, only the
/// chosen experts are read.
pub(super) fn active_part(config: &Value) -> anyhow::Result<f64> {
    let Some(Experts { count, chosen, .. }) = experts(config)? else { return Ok(1.0) };
    let (mut all, mut unread) = (0.0, 0.0);
    for tensor in tensors(config)? {
        let bytes = tensor.bytes() as f64;
        all += bytes;
        if tensor.name.contains("_exps.") {
            unread += bytes * (1.0 - chosen as f64 / count as f64);
        }
    }
    Ok(1.0 - unread / all)
}

fn metadata(config: &Value) -> anyhow::Result<Vec<(String, Metadata)>> {
    let experts = experts(config)?;
    let architecture = if experts.is_some() { "qwen3moe" } else { "qwen3" };
    let dim = |key| anyhow::Ok(Metadata::U32(u32::try_from(number(config, key)?)?));
    let float = |key: &str| config[key].as_f64().map(|it| Metadata::F32(it as f32));
    let of_architecture = [
        ("block_count", dim("num_hidden_layers")?),
        ("context_length", dim("max_position_embeddings")?),
        ("embedding_length", dim("hidden_size")?),
        ("feed_forward_length", dim("intermediate_size")?),
        ("attention.head_count", dim("num_attention_heads")?),
        ("attention.head_count_kv", dim("num_key_value_heads")?),
        ("attention.key_length", dim("head_dim")?),
        ("attention.value_length", dim("head_dim")?),
        ("attention.layer_norm_rms_epsilon", float("rms_norm_eps").context("rms_norm_eps")?),
        ("rope.freq_base", float("rope_theta").context("rope_theta")?),
        ("vocab_size", dim("vocab_size")?),
    ];
    let mut all = vec![
        ("general.architecture".to_owned(), Metadata::Text(architecture)),
        ("general.file_type".to_owned(), Metadata::U32(2)),
        ("tokenizer.ggml.model".to_owned(), Metadata::Text("no_vocab")),
    ];
    let own = |key: &str| format!("{architecture}.{key}");
    all.extend(of_architecture.into_iter().map(|(key, value)| (own(key), value)));
    if let Some(Experts { count, chosen, inner }) = experts {
        let numbers = [
            ("expert_count", count),
            ("expert_used_count", chosen),
            ("expert_feed_forward_length", inner),
        ];
        for (key, number) in numbers {
            all.push((own(key), Metadata::U32(u32::try_from(number)?)));
        }
    }
    Ok(all)
}

fn tensors(config: &Value) -> anyhow::Result<Vec<Tensor>> {
    let hidden = number(config, "hidden_size")?;
    let inner = number(config, "intermediate_size")?;
    let head_dim = number(config, "head_dim")?;
    let heads = number(config, "num_attention_heads")? * head_dim;
    let kv_heads = number(config, "num_key_value_heads")? * head_dim;
    let vocab = number(config, "vocab_size")?;
    let experts = experts(config)?;
    let matrix =
        |name: String, input, out| Tensor { name, dims: vec![input, out], kind: Kind::Q4_0 };
    let vector = |name: String, len| Tensor { name, dims: vec![len], kind: Kind::F32 };
    let mut tensors = vec![
        matrix("token_embd.weight".to_owned(), hidden, vocab),
        vector("output_norm.weight".to_owned(), hidden),
    ];
    if config["tie_word_embeddings"] != true {
        tensors.push(matrix("output.weight".to_owned(), hidden, vocab));
    }
    for layer in 0..number(config, "num_hidden_layers")? {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        tensors.extend([
            vector(name("attn_norm"), hidden),
            matrix(name("attn_q"), hidden, heads),
            matrix(name("attn_k"), hidden, kv_heads),
            matrix(name("attn_v"), hidden, kv_heads),
            matrix(name("attn_output"), heads, hidden),
            vector(name("attn_q_norm"), head_dim),
            vector(name("attn_k_norm"), head_dim),
            vector(name("ffn_norm"), hidden),
        ]);
        match &experts {
            None => tensors.extend([
                matrix(name("ffn_gate"), hidden, inner),
                matrix(name("ffn_up"), hidden, inner),
                matrix(name("ffn_down"), inner, hidden),
            ]),
            Some(Experts { count, inner, .. }) => {
                let stacked = |part: &str, input, out| {
                    let dims = vec![input, out, *count];
                    Tensor { name: name(part), dims, kind: Kind::Q4_0 }
                };
                let router = vec![hidden, *count];
                tensors.extend([
                    Tensor { name: name("ffn_gate_inp"), dims: router, kind: Kind::F32 },
                    stacked("ffn_gate_exps", hidden, *inner),
                    stacked("ffn_up_exps", hidden, *inner),
                    stacked("ffn_down_exps", *inner, hidden),
                ]);
            }
        }
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_ends_where_its_last_tensor_does() {
        let config = serde_json::json!({
            "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32,
            "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 100,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
            "tie_word_embeddings": true,
        });
        let dir = crate::process::target_dir().join("tmp");
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("gguf-test.gguf");
        write(&config, &path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(&bytes[..8], b"GGUF\x03\0\0\0");
        let tensors = tensors(&config).unwrap();
        // Two tensors for the model, eleven per layer.
        assert_eq!((bytes[8], tensors.len()), (24, 24));
        let data: u64 = tensors.iter().map(|it| it.bytes().next_multiple_of(ALIGNMENT)).sum();
        let weights: u64 = tensors.iter().map(|it| it.dims.iter().product::<u64>()).sum();
        assert!(data > weights / 2 && (data as usize) < bytes.len());
        let header = bytes.len() - data as usize;
        assert!(header.is_multiple_of(ALIGNMENT as usize));
        // The first tensor begins with a block's scale.
        assert_eq!(bytes[header..header + 2], half::f16::from_f32(0.005).to_le_bytes());
    }

    #[test]
    fn a_mixture_has_stacked_experts_of_which_a_token_reads_some() {
        let config = serde_json::json!({
            "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 3, "head_dim": 32, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": 128, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": true,
            "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
            "decoder_sparse_step": 1, "mlp_only_layers": [],
        });
        let tensors = tensors(&config).unwrap();
        assert_eq!(tensors.len(), 2 + 3 * 12);
        let experts: u64 =
            tensors.iter().filter(|it| it.name.contains("_exps.")).map(Tensor::bytes).sum();
        assert_eq!(experts, q4_0_bytes(3 * 3 * 16 * 64 * 32));
        let all: u64 = tensors.iter().map(Tensor::bytes).sum();
        let read = all as f64 - experts as f64 * 0.75;
        assert!((active_part(&config).unwrap() - read / all as f64).abs() < 1e-12);
        let keys: Vec<String> = metadata(&config).unwrap().into_iter().map(|it| it.0).collect();
        assert!(keys.contains(&"qwen3moe.expert_used_count".to_owned()), "{keys:?}");
        let other = serde_json::json!({"model_type": "mamba"});
        assert!(metadata(&other).is_err());
    }
}
