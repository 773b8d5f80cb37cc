//! Errors of loading a checkpoint.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::checkpoint::OtherContent;

/// Maximum number of leftover tensors named in a message; the others are counted.
const LEFTOVERS_SHOWN: usize = 8;

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
    /// `config.json` is not JSON, lacks a field, or holds a value of another type.
    #[error("{path}: {reason}", path = path.display())]
    Config {
        /// Path of the file.
        path: PathBuf,
        /// Message of the parser.
        reason: String,
    },
    /// A field of `config.json` has an invalid value.
    #[error("{path}: `{field}` is {found}, expected {expected}", path = path.display())]
    ConfigValue {
        /// Path of the file.
        path: PathBuf,
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        found: String,
        /// Description of valid values.
        expected: String,
    },
    /// The architecture is not supported.
    #[error(
        "unsupported architecture: `{found}`\n\
         hint: supported are {supported}",
        supported = List(supported)
    )]
    UnsupportedArchitecture {
        /// `model_type` of the checkpoint.
        found: String,
        /// Supported architectures.
        supported: &'static [&'static str],
    },
    /// A variant of a supported architecture is not supported.
    #[error(
        "{path}: unsupported {what}: `{found}`\n\
         hint: supported are {supported}",
        path = path.display(),
        supported = List(supported)
    )]
    Unsupported {
        /// Path of the file that requires it.
        path: PathBuf,
        /// Kind of setting: `rope type`, `activation`, `quantisation`.
        what: &'static str,
        /// Value of the setting.
        found: String,
        /// Supported values.
        supported: &'static [&'static str],
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
        "{path}: file has {found_bytes} bytes, its header describes {expected_bytes}\n\
         hint: the download was probably cut off; download the file again",
        path = path.display()
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
    /// The checkpoint lacks a tensor that the architecture needs.
    #[error(
        "tensor {tensor} {expected} is missing in {dir}\n\
         hint: a weight file may be missing, or config.json belongs to another checkpoint",
        dir = dir.display()
    )]
    MissingTensor {
        /// Name of the tensor.
        tensor: String,
        /// Expected shape.
        expected: Dims,
        /// Directory of the checkpoint.
        dir: PathBuf,
    },
    /// The checkpoint has tensors that the architecture does not use.
    #[error(
        "{dir} holds {count} tensors that `{architecture}` does not use: {names}\n\
         hint: config.json may belong to another checkpoint, or the architecture differs in a way \
         that is not supported",
        dir = dir.display(),
        count = tensors.len(),
        names = Leftovers(tensors)
    )]
    LeftoverTensors {
        /// Directory of the checkpoint.
        dir: PathBuf,
        /// `model_type` of the checkpoint.
        architecture: String,
        /// Names of the tensors.
        tensors: Vec<String>,
    },
    /// A tensor has an unexpected shape.
    #[error(
        "{path}: tensor {tensor} has shape {found}, expected {expected}\n\
         hint: config.json may belong to another checkpoint",
        path = path.display()
    )]
    Shape {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Shape of the tensor.
        found: Dims,
        /// Shape that `config.json` implies.
        expected: Dims,
    },
    /// A tensor has an unexpected element type.
    #[error("{path}: tensor {tensor} holds {found}, expected {expected}", path = path.display())]
    ElementType {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Element type of the tensor.
        found: String,
        /// Element types that can be loaded.
        expected: &'static str,
    },
    /// Quantised tensors fit no known format, or contradict `config.json`.
    #[error("{path}: {module} is quantised as {found}, expected {expected}", path = path.display())]
    Quantization {
        /// Path of the file.
        path: PathBuf,
        /// Name of the quantised layer.
        module: String,
        /// Format of the tensors, or the numbers that match no format.
        found: String,
        /// Expected format.
        expected: String,
    },
    /// The split does not fit the number of ranks.
    #[error(
        "a split into {num_parts} parts for {num_ranks} ranks\n\
         hint: --share and --layers take one positive number per rank, for instance 3,1"
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

/// A shape, formatted for a message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Dims(pub Vec<usize>);

impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

struct List<'a>(&'a [&'static str]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

struct Leftovers<'a>(&'a [String]);

impl fmt::Display for Leftovers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(LEFTOVERS_SHOWN)];
        f.write_str(&shown.join(", "))?;
        match self.0.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
