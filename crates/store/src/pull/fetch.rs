//! Fetches one file: continues where an earlier attempt stopped, and gives the file its name only
//! once it is verified.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

use ureq::Body;
use ureq::http::{Response, StatusCode};

use super::destination::Job;
use super::error::{HubError, PullError, failed};
use super::retry::{Failure, Retries, Stop};
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
    /// Whether some of the data is from an earlier run, which may have fetched another content.
    is_resumed: bool,
    fetch: Fetch<'a>,
}

impl<'a> Fetch<'a> {
    pub(super) fn new(pull: &'a Pull, job: &'a Job, commit: &'a str, bar: Counting<'a>) -> Self {
        Fetch { pull, job, commit, bar }
    }

    /// Fetches the file unless it exists, and returns the number of bytes that came over the
    /// network.
    pub(super) fn run(self) -> Result<u64, PullError> {
        let job = self.job;
        for path in [&job.partial, &job.done, &job.lock] {
            let dir = path.parent().expect("every file lies in a folder");
            fs::create_dir_all(dir).map_err(failed("making", dir))?;
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
            if !is_resumed {
                let (path, blob) = (job.file.path.clone(), job.file.blob);
                return Err(PullError::Differs { path, blob });
            }
        }
    }

    /// Whether the file exists. In a cache, a file of the right length has the content that its
    /// name says. In a directory any file may have the name, so the file is hashed.
    fn is_there(self) -> Result<bool, PullError> {
        let Job { file, done, .. } = self.job;
        if fs::metadata(done).map(|it| it.len()).ok() != Some(file.bytes) {
            return Ok(false);
        }
        if done.file_name().is_some_and(|name| *name == *file.blob.to_string()) {
            return Ok(true);
        }
        let mut hasher = file.blob.hasher(file.bytes);
        let found = File::open(done)
            .and_then(|it| feed(Stoppable(it, &self.pull.stop), &mut hasher, &|_| ()));
        found.map_err(failed("reading", done))?;
        Ok(hasher.finish() == file.blob)
    }

    /// Makes attempts until all bytes have arrived, and returns the number of bytes received.
    fn complete(self, partial: &mut Partial<'_>) -> Result<u64, PullError> {
        let mut retries = Retries::new(self.pull.config.retries);
        let mut fetched_bytes = 0;
        while partial.bytes < self.job.file.bytes {
            if self.pull.stop.is_set() {
                return Err(PullError::Stopped);
            }
            let mut gained_bytes = 0;
            let result = self.attempt(partial, &mut gained_bytes);
            fetched_bytes += gained_bytes;
            if USEFUL_BYTES <= gained_bytes {
                retries.forget();
            }
            if let Err(failure) = result {
                retries.again(failure, &self.pull.stop).map_err(|err| PullError::Incomplete {
                    path: self.job.file.path.clone(),
                    source: Box::new(err),
                })?;
            }
        }
        Ok(fetched_bytes)
    }

    /// Sends one request, starting where the last one ended.
    fn attempt(self, partial: &mut Partial<'_>, gained_bytes: &mut u64) -> Result<(), Failure> {
        let Pull { hub, repo, revision, .. } = self.pull;
        let url = hub.file_url(repo, self.commit, &self.job.file.path);
        let response = hub.get(&url, partial.bytes, None)?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(&response, partial.bytes) => {}
            // The server does not support ranges, or not this one.
            StatusCode::OK => partial.begin_anew().map_err(Failure::last)?,
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                partial.begin_anew().map_err(Failure::last)?;
                return Err(Failure::again(HubError::OtherRange { url }, None));
            }
            _ => return Err(hub.refusal(&url, repo, revision, response)),
        }
        let wanted = self.job.file.bytes - partial.bytes;
        if let Some(found) = response.body().content_length().filter(|found| *found != wanted) {
            let (found_bytes, listed_bytes) = (found + partial.bytes, self.job.file.bytes);
            let length = HubError::Length { url, found_bytes, listed_bytes };
            return Err(Failure::last(length));
        }
        self.read(response, partial, gained_bytes, url)
    }

    fn read(
        self,
        response: Response<Body>,
        partial: &mut Partial<'_>,
        gained_bytes: &mut u64,
        url: String,
    ) -> Result<(), Failure> {
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; READ_BYTES];
        while !self.pull.stop.is_set() {
            let num_read = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(num_read) => num_read,
                Err(err) if err.kind() == ErrorKind::Interrupted => continue,
                Err(source) => {
                    let at = partial.bytes;
                    return Err(Failure::again(HubError::Read { url, at, source }, None));
                }
            };
            partial.add(&buffer[..num_read]).map_err(Failure::last)?;
            *gained_bytes += num_read as u64;
        }
        if partial.bytes == self.job.file.bytes {
            return Ok(());
        }
        Err(Failure::again(HubError::Ended { url, at: partial.bytes }, None))
    }
}

impl<'a> Partial<'a> {
    /// Opens the partial file that earlier runs have left, or a new one.
    fn open(fetch: Fetch<'a>) -> Result<Partial<'a>, PullError> {
        let Job { file: wanted, partial: path, .. } = fetch.job;
        let opening = failed("opening", path);
        let options = File::options().read(true).write(true).create(true).truncate(false).clone();
        let mut file = options.open(path).map_err(&opening)?;
        let bytes = file.metadata().map_err(&opening)?.len();
        let hasher = wanted.blob.hasher(wanted.bytes);
        let is_resumed = 0 < bytes;
        if bytes <= wanted.bytes {
            let mut partial = Partial { file, hasher, bytes, is_resumed, fetch };
            let count = |num_bytes| fetch.bar.add(num_bytes);
            let arrived = Stoppable(&mut partial.file, &fetch.pull.stop);
            feed(arrived, &mut partial.hasher, &count).map_err(&opening)?;
            return Ok(partial);
        }
        file.set_len(0).and_then(|()| file.rewind()).map_err(&opening)?;
        Ok(Partial { file, hasher, bytes: 0, is_resumed: false, fetch })
    }

    fn add(&mut self, piece: &[u8]) -> Result<(), PullError> {
        let Job { file: wanted, partial: path, .. } = self.fetch.job;
        let num_bytes = piece.len() as u64;
        if wanted.bytes < self.bytes + num_bytes {
            let (path, listed_bytes) = (wanted.path.clone(), wanted.bytes);
            return Err(HubError::TooLong { path, listed_bytes }.into());
        }
        self.file.write_all(piece).map_err(failed("writing", path))?;
        self.hasher.update(piece);
        self.bytes += num_bytes;
        self.fetch.bar.add(num_bytes);
        Ok(())
    }

    /// Discards the data that has arrived.
    fn begin_anew(&mut self) -> Result<(), PullError> {
        if self.bytes == 0 {
            return Ok(());
        }
        let Job { file: wanted, partial: path, .. } = self.fetch.job;
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(failed("emptying", path))?;
        self.fetch.bar.take_back(self.bytes);
        self.hasher = wanted.blob.hasher(wanted.bytes);
        (self.bytes, self.is_resumed) = (0, false);
        Ok(())
    }

    /// Gives a complete file its name if its hash is right, or else removes it. Returns whether it
    /// was right.
    fn keep(self) -> Result<bool, PullError> {
        let Job { file: wanted, partial: path, done, .. } = self.fetch.job;
        let keeping = failed("keeping", path);
        if self.hasher.finish() != wanted.blob {
            self.fetch.bar.take_back(self.bytes);
            fs::remove_file(path).map_err(&keeping)?;
            return Ok(false);
        }
        self.file.sync_all().map_err(&keeping)?;
        fs::rename(path, done).map_err(&keeping)?;
        Ok(true)
    }
}

/// A file that cannot be read any more once the pull has been stopped: hashing it may take minutes.
struct Stoppable<'a, R>(R, &'a Stop);

impl<R: Read> Read for Stoppable<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.1.is_set() {
            return Err(io::Error::other("the pull was stopped"));
        }
        self.0.read(buffer)
    }
}

/// Locks the file against other programs, including Hugging Face's.
fn lock(path: &Path) -> Result<File, PullError> {
    let locking = failed("locking", path);
    let file = File::options().write(true).create(true).truncate(false).open(path);
    let file = file.map_err(&locking)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(PullError::Locked { lock: path.to_owned() }),
        Err(TryLockError::Error(err)) => Err(locking(err)),
    }
}

/// Whether a partial response begins with the requested byte.
pub(super) fn starts_at(response: &Response<Body>, from: u64) -> bool {
    let range = response.headers().get("content-range").and_then(|it| it.to_str().ok());
    let start = range.and_then(|it| it.trim().strip_prefix("bytes ")?.split('-').next());
    start.and_then(|it| it.trim().parse().ok()) == Some(from)
}
