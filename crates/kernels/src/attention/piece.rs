//! Attention of some queries, with the query heads of one KV head, one block of keys at a time.

use std::ops::Range;

use half::{bf16, f16};
use jackalope_simd::{Elements, ElementsMut, Float, VectorElement, WIDEST, Wide, dispatched_wide};

use super::product::{DEPTH, LeftOperand, Panels, Product, RightOperand, Sums, add};
use super::soft_max::State;
use super::stream::Block;
use super::{AttentionConfig, BLOCK_KEYS, KEY_TILE, KvPage, SPAN_KEYS, SequenceKv, key_place};

/// Maximum number of query rows for which keys and values are read in place.
const DIRECT_ROWS: usize = 8;

/// Number of blocks whose keys are read before their values: sequential reads are the fastest.
const DIRECT_BLOCKS: usize = 4;

/// Prefetch distances, in blocks of keys or values: prefetching twice was measured to be a tenth
/// faster than either alone.
const AHEAD_BLOCKS: [usize; 2] = [1, 2];

/// Number of query rows that process the same keys together if only some of them see all.
const TILE_ROWS: usize = 12;

/// Consecutive queries of a sequence, with consecutive heads that share a KV head. A row is a query with one of these
/// heads.
#[derive(Clone, Copy)]
pub(super) struct HeadQueries<'a> {
    /// Queries of all tokens, `[tokens, heads, head_dim]`.
    pub(super) q: Elements<'a>,
    pub(super) sequence: SequenceKv<'a>,
    pub(super) kv_head: usize,
    /// First query head.
    pub(super) first_head: usize,
    /// Number of query heads.
    pub(super) num_heads: usize,
    /// Row of `q` of the first query.
    pub(super) first_token: usize,
    /// Position of the first query in the sequence.
    pub(super) first_position: usize,
    pub(super) num_queries: usize,
}

/// Intermediate results of rows over some keys.
#[derive(Clone, Debug)]
pub(super) struct Gathered {
    states: Vec<State>,
    /// Weighted sums of values, `[rows, value_stride]`.
    values: Vec<f32>,
}

impl Gathered {
    /// Creates an empty result.
    pub(super) fn nothing(queries: &HeadQueries<'_>, config: &AttentionConfig<'_>) -> Gathered {
        let num_rows = queries.num_rows();
        let values = vec![0.0; num_rows * value_stride(config)];
        Gathered { states: vec![State::EMPTY; num_rows], values }
    }

    fn clear(&mut self) {
        self.states.fill(State::EMPTY);
        self.values.fill(0.0);
    }
}

/// Returns the number of elements between the weighted sums of two rows.
#[inline(always)]
pub(super) fn value_stride(config: &AttentionConfig<'_>) -> usize {
    config.value_dim.next_multiple_of(WIDEST)
}

impl<'a> HeadQueries<'a> {
    #[inline(always)]
    pub(super) fn num_rows(&self) -> usize {
        self.num_queries * self.num_heads
    }

    /// Returns the range of keys that any of the queries sees.
    #[inline(always)]
    pub(super) fn visible(&self, config: &AttentionConfig<'_>) -> Range<usize> {
        config.visible(self.first_position).start..self.first_position + self.num_queries
    }

    /// Returns the spans that contain these keys.
    #[inline(always)]
    pub(super) fn spans(&self, config: &AttentionConfig<'_>) -> Range<usize> {
        let visible = self.visible(config);
        visible.start / SPAN_KEYS..visible.end.div_ceil(SPAN_KEYS)
    }

    /// Returns the query rows in f32, `[pieces of head_dim, rows, DEPTH]`.
    #[inline(always)]
    fn load(&self, config: &AttentionConfig<'_>) -> Vec<[f32; DEPTH]> {
        let AttentionConfig { heads, head_dim, .. } = *config;
        let num_rows = self.num_rows();
        let mut pieces = vec![[0.0; DEPTH]; head_dim.div_ceil(DEPTH) * num_rows];
        for (idx, piece) in pieces.iter_mut().enumerate() {
            let (row, column) = (idx % num_rows, idx / num_rows * DEPTH);
            let token = self.first_token + row / self.num_heads;
            let head = self.first_head + row % self.num_heads;
            let len = DEPTH.min(head_dim - column);
            self.q.load((token * heads + head) * head_dim + column, &mut piece[..len]);
        }
        pieces
    }
}

dispatched_wide! {
    /// Adds the keys that the rows see in `spans` to the intermediate results of earlier spans.
    pub(super) fn gather(
        queries: &HeadQueries<'_>,
        config: &AttentionConfig<'_>,
        spans: Range<usize>,
        gathered: &mut Gathered,
    ) = gather_with
}

#[inline(always)]
fn gather_with<W: Wide>(
    simd: W,
    queries: &HeadQueries<'_>,
    config: &AttentionConfig<'_>,
    spans: Range<usize>,
    gathered: &mut Gathered,
) {
    let mut room = Room::new(queries, config);
    let visible = queries.visible(config);
    let until = visible.end.min(spans.end * SPAN_KEYS);
    for span in spans {
        room.span.clear();
        let first = visible.start.max(span * SPAN_KEYS) / BLOCK_KEYS;
        let mut keys = first * BLOCK_KEYS..visible.end.min((span + 1) * SPAN_KEYS);
        while !keys.is_empty() {
            keys.start =
                room.take_in(simd, &Keys { queries, config, positions: keys.clone(), until });
        }
        gathered.add::<W>(&room.span);
    }
}

dispatched_wide! {
    /// Combines the intermediate results of all spans in their order, and rounds the result; `out`
    /// has one view `[num_heads, value_dim]` per query.
    pub(super) fn finish(
        queries: &HeadQueries<'_>,
        config: &AttentionConfig<'_>,
        spans: &mut [Gathered],
        out: &mut [ElementsMut<'_>],
    ) = finish_with
}

#[inline(always)]
fn finish_with<W: Wide>(
    _simd: W,
    queries: &HeadQueries<'_>,
    config: &AttentionConfig<'_>,
    spans: &mut [Gathered],
    out: &mut [ElementsMut<'_>],
) {
    let Some((all, later)) = spans.split_first_mut() else { return };
    later.iter().for_each(|span| all.add::<W>(span));
    let HeadQueries { first_head, num_heads, .. } = *queries;
    let rows = all.states.iter().zip(all.values.chunks_exact_mut(value_stride(config)));
    for (row, (state, values)) in rows.enumerate() {
        let (query, head) = (row / num_heads, row % num_heads);
        let sink = config.sinks.map(|sinks| sinks[first_head + head]);
        let values = &mut values[..config.value_dim];
        state.finish::<W::Narrow>(values, sink);
        out[query].store(head * config.value_dim, values);
    }
}

impl Gathered {
    /// Adds the intermediate results of later keys.
    #[inline(always)]
    fn add<W: Wide>(&mut self, later: &Gathered) {
        let stride = self.values.len() / self.states.len();
        let values = self.values.chunks_exact_mut(stride).zip(later.values.chunks_exact(stride));
        for ((state, later), (values, later_values)) in
            self.states.iter_mut().zip(&later.states).zip(values)
        {
            state.combine::<W::Narrow>(values, later, later_values);
        }
    }
}

/// The keys of a span that are not yet processed.
struct Keys<'a> {
    queries: &'a HeadQueries<'a>,
    config: &'a AttentionConfig<'a>,
    /// Positions of the keys; the first is a multiple of [`BLOCK_KEYS`].
    positions: Range<usize>,
    /// Position after the last key of all spans that one call of [`gather`] processes.
    until: usize,
}

impl<'a> Keys<'a> {
    #[inline(always)]
    fn page_tokens(&self) -> usize {
        self.queries.sequence.page_tokens(self.config)
    }

    /// Returns the page of the first key, and the key's position in it.
    #[inline(always)]
    fn place(&self) -> (&'a KvPage<'a>, usize) {
        let page_tokens = self.page_tokens();
        let start = self.positions.start;
        (&self.queries.sequence.pages[start / page_tokens], start % page_tokens)
    }

    /// Returns the positions of a block.
    #[inline(always)]
    fn block(&self, block: usize) -> Range<usize> {
        let start = self.positions.start + block * BLOCK_KEYS;
        start..self.positions.end.min(start + BLOCK_KEYS)
    }

    /// Returns the number of blocks for which the first key's page has whole tiles, including
    /// unused positions.
    #[inline(always)]
    fn blocks_in_page(&self) -> usize {
        let page_tokens = self.page_tokens();
        let first = self.positions.start % page_tokens;
        let held =
            if first.is_multiple_of(KEY_TILE) { (page_tokens - first) / BLOCK_KEYS } else { 0 };
        held.min(self.positions.len().div_ceil(BLOCK_KEYS))
    }

    /// The page's keys of a block, `[BLOCK_KEYS / KEY_TILE, head_dim, KEY_TILE]`.
    #[inline(always)]
    fn key_block<E>(&self, page: &'a [E], block: usize) -> &'a [E] {
        let first = self.positions.start % self.page_tokens() + block * BLOCK_KEYS;
        let head_dim = self.config.head_dim;
        let place = key_place(self.page_tokens(), head_dim, self.queries.kv_head, first);
        &page[place.start..][..head_dim * BLOCK_KEYS]
    }

    /// The page's values of a block, `[BLOCK_KEYS, value_dim]`.
    #[inline(always)]
    fn value_block<E>(&self, page: &'a [E], block: usize) -> &'a [E] {
        let first = self.positions.start % self.page_tokens() + block * BLOCK_KEYS;
        &self.values_of(page, first).values[..self.config.value_dim * BLOCK_KEYS]
    }

    /// Returns the data of block `idx` in the order of reading: the keys of `num_blocks` blocks,
    /// then their values, then the keys of later blocks. Empty if there is none, or not on one
    /// page.
    #[inline(always)]
    fn block_ahead<E: Stored>(&self, idx: usize, num_blocks: usize) -> &'a [E] {
        let page = self.place().0;
        let block = if idx < num_blocks {
            E::slice(page.keys).map(|keys| self.key_block(keys, idx))
        } else if idx < 2 * num_blocks {
            page.values.and_then(E::slice).map(|values| self.value_block(values, idx - num_blocks))
        } else {
            self.later_keys(self.positions.start + (idx - num_blocks) * BLOCK_KEYS)
        };
        block.unwrap_or(&[])
    }

    /// Returns the keys of the block that starts at a position, if they are still to be processed
    /// and on one page.
    #[inline(always)]
    fn later_keys<E: Stored>(&self, position: usize) -> Option<&'a [E]> {
        let page_tokens = self.page_tokens();
        let first = position % page_tokens;
        if position >= self.until || first + BLOCK_KEYS > page_tokens {
            return None;
        }
        let head_dim = self.config.head_dim;
        let keys = E::slice(self.queries.sequence.pages[position / page_tokens].keys)?;
        let start = (self.queries.kv_head * page_tokens + first) * head_dim;
        Some(&keys[start..][..head_dim * BLOCK_KEYS])
    }

    /// Returns the tile of a page whose first key is at position `first` of the page,
    /// `[head_dim, KEY_TILE]`.
    #[inline(always)]
    fn tile_of<E>(&self, page: &'a [E], first: usize) -> RightOperand<'a, E> {
        let place =
            key_place(self.page_tokens(), self.config.head_dim, self.queries.kv_head, first);
        let values = &page[place.start..][..self.config.head_dim * KEY_TILE];
        RightOperand { values, stride: place.step, columns: KEY_TILE }
    }

    /// The values of a page from `first` on, `[keys, value_dim]`.
    #[inline(always)]
    fn values_of<E>(&self, page: &'a [E], first: usize) -> RightOperand<'a, E> {
        let value_dim = self.config.value_dim;
        let head = self.page_tokens() * value_dim;
        let values = &page[self.queries.kv_head * head..][first * value_dim..head];
        RightOperand { values, stride: value_dim, columns: value_dim }
    }

    /// Writes, for each row, the range of the block's keys that it sees, counted from the block's
    /// start. A row's range neither starts nor ends earlier than that of the row before.
    #[inline(always)]
    fn write_visible(&self, block: usize, visible: &mut [Range<usize>]) {
        let block = self.block(block);
        let rows = visible.chunks_exact_mut(self.queries.num_heads);
        for (position, rows) in (self.queries.first_position..).zip(rows) {
            let visible = self.config.visible(position);
            let start = visible.start.clamp(block.start, block.end);
            let end = visible.end.clamp(start, block.end);
            rows.fill(start - block.start..end - block.start);
        }
    }
}

/// Scratch memory in which [`gather`] computes one [`HeadQueries`].
struct Room {
    num_rows: usize,
    /// `[pieces of head_dim, rows, DEPTH]`.
    q: Vec<[f32; DEPTH]>,
    /// For each row, the keys of the current block that it sees; see [`Keys::write_visible`].
    visible: Vec<Range<usize>>,
    /// Products of queries with keys, then weights: `[blocks, rows, BLOCK_KEYS]`.
    weights: Vec<[f32; BLOCK_KEYS]>,
    /// Memory for a converted block; `None` until a block is converted instead of read in place.
    panels: Option<BlockPanels>,
    /// Intermediate results of the current span.
    span: Gathered,
    value_stride: usize,
}

impl Room {
    #[inline(always)]
    fn new(queries: &HeadQueries<'_>, config: &AttentionConfig<'_>) -> Room {
        let num_rows = queries.num_rows();
        let num_blocks = if num_rows <= DIRECT_ROWS { DIRECT_BLOCKS } else { 1 };
        Room {
            num_rows,
            q: queries.load(config),
            visible: vec![0..0; num_rows],
            weights: vec![[0.0; BLOCK_KEYS]; num_rows * num_blocks],
            panels: None,
            span: Gathered::nothing(queries, config),
            value_stride: value_stride(config),
        }
    }

    /// Adds the keys that the rows see in the first block or blocks to the results of the span.
    /// Returns the position after them.
    #[inline(always)]
    fn take_in<W: Wide>(&mut self, simd: W, keys: &Keys<'_>) -> usize {
        let num_blocks = keys.blocks_in_page().min(DIRECT_BLOCKS);
        let is_direct = self.num_rows <= DIRECT_ROWS
            && num_blocks > 0
            && keys.config.head_dim.is_multiple_of(2 * W::LANES)
            && keys.config.value_dim.is_multiple_of(2 * W::LANES);
        let floats = keys.place().0.floats();
        match floats {
            Some(Float::F32) if is_direct => self.take_in_place::<W, f32>(simd, keys, num_blocks),
            Some(Float::F16) if is_direct => self.take_in_place::<W, f16>(simd, keys, num_blocks),
            Some(Float::Bf16) if is_direct => self.take_in_place::<W, bf16>(simd, keys, num_blocks),
            _ => self.take_in_panels(simd, keys),
        }
    }

    /// Like [`Room::take_in`], for few rows: streams keys and values of a page.
    #[inline(always)]
    fn take_in_place<W: Wide, E: Stored>(
        &mut self,
        simd: W,
        keys: &Keys<'_>,
        num_blocks: usize,
    ) -> usize {
        let page = keys.place().0;
        let page_keys = E::slice(page.keys).expect("keys of the type");
        let page_values = page.values.and_then(E::slice).expect("values of the type");
        let left = LeftOperand { values: &self.q, num_rows: self.num_rows };
        let scores = self.weights.chunks_exact_mut(self.num_rows).take(num_blocks);
        for (block, scores) in scores.enumerate() {
            let ahead = AHEAD_BLOCKS.map(|distance| keys.block_ahead(block + distance, num_blocks));
            let values = keys.key_block(page_keys, block);
            Block { values, ahead }.multiply_keys(simd, left, scores);
        }
        let end = keys.block(num_blocks - 1).end;
        for block in 0..num_blocks {
            keys.write_visible(block, &mut self.visible);
            let ahead = AHEAD_BLOCKS
                .map(|distance| keys.block_ahead(num_blocks + block + distance, num_blocks));
            let values = keys.value_block(page_values, block);
            self.weigh(simd, keys.config, block);
            for (rows, common) in parts(&self.visible, 0..self.num_rows) {
                let ahead = if rows.start == 0 { ahead } else { [&[][..]; 2] };
                let first_row = block * self.num_rows;
                let weights = &self.weights[first_row + rows.start..first_row + rows.end];
                let stride = self.value_stride;
                let sums =
                    &mut Sums { values: &mut self.span.values[rows.start * stride..], stride };
                Block { values, ahead }.add_values(simd, weights, &common, sums);
            }
        }
        end
    }

    /// Like [`Room::take_in`], for many rows: converts keys and values once for all of them.
    #[inline(always)]
    fn take_in_panels<W: Wide>(&mut self, simd: W, keys: &Keys<'_>) -> usize {
        let head_dim = keys.config.head_dim;
        self.weights.fill([0.0; BLOCK_KEYS]);
        let mut panels = self.panels.take().unwrap_or_else(|| BlockPanels {
            keys: Panels::new(head_dim, BLOCK_KEYS),
            values: Panels::new(BLOCK_KEYS, self.value_stride),
        });
        panels.load(simd, keys);
        keys.write_visible(0, &mut self.visible);
        let tiles = self.seeing_tiles();
        for column in panels.keys.starts::<W>() {
            let panel = panels.keys.panel::<W>(column);
            for rows in &tiles {
                self.add_scores::<W>(panel, column, rows.clone(), head_dim);
            }
        }
        self.weigh(simd, keys.config, 0);
        for column in panels.values.starts::<W>() {
            let panel = panels.values.panel::<W>(column);
            for rows in &tiles {
                self.add_values::<W>(panel, column, rows.clone());
            }
        }
        self.panels = Some(panels);
        keys.block(0).end
    }

    /// Returns the rows that use a panel together, without those that see no key of the block.
    fn seeing_tiles(&self) -> Vec<Range<usize>> {
        let tiles = (0..self.num_rows).step_by(TILE_ROWS);
        let tiles = tiles.map(|start| start..self.num_rows.min(start + TILE_ROWS));
        tiles
            .filter(|rows| self.visible[rows.clone()].iter().any(|keys| !keys.is_empty()))
            .collect()
    }

    /// Adds the products of some rows with the keys in `right`, which are those of the current
    /// block from `column` on.
    #[inline(always)]
    fn add_scores<W: Wide>(
        &mut self,
        right: RightOperand<'_, f32>,
        column: usize,
        rows: Range<usize>,
        head_dim: usize,
    ) {
        let left = LeftOperand { values: &self.q, num_rows: self.num_rows };
        let values = &mut self.weights[rows.start..].as_flattened_mut()[column..];
        let product = Product { left, rows, right, depth: 0..head_dim };
        add(W::INSTRUCTIONS, &product, &mut Sums { values, stride: BLOCK_KEYS });
    }

    /// Turns the products of all rows with a block into weights, and rescales the intermediate
    /// results.
    #[inline(always)]
    fn weigh<W: Wide>(&mut self, _simd: W, config: &AttentionConfig<'_>, block: usize) {
        let weights = self.weights[block * self.num_rows..].iter_mut();
        let values = self.span.values.chunks_exact_mut(self.value_stride);
        let rows = weights.zip(&self.visible).zip(self.span.states.iter_mut().zip(values));
        for ((weights, visible), (state, values)) in rows {
            if visible.is_empty() {
                continue;
            }
            let factor = state.take_in::<W::Narrow>(weights, visible, config);
            if factor != 1.0 {
                values.iter_mut().for_each(|value| *value *= factor);
            }
        }
    }

    /// Adds the weighted values of the current block that some rows see, in the order of their
    /// positions. `right` has the elements of the values from `column` on.
    #[inline(always)]
    fn add_values<W: Wide>(
        &mut self,
        right: RightOperand<'_, f32>,
        column: usize,
        rows: Range<usize>,
    ) {
        let left = LeftOperand { values: &self.weights, num_rows: self.num_rows };
        let stride = self.value_stride;
        for (rows, depth) in parts(&self.visible, rows) {
            let values = &mut self.span.values[rows.start * stride + column..];
            let product = Product { left, rows, right, depth };
            add(W::INSTRUCTIONS, &product, &mut Sums { values, stride });
        }
    }
}

/// Divides the keys that `rows` see into parts: rows, and keys that all of them see. For each row,
/// the parts are in the order of the keys.
///
/// An invisible value must not be touched, even with weight zero: it may be infinite.
#[inline(always)]
fn parts(
    visible: &[Range<usize>],
    rows: Range<usize>,
) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let (first, last) = (&visible[rows.start], &visible[rows.end - 1]);
    let common = last.start..first.end.max(last.start);
    let single = if first == last { 0..0 } else { rows.clone() };
    let (before_end, after_start) = (common.start, common.end);
    let before = single.clone().map(move |row| {
        let keys = &visible[row];
        (row..row + 1, keys.start..before_end.min(keys.end))
    });
    let after = single.map(move |row| {
        let keys = &visible[row];
        (row..row + 1, after_start.max(keys.start)..keys.end)
    });
    before.chain(std::iter::once((rows, common))).chain(after).filter(|(_, keys)| !keys.is_empty())
}

/// An element type in which pages store keys and values.
trait Stored: VectorElement {
    /// Returns the elements if they are of this type.
    fn slice(elements: Elements<'_>) -> Option<&[Self]>;
}

macro_rules! stored {
    ($($element:ty: $variant:ident;)*) => {
        $(
            impl Stored for $element {
                #[inline(always)]
                fn slice(elements: Elements<'_>) -> Option<&[Self]> {
                    match elements {
                        Elements::$variant(elements) => Some(elements),
                        _ => None,
                    }
                }
            }
        )*
    };
}

stored! {
    f32: F32;
    f16: F16;
    bf16: Bf16;
}

/// Keys and values of a block, converted to f32 for many rows.
struct BlockPanels {
    /// `[head_dim, BLOCK_KEYS]`.
    keys: Panels,
    /// `[BLOCK_KEYS, value_dim]`.
    values: Panels,
}

impl BlockPanels {
    /// Converts the first block of `keys`.
    #[inline(always)]
    fn load<W: Wide>(&mut self, simd: W, keys: &Keys<'_>) {
        let (page, first) = keys.place();
        let is_in_one_page = keys.blocks_in_page() > 0;
        if is_in_one_page {
            match page.keys {
                Elements::F32(page) => self.load_keys(simd, keys, page, first),
                Elements::F16(page) => self.load_keys(simd, keys, page, first),
                Elements::Bf16(page) => self.load_keys(simd, keys, page, first),
            }
        } else {
            self.load_each_key::<W>(keys);
        }
        let AttentionConfig { head_dim, value_dim, .. } = *keys.config;
        let is_whole = is_in_one_page && value_dim.is_multiple_of(W::LANES);
        match page.values {
            None => {
                let rows = head_dim - value_dim..head_dim;
                self.values.load_transposed::<W>(&self.keys, rows, keys.block(0).len());
            }
            Some(Elements::F32(page)) if is_whole => self.load_values(simd, keys, page, first),
            Some(Elements::F16(page)) if is_whole => self.load_values(simd, keys, page, first),
            Some(Elements::Bf16(page)) if is_whole => self.load_values(simd, keys, page, first),
            Some(_) => self.load_each_value::<W>(keys),
        }
    }

    /// Converts the keys of a block that is not on one page.
    fn load_each_key<W: Wide>(&mut self, keys: &Keys<'_>) {
        let (head_dim, page_tokens) = (keys.config.head_dim, keys.page_tokens());
        for (idx, position) in keys.block(0).enumerate() {
            let page = &keys.queries.sequence.pages[position / page_tokens];
            let kv_head = keys.queries.kv_head;
            let place = key_place(page_tokens, head_dim, kv_head, position % page_tokens);
            for column in 0..head_dim {
                let key = place.start + column * place.step;
                self.keys.load_row::<W>(column, idx, &page.keys.part(key..key + 1));
            }
        }
    }

    /// Converts the values of a block that is not on one page, or whose values are not whole vectors.
    fn load_each_value<W: Wide>(&mut self, keys: &Keys<'_>) {
        let (value_dim, page_tokens) = (keys.config.value_dim, keys.page_tokens());
        for (idx, position) in keys.block(0).enumerate() {
            let page = &keys.queries.sequence.pages[position / page_tokens];
            let row = keys.queries.kv_head * page_tokens + position % page_tokens;
            let values = page.values.expect("all pages of a sequence store the same");
            self.values.load_row::<W>(idx, 0, &values.part(row * value_dim..(row + 1) * value_dim));
        }
    }

    #[inline(always)]
    fn load_keys<W: Wide, E: Stored>(
        &mut self,
        simd: W,
        keys: &Keys<'_>,
        page: &[E],
        first: usize,
    ) {
        for column in (0..BLOCK_KEYS).step_by(KEY_TILE) {
            let tile = keys.tile_of(page, first + column);
            self.keys.load(simd, tile, keys.config.head_dim, column);
        }
    }

    #[inline(always)]
    fn load_values<W: Wide, E: Stored>(
        &mut self,
        simd: W,
        keys: &Keys<'_>,
        page: &[E],
        first: usize,
    ) {
        self.values.load(simd, keys.values_of(page, first), keys.block(0).len(), 0);
    }
}
