//! Memory of an engine's ranks.

use std::collections::BTreeMap;

use jackalope_engine::{RankStatus, Status};
use serde_json::{Map, Value, json};

use crate::numbers::{gib, percent, rounded};

/// Memory use of the ranks, in percent of the total, from which the dashboard and `/health` warn.
/// The engine's own reaction to memory pressure by other programs follows the system's signals
/// (`system.pressure`).
pub const PRESSURE_WARN: f64 = 80.0;

/// Memory use, in percent of the total, that is reported as critical.
pub const PRESSURE_CRITICAL: f64 = 95.0;

/// Memory in bytes, of one rank or over all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryUse {
    /// Memory of live arrays.
    pub active: u64,
    /// Memory that MLX keeps for reuse.
    pub cache: u64,
    /// Memory of the KV cache.
    pub kv: u64,
    /// Maximum of active memory so far.
    pub peak: u64,
    /// Memory of the weights.
    pub weights: u64,
    /// Weights and free memory of the rank; 0 if unknown.
    pub total: u64,
}

impl MemoryUse {
    /// The memory that a rank reported.
    pub fn of_rank(rank: &RankStatus) -> MemoryUse {
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

    /// The sum of both, element by element.
    #[must_use]
    pub fn plus(self, other: MemoryUse) -> MemoryUse {
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
    pub fn pressure(self) -> f64 {
        percent(self.active, self.total)
    }

    /// Returns whether less memory is in use than [`PRESSURE_WARN`].
    pub fn is_safe(self) -> bool {
        self.pressure() < PRESSURE_WARN
    }

    /// Converts to JSON with the names of mlx-jaccl-cluster's `/health`.
    pub fn to_json(self) -> Value {
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
pub fn memory_of(status: &Status) -> MemoryUse {
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

/// Memory of each rank, keyed by its number.
pub fn by_rank(status: &Status) -> Map<String, Value> {
    let of =
        |(rank, it): (usize, &RankStatus)| (rank.to_string(), MemoryUse::of_rank(it).to_json());
    status.ranks.iter().enumerate().map(of).collect()
}
