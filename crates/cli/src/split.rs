//! Formats which rank holds which part of a model, for people and machines.

use jackalope_engine::{RankStatus, Status};
use jackalope_protocol::UnitRange;
use jackalope_store::progress::human_bytes;
use serde_json::{Value, json};

/// Formats one line for each rank.
pub(crate) fn text(status: &Status) -> String {
    let mut text = String::new();
    for (rank, state) in status.ranks.iter().enumerate() {
        if let Some(facts) = &state.facts {
            text += &format!(
                "  rank {rank}  {:>9} of weights   layers {}  heads {}  kv heads {}  mlp {}  vocabulary {}\n",
                bytes(facts.weights_bytes),
                range(facts.layers),
                range(facts.heads),
                range(facts.kv_heads),
                range(facts.mlp),
                range(facts.vocab),
            );
        }
    }
    text
}

/// Returns which rank holds which part of the model, as JSON.
pub(crate) fn json(status: &Status) -> Value {
    status.ranks.iter().enumerate().map(|(rank, state)| rank_json(rank, state)).collect()
}

fn rank_json(rank: usize, state: &RankStatus) -> Value {
    let Some(facts) = &state.facts else { return json!({"rank": rank}) };
    let units = |range: UnitRange| json!([range.start, range.end]);
    json!({
        "rank": rank,
        "device": facts.device,
        "weights_bytes": facts.weights_bytes,
        "bytes_read": facts.bytes_read,
        "replicated_bytes": facts.replicated_bytes,
        "kv_bytes_per_token": facts.cache_cost.bytes_per_held_token(),
        "state_bytes": facts.cache_cost.state_bytes,
        "layers": units(facts.layers),
        "heads": units(facts.heads),
        "kv_heads": units(facts.kv_heads),
        "mlp": units(facts.mlp),
        "vocab": units(facts.vocab),
        "load_ms": facts.load_ms,
        "resident_bytes": state.memory.resident_bytes,
    })
}

fn range(range: UnitRange) -> String {
    match range.end.saturating_sub(range.start) {
        0 => "none".to_owned(),
        _ => format!("{}–{}", range.start, range.end - 1),
    }
}

/// Formats a size in the unit that is easiest to read.
pub(crate) fn bytes(bytes: u64) -> String {
    human_bytes(bytes, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_formatted_in_the_unit_that_fits() {
        for (size, wanted) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")]
        {
            assert_eq!(bytes(size), wanted);
        }
    }

    #[test]
    fn an_empty_range_is_called_none() {
        assert_eq!(range(UnitRange { start: 3, end: 3 }), "none");
        assert_eq!(range(UnitRange { start: 0, end: 4 }), "0–3");
    }
}
