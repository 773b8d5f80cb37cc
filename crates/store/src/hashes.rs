//! A cache of file hashes, so that hundreds of gigabytes are read once and not at every use.
//!
//! A file counts as unchanged if its path, size and modification time are the same. A file that was
//! just written is not cached, because a second change within the resolution of the clock would go
//! unnoticed. To check for damaged disks, start from an empty cache.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jackalope_protocol::ContentHash;
use serde::{Deserialize, Serialize};

use super::files::{FoundFile, modified_ns, write_whole};
use super::parallel::side_by_side;

/// Files whose modification time is more recent than this are not cached.
const SETTLED: Duration = Duration::from_secs(2);

/// Maximum number of threads; beyond it the disk is the bottleneck.
const THREADS_MAX: usize = 8;

/// Cached hashes of files by path, with the size and time for which they are valid.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct HashCache {
    files: BTreeMap<PathBuf, Remembered>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Remembered {
    bytes: u64,
    modified_ns: u128,
    sha256: ContentHash,
}

/// The parameters for hashing files.
#[derive(Clone, Copy)]
pub struct Hashing<'a> {
    /// Number of files hashed in parallel.
    pub num_threads: usize,
    /// Called from any thread with the number of bytes finished since the last call.
    pub on_bytes: &'a (dyn Fn(u64) + Sync),
}

/// Reason why a file has no hash.
#[derive(Debug)]
pub(super) enum HashFailure {
    Read(PathBuf, io::Error),
    Changed(PathBuf),
}

impl std::fmt::Debug for Hashing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hashing").field("num_threads", &self.num_threads).finish_non_exhaustive()
    }
}

impl<'a> Hashing<'a> {
    /// Uses one thread per core, at most `THREADS_MAX`.
    pub fn new(on_bytes: &'a (dyn Fn(u64) + Sync)) -> Hashing<'a> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Hashing { num_threads: cores.min(THREADS_MAX), on_bytes }
    }
}

impl HashCache {
    /// Loads the cache that [`HashCache::save`] wrote to `path`. Returns an empty one if there is
    /// no such file or it is malformed.
    pub fn load(path: &Path) -> HashCache {
        let content = std::fs::read(path).unwrap_or_default();
        serde_json::from_slice(&content).unwrap_or_default()
    }

    /// Writes the entries of files that still exist, atomically.
    ///
    /// # Errors
    /// If the cache cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let files = self.files.iter().filter(|(path, _)| path.is_file());
        let kept = HashCache { files: files.map(|(path, it)| (path.clone(), *it)).collect() };
        let content = serde_json::to_vec(&kept).expect("a map of texts and numbers is JSON");
        write_whole(path, &content)
    }

    /// Adds a hash that is known from elsewhere, for a file that will not be written again.
    ///
    /// # Errors
    /// If the file does not exist.
    pub fn remember(&mut self, path: &Path, sha256: ContentHash) -> io::Result<()> {
        let path = std::fs::canonicalize(path)?;
        let metadata = std::fs::metadata(&path)?;
        let (bytes, modified_ns) = (metadata.len(), modified_ns(&metadata));
        self.files.insert(path, Remembered { bytes, modified_ns, sha256 });
        Ok(())
    }

    fn known(&self, file: &FoundFile) -> Option<ContentHash> {
        let found = self.files.get(&file.target)?;
        let is_same = found.bytes == file.bytes && found.modified_ns == file.modified_ns;
        is_same.then_some(found.sha256)
    }

    /// Returns the hashes of `files`, in their order. Reads only files that are not cached.
    pub(super) fn hash(
        &mut self,
        files: &[FoundFile],
        hashing: Hashing<'_>,
    ) -> Result<Vec<ContentHash>, HashFailure> {
        let mut hashes: Vec<Option<ContentHash>> =
            files.iter().map(|file| self.known(file)).collect();
        let unknown: Vec<usize> = (0..files.len()).filter(|&idx| hashes[idx].is_none()).collect();
        for file in files.iter().zip(&hashes).filter_map(|(file, it)| it.and(Some(file))) {
            (hashing.on_bytes)(file.bytes);
        }
        let hash_one = |at: usize| hash_unchanged(&files[unknown[at]], hashing.on_bytes);
        let found = side_by_side(unknown.len(), hashing.num_threads, hash_one)?;
        for (&idx, hash) in unknown.iter().zip(found) {
            hashes[idx] = Some(hash);
            let FoundFile { target, bytes, modified_ns, .. } = &files[idx];
            if is_settled(*modified_ns) {
                let known = Remembered { bytes: *bytes, modified_ns: *modified_ns, sha256: hash };
                self.files.insert(target.clone(), known);
            }
        }
        Ok(hashes.into_iter().map(|it| it.expect("every file was known or hashed")).collect())
    }
}

/// Hashes a file; fails if it changed since it was listed.
fn hash_unchanged(
    file: &FoundFile,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<ContentHash, HashFailure> {
    let failed = |err| HashFailure::Read(file.target.clone(), err);
    let hash = ContentHash::of_file(&file.target, on_bytes).map_err(failed)?;
    let metadata = std::fs::metadata(&file.target).map_err(failed)?;
    if metadata.len() != file.bytes || modified_ns(&metadata) != file.modified_ns {
        return Err(HashFailure::Changed(file.target.clone()));
    }
    Ok(hash)
}

fn is_settled(modified_ns: u128) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    modified_ns + SETTLED.as_nanos() <= now.as_nanos()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use jackalope_testing::Scratch;

    use super::*;
    use crate::files::list;

    fn age(path: &Path, seconds: u64) {
        let then = SystemTime::now() - Duration::from_secs(seconds);
        File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
    }

    fn hash(cache: &mut HashCache, dir: &Scratch) -> ContentHash {
        let files = list(dir.path()).unwrap();
        cache.hash(&files, Hashing::new(&|_| ())).unwrap()[0]
    }

    #[test]
    fn a_file_is_read_again_if_its_time_or_size_changed_or_it_is_too_young() {
        let dir = Scratch::new();
        let path = dir.write("a", b"one");
        age(&path, 60);
        let mut cache = HashCache::default();
        assert_eq!(hash(&mut cache, &dir), ContentHash::of(b"one"));
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        // A change that keeps size and time goes unnoticed, because the file is not read.
        dir.write("a", b"two");
        File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert_eq!(hash(&mut cache, &dir), ContentHash::of(b"one"));
        age(&path, 50);
        assert_eq!(hash(&mut cache, &dir), ContentHash::of(b"two"));

        let mut young = HashCache::default();
        age(&path, 0);
        hash(&mut young, &dir);
        assert_eq!(young, HashCache::default());
    }

    #[test]
    fn what_is_remembered_survives_and_forgets_what_is_gone() {
        let dir = Scratch::new();
        let (kept, gone) = (dir.write("a", b"one"), dir.write("b", b"two"));
        let mut cache = HashCache::default();
        cache.remember(&kept, ContentHash::of(b"one")).unwrap();
        let wanted = cache.clone();
        cache.remember(&gone, ContentHash::of(b"two")).unwrap();
        std::fs::remove_file(&gone).unwrap();
        let saved = dir.path().join("x/y/hashes.json");
        cache.save(&saved).unwrap();
        assert_eq!(HashCache::load(&saved), wanted);
        std::fs::write(&saved, "{").unwrap();
        assert_eq!(HashCache::load(&saved), HashCache::default());
    }
}
