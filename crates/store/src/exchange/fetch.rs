//! Copies a model from other machines: only what is missing, over several connections, each file
//! verified. An interrupted copy is resumed by the next attempt.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use jackalope_protocol::FilePath;
use thiserror::Error;

use super::client::{ExchangeError, LibraryClient};
use super::library::{Busy, Library};
use super::messages::{FetchOrder, Fetched, FilePieces, Source};
use super::ranges::Part;
use crate::content;
use crate::{Difference, FileEntry, HashCache, Manifest, ModelRef, Record, RepoId};

/// Folder of unfinished files, within the model's directory.
pub(super) const PARTS: &str = ".jackalope/parts";

/// File that is copied last, because a directory with this file counts as a model.
const LAST: &str = "config.json";

/// Maximum number of connections.
const CONNECTIONS_MAX: u32 = 16;

/// Number of consecutive failures that bring no byte after which a connection gives up. If there are
/// more sources than this, each of them is tried once first.
const FUTILE_MAX: usize = 3;

/// Time to wait until another copy into the same directory ends, such as one that was just cancelled.
const BUSY_MAX: Duration = Duration::from_secs(10);

/// Interval of looking whether the directory is free.
const BUSY_INTERVAL: Duration = Duration::from_millis(50);

/// Disk space in bytes that must be free beyond the model itself.
const ROOM_BYTES: u64 = 256 << 20;

/// The copy to make, and the callbacks that observe it.
#[derive(Clone, Copy)]
pub(super) struct Fetch<'a> {
    pub(super) library: &'a Library,
    pub(super) order: &'a FetchOrder,
    pub(super) on_bytes: &'a (dyn Fn(u64) + Sync),
    pub(super) is_cancelled: &'a AtomicBool,
}

/// Reason why a copy failed.
#[derive(Debug, Error)]
pub(super) enum FetchError {
    #[error("{name} cannot be the name of a folder here")]
    Name { name: String },
    #[error("no folder for models is known\nhint: set HOME or MODELS_DIR for the agent")]
    NoPlace,
    #[error(
        "{} holds another {name}: {first}\n\
         hint: remove it there with `jackalope models rm {name}`, or give this one another name",
        .dir.display()
    )]
    Another { name: String, dir: PathBuf, first: String },
    #[error("{} is being filled by another copy already", .dir.display())]
    Busy { dir: PathBuf },
    #[error(
        "{} has {} MiB free, {} MiB are to be copied\nhint: free some, or set MODELS_DIR for the agent",
        .dir.display(), .free_bytes >> 20, .needed_bytes.div_ceil(1 << 20)
    )]
    NoRoom { dir: PathBuf, free_bytes: u64, needed_bytes: u64 },
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{path} came from {host} with other content than it had: it was changed there, or its disk \
         is failing\nhint: run `jackalope models check --hash` there"
    )]
    Content { path: FilePath, host: String },
    #[error("copying {path}: {source}")]
    Source { path: FilePath, source: ExchangeError },
    #[error("no machine has it")]
    NoSource,
    #[error("{0}")]
    Own(String),
    #[error("cancelled: nothing waits for the copy any more")]
    Cancelled,
}

/// Makes the copy, unless this machine already has the model.
pub(super) fn fetch(what: Fetch<'_>) -> Result<Fetched, FetchError> {
    let order = what.order;
    let name: RepoId =
        order.name.parse().map_err(|_| FetchError::Name { name: order.name.clone() })?;
    let copies = what.library.copies_dir.as_ref().ok_or(FetchError::NoPlace)?;
    let dir = copies.join(name.as_str());
    let text = |dir: &Path| dir.to_string_lossy().into_owned();
    if let Some(found) = elsewhere(what, name, &dir)? {
        return Ok(Fetched { dir: text(&found), bytes_copied: 0 });
    }
    if order.sources.is_empty() {
        return Err(FetchError::NoSource);
    }
    let _busy = mark_busy(what, &dir)?;
    let before = Record::read(&dir).map(|record| record.manifest);
    let missing = missing(what, &dir, before.is_some())?;
    let parts_dir = dir.join(PARTS);
    let failed = |source| FetchError::Io { path: dir.clone(), source };
    fs::create_dir_all(&parts_dir).map_err(failed)?;
    let commit = order.commit.clone().unwrap_or_default();
    let (repo, manifest) = (order.name.clone(), order.manifest.clone());
    Record { repo, commit, manifest }.write(&dir).map_err(failed)?;
    let (last, first): (Vec<_>, Vec<_>) =
        missing.into_iter().partition(|entry| entry.path.as_str() == LAST);
    let copying =
        Copying { what, dir: &dir, num_copied: AtomicU64::new(0), done: Mutex::default() };
    copying.files(&parts_dir, &first)?;
    copying.files(&parts_dir, &last)?;
    fs::remove_dir_all(&parts_dir).map_err(failed)?;
    remove_former(&dir, before.as_ref(), &order.manifest).map_err(failed)?;
    copying.remember();
    Ok(Fetched { dir: text(&dir), bytes_copied: copying.num_copied.into_inner() })
}

/// Marks the directory as being filled, once no other copy fills it.
fn mark_busy<'a>(what: Fetch<'a>, dir: &Path) -> Result<Busy<'a>, FetchError> {
    let deadline = Instant::now() + BUSY_MAX;
    loop {
        if let Some(busy) = Busy::mark(what.library, dir) {
            return Ok(busy);
        }
        if what.is_cancelled.load(Ordering::Relaxed) {
            return Err(FetchError::Cancelled);
        }
        if deadline <= Instant::now() {
            return Err(FetchError::Busy { dir: dir.to_owned() });
        }
        thread::sleep(BUSY_INTERVAL);
    }
}

/// Returns the directory where this machine already has the same model, if it is not `dir`.
fn elsewhere(what: Fetch<'_>, repo: RepoId, dir: &Path) -> Result<Option<PathBuf>, FetchError> {
    let wanted = ModelRef { repo, revision: None };
    let Ok(found) = what.library.stores.resolve(&wanted) else { return Ok(None) };
    if same(&found.dir, dir) {
        return Ok(None);
    }
    let lacking = lacking(what, &found.dir)?;
    match lacking.first() {
        None => Ok(Some(found.dir)),
        Some(first) => {
            let name = what.order.name.clone();
            Err(FetchError::Another { name, dir: found.dir, first: first.to_string() })
        }
    }
}

pub(super) fn same(one: &Path, other: &Path) -> bool {
    fs::canonicalize(one).ok().zip(fs::canonicalize(other).ok()).is_some_and(|(a, b)| a == b)
}

/// Returns how the files in `dir` differ from the wanted ones. Additional files are ignored.
fn lacking(what: Fetch<'_>, dir: &Path) -> Result<Vec<Difference>, FetchError> {
    let wanted = &what.order.manifest;
    let is_lack = |it: &Difference| !matches!(it, Difference::Extra { .. });
    let by_size =
        wanted.differences_of_sizes(dir).map_err(|err| FetchError::Own(err.to_string()))?;
    let by_size: Vec<Difference> = by_size.into_iter().filter(is_lack).collect();
    if !by_size.is_empty() {
        return Ok(by_size);
    }
    let found = what.library.manifest(dir, &|_| ()).map_err(FetchError::Own)?;
    Ok(wanted.differences(&found).into_iter().filter(is_lack).collect())
}

/// Returns the files that `dir` lacks. A directory that we did not fill must be complete or empty.
fn missing(what: Fetch<'_>, dir: &Path, is_ours: bool) -> Result<Vec<FileEntry>, FetchError> {
    let wanted = &what.order.manifest;
    let is_empty = fs::read_dir(dir).map_or(true, |mut it| it.next().is_none());
    if is_empty {
        return Ok(wanted.files().to_vec());
    }
    let found = what.library.manifest(dir, &|_| ()).map_err(FetchError::Own)?;
    let lacking: Vec<Difference> = wanted
        .differences(&found)
        .into_iter()
        .filter(|it| !matches!(it, Difference::Extra { .. }))
        .collect();
    match lacking.first() {
        Some(first) if !is_ours => Err(FetchError::Another {
            name: what.order.name.clone(),
            dir: dir.to_owned(),
            first: first.to_string(),
        }),
        _ => Ok(lacking.iter().filter_map(|it| wanted.file(it.path())).cloned().collect()),
    }
}

/// Removes files that belonged to the former model in this directory and do not belong to the new
/// one.
fn remove_former(dir: &Path, before: Option<&Manifest>, now: &Manifest) -> io::Result<()> {
    let former = before.into_iter().flat_map(Manifest::files);
    for entry in former.filter(|entry| now.file(&entry.path).is_none()) {
        match fs::remove_file(entry.path.below(dir)) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => {}
        }
    }
    Ok(())
}

/// A copy in progress.
struct Copying<'a> {
    what: Fetch<'a>,
    dir: &'a Path,
    num_copied: AtomicU64,
    /// Files that are complete and have their final names.
    done: Mutex<Vec<FileEntry>>,
}

/// Ranges to fetch: index of the part, and number of the range in it.
type Queue = Mutex<VecDeque<(usize, u32)>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads from one source at a time.
struct Reader<'a> {
    sources: &'a [Source],
    source_idx: usize,
    /// The connection to the source, from the first read on.
    client: Option<LibraryClient>,
}

impl Reader<'_> {
    fn source(&self) -> &Source {
        &self.sources[self.source_idx]
    }

    fn try_next_source(&mut self) {
        self.client = None;
        self.source_idx = (self.source_idx + 1) % self.sources.len();
    }

    /// Fills `target` with the file's bytes from `offset` on.
    fn read(
        &mut self,
        path: &FilePath,
        offset: u64,
        target: &mut [u8],
    ) -> Result<(), ExchangeError> {
        let source = &self.sources[self.source_idx];
        let client = match &mut self.client {
            Some(client) => client,
            None => self.client.insert(LibraryClient::dial_with_grant(
                &source.host,
                &source.addrs,
                &source.grant,
            )?),
        };
        let num_bytes = u32::try_from(target.len()).expect("a range is short");
        client.read(&source.model, path, FilePieces::run(offset, num_bytes), target)
    }
}

impl Copying<'_> {
    fn io(&self, path: &FilePath) -> impl FnOnce(io::Error) -> FetchError + use<> {
        let path = path.below(self.dir);
        move |source| FetchError::Io { path, source }
    }

    /// Fetches these files. A file that was resumed and turns out damaged is fetched again, once.
    fn files(&self, parts_dir: &Path, entries: &[FileEntry]) -> Result<(), FetchError> {
        let damaged = self.round(parts_dir, entries)?;
        let again: Vec<FileEntry> = damaged.into_iter().map(|(entry, _)| entry).collect();
        let damaged = self.round(parts_dir, &again)?;
        match damaged.into_iter().next() {
            None => Ok(()),
            Some((entry, host)) => Err(FetchError::Content { path: entry.path, host }),
        }
    }

    /// Fetches these files once. Returns the resumed files that are damaged, each with the host
    /// that sent its last bytes.
    fn round(
        &self,
        parts_dir: &Path,
        entries: &[FileEntry],
    ) -> Result<Vec<(FileEntry, String)>, FetchError> {
        let mut parts = Vec::with_capacity(entries.len());
        for entry in entries {
            parts.push(Part::open(parts_dir, entry).map_err(self.io(&entry.path))?);
        }
        self.check_room(parts.iter().map(Part::missing_bytes).sum())?;
        let damaged = Mutex::default();
        // Parts that were complete before, and empty files.
        for part in parts.iter().filter(|part| part.is_full()) {
            self.finish(part, "an earlier copy", &damaged)?;
        }
        let queue: Queue = Mutex::default();
        for (idx, part) in parts.iter().enumerate() {
            lock(&queue).extend(part.missing.iter().map(|&range| (idx, range)));
        }
        let num_connections = self.what.order.num_connections.clamp(1, CONNECTIONS_MAX) as usize;
        let num_connections = num_connections.min(lock(&queue).len());
        let results: Vec<Result<(), FetchError>> = thread::scope(|scope| {
            let work = || self.work(&parts, &queue, &damaged).inspect_err(|_| lock(&queue).clear());
            let threads: Vec<_> = (0..num_connections).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|it| it.join().expect("it does not panic")).collect()
        });
        results.into_iter().collect::<Result<(), FetchError>>()?;
        Ok(damaged.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn check_room(&self, missing_bytes: u64) -> Result<(), FetchError> {
        let disk = rustix::fs::statvfs(self.dir)
            .map_err(|err| FetchError::Io { path: self.dir.to_owned(), source: err.into() })?;
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        let needed_bytes = missing_bytes.saturating_add(ROOM_BYTES);
        match missing_bytes != 0 && free_bytes < needed_bytes {
            true => {
                let dir = self.dir.to_owned();
                Err(FetchError::NoRoom { dir, free_bytes, needed_bytes })
            }
            false => Ok(()),
        }
    }

    /// Runs one connection: fetches ranges until none are left. When the connection breaks, it
    /// tries the next source.
    fn work(
        &self,
        parts: &[Part],
        queue: &Queue,
        damaged: &Mutex<Vec<(FileEntry, String)>>,
    ) -> Result<(), FetchError> {
        let sources = &self.what.order.sources;
        let mut reader = Reader { sources, source_idx: 0, client: None };
        let mut futile = 0;
        let mut bytes = Vec::new();
        loop {
            let next = lock(queue).pop_front();
            let Some((idx, range)) = next else { return Ok(()) };
            if self.what.is_cancelled.load(Ordering::Relaxed) {
                return Err(FetchError::Cancelled);
            }
            let part = &parts[idx];
            let (offset, length) = part.bounds(range);
            bytes.resize(length, 0);
            match reader.read(&part.entry.path, offset, &mut bytes) {
                Ok(()) => {
                    futile = 0;
                    let is_last = part.write(range, &bytes).map_err(self.io(&part.entry.path))?;
                    self.num_copied.fetch_add(length as u64, Ordering::Relaxed);
                    (self.what.on_bytes)(length as u64);
                    if is_last {
                        self.finish(part, &reader.source().host, damaged)?;
                    }
                }
                Err(source) => {
                    lock(queue).push_front((idx, range));
                    reader.try_next_source();
                    futile += 1;
                    if FUTILE_MAX.max(sources.len()) <= futile {
                        return Err(FetchError::Source { path: part.entry.path.clone(), source });
                    }
                }
            }
        }
    }

    fn finish(
        &self,
        part: &Part,
        host: &str,
        damaged: &Mutex<Vec<(FileEntry, String)>>,
    ) -> Result<(), FetchError> {
        let path = &part.entry.path;
        if part.finish(&path.below(self.dir)).map_err(self.io(path))? {
            lock(&self.done).push(part.entry.clone());
            return Ok(());
        }
        if part.is_resumed() {
            lock(damaged).push((part.entry.clone(), host.to_owned()));
            return Ok(());
        }
        Err(FetchError::Content { path: path.clone(), host: host.to_owned() })
    }

    /// Caches the verified hashes, so that the files need not be hashed again.
    fn remember(&self) {
        let Some(path) = &self.what.library.hashes_path else { return };
        let mut known = HashCache::load(path);
        let done: BTreeMap<_, _> =
            lock(&self.done).iter().map(|it| (it.path.clone(), it.sha256)).collect();
        for (file, sha256) in done {
            // If a file or the list cannot be read, its hash is computed next time.
            known.remember(&file.below(self.dir), sha256).ok();
        }
        known.save(path).ok();
        if let Some(trees_dir) = &self.what.library.trees_dir {
            content::remember(self.dir, trees_dir, &|_| ());
        }
    }
}
