//! Files for distributed-llama with a checkpoint's dimensions and random weights, which have the blocks of `Q4_0`.
//!
//! Formats: `converter/writer.py`, `converter/convert-hf.py` and `converter/tokenizer-writer.py` of its repository.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use super::gguf::{number, ones, put_repeated, q4_0_bytes, random_blocks};

const MODEL_MAGIC: u32 = 0x0A00_ABCD;
const TOKENIZER_MAGIC: u32 = 0x56_7124;

/// Id of the architecture Qwen3.
const QWEN3: u64 = 0xAB_CD01;

/// Id of the block type Q4_0.
const Q40: u64 = 2;

/// Writes a model with the dimensions of a Qwen3 `config.json`.
pub(super) fn write_model(config: &Value, path: &Path) -> anyhow::Result<()> {
    let dims = Dims::new(config)?;
    let mut file = create(path)?;
    write_header(&mut file, MODEL_MAGIC, &dims.header(config)?)?;
    let (ones, blocks) = (ones(), random_blocks());
    let vector = |file: &mut BufWriter<File>, len: u64| put_repeated(file, &ones, 4 * len);
    vector(&mut file, dims.vocab * dims.hidden)?;
    for _ in 0..dims.layers {
        // q, k, v, o; gate, down, up.
        let heads = [dims.heads, dims.kv_heads, dims.kv_heads, dims.heads];
        for len in heads.into_iter().chain([dims.inner; 3]) {
            put_repeated(&mut file, &blocks, q4_0_bytes(len * dims.hidden))?;
        }
        for len in [dims.head_dim, dims.head_dim, dims.hidden, dims.hidden] {
            vector(&mut file, len)?;
        }
    }
    vector(&mut file, dims.hidden)?;
    put_repeated(&mut file, &blocks, q4_0_bytes(dims.vocab * dims.hidden))?;
    file.flush().with_context(|| format!("writing {}", path.display()))
}

/// Writes a tokenizer with every byte but zero, and many tokens that no text has.
pub(super) fn write_tokenizer(config: &Value, path: &Path) -> anyhow::Result<()> {
    let vocab = number(config, "vocab_size")?;
    let mut file = create(path)?;
    // Version, size, longest token, begin and end of a text.
    let header = [(0, 1), (1, vocab), (2, 16), (3, vocab - 1), (9, 1), (10, 0)];
    write_header(&mut file, TOKENIZER_MAGIC, &header)?;
    file.write_all(&(vocab as u32 - 1).to_le_bytes())?;
    for id in 0..vocab {
        let token = match u8::try_from(id + 1) {
            Ok(byte) => vec![byte],
            Err(_) => format!("\u{1}{id:09}").into_bytes(),
        };
        file.write_all(&(-(id as f32)).to_le_bytes())?;
        file.write_all(&(token.len() as u32).to_le_bytes())?;
        file.write_all(&token)?;
    }
    file.flush().with_context(|| format!("writing {}", path.display()))
}

fn create(path: &Path) -> anyhow::Result<BufWriter<File>> {
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    Ok(BufWriter::new(file))
}

fn write_header(
    file: &mut BufWriter<File>,
    magic: u32,
    entries: &[(u32, u64)],
) -> anyhow::Result<()> {
    file.write_all(&magic.to_le_bytes())?;
    file.write_all(&(8 + 8 * entries.len() as u32).to_le_bytes())?;
    for (key, value) in entries {
        file.write_all(&key.to_le_bytes())?;
        file.write_all(&u32::try_from(*value)?.to_le_bytes())?;
    }
    Ok(())
}

struct Dims {
    hidden: u64,
    inner: u64,
    layers: u64,
    vocab: u64,
    head_dim: u64,
    /// Number of elements of all query heads, and of all key heads.
    heads: u64,
    kv_heads: u64,
}

impl Dims {
    fn new(config: &Value) -> anyhow::Result<Dims> {
        let head_dim = number(config, "head_dim")?;
        Ok(Dims {
            hidden: number(config, "hidden_size")?,
            inner: number(config, "intermediate_size")?,
            layers: number(config, "num_hidden_layers")?,
            vocab: number(config, "vocab_size")?,
            head_dim,
            heads: number(config, "num_attention_heads")? * head_dim,
            kv_heads: number(config, "num_key_value_heads")? * head_dim,
        })
    }

    /// Returns the header's keys and values, as in `writeHeader`.
    fn header(&self, config: &Value) -> anyhow::Result<Vec<(u32, u64)>> {
        let theta = config["rope_theta"].as_f64().context("config.json has no rope_theta")?;
        Ok(vec![
            (0, 0),
            (1, QWEN3),
            (2, self.hidden),
            (3, self.inner),
            (4, self.layers),
            (5, self.heads / self.head_dim),
            (6, self.kv_heads / self.head_dim),
            (7, 0),
            (8, 0),
            (9, self.vocab),
            (10, number(config, "max_position_embeddings")?),
            (11, 1), // SiLU
            (12, theta as u64),
            (13, Q40),
            (19, self.head_dim),
            (20, 6), // an epsilon of 1e-6
        ])
    }
}
