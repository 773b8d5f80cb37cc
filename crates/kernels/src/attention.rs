//! Ragged causal attention: the rows of all sequences of a step in one call.
//!
//! A query's result is built from blocks of [`BLOCK_KEYS`] keys that start at multiples of that number, so they are the
//! same however the prompt was cut. Each block gives a maximum, a sum and a weighted sum of values of its own; these
//! are then combined from the first block to the last (as in FlashAttention-2, Dao 2023, section 3.1, with every block
//! normalised by its own maximum). Blocks could therefore be computed by different threads without changing a bit.

mod block;
pub(crate) mod exp;

use std::ops::Range;

use self::block::{HeadQueries, attend};
use crate::elements::{Elements, ElementsMut};
use crate::threads::Threads;

/// Keys of a block.
const BLOCK_KEYS: usize = 64;

/// Query rows (a query times a head) that meet an unpacked block of keys, about.
const PIECE_ROWS: usize = 64;

/// What all sequences of a call share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Query heads of this rank; a multiple of `kv_heads`. Query head `h` reads KV head `h / (heads / kv_heads)`.
    pub heads: usize,
    /// Key and value heads of this rank.
    pub kv_heads: usize,
    /// Elements of a head, of queries, keys and values alike.
    pub head_dim: usize,
    /// Factor of every score, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// With `Some(window)` the key at position `j` is visible to the query at `i` only while `i < j + window`.
    pub window: Option<usize>,
}

impl AttentionConfig {
    /// Query heads that share a KV head.
    fn group_heads(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Positions visible to the query at `position`.
    #[inline(always)]
    fn visible(&self, position: usize) -> Range<usize> {
        let end = position + 1;
        self.window.map_or(0, |window| end.saturating_sub(window))..end
    }
}

/// Keys and values of consecutive positions.
#[derive(Clone, Copy, Debug)]
pub struct KvPage<'a> {
    /// `[kv_heads, positions, head_dim]`.
    pub keys: Elements<'a>,
    /// As `keys`.
    pub values: Elements<'a>,
}

/// One sequence's keys and values, its new rows included.
#[derive(Clone, Copy, Debug)]
pub struct SequenceKv<'a> {
    /// All of the same size; together they hold at least `length` positions, of which the first are read.
    pub pages: &'a [KvPage<'a>],
    /// Positions held, from 0 on.
    pub length: usize,
    /// Rows of `q` that belong to this sequence: its positions `length - num_queries..length`.
    pub num_queries: usize,
}

/// `out[tokens, heads, head_dim]` for `q[tokens, heads, head_dim]`, whose rows belong to `sequences` in order.
///
/// Computed in f32 and rounded once. A query none of whose scores is above negative infinity gives zeros.
///
/// # Panics
/// When a length does not fit.
#[track_caller]
pub fn attention(
    q: Elements<'_>,
    sequences: &[SequenceKv<'_>],
    config: &AttentionConfig,
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    let _span = threads.span("attention", 0);
    assert_valid(&q, sequences, config, &out);
    if out.is_empty() {
        return;
    }
    let pieces = cut(q, sequences, config, out);
    threads.for_each(pieces, |Piece { queries, mut out }| {
        attend(threads.instructions(), &queries, config, &mut out);
    });
}

#[track_caller]
fn assert_valid(
    q: &Elements<'_>,
    sequences: &[SequenceKv<'_>],
    config: &AttentionConfig,
    out: &ElementsMut<'_>,
) {
    let AttentionConfig { heads, kv_heads, head_dim, .. } = *config;
    assert!(kv_heads > 0 && heads.is_multiple_of(kv_heads), "{heads} heads on {kv_heads} KV heads");
    assert!(head_dim > 0, "heads have elements");
    assert!(config.window != Some(0), "a window shows the query's own position at least");
    let tokens: usize = sequences.iter().map(|sequence| sequence.num_queries).sum();
    assert_eq!(q.len(), tokens * heads * head_dim, "queries of {tokens} tokens");
    assert_eq!(out.len(), q.len(), "results of {tokens} tokens");
    for sequence in sequences {
        let SequenceKv { pages, length, num_queries } = sequence;
        assert!(num_queries <= length, "{num_queries} queries in {length} positions");
        let page_tokens = sequence.page_tokens(config);
        for KvPage { keys, values } in *pages {
            assert_eq!(keys.len(), values.len(), "as many values as keys");
            assert_eq!(keys.len(), page_tokens * kv_heads * head_dim, "pages of the same size");
        }
        assert!(
            *length <= page_tokens * pages.len(),
            "{} pages of {page_tokens} hold {length} positions",
            pages.len()
        );
    }
}

impl SequenceKv<'_> {
    /// Positions of a page.
    #[inline(always)]
    fn page_tokens(&self, config: &AttentionConfig) -> usize {
        self.pages.first().map_or(0, |page| page.keys.len() / (config.kv_heads * config.head_dim))
    }
}

/// Some queries of one sequence, with the heads that share one KV head.
struct Piece<'a> {
    queries: HeadQueries<'a>,
    /// For each query `[group_heads, head_dim]`.
    out: Vec<ElementsMut<'a>>,
}

/// One piece per sequence, run of queries and KV head; the pieces with most keys first.
fn cut<'a>(
    q: Elements<'a>,
    sequences: &[SequenceKv<'a>],
    config: &AttentionConfig,
    out: ElementsMut<'a>,
) -> Vec<Piece<'a>> {
    let piece_queries = PIECE_ROWS.div_ceil(config.group_heads());
    let mut outs = out.chunks(config.group_heads() * config.head_dim).into_iter();
    let mut pieces = Vec::new();
    let mut first_token = 0;
    for sequence in sequences {
        for start in (0..sequence.num_queries).step_by(piece_queries) {
            let num_queries = piece_queries.min(sequence.num_queries - start);
            let first_piece = pieces.len();
            pieces.extend((0..config.kv_heads).map(|kv_head| Piece {
                queries: HeadQueries {
                    q,
                    sequence: *sequence,
                    kv_head,
                    first_token: first_token + start,
                    first_position: sequence.length - sequence.num_queries + start,
                },
                out: Vec::with_capacity(num_queries),
            }));
            for _ in 0..num_queries {
                for (piece, out) in pieces[first_piece..].iter_mut().zip(&mut outs) {
                    piece.out.push(out);
                }
            }
        }
        first_token += sequence.num_queries;
    }
    // The long ones first, so that no thread begins one when the others are about to finish.
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.queries.first_position));
    pieces
}
