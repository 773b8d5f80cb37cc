//! `jackalope pull`: a model from a hub, whole and verified or not at all.
//!
//! ```text
//!   hub (asks and understands refusals) ─▶ choice (the files that serving needs)
//!     ─▶ place (where each goes) ─▶ fetch (one file: go on, verify) ─▶ links, or a record
//!   retry: what is tried again, how often and when
//! ```
//!
//! Interrupted at any point, the same command goes on where it stopped. Nothing that is not verified
//! has the name of something finished.

mod choice;
mod fetch;
mod hub;
mod place;
mod retry;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure};
use indicatif::HumanBytes;
use jackalope_cluster::models::{BlobId, Check, HashCache, RepoId, Revision};
use serde_json::json;

use crate::args::PullArgs;
use crate::environment::Environment;
use crate::output;
use crate::progress::Transfer;
use choice::choose;
use fetch::Fetch;
use hub::{Hub, Listing};
use place::{Job, Place};
use retry::{Retries, Stop};

/// Files fetched side by side: enough to fill a fast line, few enough not to be throttled.
const PARALLEL_FILES: usize = 4;

/// What a pull did.
#[derive(Debug)]
struct Pulled {
    commit: String,
    place: Place,
    num_files: usize,
    bytes: u64,
    fetched_bytes: u64,
}

pub(crate) async fn run(args: PullArgs, environment: &Environment) -> anyhow::Result<()> {
    if let Some(variable) = environment.offline {
        bail!(
            "{variable} forbids to ask {}\nhint: unset it, or copy the model's directory here",
            environment.endpoint
        );
    }
    let pull = Pull::new(&args, environment)?;
    // Waiting for the network blocks, so it has threads of its own. They end with the process.
    let work = tokio::task::spawn_blocking(move || pull.run());
    let pulled = tokio::select! {
        result = work => result??,
        _ = tokio::signal::ctrl_c() => {
            bail!("interrupted\nhint: the same command goes on where this one stopped")
        }
    };
    report(&args, &pulled)
}

fn revision(args: &PullArgs) -> anyhow::Result<Revision> {
    let (behind_at, option) = (&args.model.revision, &args.revision);
    ensure!(
        behind_at.is_none() || option.is_none() || behind_at == option,
        "two revisions are named\nhint: name one, behind an @ or with `--revision`"
    );
    Ok(behind_at.clone().or_else(|| option.clone()).unwrap_or_default())
}

/// A pull as it was asked for.
#[derive(Debug)]
struct Pull {
    hub: Hub,
    repo: RepoId,
    revision: Revision,
    place: Place,
    /// Remembers what was verified.
    hashes_path: Option<PathBuf>,
    retries: u32,
    stop: Stop,
}

impl Pull {
    fn new(args: &PullArgs, environment: &Environment) -> anyhow::Result<Pull> {
        let repo = args.model.repo.clone();
        let place = match (&args.to, environment.pull_cache()) {
            (Some(dir), _) => Place::Directory(std::path::absolute(dir)?),
            (None, Some(root)) => Place::cache(root, &repo)?,
            (None, None) => {
                bail!("there is no home directory to put models into\nhint: pass `--to DIR`")
            }
        };
        Ok(Pull {
            hub: Hub::new(environment, Duration::from_secs(args.stall_timeout)),
            repo,
            revision: revision(args)?,
            place,
            hashes_path: environment.hashes_path(),
            retries: args.retries,
            stop: Stop::default(),
        })
    }

    fn run(self) -> anyhow::Result<Pulled> {
        let listing = self.list()?;
        let files = choose(&self.repo, &listing)?;
        self.place.check_owner(&self.repo, &files)?;
        let jobs = self.place.jobs(&files);
        self.place.check_room(&jobs)?;
        let fetched_bytes = self.fetch_all(&jobs, &listing.commit)?;
        self.place.finish(&self.repo, &self.revision, &listing.commit, &files)?;
        self.remember(&jobs);
        let (commit, bytes) = (listing.commit, files.iter().map(|file| file.bytes).sum());
        Ok(Pulled { commit, place: self.place, num_files: files.len(), bytes, fetched_bytes })
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

    /// Fetches what is not there yet, and says how many bytes came over the network.
    fn fetch_all(&self, jobs: &[Job], commit: &str) -> anyhow::Result<u64> {
        let bar = Transfer::new("fetching", jobs.iter().map(|job| job.file.bytes).sum());
        let next = AtomicUsize::new(0);
        let work = || -> anyhow::Result<u64> {
            let mut fetched_bytes = 0;
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                match Fetch::new(self, job, commit, &bar).run() {
                    Ok(bytes) => fetched_bytes += bytes,
                    // The first failure ends the others at once, also where they wait.
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
        results.into_iter().sum()
    }

    /// So that hundreds of gigabytes that were hashed on their way here are not hashed again.
    fn remember(&self, jobs: &[Job]) {
        let Some(path) = &self.hashes_path else { return };
        let mut known = HashCache::load(path);
        for job in jobs {
            if let BlobId::Content(hash) = job.file.blob {
                // Whatever is not remembered is hashed when it is needed.
                known.remember(&job.done, hash).ok();
            }
        }
        if let Err(err) = known.save(path) {
            tracing::warn!(%err, path = %path.display(), "hashes are not remembered");
        }
    }
}

fn report(args: &PullArgs, pulled: &Pulled) -> anyhow::Result<()> {
    let Pulled { commit, place, num_files, bytes, fetched_bytes } = pulled;
    let dir = place.dir(commit);
    let problems: Vec<String> =
        Check::of_dir(&dir).problems.iter().map(ToString::to_string).collect();
    if args.json {
        output::line(json!({
            "event": "pulled", "model": args.model.repo.as_str(), "revision": commit, "path": dir,
            "files": num_files, "bytes": bytes, "fetched_bytes": fetched_bytes,
            "complete": problems.is_empty(), "problems": problems,
        }))?;
    }
    ensure!(
        problems.is_empty(),
        "all files have come, but this model cannot be served: {}\nhint: choose a repository in \
         MLX's format, for instance of mlx-community",
        problems.join(", ")
    );
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
