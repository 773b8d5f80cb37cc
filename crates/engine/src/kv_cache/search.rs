//! Finds the cache from which a sequence starts.

use jackalope_protocol::{CacheId, Forget, TokenId};

use super::{CacheEntry, KvCacheManager, PrefixHit, PrefixSearch};
use crate::cache_capacity::CacheDemand;
use crate::request::CacheScope;
use crate::{MissReason, PrefixMiss};

struct Candidate {
    cache: CacheId,
    num_usable: usize,
    /// Number of computed positions that taking over the cache would cut off.
    num_lost: usize,
    is_kept: bool,
}

impl KvCacheManager {
    /// Finds the best start for a sequence of `tokens` within its scope, if at most `usable_max`
    /// tokens may come from a cache.
    pub(crate) fn find(
        &self,
        scope: CacheScope,
        tokens: &[TokenId],
        usable_max: usize,
    ) -> PrefixSearch {
        let index = self.indexes.get(&scope).filter(|_| self.limits.keep_prefixes);
        let matches = index.map_or_else(Vec::new, |index| index.matches(tokens));
        let least = self.limits.least_prefix_tokens.max(1);
        let num_shared = matches.first().map_or(0, |longest| longest.num_tokens.min(usable_max));
        let mut best: Option<Candidate> = None;
        // The most positions that a running sequence will have computed, and its cache.
        let mut promise: Option<(usize, CacheId)> = None;
        for found in matches {
            let shared = found.num_tokens.min(usable_max);
            if shared < least || best.as_ref().is_some_and(|best| shared <= best.num_usable) {
                break;
            }
            for cache in found.caches {
                let candidate = self.candidate(*cache, shared);
                if !candidate.is_kept {
                    let promised = self.promised(*cache, shared);
                    let is_more = |(most, of): (usize, CacheId)| {
                        most < promised || (most == promised && *cache < of)
                    };
                    if promise.is_none_or(is_more) {
                        promise = Some((promised, *cache));
                    }
                }
                if best.as_ref().is_none_or(|best| candidate.is_better_than(best)) {
                    best = Some(candidate);
                }
            }
        }
        let best = best.filter(|best| least <= best.num_usable);
        let hit = self.choose(best, promise);
        PrefixSearch { hit, num_shared, num_usable: hit.num_tokens() }
    }

    /// Returns why a sequence reuses less than `num_wanted` tokens, and counts it. The sequence
    /// could use at most `usable_max`.
    pub(crate) fn miss(
        &mut self,
        search: &PrefixSearch,
        num_wanted: usize,
        usable_max: usize,
    ) -> Option<PrefixMiss> {
        let num_reused = search.hit.num_tokens();
        let (num_shared, least) = (search.num_shared, self.limits.least_prefix_tokens.max(1));
        let reason = if num_wanted <= num_reused {
            return None;
        } else if !self.limits.keep_prefixes {
            MissReason::Disabled
        } else if num_reused < search.num_usable {
            MissReason::NoMemory
        } else if usable_max < num_wanted && usable_max <= num_shared {
            MissReason::ResultsNeeded
        } else if num_shared < least {
            MissReason::NotCached
        } else if num_reused + least <= num_shared && !self.has_states {
            MissReason::WindowPassed
        } else if num_reused + least <= num_shared {
            MissReason::StateNotKept
        } else {
            MissReason::Diverged
        };
        self.stats.count_miss(reason);
        let diverged_at = u32::try_from(num_shared).expect("no longer than the context");
        Some(PrefixMiss { reason, diverged_at })
    }

    /// Chooses between starting from the best cache and waiting for a running sequence.
    fn choose(&self, best: Option<Candidate>, promise: Option<(usize, CacheId)>) -> PrefixHit {
        let least = self.limits.least_prefix_tokens.max(1);
        let num_usable = best.as_ref().map_or(0, |best| best.num_usable);
        if let Some((num_tokens, cache)) = promise
            && num_usable + least <= num_tokens
        {
            return PrefixHit::Wait { cache, num_tokens };
        }
        let Some(best) = best else { return PrefixHit::Fresh };
        let Candidate { cache, num_usable: num_tokens, .. } = best;
        if best.is_kept && self.is_cheaper_to_cut(&best) {
            PrefixHit::TakeOver { cache, num_tokens }
        } else {
            PrefixHit::Fork { source: cache, num_tokens }
        }
    }

    fn candidate(&self, cache: CacheId, shared: usize) -> Candidate {
        let entry = self.entry(cache);
        let num_usable = self.usable(entry, shared);
        Candidate {
            cache,
            num_usable,
            num_lost: entry.num_computed - num_usable,
            is_kept: entry.kept_since.is_some(),
        }
    }

    /// Returns the most positions, up to `most`, with which a sequence can start from a cache.
    pub(super) fn usable(&self, entry: &CacheEntry, most: usize) -> usize {
        let most = most.min(entry.num_computed);
        if !self.has_states {
            return self.usable_window(entry, most);
        }
        if most == entry.num_held { most } else { entry.lengths.largest(most) }
    }

    /// Returns the most positions, up to `shared`, with which a sequence can start from the cache
    /// of a running one once this has computed them.
    fn promised(&self, cache: CacheId, shared: usize) -> usize {
        let entry = self.entry(cache);
        if !self.has_states {
            let is_computed = shared <= entry.num_computed;
            return if is_computed { self.usable(entry, shared) } else { shared };
        }
        let promised = entry.lengths.promised(entry.num_computed, shared);
        let is_enough = shared < promised + self.limits.least_prefix_tokens;
        if is_enough || shared <= entry.num_computed { promised } else { shared }
    }

    /// Lets a running sequence keep a length that another sequence waits for.
    pub(crate) fn want(&mut self, cache: CacheId, num_tokens: usize) {
        let keeps_lengths = self.keeps_lengths();
        let entry = self.entries.get_mut(&cache).expect("only held caches are offered");
        if keeps_lengths && entry.lengths.promised(entry.num_computed, num_tokens) < num_tokens {
            entry.lengths.want(num_tokens);
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
    /// running sequences are promised `promised`, and this one will hold `num_tokens` positions.
    /// Returns none if the sequence has to wait for the eviction of kept caches, which this call
    /// begins.
    pub(crate) fn settle(
        &mut self,
        start: PrefixHit,
        num_tokens: usize,
        promised: CacheDemand,
    ) -> Option<PrefixHit> {
        let PrefixHit::Fork { source, num_tokens: num_shared } = start else {
            return match start {
                PrefixHit::TakeOver { cache, num_tokens: num_shared }
                    if !self.can_take_over(cache, num_shared, num_tokens, promised) =>
                {
                    Some(PrefixHit::Fresh)
                }
                _ => Some(start),
            };
        };
        let mut copied = self.demand(num_shared);
        copied.window_blocks = self.copied_blocks(num_shared).count();
        copied.states += usize::from(self.is_kept_by_ranks(source, num_shared));
        // The ranks make copies before they drop caches.
        if self.holds(self.used + self.dropped + copied) {
            return Some(start);
        }
        if self.holds(self.used - self.given_up_beside(source) + copied) {
            self.touch(source, num_shared);
            self.evict_until_room(copied, Some(source));
            return None;
        }
        let is_kept = self.entry(source).kept_since.is_some();
        let fits = is_kept && self.can_take_over(source, num_shared, num_tokens, promised);
        let take_over = PrefixHit::TakeOver { cache: source, num_tokens: num_shared };
        Some(if fits { take_over } else { PrefixHit::Fresh })
    }

    /// Returns whether there is memory for a sequence that takes over `cache`, cut to `num_shared`
    /// positions, and grows it to `num_tokens`.
    fn can_take_over(
        &self,
        cache: CacheId,
        num_shared: usize,
        num_tokens: usize,
        promised: CacheDemand,
    ) -> bool {
        let is_cut = self.has_states && num_shared != self.entry(cache).num_held;
        let cut = CacheDemand::of_states(usize::from(is_cut));
        self.holds(promised + self.demand_with(cache, num_tokens) + cut)
    }

    /// Returns the memory of kept caches and kept lengths of all caches but `source`.
    fn given_up_beside(&self, source: CacheId) -> CacheDemand {
        let is_kept = |cache: CacheId| self.entry(cache).kept_since.is_some();
        let own = if is_kept(source) { self.entry_demand(source) } else { CacheDemand::default() };
        let of_running = self.lengths.iter().filter(|it| it.cache != source && !is_kept(it.cache));
        let mut caches: Vec<CacheId> = of_running.clone().map(|it| it.cache).collect();
        caches.sort_unstable();
        caches.dedup();
        let window_blocks = caches.into_iter().map(|cache| self.num_kept_windows(cache)).sum();
        let states = if self.has_states { of_running.count() } else { 0 };
        self.kept_demand - own + CacheDemand { blocks: 0, window_blocks, states }
    }

    /// Returns whether the ranks keep a length when they make this plan's copies, which is before
    /// they give up anything.
    pub(super) fn is_kept_by_ranks(&self, cache: CacheId, num_tokens: usize) -> bool {
        let is_given_up =
            |it: &Forget| it.cache == cache && usize::try_from(it.num_tokens) == Ok(num_tokens);
        let is_kept = self.entry(cache).lengths.get(num_tokens).is_some();
        self.has_states && (is_kept || self.forgets.iter().any(is_given_up))
    }
}

impl Candidate {
    /// Prefers more usable tokens, then a start without a copy, then fewer lost positions, then the
    /// lower id, so that the choice does not depend on the order of the index.
    pub(super) fn is_better_than(&self, other: &Candidate) -> bool {
        let key = |it: &Candidate| {
            (it.num_usable, it.is_kept, std::cmp::Reverse(it.num_lost), std::cmp::Reverse(it.cache))
        };
        key(other) < key(self)
    }
}
