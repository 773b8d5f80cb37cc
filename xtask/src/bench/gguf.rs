//! A GGUF file with a checkpoint's dimensions and random 4-bit weights, with which llama.cpp is
//! measured.
//!
//! Format: `docs/gguf.md` of the ggml repository, version 3. `Q4_0` has blocks of 32 codes of 4 bits under one f16
//! scale, 4.5 bits a weight: as many as MLX's 4 bits with groups of 64.

mod architecture;

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use architecture::Architecture;
pub(super) use architecture::number;

const ALIGNMENT: u64 = 32;
const BLOCK: u64 = 32;
const BLOCK_BYTES: u64 = 18;

/// Scale of all blocks: 0.005 as an f16.
const SCALE: u16 = 0x1d1f;

/// Number of bytes of random codes, which are repeated through the file.
const PATTERN_BYTES: usize = BLOCK_BYTES as usize * 7919;

#[derive(Clone, Copy, Debug)]
enum Kind {
    F32 = 0,
    Q4_0 = 2,
}

#[derive(Debug)]
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

/// Writes `path` with the dimensions of a `config.json`.
pub(super) fn write(config: &Value, path: &Path) -> anyhow::Result<()> {
    let Architecture { tensors, metadata, .. } = Architecture::of(config)?;
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
        block[..2].copy_from_slice(&SCALE.to_le_bytes());
        for byte in &mut block[2..] {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
    }
    bytes
}

#[derive(Debug)]
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

/// Returns the fraction of the weights' bytes that decoding reads for one token.
pub(super) fn active_part(config: &Value) -> anyhow::Result<f64> {
    Ok(Architecture::of(config)?.active_part())
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
        let tensors = Architecture::of(&config).unwrap().tensors;
        // Two tensors for the model, eleven per layer.
        assert_eq!((bytes[8], tensors.len()), (24, 24));
        let data: u64 = tensors.iter().map(|it| it.bytes().next_multiple_of(ALIGNMENT)).sum();
        let weights: u64 = tensors.iter().map(|it| it.dims.iter().product::<u64>()).sum();
        assert!(data > weights / 2 && (data as usize) < bytes.len());
        let header = bytes.len() - data as usize;
        assert!(header.is_multiple_of(ALIGNMENT as usize));
        // The first tensor begins with a block's scale.
        assert_eq!(bytes[header..header + 2], SCALE.to_le_bytes());
    }
}
