//! Memory of caches, in the units in which ranks take it.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use jackalope_protocol::CacheCost;

/// An amount of cache memory. What it is in bytes differs between ranks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CacheDemand {
    /// Number of KV blocks.
    pub blocks: usize,
    /// Number of states: one for each cache, and one for each length that it keeps. Always 0 for
    /// models without states.
    pub states: usize,
}

impl CacheDemand {
    /// Returns an amount of blocks and no states.
    pub fn of_blocks(blocks: usize) -> CacheDemand {
        CacheDemand { blocks, states: 0 }
    }

    /// Returns an amount of states and no blocks.
    pub fn of_states(states: usize) -> CacheDemand {
        CacheDemand { blocks: 0, states }
    }

    /// Returns the size in bytes on a rank.
    pub(crate) fn bytes(self, block_bytes: u64, state_bytes: u64) -> u64 {
        let product = |number: usize, bytes: u64| (number as u64).saturating_mul(bytes);
        product(self.blocks, block_bytes).saturating_add(product(self.states, state_bytes))
    }
}

impl Add for CacheDemand {
    type Output = CacheDemand;

    fn add(self, other: CacheDemand) -> CacheDemand {
        CacheDemand { blocks: self.blocks + other.blocks, states: self.states + other.states }
    }
}

impl Sub for CacheDemand {
    type Output = CacheDemand;

    fn sub(self, other: CacheDemand) -> CacheDemand {
        CacheDemand { blocks: self.blocks - other.blocks, states: self.states - other.states }
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
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RankCapacity {
    /// Memory for caches in bytes.
    pub budget_bytes: u64,
    /// Size of one KV block in bytes.
    pub block_bytes: u64,
    /// Size of one state in bytes; 0 if the rank's layers have none.
    pub state_bytes: u64,
}

impl RankCapacity {
    /// Returns the capacity of a rank with this memory and these costs.
    pub fn new(budget_bytes: u64, cost: CacheCost) -> RankCapacity {
        let (block_bytes, state_bytes) = (cost.block_bytes(), cost.state_bytes);
        RankCapacity { budget_bytes, block_bytes, state_bytes }
    }

    /// Returns whether the rank can hold this amount.
    pub fn holds(&self, demand: CacheDemand) -> bool {
        demand.bytes(self.block_bytes, self.state_bytes) <= self.budget_bytes
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
        CacheCapacity::new(vec![RankCapacity { budget_bytes, block_bytes: 1, state_bytes: 0 }])
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

    /// Returns the number of blocks that fit beside `num_states` states; the rank with the least
    /// memory decides. At most `u32::MAX`, also if blocks take no memory.
    pub fn max_blocks(&self, num_states: usize) -> u64 {
        let blocks = self.ranks.iter().filter(|rank| 0 < rank.block_bytes).map(|rank| {
            let of_states = CacheDemand::of_states(num_states).bytes(0, rank.state_bytes);
            rank.budget_bytes.saturating_sub(of_states) / rank.block_bytes
        });
        blocks.fold(u64::from(u32::MAX), u64::min)
    }

    /// Returns the number of states that fit without blocks; 0 for models without states.
    pub fn max_states(&self) -> u64 {
        let ranks = self.ranks.iter().filter(|rank| 0 < rank.state_bytes);
        ranks.map(|rank| rank.budget_bytes / rank.state_bytes).min().unwrap_or(0)
    }

    /// Returns the bytes of an amount, summed over all ranks.
    pub fn bytes(&self, demand: CacheDemand) -> u64 {
        let of_rank = |it: &RankCapacity| demand.bytes(it.block_bytes, it.state_bytes);
        self.ranks.iter().map(of_rank).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(budget_bytes: u64, block_bytes: u64, state_bytes: u64) -> RankCapacity {
        RankCapacity { budget_bytes, block_bytes, state_bytes }
    }

    #[test]
    fn without_states_the_number_of_blocks_decides() {
        let capacity = CacheCapacity::new(vec![rank(100, 7, 0), rank(100, 9, 0), rank(0, 0, 0)]);
        for blocks in 0..30 {
            assert_eq!(capacity.holds(CacheDemand::of_blocks(blocks)), blocks <= 11);
        }
        assert_eq!((capacity.max_blocks(1), capacity.max_states()), (11, 0));
        assert!(!capacity.has_states());
    }

    #[test]
    fn the_rank_with_the_least_memory_decides_in_every_mixture() {
        // A pipeline: the states are on the first rank, most blocks on the second.
        let capacity = CacheCapacity::new(vec![rank(100, 1, 30), rank(40, 4, 0)]);
        let holds = |blocks, states| capacity.holds(CacheDemand { blocks, states });
        assert!(holds(10, 3) && !holds(11, 0) && !holds(10, 4) && holds(0, 3));
        assert_eq!([0, 3].map(|states| capacity.max_blocks(states)), [10, 10]);
        assert_eq!(CacheCapacity::new(vec![rank(100, 1, 30)]).max_blocks(3), 10);
        assert_eq!(capacity.max_states(), 3);
        assert_eq!(capacity.bytes(CacheDemand { blocks: 2, states: 1 }), 2 + 30 + 8);
    }

    #[test]
    fn no_amount_overflows() {
        let capacity = CacheCapacity::new(vec![rank(u64::MAX, u64::MAX, u64::MAX)]);
        assert!(capacity.holds(CacheDemand { blocks: 1, states: 0 }));
        assert_eq!(capacity.bytes(CacheDemand { blocks: usize::MAX, states: 9 }), u64::MAX);
    }
}
