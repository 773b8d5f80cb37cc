//! `jackalope synth`: writes a checkpoint with a real model's dimensions and random weights, so
//! that speed and memory can be measured with real shapes without a download. Its output is noise.

mod tensors;
mod tokenizer;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, ensure};
use jackalope_spec::{HeadTable, ModelSpec, TensorRole};
use serde_json::{Map, Value, json};

use crate::args::{SynthArgs, SynthSize};
use crate::output;
use crate::progress::Writing;
use tensors::{Kind, Tensor};

/// Key that marks the configuration of a synthetic checkpoint.
const MARK: &str = "jackalope_synthetic";

const GROUP_SIZE: usize = 64;

/// Bits of routers, whatever those of the other weights: mlx-lm quantises them in this way.
const ROUTER_BITS: u32 = 8;

/// Returns the configuration of a Qwen3 model, with the dimensions of its published checkpoint.
fn qwen3(size: SynthSize) -> Value {
    let (hidden, mlp, layers, heads, is_tied) = match size {
        SynthSize::B0_6 => (1024, 3072, 28, 16, true),
        SynthSize::B1_7 => (2048, 6144, 28, 16, true),
        SynthSize::B4 => (2560, 9728, 36, 32, true),
        SynthSize::B8 => (4096, 12_288, 36, 32, false),
        SynthSize::B30A3 => (2048, 6144, 48, 32, false),
    };
    let is_sparse = matches!(size, SynthSize::B30A3);
    let mut config = json!({
        "model_type": if is_sparse { "qwen3_moe" } else { "qwen3" }, "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": if is_sparse { 4 } else { 8 },
        "head_dim": 128, "vocab_size": 151_936, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
        "attention_bias": false, "max_position_embeddings": 40_960,
        "tie_word_embeddings": is_tied,
    });
    if is_sparse {
        let experts = json!({
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true,
        });
        let fields = experts.as_object().into_iter().flatten();
        fields.for_each(|(name, value)| config[name] = value.clone());
    }
    config
}

/// The model to write: its configuration, and its tensors in the order of the file.
struct Model {
    config: Value,
    tensors: Vec<Tensor>,
}

impl Model {
    /// Describes the model of `config`, quantised to `bits`.
    fn new(mut config: Value, bits: u32) -> anyhow::Result<Model> {
        for key in ["quantization", "quantization_config"] {
            config.as_object_mut().map(|fields| fields.remove(key));
        }
        let spec = ModelSpec::from_config(&config)?;
        let is_tied = spec.head_table == HeadTable::Tied;
        let (mut tensors, mut quantization) = (Vec::new(), Map::new());
        for tensor in spec.tensors(is_tied) {
            let width = tensor.shape.last().copied().unwrap_or(0);
            if !tensor.is_quantizable {
                let kind =
                    if tensor.role == TensorRole::Norm { Kind::Ones } else { Kind::Near(0.0) };
                let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
                tensors.push(Tensor { name, shape, kind });
                continue;
            }
            let bits = match tensor.role {
                // Groups do not fit.
                _ if !width.is_multiple_of(GROUP_SIZE) => 16,
                TensorRole::Router => bits.max(ROUTER_BITS),
                _ => bits,
            };
            let module = tensor.module();
            if bits == ROUTER_BITS && tensor.role == TensorRole::Router {
                quantization
                    .insert(module.to_owned(), json!({"group_size": GROUP_SIZE, "bits": bits}));
            }
            tensors.extend(tensors::matrix(module, &tensor.shape, bits, GROUP_SIZE));
        }
        if bits < 16 {
            quantization.insert("group_size".to_owned(), json!(GROUP_SIZE));
            quantization.insert("bits".to_owned(), json!(bits));
            config["quantization"] = Value::Object(quantization);
        }
        config["torch_dtype"] = json!("bfloat16");
        config["eos_token_id"] = json!(tokenizer::END);
        config[MARK] =
            json!("random weights: made by `jackalope synth` to measure speed, useless otherwise");
        Ok(Model { config, tensors })
    }
}

/// Returns the configuration that the arguments choose.
fn chosen(args: &SynthArgs) -> anyhow::Result<Value> {
    let mut config = match &args.config {
        None => qwen3(args.size),
        Some(path) => {
            let text =
                std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
            let config: Value = serde_json::from_slice(&text)
                .with_context(|| format!("{} is not JSON", path.display()))?;
            ensure!(config.is_object(), "{} holds no JSON object", path.display());
            config
        }
    };
    if let Some(layers) = args.layers {
        config["num_hidden_layers"] = json!(layers);
    }
    Ok(config)
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
    let Model { config, tensors } = Model::new(chosen(args)?, args.bits)?;
    let vocab_size = config["vocab_size"].as_u64().context("`vocab_size` is missing")?;
    let num_bytes = write_weights(&dir.join("model.safetensors"), &tensors)?;
    let write = |name: &str, content: String| {
        let path = dir.join(name);
        std::fs::write(&path, content).with_context(|| format!("writing {}", path.display()))
    };
    write("tokenizer.json", tokenizer::tokenizer(vocab_size as usize).to_string())?;
    write("tokenizer_config.json", tokenizer::config().to_string())?;
    // Written last, so that a directory with a configuration is complete.
    write("config.json", format!("{config:#}\n"))?;
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
            (SynthSize::B30A3, 30_532_122_624),
        ];
        for (size, expected) in expected {
            let model = Model::new(qwen3(size), 16).unwrap();
            let found: usize =
                model.tensors.iter().map(|it| it.shape.iter().product::<usize>()).sum();
            assert_eq!(found, expected, "{size:?}");
        }
    }
}
