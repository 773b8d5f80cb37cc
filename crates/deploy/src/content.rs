//! Determines the content of the served model: from the cache, or by hashing it, with progress.
//!
//! ```text
//!                    all ranks on this machine                  ranks on several machines
//!   hashed before    verified as they load                      compared before anything loads
//!   never hashed     loaded in the files' present state,        every machine hashes its copy first,
//!                    hashed once the server is ready            then they are compared
//! ```

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jackalope_engine::{EngineHandle, EngineState};
use jackalope_protocol::{ExpectedContent, FileState};
use jackalope_store::content::{self, ContentError, Hasher};
use jackalope_store::progress::{ByteCount, Progress};
use tracing::{info, warn};

use crate::context::LocalContext;
use crate::error::DeployError;

/// Interval between log lines while a model is hashed.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Interval of polling the state of a starting engine.
const READY_POLL: Duration = Duration::from_millis(250);

/// Shows the progress of hashing, and carries its cancellation flag.
pub(crate) struct HashingWatch {
    bar: Box<dyn ByteCount>,
    num_bytes: AtomicU64,
    total_bytes: AtomicU64,
    logged_at: Mutex<Instant>,
    is_cancelled: AtomicBool,
}

/// Cancels hashing when dropped.
struct Waiting(Arc<HashingWatch>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }
}

impl HashingWatch {
    fn new(progress: &dyn Progress) -> HashingWatch {
        HashingWatch {
            bar: progress.begin("hashing the model", 0),
            num_bytes: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
            logged_at: Mutex::new(Instant::now()),
            is_cancelled: AtomicBool::new(false),
        }
    }

    /// Sets the total number of bytes to hash.
    pub(crate) fn expect(&self, num_bytes: u64) {
        self.total_bytes.store(num_bytes, Ordering::Relaxed);
        self.bar.expect(num_bytes);
    }

    /// Counts bytes that have been hashed.
    pub(crate) fn add(&self, num_bytes: u64) {
        self.bar.add(num_bytes);
        let done_bytes = self.num_bytes.fetch_add(num_bytes, Ordering::Relaxed) + num_bytes;
        let mut logged_at = self.logged_at.lock().unwrap_or_else(PoisonError::into_inner);
        if LOG_INTERVAL <= logged_at.elapsed() {
            *logged_at = Instant::now();
            let total_bytes = self.total_bytes.load(Ordering::Relaxed);
            info!(done_bytes, total_bytes, "hashing the model");
        }
    }

    /// Hashes the checkpoint in `dir`.
    pub(crate) fn hash(
        &self,
        dir: &Path,
        trees_dir: Option<&Path>,
    ) -> Result<ExpectedContent, ContentError> {
        let on_bytes = |num_bytes| self.add(num_bytes);
        let hasher = Hasher::new(trees_dir, &on_bytes).cancelled_by(&self.is_cancelled);
        Ok(hasher.hash_dir(dir)?.into())
    }
}

/// Runs `work`, which hashes, on a blocking thread. Cancels it if the returned future is dropped.
pub(crate) async fn hashing<T: Send + 'static>(
    context: &LocalContext,
    work: impl FnOnce(&HashingWatch) -> Result<T, DeployError> + Send + 'static,
) -> Result<T, DeployError> {
    let watch = Arc::new(HashingWatch::new(&*context.observer));
    let waiting = Waiting(Arc::clone(&watch));
    let result = tokio::task::spawn_blocking(move || work(&watch)).await?;
    drop(waiting);
    result
}

/// Returns the content of the checkpoint in `dir`; hashes what is not cached.
///
/// # Errors
/// If the checkpoint cannot be read, or changes while it is hashed.
pub async fn content_of_dir(
    dir: &Path,
    context: &LocalContext,
) -> Result<ExpectedContent, DeployError> {
    let (dir, trees_dir) = (dir.to_owned(), context.trees_dir());
    hashing(context, move |watch| {
        watch.expect(content::states(&dir)?.iter().map(|it| it.bytes).sum());
        Ok(watch.hash(&dir, trees_dir.as_deref())?)
    })
    .await
}

/// Content that this machine's ranks must find. Cheap to clone; all clones share it.
#[derive(Clone, Debug)]
pub(crate) struct OwnContent {
    dir: PathBuf,
    trees_dir: Option<PathBuf>,
    expected: Arc<Mutex<ExpectedContent>>,
}

impl OwnContent {
    /// Returns the content as far as it is cached. A model that was never hashed is identified by
    /// the states of its files, unless they were written so recently that their states prove
    /// nothing: then it is hashed now.
    ///
    /// # Errors
    /// If the checkpoint cannot be read, or changes while it is hashed.
    pub(crate) async fn of_dir(
        dir: &Path,
        context: &LocalContext,
    ) -> Result<OwnContent, DeployError> {
        let trees_dir = context.trees_dir();
        let known = trees_dir.as_deref().and_then(|trees_dir| content::known(dir, trees_dir));
        let expected = match known {
            Some(known) => known.into(),
            None => {
                let states = content::states(dir)?;
                if states.iter().all(FileState::is_settled) {
                    ExpectedContent { states, ..ExpectedContent::default() }
                } else {
                    content_of_dir(dir, context).await?
                }
            }
        };
        let (dir, expected) = (dir.to_owned(), Arc::new(Mutex::new(expected)));
        Ok(OwnContent { dir, trees_dir, expected })
    }

    /// Returns the content as known now.
    pub(crate) fn now(&self) -> ExpectedContent {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, ExpectedContent> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hashes the model in the background with one thread, as soon as the ranks have loaded. Stops
    /// early when all other clones are dropped.
    pub(crate) fn hash_when_ready(self, engine: EngineHandle) {
        std::thread::spawn(move || {
            let state = loop {
                match engine.status().state {
                    EngineState::Starting => std::thread::sleep(READY_POLL),
                    state => break state,
                }
            };
            // An engine handle keeps the engine alive.
            drop(engine);
            if state != EngineState::Stopping {
                self.hash();
            }
        });
    }

    fn hash(self) {
        let OwnContent { dir, trees_dir, expected: own } = self;
        let expected = Arc::downgrade(&own);
        // Hashing continues only as long as other clones exist.
        drop(own);
        let is_cancelled = AtomicBool::new(false);
        let on_bytes = |_| is_cancelled.store(expected.strong_count() == 0, Ordering::Relaxed);
        let hasher = Hasher::new(trees_dir.as_deref(), &on_bytes).with_threads(1);
        let hashed = hasher.cancelled_by(&is_cancelled).hash_dir(&dir);
        let Some(expected) = expected.upgrade() else { return };
        let mut expected = expected.lock().unwrap_or_else(PoisonError::into_inner);
        match hashed {
            Ok(content) if content.states == expected.states => {
                info!(id = %content.id, "the model has been hashed");
                *expected = content.into();
            }
            Ok(_) => {
                warn!(dir = %dir.display(), "the model's files have changed since it was loaded")
            }
            Err(err) => warn!(%err, "the model could not be hashed"),
        }
    }
}
