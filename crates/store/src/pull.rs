//! Fetches a model from a hub, complete and verified or not at all.
//!
//! ```text
//!   hub (asks and understands refusals) ─▶ choice (the files that serving needs)
//!     ─▶ preview (can this version load it?) ─▶ destination (where each goes)
//!     ─▶ fetch (one file: go on, verify) ─▶ links, or a record
//!   retry: what is tried again, how often and when
//! ```
//!
//! If a pull is interrupted at any point, the same command continues where it stopped. Files get
//! their final names only once they are verified.

mod choice;
mod destination;
mod error;
mod fetch;
mod hub;
mod preview;
mod retry;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use choice::choose;
use destination::Job;
use fetch::Fetch;
use hub::{Hub, Listing};
use retry::{Retries, Stop};

pub use destination::Destination;
pub use error::{HubError, ListingFault, OtherWeights, PullError};
pub use hub::{HubAccess, HubToken};

use crate::progress::{ByteCount, Progress};
use crate::{BlobId, Check, HashCache, RepoId, Revision, content};

/// Number of files fetched concurrently: enough to fill a fast connection, few enough not to be
/// throttled.
const PARALLEL_FILES: usize = 4;

/// Default number of further attempts after failures without progress.
pub const RETRIES: u32 = 5;

/// Default number of seconds without a byte after which a connection is given up.
pub const STALL_SECONDS: u64 = 60;

/// Result of a pull.
#[derive(Debug)]
pub struct Pulled {
    /// The commit that was fetched.
    pub commit: String,
    destination: Destination,
    /// Number of the model's files.
    pub num_files: usize,
    /// Total size of the model's files in bytes.
    pub bytes: u64,
    /// Number of bytes of these files that this pull has fetched over the network.
    pub fetched_bytes: u64,
}

/// How a model is fetched.
#[derive(Clone, Debug)]
pub struct PullConfig {
    /// The hub to fetch from.
    pub hub: HubAccess,
    /// A connection that is silent for longer counts as broken.
    pub stall: Duration,
    /// Number of further attempts after failures without progress.
    pub retries: u32,
    /// Whether to fetch models that this version cannot load, too.
    pub takes_unsupported: bool,
    /// File in which the hashes of verified files are cached.
    pub hashes_path: Option<PathBuf>,
    /// Directory in which the block hashes of checkpoints are cached.
    pub trees_dir: Option<PathBuf>,
    /// Shows the progress to people.
    pub progress: Arc<dyn Progress>,
}

impl PullConfig {
    /// Creates the default configuration for a hub: nothing is cached, no progress is shown.
    pub fn new(hub: HubAccess) -> PullConfig {
        PullConfig {
            hub,
            stall: Duration::from_secs(STALL_SECONDS),
            retries: RETRIES,
            takes_unsupported: false,
            hashes_path: None,
            trees_dir: None,
            progress: Arc::new(crate::progress::Silent),
        }
    }
}

/// A pull and its parameters.
#[derive(Debug)]
pub struct Pull {
    hub: Hub,
    repo: RepoId,
    revision: Revision,
    destination: Destination,
    config: PullConfig,
    stop: Stop,
    /// Progress of each file, once the list of files is known.
    files: OnceLock<Vec<FileBytes>>,
}

/// Progress of a file.
#[derive(Debug)]
pub struct FileBytes {
    /// Name of the file's content: its hash.
    pub blob: BlobId,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Number of bytes of the file that have arrived.
    pub done: AtomicU64,
}

impl FileBytes {
    fn of(job: &Job) -> FileBytes {
        FileBytes { blob: job.file.blob, bytes: job.file.bytes, done: AtomicU64::new(0) }
    }
}

impl Pull {
    /// Prepares a pull; nothing is requested yet.
    ///
    /// # Errors
    /// If requests to hubs are forbidden.
    pub fn new(
        repo: RepoId,
        revision: Revision,
        destination: Destination,
        config: PullConfig,
    ) -> Result<Pull, PullError> {
        if let Some(variable) = config.hub.offline.clone() {
            return Err(PullError::Offline { variable, endpoint: config.hub.endpoint });
        }
        let hub = Hub::new(&config.hub, config.stall);
        let (stop, files) = (Stop::default(), OnceLock::new());
        Ok(Pull { hub, repo, revision, destination, config, stop, files })
    }

    /// Returns the progress of each file; empty until the list of files is known.
    pub fn files(&self) -> &[FileBytes] {
        self.files.get().map_or(&[], Vec::as_slice)
    }

    /// Ends the pull soon, at whatever point it is. Data that has arrived is kept for the next
    /// time.
    pub fn give_up(&self) {
        self.stop.set();
        self.hub.shut_down();
    }

    /// Fetches the model, and blocks until it is complete and verified.
    ///
    /// # Errors
    /// If the hub cannot be reached or refuses, or the disk has no room. What has arrived is kept.
    pub fn run(&self) -> Result<Pulled, PullError> {
        let listing = self.list()?;
        let mut files = choose(&self.repo, &listing)?;
        self.destination.check_owner(&self.repo, &files)?;
        self.destination.check_room(&self.destination.jobs(&files))?;
        let previewed_bytes = self.preview(&mut files, &listing.commit)?;
        let jobs = self.destination.jobs(&files);
        let fetched_bytes = previewed_bytes + self.fetch_all(&jobs, &listing.commit)?;
        self.destination.finish(&self.repo, &self.revision, &listing.commit, &files)?;
        self.remember(&jobs);
        if let Some(trees_dir) = &self.config.trees_dir {
            let bar =
                self.config.progress.begin("hashing", files.iter().map(|file| file.bytes).sum());
            let on_bytes = |num_bytes| bar.add(num_bytes);
            content::remember(&self.destination.dir(&listing.commit), trees_dir, &on_bytes);
        }
        let (commit, bytes) = (listing.commit, files.iter().map(|file| file.bytes).sum());
        let destination = self.destination.clone();
        Ok(Pulled { commit, destination, num_files: files.len(), bytes, fetched_bytes })
    }

    fn list(&self) -> Result<Listing, PullError> {
        let mut retries = Retries::new(self.config.retries);
        loop {
            match self.hub.list(&self.repo, &self.revision) {
                Ok(listing) => return Ok(listing),
                Err(failure) => retries.again(failure, &self.stop)?,
            }
        }
    }

    /// Fetches the missing files, and returns the number of bytes that came over the network.
    fn fetch_all(&self, jobs: &[Job], commit: &str) -> Result<u64, PullError> {
        let bar =
            self.config.progress.begin("fetching", jobs.iter().map(|job| job.file.bytes).sum());
        let files = self.files.get_or_init(|| jobs.iter().map(FileBytes::of).collect());
        let next = AtomicUsize::new(0);
        let work = || -> Result<u64, PullError> {
            let mut fetched_bytes = 0;
            while let Some((job, file)) =
                jobs.iter().zip(files).nth(next.fetch_add(1, Ordering::Relaxed))
            {
                match Fetch::new(self, job, commit, Counting { bar: &*bar, file }).run() {
                    Ok(bytes) => fetched_bytes += bytes,
                    // The first failure ends the other threads at once, also while they wait.
                    Err(err) => {
                        let is_first = self.stop.set();
                        self.hub.shut_down();
                        return if is_first { Err(err) } else { Ok(fetched_bytes) };
                    }
                }
            }
            Ok(fetched_bytes)
        };
        let results: Vec<Result<u64, PullError>> = thread::scope(|scope| {
            let num_threads = PARALLEL_FILES.min(jobs.len());
            let threads: Vec<_> = (0..num_threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|it| it.join().expect("fetching does not panic")).collect()
        });
        drop(bar);
        let fetched_bytes = results.into_iter().sum::<Result<u64, PullError>>()?;
        // Threads that were stopped report no failure of their own.
        if self.stop.is_set() { Err(PullError::Stopped) } else { Ok(fetched_bytes) }
    }

    /// Caches the hashes, so that hundreds of gigabytes that were hashed on arrival are not hashed
    /// again.
    fn remember(&self, jobs: &[Job]) {
        let Some(path) = &self.config.hashes_path else { return };
        let mut known = HashCache::load(path);
        for job in jobs {
            if let BlobId::Content(hash) = job.file.blob {
                // Hashes that are not cached are computed when they are needed.
                known.remember(&job.done, hash).ok();
            }
        }
        if let Err(err) = known.save(path) {
            tracing::warn!(%err, path = %path.display(), "hashes could not be cached");
        }
    }
}

impl Pulled {
    /// Returns the directory of the model.
    pub fn dir(&self) -> PathBuf {
        self.destination.dir(&self.commit)
    }

    /// Returns the reasons why the model cannot be served; empty if it can.
    pub fn problems(&self) -> Vec<String> {
        Check::of_dir(&self.dir()).problems.iter().map(ToString::to_string).collect()
    }

    /// Checks that the model can be served.
    ///
    /// # Errors
    /// If the model cannot be served; the error has the reasons.
    pub fn check(&self) -> Result<(), PullError> {
        let problems = self.problems();
        if problems.is_empty() { Ok(()) } else { Err(PullError::Unusable { problems }) }
    }
}

/// Counts arriving bytes, for people and for programs.
#[derive(Clone, Copy)]
struct Counting<'a> {
    bar: &'a dyn ByteCount,
    file: &'a FileBytes,
}

impl Counting<'_> {
    fn add(&self, num_bytes: u64) {
        self.bar.add(num_bytes);
        self.file.done.fetch_add(num_bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes that must be fetched again.
    fn take_back(&self, num_bytes: u64) {
        self.bar.take_back(num_bytes);
        self.file.done.fetch_sub(num_bytes, Ordering::Relaxed);
    }
}
