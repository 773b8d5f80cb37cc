//! The blocks that the cache of a sequence holds in layers with windows. The coordinator says which
//! ones no row reads any more; see `StepPlan` of the protocol.

use std::collections::BTreeSet;
use std::ops::Range;

use jackalope_protocol::window_blocks;

use super::BLOCK_TOKENS;

/// Which blocks of a cache are held in layers with windows: all that were not freed.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowBlocks {
    /// Number of positions that a query sees; 0 if nothing is ever freed.
    window_tokens: usize,
    freed: BTreeSet<usize>,
}

impl WindowBlocks {
    pub(super) fn new(window_tokens: usize) -> WindowBlocks {
        WindowBlocks { window_tokens, freed: BTreeSet::new() }
    }

    /// Whether blocks can be freed.
    pub(super) fn is_used(&self) -> bool {
        0 < self.window_tokens
    }

    /// Returns the number of freed blocks.
    pub(super) fn num_freed(&self) -> usize {
        self.freed.len()
    }

    /// Whether everything is held that a row at `num_tokens` reads.
    pub(super) fn holds_window(&self, num_tokens: usize) -> bool {
        let mut window = self.window(num_tokens);
        !self.is_used() || !window.any(|block| self.freed.contains(&block))
    }

    pub(super) fn free(&mut self, blocks: Range<usize>) {
        self.freed.extend(blocks);
    }

    /// Records that positions `start..end` are written.
    pub(super) fn extend(&mut self, start: usize, end: usize) {
        (start / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS))
            .for_each(|it| _ = self.freed.remove(&it));
    }

    /// Returns the blocks of a copy without those before `start`.
    pub(super) fn fork(&self, start: usize) -> WindowBlocks {
        let freed = if self.is_used() { 0..start } else { 0..0 };
        WindowBlocks { window_tokens: self.window_tokens, freed: freed.collect() }
    }

    fn window(&self, num_tokens: usize) -> Range<usize> {
        window_blocks(self.window_tokens, BLOCK_TOKENS, num_tokens)
    }
}
