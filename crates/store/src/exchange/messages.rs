//! The messages between libraries and their clients.

use std::net::SocketAddr;

use jackalope_protocol::secure::HintedKey;
use jackalope_protocol::{ExpectedContent, FilePath, FileState};
use serde::{Deserialize, Serialize};

use crate::Manifest;

/// A request to a library; a client sends one at a time.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum ToLibrary {
    /// Report where a model is and which files it has, without reading them.
    Find {
        /// Name of the model, or path of its directory.
        model: String,
    },
    /// Report a model's files with their hashes; computes those that are not cached.
    Manifest {
        /// As in [`ToLibrary::Find`].
        model: String,
    },
    /// Send bytes of one of a model's files.
    Read {
        /// As in [`ToLibrary::Find`].
        model: String,
        /// Path below the model's directory.
        path: FilePath,
        /// The bytes to send; at most [`READ_BYTES_MAX`] in all.
        pieces: FilePieces,
    },
    /// Copy a model from other machines.
    Fetch(FetchOrder),
    /// Report the hashes of the files that ranks would read of a model; computes those that are not
    /// cached.
    Content {
        /// As in [`ToLibrary::Find`].
        model: String,
    },
    /// Report the states of the files that ranks would read.
    States {
        /// As in [`ToLibrary::Find`].
        model: String,
    },
    /// Report how much of a model the machine holds, without reading its files.
    Holding {
        /// Name of the model, which determines the directory of a copy.
        name: String,
        /// Files of the model with their sizes in bytes.
        files: Vec<(FilePath, u64)>,
    },
}

/// Maximum number of bytes in one read.
pub const READ_BYTES_MAX: u32 = 16 << 20;

/// Equal pieces of a file at equal distances: columns of a matrix, or one run of bytes. They are
/// sent one after another.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FilePieces {
    /// Position of the first piece in the file.
    pub offset: u64,
    /// Length of each piece in bytes.
    pub piece_bytes: u32,
    /// Distance from the beginning of one piece to that of the next, in bytes.
    pub stride_bytes: u64,
    /// Number of pieces.
    pub num_pieces: u32,
}

impl FilePieces {
    /// Creates a single run of bytes.
    pub fn run(offset: u64, num_bytes: u32) -> FilePieces {
        let stride_bytes = num_bytes.into();
        FilePieces { offset, piece_bytes: num_bytes, stride_bytes, num_pieces: 1 }
    }

    /// Returns the total length of the pieces in bytes.
    pub fn num_bytes(&self) -> u64 {
        u64::from(self.piece_bytes) * u64::from(self.num_pieces)
    }

    /// Returns the position in the file at which the last piece ends; `None` if it exceeds 64 bits.
    pub(super) fn end(&self) -> Option<u64> {
        let Some(last) = self.num_pieces.checked_sub(1) else { return Some(self.offset) };
        let from_first = self.stride_bytes.checked_mul(last.into())?;
        self.offset.checked_add(from_first)?.checked_add(self.piece_bytes.into())
    }

    /// Returns the position in the file of byte `at` of all bytes that are sent, and the number of
    /// bytes from there to the end of its piece.
    pub(super) fn place(&self, at: u64) -> (u64, u64) {
        let (piece, within) = (at / u64::from(self.piece_bytes), at % u64::from(self.piece_bytes));
        let offset = self.offset + piece * self.stride_bytes + within;
        (offset, u64::from(self.piece_bytes) - within)
    }
}

/// A message from a library.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum FromLibrary {
    /// The model that was found.
    Found(FoundFiles),
    /// The model's files with their hashes.
    Manifest(Manifest),
    /// This number of bytes of the file follows in the stream.
    Bytes {
        /// Number of bytes.
        num_bytes: u32,
    },
    /// Further bytes are hashed or copied. With 0 bytes it only shows that the library still works.
    Progress {
        /// Number of bytes.
        num_bytes: u64,
    },
    /// The copy is complete and verified.
    Fetched(Fetched),
    /// The request is refused.
    Refused {
        /// The reason.
        reason: String,
    },
    /// The hashes of the files that ranks would read, with the files' states.
    Content(ExpectedContent),
    /// The states of the files that ranks would read.
    States(Vec<FileState>),
    /// How much of the model the machine holds.
    Holding(Holding),
}

/// A model and its files.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FoundFiles {
    /// Name of the model: `org/name`, or the name of its directory.
    pub name: String,
    /// Commit, if known.
    pub commit: Option<String>,
    /// Path of the model's directory.
    pub dir: String,
    /// Files, sorted by path, with their sizes.
    pub files: Vec<(FilePath, u64)>,
}

/// An order to copy a model.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct FetchOrder {
    /// Name of the model, which determines the directory of the copy.
    pub name: String,
    /// Commit, if known.
    pub commit: Option<String>,
    /// Files of the model.
    pub manifest: Manifest,
    /// Machines that have the model, in the order in which they are tried.
    pub sources: Vec<Source>,
    /// Number of parallel connections.
    pub num_connections: u32,
}

/// A machine that has a model.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Source {
    /// Name of the machine.
    pub host: String,
    /// Addresses of the machine's agent, the preferred one first.
    pub addrs: Vec<SocketAddr>,
    /// Name or path of the model on that machine.
    pub model: String,
    /// Grant with which the copying machine reads the model from this source.
    pub grant: HintedKey,
}

/// The result of a copy.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Fetched {
    /// The model's directory.
    pub dir: String,
    /// Number of bytes copied; 0 if the machine had all files.
    pub bytes_copied: u64,
}

/// How much of a model a machine holds, judged by the names and sizes of its files.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Holding {
    /// Directory of the model; absent if the machine has none of it.
    pub dir: Option<String>,
    /// Number of bytes that are there, those of unfinished files included.
    pub num_bytes: u64,
    /// Whether every file is there, with its size.
    pub is_complete: bool,
    /// Why a copy would be refused: the directory belongs to a model that differs.
    pub obstacle: Option<String>,
}
