//! Derives a model's sizes from its directory: from `config.json` and the headers of its weight
//! files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use jackalope_protocol::split::{HeadCounts, inner_unit};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::Value;
use thiserror::Error;

use super::model::{KvShape, LayerBytes, ModelFacts, PartCut, PartKind, Quantization, WeightPart};

/// Maximum sizes of `config.json` and of a header, in bytes.
const CONFIG_BYTES_MAX: u64 = 16 << 20;
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Maximum dimension, and maximum number of layers and of heads: far above those of any model.
const DIMENSION_MAX: u64 = 1 << 24;
const COUNT_MAX: u64 = 1 << 16;

/// Context length to assume if the configuration does not state it.
const CONTEXT_TOKENS_UNKNOWN: u32 = 1 << 20;

/// Reason why a directory cannot be read as a checkpoint.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// A file cannot be read.
    #[error("reading {}: {cause}\nhint: name the directory of a checkpoint in MLX's format", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// `config.json` is not a valid configuration.
    #[error("{}: {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A weight file's header is malformed.
    #[error("{}: {reason}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A weight file has another length than its header states.
    #[error("{}: {found_bytes} bytes, expected {expected_bytes}\nhint: copy or fetch it again", path.display())]
    FileSize {
        /// The file.
        path: PathBuf,
        /// Length according to its header.
        expected_bytes: u64,
        /// Actual length.
        found_bytes: u64,
    },
    /// The directory has no weight files.
    #[error("{}: no model*.safetensors\nhint: name the directory of a checkpoint in MLX's format", dir.display())]
    NoWeights {
        /// The directory.
        dir: PathBuf,
    },
}

impl ModelFacts {
    /// Reads `config.json` and the headers of all `model*.safetensors` files. Reads no tensor.
    ///
    /// # Errors
    /// If one of the files is missing, cut off or malformed.
    pub fn read(dir: &Path) -> Result<ModelFacts, CheckpointError> {
        let config = read_config(&dir.join("config.json"))?;
        let mut tensors = BTreeMap::new();
        for path in weight_files(dir)? {
            tensors.extend(read_header(&path)?);
        }
        Ok(facts(&Config(config), &tensors))
    }
}

type Tensors = BTreeMap<String, TensorInfo>;

fn read_config(path: &Path) -> Result<Value, CheckpointError> {
    let failed = |cause| CheckpointError::Read { path: path.to_owned(), cause };
    let mut text = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(CONFIG_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
    let config: Value = serde_json::from_slice(&text).map_err(|err| CheckpointError::Config {
        path: path.to_owned(),
        reason: format!("not valid JSON: {err}"),
    })?;
    if config.get("model_type").is_some_and(Value::is_string) {
        return Ok(config);
    }
    let reason = "no model_type".to_owned();
    Err(CheckpointError::Config { path: path.to_owned(), reason })
}

fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let failed = |cause| CheckpointError::Read { path: dir.to_owned(), cause };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let is_weights = |name: &str| name.starts_with("model") && name.ends_with(".safetensors");
        if name.to_str().is_some_and(is_weights) {
            paths.push(dir.join(name));
        }
    }
    paths.sort();
    if paths.is_empty() {
        Err(CheckpointError::NoWeights { dir: dir.to_owned() })
    } else {
        Ok(paths)
    }
}

fn read_header(path: &Path) -> Result<Tensors, CheckpointError> {
    let failed = |cause| CheckpointError::Read { path: path.to_owned(), cause };
    let malformed = |reason: String| CheckpointError::Header { path: path.to_owned(), reason };
    let mut file = File::open(path).map_err(failed)?;
    let found_bytes = file.metadata().map_err(failed)?.len();
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix).map_err(failed)?;
    let header_bytes = u64::from_le_bytes(prefix);
    if HEADER_BYTES_MAX < header_bytes {
        return Err(malformed(format!("a header of {header_bytes} bytes")));
    }
    let mut header = Vec::new();
    (&mut file).take(header_bytes).read_to_end(&mut header).map_err(failed)?;
    let cut_off = |expected_bytes| {
        let path = path.to_owned();
        Err(CheckpointError::FileSize { path, expected_bytes, found_bytes })
    };
    if (header.len() as u64) < header_bytes {
        return cut_off(8 + header_bytes);
    }
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|err| malformed(err.to_string()))?;
    match (8 + header_bytes).saturating_add(metadata.data_len() as u64) {
        expected_bytes if expected_bytes != found_bytes => cut_off(expected_bytes),
        _ => Ok(metadata.tensors().into_iter().map(|(name, it)| (name, it.clone())).collect()),
    }
}

/// Content of `config.json`. Vision models have the numbers of their text part one level below.
struct Config(Value);

impl Config {
    fn find(&self, name: &str) -> Option<&Value> {
        let top = self.0.get(name).filter(|value| !value.is_null());
        top.or_else(|| self.0.get("text_config")?.get(name))
    }

    fn number(&self, name: &str, max: u64) -> Option<usize> {
        let number = self.find(name)?.as_u64().filter(|number| (1..=max).contains(number))?;
        usize::try_from(number).ok()
    }

    fn dimension(&self, name: &str) -> Option<usize> {
        self.number(name, DIMENSION_MAX)
    }

    fn count(&self, name: &str) -> Option<usize> {
        self.number(name, COUNT_MAX)
    }

    /// Returns the number of layers with a KV cache; layers with linear attention keep a state of
    /// fixed size instead.
    fn num_kv_layers(&self, num_layers: usize) -> usize {
        if let Some(types) = self.find("layer_types").and_then(Value::as_array) {
            let is_linear = |kind: &&Value| kind.as_str().is_some_and(|it| it.contains("linear"));
            return num_layers.saturating_sub(types.iter().filter(is_linear).count());
        }
        self.count("full_attention_interval").map_or(num_layers, |interval| num_layers / interval)
    }

    fn active_experts(&self) -> f64 {
        let names = ["num_experts", "n_routed_experts", "num_local_experts"];
        let all = names.iter().find_map(|name| self.count(name));
        match (self.count("num_experts_per_tok"), all) {
            (Some(active), Some(all)) => (active as f64 / all as f64).min(1.0),
            _ => 1.0,
        }
    }

    fn quantization(&self) -> Option<Quantization> {
        let format = self.0.get("quantization").or_else(|| self.0.get("quantization_config"))?;
        let number = |name: &str| u32::try_from(format.get(name)?.as_u64()?).ok();
        Some(Quantization { bits: number("bits")?, group_size: number("group_size")? })
    }
}

/// Combines the configuration with the tensors' sizes.
fn facts(config: &Config, tensors: &Tensors) -> ModelFacts {
    let num_layers = config.count("num_hidden_layers").unwrap_or_else(|| count_layers(tensors));
    let hidden_size = config.dimension("hidden_size").unwrap_or(0);
    let num_heads = config.count("num_attention_heads").unwrap_or(1);
    let head_dim = config.dimension("head_dim").unwrap_or(hidden_size / num_heads).max(1);
    let element_bytes = element_bytes(tensors);
    let kv = match (config.dimension("kv_lora_rank"), config.dimension("qk_rope_head_dim")) {
        (Some(rank), rope) => KvShape::Whole {
            bytes_per_token: (num_layers * (rank + rope.unwrap_or(0))) as u64 * element_bytes,
        },
        _ => KvShape::PerHead { num_layers: config.num_kv_layers(num_layers) },
    };
    let stated = config.find("tie_word_embeddings").and_then(Value::as_bool);
    let sorter = Sorter {
        heads: heads(config, tensors, head_dim),
        head_dim,
        intermediate_size: config.dimension("intermediate_size").unwrap_or(0),
        is_tied: stated.unwrap_or_else(|| !tensors.keys().any(|it| it.ends_with("lm_head.weight"))),
        tensors,
    };
    let (parts, layers, is_exact) = sorter.parts(num_layers);
    let context = config.number("max_position_embeddings", u64::from(u32::MAX / 2));
    ModelFacts {
        architecture: config.0["model_type"].as_str().unwrap_or_default().to_owned(),
        num_layers,
        hidden_size,
        heads: sorter.heads,
        head_dim,
        intermediate_size: sorter.intermediate_size,
        vocab_size: config.dimension("vocab_size").unwrap_or(1),
        context_tokens: context
            .and_then(|tokens| u32::try_from(tokens).ok())
            .unwrap_or(CONTEXT_TOKENS_UNKNOWN),
        quantization: config.quantization(),
        element_bytes,
        kv,
        parts,
        layers,
        active_experts: config.active_experts(),
        is_tied: sorter.is_tied,
        is_exact,
    }
}

fn count_layers(tensors: &Tensors) -> usize {
    let layers = tensors.keys().filter_map(|name| in_layer(name)).map(|(layer_idx, _)| layer_idx);
    layers.max().map_or(0, |last| last + 1)
}

/// Returns the element size of activations and caches: that of a norm, which is never quantised.
fn element_bytes(tensors: &Tensors) -> u64 {
    let norm = tensors.iter().find(|(name, _)| name.ends_with("norm.weight"));
    if norm.is_some_and(|(_, info)| info.dtype == Dtype::F32) { 4 } else { 2 }
}

/// Returns the attention heads, with cuts between the groups in which the output projection is
/// quantised.
fn heads(config: &Config, tensors: &Tensors, head_dim: usize) -> Option<HeadCounts> {
    let heads = config.count("num_attention_heads")?;
    let kv_heads = config.count("num_key_value_heads").unwrap_or(heads);
    let scales =
        tensors.iter().find(|(name, _)| name.ends_with("layers.0.self_attn.o_proj.scales"));
    let group_size = match scales.and_then(|(_, scales)| scales.shape.last()) {
        Some(&groups) => (heads * head_dim).checked_div(groups)?,
        None => 1,
    };
    let is_whole = heads.is_multiple_of(kv_heads) && 0 < group_size;
    is_whole.then(|| HeadCounts::new(heads, kv_heads, head_dim, group_size))
}

/// Splits a tensor's name into its layer number and the rest.
fn in_layer(name: &str) -> Option<(usize, &str)> {
    let (_, rest) = name.split_once("layers.")?;
    let (layer_idx, rest) = rest.split_once('.')?;
    let layer_idx = layer_idx.parse().ok().filter(|&idx| (idx as u64) < COUNT_MAX)?;
    Some((layer_idx, rest))
}

/// Sorts tensors by their purpose and by how ranks cut them.
struct Sorter<'a> {
    heads: Option<HeadCounts>,
    head_dim: usize,
    intermediate_size: usize,
    is_tied: bool,
    tensors: &'a Tensors,
}

impl Sorter<'_> {
    /// Returns the parts, the layers, and whether every tensor is of a known kind, so that the
    /// sizes are exact.
    fn parts(&self, num_layers: usize) -> (Vec<WeightPart>, Vec<LayerBytes>, bool) {
        let mut sums: BTreeMap<(PartKind, PartCut), u64> = BTreeMap::new();
        let mut layers = vec![LayerBytes::default(); num_layers];
        let mut is_exact = true;
        for (name, info) in self.tensors {
            let is_second_copy = self.is_tied && name.contains("lm_head.");
            if is_second_copy || name.ends_with("rotary_emb.inv_freq") {
                continue;
            }
            let (kind, cut) = self.sort(name, info);
            is_exact &= cut != PartCut::Anywhere && !is_strange(name);
            let (start, end) = info.data_offsets;
            let bytes = (end - start) as u64;
            *sums.entry((kind, cut)).or_default() += bytes;
            if let Some(layer) = in_layer(name).and_then(|(layer_idx, _)| layers.get_mut(layer_idx))
            {
                layer.all += bytes;
                layer.experts += if kind == PartKind::Experts { bytes } else { 0 };
            }
        }
        let parts = sums.into_iter().map(|((kind, cut), bytes)| WeightPart { kind, cut, bytes });
        (parts.collect(), layers, is_exact)
    }

    fn sort(&self, name: &str, info: &TensorInfo) -> (PartKind, PartCut) {
        let Some((_, rest)) = in_layer(name) else {
            return match name {
                _ if name.contains("embed_tokens.") => (PartKind::Embedding, PartCut::Vocab),
                _ if name.contains("lm_head.") => (PartKind::Head, PartCut::Vocab),
                _ => (PartKind::Other, PartCut::Whole),
            };
        };
        if rest.contains("norm") {
            return (PartKind::Other, PartCut::Whole);
        }
        let (module, tensor) = rest.rsplit_once('.').unwrap_or((rest, ""));
        let queries = self.heads.map(|counts| counts.heads * self.head_dim);
        let keys = self.heads.map(|counts| counts.kv_heads * self.head_dim);
        let rows = info.shape.first().copied();
        let rows_are =
            |wanted: Option<usize>, cut| if rows == wanted { cut } else { PartCut::Anywhere };
        let is_sum_bias = tensor == "bias";
        match module {
            "self_attn.q_proj" => (PartKind::Attention, rows_are(queries, PartCut::Queries)),
            "self_attn.k_proj" | "self_attn.v_proj" => {
                (PartKind::Attention, rows_are(keys, PartCut::Keys))
            }
            "self_attn.o_proj" | "mlp.down_proj" if is_sum_bias => {
                (PartKind::Other, PartCut::Whole)
            }
            "self_attn.o_proj" if queries.is_some() => (PartKind::Attention, PartCut::Queries),
            "mlp.gate_proj" | "mlp.up_proj" => {
                let inner = self.inner(name, module);
                (PartKind::Mlp, rows_are(Some(self.intermediate_size), inner))
            }
            "mlp.down_proj" => (PartKind::Mlp, self.inner(name, module)),
            _ => unknown(module, info),
        }
    }

    /// Returns how a feed-forward block's inner dimension is cut: between the groups in which its
    /// `down_proj` is quantised.
    fn inner(&self, name: &str, module: &str) -> PartCut {
        let full = self.intermediate_size;
        let prefix = name.split(module).next().unwrap_or_default();
        let scales = self.tensors.get(&format!("{prefix}mlp.down_proj.scales"));
        let groups = scales.and_then(|scales| scales.shape.last()).copied();
        match groups.map(|groups| full.checked_div(groups)) {
            None if 0 < full => PartCut::Inner { full, unit: inner_unit(full, None) },
            Some(Some(group)) if 0 < group => {
                PartCut::Inner { full, unit: inner_unit(full, Some(group)) }
            }
            _ => PartCut::Anywhere,
        }
    }
}

/// Classifies a layer's tensor that no supported architecture has.
fn unknown(module: &str, info: &TensorInfo) -> (PartKind, PartCut) {
    let kind = match module {
        _ if module.contains("expert") || module.contains("switch_mlp") => PartKind::Experts,
        _ if module.contains("attn") => PartKind::Attention,
        _ if module.contains("mlp") => PartKind::Mlp,
        _ => PartKind::Other,
    };
    let is_matrix = 1 < info.shape.len();
    (kind, if is_matrix { PartCut::Anywhere } else { PartCut::Whole })
}

/// Returns true for tensors of model parts that do more than continue text.
fn is_strange(name: &str) -> bool {
    ["vision", "visual", "audio", "projector", "mtp"].iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests;
