//! Fetches models from the hub and removes them, as clients of the server request.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jackalope_server::{ModelRemoveError, Models, PullProgress, Puller, RemoveFuture};
use jackalope_store::pull::{Destination, Pull, PullError, Pulled};
use jackalope_store::{BlobId, ModelRef, ModelStore, NameError, Removal, StoreKind, Stores};
use thiserror::Error;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

use crate::context::LocalContext;
use crate::error::{self, DeployError};
use crate::registry::ModelRegistry;
use crate::served::details;
use crate::served_models::ServedModel;

/// Maximum number of concurrent pulls.
const PULLS_MAX: usize = 2;

/// Maximum number of progress lines that a client has not read yet; later ones are dropped.
const LINES_MAX: usize = 256;

/// Interval of reporting the progress of a pull.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Length of the digests shown to people.
const DIGEST_CHARS: usize = 12;

/// Fetches models like `jackalope pull`, and removes models like `jackalope models rm`, but only
/// below the directory that is served.
#[derive(Debug)]
pub struct HubPuller {
    state: Arc<PullerState>,
    /// Pulls in progress; they end with the server.
    pulls: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct PullerState {
    context: LocalContext,
    /// Directory of models that is served, if any.
    folder: Option<ModelStore>,
    models: Models,
    registry: ModelRegistry,
}

/// Ends a pull when dropped.
struct Underway(Arc<Pull>);

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// Why a model that a client requested is not fetched.
#[derive(Debug, Error)]
enum HubPullError {
    #[error("{name} is no name of a model on the hub: {source}")]
    Name { name: String, source: NameError },
    #[error(transparent)]
    Destination(#[from] DeployError),
    #[error(transparent)]
    Pull(#[from] PullError),
    #[error("finding the model's directory: {0}")]
    Dir(#[from] io::Error),
    #[error(
        "the model was downloaded, but this server already offers the maximum number of models"
    )]
    TooMany,
    #[error("the client has cancelled the download")]
    Cancelled,
    #[error(transparent)]
    Thread(#[from] JoinError),
}

impl HubPuller {
    /// Creates a puller for a server of these models. Models are fetched into `folder`, or else into
    /// the default cache.
    pub fn new(
        context: &LocalContext,
        folder: Option<ModelStore>,
        models: &Models,
        registry: ModelRegistry,
    ) -> HubPuller {
        let (context, models) = (context.clone(), models.clone());
        let state = Arc::new(PullerState { context, folder, models, registry });
        HubPuller { state, pulls: Mutex::default() }
    }
}

impl Puller for HubPuller {
    fn pull(&self, name: &str) -> Receiver<PullProgress> {
        let (sender, progress) = mpsc::channel(LINES_MAX);
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        while pulls.try_join_next().is_some() {}
        if PULLS_MAX <= pulls.len() {
            let reason = format!(
                "{PULLS_MAX} models are being downloaded, which is the maximum\n\
                 hint: try again later"
            );
            sender.try_send(PullProgress::Failed { reason }).expect("the channel is new");
            return progress;
        }
        let (state, name) = (Arc::clone(&self.state), name.to_owned());
        pulls.spawn(async move {
            let last = match state.pull(&name, &sender).await {
                Ok(()) => PullProgress::Done,
                Err(err) => PullProgress::Failed { reason: error::text(&err) },
            };
            // The client may be gone.
            sender.send(last).await.ok();
        });
        progress
    }

    fn remove(&self, id: &str) -> RemoveFuture {
        let (state, id) = (Arc::clone(&self.state), id.to_owned());
        Box::pin(async move {
            let work = tokio::task::spawn_blocking(move || state.remove(&id));
            work.await.map_err(|err| ModelRemoveError::Failed { reason: err.to_string() })?
        })
    }
}

impl PullerState {
    async fn pull(&self, name: &str, progress: &Sender<PullProgress>) -> Result<(), HubPullError> {
        let wanted: ModelRef =
            name.parse().map_err(|source| HubPullError::Name { name: name.to_owned(), source })?;
        let (repo, revision) = (wanted.repo.clone(), wanted.revision.clone().unwrap_or_default());
        let destination = match &self.folder {
            None => self.context.pull_destination(&repo)?,
            Some(ModelStore { kind: StoreKind::HubCache, root, .. }) => {
                Destination::cache(root, &repo)?
            }
            Some(ModelStore { kind: StoreKind::Folder, root, .. }) => {
                Destination::Directory(std::path::absolute(root.join(repo.as_str()))?)
            }
        };
        let config = self.context.pull_config();
        let pull = Pull::new(repo, revision, destination, config)?;
        let pulled = watched(Arc::new(pull), progress).await?;
        say(progress, "verifying the model", None);
        let pulled = tokio::task::spawn_blocking(move || pulled.check().map(|()| pulled)).await??;
        match self.folder {
            Some(_) => self.add(&wanted, &pulled),
            None => {
                let hint = format!("serve it with: jackalope serve --model {wanted}");
                say(progress, &hint, None);
                Ok(())
            }
        }
    }

    /// Adds a model that was fetched to the server's list.
    fn add(&self, wanted: &ModelRef, pulled: &Pulled) -> Result<(), HubPullError> {
        let dir = std::fs::canonicalize(pulled.dir())?;
        let id = wanted.repo.as_str();
        // A model that is already served under this name stays unchanged.
        if self.models.is_known(id) {
            return Ok(());
        }
        if !self.registry.add(ServedModel::of_folder(id.to_owned(), dir.clone())) {
            return Err(HubPullError::TooMany);
        }
        self.models.add(id, details(&dir));
        Ok(())
    }

    fn remove(&self, id: &str) -> Result<(), ModelRemoveError> {
        let refused = |reason: String| ModelRemoveError::Refused { reason };
        let Some(folder) = &self.folder else {
            return Err(refused(format!(
                "this server offers no folder of models (`--models-dir`)\nhint: stop the server and \
                 run `jackalope models rm {id}`"
            )));
        };
        let (_, model) = self.registry.model(id);
        let stores = Stores::new([folder.clone()]);
        let removal = Removal::of_dir(&stores, &model.located.dir)
            .ok()
            .filter(|removal| removal.is_in_store)
            .ok_or_else(|| refused("it is not in the folder of `--models-dir`".to_owned()))?;
        self.models.take_away(id).map_err(|why| refused(why.to_string()))?;
        removal.carry_out().map_err(|err| {
            // Files may be missing now; loading the model reports that.
            self.models.add(id, details(&model.located.dir));
            ModelRemoveError::Failed { reason: err.to_string() }
        })
    }
}

/// Fetches the model and reports its progress, until it is complete or the client is gone.
async fn watched(pull: Arc<Pull>, progress: &Sender<PullProgress>) -> Result<Pulled, HubPullError> {
    say(progress, "pulling manifest", None);
    let underway = Underway(Arc::clone(&pull));
    let mut work = tokio::task::spawn_blocking(move || pull.run());
    let mut looks = interval(LOOK_AGAIN);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reported = HashMap::new();
    loop {
        tokio::select! {
            pulled = &mut work => {
                report(&underway.0, &mut reported, progress);
                return Ok(pulled??);
            }
            () = progress.closed() => return Err(HubPullError::Cancelled),
            _ = looks.tick() => report(&underway.0, &mut reported, progress),
        }
    }
}

/// Reports the progress of each file whose number of received bytes differs from `reported`, the
/// numbers of the last report; at first that of all files, so that their sum is known.
fn report(pull: &Pull, reported: &mut HashMap<usize, u64>, progress: &Sender<PullProgress>) {
    for (idx, file) in pull.files().iter().enumerate() {
        let done = file.done.load(Ordering::Relaxed);
        if reported.insert(idx, done) == Some(done) {
            continue;
        }
        let (kind, hash) = match file.blob {
            BlobId::Content(_) => ("sha256", file.blob.to_string()),
            BlobId::Git(_) => ("sha1", file.blob.to_string()),
        };
        let short: String = hash.chars().take(DIGEST_CHARS).collect();
        let digest = Some((format!("{kind}:{hash}"), file.bytes, done));
        say(progress, &format!("pulling {short}"), digest);
    }
}

/// Sends a line to the client, unless it is too far behind.
fn say(progress: &Sender<PullProgress>, status: &str, file: Option<(String, u64, u64)>) {
    let (digest, bytes) = match file {
        Some((digest, total, done)) => (Some(digest), Some((total, done))),
        None => (None, None),
    };
    let line = PullProgress::Working { status: status.to_owned(), digest, bytes };
    progress.try_send(line).ok();
}
