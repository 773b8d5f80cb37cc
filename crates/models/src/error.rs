//! Why a checkpoint cannot be loaded.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::checkpoint::OtherContent;

/// Leftover tensors that are named in a message; the rest is counted.
const LEFTOVERS_SHOWN: usize = 8;

/// A checkpoint that cannot be loaded, or a machine that cannot load it.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A file or directory that cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file whose content differs from the checkpoint that is to be loaded.
    #[error("{path}: {reason}", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Describes the difference.
        reason: String,
    },
    /// No weights where a checkpoint should be.
    #[error(
        "no model*.safetensors in {dir}\n\
         hint: --model takes the directory of a downloaded checkpoint in MLX or Hugging Face format",
        dir = dir.display()
    )]
    NoWeights {
        /// The directory.
        dir: PathBuf,
    },
    /// `config.json` is not JSON, lacks a field, or holds a value of another type.
    #[error("{path}: {reason}", path = path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        reason: String,
    },
    /// A field of `config.json` with a value that makes no sense.
    #[error("{path}: `{field}` is {found}, expected {expected}", path = path.display())]
    ConfigValue {
        /// The file.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// An architecture there is no code for.
    #[error(
        "unsupported architecture: `{found}`\n\
         hint: supported are {supported}",
        supported = List(supported)
    )]
    UnsupportedArchitecture {
        /// `model_type` of the checkpoint.
        found: String,
        /// What could be loaded.
        supported: &'static [&'static str],
    },
    /// A variant of a known architecture there is no code for.
    #[error(
        "{path}: unsupported {what}: `{found}`\n\
         hint: supported are {supported}",
        path = path.display(),
        supported = List(supported)
    )]
    Unsupported {
        /// The file that asks for it.
        path: PathBuf,
        /// Kind of thing: `rope type`, `activation`, `quantisation`.
        what: &'static str,
        /// The value found.
        found: String,
        /// What could be loaded.
        supported: &'static [&'static str],
    },
    /// A weight file whose header is not that of a safetensors file.
    #[error(
        "{path}: not a safetensors file: {reason}\n\
         hint: download the file again",
        path = path.display()
    )]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A weight file that ends early, or goes on after its end.
    #[error(
        "{path}: file has {found_bytes} bytes, its header describes {expected_bytes}\n\
         hint: the download was probably cut off; download the file again",
        path = path.display()
    )]
    FileSize {
        /// The file.
        path: PathBuf,
        /// Header and tensors together.
        expected_bytes: u64,
        /// Length of the file.
        found_bytes: u64,
    },
    /// A tensor that two files hold.
    #[error(
        "tensor {tensor} is in {first} and in {second}\n\
         hint: the directory seems to hold two checkpoints; keep one",
        first = first.display(),
        second = second.display()
    )]
    DuplicateTensor {
        /// Name of the tensor.
        tensor: String,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// A tensor that the architecture needs and the checkpoint lacks.
    #[error(
        "tensor {tensor} {expected} is missing in {dir}\n\
         hint: a weight file may be missing, or config.json belongs to another checkpoint",
        dir = dir.display()
    )]
    MissingTensor {
        /// Name of the tensor.
        tensor: String,
        /// Shape it should have.
        expected: Dims,
        /// The checkpoint.
        dir: PathBuf,
    },
    /// Tensors that the architecture has no use for.
    #[error(
        "{dir} holds {count} tensors that `{architecture}` does not use: {names}\n\
         hint: config.json may belong to another checkpoint, or the architecture differs in a way \
         that is not supported",
        dir = dir.display(),
        count = tensors.len(),
        names = Leftovers(tensors)
    )]
    LeftoverTensors {
        /// The checkpoint.
        dir: PathBuf,
        /// Its `model_type`.
        architecture: String,
        /// Names of the tensors.
        tensors: Vec<String>,
    },
    /// A tensor of another shape.
    #[error(
        "{path}: tensor {tensor} has shape {found}, expected {expected}\n\
         hint: config.json may belong to another checkpoint",
        path = path.display()
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Its shape.
        found: Dims,
        /// The shape that config.json implies.
        expected: Dims,
    },
    /// A tensor of another element type.
    #[error("{path}: tensor {tensor} holds {found}, expected {expected}", path = path.display())]
    ElementType {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Its type.
        found: String,
        /// What can be loaded.
        expected: &'static str,
    },
    /// Quantised tensors that fit no known format, or contradict `config.json`.
    #[error("{path}: {module} is quantised as {found}, expected {expected}", path = path.display())]
    Quantization {
        /// The file.
        path: PathBuf,
        /// Path of the quantised layer.
        module: String,
        /// The format found, or the numbers that make none.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// The split does not fit the number of ranks.
    #[error(
        "a split into {num_parts} parts for {num_ranks} ranks\n\
         hint: --share and --layers take one positive number per rank, for instance 3,1"
    )]
    Split {
        /// Parts of the split.
        num_parts: usize,
        /// Number of ranks.
        num_ranks: usize,
    },
    /// A rank has no part.
    #[error(
        "the split gives a rank nothing\n\
         hint: --share and --layers take one positive number per rank, for instance 3,1"
    )]
    EmptyPart,
    /// A pipeline for another model.
    #[error(
        "a pipeline of {layers:?} layers, but the model has {num_layers}\n\
         hint: the numbers of --layers make up {num_layers} together"
    )]
    Stages {
        /// Layers of each rank.
        layers: Vec<u32>,
        /// Layers of the model.
        num_layers: usize,
    },
    /// The device failed.
    #[error("{0}")]
    Device(#[from] jackalope_mlx::Error),
}

impl LoadError {
    /// Error for a file that cannot be read or has unexpected content.
    pub fn read(path: &Path, source: io::Error) -> LoadError {
        let path = path.to_path_buf();
        let other = source.get_ref().and_then(|err| err.downcast_ref::<OtherContent>());
        match other.map(|it| it.reason.clone()) {
            Some(reason) => LoadError::Content { path, reason },
            None => LoadError::Read { path, source },
        }
    }

    /// True if a new process on the same files may succeed: the device failed, or whoever has the
    /// files could not be reached, and the checkpoint is not at fault.
    pub fn is_passing(&self) -> bool {
        match self {
            LoadError::Device(_) => true,
            LoadError::Read { source, .. } => source.kind() == io::ErrorKind::ConnectionAborted,
            _ => false,
        }
    }
}

/// A shape in a message.
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
