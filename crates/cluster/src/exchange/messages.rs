//! What libraries and their clients say.

use std::net::SocketAddr;

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
        /// From here on.
        offset: u64,
        /// So many; at most [`READ_BYTES_MAX`].
        num_bytes: u32,
    },
    /// Copy a model from other machines.
    Fetch(FetchOrder),
}

/// Longest read.
pub(super) const READ_BYTES_MAX: u32 = 16 << 20;

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
}

/// A copy that was made.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Fetched {
    /// The model's directory.
    pub dir: String,
    /// Bytes that came; none if all of it was there.
    pub bytes_copied: u64,
}
