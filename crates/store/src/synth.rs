//! Writes a checkpoint with a real model's dimensions and random weights, so that speed and memory
//! can be measured with real shapes without a download. Its output is noise.

mod tensors;
mod tokenizer;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use jackalope_families::model_spec;
use jackalope_spec::{HeadTable, LayerSpec, SpecError, TensorRole, TokenMapSpec, parse_config};
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::progress::Progress;
use tensors::{Kind, Tensor};

/// Key that marks the configuration of a synthetic checkpoint.
const MARK: &str = "jackalope_synthetic";

const GROUP_SIZE: usize = 64;

/// Largest magnitude of the elements of biases, convolutions and other tensors that are not quantised. Numbers near
/// zero would be slow: processors compute with subnormal ones many times slower.
const VECTOR_LIMIT: f32 = 0.125;

/// Bits of routers, whatever those of the other weights: mlx-lm quantises them in this way.
const ROUTER_BITS: u32 = 8;

/// Sizes of Qwen3, by the number of parameters.
#[derive(Clone, Copy, Debug)]
pub enum Qwen3Size {
    /// 0.6 billion parameters.
    B0_6,
    /// 1.7 billion parameters.
    B1_7,
    /// 4 billion parameters.
    B4,
    /// 8 billion parameters.
    B8,
    /// 30 billion parameters in 128 experts, of which a token uses 3 billion.
    B30A3,
}

/// Reason why no checkpoint was written.
#[derive(Debug, Error)]
pub enum SynthError {
    /// A file cannot be read or written.
    #[error("{doing} {}", .path.display())]
    Io {
        /// What was tried: `reading`, `writing` or `making`.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The configuration is not JSON.
    #[error("{} is not JSON\nhint: give the `config.json` of a model", .path.display())]
    NotJson {
        /// Path of the configuration.
        path: PathBuf,
        /// Why the parser refuses the file.
        source: serde_json::Error,
    },
    /// The configuration is JSON but no object.
    #[error("{} holds no JSON object\nhint: give the `config.json` of a model", .path.display())]
    NoObject {
        /// Path of the configuration.
        path: PathBuf,
    },
    /// The directory holds a checkpoint that was not made here.
    #[error(
        "{} holds another checkpoint\nhint: give a directory of its own with `--out`",
        .dir.display()
    )]
    OtherCheckpoint {
        /// The directory.
        dir: PathBuf,
    },
    /// This version cannot load a model with this configuration.
    #[error("{0}\nhint: {hint}", hint = .0.hint())]
    Spec(SpecError),
}

/// Returns the configuration of a Qwen3 model, with the dimensions of its published checkpoint.
pub fn qwen3(size: Qwen3Size) -> Value {
    let (hidden, mlp, layers, heads, is_tied) = match size {
        Qwen3Size::B0_6 => (1024, 3072, 28, 16, true),
        Qwen3Size::B1_7 => (2048, 6144, 28, 16, true),
        Qwen3Size::B4 => (2560, 9728, 36, 32, true),
        Qwen3Size::B8 => (4096, 12_288, 36, 32, false),
        Qwen3Size::B30A3 => (2048, 6144, 48, 32, false),
    };
    let is_sparse = matches!(size, Qwen3Size::B30A3);
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

/// Reads the configuration of a model.
///
/// # Errors
/// If the file cannot be read, or is no JSON object.
pub fn read_config(path: &Path) -> Result<Value, SynthError> {
    let path_buf = || path.to_owned();
    let text = std::fs::read(path).map_err(|source| SynthError::Io {
        doing: "reading",
        path: path_buf(),
        source,
    })?;
    let config: Value =
        parse_config(&text).map_err(|source| SynthError::NotJson { path: path_buf(), source })?;
    if config.is_object() { Ok(config) } else { Err(SynthError::NoObject { path: path_buf() }) }
}

/// The model to write: its configuration, and its tensors in the order of the file.
struct SyntheticModel {
    config: Value,
    tensors: Vec<Tensor>,
}

impl SyntheticModel {
    /// Describes the model of `config`, quantised to `bits`.
    fn new(mut config: Value, bits: u32) -> Result<SyntheticModel, SynthError> {
        for key in ["quantization", "quantization_config"] {
            config.as_object_mut().map(|fields| fields.remove(key));
        }
        let spec = model_spec(&config).map_err(SynthError::Spec)?;
        let is_tied = spec.head_table == HeadTable::Tied;
        let experts = spec.layers.iter().find_map(LayerSpec::experts);
        let num_experts = experts.map_or(0, |experts| experts.num_experts as u32);
        let (mut tensors, mut quantization) = (Vec::new(), Map::new());
        for tensor in spec.tensors(is_tied).filter(|tensor| tensor.is_in(|_| false)) {
            let width = tensor.shape.last().copied().unwrap_or(0);
            if !tensor.is_quantizable {
                let kind = match tensor.role {
                    TensorRole::Norm => Kind::Ones,
                    TensorRole::RouterTable => Kind::Indices(num_experts),
                    _ => Kind::Spread(VECTOR_LIMIT),
                };
                let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
                tensors.push(Tensor { name, shape, kind });
                continue;
            }
            let bits = match tensor.role {
                // A width that is not a multiple of the group size cannot be quantised.
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
        Ok(SyntheticModel { config, tensors })
    }
}

/// Returns whether the checkpoint in `dir` was made by [`write`](fn@write): its text is meaningless.
pub fn is_synthetic(dir: &Path) -> bool {
    let config = std::fs::read(dir.join("config.json")).ok();
    let config = config.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    config.is_some_and(|config| config.get(MARK).is_some())
}

/// Writes a checkpoint of `config`, quantised to `bits` (16 for bfloat16), into a directory. Returns
/// the number of bytes of its weights.
///
/// # Errors
/// [`SynthError`].
pub fn write(
    dir: &Path,
    config: Value,
    bits: u32,
    progress: &dyn Progress,
) -> Result<u64, SynthError> {
    if dir.join("config.json").exists() && !is_synthetic(dir) {
        return Err(SynthError::OtherCheckpoint { dir: dir.to_owned() });
    }
    let io = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| SynthError::Io { doing, path, source }
    };
    std::fs::create_dir_all(dir).map_err(io("making", dir))?;
    let SyntheticModel { config, tensors } = SyntheticModel::new(config, bits)?;
    let spec = model_spec(&config).map_err(SynthError::Spec)?;
    let num_bytes = write_weights(&dir.join("model.safetensors"), &tensors, progress)?;
    let write = |name: &str, content: String| {
        let path = dir.join(name);
        std::fs::write(&path, content).map_err(io("writing", &path))
    };
    write("tokenizer.json", tokenizer::tokenizer(spec.vocab_size).to_string())?;
    write("tokenizer_config.json", tokenizer::config().to_string())?;
    if let Some(&TokenMapSpec { num_numbers, .. }) = spec.token_map() {
        let tokens = 0..num_numbers.max(spec.vocab_size);
        let numbers: Vec<usize> = tokens.map(|token| token % num_numbers).collect();
        write(TokenMapSpec::FILE, json!(numbers).to_string())?;
    }
    // Written last, so that a directory with a configuration is complete.
    write("config.json", format!("{config:#}\n"))?;
    Ok(num_bytes)
}

/// Writes a safetensors file, completely or not at all.
fn write_weights(
    path: &Path,
    tensors: &[Tensor],
    progress: &dyn Progress,
) -> Result<u64, SynthError> {
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
    let failed = |source| SynthError::Io { doing: "writing", path: partial.clone(), source };
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&partial).map_err(failed)?);
    file.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
    file.write_all(header.as_bytes()).map_err(failed)?;
    let progress = progress.begin("writing", offset as u64);
    for (seed, tensor) in tensors.iter().enumerate() {
        tensor.write(seed as u64, &mut file).map_err(failed)?;
        progress.add(tensor.num_bytes() as u64);
    }
    drop(progress);
    file.into_inner().map_err(io::IntoInnerError::into_error).map_err(failed)?;
    std::fs::rename(&partial, path).map_err(failed)?;
    Ok(offset as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_subnormal() {
        let config = json!({
            "model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4,
            "num_experts_per_tok": 2, "sliding_window": 128, "vocab_size": 512, "rms_norm_eps": 1e-5,
            "layer_types": ["sliding_attention", "full_attention"], "rope_theta": 150_000,
            "max_position_embeddings": 4096, "tie_word_embeddings": false,
        });
        let model = SyntheticModel::new(config, 4).unwrap();
        let halves = model.tensors.iter().filter(|tensor| tensor.kind.dtype() == "BF16");
        for tensor in halves {
            let mut content = Vec::new();
            tensor.write(7, &mut content).unwrap();
            for half in content.as_chunks::<2>().0 {
                let value = f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16);
                assert!(value == 0.0 || value.is_normal(), "{value:e} in {}", tensor.name);
            }
        }
        assert!(model.tensors.iter().any(|tensor| tensor.name.ends_with("experts.down_proj.bias")));
    }

    #[test]
    fn the_sizes_are_those_of_the_real_models() {
        // Numbers of parameters without the padding of quantisation, from the model cards.
        let expected = [
            (Qwen3Size::B0_6, 596_049_920),
            (Qwen3Size::B1_7, 1_720_574_976),
            (Qwen3Size::B4, 4_022_468_096),
            (Qwen3Size::B8, 8_190_735_360),
            (Qwen3Size::B30A3, 30_532_122_624),
        ];
        for (size, expected) in expected {
            let model = SyntheticModel::new(qwen3(size), 16).unwrap();
            let found: usize =
                model.tensors.iter().map(|it| it.shape.iter().product::<usize>()).sum();
            assert_eq!(found, expected, "{size:?}");
        }
    }
}
