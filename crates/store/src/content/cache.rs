//! Cache of hash trees: one entry for each file, named after its device and inode. An entry is
//! valid only for the same file state. The cache is bounded, and a damaged entry counts as missing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jackalope_protocol::{FileState, FileTree, frame};
use serde::{Deserialize, Serialize};

use super::hash;
use crate::files::write_whole;

/// Maximum number of entries, and their maximum total size; the oldest are evicted.
const ENTRIES_MAX: usize = 2048;
const BYTES_MAX: u64 = 512 << 20;

/// Maximum size of an entry; a larger file is ignored.
const ENTRY_BYTES_MAX: u64 = 20 << 20;

/// Size of the checksum at the end of an entry.
const HASH_BYTES: usize = 32;

/// The cache in one directory.
#[derive(Clone, Debug)]
pub(super) struct TreeCache {
    dir: PathBuf,
}

/// The tree of a file, possibly of its beginning only.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Entry {
    pub(super) state: FileState,
    pub(super) tree: FileTree,
    /// False if hashing stopped early: then only the first leaves are present.
    pub(super) is_whole: bool,
    /// The minimum size of a block, which depends on the checkpoint that the file belongs to.
    pub(super) block_bytes_min: u64,
}

impl TreeCache {
    pub(super) fn new(dir: &Path) -> TreeCache {
        TreeCache { dir: dir.to_owned() }
    }

    fn path(&self, state: &FileState) -> PathBuf {
        self.dir.join(format!("{:x}-{:x}.tree", state.device, state.inode))
    }

    /// Returns the cached entry of a file in this `state`, divided into blocks of this minimum
    /// size; `None` if there is none. The entry has the file's present name.
    pub(super) fn load(&self, state: &FileState, block_bytes_min: u64) -> Option<Entry> {
        let path = self.path(state);
        if ENTRY_BYTES_MAX < fs::metadata(&path).ok()?.len() {
            return None;
        }
        let content = fs::read(path).ok()?;
        let (body, sum) = content.split_at_checked(content.len().checked_sub(HASH_BYTES)?)?;
        if hash(body).0 != sum {
            return None;
        }
        let mut entry: Entry = frame::read(&mut io::Cursor::new(body)).ok()?;
        entry.state.name.clone_from(&state.name);
        entry.tree.name.clone_from(&state.name);
        let is_same = entry.state == *state && entry.block_bytes_min == block_bytes_min;
        is_same.then_some(entry)
    }

    /// Stores an entry atomically. The file's state must have been settled before it was read.
    pub(super) fn save(&self, entry: &Entry) -> io::Result<()> {
        let mut content = frame::encode(entry).map_err(io::Error::other)?;
        let sum = hash(&content);
        content.extend(sum.0);
        write_whole(&self.path(&entry.state), &content)?;
        self.prune(ENTRIES_MAX, BYTES_MAX)
    }

    /// Removes the entry of this file.
    pub(super) fn remove(&self, state: &FileState) {
        // An error is harmless: an entry that is missing needs no removal, and one that stays is
        // valid only for the same state.
        fs::remove_file(self.path(state)).ok();
    }

    /// Evicts the oldest entries beyond these bounds.
    fn prune(&self, entries_max: usize, bytes_max: u64) -> io::Result<()> {
        let mut entries: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            // An entry that disappears meanwhile is skipped.
            let Ok(metadata) = entry.metadata() else { continue };
            let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            entries.push((written, metadata.len(), entry.path()));
        }
        entries.sort_by_key(|(written, ..)| std::cmp::Reverse(*written));
        let mut bytes = 0;
        for (idx, (_, entry_bytes, path)) in entries.iter().enumerate() {
            bytes += entry_bytes;
            if entries_max <= idx || bytes_max < bytes {
                fs::remove_file(path).ok();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use jackalope_protocol::BlockHash;
    use jackalope_testing::Scratch;

    use super::*;

    const BLOCK_BYTES: u64 = 64;

    fn entry(inode: u64) -> Entry {
        let name = "model.safetensors".to_owned();
        let state = FileState {
            name: name.clone(),
            device: 1,
            inode,
            bytes: 9,
            modified_ns: 5,
            changed_ns: 6,
        };
        let leaves = vec![BlockHash([7; 32]); 3];
        Entry {
            state,
            tree: FileTree { name, bytes: 9, head: BlockHash([1; 32]), leaves },
            is_whole: true,
            block_bytes_min: BLOCK_BYTES,
        }
    }

    #[test]
    fn an_entry_counts_only_for_its_state_and_only_undamaged() {
        let dir = Scratch::new();
        let cache = TreeCache::new(dir.path());
        let saved = entry(3);
        assert_eq!(cache.load(&saved.state, BLOCK_BYTES), None);
        cache.save(&saved).unwrap();
        assert_eq!(cache.load(&saved.state, BLOCK_BYTES), Some(saved.clone()));
        let renamed = FileState { name: "model-1.safetensors".to_owned(), ..saved.state.clone() };
        assert_eq!(cache.load(&renamed, BLOCK_BYTES).unwrap().tree.name, "model-1.safetensors");
        for other in [
            FileState { changed_ns: 7, ..saved.state.clone() },
            FileState { modified_ns: 6, ..saved.state.clone() },
            FileState { bytes: 10, ..saved.state.clone() },
        ] {
            assert_eq!(cache.load(&other, BLOCK_BYTES), None);
        }
        assert_eq!(cache.load(&saved.state, 2 * BLOCK_BYTES), None, "other blocks");
        let path = cache.path(&saved.state);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert_eq!(cache.load(&saved.state, BLOCK_BYTES), None, "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(cache.load(&saved.state, BLOCK_BYTES), None, "cut off after {at}");
        }
    }

    #[test]
    fn the_oldest_entries_go() {
        let dir = Scratch::new();
        let cache = TreeCache::new(dir.path());
        for inode in 0..4 {
            cache.save(&entry(inode)).unwrap();
            let then = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(inode);
            let file = fs::File::options().write(true).open(cache.path(&entry(inode).state));
            file.unwrap().set_modified(then).unwrap();
        }
        let kept = || -> Vec<u64> {
            (0..4).filter(|&inode| cache.load(&entry(inode).state, BLOCK_BYTES).is_some()).collect()
        };
        cache.prune(3, BYTES_MAX).unwrap();
        assert_eq!(kept(), [1, 2, 3]);
        let each = fs::metadata(cache.path(&entry(3).state)).unwrap().len();
        cache.prune(3, 2 * each).unwrap();
        assert_eq!(kept(), [2, 3]);
    }
}
