//! The models of a server: which there are, which are loaded, and who makes room for whom.
//!
//! ```text
//!            a request, or load              engine runs           ranks have loaded
//!  Unloaded ────────────────────▶ Preparing ─────────────▶ Loaded ───────────────────▶ Loaded, up
//!     ▲ ▲                             │                      │                              │
//!     │ └── no room, or it failed ────┘                      │     idle for too long, in the way of
//!     └───────────────────────────────────────────────── Unloading ◀── another, or told to ─┘
//! ```
//!
//! - However many requests ask for a model that is not loaded, it is loaded once; they wait, within
//!   [`ServerLimits::load_wait`](crate::ServerLimits::load_wait). A failure is told to all of them.
//! - A request holds a [`Lease`] of its model until its last token. A model that is leased is not
//!   unloaded.
//! - One model at a time looks for room; those that have it load side by side.
//!
//! What a machine is, and how an engine is started, only the [`ModelLoader`] knows.

mod loader;
mod opening;
mod room;
mod tasks;

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jackalope_engine::{EngineHandle, EngineState, Status};
use thiserror::Error;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::error::ApiError;
use crate::ids::unix_seconds;
use crate::registry::{Model, ModelDetails};

pub(crate) use loader::Shortage;
pub use loader::{KnownModel, LoadError, LoadFuture, MachineBytes, ModelLoader, StartedModel};
pub(crate) use opening::Lease;
pub(crate) use tasks::Kept;

/// After a failed load, requests do not begin another one for so long.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The name that always means the default model.
const DEFAULT: &str = "default";

/// How models share a server.
#[derive(Clone, Debug, Default)]
pub struct ModelsConfig {
    /// Memory that all loaded models may take together; a machine that is not named is not bounded.
    pub budget: MachineBytes,
    /// Whether a request for a model that is not loaded loads it.
    pub load_on_demand: bool,
    /// How long a model stays without a request; for ever if absent.
    pub idle_unload: Option<Duration>,
    /// The id that `default` means; the first model's if absent.
    pub default: Option<String>,
}

/// The models of a server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Models {
    shared: Arc<Shared>,
}

struct Shared {
    /// Absent where one model is served by an engine that belongs to somebody else.
    loader: Option<Arc<dyn ModelLoader>>,
    config: ModelsConfig,
    default_idx: usize,
    entries: Mutex<Vec<Entry>>,
    /// Counts changes of the entries.
    changed: watch::Sender<u64>,
    /// Held by whoever looks for room.
    moving: tokio::sync::Mutex<()>,
    /// Set at the end of the server: nothing is loaded any more.
    is_over: AtomicBool,
    /// Ends with the value.
    janitor: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Models").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A model, loaded or not.
struct Entry {
    known: KnownModel,
    created: u64,
    state: State,
    /// Requests that hold a lease.
    num_open: usize,
    /// Requests that wait until it is loaded.
    num_waiting: usize,
    last_used: Instant,
    /// What the last request that said something said: how long it stays, for ever if absent.
    keep_alive: Option<Option<Duration>>,
    num_loads: u64,
    failed: Option<Failed>,
    /// Looks after it while it is not unloaded.
    task: Option<Task>,
    /// Whether its files are gone. Its place stays, as places tell models apart.
    is_gone: bool,
}

enum State {
    Unloaded,
    /// Looks for room, then its engine is started.
    Preparing {
        since: Instant,
        /// What it will take, once there is room for it.
        need: Option<MachineBytes>,
    },
    Loaded(Loaded),
    Unloading {
        need: MachineBytes,
    },
}

struct Loaded {
    model: Arc<Model>,
    need: MachineBytes,
    since: Instant,
    /// How long it took, once its ranks have loaded.
    load_time: Option<Duration>,
}

struct Task {
    stop: Option<oneshot::Sender<Ending>>,
    handle: JoinHandle<()>,
}

/// How an engine ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ending {
    /// With its ranks.
    Shutdown,
    /// So that a later server can take its ranks over.
    HandOver,
}

/// Why the last load came to nothing.
#[derive(Clone, Debug)]
struct Failed {
    why: LoadFailure,
    at: Instant,
    /// Which load it was.
    num_loads: u64,
}

/// Why a model is not taken away.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum KeptBecause {
    /// There is none of this id.
    #[error("it is not there")]
    Unknown,
    /// It is loaded, or on its way.
    #[error("it is loaded\nhint: POST /model/unload unloads it")]
    Loaded,
    /// It is pinned, or the one that requests mean which name none.
    #[error("it is pinned, or the default model\nhint: start the server without it")]
    Promised,
}

/// Why a model was not loaded.
#[derive(Clone, Debug, Error)]
pub(crate) enum LoadFailure {
    #[error("{0}")]
    Failed(#[from] LoadError),
    #[error("{} has {} bytes for models, and it needs {}", .0.machine, .0.budget_bytes, .0.needed_bytes)]
    NeverFits(Shortage),
    #[error("{} are in the way", .models.join(", "))]
    InTheWay { models: Vec<String> },
}

/// How a model is, for those who list them.
#[derive(Clone, Debug)]
pub(crate) struct ModelStatus {
    pub(crate) id: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) is_default: bool,
    pub(crate) is_pinned: bool,
    pub(crate) created: u64,
    /// `unloaded`, `loading`, `unloading`, or the state of its engine.
    pub(crate) state: &'static str,
    /// Present while its engine runs.
    pub(crate) model: Option<Arc<Model>>,
    /// How long it took to load, once it has.
    pub(crate) load_time: Option<Duration>,
    /// Bytes of weights in place and in all, while they are loading.
    pub(crate) loaded_bytes: Option<(u64, u64)>,
    /// Since when it has been loading.
    pub(crate) loading_for: Option<Duration>,
    pub(crate) num_open: usize,
    pub(crate) num_waiting: usize,
    /// When it will be unloaded if nobody asks for it.
    pub(crate) expires_in: Option<Duration>,
    pub(crate) failure: Option<String>,
    pub(crate) details: Option<ModelDetails>,
}

impl ModelStatus {
    /// The numbers of its engine; those of one that has no rank yet if none runs.
    pub(crate) fn engine_status(&self) -> Status {
        self.model.as_ref().map(|it| it.engine.status()).unwrap_or_default()
    }

    /// Whether requests for it are computed, or wait for a rank that is being replaced.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, "ready" | "recovering")
    }
}

impl Models {
    /// One model whose engine is somebody else's: nothing is loaded or unloaded.
    pub fn fixed(model: Model) -> Models {
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

    /// The models that `loader` knows, of which none is loaded yet.
    ///
    /// # Panics
    /// If the default is none of them, or if this is no task of an executor.
    pub fn new(
        loader: Arc<dyn ModelLoader>,
        known: Vec<KnownModel>,
        config: ModelsConfig,
    ) -> Models {
        let models = Models::of(Some(loader), known, config);
        let janitor = tokio::spawn(tasks::unload_idle(Arc::downgrade(&models.shared)));
        *models.shared.janitor.lock().unwrap_or_else(PoisonError::into_inner) = Some(janitor);
        models
    }

    fn of(
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
            // Where there is none yet, the first that comes is the default.
            default_idx: default_idx.unwrap_or(0),
            entries: Mutex::new(known.into_iter().map(Entry::new).collect()),
            changed: watch::Sender::new(0),
            moving: tokio::sync::Mutex::new(()),
            is_over: AtomicBool::new(false),
            janitor: Mutex::new(None),
        };
        Models { shared: Arc::new(shared) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.shared.lock()
    }

    /// The engine of a model, while it runs.
    pub fn engine(&self, name: &str) -> Option<EngineHandle> {
        let idx = self.find(Some(name))?;
        self.lock()[idx].loaded().map(|it| it.model.engine.clone())
    }

    /// Whether requests load what is not loaded.
    pub(crate) fn load_on_demand(&self) -> bool {
        self.shared.config.load_on_demand
    }

    /// Whether models come and go at all.
    pub(crate) fn is_fixed(&self) -> bool {
        self.shared.loader.is_none()
    }

    /// Whether requests may set how long a model stays loaded: only if there are several models and
    /// they are loaded on demand.
    pub(crate) fn may_expire(&self) -> bool {
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
        self.shared.tell();
        true
    }

    /// Adds a model that has come, under its id alone. False if there is one of this name. What the
    /// loader knows of it has to be there before.
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
        self.shared.tell();
        true
    }

    /// Whether a model answers to this name.
    pub fn is_known(&self, name: &str) -> bool {
        self.find(Some(name)).is_some()
    }

    /// Takes a model away whose files shall go, so that nothing loads it any more.
    ///
    /// # Errors
    /// If it may not go, with the reason.
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

    /// Every model, in order.
    pub(crate) fn list(&self) -> Vec<ModelStatus> {
        let entries = self.lock();
        let status = |(idx, entry): (usize, &Entry)| self.shared.status(idx, entry);
        entries.iter().enumerate().filter(|it| !it.1.is_gone).map(status).collect()
    }

    /// How one model is.
    pub(crate) fn status(&self, name: &str) -> Option<ModelStatus> {
        let idx = self.find(Some(name))?;
        Some(self.shared.status(idx, &self.lock()[idx]))
    }

    /// How the model of this name is.
    pub(crate) fn named(&self, name: &str) -> Result<ModelStatus, ApiError> {
        let unknown = || ApiError::UnknownModel { found: name.to_owned(), served: self.served() };
        self.status(name).ok_or_else(unknown)
    }

    /// The ids of all models, as an error tells them.
    pub(crate) fn served(&self) -> String {
        const TOLD_MAX: usize = 16;
        let entries = self.lock();
        let all = entries.iter().filter(|it| !it.is_gone).map(|it| it.known.id.as_str());
        let mut ids: Vec<&str> = all.take(TOLD_MAX + 1).collect();
        if TOLD_MAX < ids.len() {
            ids[TOLD_MAX] = "…";
        }
        ids.join(", ")
    }

    /// Whether there is a model for requests that name none.
    pub(crate) fn has_default(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Where the model of this name is; the default's place if none is named.
    fn find(&self, name: Option<&str>) -> Option<usize> {
        let default = || self.has_default().then_some(self.shared.default_idx);
        match name {
            None => default(),
            Some(name) => {
                let found = self.lock().iter().position(|it| it.answers_to(name));
                found.or_else(|| default().filter(|_| name == DEFAULT))
            }
        }
    }
}

impl Entry {
    fn new(known: KnownModel) -> Entry {
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

    fn answers_to(&self, name: &str) -> bool {
        !self.is_gone && self.known.answers_to(name)
    }

    fn loaded(&self) -> Option<&Loaded> {
        match &self.state {
            State::Loaded(loaded) => Some(loaded),
            State::Unloaded | State::Preparing { .. } | State::Unloading { .. } => None,
        }
    }

    /// What it takes, or is about to take, or has not given back yet.
    fn need(&self) -> Option<&MachineBytes> {
        match &self.state {
            State::Unloaded => None,
            State::Preparing { need, .. } => need.as_ref(),
            State::Loaded(Loaded { need, .. }) | State::Unloading { need } => Some(need),
        }
    }

    /// Whether it can be unloaded now without harm to anybody.
    fn is_idle(&self) -> bool {
        let is_up = self.loaded().is_some_and(|it| it.load_time.is_some());
        is_up && self.num_open == 0 && self.num_waiting == 0
    }

    /// How long it stays without a request; for ever if absent.
    fn idle_unload(&self, usual: Option<Duration>) -> Option<Duration> {
        let time = self.keep_alive.unwrap_or(self.known.idle_unload.or(usual));
        time.filter(|_| !self.known.is_pinned)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever waits for a change.
    fn tell(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    fn status(&self, idx: usize, entry: &Entry) -> ModelStatus {
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
            failure: entry.failed.as_ref().map(|it| it.why.to_string()),
        }
    }
}
