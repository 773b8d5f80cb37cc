//! The KV blocks that caches hold in layers with windows: those that the next row may read, and
//! those before each kept length, from where another sequence may go on. All others are freed.

use std::ops::Range;

use jackalope_protocol::{CacheId, WindowDrop, window_blocks, window_blocks_max};

use super::{CacheEntry, KvCacheManager};
use crate::kept_lengths::KeptLength;
use crate::kv_cache::eviction::GivenUpNext;

/// The blocks that one cache holds in layers with windows.
#[derive(Debug, Default)]
pub(super) struct HeldBlocks {
    /// For each block of the cache, whether it is held. Empty for models without windows.
    held: Vec<bool>,
    /// Number of the first block that the next row may read.
    first_read: usize,
}

impl HeldBlocks {
    /// Returns the number of held blocks.
    pub(super) fn count(&self) -> usize {
        self.held.iter().filter(|held| **held).count()
    }

    fn has(&self, mut blocks: Range<usize>) -> bool {
        blocks.all(|block| self.held.get(block) == Some(&true))
    }

    fn hold(&mut self, blocks: Range<usize>) {
        if self.held.len() < blocks.end {
            self.held.resize(blocks.end, false);
        }
        self.held[blocks].fill(true);
    }
}

impl KvCacheManager {
    /// Returns whether layers with windows free blocks on some rank.
    pub(crate) fn has_windows(&self) -> bool {
        0 < self.window_tokens
    }

    /// Returns whether a sequence can start from a cache only at some of its lengths.
    pub(super) fn keeps_lengths(&self) -> bool {
        self.has_states || self.has_windows()
    }

    /// Returns the number of blocks in layers with windows that a running sequence of `num_blocks`
    /// blocks needs at most.
    pub(super) fn window_blocks_of(&self, num_blocks: usize) -> usize {
        let (block_tokens, row_tokens) = (self.limits.block_tokens, self.limits.row_tokens);
        num_blocks.min(window_blocks_max(self.window_tokens, block_tokens, row_tokens))
    }

    /// Returns the blocks that a row at `num_tokens` reads or continues in layers with windows.
    pub(super) fn window(&self, num_tokens: usize) -> Range<usize> {
        if !self.has_windows() {
            return 0..0;
        }
        window_blocks(self.window_tokens, self.limits.block_tokens, num_tokens)
    }

    /// Returns the number of the first block that a copy of the first `num_tokens` positions of a cache
    /// holds in layers with windows.
    pub(crate) fn first_copied_block(&self, num_tokens: usize) -> usize {
        self.window(num_tokens).start
    }

    /// Returns what a copy of the first `num_tokens` positions of a cache holds.
    pub(super) fn copied_blocks(&self, num_tokens: usize) -> HeldBlocks {
        let window = self.window(num_tokens);
        let mut copied = HeldBlocks { held: Vec::new(), first_read: window.start };
        copied.hold(window);
        copied
    }

    /// Returns the most positions, up to `most`, before which layers with windows hold what a row
    /// reads.
    pub(super) fn usable_window(&self, entry: &CacheEntry, mut most: usize) -> usize {
        while let Some(missing) =
            self.window(most).rfind(|block| !entry.windows.has(*block..block + 1))
        {
            most = missing * self.limits.block_tokens;
        }
        most
    }

    /// Records the blocks of a row that computes positions `start..end`. The caller counts their memory.
    pub(super) fn extend_window(&mut self, cache: CacheId, start: usize, end: usize) {
        let (window, block_tokens) = (self.window(start), self.limits.block_tokens);
        let windows = &mut self.entry_mut(cache).windows;
        // The next row may start here again, if a token that was planned ahead is not wanted.
        windows.first_read = window.start;
        assert!(windows.has(window), "{cache:?} continues at {start}, whose window is freed");
        windows.hold(start / block_tokens..end.div_ceil(block_tokens));
    }

    /// Keeps the wanted lengths that a row passes: the blocks before them are not freed. For models
    /// without states, whose rows need not end there.
    pub(super) fn keep_passed(&mut self, cache: CacheId, start: usize, end: usize) {
        let mut at = start;
        loop {
            let lengths = &self.entry(cache).lengths;
            let Some(next) = lengths.next(at).filter(|next| *next <= end) else { break };
            at = next;
            let Some(is_chosen) = lengths.wants(at) else { continue };
            self.clock += 1;
            let kept = KeptLength { is_chosen, used_at: self.clock };
            self.entry_mut(cache).lengths.insert(at, kept);
            self.lengths.insert(GivenUpNext::new(cache, at, kept));
            self.stats.kept_lengths += 1;
        }
        self.thin(cache);
    }

    /// Notes that the next row of a cache starts at `num_tokens`.
    pub(super) fn continue_window(&mut self, cache: CacheId, num_tokens: usize) {
        self.entry_mut(cache).windows.first_read = self.window(num_tokens).start;
        self.free_windows(cache);
    }

    /// Frees the blocks of a cache that neither its next row nor a kept length needs.
    pub(super) fn free_windows(&mut self, cache: CacheId) {
        if !self.has_windows() {
            return;
        }
        let before = self.entry_demand(cache);
        let entry = self.entry(cache);
        let kept: Vec<Range<usize>> =
            entry.lengths.all().map(|(length, _)| self.window(length)).collect();
        let end = self.blocks(entry.num_computed);
        let is_read = entry.windows.first_read..end;
        let is_needed =
            |block| is_read.contains(&block) || kept.iter().any(|it| it.contains(&block));
        let held = entry.windows.held.iter().enumerate();
        let freed: Vec<usize> =
            held.filter(|(block, held)| **held && !is_needed(*block)).map(|(it, _)| it).collect();
        for block in freed {
            self.entry_mut(cache).windows.held[block] = false;
            self.drop_window_block(cache, block);
        }
        let freed = before - self.entry_demand(cache);
        self.used -= freed;
        self.dropped += freed;
        if self.entry(cache).kept_since.is_some() {
            self.kept_demand -= freed;
        }
    }

    fn drop_window_block(&mut self, cache: CacheId, block: usize) {
        let start = u32::try_from(block).expect("no more blocks than tokens");
        match self.window_drops.last_mut() {
            Some(last) if last.cache == cache && last.end == start => last.end += 1,
            _ => self.window_drops.push(WindowDrop { cache, start, end: start + 1 }),
        }
    }

    /// Returns the number of blocks that a cache holds for kept lengths alone.
    pub(super) fn num_kept_windows(&self, cache: CacheId) -> usize {
        let entry = self.entry(cache);
        let held = entry.windows.held.iter().take(entry.windows.first_read);
        held.filter(|held| **held).count()
    }
}
