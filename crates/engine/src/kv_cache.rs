//! Tracks every KV cache on the ranks: whether a sequence uses it, how many positions are computed,
//! how much memory it takes, and whether a prompt can start from it.
//!
//! ```text
//!            create / fork                release                   evict
//!  (nothing) ─────────────▶ in use ───────────────────▶ kept ───────────────▶ dropped
//!                             ▲     too short ──────────────────────────────▶    ▲
//!                             └────────── take_over ──────┘
//! ```
//!
//! All ranks hold the same caches at the same lengths, so memory is counted in blocks, each of a
//! fixed number of tokens. The bytes of a block on each rank matter only when the capacity is
//! chosen.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jackalope_protocol::{CacheId, TokenId};

use crate::prefix::PrefixIndex;
use crate::request::CacheScope;
use crate::status::PrefixStats;

/// Maximum number of kept caches, however small they are.
const KEPT_MAX: usize = 1024;

/// Limits and settings of the caches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheLimits {
    /// Number of positions per block, the unit in which a cache grows.
    pub(crate) block_tokens: usize,
    /// Capacity in blocks.
    pub(crate) capacity_blocks: usize,
    /// Minimum number of shared tokens for which a sequence starts from an existing cache.
    pub(crate) least_prefix_tokens: usize,
    /// Whether the caches of finished sequences are kept.
    pub(crate) keep_prefixes: bool,
}

/// The caches on the ranks once these have executed every plan made so far.
#[derive(Debug)]
pub(crate) struct KvCacheManager {
    limits: CacheLimits,
    entries: HashMap<CacheId, CacheEntry>,
    /// One index per scope: a sequence finds only prefixes of its own scope.
    indexes: BTreeMap<CacheScope, PrefixIndex>,
    /// Kept caches with the time of their last use, the least recently used first.
    kept: BTreeSet<(u64, CacheId)>,
    used_blocks: usize,
    kept_blocks: usize,
    next_id: u64,
    /// Counts uses; these are the times in `kept`.
    clock: u64,
    /// Caches that the plan being made drops.
    drops: Vec<CacheId>,
    dropped_blocks: usize,
    pub(crate) stats: PrefixStats,
}

#[derive(Debug)]
struct CacheEntry {
    scope: CacheScope,
    /// Number of positions computed by the plans made so far.
    num_computed: usize,
    /// Number of blocks allocated on the ranks. Cutting a cache frees none of them.
    blocks: usize,
    /// Time of the last use while the cache is kept; none while a sequence uses it.
    kept_since: Option<u64>,
}

/// What the prefix cache holds of a sequence, and how the sequence uses it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PrefixHit {
    /// With an empty cache.
    Fresh,
    /// In a kept cache, cut to its first `num_tokens` positions.
    TakeOver { cache: CacheId, num_tokens: usize },
    /// In a copy of the first `num_tokens` positions of `source`.
    Fork { source: CacheId, num_tokens: usize },
    /// Not now, because a running sequence is computing a prefix of this one.
    Wait,
}

struct Candidate {
    cache: CacheId,
    num_usable: usize,
    /// Number of computed positions that taking over the cache would cut off.
    num_lost: usize,
    is_kept: bool,
}

impl KvCacheManager {
    pub(crate) fn new(limits: CacheLimits) -> KvCacheManager {
        assert!(0 < limits.block_tokens);
        KvCacheManager {
            limits,
            entries: HashMap::new(),
            indexes: BTreeMap::new(),
            kept: BTreeSet::new(),
            used_blocks: 0,
            kept_blocks: 0,
            next_id: 0,
            clock: 0,
            drops: Vec::new(),
            dropped_blocks: 0,
            stats: PrefixStats::default(),
        }
    }

    /// Returns the number of blocks for `num_tokens` positions.
    pub(crate) fn blocks(&self, num_tokens: usize) -> usize {
        num_tokens.div_ceil(self.limits.block_tokens)
    }

    /// Returns the number of blocks of `cache` once it holds `num_tokens` positions.
    pub(crate) fn blocks_with(&self, cache: CacheId, num_tokens: usize) -> usize {
        self.entry(cache).blocks.max(self.blocks(num_tokens))
    }

    /// Sets the capacity of ranks that hold no caches.
    pub(crate) fn set_capacity(&mut self, capacity_blocks: usize) {
        assert!(self.entries.is_empty(), "nothing is cached");
        self.limits.capacity_blocks = capacity_blocks;
    }

    /// Sets whether released caches are kept.
    pub(crate) fn set_keeping(&mut self, keep_prefixes: bool) {
        self.limits.keep_prefixes = keep_prefixes;
    }

    pub(crate) fn capacity_blocks(&self) -> usize {
        self.limits.capacity_blocks
    }

    /// Returns the numbers of blocks in use and of blocks kept.
    pub(crate) fn used_and_kept(&self) -> (usize, usize) {
        (self.used_blocks - self.kept_blocks, self.kept_blocks)
    }

    pub(crate) fn num_kept(&self) -> usize {
        self.kept.len()
    }

    pub(crate) fn num_indexed_tokens(&self) -> usize {
        self.indexes.values().map(PrefixIndex::num_tokens).sum()
    }

    /// Finds the best start for a sequence of `tokens` within its scope, if at most `usable_max`
    /// tokens may come from a cache.
    pub(crate) fn find(
        &self,
        scope: CacheScope,
        tokens: &[TokenId],
        usable_max: usize,
    ) -> PrefixHit {
        let index = self.indexes.get(&scope).filter(|_| self.limits.keep_prefixes);
        let Some(index) = index else { return PrefixHit::Fresh };
        let least = self.limits.least_prefix_tokens.max(1);
        let mut best: Option<Candidate> = None;
        let mut promised = 0;
        for found in index.matches(tokens) {
            let shared = found.num_tokens.min(usable_max);
            if shared < least || best.as_ref().is_some_and(|best| shared <= best.num_usable) {
                break;
            }
            for cache in found.caches {
                let candidate = self.candidate(*cache, shared);
                if !candidate.is_kept {
                    promised = promised.max(shared);
                }
                if best.as_ref().is_none_or(|best| candidate.is_better_than(best)) {
                    best = Some(candidate);
                }
            }
        }
        let Some(best) = best.filter(|best| least <= best.num_usable) else {
            return if least <= promised { PrefixHit::Wait } else { PrefixHit::Fresh };
        };
        if best.num_usable + least <= promised {
            return PrefixHit::Wait;
        }
        let Candidate { cache, num_usable: num_tokens, .. } = best;
        if best.is_kept && self.is_cheaper_to_cut(&best) {
            PrefixHit::TakeOver { cache, num_tokens }
        } else {
            PrefixHit::Fork { source: cache, num_tokens }
        }
    }

    fn candidate(&self, cache: CacheId, shared: usize) -> Candidate {
        let entry = self.entry(cache);
        let num_usable = shared.min(entry.num_computed);
        Candidate {
            cache,
            num_usable,
            num_lost: entry.num_computed - num_usable,
            is_kept: entry.kept_since.is_some(),
        }
    }

    /// Returns true if cutting the cache costs less than copying it. Copying a position costs a
    /// small part of computing it, so a cache is cut only if few computed positions are lost.
    fn is_cheaper_to_cut(&self, candidate: &Candidate) -> bool {
        const COPIED_PER_COMPUTED: usize = 16;
        let is_little = candidate.num_lost <= self.limits.least_prefix_tokens;
        is_little || candidate.num_lost * COPIED_PER_COMPUTED <= candidate.num_usable
    }

    /// Returns `start`, or another start that needs less memory if this one does not fit. The
    /// running sequences are promised `promised_blocks`, and this one will hold `num_tokens`
    /// positions. Returns none if the sequence has to wait for the eviction of kept caches, which
    /// this call begins.
    pub(crate) fn settle(
        &mut self,
        start: PrefixHit,
        num_tokens: usize,
        promised_blocks: usize,
    ) -> Option<PrefixHit> {
        let free = self.limits.capacity_blocks.saturating_sub(promised_blocks);
        let PrefixHit::Fork { source, num_tokens: num_shared } = start else {
            return match start {
                PrefixHit::TakeOver { cache, .. } if free < self.blocks_with(cache, num_tokens) => {
                    Some(PrefixHit::Fresh)
                }
                _ => Some(start),
            };
        };
        let copied = self.blocks(num_shared);
        // The ranks make copies before they drop caches.
        if self.used_blocks + self.dropped_blocks + copied <= self.limits.capacity_blocks {
            return Some(start);
        }
        let entry = self.entry(source);
        let is_kept = entry.kept_since.is_some();
        let others = self.kept_blocks - if is_kept { entry.blocks } else { 0 };
        if self.used_blocks - others + copied <= self.limits.capacity_blocks {
            self.touch(source);
            self.evict_until(self.limits.capacity_blocks - copied, Some(source));
            return None;
        }
        let fits = self.blocks_with(source, num_tokens) <= free;
        let take_over = PrefixHit::TakeOver { cache: source, num_tokens: num_shared };
        Some(if is_kept && fits { take_over } else { PrefixHit::Fresh })
    }

    /// Returns a cache for a sequence with this start.
    pub(crate) fn open(
        &mut self,
        start: PrefixHit,
        scope: CacheScope,
        tokens: &[TokenId],
    ) -> CacheId {
        self.stats.wanted_tokens += tokens.len() as u64;
        let cache = match start {
            PrefixHit::TakeOver { cache, num_tokens } => self.take_over(cache, num_tokens),
            PrefixHit::Fork { source, num_tokens } => {
                self.touch(source);
                self.stats.forked += 1;
                self.create(scope, num_tokens)
            }
            PrefixHit::Fresh => self.create(scope, 0),
            PrefixHit::Wait => panic!("a sequence that waits has no cache"),
        };
        self.stats.found_tokens += start.num_tokens() as u64;
        self.index_as(cache, tokens);
        cache
    }

    fn create(&mut self, scope: CacheScope, num_tokens: usize) -> CacheId {
        let cache = CacheId(self.next_id);
        self.next_id += 1;
        let blocks = self.blocks(num_tokens);
        self.used_blocks += blocks;
        let entry = CacheEntry { scope, num_computed: num_tokens, blocks, kept_since: None };
        self.entries.insert(cache, entry);
        cache
    }

    fn take_over(&mut self, cache: CacheId, num_tokens: usize) -> CacheId {
        self.stats.taken_over += 1;
        let entry = self.entries.get_mut(&cache).expect("only held caches are offered");
        let since = entry.kept_since.take().expect("only kept caches are taken over");
        assert!(num_tokens <= entry.num_computed);
        entry.num_computed = num_tokens;
        self.kept_blocks -= entry.blocks;
        self.kept.remove(&(since, cache));
        cache
    }

    fn index_as(&mut self, cache: CacheId, tokens: &[TokenId]) {
        if self.limits.keep_prefixes {
            let scope = self.entry(cache).scope;
            let index = self.indexes.entry(scope).or_insert_with(PrefixIndex::new);
            index.remove(cache);
            index.insert(cache, tokens);
        }
    }

    fn unindex(&mut self, scope: CacheScope, cache: CacheId) {
        let Some(index) = self.indexes.get_mut(&scope) else { return };
        index.remove(cache);
        if index.is_empty() {
            self.indexes.remove(&scope);
        }
    }

    /// Records that a plan computes the positions below `num_computed`. Evicts kept caches if
    /// memory is short.
    pub(crate) fn grow(&mut self, cache: CacheId, num_computed: usize) {
        let blocks = self.blocks_with(cache, num_computed);
        let entry = self.entries.get_mut(&cache).expect("callers name a held cache");
        entry.num_computed = num_computed;
        self.used_blocks += blocks - entry.blocks;
        entry.blocks = blocks;
        self.evict_until(self.limits.capacity_blocks, None);
        assert!(
            self.used_blocks <= self.limits.capacity_blocks,
            "running sequences stay within the capacity"
        );
    }

    /// Takes a cache back from a sequence whose known tokens are `tokens`, and keeps the computed
    /// positions of these.
    pub(crate) fn release(&mut self, cache: CacheId, tokens: &[TokenId]) {
        let entry = self.entries.get_mut(&cache).expect("a sequence's cache is held");
        assert!(entry.kept_since.is_none(), "a cache is released once");
        let num_known = entry.num_computed.min(tokens.len());
        entry.num_computed = num_known;
        self.clock += 1;
        entry.kept_since = Some(self.clock);
        self.kept_blocks += entry.blocks;
        self.kept.insert((self.clock, cache));
        if !self.limits.keep_prefixes || num_known < self.limits.least_prefix_tokens.max(1) {
            return self.drop_kept(cache);
        }
        self.index_as(cache, &tokens[..num_known]);
        while KEPT_MAX < self.kept.len() {
            self.evict_one(None);
        }
    }

    /// Forgets all caches, because the ranks restart empty. Ids are not reused.
    pub(crate) fn clear(&mut self) {
        let (next_id, stats) = (self.next_id, self.stats);
        *self = KvCacheManager { next_id, stats, ..KvCacheManager::new(self.limits) };
    }

    /// Drops all kept caches and returns their number.
    pub(crate) fn clear_kept(&mut self) -> usize {
        let kept: Vec<CacheId> = self.kept.iter().map(|(_, cache)| *cache).collect();
        kept.iter().for_each(|cache| self.drop_kept(*cache));
        kept.len()
    }

    /// Returns the caches that the plan being made drops; later drops belong to the next plan.
    pub(crate) fn take_drops(&mut self) -> Vec<CacheId> {
        self.dropped_blocks = 0;
        std::mem::take(&mut self.drops)
    }

    pub(crate) fn has_drops(&self) -> bool {
        !self.drops.is_empty()
    }

    fn entry(&self, cache: CacheId) -> &CacheEntry {
        self.entries.get(&cache).expect("callers name a held cache")
    }

    /// Marks a kept cache as just used.
    fn touch(&mut self, cache: CacheId) {
        let entry = self.entries.get_mut(&cache).expect("callers name a held cache");
        if let Some(since) = &mut entry.kept_since {
            self.kept.remove(&(*since, cache));
            self.clock += 1;
            *since = self.clock;
            self.kept.insert((self.clock, cache));
        }
    }

    fn evict_until(&mut self, used_max: usize, spared: Option<CacheId>) {
        while used_max < self.used_blocks && self.evict_one(spared) {}
    }

    /// Drops the least recently used kept cache other than `spared`. Returns false if there is
    /// none.
    fn evict_one(&mut self, spared: Option<CacheId>) -> bool {
        let mut candidates = self.kept.iter().map(|(_, cache)| *cache);
        let Some(cache) = candidates.find(|cache| Some(*cache) != spared) else { return false };
        self.stats.evicted += 1;
        self.drop_kept(cache);
        true
    }

    fn drop_kept(&mut self, cache: CacheId) {
        let entry = self.entries.remove(&cache).expect("callers name a held cache");
        let since = entry.kept_since.expect("only kept caches are dropped");
        self.kept.remove(&(since, cache));
        self.unindex(entry.scope, cache);
        self.kept_blocks -= entry.blocks;
        self.used_blocks -= entry.blocks;
        self.dropped_blocks += entry.blocks;
        // The ranks do not have a cache that no row has used yet.
        if 0 < entry.blocks {
            self.drops.push(cache);
        }
    }
}

impl PrefixHit {
    /// Returns the number of tokens that need not be computed.
    pub(crate) fn num_tokens(self) -> usize {
        match self {
            PrefixHit::TakeOver { num_tokens, .. } | PrefixHit::Fork { num_tokens, .. } => {
                num_tokens
            }
            PrefixHit::Fresh | PrefixHit::Wait => 0,
        }
    }
}

impl Candidate {
    /// Prefers more usable tokens, then a start without a copy, then fewer lost positions, then the
    /// lower id, so that the choice does not depend on the order of the index.
    fn is_better_than(&self, other: &Candidate) -> bool {
        let key = |it: &Candidate| {
            (it.num_usable, it.is_kept, std::cmp::Reverse(it.num_lost), std::cmp::Reverse(it.cache))
        };
        key(other) < key(self)
    }
}
