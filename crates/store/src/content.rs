//! The content of a checkpoint as a tree of hashes. Machines compare the trees of their copies, and
//! ranks verify what they read against them.
//!
//! ```text
//!                       identity
//!                ┌──────────┴───────────┐
//!           config.json        model-1.safetensors  …         names and sizes are part of it
//!             │ head             │ head: the tensor table      BLAKE3 of the bytes
//!                                │ leaves: blocks of tensors   BLAKE3 of each
//! ```
//!
//! A block never spans two tensors, so a rank that reads a tensor reads whole blocks. The same
//! tensors in other files have another identity. Files that ranks do not read (tokenizer,
//! templates) are not part of it.

mod cache;
mod make;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use jackalope_protocol::{
    BlockHash, CheckpointId, ContentTree, ExpectedContent, FileState, FileTree, SETTLED_AFTER,
    counted,
};
use jackalope_spec::TokenMapSpec;

use cache::TreeCache;
pub use make::Hasher;
use safetensors::tensor::Metadata;
use thiserror::Error;

/// Target number of blocks per tensor, so that a rank's share begins and ends near a block
/// boundary.
const BLOCKS_PER_TENSOR: u64 = 64;
/// Bounds of a block's size.
const BLOCK_BYTES_MIN: u64 = 64 << 10;
const BLOCK_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of blocks of a checkpoint, besides the last block of each tensor: the larger the
/// checkpoint, the larger its blocks, so that its hashes fit into one message to a rank.
const BLOCKS_PER_CHECKPOINT: u64 = 1 << 17;

/// Maximum header size that the safetensors format allows.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Maximum size of `config.json`; a larger file is rejected.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Maximum size of the hashes that can be sent to a rank.
const TREE_BYTES_MAX: usize = 15 << 20;

/// Minimum size of a checkpoint that is hashed right after it was fetched. Smaller ones are hashed
/// on demand, which takes a moment.
const REMEMBERED_BYTES_MIN: u64 = 256 << 20;

/// Key derivation context of identities; separates them from other hashes of the same bytes.
const CONTEXT: &str = "jackalope 2026 identity of a checkpoint";

/// A checkpoint's identity, and the hashes from which it is derived.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CheckpointContent {
    /// Identity of the checkpoint: the root of the tree.
    pub id: CheckpointId,
    /// Hashes of the checkpoint's files and blocks.
    pub tree: ContentTree,
    /// States of the files when they were hashed; only of files whose state changes with any
    /// further write.
    pub states: Vec<FileState>,
}

impl From<CheckpointContent> for ExpectedContent {
    fn from(content: CheckpointContent) -> ExpectedContent {
        let CheckpointContent { id, tree, states } = content;
        ExpectedContent { id: Some(id), tree, states }
    }
}

/// Why a checkpoint has no identity.
#[derive(Debug, Error)]
pub enum ContentError {
    /// A file cannot be read.
    #[error("reading {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file was written to while it was hashed.
    #[error("{} changed while it was read\nhint: wait until its download or copy has ended", .path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A file does not have the format that its name says.
    #[error("{}: {reason}\nhint: fetch the file again; `jackalope models check` looks at all of them", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with the file.
        reason: String,
    },
    /// The hashes are larger than what can be sent to a rank.
    #[error("{} has too many tensors: its hashes have {bytes} bytes, at most {TREE_BYTES_MAX}", .dir.display())]
    TooLarge {
        /// Directory of the checkpoint.
        dir: PathBuf,
        /// Number of bytes of all hashes.
        bytes: usize,
    },
    /// The caller cancelled hashing.
    #[error("hashing was cancelled")]
    Cancelled,
}

/// A block of a tensor.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Block<'a> {
    /// Byte range in the file.
    pub range: Range<u64>,
    /// Name of the tensor that the block belongs to.
    pub tensor: &'a str,
}

/// How a weight file is divided into blocks, derived from its header.
#[derive(Clone, Debug)]
pub struct Layout {
    tensors: Vec<TensorBlocks>,
    /// Bytes before the tensor data.
    pub head_bytes: u64,
    /// Number of blocks in the file.
    pub num_blocks: usize,
    /// Size of the file.
    pub file_bytes: u64,
}

#[derive(Clone, Debug)]
struct TensorBlocks {
    name: String,
    range: Range<u64>,
    first_block: usize,
    block_bytes: u64,
}

/// Returns the minimum size of tensor blocks in a checkpoint. `checkpoint_bytes` is the total size
/// of the files that ranks read.
pub fn block_bytes_min(checkpoint_bytes: u64) -> u64 {
    checkpoint_bytes.div_ceil(BLOCKS_PER_CHECKPOINT).next_power_of_two().max(BLOCK_BYTES_MIN)
}

impl Layout {
    /// Creates the layout of a file that begins with `head`, which is the header's length followed
    /// by the header. `block_bytes_min` follows from the size of the checkpoint.
    ///
    /// # Errors
    /// What is wrong with the header.
    pub fn of_head(head: &[u8], block_bytes_min: u64) -> Result<Layout, String> {
        let header = head.get(8..).ok_or("it has no header")?;
        let metadata: Metadata =
            serde_json::from_slice(header).map_err(|err| format!("its header: {err}"))?;
        let head_bytes = head.len() as u64;
        let mut spans: Vec<(Range<u64>, String)> = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| {
                let (begin, end) = info.data_offsets;
                (head_bytes + begin as u64..head_bytes + end as u64, name)
            })
            .filter(|(range, _)| !range.is_empty())
            .collect();
        spans.sort_by_key(|(range, _)| range.start);
        let mut layout =
            Layout { tensors: Vec::new(), head_bytes, num_blocks: 0, file_bytes: head_bytes };
        for (range, name) in spans {
            if range.start != layout.file_bytes {
                return Err(format!("its header: {name} does not begin where the last one ends"));
            }
            let num_bytes = range.end - range.start;
            let wanted = (num_bytes / BLOCKS_PER_TENSOR).next_power_of_two();
            let block_bytes = wanted.min(BLOCK_BYTES_MAX).max(block_bytes_min);
            let first_block = layout.num_blocks;
            let num_blocks = usize::try_from(num_bytes.div_ceil(block_bytes));
            layout.num_blocks += num_blocks.map_err(|_| "it is too large".to_owned())?;
            layout.file_bytes = range.end;
            layout.tensors.push(TensorBlocks { name, range, first_block, block_bytes });
        }
        Ok(layout)
    }

    /// Creates the layout of a file without tensors, which is hashed as a whole.
    pub fn without_tensors(file_bytes: u64) -> Layout {
        Layout { tensors: Vec::new(), head_bytes: file_bytes, num_blocks: 0, file_bytes }
    }

    /// Returns the block with this number.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn block(&self, idx: usize) -> Block<'_> {
        assert!(idx < self.num_blocks, "the file has this block");
        let at = self.tensors.partition_point(|it| it.first_block <= idx) - 1;
        let TensorBlocks { name, range, first_block, block_bytes } = &self.tensors[at];
        let begin = range.start + (idx - first_block) as u64 * block_bytes;
        Block { range: begin..(begin + block_bytes).min(range.end), tensor: name }
    }

    /// Returns the numbers of the blocks that overlap `range`.
    pub fn blocks_in(&self, range: &Range<u64>) -> Range<usize> {
        let at = self.tensors.partition_point(|it| it.range.end <= range.start);
        let Some(first) = self.tensors.get(at).filter(|_| range.start < range.end) else {
            return 0..0;
        };
        let within = range.start.saturating_sub(first.range.start);
        let begin = first.first_block
            + usize::try_from(within / first.block_bytes).expect("fewer than blocks");
        let last = self.tensors.partition_point(|it| it.range.start < range.end) - 1;
        let last = &self.tensors[last];
        let within = range.end.min(last.range.end) - last.range.start;
        let end = last.first_block
            + usize::try_from(within.div_ceil(last.block_bytes)).expect("fewer than blocks");
        begin..end
    }
}

/// Hashes a block or a head.
pub fn hash(bytes: &[u8]) -> BlockHash {
    BlockHash(*blake3::hash(bytes).as_bytes())
}

/// Derives the identity of the checkpoint with these hashes.
pub fn identity(tree: &ContentTree) -> CheckpointId {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    let number = |hasher: &mut blake3::Hasher, number: u64| {
        hasher.update(&number.to_le_bytes());
    };
    number(&mut hasher, tree.files.len() as u64);
    for file in &tree.files {
        number(&mut hasher, file.name.len() as u64);
        hasher.update(file.name.as_bytes());
        number(&mut hasher, file.bytes);
        hasher.update(&file.head.0);
        number(&mut hasher, file.leaves.len() as u64);
        file.leaves.iter().for_each(|leaf| {
            hasher.update(&leaf.0);
        });
    }
    CheckpointId(*hasher.finalize().as_bytes())
}

/// Returns true for the files that ranks read.
pub fn is_read_by_ranks(name: &str) -> bool {
    name == "config.json" || name == TokenMapSpec::FILE || is_weights(name)
}

/// Returns true for weight files.
pub fn is_weights(name: &str) -> bool {
    name.starts_with("model") && name.ends_with(".safetensors")
}

/// Returns the content of `dir` from the cache, without reading its files; `None` unless all of it
/// is cached.
pub fn known(dir: &Path, trees_dir: &Path) -> Option<CheckpointContent> {
    let cache = TreeCache::new(trees_dir);
    let states = states(dir).ok()?;
    let least = block_bytes_min(bytes_of(&states));
    let load = |state| Some(cache.load(state, least).filter(|it| it.is_whole)?.tree);
    let tree = ContentTree { files: states.iter().map(load).collect::<Option<_>>()? };
    Some(CheckpointContent { id: identity(&tree), tree, states })
}

/// Hashes a large checkpoint right after it was fetched, while its bytes are still in the page
/// cache, so that no start has to wait for it. Small checkpoints are hashed on demand. A failure is
/// only logged; hashing on demand reports it.
pub fn remember(dir: &Path, trees_dir: &Path, on_bytes: &(dyn Fn(u64) + Sync)) {
    let Ok(states) = states(dir) else { return };
    if bytes_of(&states) < REMEMBERED_BYTES_MIN {
        return;
    }
    if !states.iter().all(FileState::is_settled) {
        std::thread::sleep(SETTLED_AFTER);
    }
    if let Err(err) = Hasher::new(Some(trees_dir), on_bytes).hash_dir(dir) {
        tracing::debug!(%err, "the content of a fetched model is not known yet");
    }
}

/// Drops the cached hashes of `dir`, so that all of its files are read again. For disks that are
/// not trusted.
///
/// # Errors
/// [`ContentError::Read`].
pub fn forget(dir: &Path, trees_dir: &Path) -> Result<(), ContentError> {
    let cache = TreeCache::new(trees_dir);
    states(dir)?.iter().for_each(|state| cache.remove(state));
    Ok(())
}

/// Returns the states of the files in `dir` that ranks read.
///
/// # Errors
/// [`ContentError::Read`].
pub fn states(dir: &Path) -> Result<Vec<FileState>, ContentError> {
    let state = |name: String| {
        let path = dir.join(&name);
        let metadata = std::fs::metadata(&path);
        let metadata = metadata.map_err(|source| ContentError::Read { path, source })?;
        Ok(FileState::new(&name, &metadata))
    };
    names(dir)?.into_iter().map(state).collect()
}

/// Returns the total size of the files.
fn bytes_of(states: &[FileState]) -> u64 {
    states.iter().fold(0, |sum, state| sum.saturating_add(state.bytes))
}

/// Returns the names of the files in `dir` that ranks read, sorted.
fn names(dir: &Path) -> Result<Vec<String>, ContentError> {
    let failed = |source| ContentError::Read { path: dir.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        // Every file that ranks read has a name in UTF-8.
        let Ok(name) = entry.map_err(failed)?.file_name().into_string() else { continue };
        if is_read_by_ranks(&name) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Names the first file in which `found` differs from `wanted`, and the first differing tensor in
/// it. `dir` holds the files of `wanted`. Returns `None` if the trees are equal.
pub fn first_difference(wanted: &ContentTree, found: &ContentTree, dir: &Path) -> Option<String> {
    let other_of = |file: &FileTree| found.files.iter().find(|it| it.name == file.name);
    for file in &wanted.files {
        match other_of(file) {
            None => return Some(format!("{} is missing", file.name)),
            Some(other) if other.bytes != file.bytes => {
                let (name, theirs) = (&file.name, counted(other.bytes, "byte"));
                return Some(format!("{name}: it has {theirs} there and {} here", file.bytes));
            }
            Some(_) => {}
        }
    }
    let is_known = |name: &str| wanted.files.iter().any(|it| it.name == name);
    if let Some(extra) = found.files.iter().find(|it| !is_known(&it.name)) {
        return Some(format!("{} is not part of it here", extra.name));
    }
    // Files of the same sizes are divided into the same blocks.
    let least = block_bytes_min(wanted.bytes());
    let differs = |file| file_difference(file, other_of(file)?, dir, least);
    wanted.files.iter().find_map(|file| Some(format!("{}: {}", file.name, differs(file)?)))
}

/// Names the first difference between two files of the same size.
fn file_difference(
    wanted: &FileTree,
    found: &FileTree,
    dir: &Path,
    block_bytes_min: u64,
) -> Option<String> {
    if wanted == found {
        return None;
    }
    if wanted.head != found.head || wanted.leaves.len() != found.leaves.len() {
        let what = if is_weights(&wanted.name) { "the table of tensors" } else { "the content" };
        return Some(format!("{what} differs"));
    }
    let at = wanted.leaves.iter().zip(&found.leaves).position(|(one, other)| one != other)?;
    // Reads the layout for the tensor's name; without it the message gives the block's number.
    let layout = File::open(dir.join(&wanted.name))
        .ok()
        .and_then(|mut file| read_head(&mut file, wanted.bytes).ok())
        .and_then(|head| Layout::of_head(&head, block_bytes_min).ok())
        .filter(|layout| at < layout.num_blocks);
    Some(match layout {
        Some(layout) => format!("tensor {} differs", layout.block(at).tensor),
        None => format!("block {at} differs"),
    })
}

/// Reads the part before the tensor data of a weight file of `file_bytes`.
fn read_head(file: &mut File, file_bytes: u64) -> io::Result<Vec<u8>> {
    let malformed = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let mut head = vec![0; 8];
    file.read_exact(&mut head)?;
    let header_bytes = u64::from_le_bytes(head[..8].try_into().expect("8 bytes were read"));
    if HEADER_BYTES_MAX < header_bytes || file_bytes < 8 + header_bytes {
        return Err(malformed(format!("its header claims {}", counted(header_bytes, "byte"))));
    }
    head.resize(8 + usize::try_from(header_bytes).expect("checked against the limit"), 0);
    file.read_exact(&mut head[8..])?;
    Ok(head)
}
