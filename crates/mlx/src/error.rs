//! Errors from outside the program: the device, a file, a group.

use crate::backend::Backend;
use crate::dtype::Dtype;

/// An error of the environment, as opposed to a bug in the graph (which panics).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An array could not be computed: the device, a custom kernel or a group operation reported an
    /// error.
    #[error("evaluation failed: {message}")]
    Evaluation {
        /// Message of MLX, the kernel or the group.
        message: String,
    },
    /// A file could not be loaded.
    #[error("loading {path}: {message}")]
    Load {
        /// Path of the file.
        path: String,
        /// Message of MLX.
        message: String,
    },
    /// The array has another element type than the requested one.
    #[error("the array holds {found:?}, asked for {asked:?}")]
    WrongDtype {
        /// The requested element type.
        asked: Dtype,
        /// Element type of the array.
        found: Dtype,
    },
    /// The device cannot be used.
    #[error("device: {message}")]
    Device {
        /// Message of MLX.
        message: String,
    },
    /// This libmlx was built without the backend, or the machine lacks what it needs.
    #[error(
        "this libmlx has no {backend} backend on this machine\n\
         hint: use --backend tcp, which works everywhere"
    )]
    NoBackend {
        /// The requested backend.
        backend: Backend,
    },
    /// A stock backend could not form its group.
    #[error("forming the {backend} group: {message}")]
    GroupInit {
        /// The requested backend.
        backend: Backend,
        /// Message of MLX.
        message: String,
    },
    /// A stock backend formed a group in which this process has another rank, or which has another
    /// size.
    #[error(
        "the {backend} group has this process as rank {found_rank} of {found_size}, \
         expected rank {rank} of {size}"
    )]
    GroupMismatch {
        /// The requested backend.
        backend: Backend,
        /// Expected rank.
        rank: usize,
        /// Expected number of ranks.
        size: usize,
        /// Rank in the group that was formed.
        found_rank: usize,
        /// Number of ranks in the group that was formed.
        found_size: usize,
    },
}
