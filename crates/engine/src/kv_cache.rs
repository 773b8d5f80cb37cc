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
//! fixed number of tokens, and in states; [`CacheCapacity`] knows their bytes on each rank.
//!
//! A model with states has caches that cannot be cut to any length: a sequence starts from a cache
//! only at its present length or at a length that it keeps ([`KeptLengths`]). Each kept length
//! takes as much memory as the states of a sequence. When memory is short, lengths are given up that
//! were kept only at regular distances, and then the least recently used of the other kept lengths
//! and kept caches. The ranks apply what a plan gives up before they compute its rows, so a plan
//! never gives up what one of its rows keeps or starts from.
//!
//! Layers with windows free the blocks that no row can read any more (`windows.rs`). A sequence starts
//! from a cache where the blocks before its start are held: at the end of the cache, near its
//! beginning, and at kept lengths, which take memory only for these blocks.

mod eviction;
mod search;
mod windows;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jackalope_protocol::{CacheId, Forget, StepPlan, TokenId, WindowDrop};

use crate::cache_capacity::{CacheCapacity, CacheDemand};
use crate::kept_lengths::{KEPT_LENGTHS_MAX, KeepHints, KeptLength, KeptLengths};
use crate::prefix::PrefixIndex;
use crate::request::CacheScope;
use crate::status::PrefixStats;
use eviction::GivenUpNext;
use windows::HeldBlocks;

/// Maximum number of kept caches, however small they are.
const KEPT_MAX: usize = 1024;

/// Limits and settings of the caches.
#[derive(Clone, Debug)]
pub(crate) struct CacheLimits {
    /// Number of positions per block, the unit in which a cache grows.
    pub(crate) block_tokens: usize,
    /// Maximum number of tokens of a row, in models with windows.
    pub(crate) row_tokens: usize,
    /// Memory of the ranks.
    pub(crate) capacity: CacheCapacity,
    /// Minimum number of shared tokens for which a sequence starts from an existing cache.
    pub(crate) least_prefix_tokens: usize,
    /// Whether the caches of finished sequences are kept.
    pub(crate) keep_prefixes: bool,
    /// Smallest distance of the lengths at which the states of long sequences are kept, in tokens.
    pub(crate) lattice_tokens: usize,
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
    /// Kept lengths that may be given up, of all caches; the first to go first.
    lengths: BTreeSet<GivenUpNext>,
    /// Kept lengths that the plan being made needs. They join `lengths` once it is complete.
    held_back: Vec<(CacheId, usize)>,
    /// Whether the model has states.
    has_states: bool,
    /// Number of positions that a query sees at most in layers that free the others; 0 without them.
    window_tokens: usize,
    /// Memory of all caches.
    used: CacheDemand,
    /// Part of `used` that belongs to kept caches.
    kept_demand: CacheDemand,
    next_id: u64,
    /// Counts uses; these are the times in `kept` and `lengths`.
    clock: u64,
    /// Caches that the plan being made drops, and kept lengths of others.
    drops: Vec<CacheId>,
    forgets: Vec<Forget>,
    window_drops: Vec<WindowDrop>,
    /// Memory of all three.
    dropped: CacheDemand,
    pub(crate) stats: PrefixStats,
}

#[derive(Debug)]
struct CacheEntry {
    scope: CacheScope,
    /// Number of positions computed by the plans made so far.
    num_computed: usize,
    /// Number of positions that the ranks hold, after which their states are. More than
    /// `num_computed` if the last positions belong to tokens that turned out not to be wanted.
    num_held: usize,
    lengths: KeptLengths,
    /// Kept length to which the next row cuts the cache.
    cut_at: Option<usize>,
    /// Number of blocks allocated on the ranks. Cutting a cache frees none of them.
    blocks: usize,
    windows: HeldBlocks,
    /// Time of the last use while the cache is kept; none while a sequence uses it.
    kept_since: Option<u64>,
}

/// The part of a sequence that the prefix cache holds, and how the sequence uses it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PrefixHit {
    /// The sequence starts with an empty cache.
    Fresh,
    /// It continues in a kept cache, cut to its first `num_tokens` positions.
    TakeOver { cache: CacheId, num_tokens: usize },
    /// It continues in a copy of the first `num_tokens` positions of `source`.
    Fork { source: CacheId, num_tokens: usize },
    /// It waits, because a running sequence is computing the first `num_tokens` positions, in `cache`.
    Wait { cache: CacheId, num_tokens: usize },
}

/// The result of a search for a prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefixSearch {
    pub(crate) hit: PrefixHit,
    /// Number of tokens that the sequence shares with a cache, also where it cannot be reused.
    pub(crate) num_shared: usize,
    /// Number of tokens that could be reused if there were memory for it.
    pub(crate) num_usable: usize,
}

impl KvCacheManager {
    pub(crate) fn new(limits: CacheLimits) -> KvCacheManager {
        assert!(0 < limits.block_tokens);
        let has_states = limits.capacity.has_states();
        let window_tokens = limits.capacity.window_tokens();
        KvCacheManager {
            limits,
            entries: HashMap::new(),
            indexes: BTreeMap::new(),
            kept: BTreeSet::new(),
            lengths: BTreeSet::new(),
            held_back: Vec::new(),
            has_states,
            window_tokens,
            used: CacheDemand::default(),
            kept_demand: CacheDemand::default(),
            next_id: 0,
            clock: 0,
            drops: Vec::new(),
            forgets: Vec::new(),
            window_drops: Vec::new(),
            dropped: CacheDemand::default(),
            stats: PrefixStats::default(),
        }
    }

    fn blocks(&self, num_tokens: usize) -> usize {
        num_tokens.div_ceil(self.limits.block_tokens)
    }

    /// Returns the memory that a cache of `num_tokens` positions needs.
    pub(crate) fn demand(&self, num_tokens: usize) -> CacheDemand {
        let blocks = self.blocks(num_tokens);
        let window_blocks = self.window_blocks_of(blocks);
        CacheDemand { blocks, window_blocks, states: usize::from(self.has_states) }
    }

    /// Returns the memory that `cache` needs once it holds `num_tokens` positions, without kept
    /// lengths that can be given up.
    pub(crate) fn demand_with(&self, cache: CacheId, num_tokens: usize) -> CacheDemand {
        let entry = self.entry(cache);
        let blocks = entry.blocks.max(self.blocks(num_tokens));
        let states = usize::from(self.has_states) + usize::from(entry.cut_at.is_some());
        CacheDemand { blocks, window_blocks: self.window_blocks_of(blocks), states }
    }

    /// Returns whether the ranks can hold so much at once.
    pub(crate) fn holds(&self, demand: CacheDemand) -> bool {
        self.limits.capacity.holds(demand)
    }

    pub(crate) fn capacity(&self) -> &CacheCapacity {
        &self.limits.capacity
    }

    /// Returns whether the model has states.
    pub(crate) fn has_states(&self) -> bool {
        self.has_states
    }

    /// Sets the capacity of ranks that hold no caches.
    pub(crate) fn set_capacity(&mut self, capacity: CacheCapacity) {
        assert!(self.entries.is_empty(), "nothing is cached");
        self.has_states = capacity.has_states();
        self.window_tokens = capacity.window_tokens();
        self.limits.capacity = capacity;
    }

    /// Sets whether released caches are kept.
    pub(crate) fn set_keeping(&mut self, keep_prefixes: bool) {
        self.limits.keep_prefixes = keep_prefixes;
    }

    /// Returns the memory in use and the memory of kept caches.
    pub(crate) fn used_and_kept(&self) -> (CacheDemand, CacheDemand) {
        (self.used - self.kept_demand, self.kept_demand)
    }

    pub(crate) fn num_kept(&self) -> usize {
        self.kept.len()
    }

    pub(crate) fn num_indexed_tokens(&self) -> usize {
        self.indexes.values().map(PrefixIndex::num_tokens).sum()
    }

    /// Returns a cache for a sequence with this start.
    pub(crate) fn open(
        &mut self,
        start: PrefixHit,
        scope: CacheScope,
        tokens: &[TokenId],
        hints: KeepHints,
    ) -> CacheId {
        self.stats.wanted_tokens += tokens.len() as u64;
        let cache = match start {
            PrefixHit::TakeOver { cache, num_tokens } => self.take_over(cache, num_tokens),
            PrefixHit::Fork { source, num_tokens } => {
                self.touch(source, num_tokens);
                self.stats.forked += 1;
                let is_kept = self.is_kept_by_ranks(source, num_tokens);
                self.create(scope, num_tokens, is_kept)
            }
            PrefixHit::Fresh => self.create(scope, 0, false),
            PrefixHit::Wait { .. } => panic!("a sequence that waits has no cache"),
        };
        self.stats.found_tokens += start.num_tokens() as u64;
        self.index_as(cache, tokens);
        if self.keeps_lengths() && self.limits.keep_prefixes {
            let (least, lattice) = (self.limits.least_prefix_tokens, self.limits.lattice_tokens);
            let lengths = &mut self.entries.get_mut(&cache).expect("it was just opened").lengths;
            lengths.choose(start.num_tokens(), hints, least, lattice);
        }
        cache
    }

    fn create(&mut self, scope: CacheScope, num_tokens: usize, is_kept: bool) -> CacheId {
        let cache = CacheId(self.next_id);
        self.next_id += 1;
        let entry = CacheEntry {
            scope,
            num_computed: num_tokens,
            num_held: num_tokens,
            lengths: KeptLengths::default(),
            cut_at: None,
            blocks: self.blocks(num_tokens),
            windows: self.copied_blocks(num_tokens),
            kept_since: None,
        };
        self.entries.insert(cache, entry);
        if is_kept {
            self.clock += 1;
            let kept = KeptLength { is_chosen: true, used_at: self.clock };
            self.entry_mut(cache).lengths.insert(num_tokens, kept);
            self.lengths.insert(GivenUpNext::new(cache, num_tokens, kept));
        }
        self.used += self.entry_demand(cache);
        cache
    }

    fn take_over(&mut self, cache: CacheId, num_tokens: usize) -> CacheId {
        self.stats.taken_over += 1;
        self.kept_demand -= self.entry_demand(cache);
        let entry = self.entry_mut(cache);
        let since = entry.kept_since.take().expect("only kept caches are taken over");
        assert!(num_tokens <= entry.num_computed);
        entry.num_computed = num_tokens;
        self.kept.remove(&(since, cache));
        self.continue_window(cache, num_tokens);
        self.forget_beyond(cache, num_tokens);
        self.touch(cache, num_tokens);
        if self.has_states {
            self.cut_next(cache, num_tokens);
        }
        cache
    }

    /// Notes that the next row of a cache with states starts at `num_tokens`. If that cuts the
    /// cache, the states there are needed until then.
    fn cut_next(&mut self, cache: CacheId, num_tokens: usize) {
        let entry = self.entry_mut(cache);
        if num_tokens == entry.num_held {
            return;
        }
        let kept = entry.lengths.get(num_tokens).expect("caches are cut where states are kept");
        entry.cut_at = Some(num_tokens);
        self.lengths.remove(&GivenUpNext::new(cache, num_tokens, kept));
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

    /// Returns how many of `most` tokens a row from `start` on computes, so that it ends where
    /// states are to be kept.
    pub(crate) fn chunk(&self, cache: CacheId, start: usize, most: usize) -> usize {
        if !self.has_states || !self.limits.keep_prefixes {
            return most;
        }
        self.entry(cache).lengths.next(start).map_or(most, |next| most.min(next - start))
    }

    /// Records that a row of a plan starts at `start`, and that the positions below `num_computed`
    /// are computed after it. Evicts kept caches if memory is short.
    pub(crate) fn grow(&mut self, cache: CacheId, start: usize, num_computed: usize) {
        let blocks = self.entry(cache).blocks.max(self.blocks(num_computed));
        let has_states = self.has_states;
        let before = self.entry_demand(cache);
        let entry = self.entry_mut(cache);
        if has_states {
            let cut_at = entry.cut_at.take();
            assert!(
                cut_at.unwrap_or(entry.num_held) == start,
                "{cache:?} of {} positions continues at {start}, where it has no states",
                entry.num_held
            );
            self.held_back.extend(cut_at.map(|cut_at| (cache, cut_at)));
        }
        let entry = self.entry_mut(cache);
        (entry.num_computed, entry.num_held) = (num_computed, num_computed);
        entry.blocks = blocks;
        if self.has_windows() {
            self.extend_window(cache, start, num_computed);
        }
        self.used += self.entry_demand(cache);
        self.used -= before;
        if self.has_windows() && !has_states && self.limits.keep_prefixes {
            self.keep_passed(cache, start, num_computed);
        }
        self.free_windows(cache);
        self.evict_until_room(CacheDemand::default(), None);
        assert!(self.holds(self.used), "running sequences stay within the capacity");
    }

    /// Decides whether the row that computes the positions below `num_computed` keeps the states
    /// there. Called when all rows of the plan have their memory. Gives up what is worth less, if
    /// that is needed.
    pub(crate) fn keep(&mut self, cache: CacheId, num_computed: usize) -> bool {
        if !self.has_states || !self.limits.keep_prefixes {
            return false;
        }
        let Some(is_chosen) = self.entry(cache).lengths.wants(num_computed) else { return false };
        let state = CacheDemand::of_states(1);
        while !self.holds(self.used + state) {
            let is_worth_less = is_chosen || self.lengths.first().is_some_and(|it| !it.is_chosen);
            if !(is_worth_less && self.evict_one(None)) {
                self.entry_mut(cache).lengths.give_up(num_computed);
                return false;
            }
        }
        self.clock += 1;
        let kept = KeptLength { is_chosen, used_at: self.clock };
        let lengths = &mut self.entry_mut(cache).lengths;
        lengths.insert(num_computed, kept);
        self.used += state;
        self.held_back.push((cache, num_computed));
        self.stats.kept_lengths += 1;
        self.thin(cache);
        true
    }

    /// Gives up lengths of a cache that keeps too many.
    fn thin(&mut self, cache: CacheId) {
        let mut thinned = self.entry_mut(cache).lengths.thin();
        thinned.retain(|it| !self.is_held_back(cache, *it));
        thinned.into_iter().for_each(|it| self.forget(cache, it));
        while KEPT_LENGTHS_MAX < self.entry(cache).lengths.len() {
            let all = self.entry(cache).lengths.all();
            let all = all.filter(|(it, _)| !self.is_held_back(cache, *it));
            let Some((least, _)) = all.min_by_key(|(_, kept)| (kept.is_chosen, kept.used_at))
            else {
                return;
            };
            self.forget(cache, least);
        }
    }

    /// Returns whether the plan being made, or the next row, needs a kept length.
    fn is_held_back(&self, cache: CacheId, num_tokens: usize) -> bool {
        self.held_back.contains(&(cache, num_tokens))
            || self.entry(cache).cut_at == Some(num_tokens)
    }

    /// Takes a cache back from a sequence whose known tokens are `tokens`, and keeps the computed
    /// positions of these.
    pub(crate) fn release(&mut self, cache: CacheId, tokens: &[TokenId]) {
        let entry = self.entries.get_mut(&cache).expect("a sequence's cache is held");
        assert!(entry.kept_since.is_none(), "a cache is released once");
        let num_known = entry.num_computed.min(tokens.len());
        entry.num_computed = num_known;
        entry.lengths.stop_wanting();
        if let Some(cut_at) = entry.cut_at.take() {
            self.held_back.push((cache, cut_at));
            self.release_held_back();
        }
        self.continue_window(cache, num_known);
        self.forget_beyond(cache, num_known);
        self.clock += 1;
        let now = self.clock;
        self.entry_mut(cache).kept_since = Some(now);
        self.kept_demand += self.entry_demand(cache);
        self.kept.insert((now, cache));
        if !self.limits.keep_prefixes || !self.is_useful(cache) {
            return self.drop_kept(cache);
        }
        self.index_as(cache, &tokens[..num_known]);
        while KEPT_MAX < self.kept.len() {
            self.evict_one(None);
        }
    }

    /// Returns whether a sequence could start from a kept cache.
    fn is_useful(&self, cache: CacheId) -> bool {
        let entry = self.entry(cache);
        self.limits.least_prefix_tokens.max(1) <= self.usable(entry, entry.num_computed)
    }

    /// Forgets all caches, because the ranks restart empty. Ids are not reused.
    pub(crate) fn clear(&mut self) {
        let (next_id, stats) = (self.next_id, self.stats);
        *self = KvCacheManager { next_id, stats, ..KvCacheManager::new(self.limits.clone()) };
    }

    /// Drops all kept caches, and returns their number. Running sequences give up their kept
    /// lengths.
    pub(crate) fn clear_kept(&mut self) -> usize {
        let kept: Vec<CacheId> = self.kept.iter().map(|(_, cache)| *cache).collect();
        kept.iter().for_each(|cache| self.drop_kept(*cache));
        while let Some(GivenUpNext { cache, num_tokens, .. }) = self.lengths.first().copied() {
            self.forget(cache, num_tokens);
        }
        kept.len()
    }

    /// Adds to the plan, now complete, what it gives up; later losses belong to the next plan.
    pub(crate) fn finish_plan(&mut self, plan: &mut StepPlan) {
        self.dropped = CacheDemand::default();
        self.release_held_back();
        plan.forgets = std::mem::take(&mut self.forgets);
        plan.window_drops = std::mem::take(&mut self.window_drops);
        plan.drops = std::mem::take(&mut self.drops);
    }

    /// Lets the kept lengths that the last plan needed be given up.
    fn release_held_back(&mut self) {
        for (cache, num_tokens) in std::mem::take(&mut self.held_back) {
            if let Some(kept) = self.entry(cache).lengths.get(num_tokens) {
                self.lengths.insert(GivenUpNext::new(cache, num_tokens, kept));
            }
        }
    }

    pub(crate) fn has_drops(&self) -> bool {
        !self.drops.is_empty() || !self.forgets.is_empty() || !self.window_drops.is_empty()
    }

    fn entry(&self, cache: CacheId) -> &CacheEntry {
        self.entries.get(&cache).expect("callers name a held cache")
    }

    fn entry_mut(&mut self, cache: CacheId) -> &mut CacheEntry {
        self.entries.get_mut(&cache).expect("callers name a held cache")
    }

    /// Returns the memory of a cache, with its kept lengths.
    fn entry_demand(&self, cache: CacheId) -> CacheDemand {
        let entry = self.entry(cache);
        // The ranks do not have a cache that no row has used yet.
        let has_states = self.has_states && 0 < entry.blocks;
        let states = if has_states { 1 + entry.lengths.len() } else { 0 };
        CacheDemand { blocks: entry.blocks, window_blocks: entry.windows.count(), states }
    }
}

impl PrefixHit {
    /// Returns the number of tokens that need not be computed.
    pub(crate) fn num_tokens(self) -> usize {
        match self {
            PrefixHit::TakeOver { num_tokens, .. } | PrefixHit::Fork { num_tokens, .. } => {
                num_tokens
            }
            PrefixHit::Fresh | PrefixHit::Wait { .. } => 0,
        }
    }
}
