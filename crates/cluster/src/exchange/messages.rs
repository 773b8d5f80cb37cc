//! What libraries and their clients say.

use std::net::SocketAddr;

use jackalope_protocol::secure::HintedKey;
use jackalope_protocol::{ExpectedContent, FileState};
use serde::{Deserialize, Serialize};

use crate::models::{FilePath, Manifest};

/// To a library: one request at a time.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum ToLibrary {
    /// Tell where a model is and which files it has; reads none of them.
    Find {
        /// Its name, or the path of its directory.
        model: String,
    },
    /// Hash a model's files.
    Manifest {
        /// As in [`ToLibrary::Find`].
        model: String,
    },
    /// Send bytes of one of a model's files.
    Read {
        /// As in [`ToLibrary::Find`].
        model: String,
        /// Below the model's directory.
        path: FilePath,
        /// Which; at most [`READ_BYTES_MAX`] together.
        pieces: Pieces,
    },
    /// Copy a model from other machines.
    Fetch(FetchOrder),
    /// Report the hashes of what ranks would read of a model; computes those that are not cached.
    Content {
        /// As in [`ToLibrary::Find`].
        model: String,
    },
    /// Report the states of the files that ranks would read.
    States {
        /// As in [`ToLibrary::Find`].
        model: String,
    },
}

/// Longest read.
pub const READ_BYTES_MAX: u32 = 16 << 20;

/// Equal pieces of a file, at equal distances: columns of a matrix, or one run of bytes. They are sent
/// one after another.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Pieces {
    /// Where the first begins.
    pub offset: u64,
    /// Bytes of each.
    pub piece_bytes: u32,
    /// From the beginning of one to that of the next.
    pub stride_bytes: u64,
    /// How many.
    pub num_pieces: u32,
}

impl Pieces {
    /// One run of bytes.
    pub fn run(offset: u64, num_bytes: u32) -> Pieces {
        let stride_bytes = num_bytes.into();
        Pieces { offset, piece_bytes: num_bytes, stride_bytes, num_pieces: 1 }
    }

    /// Bytes of all pieces.
    pub fn num_bytes(&self) -> u64 {
        u64::from(self.piece_bytes) * u64::from(self.num_pieces)
    }

    /// Where the last one ends; `None` beyond any file.
    pub(super) fn end(&self) -> Option<u64> {
        let Some(last) = self.num_pieces.checked_sub(1) else { return Some(self.offset) };
        let from_first = self.stride_bytes.checked_mul(last.into())?;
        self.offset.checked_add(from_first)?.checked_add(self.piece_bytes.into())
    }

    /// Where the byte `at` of all that are sent lies in the file, and how many follow it there.
    pub(super) fn place(&self, at: u64) -> (u64, u64) {
        let (piece, within) = (at / u64::from(self.piece_bytes), at % u64::from(self.piece_bytes));
        let offset = self.offset + piece * self.stride_bytes + within;
        (offset, u64::from(self.piece_bytes) - within)
    }
}

/// From a library.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum FromLibrary {
    /// The model.
    Found(FoundFiles),
    /// The model's files with their hashes.
    Manifest(Manifest),
    /// So many bytes of the file follow in the stream.
    Bytes {
        /// How many.
        num_bytes: u32,
    },
    /// So many bytes more are hashed or copied; also a sign of life, with none.
    Progress {
        /// How many.
        num_bytes: u64,
    },
    /// The copy is whole and verified.
    Fetched(Fetched),
    /// It cannot be done.
    Refused {
        /// Why.
        reason: String,
    },
    /// The hashes of what ranks would read, with the files' states.
    Content(ExpectedContent),
    /// The files' states.
    States(Vec<FileState>),
}

/// A model and its files.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FoundFiles {
    /// `org/name`, or the name of its directory.
    pub name: String,
    /// The commit, where it is known.
    pub commit: Option<String>,
    /// Its directory.
    pub dir: String,
    /// The files by path, with their sizes.
    pub files: Vec<(FilePath, u64)>,
}

/// A copy to be made.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct FetchOrder {
    /// What the model is called, also where it goes.
    pub name: String,
    /// The commit, where it is known.
    pub commit: Option<String>,
    /// What it consists of.
    pub manifest: Manifest,
    /// Who has it, the one to be asked first.
    pub sources: Vec<Source>,
    /// Connections at the same time.
    pub num_connections: u32,
}

/// A machine that has a model.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Source {
    /// What people call it.
    pub host: String,
    /// Where its agent listens, the preferred address first.
    pub addrs: Vec<SocketAddr>,
    /// What the model is called there: a name or a path.
    pub model: String,
    /// Grant with which the copying machine reads the model there.
    pub grant: HintedKey,
}

/// A copy that was made.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Fetched {
    /// The model's directory.
    pub dir: String,
    /// Bytes that came; none if all of it was there.
    pub bytes_copied: u64,
}
