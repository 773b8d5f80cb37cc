//! Background tasks: one for each model that is not unloaded, and one that unloads idle models.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tracing::{debug, info, warn};

use super::eviction::{EvictionPlan, Resident, plan_eviction};
use super::loader::{
    KnownModel, LoadFailure, LoadFuture, MachineBytes, ModelFit, ModelLoadError, ModelLoader,
    StartedModel,
};
use super::table::{
    Entry, Failed, Loaded, Models, ModelsConfig, Shared, ShutdownMode, State, Task,
};
use crate::error::ApiError;
use crate::model::RunningModel;

/// Time to wait for models in use before the load of another one fails.
const EVICTION_WAIT: Duration = Duration::from_secs(30);

/// Time that an engine may take to end with its ranks.
const END_WAIT: Duration = Duration::from_secs(30);

/// Receives how a model's task should end its engine.
type Stop = oneshot::Receiver<ShutdownMode>;

/// Reason why a model was not unloaded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum UnloadRefusal {
    /// There is no model of this name.
    Unknown,
    /// The model was not loaded.
    NotLoaded,
    /// Number of requests that use the model or wait for it.
    InUse(usize),
    /// The registry never unloads models.
    Fixed,
}

impl Models {
    /// Creates a registry of the models in `known`, which `loader` can start; none is loaded yet.
    ///
    /// # Panics
    /// Panics if the default model is not in `known`, or outside of a Tokio runtime.
    pub fn new(
        loader: Arc<dyn ModelLoader>,
        known: Vec<KnownModel>,
        config: ModelsConfig,
    ) -> Models {
        let models = Models::of(Some(loader), known, config);
        let janitor = tokio::spawn(unload_idle(Arc::downgrade(&models.shared)));
        *models.shared.janitor.lock().unwrap_or_else(PoisonError::into_inner) = Some(janitor);
        models
    }

    /// Unloads a model, waiting at most `patience` until no request uses it. Returns when its
    /// memory is free.
    pub async fn unload(&self, name: &str, patience: Duration) -> Result<(), UnloadRefusal> {
        let idx = self.find(Some(name)).ok_or(UnloadRefusal::Unknown)?;
        if self.is_fixed() {
            return Err(UnloadRefusal::Fixed);
        }
        let deadline = Instant::now() + patience;
        loop {
            let mut changed = self.shared.changed.subscribe();
            let num_users = {
                let entries = self.lock();
                if matches!(entries[idx].state, State::Unloaded) {
                    return Err(UnloadRefusal::NotLoaded);
                }
                entries[idx].num_open + entries[idx].num_waiting
            };
            if self.shared.begin_unload(idx) {
                self.shared.until_unloaded(idx).await;
                return Ok(());
            }
            if timeout_at(deadline, changed.changed()).await.is_err() {
                return Err(UnloadRefusal::InUse(num_users));
            }
        }
    }

    /// Ends the load of a model that is not up yet and that no request waits for. Returns when its
    /// memory is free.
    pub async fn give_up(&self, name: &str) {
        let Some(idx) = self.find(Some(name)) else { return };
        let stop = {
            let mut entries = self.lock();
            let entry = &mut entries[idx];
            let is_up = entry.loaded().is_some_and(|it| it.load_time.is_some());
            let is_wanted = is_up || 0 < entry.num_open + entry.num_waiting;
            let task = entry.task.as_mut().filter(|_| !is_wanted);
            let stop = task.and_then(|task| task.stop.take());
            if stop.is_some() {
                let need = entry.need().cloned().unwrap_or_default();
                entry.state = State::Unloading { need };
            }
            stop
        };
        if let Some(stop) = stop {
            // If the task no longer listens, it is already ending.
            stop.send(ShutdownMode::Shutdown).ok();
            self.shared.notify();
            self.shared.until_unloaded(idx).await;
        }
    }

    /// Unloads every idle model except pinned ones and the default one. Returns their ids.
    pub async fn unload_unused(&self) -> Vec<String> {
        let goes: Vec<usize> = {
            let entries = self.lock();
            let is_unneeded = |&idx: &usize| {
                let entry = &entries[idx];
                entry.is_idle() && !entry.known.is_pinned && idx != self.shared.default_idx
            };
            (0..entries.len()).filter(is_unneeded).collect()
        };
        let mut gone = Vec::new();
        for idx in goes {
            if !self.is_fixed() && self.shared.begin_unload(idx) {
                self.shared.until_unloaded(idx).await;
                gone.push(self.lock()[idx].known.id.clone());
            }
        }
        gone
    }

    /// Waits until a load of the model has failed or its engine has ended unasked; returns the
    /// reason.
    pub async fn ended(&self, name: &str) -> ModelLoadError {
        loop {
            let mut changed = self.shared.changed.subscribe();
            let failed = self.find(Some(name)).and_then(|idx| self.lock()[idx].failed.clone());
            if let Some(failed) = failed {
                return ModelLoadError { message: failed.why.to_string() };
            }
            // The sender lives as long as `self`.
            changed.changed().await.ok();
        }
    }

    /// Ends every engine, even one in use, and waits for its end.
    pub async fn end(&self, ending: ShutdownMode) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let mut tasks = Vec::new();
        for entry in self.lock().iter_mut() {
            let Some(mut task) = entry.task.take() else { continue };
            if let Some(stop) = task.stop.take() {
                // If the task no longer listens, it has already ended.
                stop.send(ending).ok();
            }
            tasks.push(task.handle);
        }
        for task in tasks {
            if let Err(err) = task.await {
                warn!(%err, "a model's task failed");
            }
        }
    }
}

/// Starts the task that loads a model.
pub(super) fn start(shared: &Arc<Shared>, idx: usize) -> Task {
    let (stop, stopped) = oneshot::channel();
    let end = Unloaded { shared: Arc::clone(shared), idx, why: None };
    let handle = tokio::spawn(end.after(stopped));
    Task { stop: Some(stop), handle }
}

/// Marks a model as unloaded when its task ends, in whatever way.
struct Unloaded {
    shared: Arc<Shared>,
    idx: usize,
    why: Option<LoadFailure>,
}

impl Drop for Unloaded {
    fn drop(&mut self) {
        let mut entries = self.shared.lock();
        let num_models = entries.len();
        let entry = &mut entries[self.idx];
        entry.state = State::Unloaded;
        entry.task = None;
        entry.keep_alive = None;
        let id = &entry.known.id;
        match self.why.take() {
            Some(why) => {
                // With a single model the caller reports the failure: the server does not start.
                match num_models {
                    1 => debug!(id, %why, "model not loaded"),
                    _ => warn!(id, %why, "model not loaded"),
                }
                entry.failed = Some(Failed { why, at: Instant::now(), num_loads: entry.num_loads });
            }
            None => info!(id, "model unloaded"),
        }
        drop(entries);
        self.shared.notify();
    }
}

impl Unloaded {
    async fn after(mut self, mut stop: Stop) {
        // Reported if the loader panics.
        self.why = Some(ModelLoadError { message: "loading it failed by a bug".to_owned() }.into());
        let shared = Arc::clone(&self.shared);
        let started = tokio::select! {
            started = shared.bring_up(self.idx) => started,
            _ = &mut stop => {
                self.why = None;
                return;
            }
        };
        self.why = match started {
            Ok(started) => shared.look_after(self.idx, started, stop).await.map(Into::into),
            Err(why) => Some(why),
        };
    }
}

impl Models {
    /// Computes whether a model fits: what it takes on each machine, and what models may take
    /// there.
    ///
    /// # Errors
    /// If there is no such model, or its files cannot be read.
    pub async fn fit(&self, name: &str) -> Result<ModelFit, ApiError> {
        let model = self.named(name)?.id;
        let Some(loader) = self.shared.loader.clone() else {
            return Ok(ModelFit { model, ..ModelFit::default() });
        };
        let need = loader.need(&model).await.map_err(|err| ApiError::NotLoadable {
            model: model.clone(),
            why: err.into(),
            retry_after: Duration::ZERO,
        })?;
        let budget = self.shared.config.budget.clone();
        let mut taken = MachineBytes::default();
        for entry in self.lock().iter().filter(|it| it.known.id != model) {
            taken.add(&entry.need().cloned().unwrap_or_default());
        }
        let shortage = need.beyond(&budget);
        Ok(ModelFit { model, need, budget, taken, shortage })
    }
}

impl Shared {
    /// Reserves memory for a model and starts its engine.
    async fn bring_up(&self, idx: usize) -> Result<StartedModel, LoadFailure> {
        let loader = self.loader.clone().expect("models without a loader are never loaded");
        let id = self.lock()[idx].known.id.clone();
        let need = loader.need(&id).await?;
        self.reserve_memory(idx, &need).await?;
        info!(id, "loading model");
        Ok(loader.start(&id).await?)
    }

    /// Evicts other models until there is enough memory, and reserves it.
    async fn reserve_memory(&self, idx: usize, need: &MachineBytes) -> Result<(), LoadFailure> {
        let _moving = self.moving.lock().await;
        let deadline = Instant::now() + EVICTION_WAIT;
        loop {
            let mut changed = self.changed.subscribe();
            match self.eviction_plan(idx, need) {
                EvictionPlan::Enough => {
                    if let State::Preparing { need: taken, .. } = &mut self.lock()[idx].state {
                        *taken = Some(need.clone());
                    }
                    return Ok(());
                }
                EvictionPlan::After(idle) => {
                    // A model that has just been requested is kept; another one is chosen in the
                    // next round.
                    let goes: Vec<usize> =
                        idle.into_iter().filter(|&idx| self.begin_unload(idx)).collect();
                    for idx in goes {
                        self.until_unloaded(idx).await;
                    }
                }
                EvictionPlan::Behind(busy) => {
                    if timeout_at(deadline, changed.changed()).await.is_err() {
                        return Err(LoadFailure::InTheWay { models: self.names(&busy, "in use") });
                    }
                }
                EvictionPlan::BesidePinned(pinned, _) => {
                    return Err(LoadFailure::InTheWay { models: self.names(&pinned, "pinned") });
                }
                EvictionPlan::Never(shortage) => return Err(LoadFailure::NeverFits(shortage)),
            }
        }
    }

    fn eviction_plan(&self, idx: usize, need: &MachineBytes) -> EvictionPlan {
        let entries = self.lock();
        let resident = |(at, entry): (usize, &Entry)| {
            let is_other = at != idx;
            let need = entry.need().filter(|_| is_other)?.clone();
            Some(Resident {
                idx: at,
                need,
                last_used: entry.last_used,
                is_pinned: entry.known.is_pinned,
                is_busy: !entry.is_idle(),
            })
        };
        let residents: Vec<Resident> = entries.iter().enumerate().filter_map(resident).collect();
        plan_eviction(need, &self.config.budget, &residents)
    }

    fn names(&self, idxs: &[usize], why: &str) -> Vec<String> {
        let entries = self.lock();
        idxs.iter().map(|&idx| format!("{} ({why})", entries[idx].known.id)).collect()
    }

    /// Starts to unload an idle model. Returns false if it is in use or not loaded.
    fn begin_unload(&self, idx: usize) -> bool {
        let mut entries = self.lock();
        let entry = &mut entries[idx];
        if !entry.is_idle() {
            return false;
        }
        let need = entry.need().cloned().unwrap_or_default();
        let stop = entry.task.as_mut().and_then(|task| task.stop.take());
        let Some(stop) = stop else { return false };
        entry.state = State::Unloading { need };
        // If the task no longer listens, it is already ending.
        stop.send(ShutdownMode::Shutdown).ok();
        drop(entries);
        self.notify();
        true
    }

    async fn until_unloaded(&self, idx: usize) {
        loop {
            let mut changed = self.changed.subscribe();
            if !matches!(self.lock()[idx].state, State::Unloading { .. }) {
                return;
            }
            // Bounded by the time an engine may take to end; the sender lives as long as `self`.
            changed.changed().await.ok();
        }
    }

    /// Waits until the engine has ended; returns the reason, unless it was asked to end.
    async fn look_after(
        &self,
        idx: usize,
        started: StartedModel,
        mut stop: Stop,
    ) -> Option<ModelLoadError> {
        let StartedModel { model, mut ended } = started;
        let engine = model.engine.clone();
        self.set_loaded(idx, model);
        let is_up = tokio::select! {
            is_up = engine.started() => is_up,
            ending = &mut stop => {
                end(&engine, ending, &mut ended).await;
                return None;
            }
        };
        if !is_up {
            engine.shutdown();
            return Some(reason(timeout(END_WAIT, ended).await.unwrap_or(Ok(()))));
        }
        self.set_up(idx);
        tokio::select! {
            result = &mut ended => Some(reason(result)),
            ending = &mut stop => {
                end(&engine, ending, &mut ended).await;
                None
            }
        }
    }

    fn set_loaded(&self, idx: usize, model: RunningModel) {
        let mut entries = self.lock();
        let entry = &mut entries[idx];
        let since = match &entry.state {
            State::Preparing { since, .. } => *since,
            // The load was given up in the meantime: its engine ends at once.
            State::Unloading { .. } => return,
            _ => Instant::now(),
        };
        let need = entry.need().cloned().unwrap_or_default();
        let model = Arc::new(RunningModel { aliases: entry.known.aliases.clone(), ..model });
        entry.state = State::Loaded(Loaded { model, need, since, load_time: None });
        drop(entries);
        self.notify();
    }

    fn set_up(&self, idx: usize) {
        let mut entries = self.lock();
        let entry = &mut entries[idx];
        entry.last_used = Instant::now();
        if let State::Loaded(loaded) = &mut entry.state {
            loaded.load_time = Some(loaded.since.elapsed());
            info!(
                id = entry.known.id,
                seconds = loaded.since.elapsed().as_secs_f32(),
                "model loaded"
            );
        }
        drop(entries);
        self.notify();
    }

    /// Starts to unload models that have been idle for too long. Returns when the next one expires.
    fn unload_expired(&self) -> Option<Instant> {
        let usual = self.config.idle_unload;
        let idle: Vec<(usize, Instant)> = {
            let entries = self.lock();
            let expiry = |(idx, entry): (usize, &Entry)| {
                let time = entry.idle_unload(usual).filter(|_| entry.is_idle())?;
                Some((idx, entry.last_used.checked_add(time)?))
            };
            entries.iter().enumerate().filter_map(expiry).collect()
        };
        let now = Instant::now();
        for (idx, _) in idle.iter().filter(|(_, at)| *at <= now) {
            self.begin_unload(*idx);
        }
        idle.iter().map(|(_, at)| *at).filter(|at| now < *at).min()
    }
}

/// Ends an engine in the requested way, and waits for its end for a bounded time.
async fn end(
    engine: &jackalope_engine::EngineHandle,
    ending: Result<ShutdownMode, oneshot::error::RecvError>,
    ended: &mut LoadFuture<()>,
) {
    match ending {
        Ok(ShutdownMode::HandOver) => engine.hand_over(),
        Ok(ShutdownMode::Shutdown) | Err(_) => engine.shutdown(),
    }
    match timeout(END_WAIT, ended).await {
        Ok(Ok(())) => {}
        Ok(Err(err)) => warn!(%err, "an engine failed while it shut down"),
        Err(_) => warn!(timeout = ?END_WAIT, "an engine did not shut down in time"),
    }
}

fn reason(result: Result<(), ModelLoadError>) -> ModelLoadError {
    let unexplained = || ModelLoadError { message: "its engine ended".to_owned() };
    result.err().unwrap_or_else(unexplained)
}

/// Unloads models that have been idle for too long, as long as the registry exists.
pub(super) async fn unload_idle(shared: Weak<Shared>) {
    loop {
        let Some(alive) = shared.upgrade() else { return };
        let mut changed = alive.changed.subscribe();
        let next = alive.unload_expired();
        drop(alive);
        let expiry = async {
            match next {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = expiry => {}
            change = changed.changed() => {
                if change.is_err() {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{KnownModel, ModelLoader, ModelsConfig};

    /// A loader that never comes to an end.
    struct Stuck;

    impl ModelLoader for Stuck {
        fn need(&self, _id: &str) -> LoadFuture<MachineBytes> {
            Box::pin(async { Ok(MachineBytes::default()) })
        }

        fn start(&self, _id: &str) -> LoadFuture<StartedModel> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test]
    async fn a_load_that_was_given_up_has_ended() {
        let known = vec![KnownModel::new("a"), KnownModel::new("b")];
        let models = Models::new(Arc::new(Stuck), known, ModelsConfig::default());
        models.begin_load("b");
        while models.status("b").unwrap().state != "loading" {
            tokio::task::yield_now().await;
        }
        models.give_up("b").await;
        assert_eq!(models.status("b").unwrap().state, "unloaded");
        assert_eq!(models.unload("b", Duration::ZERO).await, Err(UnloadRefusal::NotLoaded));
    }
}
