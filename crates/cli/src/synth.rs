//! `jackalope synth`: writes a checkpoint with a real model's dimensions and random weights, so
//! that speed and memory can be measured with real shapes without a download. Its output is noise.

mod tensors;
mod tokenizer;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};

use crate::args::{SynthArch, SynthArgs, SynthSize};
use crate::output;
use crate::progress::Writing;
use tensors::{Kind, Tensor};

/// Key that marks the configuration of a synthetic checkpoint.
const MARK: &str = "jackalope_synthetic";

const GROUP_SIZE: usize = 64;
const CONTEXT_TOKENS: usize = 40_960;

/// Dimensions of the Qwen3 models, from the `config.json` of their checkpoints.
#[derive(Clone, Copy, Debug)]
struct Dimensions {
    hidden: usize,
    mlp: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    is_tied: bool,
}

impl Dimensions {
    fn of(arch: SynthArch, size: SynthSize) -> Dimensions {
        let SynthArch::Qwen3 = arch;
        let (hidden, mlp, layers, heads, is_tied) = match size {
            SynthSize::B0_6 => (1024, 3072, 28, 16, true),
            SynthSize::B1_7 => (2048, 6144, 28, 16, true),
            SynthSize::B4 => (2560, 9728, 36, 32, true),
            SynthSize::B8 => (4096, 12_288, 36, 32, false),
        };
        let (kv_heads, head_dim, vocab) = (8, 128, 151_936);
        Dimensions { hidden, mlp, layers, heads, kv_heads, head_dim, vocab, is_tied }
    }

    fn config(&self, bits: u32) -> Value {
        let mut config = json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
            "hidden_size": self.hidden, "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "vocab_size": self.vocab, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
            "attention_bias": false, "max_position_embeddings": CONTEXT_TOKENS,
            "tie_word_embeddings": self.is_tied, "torch_dtype": "bfloat16",
            "eos_token_id": tokenizer::END,
            MARK: "random weights: made by `jackalope synth` to measure speed, useless otherwise",
        });
        if bits < 16 {
            config["quantization"] = json!({"group_size": GROUP_SIZE, "bits": bits});
        }
        config
    }

    /// Returns all tensors in the order of the file.
    fn tensors(&self, bits: u32) -> Vec<Tensor> {
        let mut all = Vec::new();
        let mut matrix = |name: &str, output: usize, input: usize| {
            all.extend(tensors::matrix(name, (output, input), bits, GROUP_SIZE));
        };
        matrix("model.embed_tokens", self.vocab, self.hidden);
        if !self.is_tied {
            matrix("lm_head", self.vocab, self.hidden);
        }
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        for layer in 0..self.layers {
            let mut part = |name: &str, output, input| {
                matrix(&format!("model.layers.{layer}.{name}"), output, input);
            };
            part("self_attn.q_proj", q, self.hidden);
            part("self_attn.k_proj", kv, self.hidden);
            part("self_attn.v_proj", kv, self.hidden);
            part("self_attn.o_proj", self.hidden, q);
            part("mlp.gate_proj", self.mlp, self.hidden);
            part("mlp.up_proj", self.mlp, self.hidden);
            part("mlp.down_proj", self.hidden, self.mlp);
        }
        let mut norm = |name: String, width: usize| {
            all.push(Tensor { name: name + ".weight", shape: vec![width], kind: Kind::Ones });
        };
        for layer in 0..self.layers {
            norm(format!("model.layers.{layer}.input_layernorm"), self.hidden);
            norm(format!("model.layers.{layer}.post_attention_layernorm"), self.hidden);
            norm(format!("model.layers.{layer}.self_attn.q_norm"), self.head_dim);
            norm(format!("model.layers.{layer}.self_attn.k_norm"), self.head_dim);
        }
        norm("model.norm".to_owned(), self.hidden);
        all
    }
}

/// Whether the checkpoint in `dir` was made by [`run`]: its text is meaningless.
pub(crate) fn is_synthetic(dir: &Path) -> bool {
    let config = std::fs::read(dir.join("config.json")).ok();
    let config = config.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    config.is_some_and(|config| config.get(MARK).is_some())
}

pub(crate) fn run(args: &SynthArgs) -> anyhow::Result<()> {
    let dir = &args.out;
    let config_path = dir.join("config.json");
    ensure!(
        !config_path.exists() || is_synthetic(dir),
        "{} holds another checkpoint\nhint: give a directory of its own with `--out`",
        dir.display()
    );
    std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    let dimensions = Dimensions::of(args.arch, args.size);
    let num_bytes = write_weights(&dir.join("model.safetensors"), &dimensions.tensors(args.bits))?;
    let write = |name: &str, content: String| {
        let path = dir.join(name);
        std::fs::write(&path, content).with_context(|| format!("writing {}", path.display()))
    };
    write("tokenizer.json", tokenizer::tokenizer(dimensions.vocab).to_string())?;
    write("tokenizer_config.json", tokenizer::config().to_string())?;
    // Written last, so that a directory with a configuration is complete.
    write("config.json", format!("{:#}\n", dimensions.config(args.bits)))?;
    if args.json {
        return Ok(output::line(json!({
            "model": dir, "bits": args.bits, "weights_bytes": num_bytes, "random_weights": true,
        }))?);
    }
    Ok(output::line(format_args!(
        "{}: random weights, {:.1} GB\n  measure it   jackalope bench --model {}",
        dir.display(),
        num_bytes as f64 / 1e9,
        dir.display()
    ))?)
}

/// Writes a safetensors file, completely or not at all.
fn write_weights(path: &Path, tensors: &[Tensor]) -> anyhow::Result<u64> {
    let (mut header, mut offset) = (Map::new(), 0);
    for tensor in tensors {
        let end = offset + tensor.num_bytes();
        let entry = json!({
            "dtype": tensor.kind.dtype(), "shape": tensor.shape, "data_offsets": [offset, end]
        });
        header.insert(tensor.name.clone(), entry);
        offset = end;
    }
    let mut header = Value::Object(header).to_string();
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));

    let partial = path.with_extension("partial");
    let writing = || format!("writing {}", partial.display());
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&partial).with_context(writing)?);
    file.write_all(&(header.len() as u64).to_le_bytes()).with_context(writing)?;
    file.write_all(header.as_bytes()).with_context(writing)?;
    let progress = Writing::new(offset as u64);
    for (seed, tensor) in tensors.iter().enumerate() {
        tensor.write(seed as u64, &mut file).with_context(writing)?;
        progress.add(tensor.num_bytes() as u64);
    }
    progress.finish();
    file.into_inner().map_err(std::io::IntoInnerError::into_error).with_context(writing)?;
    std::fs::rename(&partial, path).with_context(|| format!("writing {}", path.display()))?;
    Ok(offset as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_are_those_of_the_real_models() {
        // Numbers of parameters without the padding of quantisation, from the model cards.
        let expected = [
            (SynthSize::B0_6, 596_049_920),
            (SynthSize::B1_7, 1_720_574_976),
            (SynthSize::B4, 4_022_468_096),
            (SynthSize::B8, 8_190_735_360),
        ];
        for (size, expected) in expected {
            let tensors = Dimensions::of(SynthArch::Qwen3, size).tensors(16);
            let found: usize = tensors.iter().map(|it| it.shape.iter().product::<usize>()).sum();
            assert_eq!(found, expected, "{size:?}");
        }
    }
}
