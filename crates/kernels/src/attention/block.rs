//! The attention of some queries with the heads of one KV head, block of keys by block of keys.

use std::array;
use std::ops::Range;

use super::exp::exp;
use super::{AttentionConfig, BLOCK_KEYS, SequenceKv};
use crate::dot::{Rows, Tile, add_products};
use crate::elements::{Elements, ElementsMut, Float};
use crate::simd::{Element, LANES, Lanes, Simd, dispatched};

/// Query rows that are computed together, at most.
const TILE_ROWS: usize = 4;

/// Query rows up to which keys and values of 16 bits are used where they lie.
const DIRECT_ROWS: usize = 8;

/// Consecutive queries of a sequence, with the heads that share a KV head.
pub(super) struct HeadQueries<'a> {
    /// Of all tokens, `[tokens, heads, head_dim]`.
    pub(super) q: Elements<'a>,
    pub(super) sequence: SequenceKv<'a>,
    pub(super) kv_head: usize,
    /// Row of `q` of the first query.
    pub(super) first_token: usize,
    /// Position of the first query in the sequence.
    pub(super) first_position: usize,
}

dispatched! {
    /// `out` has one view `[group_heads, head_dim]` per query.
    pub(super) fn attend(
        queries: &HeadQueries<'_>,
        config: &AttentionConfig,
        out: &mut [ElementsMut<'_>],
    ) = attend_with
}

#[inline(always)]
fn attend_with<S: Simd>(
    simd: S,
    queries: &HeadQueries<'_>,
    config: &AttentionConfig,
    out: &mut [ElementsMut<'_>],
) {
    let group_heads = config.group_heads();
    let stride = config.head_dim.next_multiple_of(LANES);
    let q = queries.load(config, out.len());
    let mut block = Block::new(stride);
    let mut states = vec![State::EMPTY; q.len() / stride];
    let mut results = vec![0.0; q.len()];
    let end = queries.first_position + out.len();
    let first_block = config.visible(queries.first_position).start / BLOCK_KEYS;
    for start in (first_block * BLOCK_KEYS..end).step_by(BLOCK_KEYS) {
        let keys = start..(start + BLOCK_KEYS).min(end);
        // Few rows do not pay for a block's conversion to f32.
        let in_place =
            queries.in_place(config, keys.clone()).filter(|_| states.len() <= DIRECT_ROWS);
        block.num_keys = keys.len();
        if in_place.is_none() {
            block.load(queries, config, keys);
        }
        let tiles = states.chunks_mut(TILE_ROWS).zip(results.chunks_mut(TILE_ROWS * stride));
        for (tile, (states, results)) in tiles.enumerate() {
            let first_row = tile * TILE_ROWS;
            let visible = array::from_fn(|row| {
                let position = queries.first_position + (first_row + row) / group_heads;
                within(config.visible(position), start..start + block.num_keys)
            });
            let q = Rows { values: &q[first_row * stride..], stride };
            let rows = TileRows { q, scale: config.scale, visible: &visible, states, results };
            match in_place {
                Some((Elements::Bf16(keys), Elements::Bf16(values))) => {
                    block.room.attend(simd, (keys, values), rows);
                }
                Some((Elements::F16(keys), Elements::F16(values))) => {
                    block.room.attend(simd, (keys, values), rows);
                }
                _ => {
                    let len = block.num_keys * stride;
                    block.room.attend(simd, (&block.keys[..len], &block.values[..len]), rows);
                }
            }
        }
    }
    for (query, out) in out.iter_mut().enumerate() {
        for head in 0..group_heads {
            let row = query * group_heads + head;
            let result = &mut results[row * stride..][..config.head_dim];
            states[row].normalize(result);
            out.store(head * config.head_dim, result);
        }
    }
}

impl HeadQueries<'_> {
    /// Query rows `[queries, group_heads, stride]`.
    #[inline(always)]
    fn load(&self, config: &AttentionConfig, num_queries: usize) -> Vec<f32> {
        let stride = config.head_dim.next_multiple_of(LANES);
        let group_heads = config.group_heads();
        let mut rows = vec![0.0; num_queries * group_heads * stride];
        for (row, values) in rows.chunks_exact_mut(stride).enumerate() {
            let token = self.first_token + row / group_heads;
            let head = self.kv_head * group_heads + row % group_heads;
            let start = (token * config.heads + head) * config.head_dim;
            self.q.load(start, &mut values[..config.head_dim]);
        }
        rows
    }

    /// The keys and values of these positions, `[keys, head_dim]`, if they lie together, in whole vectors of 16-bit
    /// elements.
    #[inline(always)]
    fn in_place(
        &self,
        config: &AttentionConfig,
        keys: Range<usize>,
    ) -> Option<(Elements<'_>, Elements<'_>)> {
        let head_dim = config.head_dim;
        let page_tokens = self.sequence.page_tokens(config);
        let (page, first) = (keys.start / page_tokens, keys.start % page_tokens);
        if !head_dim.is_multiple_of(LANES) || page_tokens < first + keys.len() {
            return None;
        }
        let page = &self.sequence.pages[page];
        let start = (self.kv_head * page_tokens + first) * head_dim;
        let range = start..start + keys.len() * head_dim;
        let floats = (page.keys.float(), page.values.float());
        matches!(floats, (Float::Bf16, Float::Bf16) | (Float::F16, Float::F16))
            .then(|| (page.keys.part(range.clone()), page.values.part(range)))
    }
}

/// What a query row has gathered from the blocks so far, beside its weighted sum of values.
#[derive(Clone, Copy)]
struct State {
    /// The largest score.
    max: f32,
    /// Sum of the exponentials of `score - max`.
    sum: f32,
}

impl State {
    const EMPTY: State = State { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Takes in a block's state and weighted values.
    #[inline(always)]
    fn combine<S: Simd>(&mut self, block: State, values: &[f32], result: &mut [f32]) {
        let max = self.max.max(block.max);
        let base = finite_base(max);
        let (old, new) = (exp::<S>(self.max - base), exp::<S>(block.max - base));
        *self = State { max, sum: S::mul_add_scalar(self.sum, old, block.sum * new) };
        for (result, value) in result.iter_mut().zip(values) {
            *result = S::mul_add_scalar(*result, old, value * new);
        }
    }

    /// The soft-max weighted mean from the weighted sum.
    #[inline(always)]
    fn normalize(&self, result: &mut [f32]) {
        let factor = if self.sum == 0.0 { 0.0 } else { 1.0 / self.sum };
        result.iter_mut().for_each(|value| *value *= factor);
    }
}

/// What to subtract from scores whose maximum is `max`: never negative infinity, from which nothing can be subtracted.
#[inline(always)]
fn finite_base(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// A block of keys and values as f32, and room for what is computed with it.
struct Block {
    /// `[keys, stride]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    stride: usize,
    num_keys: usize,
    room: Room,
}

/// Room for what is computed with a block.
struct Room {
    stride: usize,
    /// `[TILE_ROWS, BLOCK_KEYS]`
    products: Vec<Lanes>,
    /// `[TILE_ROWS, stride]`.
    weighted: Vec<f32>,
}

/// Up to [`TILE_ROWS`] query rows, with the keys of the block that each of them sees.
struct TileRows<'a> {
    q: Rows<'a>,
    scale: f32,
    visible: &'a [Range<usize>; TILE_ROWS],
    states: &'a mut [State],
    results: &'a mut [f32],
}

impl Block {
    fn new(stride: usize) -> Block {
        Block {
            keys: vec![0.0; BLOCK_KEYS * stride],
            values: vec![0.0; BLOCK_KEYS * stride],
            stride,
            num_keys: 0,
            room: Room {
                stride,
                products: vec![[0.0; LANES]; TILE_ROWS * BLOCK_KEYS],
                weighted: vec![0.0; TILE_ROWS * stride],
            },
        }
    }

    #[inline(always)]
    fn load(&mut self, queries: &HeadQueries<'_>, config: &AttentionConfig, keys: Range<usize>) {
        let page_tokens = queries.sequence.page_tokens(config);
        for (offset, position) in keys.enumerate() {
            let page = &queries.sequence.pages[position / page_tokens];
            let row = queries.kv_head * page_tokens + position % page_tokens;
            let to = offset * self.stride..offset * self.stride + config.head_dim;
            page.keys.load(row * config.head_dim, &mut self.keys[to.clone()]);
            page.values.load(row * config.head_dim, &mut self.values[to]);
        }
    }
}

impl Room {
    /// Takes a block of keys and values, `[keys, stride]` each, into the states and results of the rows.
    #[inline(always)]
    fn attend<S: Simd, E: Element>(
        &mut self,
        simd: S,
        (keys, values): (&[E], &[E]),
        rows: TileRows<'_>,
    ) {
        let TileRows { q, scale, visible, states, results } = rows;
        let num_keys = keys.len() / self.stride;
        let products = &mut self.products[..states.len() * num_keys];
        products.fill([0.0; LANES]);
        let tile = if E::IS_F32 {
            Tile::new(keys, self.stride)
        } else {
            Tile::streamed(keys, self.stride, values)
        };
        add_products(simd, q, 0..self.stride, tile, products);
        let mut weights = [[0.0; BLOCK_KEYS]; TILE_ROWS];
        let mut block_states = [State::EMPTY; TILE_ROWS];
        for (row, products) in products.chunks_exact(num_keys).enumerate() {
            block_states[row] = soft_max(simd, (products, scale), &visible[row], &mut weights[row]);
        }
        self.weighted.fill(0.0);
        let values = Values { rows: values.as_chunks().0, width: self.stride / LANES };
        let weighted = self.weighted.as_chunks_mut().0;
        match states.len() {
            1 => values.add_visible::<S, 1, 8>(simd, &weights, visible, weighted),
            2 => values.add_visible::<S, 2, 4>(simd, &weights, visible, weighted),
            3 => values.add_visible::<S, 3, 2>(simd, &weights, visible, weighted),
            _ => values.add_visible::<S, 4, 2>(simd, &weights, visible, weighted),
        }
        let rows =
            results.chunks_exact_mut(self.stride).zip(self.weighted.chunks_exact(self.stride));
        for (row, (result, weighted)) in rows.enumerate() {
            if !visible[row].is_empty() {
                states[row].combine::<S>(block_states[row], weighted, result);
            }
        }
    }
}

/// The part of `positions` inside `block`, counted from its start.
#[inline(always)]
fn within(positions: Range<usize>, block: Range<usize>) -> Range<usize> {
    let start = positions.start.max(block.start);
    let end = positions.end.min(block.end);
    if start < end { start - block.start..end - block.start } else { 0..0 }
}

/// Weights `exp(score - max)` of the visible keys and zeros elsewhere, with their maximum and sum.
#[inline(always)]
fn soft_max<S: Simd>(
    simd: S,
    (products, scale): (&[Lanes], f32),
    visible: &Range<usize>,
    weights: &mut [f32; BLOCK_KEYS],
) -> State {
    weights.fill(f32::NEG_INFINITY);
    for (weight, products) in weights[visible.clone()].iter_mut().zip(&products[visible.clone()]) {
        *weight = simd.sum(simd.load(products)) * scale;
    }
    // A maximum is the same in any order, and in lanes it is one of vectors.
    let mut maxima = [f32::NEG_INFINITY; LANES];
    for weights in weights.as_chunks::<LANES>().0 {
        maxima.iter_mut().zip(weights).for_each(|(max, weight)| *max = max.max(*weight));
    }
    let max = maxima.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let base = finite_base(max);
    for weight in weights.iter_mut() {
        *weight = exp::<S>(*weight - base);
    }
    let mut sum = [0.0; LANES];
    for weights in weights.as_chunks::<LANES>().0 {
        sum.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight);
    }
    State { max, sum: simd.sum(simd.load(&sum)) }
}

/// The values of a block.
#[derive(Clone, Copy)]
struct Values<'a, E> {
    /// `[keys, width]`.
    rows: &'a [[E; LANES]],
    width: usize,
}

impl<E: Element> Values<'_, E> {
    /// Adds the weighted values of the visible keys, in the order of positions, for `ROWS` query rows.
    #[inline(always)]
    fn add_visible<S: Simd, const ROWS: usize, const WIDTH: usize>(
        self,
        simd: S,
        weights: &[[f32; BLOCK_KEYS]; TILE_ROWS],
        visible: &[Range<usize>; TILE_ROWS],
        weighted: &mut [Lanes],
    ) {
        // An invisible value must not be touched, even with weight zero: it may be infinite. So the rows go together
        // only over the keys that all of them see.
        let rows = &visible[..ROWS];
        let start = rows.iter().map(|visible| visible.start).max().unwrap_or(0);
        let end = rows.iter().map(|visible| visible.end).min().unwrap_or(0);
        let common = start..end.max(start);
        for (row, visible) in rows.iter().enumerate() {
            let before = visible.start..common.start.min(visible.end);
            let out = &mut weighted[row * self.width..];
            self.add_weighted::<S, 1, 8>(simd, [&weights[row]], before, out);
        }
        let all = array::from_fn(|row| &weights[row]);
        self.add_weighted::<S, ROWS, WIDTH>(simd, all, common.clone(), weighted);
        for (row, visible) in rows.iter().enumerate() {
            let after = common.end.max(visible.start)..visible.end;
            let out = &mut weighted[row * self.width..];
            self.add_weighted::<S, 1, 8>(simd, [&weights[row]], after, out);
        }
    }

    /// `out[r] += weights[r][key] * values[key]` over `keys` in order; `out` is `[ROWS, width]`.
    #[inline(always)]
    fn add_weighted<S: Simd, const ROWS: usize, const WIDTH: usize>(
        self,
        simd: S,
        weights: [&[f32; BLOCK_KEYS]; ROWS],
        keys: Range<usize>,
        out: &mut [Lanes],
    ) {
        if keys.is_empty() {
            return;
        }
        let whole = self.width - self.width % WIDTH;
        for column in (0..whole).step_by(WIDTH) {
            self.add_columns::<S, ROWS, WIDTH>(simd, weights, (keys.clone(), column), out);
        }
        for column in whole..self.width {
            self.add_columns::<S, ROWS, 1>(simd, weights, (keys.clone(), column), out);
        }
    }

    /// The inner loop, for `WIDTH` vectors from `column` on, with the sums in registers.
    #[inline(always)]
    fn add_columns<S: Simd, const ROWS: usize, const WIDTH: usize>(
        self,
        simd: S,
        weights: [&[f32; BLOCK_KEYS]; ROWS],
        (keys, column): (Range<usize>, usize),
        out: &mut [Lanes],
    ) {
        // As in `dot`, no closures around vectors.
        let mut acc = [[simd.splat(0.0); WIDTH]; ROWS];
        for r in 0..ROWS {
            for c in 0..WIDTH {
                acc[r][c] = simd.load(&out[r * self.width + column + c]);
            }
        }
        let rows =
            self.rows[keys.start * self.width..keys.end * self.width].chunks_exact(self.width);
        for (key, row) in keys.zip(rows) {
            let row = &row[column..column + WIDTH];
            let mut values = [simd.splat(0.0); WIDTH];
            for c in 0..WIDTH {
                values[c] = E::load(simd, &row[c]);
            }
            for r in 0..ROWS {
                let weight = simd.splat(weights[r][key]);
                for c in 0..WIDTH {
                    acc[r][c] = simd.mul_add(weight, values[c], acc[r][c]);
                }
            }
        }
        for r in 0..ROWS {
            for c in 0..WIDTH {
                simd.store(acc[r][c], &mut out[r * self.width + column + c]);
            }
        }
    }
}
