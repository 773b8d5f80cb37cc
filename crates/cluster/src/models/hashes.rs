//! Hashes that were computed before, so that hundreds of gigabytes are read once and not each time.
//!
//! A file counts as unchanged if its path, size and time of writing are those of then. A file that
//! was written a moment ago is not remembered: a second change within the clock's step would not be
//! seen. Whoever looks for damaged disks starts from an empty cache.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::blob::ContentHash;
use super::files::{FoundFile, modified_ns, write_whole};
use super::parallel::side_by_side;

/// Files that were written so recently are hashed again next time.
const SETTLED: Duration = Duration::from_secs(2);

/// Hashing is bound by the disk before more threads help.
const THREADS_MAX: usize = 8;

/// Hashes of files by path, size and time.
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

/// How files are hashed.
#[derive(Clone, Copy)]
pub struct Hashing<'a> {
    /// Files hashed side by side.
    pub num_threads: usize,
    /// Hears, from any thread, how many bytes more are done.
    pub on_bytes: &'a (dyn Fn(u64) + Sync),
}

/// Why a file has no hash.
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
    /// With a thread for each core, within reason.
    pub fn new(on_bytes: &'a (dyn Fn(u64) + Sync)) -> Hashing<'a> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Hashing { num_threads: cores.min(THREADS_MAX), on_bytes }
    }
}

impl HashCache {
    /// What [`HashCache::save`] has left; empty if there is nothing, or nothing that can be read.
    pub fn load(path: &Path) -> HashCache {
        let content = std::fs::read(path).unwrap_or_default();
        serde_json::from_slice(&content).unwrap_or_default()
    }

    /// Writes what is remembered of files that still exist, whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let files = self.files.iter().filter(|(path, _)| path.is_file());
        let kept = HashCache { files: files.map(|(path, it)| (path.clone(), *it)).collect() };
        let content = serde_json::to_vec(&kept).expect("a map of texts and numbers is JSON");
        write_whole(path, &content)
    }

    /// Takes down a hash that is known from elsewhere, for a file that nobody will write again.
    ///
    /// # Errors
    /// If the file is not there.
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

    /// The hashes of `files`, in their order; reads only those that are not known.
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

/// The hash of a file that nobody has changed since it was listed.
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

    use super::*;
    use crate::models::files::list;
    use crate::models::scratch::Scratch;

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
        // A change that leaves size and time alone is not seen: nothing was read.
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
