//! Computes the cache capacity of the ranks from the facts that they report.

use jackalope_protocol::{KV_BLOCK_TOKENS, RankFacts};

use super::{EngineConfig, EngineError, KvBudget};
use crate::{KvStatus, RequestLimits};

/// Free memory assumed for a machine that does not report it.
const UNKNOWN_FREE_BYTES: u64 = 1 << 30;

/// Returns the number of KV blocks that the group can hold; the rank with the least memory decides.
///
/// # Errors
/// Fails with [`EngineError::NoRoom`] if a rank cannot hold a single block.
pub(super) fn blocks(config: &EngineConfig, facts: &[RankFacts]) -> Result<u64, EngineError> {
    let mut least = u64::from(u32::MAX);
    for (rank, facts) in facts.iter().enumerate() {
        let bytes_per_token = facts.cache_cost.bytes_per_token;
        let block_bytes = bytes_per_token * u64::from(KV_BLOCK_TOKENS);
        if block_bytes == 0 {
            continue;
        }
        let budget_bytes = budget_bytes(config.kv_budget, facts);
        let blocks = budget_bytes / block_bytes;
        if blocks == 0 {
            let least_tokens = KV_BLOCK_TOKENS;
            return Err(EngineError::NoRoom { rank, budget_bytes, bytes_per_token, least_tokens });
        }
        least = least.min(blocks);
    }
    Ok(least)
}

fn budget_bytes(budget: KvBudget, facts: &RankFacts) -> u64 {
    match budget {
        KvBudget::BytesPerRank(bytes) => bytes,
        KvBudget::Auto { ranks_per_machine } => {
            let free = if facts.free_bytes == 0 { UNKNOWN_FREE_BYTES } else { facts.free_bytes };
            // The rest is for activations, and for the copy that a growing cache makes of itself.
            free / u64::from(ranks_per_machine.max(1)) / 5 * 4
        }
    }
}

/// Returns the capacity for the status.
pub(super) fn kv_status(facts: &[RankFacts], blocks: u64) -> KvStatus {
    let bytes_per_token: u64 = facts.iter().map(|facts| facts.cache_cost.bytes_per_token).sum();
    let capacity_tokens = blocks * u64::from(KV_BLOCK_TOKENS);
    KvStatus {
        bytes_per_token,
        capacity_tokens,
        budget_bytes: capacity_tokens * bytes_per_token,
        ..KvStatus::default()
    }
}

/// Returns the limits that requests are checked against.
pub(super) fn limits(config: &EngineConfig, facts: &RankFacts) -> RequestLimits {
    let context_tokens = config.context_tokens.unwrap_or(u32::MAX).min(facts.context_tokens);
    RequestLimits {
        context_tokens,
        max_prompt_tokens: config.max_prompt_tokens.unwrap_or(context_tokens).min(context_tokens),
        vocab_size: facts.vocab_size,
        eos_tokens: config.eos_tokens.clone(),
    }
}

#[cfg(test)]
mod tests {
    use jackalope_protocol::CacheCost;

    use super::*;
    use crate::testing::fake_facts;

    fn facts(bytes_per_token: u64, free_bytes: u64) -> RankFacts {
        let cache_cost = CacheCost { bytes_per_token, state_bytes: 0 };
        RankFacts { cache_cost, free_bytes, ..fake_facts(100, 1000) }
    }

    fn config(kv_budget: KvBudget) -> EngineConfig {
        EngineConfig { kv_budget, ..EngineConfig::default() }
    }

    #[test]
    fn the_rank_with_the_least_room_decides() {
        let facts = [facts(1000, 0), facts(3000, 0), facts(0, 0)];
        let found = blocks(&config(KvBudget::BytesPerRank(3000 * 256 * 7 + 1)), &facts);
        assert_eq!(found, Ok(7));
        let status = kv_status(&facts, 7);
        assert_eq!((status.capacity_tokens, status.budget_bytes), (7 * 256, 7 * 256 * 4000));
    }

    #[test]
    fn ranks_on_one_machine_share_its_memory() {
        let auto = |ranks_per_machine| config(KvBudget::Auto { ranks_per_machine });
        let one = [facts(1 << 10, 10 << 30)];
        assert_eq!(blocks(&auto(1), &one), Ok(8 << 12));
        assert_eq!(blocks(&auto(2), &one), Ok(4 << 12));
        assert_eq!(blocks(&auto(1), &[facts(1 << 10, 0)]), Ok(3276), "an unknown size is guessed");
    }

    #[test]
    fn too_little_memory_is_told_with_numbers() {
        let err = blocks(&config(KvBudget::BytesPerRank(1000)), &[facts(10, 0)]).unwrap_err();
        assert_eq!(
            err.to_string(),
            "1000 bytes of memory for keys and values on rank 0 hold fewer than 256 tokens of \
             10 bytes each\nhint: free memory, use more ranks, or raise the budget"
        );
    }
}
