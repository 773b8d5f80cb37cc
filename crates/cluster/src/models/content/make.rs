//! Hashes checkpoints: in parallel, in bounded memory, on from where an earlier attempt stood.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use jackalope_protocol::{BlockHash, ContentTree, FileState, FileTree};

use super::cache::{Entry, TreeCache};
use super::{
    CONFIG_BYTES_MAX, CheckpointContent, ContentError, Layout, TREE_BYTES_MAX, hash, identity,
    is_weights, names, read_head,
};
use crate::models::parallel::side_by_side;

/// Memory or the disk bound hashing before more threads help.
const THREADS_MAX: usize = 8;

/// After so many bytes of a file its hashes are kept: the most that is lost if the process ends.
const KEEP_BYTES: u64 = 2 << 30;

/// Bytes that a thread takes at a time.
const UNIT_BYTES: u64 = 4 << 20;

/// Hashes checkpoints.
#[derive(Clone, Copy)]
pub struct Hasher<'a> {
    /// Where trees are kept; none are without it.
    pub(super) trees_dir: Option<&'a Path>,
    /// Blocks hashed side by side.
    pub(super) num_threads: usize,
    /// Hears, from any thread, how many bytes more are done, known ones included.
    pub(super) on_bytes: &'a (dyn Fn(u64) + Sync),
    /// Ends hashing early when set.
    pub(super) is_cancelled: &'a AtomicBool,
    /// After so many bytes of a file its hashes are kept.
    pub(super) keep_bytes: u64,
}

impl std::fmt::Debug for Hasher<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hasher").field("num_threads", &self.num_threads).finish_non_exhaustive()
    }
}

impl<'a> Hasher<'a> {
    /// With a thread for each core, within reason, and nobody who cancels.
    pub fn new(trees_dir: Option<&'a Path>, on_bytes: &'a (dyn Fn(u64) + Sync)) -> Hasher<'a> {
        static NEVER: AtomicBool = AtomicBool::new(false);
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let num_threads = cores.min(THREADS_MAX);
        Hasher { trees_dir, num_threads, on_bytes, is_cancelled: &NEVER, keep_bytes: KEEP_BYTES }
    }

    /// The same, which ends early when `is_cancelled` is set.
    pub fn cancelled_by(self, is_cancelled: &'a AtomicBool) -> Hasher<'a> {
        Hasher { is_cancelled, ..self }
    }

    /// The same with this number of threads.
    pub fn with_threads(self, num_threads: usize) -> Hasher<'a> {
        Hasher { num_threads, ..self }
    }

    /// The content of the checkpoint in `dir`. Reads what is not known.
    ///
    /// # Errors
    /// [`ContentError`]; hashes of files and parts of files that were done are kept.
    pub fn hash_dir(&self, dir: &Path) -> Result<CheckpointContent, ContentError> {
        let mut files = Vec::new();
        let mut states = Vec::new();
        for name in names(dir)? {
            let (state, tree) = self.hash_file(dir, &name)?;
            files.push(tree);
            states.extend(state);
        }
        let tree = ContentTree { files };
        let num_leaves: usize = tree.files.iter().map(|it| it.leaves.len()).sum();
        let bytes = num_leaves * size_of::<BlockHash>();
        if TREE_BYTES_MAX < bytes {
            return Err(ContentError::TooLarge { dir: dir.to_owned(), bytes });
        }
        Ok(CheckpointContent { id: identity(&tree), tree, states })
    }

    /// The state is absent if it could be the same after another change.
    fn hash_file(
        &self,
        dir: &Path,
        name: &str,
    ) -> Result<(Option<FileState>, FileTree), ContentError> {
        let path = dir.join(name);
        let failed = |source| ContentError::Read { path: path.clone(), source };
        let mut file = File::open(&path).map_err(failed)?;
        let state = FileState::new(name, &file.metadata().map_err(failed)?);
        // Before anything is read: what was settled then cannot have changed since unseen.
        let is_settled = state.is_settled();
        let cache = self.trees_dir.map(TreeCache::new).filter(|_| is_settled);
        let known = cache.as_ref().and_then(|cache| cache.load(&state));
        if let Some(entry) = known.as_ref().filter(|it| it.is_whole) {
            (self.on_bytes)(state.bytes);
            return Ok((Some(state), entry.tree.clone()));
        }
        let malformed = |reason| ContentError::Malformed { path: path.clone(), reason };
        let head = head(&mut file, &state).map_err(failed)?;
        let layout = match is_weights(name) {
            true => Layout::of_head(&head).map_err(malformed)?,
            false => Layout::without_tensors(state.bytes),
        };
        if layout.file_bytes != state.bytes {
            let (found, wanted) = (state.bytes, layout.file_bytes);
            return Err(malformed(format!(
                "file has {found} bytes, its header describes {wanted}"
            )));
        }
        let leaves = known.map(|entry| entry.tree.leaves).unwrap_or_default();
        let tree =
            FileTree { name: name.to_owned(), bytes: state.bytes, head: hash(&head), leaves };
        let mut entry = Entry { state, tree, is_whole: false };
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

    /// Hashes the next blocks, up to `keep_bytes`. The error is `None` if it was cancelled.
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

/// What is hashed as one: a file of weights up to its tensors, any other one to its end.
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
