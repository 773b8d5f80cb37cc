//! Opens models for requests, and loads them if necessary.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jackalope_engine::EngineHandle;
use tokio::time::{Instant, timeout_at};

use super::loader::{LoadFailure, ModelLoadError};
use super::table::{Entry, ModelStatus, Models, RETRY_AFTER, Shared, State};
use super::tasks;
use crate::error::ApiError;
use crate::limits::ServerLimits;
use crate::model::RunningModel;

/// Time to retry after, if the progress of a load is unknown.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Maximum time to retry after that is returned to clients.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(60);

/// Keeps a model loaded until it is dropped.
#[derive(Debug)]
pub struct Lease {
    shared: Arc<Shared>,
    idx: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut entries = self.shared.lock();
        let entry = &mut entries[self.idx];
        entry.num_open -= 1;
        entry.last_used = Instant::now();
        let is_last = entry.num_open == 0;
        drop(entries);
        if is_last {
            self.shared.notify();
        }
    }
}

/// A request that waits for a model, counted until it is dropped.
struct Waiting<'a> {
    models: &'a Models,
    idx: usize,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.models.lock()[self.idx].num_waiting -= 1;
        self.models.shared.notify();
    }
}

/// The result of looking up a model for a request.
enum Found {
    Model(Arc<RunningModel>, Lease),
    /// The request has to wait until the state of a model changes.
    NotYet,
    /// The ranks of an engine that the caller manages are loading.
    Starting(EngineHandle),
}

impl Models {
    /// Returns the model of this name, or the default one, once it is loaded. Loads it if requests
    /// may load models, and waits at most `load_wait`. Cancel safe: a load that has begun
    /// continues.
    pub async fn open(
        &self,
        name: Option<&str>,
        limits: &ServerLimits,
    ) -> Result<(Arc<RunningModel>, Lease), ApiError> {
        let unknown = || ApiError::UnknownModel {
            found: name.unwrap_or_default().to_owned(),
            served: self.served(),
        };
        let idx = self.find(name).ok_or_else(unknown)?;
        self.open_at(idx, None, limits).await
    }

    /// Like [`Models::open`], for the model with index `idx`. `awaited` is the number of the load
    /// to wait for, if one was begun.
    async fn open_at(
        &self,
        idx: usize,
        mut awaited: Option<u64>,
        limits: &ServerLimits,
    ) -> Result<(Arc<RunningModel>, Lease), ApiError> {
        let deadline = Instant::now() + limits.load_wait;
        let mut waiting = None;
        loop {
            let mut changed = self.shared.changed.subscribe();
            let found = self.look(idx, &mut awaited)?;
            if let Found::Model(model, lease) = found {
                return Ok((model, lease));
            }
            if waiting.is_none() {
                waiting = Some(self.wait_in_line(idx, limits)?);
            }
            let woken = async {
                match &found {
                    Found::Starting(engine) => drop(engine.started().await),
                    _ => drop(changed.changed().await),
                }
            };
            if timeout_at(deadline, woken).await.is_err() {
                return Err(self.still_loading(idx));
            }
            if let Found::Starting(_) = found {
                // The engine has started, or reports itself why it has not.
                let mut entries = self.lock();
                let loaded = entries[idx].loaded().map(|it| Arc::clone(&it.model));
                let model = loaded.expect("a model of somebody else's stays");
                return Ok((model, self.lease(idx, &mut entries[idx])));
            }
        }
    }

    /// Loads a model, even right after a failed load, and waits as long as necessary.
    ///
    /// # Errors
    /// Returns an error if there is no such model, if there is no memory for it, or if its engine
    /// does not start.
    pub async fn load(&self, name: &str) -> Result<EngineHandle, ModelLoadError> {
        let limits = ServerLimits {
            load_wait: Duration::from_secs(365 * 24 * 3600),
            load_waiting: usize::MAX,
            ..ServerLimits::default()
        };
        let opened = self.load_and_open(name, &limits).await;
        let opened = opened.map_err(|err| match err {
            ApiError::NotLoadable { why, .. } => ModelLoadError { message: why.to_string() },
            err => ModelLoadError { message: err.to_string() },
        });
        opened.map(|(model, _)| model.engine.clone())
    }

    /// Starts to load a model, unless it is loaded or loading.
    pub fn begin_load(&self, name: &str) {
        let Some(idx) = self.find(Some(name)) else { return };
        let mut entries = self.lock();
        if matches!(entries[idx].state, State::Unloaded) {
            // The only error is that the server is shutting down, in which case nothing is to be
            // loaded.
            self.begin(idx, &mut entries[idx]).ok();
        }
    }

    /// Like [`Models::load`], but within `limits`.
    pub async fn load_and_open(
        &self,
        name: &str,
        limits: &ServerLimits,
    ) -> Result<(Arc<RunningModel>, Lease), ApiError> {
        let Some(idx) = self.find(Some(name)) else {
            return self.open(Some(name), limits).await;
        };
        let awaited = {
            let mut entries = self.lock();
            if matches!(entries[idx].state, State::Unloaded) {
                self.begin(idx, &mut entries[idx])?;
            }
            entries[idx].num_loads
        };
        self.open_at(idx, Some(awaited), limits).await
    }

    /// Looks up the model for a request. `awaited` is the number of the load that the request waits
    /// for.
    fn look(&self, idx: usize, awaited: &mut Option<u64>) -> Result<Found, ApiError> {
        let mut entries = self.lock();
        let entry = &mut entries[idx];
        match &entry.state {
            State::Loaded(loaded) => {
                let model = Arc::clone(&loaded.model);
                // An engine knows its limits before it is ready. Whoever uses a model before its load is noted
                // would find it the most recently used one afterwards, whatever was used in between.
                let is_up = match self.is_fixed() {
                    true => model.engine.limits().is_some(),
                    false => loaded.load_time.is_some(),
                };
                if is_up {
                    return Ok(Found::Model(model, self.lease(idx, entry)));
                }
                if self.is_fixed() {
                    return Ok(Found::Starting(model.engine.clone()));
                }
            }
            State::Preparing { .. } | State::Unloading { .. } => {}
            State::Unloaded => {
                refuse_again(entry, *awaited)?;
                if !self.load_on_demand() {
                    return Err(ApiError::NotLoaded { model: entry.known.id.clone() });
                }
                self.begin(idx, entry)?;
            }
        }
        awaited.get_or_insert(entry.num_loads);
        Ok(Found::NotYet)
    }

    fn begin(&self, idx: usize, entry: &mut Entry) -> Result<(), ApiError> {
        if self.shared.is_over.load(Ordering::Relaxed) {
            return Err(ApiError::ShuttingDown);
        }
        entry.num_loads += 1;
        entry.failed = None;
        entry.state = State::Preparing { since: Instant::now(), need: None };
        entry.task = Some(tasks::start(&self.shared, idx));
        Ok(())
    }

    fn lease(&self, idx: usize, entry: &mut Entry) -> Lease {
        entry.num_open += 1;
        entry.last_used = Instant::now();
        Lease { shared: Arc::clone(&self.shared), idx }
    }

    fn wait_in_line(&self, idx: usize, limits: &ServerLimits) -> Result<Waiting<'_>, ApiError> {
        let mut entries = self.lock();
        let queued: usize = entries.iter().map(|entry| entry.num_waiting).sum();
        if limits.load_waiting <= queued {
            let limit = limits.load_waiting;
            let retry_after = retry_after(&self.shared.status(idx, &entries[idx]));
            return Err(ApiError::QueueFull { queued, limit, retry_after });
        }
        entries[idx].num_waiting += 1;
        Ok(Waiting { models: self, idx })
    }

    /// The error for a request that has waited too long.
    fn still_loading(&self, idx: usize) -> ApiError {
        let status = self.shared.status(idx, &self.lock()[idx]);
        let retry_after = retry_after(&status);
        ApiError::ModelLoading {
            model: status.id,
            state: status.state,
            loaded_bytes: status.loaded_bytes,
            failure: status.failure,
            retry_after,
        }
    }
}

/// Rejects a request if the load it waited for has failed, or if another one failed a moment ago.
fn refuse_again(entry: &Entry, awaited: Option<u64>) -> Result<(), ApiError> {
    let Some(failed) = &entry.failed else { return Ok(()) };
    let pause = match failed.why {
        LoadFailure::Failed(_) | LoadFailure::NeverFits(_) => RETRY_AFTER,
        LoadFailure::InTheWay { .. } => Duration::ZERO,
    };
    let left = pause.saturating_sub(failed.at.elapsed());
    if awaited != Some(failed.num_loads) && left.is_zero() {
        return Ok(());
    }
    let (model, why) = (entry.known.id.clone(), failed.why.clone());
    Err(ApiError::NotLoadable { model, why, retry_after: left.max(Duration::from_secs(1)) })
}

/// Estimates the time until a model has loaded, from its progress so far.
fn retry_after(status: &ModelStatus) -> Duration {
    let (Some((done, total)), Some(spent)) = (status.loaded_bytes, status.loading_for) else {
        return ASK_AGAIN;
    };
    let left = spent.as_secs_f64() * total.saturating_sub(done) as f64 / done.max(1) as f64;
    let most = ASK_AGAIN_MAX.as_secs_f64();
    Duration::from_secs_f64(left.clamp(1.0, most))
}
