//! What can go wrong outside the program: the device, a file, a group.

use crate::dtype::Dtype;
use crate::group::Backend;

/// A failure of the world, as opposed to a bug in the graph (which panics).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Computing an array failed: the device, a custom kernel or a group operation reported it.
    #[error("evaluation failed: {message}")]
    Evaluation {
        /// MLX's message, or the kernel's or the group's.
        message: String,
    },
    /// A file could not be loaded.
    #[error("loading {path}: {message}")]
    Load {
        /// The file.
        path: String,
        /// MLX's message.
        message: String,
    },
    /// The array holds another element type than the one asked for.
    #[error("the array holds {found:?}, asked for {asked:?}")]
    WrongDtype {
        /// The element type asked for.
        asked: Dtype,
        /// The array's element type.
        found: Dtype,
    },
    /// The device cannot be used.
    #[error("device: {message}")]
    Device {
        /// MLX's message.
        message: String,
    },
    /// This libmlx was built without the backend, or the machine lacks what it needs.
    #[error(
        "this libmlx has no {backend} backend on this machine\n\
         hint: use --backend tcp, which works everywhere"
    )]
    NoBackend {
        /// The backend asked for.
        backend: Backend,
    },
    /// A stock backend could not form its group.
    #[error("forming the {backend} group: {message}")]
    GroupInit {
        /// The backend asked for.
        backend: Backend,
        /// MLX's message.
        message: String,
    },
    /// A stock backend formed another group than the one this process belongs to.
    #[error(
        "the {backend} group has this process as rank {found_rank} of {found_size}, \
         expected rank {rank} of {size}"
    )]
    GroupMismatch {
        /// The backend asked for.
        backend: Backend,
        /// The expected rank.
        rank: usize,
        /// The expected number of ranks.
        size: usize,
        /// The rank the backend found.
        found_rank: usize,
        /// The number of ranks the backend found.
        found_size: usize,
    },
}
