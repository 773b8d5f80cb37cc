//! Computes the cache capacity of the ranks from the facts that they report.

use jackalope_protocol::{KV_BLOCK_TOKENS, RankFacts, window_blocks_max};

use super::{EngineConfig, EngineError, KvBudget};
use crate::{CacheCapacity, CacheDemand, KvStatus, RankCapacity, RequestLimits};

/// Free memory assumed for a machine that does not report it.
const UNKNOWN_FREE_BYTES: u64 = 1 << 30;

/// Returns the memory of the group for caches.
///
/// # Errors
/// Fails with [`EngineError::NoRoom`] if a rank cannot hold a single block.
pub(super) fn capacity(
    config: &EngineConfig,
    facts: &[RankFacts],
) -> Result<CacheCapacity, EngineError> {
    let costs = || facts.iter().map(|facts| facts.cache_cost);
    let least = CacheDemand {
        blocks: 1,
        window_blocks: usize::from(costs().any(|cost| 0 < cost.window_tokens)),
        states: usize::from(costs().any(|cost| cost.has_states())),
    };
    let mut ranks = Vec::with_capacity(facts.len());
    for (rank, facts) in facts.iter().enumerate() {
        let (budget_bytes, cost) = (budget_bytes(config.kv_budget, facts), facts.cache_cost);
        let capacity = RankCapacity::new(budget_bytes, cost);
        if !capacity.holds(least) {
            let least_tokens = KV_BLOCK_TOKENS;
            return Err(EngineError::NoRoom { rank, budget_bytes, cost, least_tokens });
        }
        ranks.push(capacity);
    }
    Ok(CacheCapacity::new(ranks))
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

/// Returns the ranks whose requested memory for caches is larger than what their machines have free:
/// rank, requested bytes and free bytes.
pub(super) fn excesses(
    config: &EngineConfig,
    facts: &[RankFacts],
) -> impl Iterator<Item = (usize, u64, u64)> {
    let requested = match config.kv_budget {
        KvBudget::BytesPerRank(bytes) => bytes,
        KvBudget::Auto { .. } => 0,
    };
    let free = facts.iter().map(|facts| facts.free_bytes).enumerate();
    let is_excess = move |&(_, free): &(usize, u64)| free != 0 && free < requested;
    free.filter(is_excess).map(move |(rank, free)| (rank, requested, free))
}

/// Returns the capacity for the status.
pub(super) fn kv_status(
    config: &EngineConfig,
    facts: &[RankFacts],
    capacity: &CacheCapacity,
) -> KvStatus {
    let costs = || facts.iter().map(|facts| facts.cache_cost);
    let block_tokens = KV_BLOCK_TOKENS as usize;
    let window_tokens = capacity.window_tokens();
    let window_blocks = window_blocks_max(window_tokens, block_tokens, config.step_tokens as usize);
    let blocks_alone = capacity.max_blocks(usize::from(capacity.has_states()), window_blocks);
    let most = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let blocks = most(capacity.max_blocks(0, usize::MAX));
    let of_blocks = CacheDemand { window_blocks: blocks, ..CacheDemand::of_blocks(blocks) };
    let of_blocks = capacity.bytes(of_blocks);
    let of_states = capacity.bytes(CacheDemand::of_states(most(capacity.max_states())));
    KvStatus {
        bytes_per_token: costs().map(|cost| cost.bytes_per_token).sum(),
        window_bytes_per_token: costs().map(|cost| cost.window_bytes_per_token).sum(),
        window_tokens: (window_blocks * block_tokens) as u64,
        state_bytes: costs().map(|cost| cost.state_bytes).sum(),
        capacity_tokens: blocks_alone * u64::from(KV_BLOCK_TOKENS),
        budget_bytes: of_blocks.max(of_states),
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
        let cache_cost = CacheCost { bytes_per_token, ..CacheCost::default() };
        RankFacts { cache_cost, free_bytes, ..fake_facts(100, 1000) }
    }

    fn config(kv_budget: KvBudget) -> EngineConfig {
        EngineConfig { kv_budget, ..EngineConfig::default() }
    }

    #[test]
    fn the_rank_with_the_least_room_decides() {
        let facts = [facts(1000, 0), facts(3000, 0), facts(0, 0)];
        let found = capacity(&config(KvBudget::BytesPerRank(3000 * 256 * 7 + 1)), &facts).unwrap();
        assert_eq!(found.max_blocks(0, 0), 7);
        let status = kv_status(&EngineConfig::default(), &facts, &found);
        assert_eq!((status.capacity_tokens, status.budget_bytes), (7 * 256, 7 * 256 * 4000));
    }

    #[test]
    fn caches_beyond_the_free_memory_are_reported() {
        let facts = [facts(1000, 4000), facts(1000, 0), facts(1000, 5000)];
        let found = |budget| excesses(&config(budget), &facts).collect::<Vec<_>>();
        assert_eq!(found(KvBudget::BytesPerRank(4500)), [(0, 4500, 4000)]);
        assert_eq!(found(KvBudget::Auto { ranks_per_machine: 1 }), []);
    }

    #[test]
    fn states_take_memory_from_tokens() {
        let mut facts = [facts(1000, 0), facts(500, 0)];
        facts[0].cache_cost.state_bytes = 1000 * 256 * 2;
        let config = config(KvBudget::BytesPerRank(1000 * 256 * 9));
        let found = capacity(&config, &facts).unwrap();
        assert!(found.holds(CacheDemand { states: 3, ..CacheDemand::of_blocks(3) }));
        assert!(!found.holds(CacheDemand { states: 3, ..CacheDemand::of_blocks(4) }));
        let status = kv_status(&config, &facts, &found);
        assert_eq!((status.capacity_tokens, status.state_bytes), (7 * 256, 1000 * 256 * 2));
        facts[0].cache_cost = CacheCost { state_bytes: 1000 * 256 * 10, ..CacheCost::default() };
        let err = capacity(&config, &facts).unwrap_err().to_string();
        assert!(err.contains("0 bytes per token and 2560000 bytes per state"), "{err}");
    }

    #[test]
    fn windows_make_room_for_longer_sequences() {
        let mut facts = [facts(1000, 0), facts(500, 0)];
        let cost =
            CacheCost { window_bytes_per_token: 3000, window_tokens: 100, ..facts[0].cache_cost };
        facts[0].cache_cost = cost;
        let config = config(KvBudget::BytesPerRank(256 * 4000 * 10));
        let tokens = |facts: &[RankFacts]| {
            let found = capacity(&config, facts).unwrap();
            kv_status(&config, facts, &found).capacity_tokens
        };
        let window_blocks = cost.window_blocks_max(config.step_tokens as usize);
        assert_eq!(tokens(&facts), (40 - 3 * window_blocks as u64) * 256);
    }

    #[test]
    fn ranks_on_one_machine_share_its_memory() {
        let auto = |ranks_per_machine| config(KvBudget::Auto { ranks_per_machine });
        let one = [facts(1 << 10, 10 << 30)];
        let blocks =
            |config, facts: &[RankFacts]| capacity(&config, facts).unwrap().max_blocks(0, 0);
        assert_eq!(blocks(auto(1), &one), 8 << 12);
        assert_eq!(blocks(auto(2), &one), 4 << 12);
        assert_eq!(blocks(auto(1), &[facts(1 << 10, 0)]), 3276, "an unknown size is guessed");
    }

    #[test]
    fn too_little_memory_is_reported_with_numbers() {
        let err = capacity(&config(KvBudget::BytesPerRank(1000)), &[facts(10, 0)]).unwrap_err();
        assert_eq!(
            err.to_string(),
            "1000 bytes of memory for caches on rank 0 do not hold a sequence of 256 tokens: they \
             take 10 bytes per token\nhint: free memory, use more ranks, or raise the budget"
        );
    }
}
