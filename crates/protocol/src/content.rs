//! Types for the content of a checkpoint: hashes of the blocks of its files, with which ranks
//! verify what they read. The hashes are computed in `jackalope_store::content`.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A BLAKE3 hash.
#[derive(Clone, Copy, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct BlockHash(pub [u8; 32]);

/// The identity of a checkpoint: the root hash of its [`ContentTree`]. Two directories with the
/// same files have the same identity, on any machine, at any path and time; it changes if any byte
/// that ranks read changes.
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
    /// Name of the file in the checkpoint's directory.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Hash of the bytes before the tensor data: the header of a weights file, or all of another
    /// file.
    pub head: BlockHash,
    /// Hashes of the blocks of tensor data, in order. The header determines the block boundaries.
    pub leaves: Vec<BlockHash>,
}

/// A file as the operating system identifies it. As long as this state stays the same on a machine,
/// so does the content: every write updates the change time (ctime), which programs cannot set.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FileState {
    /// Name of the file in the checkpoint's directory.
    pub name: String,
    /// Device that holds the file.
    pub device: u64,
    /// Inode number on that device.
    pub inode: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Time at which the content was last written, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Time of the last change of any kind, in nanoseconds since 1970.
    pub changed_ns: i64,
}

/// The content that a rank expects in a checkpoint.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ExpectedContent {
    /// The checkpoint's identity; absent until the checkpoint has been hashed. Ranks can load
    /// without it only if all of them read the same files, in the states below.
    pub id: Option<CheckpointId>,
    /// The tree with that identity; empty without an identity.
    pub tree: ContentTree,
    /// States of files, as the ranks of this machine see them, whose content is known to match the
    /// tree. A file in any other state is verified block by block.
    pub states: Vec<FileState>,
}

/// Time after a change within which a further change may leave the same timestamps, because the
/// clocks of file systems are coarse.
pub const SETTLED_AFTER: Duration = Duration::from_secs(2);

impl FileState {
    /// Reads the state of the file `name` from its metadata.
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

    /// True if the last change is old enough that a later change cannot leave the same state.
    pub fn is_settled(&self) -> bool {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        let settled_after = i64::try_from(SETTLED_AFTER.as_nanos()).unwrap_or(i64::MAX);
        self.modified_ns.max(self.changed_ns).saturating_add(settled_after) <= now
    }
}

impl ContentTree {
    /// Returns the total size of the files in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }
}

/// Number of bytes shown in [`CheckpointId::short`].
const SHORT_BYTES: usize = 6;

impl CheckpointId {
    /// Returns the first twelve hexadecimal digits.
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
