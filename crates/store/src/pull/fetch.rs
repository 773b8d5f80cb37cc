//! Fetches one file: continues where an earlier attempt stopped, and gives the file its name only
//! once it is verified.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use jackalope_protocol::counted;
use ureq::Body;
use ureq::http::{Response, StatusCode};

use super::destination::Job;
use super::retry::{Failure, Retries};
use super::{Counting, Pull};
use crate::BlobHasher;
use crate::blob::feed;

/// Number of bytes read from a connection at a time.
const READ_BYTES: usize = 256 << 10;

/// Number of bytes from which an attempt counts as useful, whatever ended it.
const USEFUL_BYTES: u64 = 1 << 20;

/// A file to fetch.
#[derive(Clone, Copy)]
pub(super) struct Fetch<'a> {
    pull: &'a Pull,
    job: &'a Job,
    commit: &'a str,
    bar: Counting<'a>,
}

/// The part of a file that has arrived: on the disk, and in the hash.
struct Partial<'a> {
    file: File,
    hasher: BlobHasher,
    bytes: u64,
    /// Whether some of it is from an earlier run, which may have fetched another content.
    is_resumed: bool,
    fetch: Fetch<'a>,
}

impl<'a> Fetch<'a> {
    pub(super) fn new(pull: &'a Pull, job: &'a Job, commit: &'a str, bar: Counting<'a>) -> Self {
        Fetch { pull, job, commit, bar }
    }

    /// Fetches the file unless it exists, and returns the number of bytes that came over the
    /// network.
    pub(super) fn run(self) -> anyhow::Result<u64> {
        let job = self.job;
        for path in [&job.partial, &job.done, &job.lock] {
            let dir = path.parent().expect("every file lies in a folder");
            fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        // Held until the end; a process that dies releases it.
        let _lock = lock(&job.lock)?;
        if self.is_there()? {
            self.bar.add(job.file.bytes);
            return Ok(0);
        }
        let mut fetched_bytes = 0;
        loop {
            let mut partial = Partial::open(self)?;
            fetched_bytes += self.complete(&mut partial)?;
            let is_resumed = partial.is_resumed;
            if partial.keep()? {
                return Ok(fetched_bytes);
            }
            // The data of an earlier run may be wrong, while the data that arrived now is not.
            ensure!(
                is_resumed,
                "{} differs from the file on the hub: its hash is not {}\nhint: try again later, \
                 or \
                 pull from another hub (HF_ENDPOINT)",
                job.file.path,
                job.file.blob
            );
        }
    }

    /// Whether the file exists. In a cache, a file of the right length has the content that its
    /// name says. In a directory any file may have the name, so the file is hashed.
    fn is_there(self) -> anyhow::Result<bool> {
        let Job { file, done, .. } = self.job;
        if fs::metadata(done).map(|it| it.len()).ok() != Some(file.bytes) {
            return Ok(false);
        }
        if done.file_name().is_some_and(|name| *name == *file.blob.to_string()) {
            return Ok(true);
        }
        let found = file.blob.of_file_like_this(done, &|_| ());
        Ok(found.with_context(|| format!("reading {}", done.display()))? == file.blob)
    }

    /// Makes attempts until all bytes have arrived, and returns the number of bytes that came.
    fn complete(self, partial: &mut Partial<'_>) -> anyhow::Result<u64> {
        let mut retries = Retries::new(self.pull.config.retries);
        let mut fetched_bytes = 0;
        while partial.bytes < self.job.file.bytes {
            if self.pull.stop.is_set() {
                bail!("another file failed");
            }
            let mut gained_bytes = 0;
            let result = self.attempt(partial, &mut gained_bytes);
            fetched_bytes += gained_bytes;
            if USEFUL_BYTES <= gained_bytes {
                retries.forget();
            }
            if let Err(failure) = result {
                let name = &self.job.file.path;
                retries.again(failure, &self.pull.stop).with_context(|| {
                    format!("{name} is incomplete; pull again to continue where it stopped")
                })?;
            }
        }
        Ok(fetched_bytes)
    }

    /// Sends one request, starting where the last one ended.
    fn attempt(self, partial: &mut Partial<'_>, gained_bytes: &mut u64) -> Result<(), Failure> {
        let Pull { hub, repo, revision, .. } = self.pull;
        let url = hub.file_url(repo, self.commit, &self.job.file.path);
        let response = hub.get(&url, partial.bytes)?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(&response, partial.bytes) => {}
            // The server does not support ranges, or not this one.
            StatusCode::OK => partial.begin_anew().map_err(Failure::Final)?,
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                partial.begin_anew().map_err(Failure::Final)?;
                return Err(Failure::again(anyhow!("{url} does not continue where requested")));
            }
            _ => return Err(hub.refusal(&url, repo, revision, response)),
        }
        let wanted = self.job.file.bytes - partial.bytes;
        if let Some(found) = response.body().content_length().filter(|found| *found != wanted) {
            return Err(Failure::Final(anyhow!(
                "{url} has {}, but the hub lists {}\nhint: try again later, or pull from \
                 another hub (HF_ENDPOINT)",
                counted(found + partial.bytes, "byte"),
                self.job.file.bytes
            )));
        }
        self.read(response, partial, gained_bytes, &url)
    }

    fn read(
        self,
        response: Response<Body>,
        partial: &mut Partial<'_>,
        gained_bytes: &mut u64,
        url: &str,
    ) -> Result<(), Failure> {
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; READ_BYTES];
        while !self.pull.stop.is_set() {
            let num_read = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(num_read) => num_read,
                Err(err) if err.kind() == ErrorKind::Interrupted => continue,
                Err(err) => {
                    let at = partial.bytes;
                    let error = anyhow!(err).context(format!("reading {url} at byte {at}"));
                    return Err(Failure::again(error));
                }
            };
            partial.add(&buffer[..num_read]).map_err(Failure::Final)?;
            *gained_bytes += num_read as u64;
        }
        match partial.bytes == self.job.file.bytes {
            true => Ok(()),
            false => {
                let at = partial.bytes;
                Err(Failure::again(anyhow!("the connection to {url} ended at byte {at}")))
            }
        }
    }
}

impl<'a> Partial<'a> {
    /// Opens the partial file that earlier runs have left, or a new one.
    fn open(fetch: Fetch<'a>) -> anyhow::Result<Partial<'a>> {
        let Job { file: wanted, partial: path, .. } = fetch.job;
        let opening = || format!("opening {}", path.display());
        let options = File::options().read(true).write(true).create(true).truncate(false).clone();
        let mut file = options.open(path).with_context(opening)?;
        let bytes = file.metadata().with_context(opening)?.len();
        let hasher = wanted.blob.hasher(wanted.bytes);
        let is_resumed = 0 < bytes;
        if bytes <= wanted.bytes {
            let mut partial = Partial { file, hasher, bytes, is_resumed, fetch };
            let count = |num_bytes| fetch.bar.add(num_bytes);
            feed(&mut partial.file, &mut partial.hasher, &count).with_context(opening)?;
            return Ok(partial);
        }
        file.set_len(0).and_then(|()| file.rewind()).with_context(opening)?;
        Ok(Partial { file, hasher, bytes: 0, is_resumed: false, fetch })
    }

    fn add(&mut self, piece: &[u8]) -> anyhow::Result<()> {
        let Job { file: wanted, partial: path, .. } = self.fetch.job;
        let num_bytes = piece.len() as u64;
        ensure!(
            self.bytes + num_bytes <= wanted.bytes,
            "{} has more bytes than the {} that the hub lists",
            wanted.path,
            wanted.bytes
        );
        self.file.write_all(piece).with_context(|| format!("writing {}", path.display()))?;
        self.hasher.update(piece);
        self.bytes += num_bytes;
        self.fetch.bar.add(num_bytes);
        Ok(())
    }

    /// Discards what has arrived.
    fn begin_anew(&mut self) -> anyhow::Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let Job { file: wanted, partial: path, .. } = self.fetch.job;
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.with_context(|| format!("emptying {}", path.display()))?;
        self.fetch.bar.take_back(self.bytes);
        self.hasher = wanted.blob.hasher(wanted.bytes);
        (self.bytes, self.is_resumed) = (0, false);
        Ok(())
    }

    /// Gives a complete file its name if its hash is right, or else removes it. Returns whether it
    /// was right.
    fn keep(self) -> anyhow::Result<bool> {
        let Job { file: wanted, partial: path, done, .. } = self.fetch.job;
        let keeping = || format!("keeping {}", path.display());
        if self.hasher.finish() != wanted.blob {
            self.fetch.bar.take_back(self.bytes);
            fs::remove_file(path).with_context(keeping)?;
            return Ok(false);
        }
        self.file.sync_all().with_context(keeping)?;
        fs::rename(path, done).with_context(keeping)?;
        Ok(true)
    }
}

/// Locks the file against other programs, including Hugging Face's.
fn lock(path: &Path) -> anyhow::Result<File> {
    let locking = || format!("locking {}", path.display());
    let file = File::options().write(true).create(true).truncate(false).open(path);
    let file = file.with_context(locking)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!(
            "another program is fetching the same file (it holds {})\nhint: wait for it to end",
            path.display()
        ),
        Err(TryLockError::Error(err)) => Err(err).with_context(locking),
    }
}

/// Whether a partial response begins with the requested byte.
fn starts_at(response: &Response<Body>, from: u64) -> bool {
    let range = response.headers().get("content-range").and_then(|it| it.to_str().ok());
    let start = range.and_then(|it| it.trim().strip_prefix("bytes ")?.split('-').next());
    start.and_then(|it| it.trim().parse().ok()) == Some(from)
}
