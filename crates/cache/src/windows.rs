//! The blocks that the cache of a sequence holds in layers with windows. The coordinator says which
//! ones no row reads any more; see `StepPlan` of the protocol.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use jackalope_mlx::dim;
use jackalope_protocol::window_blocks;

use super::BLOCK_TOKENS;
use super::blocks::{Block, BlockPool};

/// Which blocks of a cache are held in layers with windows: all that were not freed.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowBlocks {
    /// Number of positions that a query sees; 0 if nothing is ever freed.
    window_tokens: usize,
    freed: BTreeSet<usize>,
    /// The held blocks, for MLX's operations.
    blocks: Vec<Option<Rc<Block>>>,
}

impl WindowBlocks {
    pub(super) fn new(window_tokens: usize) -> WindowBlocks {
        WindowBlocks { window_tokens, ..WindowBlocks::default() }
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
        let end = blocks.end.min(self.blocks.len());
        self.blocks[blocks.start.min(end)..end].fill(None);
        self.freed.extend(blocks);
    }

    /// Records that positions `start..end` are written.
    pub(super) fn extend(&mut self, start: usize, end: usize) {
        written_blocks(start, end).for_each(|it| _ = self.freed.remove(&it));
    }

    /// Gives the sequence the blocks of positions `start..end`, which no other one holds.
    pub(super) fn own(&mut self, start: usize, end: usize, pool: &mut BlockPool) {
        let written = written_blocks(start, end);
        if self.blocks.len() < written.end {
            self.blocks.resize(written.end, None);
        }
        for number in written {
            let is_continued = number * BLOCK_TOKENS < start;
            let held = self.blocks[number].take().filter(|_| is_continued);
            self.blocks[number] = Some(pool.own(held));
        }
    }

    /// Returns the blocks of a copy of blocks before `end`, without those before `start`.
    pub(super) fn fork(&self, start: usize, end: usize) -> WindowBlocks {
        let freed = if self.is_used() { 0..start } else { 0..0 };
        let shared = (0..end.min(self.blocks.len()))
            .map(|number| self.blocks[number].clone().filter(|_| freed.end <= number));
        let blocks = shared.collect();
        WindowBlocks { window_tokens: self.window_tokens, freed: freed.collect(), blocks }
    }

    /// Appends where held positions are in the arrays of a [`BlockPool`].
    pub(super) fn append_rows(&self, positions: Range<usize>, rows: &mut Vec<i32>) {
        for number in written_blocks(positions.start, positions.end) {
            let block = self.blocks[number].as_ref().expect("a read block is held");
            let first = number * BLOCK_TOKENS;
            let [start, end] =
                [positions.start.max(first), positions.end.min(first + BLOCK_TOKENS)]
                    .map(|position| dim(block.first_row() + position - first));
            rows.extend(start..end);
        }
    }

    fn window(&self, num_tokens: usize) -> Range<usize> {
        window_blocks(self.window_tokens, BLOCK_TOKENS, num_tokens)
    }
}

/// Returns the numbers of the blocks with positions `start..end`.
fn written_blocks(start: usize, end: usize) -> Range<usize> {
    start / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS)
}
