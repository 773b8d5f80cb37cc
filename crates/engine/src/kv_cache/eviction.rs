//! Gives up kept caches and kept lengths when memory is short, those of least value first.

use jackalope_protocol::{CacheId, Forget};

use super::KvCacheManager;
use crate::cache_capacity::CacheDemand;
use crate::kept_lengths::KeptLength;

/// A kept length that may be given up, in the order in which this happens.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct GivenUpNext {
    pub(super) is_chosen: bool,
    pub(super) used_at: u64,
    pub(super) cache: CacheId,
    pub(super) num_tokens: usize,
}

impl KvCacheManager {
    /// Marks a kept cache, and the length at which it is used, as just used.
    pub(super) fn touch(&mut self, cache: CacheId, num_tokens: usize) {
        self.clock += 1;
        let now = self.clock;
        let entry = self.entries.get_mut(&cache).expect("callers name a held cache");
        if let Some(since) = &mut entry.kept_since {
            self.kept.remove(&(*since, cache));
            *since = now;
            self.kept.insert((now, cache));
        }
        if let Some(before) = entry.lengths.get(num_tokens) {
            // A length that was used once is likely to be used again.
            let kept = KeptLength { is_chosen: true, used_at: now };
            entry.lengths.insert(num_tokens, kept);
            if self.lengths.remove(&GivenUpNext::new(cache, num_tokens, before)) {
                self.lengths.insert(GivenUpNext::new(cache, num_tokens, kept));
            }
        }
    }

    /// Evicts until there is room for `more` beside all caches, or nothing is left to evict.
    pub(super) fn evict_until_room(&mut self, more: CacheDemand, spared: Option<CacheId>) {
        while !self.holds(self.used + more) && self.evict_one(spared) {}
    }

    /// Gives up the least valuable kept length or kept cache, but nothing of `spared`. Returns
    /// false if there is none.
    pub(super) fn evict_one(&mut self, spared: Option<CacheId>) -> bool {
        let length = self.lengths.iter().find(|it| Some(it.cache) != spared).copied();
        let cache = self.kept.iter().find(|(_, cache)| Some(*cache) != spared).copied();
        match (length, cache) {
            (Some(length), cache)
                if !length.is_chosen || cache.is_none_or(|(since, _)| length.used_at < since) =>
            {
                self.forget(length.cache, length.num_tokens);
                let is_kept = self.entry(length.cache).kept_since.is_some();
                if is_kept && !self.is_useful(length.cache) {
                    self.stats.evicted += 1;
                    self.drop_kept(length.cache);
                }
            }
            (_, Some((_, cache))) => {
                self.stats.evicted += 1;
                self.drop_kept(cache);
            }
            (_, None) => return false,
        }
        true
    }

    /// Gives up a kept length.
    pub(super) fn forget(&mut self, cache: CacheId, num_tokens: usize) {
        let entry = self.entries.get_mut(&cache).expect("callers name a held cache");
        let kept = entry.lengths.remove(num_tokens).expect("callers name a kept length");
        let is_kept = entry.kept_since.is_some();
        self.lengths.remove(&GivenUpNext::new(cache, num_tokens, kept));
        self.stats.forgotten_lengths += 1;
        if self.has_states {
            let state = CacheDemand::of_states(1);
            self.used -= state;
            self.dropped += state;
            if is_kept {
                self.kept_demand -= state;
            }
            let num_tokens = u32::try_from(num_tokens).expect("no longer than the context");
            self.forgets.push(Forget { cache, num_tokens });
        }
        self.free_windows(cache);
    }

    /// Gives up the kept lengths of more than `num_tokens`, which a cut invalidates.
    pub(super) fn forget_beyond(&mut self, cache: CacheId, num_tokens: usize) {
        let beyond = self.entry(cache).lengths.beyond(num_tokens);
        beyond.into_iter().for_each(|it| self.forget(cache, it));
    }

    pub(super) fn drop_kept(&mut self, cache: CacheId) {
        let demand = self.entry_demand(cache);
        let entry = self.entries.remove(&cache).expect("callers name a held cache");
        let since = entry.kept_since.expect("only kept caches are dropped");
        self.kept.remove(&(since, cache));
        for (num_tokens, kept) in entry.lengths.all() {
            self.lengths.remove(&GivenUpNext::new(cache, num_tokens, kept));
        }
        self.unindex(entry.scope, cache);
        self.kept_demand -= demand;
        self.used -= demand;
        self.dropped += demand;
        // The ranks do not have a cache that no row has used yet.
        if 0 < entry.blocks {
            self.drops.push(cache);
        }
    }
}

impl GivenUpNext {
    pub(super) fn new(cache: CacheId, num_tokens: usize, kept: KeptLength) -> GivenUpNext {
        let KeptLength { is_chosen, used_at } = kept;
        GivenUpNext { is_chosen, used_at, cache, num_tokens }
    }
}
