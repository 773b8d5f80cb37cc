//! What the registry asks of whoever can start engines. Implemented where machines are known.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::BoxFuture;
use thiserror::Error;

use crate::registry::{Model, ModelDetails};

/// Memory by machine, in bytes: what a model takes, or what models may take together.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MachineBytes(pub BTreeMap<String, u64>);

impl MachineBytes {
    /// Adds what another one takes.
    pub(super) fn add(&mut self, other: &MachineBytes) {
        for (machine, bytes) in &other.0 {
            *self.0.entry(machine.clone()).or_default() += bytes;
        }
    }

    /// The first machine where this is more than `budget` allows, with both numbers. A machine that
    /// the budget does not name is not bounded.
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

/// A machine whose memory does not do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Shortage {
    pub(crate) machine: String,
    pub(crate) needed_bytes: u64,
    pub(crate) budget_bytes: u64,
}

/// A model that can be loaded, whether it is or not.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KnownModel {
    /// What answers call it, and `/v1/models` lists. Unique among ids and aliases.
    pub id: String,
    /// Further names that requests may use.
    pub aliases: Vec<String>,
    /// Whether it stays once it is loaded, however long nobody asks for it and whoever else wants
    /// its memory.
    pub is_pinned: bool,
    /// How long it stays without a request; [`ModelsConfig::idle_unload`] if absent.
    ///
    /// [`ModelsConfig::idle_unload`]: crate::ModelsConfig::idle_unload
    pub idle_unload: Option<Duration>,
    /// What lists tell of its checkpoint.
    pub details: Option<ModelDetails>,
}

impl KnownModel {
    /// A model without aliases that stays for as long as is usual.
    pub fn new(id: impl Into<String>) -> KnownModel {
        KnownModel {
            id: id.into(),
            aliases: Vec::new(),
            is_pinned: false,
            idle_unload: None,
            details: None,
        }
    }

    pub(super) fn answers_to(&self, name: &str) -> bool {
        self.id == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// Work of a loader, which may take long.
pub type LoadFuture<T> = BoxFuture<'static, Result<T, LoadError>>;

/// A model whose engine runs; its ranks may still be loading.
pub struct StartedModel {
    /// Who answers.
    pub model: Model,
    /// Completes when the engine and its ranks have ended, with the reason unless it was asked for.
    pub ended: LoadFuture<()>,
}

impl std::fmt::Debug for StartedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartedModel").field("model", &self.model).finish_non_exhaustive()
    }
}

/// Why a model is not loaded, in words for people.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{message}")]
pub struct LoadError {
    /// What happened, and perhaps a hint.
    pub message: String,
}

/// Starts the engines of known models. A model is started once at a time; it ends with its engine's
/// shutdown.
pub trait ModelLoader: Send + Sync + 'static {
    /// What the model with this id will take on each machine.
    fn need(&self, id: &str) -> LoadFuture<MachineBytes>;

    /// Starts the engine of the model with this id; does not wait until it has loaded. Dropping the
    /// future ends what was started.
    fn start(&self, id: &str) -> LoadFuture<StartedModel>;
}
