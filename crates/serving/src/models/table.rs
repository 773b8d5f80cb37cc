//! The table of models: which exist, and in which state each is.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jackalope_engine::{EngineHandle, EngineState, Status};
use thiserror::Error;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::loader::{KnownModel, LoadFailure, MachineBytes, ModelLoader};
use crate::error::ApiError;
use crate::ids::unix_seconds;
use crate::model::{ModelDetails, RunningModel};

/// Time after a failed load during which requests do not start another one.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The name that always refers to the default model, unless a model has this name.
const DEFAULT: &str = "default";

/// Ollama's tag, with which a name means the same as without.
pub const LATEST: &str = ":latest";

/// How models share a server.
#[derive(Clone, Debug, Default)]
pub struct ModelsConfig {
    /// Memory that all loaded models may take together; machines that are not named are unbounded.
    pub budget: MachineBytes,
    /// Whether a request for a model that is not loaded loads it.
    pub load_on_demand: bool,
    /// Time after which a model without requests is unloaded; never if absent.
    pub idle_unload: Option<Duration>,
    /// Id of the default model; the first model if absent.
    pub default: Option<String>,
}

/// The models of a server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Models {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    /// Absent for a single model whose engine the caller manages.
    pub(super) loader: Option<Arc<dyn ModelLoader>>,
    pub(super) config: ModelsConfig,
    pub(super) default_idx: usize,
    pub(super) entries: Mutex<Vec<Entry>>,
    /// Number of changes of the entries so far.
    pub(super) changed: watch::Sender<u64>,
    /// Held while memory for a model is being reserved.
    pub(super) moving: tokio::sync::Mutex<()>,
    /// Whether the server is shutting down, so that nothing is loaded any more.
    pub(super) is_over: AtomicBool,
    /// The task that unloads idle models; it ends when this value is dropped.
    pub(super) janitor: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Models").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A model, loaded or not.
pub(super) struct Entry {
    pub(super) known: KnownModel,
    pub(super) created: u64,
    pub(super) state: State,
    /// Number of requests that hold a lease.
    pub(super) num_open: usize,
    /// Number of requests that wait until the model is loaded.
    pub(super) num_waiting: usize,
    pub(super) last_used: Instant,
    /// Idle time set by the last request that set one; `Some(None)`: the model stays loaded.
    pub(super) keep_alive: Option<Option<Duration>>,
    pub(super) num_loads: u64,
    pub(super) failed: Option<Failed>,
    /// The task that runs the model while it is not unloaded.
    pub(super) task: Option<Task>,
    /// Whether the model was removed. The entry stays, because models are identified by their
    /// index.
    pub(super) is_gone: bool,
}

pub(super) enum State {
    Unloaded,
    /// Memory is being reserved, then the engine is started.
    Preparing {
        since: Instant,
        /// Memory that the model will take, once it has been reserved.
        need: Option<MachineBytes>,
    },
    Loaded(Loaded),
    Unloading {
        need: MachineBytes,
    },
}

pub(super) struct Loaded {
    pub(super) model: Arc<RunningModel>,
    pub(super) need: MachineBytes,
    pub(super) since: Instant,
    /// Duration of the load, once the ranks have loaded.
    pub(super) load_time: Option<Duration>,
}

pub(super) struct Task {
    pub(super) stop: Option<oneshot::Sender<ShutdownMode>>,
    pub(super) handle: JoinHandle<()>,
}

/// How an engine is ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ShutdownMode {
    /// The engine ends together with its ranks.
    Shutdown,
    /// The ranks keep running, so that a later server can take them over.
    HandOver,
}

/// The failure of the last load.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) why: LoadFailure,
    pub(super) at: Instant,
    /// Number of the load that failed.
    pub(super) num_loads: u64,
}

/// Reason why a model cannot be removed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum KeptBecause {
    /// There is no model with this id.
    #[error("it is not there")]
    Unknown,
    /// The model is loaded or being loaded.
    #[error("it is loaded\nhint: POST /model/unload unloads it")]
    Loaded,
    /// The model is pinned or the default model.
    #[error("it is pinned, or the default model\nhint: start the server without it")]
    Promised,
}

/// The status of a model, for lists.
#[derive(Clone, Debug)]
pub struct ModelStatus {
    /// Id of the model.
    pub id: String,
    /// Other names that requests may use.
    pub aliases: Vec<String>,
    /// Whether the model answers requests that name no model.
    pub is_default: bool,
    /// Whether the model is never unloaded for another one.
    pub is_pinned: bool,
    /// Time from which on the model is served, in seconds since 1970.
    pub created: u64,
    /// `unloaded`, `loading`, `unloading`, or the state of the model's engine.
    pub state: &'static str,
    /// Present while the model's engine runs.
    pub model: Option<Arc<RunningModel>>,
    /// Duration of the load, once the ranks have loaded.
    pub load_time: Option<Duration>,
    /// Bytes of weights loaded so far and in total, while the model is loading.
    pub loaded_bytes: Option<(u64, u64)>,
    /// Time since the load began, while the model is loading.
    pub loading_for: Option<Duration>,
    /// Number of requests that use the model.
    pub num_open: usize,
    /// Number of requests that wait until the model is loaded.
    pub num_waiting: usize,
    /// Time until the model is unloaded without a request; none if it stays loaded.
    pub expires_in: Option<Duration>,
    /// Reason why the last load failed or the engine ended, or why a rank that loads is started
    /// again.
    pub failure: Option<String>,
    /// Properties of the checkpoint, if known.
    pub details: Option<ModelDetails>,
}

impl ModelStatus {
    /// The status of the model's engine; an empty one if no engine runs.
    pub fn engine_status(&self) -> Status {
        self.model.as_ref().map(|it| it.engine.status()).unwrap_or_default()
    }

    /// Returns whether requests for the model are computed, or wait for a rank that is being
    /// replaced.
    pub fn is_up(&self) -> bool {
        matches!(self.state, "ready" | "recovering")
    }
}

impl Models {
    /// Creates a registry of one model whose engine the caller manages; it is never loaded or
    /// unloaded.
    pub fn fixed(model: RunningModel) -> Models {
        let known = KnownModel {
            aliases: model.aliases.clone(),
            details: model.details.clone(),
            ..KnownModel::new(&model.id)
        };
        let models = Models::of(None, vec![known], ModelsConfig::default());
        let now = Instant::now();
        let need = MachineBytes::default();
        let model = Arc::new(model);
        models.lock()[0].state = State::Loaded(Loaded { model, need, since: now, load_time: None });
        models
    }

    pub(super) fn of(
        loader: Option<Arc<dyn ModelLoader>>,
        known: Vec<KnownModel>,
        config: ModelsConfig,
    ) -> Models {
        let is_default = |it: &KnownModel| config.default.as_ref().is_none_or(|id| it.id == *id);
        let default_idx = known.iter().position(is_default);
        assert!(default_idx.is_some() || known.is_empty(), "the default is a known model");
        let shared = Shared {
            loader,
            config,
            // If there is no model yet, the first one that is added becomes the default.
            default_idx: default_idx.unwrap_or(0),
            entries: Mutex::new(known.into_iter().map(Entry::new).collect()),
            changed: watch::Sender::new(0),
            moving: tokio::sync::Mutex::new(()),
            is_over: AtomicBool::new(false),
            janitor: Mutex::new(None),
        };
        Models { shared: Arc::new(shared) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.shared.lock()
    }

    /// The engine of a model, while it runs.
    pub fn engine(&self, name: &str) -> Option<EngineHandle> {
        let idx = self.find(Some(name))?;
        self.lock()[idx].loaded().map(|it| it.model.engine.clone())
    }

    /// Returns whether requests load models that are not loaded.
    pub fn load_on_demand(&self) -> bool {
        self.shared.config.load_on_demand
    }

    /// Returns whether the registry never loads or unloads models.
    pub fn is_fixed(&self) -> bool {
        self.shared.loader.is_none()
    }

    /// Whether requests may set how long a model stays loaded: only if there are several models and
    /// they are loaded on demand.
    pub fn may_expire(&self) -> bool {
        self.load_on_demand() && 1 < self.lock().iter().filter(|it| !it.is_gone).count()
    }

    /// Sets how long a model stays loaded without a request: forever if `time` is absent, not at
    /// all if it is zero. Has no effect on pinned models, nor where requests may not set this.
    /// Returns false if there is no such model.
    pub fn keep_alive(&self, name: &str, time: Option<Duration>) -> bool {
        let Some(idx) = self.find(Some(name)) else { return false };
        if !self.may_expire() {
            return true;
        }
        self.lock()[idx].keep_alive = Some(time);
        self.shared.notify();
        true
    }

    /// Adds a model with this id and no aliases. Returns false if a model already has this name.
    /// The loader must already be able to start this model.
    pub fn add(&self, id: &str, details: Option<ModelDetails>) -> bool {
        let mut entries = self.lock();
        if entries.iter().any(|it| it.answers_to(id)) {
            return false;
        }
        let known = KnownModel { details, ..KnownModel::new(id) };
        match entries.iter_mut().find(|it| it.known.id == id) {
            Some(entry) => *entry = Entry { num_loads: entry.num_loads, ..Entry::new(known) },
            None => entries.push(Entry::new(known)),
        }
        drop(entries);
        self.shared.notify();
        true
    }

    /// Returns whether a model has this id or alias; `default` counts if there is a default model.
    pub fn is_known(&self, name: &str) -> bool {
        self.find(Some(name)).is_some()
    }

    /// Removes a model whose files are to be deleted, so that it is not loaded any more.
    ///
    /// # Errors
    /// Returns the reason if the model cannot be removed.
    pub fn take_away(&self, id: &str) -> Result<(), KeptBecause> {
        let mut entries = self.lock();
        let found = entries.iter().position(|it| !it.is_gone && it.known.id == id);
        let idx = found.ok_or(KeptBecause::Unknown)?;
        let entry = &mut entries[idx];
        let is_in_use = !matches!(entry.state, State::Unloaded) || entry.task.is_some();
        if is_in_use || 0 < entry.num_open + entry.num_waiting {
            return Err(KeptBecause::Loaded);
        }
        if idx == self.shared.default_idx || entry.known.is_pinned {
            return Err(KeptBecause::Promised);
        }
        entry.is_gone = true;
        Ok(())
    }

    /// The status of every model, in order.
    pub fn list(&self) -> Vec<ModelStatus> {
        let entries = self.lock();
        let status = |(idx, entry): (usize, &Entry)| self.shared.status(idx, entry);
        entries.iter().enumerate().filter(|it| !it.1.is_gone).map(status).collect()
    }

    /// The status of the model of this name.
    pub fn status(&self, name: &str) -> Option<ModelStatus> {
        let idx = self.find(Some(name))?;
        Some(self.shared.status(idx, &self.lock()[idx]))
    }

    /// The status of the model of this name, or an error for the client.
    pub fn named(&self, name: &str) -> Result<ModelStatus, ApiError> {
        let unknown = || ApiError::UnknownModel { found: name.to_owned(), served: self.served() };
        self.status(name).ok_or_else(unknown)
    }

    /// The ids of the models, shortened for error messages.
    pub fn served(&self) -> String {
        const IDS_MAX: usize = 16;
        let entries = self.lock();
        let all = entries.iter().filter(|it| !it.is_gone).map(|it| it.known.id.as_str());
        let mut ids: Vec<&str> = all.take(IDS_MAX + 1).collect();
        if IDS_MAX < ids.len() {
            ids[IDS_MAX] = "…";
        }
        ids.join(", ")
    }

    /// Returns whether there is a model for requests that name none.
    pub fn has_default(&self) -> bool {
        !self.lock().is_empty()
    }

    /// The index of the model of this name; of the default model if `name` is absent.
    pub(super) fn find(&self, name: Option<&str>) -> Option<usize> {
        let default = || self.has_default().then_some(self.shared.default_idx);
        let Some(name) = name else { return default() };
        let find = |name: &str| {
            // A name is more specific than a pattern.
            let found = |answers: fn(&Entry, &str) -> bool| {
                self.lock().iter().position(|it| answers(it, name))
            };
            let exact = found(Entry::answers_to);
            let default = || default().filter(|_| name == DEFAULT);
            exact.or_else(default).or_else(|| found(Entry::matches))
        };
        find(name).or_else(|| find(name.strip_suffix(LATEST)?))
    }
}

impl Entry {
    pub(super) fn new(known: KnownModel) -> Entry {
        Entry {
            known,
            created: unix_seconds(),
            state: State::Unloaded,
            num_open: 0,
            num_waiting: 0,
            last_used: Instant::now(),
            keep_alive: None,
            num_loads: 0,
            failed: None,
            task: None,
            is_gone: false,
        }
    }

    pub(super) fn answers_to(&self, name: &str) -> bool {
        !self.is_gone && self.known.answers_to(name)
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        !self.is_gone && self.known.matches(name)
    }

    pub(super) fn loaded(&self) -> Option<&Loaded> {
        match &self.state {
            State::Loaded(loaded) => Some(loaded),
            State::Unloaded | State::Preparing { .. } | State::Unloading { .. } => None,
        }
    }

    /// Memory that the model takes, is about to take, or has not released yet.
    pub(super) fn need(&self) -> Option<&MachineBytes> {
        match &self.state {
            State::Unloaded => None,
            State::Preparing { need, .. } => need.as_ref(),
            State::Loaded(Loaded { need, .. }) | State::Unloading { need } => Some(need),
        }
    }

    /// Returns whether the model is loaded and no request uses it or waits for it.
    pub(super) fn is_idle(&self) -> bool {
        let is_up = self.loaded().is_some_and(|it| it.load_time.is_some());
        is_up && self.num_open == 0 && self.num_waiting == 0
    }

    /// Time after which the model is unloaded without a request; never if absent.
    pub(super) fn idle_unload(&self, usual: Option<Duration>) -> Option<Duration> {
        let time = self.keep_alive.unwrap_or(self.known.idle_unload.or(usual));
        time.filter(|_| !self.known.is_pinned)
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all tasks that wait for a change.
    pub(super) fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn status(&self, idx: usize, entry: &Entry) -> ModelStatus {
        let loaded = entry.loaded();
        let engine = loaded.map(|it| it.model.engine.status());
        let state = match (&entry.state, &engine) {
            (State::Unloaded, _) if entry.failed.is_some() => "failed",
            (State::Unloaded, _) => "unloaded",
            (State::Unloading { .. }, _) => "unloading",
            (_, Some(engine)) if engine.state != EngineState::Starting => engine.state.name(),
            (State::Preparing { .. } | State::Loaded(_), _) => "loading",
        };
        let sum = |of: fn((u64, u64)) -> u64| -> Option<u64> {
            let ranks = &engine.as_ref()?.ranks;
            let bytes: Vec<u64> =
                ranks.iter().filter_map(|rank| rank.loaded_bytes.map(of)).collect();
            (!bytes.is_empty()).then(|| bytes.iter().sum())
        };
        let start_failure =
            engine.as_ref().and_then(|it| Some(it.start_failure.as_ref()?.to_string()));
        let since = match &entry.state {
            State::Preparing { since, .. } => Some(*since),
            State::Loaded(loaded) => Some(loaded.since),
            State::Unloaded | State::Unloading { .. } => None,
        };
        let usual = self.config.idle_unload;
        let expires_in = entry.idle_unload(usual).filter(|_| loaded.is_some()).map(|time| {
            if entry.is_idle() { time.saturating_sub(entry.last_used.elapsed()) } else { time }
        });
        ModelStatus {
            id: entry.known.id.clone(),
            aliases: entry.known.aliases.clone(),
            is_default: idx == self.default_idx,
            is_pinned: entry.known.is_pinned,
            details: entry.known.details.clone(),
            created: loaded.map_or(entry.created, |it| it.model.created),
            state,
            model: loaded.map(|it| Arc::clone(&it.model)),
            load_time: loaded.and_then(|it| it.load_time),
            loaded_bytes: sum(|it| it.0).zip(sum(|it| it.1)),
            loading_for: since.filter(|_| state == "loading").map(|it| it.elapsed()),
            num_open: entry.num_open,
            num_waiting: entry.num_waiting,
            expires_in,
            failure: start_failure.or(entry.failed.as_ref().map(|it| it.why.to_string())),
        }
    }
}
