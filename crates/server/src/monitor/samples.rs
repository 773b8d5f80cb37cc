//! Memory of an engine's ranks, and recent samples of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use jackalope_engine::{RankStatus, Status};
use jackalope_serving::numbers::{gib, percent, rounded};
use serde_json::{Value, json};

/// Maximum number of samples that are kept.
pub(super) const SAMPLES_MAX: usize = 600;

/// Memory use of the ranks, in percent of the total, from which the dashboard and `/health` warn.
/// The engine's own reaction to memory pressure by other programs follows the system's signals
/// (`system.pressure`).
pub(super) const PRESSURE_WARN: f64 = 80.0;

/// Memory use, in percent of the total, that is reported as critical.
pub(super) const PRESSURE_CRITICAL: f64 = 95.0;

/// Memory in bytes, of one rank or over all of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryUse {
    pub(crate) active: u64,
    pub(crate) cache: u64,
    pub(crate) kv: u64,
    /// Maximum of active memory so far.
    pub(crate) peak: u64,
    pub(crate) weights: u64,
    /// Weights and free memory of the rank; 0 if unknown.
    pub(crate) total: u64,
}

impl MemoryUse {
    pub(crate) fn of_rank(rank: &RankStatus) -> MemoryUse {
        let (weights, free) =
            rank.facts.as_ref().map_or((0, 0), |facts| (facts.weights_bytes, facts.free_bytes));
        MemoryUse {
            active: rank.memory.active_bytes,
            cache: rank.memory.cache_bytes,
            kv: rank.memory.kv_bytes,
            peak: rank.memory.peak_bytes.max(rank.memory.active_bytes),
            weights,
            total: if free == 0 { 0 } else { weights + free },
        }
    }

    fn plus(self, other: MemoryUse) -> MemoryUse {
        MemoryUse {
            active: self.active + other.active,
            cache: self.cache + other.cache,
            kv: self.kv + other.kv,
            peak: self.peak + other.peak,
            weights: self.weights + other.weights,
            total: self.total + other.total,
        }
    }

    /// Active memory in percent of the total; 0 if the total is unknown.
    pub(crate) fn pressure(self) -> f64 {
        percent(self.active, self.total)
    }

    pub(crate) fn is_safe(self) -> bool {
        self.pressure() < PRESSURE_WARN
    }

    /// Converts to JSON with the names of mlx-jaccl-cluster's `/health`.
    pub(crate) fn to_json(self) -> Value {
        json!({
            "active_gb": gib(self.active),
            "cache_gb": gib(self.cache),
            "peak_gb": gib(self.peak),
            "kv_gb": gib(self.kv),
            "weights_gb": gib(self.weights),
            "limit_gb": rounded(gib(self.total), 1),
            "total_gb": gib(self.total),
            "pressure_pct": self.pressure(),
            "headroom_gb": rounded(gib(self.total.saturating_sub(self.active)), 2),
        })
    }
}

/// Memory over all ranks. The total counts the free memory of a machine with several ranks once.
pub(crate) fn memory_of(status: &Status) -> MemoryUse {
    let all = status.ranks.iter().map(MemoryUse::of_rank);
    let mut all = all.fold(MemoryUse::default(), MemoryUse::plus);
    // For each machine: the weights of its ranks, and the least free memory that any of them
    // reported.
    let mut machines: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for rank in &status.ranks {
        let Some(facts) = rank.facts.as_ref().filter(|facts| 0 < facts.free_bytes) else {
            continue;
        };
        let (weights, free) = machines.entry(&rank.host).or_insert((0, u64::MAX));
        *weights += facts.weights_bytes;
        *free = facts.free_bytes.min(*free);
    }
    all.total = machines.values().map(|(weights, free)| weights + free).sum();
    all
}

/// Memory at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Time in seconds since 1970.
    pub(super) at: f64,
    pub(super) memory: MemoryUse,
    pub(super) is_loaded: bool,
}

/// Recent memory samples.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    list: Mutex<VecDeque<Sample>>,
}

impl Samples {
    pub(super) fn push(&self, sample: Sample) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() == SAMPLES_MAX {
            list.pop_front();
        }
        list.push_back(sample);
    }

    /// The last `count` samples, the newest last.
    pub(super) fn last(&self, count: usize) -> Vec<Sample> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().skip(list.len().saturating_sub(count)).copied().collect()
    }
}
