//! What a checkpoint holds: hashes of the blocks of its files, by which ranks verify what they read.
//! How the hashes are made is in `jackalope_cluster::models::content`; here are only the types.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A BLAKE3 hash.
#[derive(Clone, Copy, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct BlockHash(pub [u8; 32]);

/// The identity of a checkpoint: the root of its [`ContentTree`]. Equal for two directories with the
/// same files, whatever machine, path and time; another one if any byte that ranks read differs.
#[derive(Clone, Copy, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub struct CheckpointId(pub [u8; 32]);

/// The hashes of a checkpoint's files, by name: `config.json` and the weights.
#[derive(Clone, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ContentTree {
    /// The files that ranks read.
    pub files: Vec<FileTree>,
}

/// The hashes of one file.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
pub struct FileTree {
    /// Its name in the checkpoint's directory.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Of what lies before tensor data: the header, or all of a file that is not of weights.
    pub head: BlockHash,
    /// Of the blocks of tensor data, in order. Where a block begins and ends follows from the header.
    pub leaves: Vec<BlockHash>,
}

/// A file as the system identifies it. As long as this stays the same on a machine, so does the
/// content: every write moves the time of change, which no program can set.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FileState {
    /// Its name in the checkpoint's directory.
    pub name: String,
    /// The device it lies on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// Its size.
    pub bytes: u64,
    /// When its content was last written, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// When it was last changed in any way, in nanoseconds since 1970.
    pub changed_ns: i64,
}

/// What a rank has to find in a checkpoint.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ExpectedContent {
    /// The checkpoint's identity; absent until it has been hashed, which only happens where all ranks
    /// read the same files, in the states below.
    pub id: Option<CheckpointId>,
    /// The tree with that identity; no files before that.
    pub tree: ContentTree,
    /// States of the files, where the ranks of this machine read them, whose content is known to be
    /// that of the tree. A file in another state is verified block by block.
    pub states: Vec<FileState>,
}

/// Within this time after a change another one may leave the same times: clocks of file systems are
/// coarse.
pub const SETTLED_AFTER: Duration = Duration::from_secs(2);

impl FileState {
    /// The state that the system reports for the file `name`.
    pub fn new(name: &str, metadata: &Metadata) -> FileState {
        let ns = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
        FileState {
            name: name.to_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// True if the last change is so long ago that a later one cannot leave the same state.
    pub fn is_settled(&self) -> bool {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        let settled_after = i64::try_from(SETTLED_AFTER.as_nanos()).unwrap_or(i64::MAX);
        self.modified_ns.max(self.changed_ns).saturating_add(settled_after) <= now
    }
}

/// Digits by which people tell checkpoints apart.
const SHORT_BYTES: usize = 6;

impl CheckpointId {
    /// Its first twelve hexadecimal digits.
    pub fn short(&self) -> String {
        self.0[..SHORT_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..SHORT_BYTES].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.files).finish()
    }
}

impl fmt::Debug for FileTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileTree")
            .field("name", &self.name)
            .field("bytes", &self.bytes)
            .field("num_leaves", &self.leaves.len())
            .finish_non_exhaustive()
    }
}
