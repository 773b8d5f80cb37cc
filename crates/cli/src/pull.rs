//! `jackalope pull`: fetches a model from a hub, complete and verified or not at all.
//!
//! ```text
//!   hub (asks and understands refusals) ─▶ choice (the files that serving needs)
//!     ─▶ place (where each goes) ─▶ fetch (one file: go on, verify) ─▶ links, or a record
//!   retry: what is tried again, how often and when
//! ```
//!
//! If a pull is interrupted at any point, the same command continues where it stopped. Files get
//! their final names only once they are verified.

mod choice;
mod fetch;
mod hub;
mod place;
mod retry;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use indicatif::HumanBytes;
use jackalope_store::{BlobId, Check, HashCache, RepoId, Revision, Unsupported, content};
use serde_json::json;

use crate::args::{ModelsSyncArgs, PullArgs};
use crate::environment::Environment;
use crate::progress::Transfer;
use crate::report::Interrupted;
use crate::{models, output};
use choice::choose;
use fetch::Fetch;
use hub::{Hub, Listing};
use place::Job;
pub(crate) use place::Place;
use retry::{Retries, Stop};

/// Number of files fetched concurrently: enough to fill a fast connection, few enough not to be
/// throttled.
const PARALLEL_FILES: usize = 4;

/// Default number of further attempts after failures without progress.
pub(crate) const RETRIES: u32 = 5;

/// Default number of seconds without a byte after which a connection is given up.
pub(crate) const STALL_SECONDS: u64 = 60;

/// Result of a pull.
#[derive(Debug)]
pub(crate) struct Pulled {
    commit: String,
    place: Place,
    num_files: usize,
    bytes: u64,
    fetched_bytes: u64,
}

pub(crate) async fn run(args: PullArgs, environment: &Environment) -> anyhow::Result<()> {
    let place = match &args.to {
        Some(dir) => Place::Directory(std::path::absolute(dir)?),
        None => usual_place(&args.model.repo, environment)?,
    };
    let stall = Duration::from_secs(args.stall_timeout);
    let pull = Pull {
        retries: args.retries,
        takes_unsupported: args.unsupported,
        ..Pull::new((args.model.repo.clone(), revision(&args)?), place, (stall, environment))?
    };
    // Waiting for the network blocks, so it runs on its own threads. They end with the process.
    let work = tokio::task::spawn_blocking(move || pull.run());
    let pulled = tokio::select! {
        result = work => result??,
        _ = tokio::signal::ctrl_c() => {
            let hint = "interrupted\nhint: the same command goes on where this one stopped";
            return Err(anyhow::Error::new(Interrupted).context(hint));
        }
    };
    report(&args, &pulled)?;
    let PullArgs { hosts, reach, json, .. } = args;
    let Some(hosts) = hosts else { return Ok(()) };
    let model = pulled.dir().to_path_buf();
    let connections = ModelsSyncArgs::CONNECTIONS;
    let sync = ModelsSyncArgs { model, hosts, from: None, connections, reach, json };
    models::sync(sync, environment).await
}

/// Returns the default destination: Hugging Face's cache, which other programs share.
pub(crate) fn usual_place(repo: &RepoId, environment: &Environment) -> anyhow::Result<Place> {
    match environment.pull_cache() {
        Some(root) => Place::cache(root, repo),
        None => bail!("there is no home directory to put models into\nhint: pass `--to DIR`"),
    }
}

fn revision(args: &PullArgs) -> anyhow::Result<Revision> {
    let (behind_at, option) = (&args.model.revision, &args.revision);
    ensure!(
        behind_at.is_none() || option.is_none() || behind_at == option,
        "two revisions are named\nhint: name one, behind an @ or with `--revision`"
    );
    Ok(behind_at.clone().or_else(|| option.clone()).unwrap_or_default())
}

/// A pull and its parameters.
#[derive(Debug)]
pub(crate) struct Pull {
    hub: Hub,
    repo: RepoId,
    revision: Revision,
    place: Place,
    /// File in which the hashes of verified files are cached.
    hashes_path: Option<PathBuf>,
    trees_dir: Option<PathBuf>,
    retries: u32,
    /// Whether to fetch models that this version cannot load, too.
    takes_unsupported: bool,
    stop: Stop,
    /// Progress of each file, once the list of files is known.
    files: OnceLock<Vec<FileBytes>>,
}

/// Progress of a file.
#[derive(Debug)]
pub(crate) struct FileBytes {
    pub(crate) blob: BlobId,
    pub(crate) bytes: u64,
    /// Number of bytes that have arrived.
    pub(crate) done: AtomicU64,
}

impl Pull {
    /// # Errors
    /// If the environment forbids requests to hubs.
    pub(crate) fn new(
        (repo, revision): (RepoId, Revision),
        place: Place,
        (stall, environment): (Duration, &Environment),
    ) -> anyhow::Result<Pull> {
        if let Some(variable) = environment.offline {
            bail!(
                "{variable} forbids to ask {}\nhint: unset it, or copy the model's directory here",
                environment.endpoint
            );
        }
        Ok(Pull {
            hub: Hub::new(environment, stall),
            repo,
            revision,
            place,
            hashes_path: environment.hashes_path(),
            trees_dir: environment.trees_dir(),
            retries: RETRIES,
            takes_unsupported: false,
            stop: Stop::default(),
            files: OnceLock::new(),
        })
    }

    /// Returns the progress of each file; empty until the list of files is known.
    pub(crate) fn files(&self) -> &[FileBytes] {
        self.files.get().map_or(&[], Vec::as_slice)
    }

    /// Ends the pull soon, at whatever point it is. Data that has arrived is kept for the next
    /// time.
    pub(crate) fn give_up(&self) {
        self.stop.set();
        self.hub.shut_down();
    }

    pub(crate) fn run(&self) -> anyhow::Result<Pulled> {
        let listing = self.list()?;
        let files = choose(&self.repo, &listing)?;
        self.place.check_owner(&self.repo, &files)?;
        let jobs = self.place.jobs(&files);
        self.place.check_room(&jobs)?;
        let fetched_bytes = self.fetch_all(&jobs, &listing.commit)?;
        self.place.finish(&self.repo, &self.revision, &listing.commit, &files)?;
        self.remember(&jobs);
        if let Some(trees_dir) = &self.trees_dir {
            let bar = Transfer::new("hashing", files.iter().map(|file| file.bytes).sum());
            let on_bytes = |num_bytes| bar.add(num_bytes);
            content::remember(&self.place.dir(&listing.commit), trees_dir, &on_bytes);
            bar.finish();
        }
        let (commit, bytes) = (listing.commit, files.iter().map(|file| file.bytes).sum());
        let place = self.place.clone();
        Ok(Pulled { commit, place, num_files: files.len(), bytes, fetched_bytes })
    }

    fn list(&self) -> anyhow::Result<Listing> {
        let mut retries = Retries::new(self.retries);
        loop {
            match self.hub.list(&self.repo, &self.revision) {
                Ok(listing) => return Ok(listing),
                Err(failure) => retries.again(failure, &self.stop)?,
            }
        }
    }

    /// Fetches the missing files, and returns the number of bytes that came over the network.
    fn fetch_all(&self, jobs: &[Job], commit: &str) -> anyhow::Result<u64> {
        let bar = Transfer::new("fetching", jobs.iter().map(|job| job.file.bytes).sum());
        let known = jobs.iter().map(|job| FileBytes {
            blob: job.file.blob,
            bytes: job.file.bytes,
            done: AtomicU64::new(0),
        });
        let files = self.files.get_or_init(|| known.collect());
        let mut fetched_bytes = 0;
        // The configuration comes first, because it shows whether the rest is of any use.
        if let Some((job, file)) =
            jobs.iter().zip(files).find(|(job, _)| job.file.path.as_str() == "config.json")
        {
            let (config, progress) = (&job.done, Progress { bar: &bar, file });
            fetched_bytes += Fetch::new(self, job, commit, progress).run()?;
            self.check_loadable(config)?;
            progress.take_back(job.file.bytes);
        }
        let next = AtomicUsize::new(0);
        let work = || -> anyhow::Result<u64> {
            let mut fetched_bytes = 0;
            while let Some((job, file)) =
                jobs.iter().zip(files).nth(next.fetch_add(1, Ordering::Relaxed))
            {
                match Fetch::new(self, job, commit, Progress { bar: &bar, file }).run() {
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
        let results: Vec<anyhow::Result<u64>> = thread::scope(|scope| {
            let num_threads = PARALLEL_FILES.min(jobs.len());
            let threads: Vec<_> = (0..num_threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|it| it.join().expect("fetching does not panic")).collect()
        });
        bar.finish();
        for result in results {
            fetched_bytes += result?;
        }
        Ok(fetched_bytes)
    }

    /// # Errors
    /// If this version cannot load the model with this configuration, unless unsupported models are
    /// wanted.
    fn check_loadable(&self, config: &Path) -> anyhow::Result<()> {
        let content = fs::read(config).with_context(|| format!("reading {}", config.display()))?;
        // A malformed configuration is reported once all files have arrived.
        let found = serde_json::from_slice(&content).ok();
        match found.and_then(|config| Unsupported::of_config(&config)) {
            Some(unsupported) if !self.takes_unsupported => bail!(
                "{}: {unsupported}; no weights were fetched\nhint: choose another model, or pass \
                 `--unsupported` to fetch it for a later version",
                self.repo
            ),
            _ => Ok(()),
        }
    }

    /// Caches the hashes, so that hundreds of gigabytes that were hashed on arrival are not hashed
    /// again.
    fn remember(&self, jobs: &[Job]) {
        let Some(path) = &self.hashes_path else { return };
        let mut known = HashCache::load(path);
        for job in jobs {
            if let BlobId::Content(hash) = job.file.blob {
                // Hashes that are not cached are computed when they are needed.
                known.remember(&job.done, hash).ok();
            }
        }
        if let Err(err) = known.save(path) {
            tracing::warn!(%err, path = %path.display(), "hashes are not remembered");
        }
    }
}

impl Pulled {
    /// Returns the directory of the model.
    pub(crate) fn dir(&self) -> PathBuf {
        self.place.dir(&self.commit)
    }

    /// Returns the reasons why the model cannot be served, if any.
    fn problems(&self) -> Vec<String> {
        Check::of_dir(&self.dir()).problems.iter().map(ToString::to_string).collect()
    }

    /// # Errors
    /// If the model cannot be served.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let problems = self.problems();
        ensure!(
            problems.is_empty(),
            "all files have come, but this model cannot be served: {}\nhint: choose a repository in \
             MLX's format, for instance of mlx-community",
            problems.join(", ")
        );
        Ok(())
    }
}

/// Counts arriving bytes, for people and for programs.
#[derive(Clone, Copy)]
struct Progress<'a> {
    bar: &'a Transfer,
    file: &'a FileBytes,
}

impl Progress<'_> {
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

fn report(args: &PullArgs, pulled: &Pulled) -> anyhow::Result<()> {
    let Pulled { commit, num_files, bytes, fetched_bytes, .. } = pulled;
    let dir = pulled.dir();
    let problems = pulled.problems();
    if args.json {
        output::line(json!({
            "event": "pulled", "model": args.model.repo.as_str(), "revision": commit, "path": dir,
            "files": num_files, "bytes": bytes, "fetched_bytes": fetched_bytes,
            "complete": problems.is_empty(), "problems": problems,
        }))?;
    }
    pulled.check()?;
    if args.json {
        return Ok(());
    }
    let (size, fetched) = (HumanBytes(*bytes), HumanBytes(*fetched_bytes));
    let name = match &args.to {
        Some(_) => dir.display().to_string(),
        None => args.model.to_string(),
    };
    output::line(format_args!(
        "{}: {num_files} files, {size} ({fetched} fetched now)\n  in         {}\n  \
         serve it   jackalope serve --model {name}",
        args.model,
        dir.display()
    ))?;
    Ok(())
}
