//! The interface to the code that starts engines, which is implemented where machines are known.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use thiserror::Error;

use crate::model::{ModelDetails, RunningModel};

/// Memory in bytes, by machine: what a model takes, or what models may take together.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MachineBytes(pub BTreeMap<String, u64>);

impl MachineBytes {
    /// Adds the bytes of `other`, machine by machine.
    pub(super) fn add(&mut self, other: &MachineBytes) {
        for (machine, bytes) in &other.0 {
            *self.0.entry(machine.clone()).or_default() += bytes;
        }
    }

    /// Returns the first machine where these bytes exceed `budget`, with both numbers. Machines
    /// that the budget does not name are unbounded.
    pub(super) fn beyond(&self, budget: &MachineBytes) -> Option<Shortage> {
        self.0.iter().find_map(|(machine, &needed_bytes)| {
            let budget_bytes = *budget.0.get(machine)?;
            let machine = machine.clone();
            (budget_bytes < needed_bytes).then_some(Shortage {
                machine,
                needed_bytes,
                budget_bytes,
            })
        })
    }
}

/// A machine with too little memory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Shortage {
    /// Name of the machine.
    pub machine: String,
    /// Memory in bytes that models would take on the machine.
    pub needed_bytes: u64,
    /// Memory in bytes that models may take on the machine.
    pub budget_bytes: u64,
}

/// Compares the memory that a model takes on each machine with the memory that models may take
/// there.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ModelFit {
    /// Id of the model.
    pub model: String,
    /// Memory that the model takes on each machine.
    pub need: MachineBytes,
    /// Memory that all models may take together; machines that are not named are unbounded.
    pub budget: MachineBytes,
    /// Memory that the other loaded models take.
    pub taken: MachineBytes,
    /// The first machine where the model does not fit even alone; none if it fits.
    pub shortage: Option<Shortage>,
}

impl ModelFit {
    /// Converts to the answer of `GET /model/fit`.
    pub fn to_json(&self) -> Value {
        let machine = |(machine, needed_bytes): (&String, &u64)| {
            json!({
                "machine": machine,
                "needed_bytes": needed_bytes,
                "budget_bytes": self.budget.0.get(machine),
                "taken_bytes": self.taken.0.get(machine).copied().unwrap_or(0),
            })
        };
        json!({
            "model": self.model,
            "fits": self.shortage.is_none(),
            "machines": self.need.0.iter().map(machine).collect::<Vec<_>>(),
        })
    }
}

/// A model that can be loaded, whether it is loaded or not.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KnownModel {
    /// Id of the model in answers and in `/v1/models`. Unique among ids and aliases.
    pub id: String,
    /// Other names that requests may use.
    pub aliases: Vec<String>,
    /// Whether the model stays loaded even if it is idle or its memory is needed for another model.
    pub is_pinned: bool,
    /// Time after which the model is unloaded without a request; [`ModelsConfig::idle_unload`] if
    /// absent.
    ///
    /// [`ModelsConfig::idle_unload`]: crate::models::table::ModelsConfig::idle_unload
    pub idle_unload: Option<Duration>,
    /// Properties of the checkpoint, for lists of models.
    pub details: Option<ModelDetails>,
}

impl KnownModel {
    /// Creates a model without aliases and with default settings.
    pub fn new(id: impl Into<String>) -> KnownModel {
        KnownModel {
            id: id.into(),
            aliases: Vec::new(),
            is_pinned: false,
            idle_unload: None,
            details: None,
        }
    }

    /// Whether the name is this model's id or one of its aliases.
    pub(super) fn answers_to(&self, name: &str) -> bool {
        self.id == name || self.aliases.iter().any(|alias| alias == name)
    }

    /// Whether an alias with a `*`, which stands for any characters, matches the name.
    pub(super) fn matches(&self, name: &str) -> bool {
        self.aliases.iter().any(|alias| match alias.split_once('*') {
            Some((start, end)) => {
                name.len() >= start.len() + end.len()
                    && name.starts_with(start)
                    && name.ends_with(end)
            }
            None => false,
        })
    }
}

/// The result of a loader's work, which may take long.
pub type LoadFuture<T> = BoxFuture<'static, Result<T, ModelLoadError>>;

/// A model whose engine has been started; its ranks may still be loading.
pub struct StartedModel {
    /// The model, with the handle of its engine.
    pub model: RunningModel,
    /// Completes when the engine and its ranks have ended, with an error unless they were asked to
    /// end.
    pub ended: LoadFuture<()>,
}

impl std::fmt::Debug for StartedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartedModel").field("model", &self.model).finish_non_exhaustive()
    }
}

/// Reason why a model is not loaded, for people.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{message}")]
pub struct ModelLoadError {
    /// The reason as text for people, possibly with a hint.
    pub message: String,
}

/// Starts the engines of known models. A model is started only while it is not running; it ends
/// when its engine is shut down.
pub trait ModelLoader: Send + Sync + 'static {
    /// Computes the memory that the model will take on each machine.
    fn need(&self, id: &str) -> LoadFuture<MachineBytes>;

    /// Starts the engine of the model, without waiting until the model has loaded. Dropping the
    /// future ends whatever was started.
    fn start(&self, id: &str) -> LoadFuture<StartedModel>;
}

/// Reason why a model was not loaded.
#[derive(Clone, Debug, Error)]
pub enum LoadFailure {
    /// The loader failed.
    #[error("{0}")]
    Failed(#[from] ModelLoadError),
    /// A machine has too little memory even without other models.
    #[error("{} has {} MiB for models, and this one needs {} MiB\nhint: split it over more machines, or raise `--memory-budget`", .0.machine, .0.budget_bytes >> 20, .0.needed_bytes.div_ceil(1 << 20))]
    NeverFits(Shortage),
    /// Other models take the memory.
    #[error("{} are in the way", .models.join(", "))]
    InTheWay {
        /// Ids of the other models, each with the reason why it is not unloaded.
        models: Vec<String>,
    },
}
