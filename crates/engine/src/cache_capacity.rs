//! Memory of caches, in the units in which ranks take it.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use jackalope_protocol::CacheCost;

/// An amount of cache memory. What it is in bytes differs between ranks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CacheDemand {
    /// Number of KV blocks of layers that keep all positions.
    pub blocks: usize,
    /// Number of KV blocks of layers with windows. Always 0 for models without such layers, and if
    /// these layers keep all positions on every rank.
    pub window_blocks: usize,
    /// Number of states: one for each cache, and one for each length that it keeps. Always 0 for
    /// models without states.
    pub states: usize,
}

impl CacheDemand {
    /// Returns an amount of blocks and no states.
    pub fn of_blocks(blocks: usize) -> CacheDemand {
        CacheDemand { blocks, ..CacheDemand::default() }
    }

    /// Returns an amount of states and no blocks.
    pub fn of_states(states: usize) -> CacheDemand {
        CacheDemand { states, ..CacheDemand::default() }
    }
}

impl Add for CacheDemand {
    type Output = CacheDemand;

    fn add(self, other: CacheDemand) -> CacheDemand {
        CacheDemand {
            blocks: self.blocks + other.blocks,
            window_blocks: self.window_blocks + other.window_blocks,
            states: self.states + other.states,
        }
    }
}

impl Sub for CacheDemand {
    type Output = CacheDemand;

    fn sub(self, other: CacheDemand) -> CacheDemand {
        CacheDemand {
            blocks: self.blocks - other.blocks,
            window_blocks: self.window_blocks - other.window_blocks,
            states: self.states - other.states,
        }
    }
}

impl AddAssign for CacheDemand {
    fn add_assign(&mut self, other: CacheDemand) {
        *self = *self + other;
    }
}

impl SubAssign for CacheDemand {
    fn sub_assign(&mut self, other: CacheDemand) {
        *self = *self - other;
    }
}

impl Sum for CacheDemand {
    fn sum<I: Iterator<Item = CacheDemand>>(all: I) -> CacheDemand {
        all.fold(CacheDemand::default(), Add::add)
    }
}

/// The cache memory of one rank.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RankCapacity {
    /// Memory for caches in bytes.
    pub budget_bytes: u64,
    /// Size in bytes of one KV block in layers that keep all positions.
    pub block_bytes: u64,
    /// Size in bytes of one KV block in layers with windows, if they free what no row can read.
    pub window_block_bytes: u64,
    /// Number of positions that a query sees at most in such layers; 0 without them.
    pub window_tokens: usize,
    /// Size of one state in bytes; 0 if the rank's layers have none.
    pub state_bytes: u64,
}

impl RankCapacity {
    /// Returns the capacity of a rank with this memory and these costs.
    pub fn new(budget_bytes: u64, cost: CacheCost) -> RankCapacity {
        RankCapacity {
            budget_bytes,
            block_bytes: cost.block_bytes(),
            window_block_bytes: cost.window_block_bytes(),
            window_tokens: cost.window_tokens as usize,
            state_bytes: cost.state_bytes,
        }
    }

    /// Returns the size of an amount in bytes.
    fn bytes(&self, demand: CacheDemand) -> u64 {
        let product = |number: usize, bytes: u64| (number as u64).saturating_mul(bytes);
        product(demand.blocks, self.block_bytes)
            .saturating_add(product(demand.window_blocks, self.window_block_bytes))
            .saturating_add(product(demand.states, self.state_bytes))
    }

    /// Returns whether the rank can hold this amount.
    pub fn holds(&self, demand: CacheDemand) -> bool {
        self.bytes(demand) <= self.budget_bytes
    }
}

/// The cache memory of a group of ranks. All ranks hold the same caches at the same lengths.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CacheCapacity {
    ranks: Vec<RankCapacity>,
}

impl CacheCapacity {
    /// Returns the capacity of these ranks.
    pub fn new(ranks: Vec<RankCapacity>) -> CacheCapacity {
        CacheCapacity { ranks }
    }

    /// Creates the capacity for `num_blocks` blocks of a model without states.
    pub fn of_blocks(num_blocks: usize) -> CacheCapacity {
        let budget_bytes = num_blocks as u64;
        let rank = RankCapacity { budget_bytes, block_bytes: 1, ..RankCapacity::default() };
        CacheCapacity::new(vec![rank])
    }

    /// Returns whether every rank can hold this amount.
    pub fn holds(&self, demand: CacheDemand) -> bool {
        self.ranks.iter().all(|rank| rank.holds(demand))
    }

    /// Returns whether a rank has layers with states, so that caches can be cut only at lengths
    /// that are kept.
    pub fn has_states(&self) -> bool {
        self.ranks.iter().any(|rank| 0 < rank.state_bytes)
    }

    /// Returns the number of positions that a query sees at most in layers that free the others; 0
    /// without such layers.
    pub fn window_tokens(&self) -> usize {
        self.ranks.iter().map(|rank| rank.window_tokens).max().unwrap_or(0)
    }

    /// Returns the number of blocks of a sequence that fit beside `num_states` states, if the
    /// sequence holds at most `window_blocks_max` of them in layers with windows; the rank with the
    /// least memory decides. At most `u32::MAX`, also if blocks take no memory.
    pub fn max_blocks(&self, num_states: usize, window_blocks_max: usize) -> u64 {
        let most = u64::from(u32::MAX);
        let blocks = self.ranks.iter().map(|rank| {
            let of_states = rank.bytes(CacheDemand::of_states(num_states));
            let budget = rank.budget_bytes.saturating_sub(of_states);
            let whole = rank.block_bytes.saturating_add(rank.window_block_bytes);
            let short = budget.checked_div(whole).unwrap_or(most);
            if short <= window_blocks_max as u64 {
                return short;
            }
            let windows = CacheDemand { window_blocks: window_blocks_max, ..Default::default() };
            let rest = budget - rank.bytes(windows);
            rest.checked_div(rank.block_bytes).unwrap_or(most)
        });
        blocks.fold(most, u64::min)
    }

    /// Returns the number of states that fit without blocks; 0 for models without states.
    pub fn max_states(&self) -> u64 {
        let ranks = self.ranks.iter().filter(|rank| 0 < rank.state_bytes);
        ranks.map(|rank| rank.budget_bytes / rank.state_bytes).min().unwrap_or(0)
    }

    /// Returns the bytes of an amount, summed over all ranks.
    pub fn bytes(&self, demand: CacheDemand) -> u64 {
        self.ranks.iter().map(|rank| rank.bytes(demand)).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(budget_bytes: u64, block_bytes: u64, state_bytes: u64) -> RankCapacity {
        RankCapacity { budget_bytes, block_bytes, state_bytes, ..RankCapacity::default() }
    }

    #[test]
    fn without_states_the_number_of_blocks_decides() {
        let capacity = CacheCapacity::new(vec![rank(100, 7, 0), rank(100, 9, 0), rank(0, 0, 0)]);
        for blocks in 0..30 {
            assert_eq!(capacity.holds(CacheDemand::of_blocks(blocks)), blocks <= 11);
        }
        assert_eq!((capacity.max_blocks(1, 0), capacity.max_states()), (11, 0));
        assert!(!capacity.has_states());
    }

    #[test]
    fn the_rank_with_the_least_memory_decides_in_every_mixture() {
        // A pipeline: the states are on the first rank, most blocks on the second.
        let capacity = CacheCapacity::new(vec![rank(100, 1, 30), rank(40, 4, 0)]);
        let amount = |blocks, states| CacheDemand { states, ..CacheDemand::of_blocks(blocks) };
        let holds = |blocks, states| capacity.holds(amount(blocks, states));
        assert!(holds(10, 3) && !holds(11, 0) && !holds(10, 4) && holds(0, 3));
        assert_eq!([0, 3].map(|states| capacity.max_blocks(states, 0)), [10, 10]);
        assert_eq!(CacheCapacity::new(vec![rank(100, 1, 30)]).max_blocks(3, 0), 10);
        assert_eq!(capacity.max_states(), 3);
        assert_eq!(capacity.bytes(amount(2, 1)), 2 + 30 + 8);
    }

    #[test]
    fn a_sequence_is_longer_where_windows_free_their_blocks() {
        let rank = RankCapacity {
            budget_bytes: 100,
            block_bytes: 2,
            window_block_bytes: 8,
            window_tokens: 4,
            state_bytes: 0,
        };
        let capacity = CacheCapacity::new(vec![rank]);
        assert_eq!([0, 5, 10, 99].map(|most| capacity.max_blocks(0, most)), [50, 30, 10, 10]);
        let holds = |blocks, window_blocks| {
            capacity.holds(CacheDemand { window_blocks, ..CacheDemand::of_blocks(blocks) })
        };
        assert!(holds(30, 5) && !holds(31, 5) && !holds(30, 6));
        assert_eq!(capacity.window_tokens(), 4);
    }

    #[test]
    fn no_amount_overflows() {
        let capacity = CacheCapacity::new(vec![rank(u64::MAX, u64::MAX, u64::MAX)]);
        assert!(capacity.holds(CacheDemand::of_blocks(1)));
        assert_eq!(
            capacity.bytes(CacheDemand { states: 9, ..CacheDemand::of_blocks(usize::MAX) }),
            u64::MAX
        );
    }
}
