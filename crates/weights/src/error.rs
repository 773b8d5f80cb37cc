//! Errors of loading a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

use jackalope_protocol::counted;
use jackalope_spec::{CheckReport, SpecError};
use thiserror::Error;

use crate::checkpoint::OtherContent;

/// Error of a checkpoint that cannot be loaded, or of a machine that cannot load it.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A file or directory cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The content of a file differs from the expected checkpoint.
    #[error("{path}: {reason}", path = path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Description of the difference.
        reason: String,
    },
    /// A matrix in GPTQ's format has its inputs in another order than its scales.
    #[error(
        "g_idx of a matrix puts input {input} into group {group}: the groups are not in order\n\
         hint: take a checkpoint that was quantised without desc_act, or convert the original with mlx_lm.convert"
    )]
    InputOrder {
        /// The first input in another group.
        input: usize,
        /// The group of it.
        group: i32,
    },
    /// The directory has no weights.
    #[error(
        "no model*.safetensors in {dir}\n\
         hint: --model takes the directory of a downloaded checkpoint in MLX or Hugging Face format",
        dir = dir.display()
    )]
    NoWeights {
        /// Path of the directory.
        dir: PathBuf,
    },
    /// `config.json` is not JSON.
    #[error("{path}: {reason}", path = path.display())]
    Config {
        /// Path of the file.
        path: PathBuf,
        /// Message of the parser.
        reason: String,
    },
    /// `config.json` describes no model that this version computes.
    #[error("{path}: {source}", path = path.display())]
    Spec {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        source: SpecError,
    },
    /// The weight files do not hold the tensors that the model needs.
    #[error(
        "{dir}: {report}\n\
         hint: a weight file may be missing, or config.json belongs to another checkpoint; one in \
         another layout can be converted with mlx_lm.convert",
        dir = dir.display()
    )]
    Tensors {
        /// Directory of the checkpoint.
        dir: PathBuf,
        /// What is missing, unexpected or different.
        report: CheckReport,
    },
    /// The header of a weight file is not that of a safetensors file.
    #[error(
        "{path}: not a safetensors file: {reason}\n\
         hint: download the file again",
        path = path.display()
    )]
    Header {
        /// Path of the file.
        path: PathBuf,
        /// Reason why the header is invalid.
        reason: String,
    },
    /// A weight file is shorter or longer than its header describes.
    #[error(
        "{path}: file has {found}, its header describes {expected_bytes}\n\
         hint: the download was probably cut off; download the file again",
        path = path.display(),
        found = counted(found_bytes, "byte")
    )]
    FileSize {
        /// Path of the file.
        path: PathBuf,
        /// Size of header and tensors together.
        expected_bytes: u64,
        /// Size of the file.
        found_bytes: u64,
    },
    /// Two files hold the same tensor.
    #[error(
        "tensor {tensor} is in {first} and in {second}\n\
         hint: the directory seems to hold two checkpoints; keep one",
        first = first.display(),
        second = second.display()
    )]
    DuplicateTensor {
        /// Name of the tensor.
        tensor: String,
        /// Path of one file.
        first: PathBuf,
        /// Path of the other file.
        second: PathBuf,
    },
    /// The split does not fit the number of ranks.
    #[error(
        "a split into {} for {}\n\
         hint: --share and --layers take one positive number per rank, for instance 3,1",
        counted(num_parts, "part"),
        counted(num_ranks, "rank")
    )]
    Split {
        /// Number of parts of the split.
        num_parts: usize,
        /// Number of ranks.
        num_ranks: usize,
    },
    /// The split leaves a rank without a part.
    #[error(
        "the split gives a rank nothing\n\
         hint: --share and --layers take one positive number per rank, for instance 3,1"
    )]
    EmptyPart,
    /// The pipeline is for a model with another number of layers.
    #[error(
        "a pipeline of {layers:?} layers, but the model has {num_layers}\n\
         hint: the numbers of --layers make up {num_layers} together"
    )]
    Stages {
        /// Number of layers of each rank.
        layers: Vec<u32>,
        /// Number of layers of the model.
        num_layers: usize,
    },
    /// The pipeline separates a layer from the one whose keys and values it reads.
    #[error(
        "a pipeline of {layers:?} layers, but layer {reader} reads the keys and values of layer \
         {source_layer}\n\
         hint: give both to the same rank; the last number of --layers is for the first layers"
    )]
    Separated {
        /// Number of layers of each rank.
        layers: Vec<u32>,
        /// Number of the layer that reads.
        reader: usize,
        /// Number of the layer that it reads.
        source_layer: usize,
    },
    /// The device failed.
    #[error("{0}")]
    Device(#[from] jackalope_mlx::Error),
}

impl LoadError {
    /// Creates the error for a file that cannot be read or has unexpected content.
    pub fn read(path: &Path, source: io::Error) -> LoadError {
        let path = path.to_path_buf();
        let other = source.get_ref().and_then(|err| err.downcast_ref::<OtherContent>());
        match other.map(|it| it.reason.clone()) {
            Some(reason) => LoadError::Content { path, reason },
            None => LoadError::Read { path, source },
        }
    }

    /// Whether a new process with the same files may succeed: the device failed, or the source of
    /// the files could not be reached, so that the checkpoint is not at fault.
    pub fn is_passing(&self) -> bool {
        match self {
            LoadError::Device(_) => true,
            LoadError::Read { source, .. } => source.kind() == io::ErrorKind::ConnectionAborted,
            _ => false,
        }
    }
}
