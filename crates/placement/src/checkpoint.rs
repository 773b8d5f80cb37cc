//! Derives a model's sizes from its directory: from `config.json` and the headers of its weight
//! files.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use jackalope_families::model_spec;
use jackalope_protocol::counted;
use jackalope_spec::{
    CheckReport, ElementType, SpecError, TensorHeader, TensorHeaders, TensorProblem, parse_config,
};
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::Value;
use thiserror::Error;

use super::model::PlacementModel;

/// Maximum sizes of `config.json` and of a header, in bytes.
const CONFIG_BYTES_MAX: u64 = 16 << 20;
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Reason why a directory cannot be read as a checkpoint.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// A file cannot be read.
    #[error("reading {}: {cause}\nhint: {}", path.display(), read_hint(.cause))]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// `config.json` is not JSON.
    #[error("{}: {reason}\nhint: copy or fetch it again", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with the file.
        reason: String,
    },
    /// `config.json` describes no model that this version knows.
    #[error("{}: {source}\nhint: {}", path.display(), source.hint())]
    Spec {
        /// The file.
        path: PathBuf,
        /// Why this version cannot load the model.
        source: SpecError,
    },
    /// The weight files do not hold the tensors that the model needs.
    #[error("{}: {report}\nhint: {}", dir.display(), tensors_hint(.report))]
    Tensors {
        /// The directory.
        dir: PathBuf,
        /// What is missing, unexpected or different.
        report: CheckReport,
    },
    /// A weight file's header is malformed.
    #[error("{}: {reason}\nhint: copy or fetch it again", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with the header.
        reason: String,
    },
    /// A weight file has another length than its header states.
    #[error("{}: {}, expected {expected_bytes}\nhint: copy or fetch it again", path.display(), counted(found_bytes, "byte"))]
    FileSize {
        /// The file.
        path: PathBuf,
        /// Length in bytes according to the file's header.
        expected_bytes: u64,
        /// Actual length in bytes.
        found_bytes: u64,
    },
    /// The directory has no weight files.
    #[error("{}: no model*.safetensors\nhint: name the directory of a checkpoint in MLX's format", dir.display())]
    NoWeights {
        /// The directory.
        dir: PathBuf,
    },
}

impl PlacementModel {
    /// Reads `config.json` and the headers of all `model*.safetensors` files. Reads no tensor.
    ///
    /// # Errors
    /// If one of the files is missing, cut off or malformed.
    pub fn read(dir: &Path) -> Result<PlacementModel, CheckpointError> {
        let path = dir.join("config.json");
        let config = read_config(&path)?;
        let mut headers = TensorHeaders::new();
        for path in weight_files(dir)? {
            headers.extend(read_header(&path)?);
        }
        let refused = |source| CheckpointError::Spec { path: path.clone(), source };
        let spec = model_spec(&config).map_err(refused)?;
        let incomplete = |report| CheckpointError::Tensors { dir: dir.to_owned(), report };
        let layout = spec.layout(&headers).map_err(incomplete)?;
        Ok(PlacementModel::new(&spec, layout))
    }
}

/// Returns the hint for a file that cannot be read.
fn read_hint(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::UnexpectedEof => "the file is incomplete; copy or fetch it again",
        _ => "name the directory of a checkpoint in MLX's format",
    }
}

/// Returns the hint for weight files that do not hold the tensors that the model needs.
fn tensors_hint(report: &CheckReport) -> &'static str {
    let is_shape = |it: &TensorProblem| matches!(it, TensorProblem::Shape { .. });
    if report.problems.iter().any(is_shape) {
        "config.json contradicts the weights; fetch both again from where the model came from"
    } else {
        "copy or fetch it again"
    }
}

fn read_config(path: &Path) -> Result<Value, CheckpointError> {
    let failed = |cause| CheckpointError::Read { path: path.to_owned(), cause };
    let mut text = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(CONFIG_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
    parse_config(&text).map_err(|err| CheckpointError::Config {
        path: path.to_owned(),
        reason: format!("not valid JSON: {err}"),
    })
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

fn read_header(path: &Path) -> Result<TensorHeaders, CheckpointError> {
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
        _ => Ok(metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| (name, tensor_header(info)))
            .collect()),
    }
}

fn tensor_header(info: &TensorInfo) -> TensorHeader {
    let element_type = ElementType::from_name(&info.dtype.to_string());
    TensorHeader { element_type, shape: info.shape.clone() }
}

#[cfg(test)]
mod tests;
