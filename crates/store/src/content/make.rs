//! Hashes checkpoints in parallel, in bounded memory, and resumes where an earlier attempt stopped.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use jackalope_protocol::{BlockHash, ContentTree, FileState, FileTree, counted};

use super::cache::{Entry, TreeCache};
use super::{
    CONFIG_BYTES_MAX, CheckpointContent, ContentError, Layout, TREE_BYTES_MAX, block_bytes_min,
    bytes_of, hash, identity, is_weights, read_head,
};
use crate::parallel::side_by_side;

/// More threads do not help: memory bandwidth or the disk is the bottleneck.
const THREADS_MAX: usize = 8;

/// Bytes of a file after which its hashes are saved: the most work that is lost if the process
/// ends.
const KEEP_BYTES: u64 = 2 << 30;

/// Bytes that a thread hashes at a time.
const UNIT_BYTES: u64 = 4 << 20;

/// Hashes checkpoints.
#[derive(Clone, Copy)]
pub struct Hasher<'a> {
    /// Directory of the cache; `None` disables it.
    pub(super) trees_dir: Option<&'a Path>,
    /// Number of blocks hashed in parallel.
    pub(super) num_threads: usize,
    /// Called from any thread with each further number of finished bytes, cached ones included.
    pub(super) on_bytes: &'a (dyn Fn(u64) + Sync),
    /// Stops hashing early when set.
    pub(super) is_cancelled: &'a AtomicBool,
    /// Bytes of a file after which its hashes are saved.
    pub(super) keep_bytes: u64,
}

impl std::fmt::Debug for Hasher<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hasher").field("num_threads", &self.num_threads).finish_non_exhaustive()
    }
}

impl<'a> Hasher<'a> {
    /// Creates a hasher that is never cancelled, with one thread per core, up to `THREADS_MAX`.
    pub fn new(trees_dir: Option<&'a Path>, on_bytes: &'a (dyn Fn(u64) + Sync)) -> Hasher<'a> {
        static NEVER: AtomicBool = AtomicBool::new(false);
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let num_threads = cores.min(THREADS_MAX);
        Hasher { trees_dir, num_threads, on_bytes, is_cancelled: &NEVER, keep_bytes: KEEP_BYTES }
    }

    /// Sets the flag that stops hashing early.
    pub fn cancelled_by(self, is_cancelled: &'a AtomicBool) -> Hasher<'a> {
        Hasher { is_cancelled, ..self }
    }

    /// Sets the number of threads.
    pub fn with_threads(self, num_threads: usize) -> Hasher<'a> {
        Hasher { num_threads, ..self }
    }

    /// Hashes the checkpoint in `dir`. Reads only what is not cached.
    ///
    /// # Errors
    /// [`ContentError`]; hashes of finished files and parts of files are kept.
    pub fn hash_dir(&self, dir: &Path) -> Result<CheckpointContent, ContentError> {
        let mut files = Vec::new();
        let found = super::states(dir)?;
        let least = block_bytes_min(bytes_of(&found));
        let mut states = Vec::new();
        for FileState { name, .. } in &found {
            let (state, tree) = self.hash_file(dir, name, least)?;
            files.push(tree);
            states.extend(state);
        }
        let tree = ContentTree { files };
        if tree.bytes() != bytes_of(&found) {
            return Err(ContentError::Changed { path: dir.to_owned() });
        }
        let num_leaves: usize = tree.files.iter().map(|it| it.leaves.len()).sum();
        let bytes = num_leaves * size_of::<BlockHash>();
        if TREE_BYTES_MAX < bytes {
            return Err(ContentError::TooLarge { dir: dir.to_owned(), bytes });
        }
        Ok(CheckpointContent { id: identity(&tree), tree, states })
    }

    /// Hashes one file. Returns no state if the file changed so recently that a later write might
    /// not change its state.
    fn hash_file(
        &self,
        dir: &Path,
        name: &str,
        block_bytes_min: u64,
    ) -> Result<(Option<FileState>, FileTree), ContentError> {
        let path = dir.join(name);
        let failed = |source| ContentError::Read { path: path.clone(), source };
        let mut file = File::open(&path).map_err(failed)?;
        let state = FileState::new(name, &file.metadata().map_err(failed)?);
        // Checked before anything is read: a file that is settled now cannot change without a new
        // state.
        let is_settled = state.is_settled();
        let cache = self.trees_dir.map(TreeCache::new).filter(|_| is_settled);
        let known = cache.as_ref().and_then(|cache| cache.load(&state, block_bytes_min));
        if let Some(entry) = known.as_ref().filter(|it| it.is_whole) {
            (self.on_bytes)(state.bytes);
            return Ok((Some(state), entry.tree.clone()));
        }
        let malformed = |reason| ContentError::Malformed { path: path.clone(), reason };
        let head = head(&mut file, &state).map_err(failed)?;
        let layout = if is_weights(name) {
            Layout::of_head(&head, block_bytes_min).map_err(malformed)?
        } else {
            Layout::without_tensors(state.bytes)
        };
        if layout.file_bytes != state.bytes {
            let (found, wanted) = (counted(state.bytes, "byte"), layout.file_bytes);
            return Err(malformed(format!("file has {found}, its header describes {wanted}")));
        }
        let leaves = known.map(|entry| entry.tree.leaves).unwrap_or_default();
        let tree =
            FileTree { name: name.to_owned(), bytes: state.bytes, head: hash(&head), leaves };
        let mut entry = Entry { state, tree, is_whole: false, block_bytes_min };
        let done = match entry.tree.leaves.len() {
            0 => head.len() as u64,
            known => layout.block(known.min(layout.num_blocks) - 1).range.end,
        };
        (self.on_bytes)(done);
        loop {
            self.hash_some(&file, &layout, &mut entry.tree.leaves)
                .map_err(|failure| failure.map_or(ContentError::Cancelled, failed))?;
            if FileState::new(name, &file.metadata().map_err(failed)?) != entry.state {
                return Err(ContentError::Changed { path });
            }
            entry.is_whole = entry.tree.leaves.len() == layout.num_blocks;
            if let Some(cache) = &cache
                && let Err(err) = cache.save(&entry)
            {
                tracing::debug!(%err, "hashes were not kept");
            }
            if entry.is_whole {
                return Ok((Some(entry.state).filter(|_| is_settled), entry.tree));
            }
        }
    }

    /// Hashes the next blocks, up to `keep_bytes`. The error is `None` if hashing was cancelled.
    fn hash_some(
        &self,
        file: &File,
        layout: &Layout,
        leaves: &mut Vec<BlockHash>,
    ) -> Result<(), Option<io::Error>> {
        let unit_bytes_max = UNIT_BYTES.min(self.keep_bytes);
        let mut units = Vec::new();
        let (mut next, mut num_bytes) = (leaves.len(), 0);
        while next < layout.num_blocks && num_bytes < self.keep_bytes {
            let begin = next;
            let mut unit_bytes = 0;
            while next < layout.num_blocks && unit_bytes < unit_bytes_max {
                let range = layout.block(next).range;
                unit_bytes += range.end - range.start;
                next += 1;
            }
            num_bytes += unit_bytes;
            units.push(begin..next);
        }
        let hash_unit = |idx: usize| -> Result<Vec<BlockHash>, Option<io::Error>> {
            let mut buffer = Vec::new();
            let mut hashes = Vec::new();
            for block in units[idx].clone() {
                if self.is_cancelled.load(Ordering::Relaxed) {
                    return Err(None);
                }
                let range = layout.block(block).range;
                let length = range.end - range.start;
                buffer.resize(usize::try_from(length).expect("a block is short"), 0);
                file.read_exact_at(&mut buffer, range.start).map_err(Some)?;
                hashes.push(hash(&buffer));
                (self.on_bytes)(length);
            }
            Ok(hashes)
        };
        let found = side_by_side(units.len(), self.num_threads, hash_unit)?;
        leaves.extend(found.into_iter().flatten());
        Ok(())
    }
}

/// Reads the part that is hashed as one: a weight file up to its tensors, any other file as a
/// whole.
fn head(file: &mut File, state: &FileState) -> io::Result<Vec<u8>> {
    if is_weights(&state.name) {
        return read_head(file, state.bytes);
    }
    if CONFIG_BYTES_MAX < state.bytes {
        let reason = format!("it has {} bytes, at most {CONFIG_BYTES_MAX}", state.bytes);
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    let mut head = vec![0; usize::try_from(state.bytes).expect("checked against the limit")];
    file.read_exact_at(&mut head, 0)?;
    Ok(head)
}
