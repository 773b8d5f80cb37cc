//! What the answers about loading and unloading models contain.

use serde_json::{Value, json};

use super::ModelStatus;
use crate::memory::{MemoryUse, memory_of};

/// Bytes per gigabyte in the answers.
const GIGABYTE: f64 = 1e9;

/// Memory of a model's ranks, as they reported it in their last heartbeat.
pub fn memory(status: &ModelStatus) -> MemoryUse {
    memory_of(&status.engine_status())
}

fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / GIGABYTE
}

/// The memory of ranks, in gigabytes.
pub fn memory_json(memory: MemoryUse) -> Value {
    json!({
        "active_gb": gigabytes(memory.active),
        "cache_gb": gigabytes(memory.cache),
        "weights_gb": gigabytes(memory.weights),
        "kv_gb": gigabytes(memory.kv),
    })
}

/// The memory of ranks before and after models were unloaded, in gigabytes.
pub fn freed_json(before: MemoryUse, after: MemoryUse) -> Value {
    let all = |it: MemoryUse| it.active + it.cache;
    json!({
        "before_active_gb": gigabytes(before.active),
        "before_cache_gb": gigabytes(before.cache),
        "after_active_gb": gigabytes(after.active),
        "after_cache_gb": gigabytes(after.cache),
        "freed_gb": gigabytes(all(before).saturating_sub(all(after))),
    })
}

/// The loaded model, in the form of older servers' answers.
pub fn slot_json(status: &ModelStatus) -> Value {
    if !status.is_up() {
        return json!({"loaded": false});
    }
    json!({
        "loaded": true,
        "model_id": status.id,
        "strategy": "tensor_parallel",
        "load_time_s": status.load_time.map(|it| it.as_secs_f64()),
        "size_gb": gigabytes(memory(status).weights),
        "loaded_at": status.created,
        "uptime_s": crate::ids::unix_seconds().saturating_sub(status.created),
    })
}
