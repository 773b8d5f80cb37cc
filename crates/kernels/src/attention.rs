//! Ragged causal attention: the rows of all sequences of a step in one call.
//!
//! A query row's result is built from blocks of [`BLOCK_KEYS`] keys inside spans of [`SPAN_KEYS`] keys, both at
//! multiples of their size, so it is the same however the prompt was cut. In a span the blocks follow one another; each
//! span begins with nothing, and then the spans are combined from the first to the last (as in FlashAttention-2, Dao
//! 2023, section 3.1). Spans are therefore computed by different threads without changing a bit.
//!
//! A score is one chain of multiply-adds along the head, with vectors across keys: that is why pages hold keys
//! transposed, in tiles that are streamed from memory line by line. The values' vectors lie along
//! the head, and their chain of multiply-adds goes from key to key.

mod piece;
pub(crate) mod product;
mod soft_max;
mod stream;

use std::ops::Range;

use jackalope_simd::{Elements, ElementsMut, Float, Threads};

use self::piece::{Gathered, HeadQueries, finish, gather, value_stride};

/// Number of keys of a block.
const BLOCK_KEYS: usize = 64;

/// Number of keys of a span.
const SPAN_KEYS: usize = 1024;

/// Approximate number of query rows (one per query and head) that use a converted block of keys: a
/// multiple of the rows of a tile on every instruction set.
const PIECE_ROWS: usize = 192;

/// Number of rows below which the time does not shrink further, because memory bandwidth limits it.
const MEMORY_ROWS: usize = 4;

/// A piece with more than one `SHARE_PARTS`-th of a thread's share of the work may be divided into
/// spans.
const SHARE_PARTS: usize = 4;

/// Minimum number of query heads of a piece, if the heads that share a KV head are divided among
/// threads: fewer would convert the same keys too often.
const PIECE_HEADS_MIN: usize = 16;

/// Maximum size in bytes of the intermediate results of a piece's spans, if they are computed
/// separately.
const SPANS_BYTES: usize = 8 << 20;

/// Parameters that all sequences of a call share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig<'a> {
    /// Query heads of this rank; a multiple of `kv_heads`. Query head `h` reads KV head `h / (heads / kv_heads)`.
    pub heads: usize,
    /// Key and value heads of this rank.
    pub kv_heads: usize,
    /// Number of elements of a query and of a key.
    pub head_dim: usize,
    /// Number of elements of a value.
    pub value_dim: usize,
    /// Factor of every score, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// With `Some(window)` the key at position `j` is visible to the query at `i` only while `i < j + window`.
    pub window: Option<usize>,
    /// With `Some(chunk)` the positions are divided into chunks of that length, and a query sees
    /// only keys of its own chunk.
    pub chunk: Option<usize>,
    /// With `Some(cap)` a scaled score becomes `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// A score for each query head, `[heads]`, that takes part in the soft-max without having a value.
    pub sinks: Option<&'a [f32]>,
}

impl AttentionConfig<'_> {
    /// Returns the number of query heads that share a KV head.
    fn group_heads(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Returns the positions that are visible to the query at `position`.
    #[inline(always)]
    fn visible(&self, position: usize) -> Range<usize> {
        let end = position + 1;
        let start = self.window.map_or(0, |window| end.saturating_sub(window));
        start.max(self.chunk.map_or(0, |chunk| position - position % chunk))..end
    }
}

/// Number of positions of a tile of keys: with 16-bit elements, a row of it is a cache line.
pub const KEY_TILE: usize = 32;

/// Location of a key in a page: element `i` of the key is at `start + i * step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPlace {
    /// Index of the first element.
    pub start: usize,
    /// Distance between two elements.
    pub step: usize,
}

/// Returns where a page of `page_tokens` positions stores the key of a KV head and of a position in
/// the page.
#[inline(always)]
pub fn key_place(page_tokens: usize, head_dim: usize, kv_head: usize, position: usize) -> KeyPlace {
    let first = position - position % KEY_TILE;
    let tile = (kv_head * page_tokens + first) * head_dim;
    KeyPlace { start: tile + position % KEY_TILE, step: KEY_TILE.min(page_tokens - first) }
}

/// Keys and values of consecutive positions.
#[derive(Clone, Copy, Debug)]
pub struct KvPage<'a> {
    /// Keys in transposed tiles of [`KEY_TILE`] positions: `[kv_heads, positions / KEY_TILE,
    /// head_dim, KEY_TILE]`, where the last tile of a head is narrower if positions are left over;
    /// see [`key_place`].
    pub keys: Elements<'a>,
    /// Values, `[kv_heads, positions, value_dim]`. `None` if a value is the last `value_dim`
    /// elements of its key, as in latent attention.
    pub values: Option<Elements<'a>>,
}

impl KvPage<'_> {
    /// Returns the type of keys and values, if values are stored and both have the same type.
    #[inline(always)]
    fn floats(&self) -> Option<Float> {
        let values = self.values?;
        Some(self.keys.float()).filter(|float| *float == values.float())
    }
}

/// Keys and values of one sequence, including those of its new rows.
#[derive(Clone, Copy, Debug)]
pub struct SequenceKv<'a> {
    /// Pages of the same size, which together hold at least `length` positions; the first `length`
    /// are read.
    pub pages: &'a [KvPage<'a>],
    /// Number of positions.
    pub length: usize,
    /// Rows of `q` that belong to this sequence: its positions `length - num_queries..length`.
    pub num_queries: usize,
}

/// Writes the attention of `q[tokens, heads, head_dim]` to `out[tokens, heads, value_dim]`. The
/// tokens belong to `sequences` in order.
///
/// Computed in f32 and rounded once. A query none of whose scores is above negative infinity gives zeros.
///
/// # Panics
/// If a length does not fit.
#[track_caller]
pub fn attention(
    q: Elements<'_>,
    sequences: &[SequenceKv<'_>],
    config: &AttentionConfig<'_>,
    out: ElementsMut<'_>,
    threads: &Threads,
) {
    let _span = threads.span("attention", 0);
    assert_valid(&q, sequences, config, &out);
    if out.is_empty() {
        return;
    }
    let mut pieces = cut(q, sequences, config, out, threads.count());
    let costs = pieces.iter().map(|piece| piece.cost(config));
    let share = costs.sum::<usize>() / threads.count();
    for piece in pieces.iter_mut().filter(|_| threads.count() > 1) {
        if piece.cost(config) * SHARE_PARTS > share {
            piece.split(config);
        }
    }
    let (mut split, whole): (Vec<_>, Vec<_>) =
        pieces.into_iter().partition(|piece| !piece.spans.is_empty());
    let instructions = threads.instructions();
    let spans = split.iter_mut().flat_map(|piece| piece.span_work(config));
    threads.for_each(
        spans.chain(whole.into_iter().map(Work::Whole)).collect(),
        |work| match work {
            Work::Span(queries, span, gathered) => {
                gather(instructions, &queries, config, span..span + 1, gathered);
            }
            Work::Whole(Piece { queries, mut out, .. }) => {
                let mut gathered = Gathered::nothing(&queries, config);
                gather(instructions, &queries, config, queries.spans(config), &mut gathered);
                finish(instructions, &queries, config, &mut [gathered], &mut out);
            }
        },
    );
    threads.for_each(split, |Piece { queries, mut spans, mut out, .. }| {
        finish(instructions, &queries, config, &mut spans, &mut out);
    });
}

#[track_caller]
fn assert_valid(
    q: &Elements<'_>,
    sequences: &[SequenceKv<'_>],
    config: &AttentionConfig<'_>,
    out: &ElementsMut<'_>,
) {
    let AttentionConfig { heads, kv_heads, head_dim, value_dim, .. } = *config;
    assert!(kv_heads > 0 && heads.is_multiple_of(kv_heads), "{heads} heads on {kv_heads} KV heads");
    assert!(head_dim > 0 && value_dim > 0, "heads have elements");
    assert!(config.window != Some(0), "a window shows the query's own position at least");
    assert!(config.chunk != Some(0), "a chunk has positions");
    assert!(config.sinks.is_none_or(|sinks| sinks.len() == heads), "a sink for each head");
    let tokens: usize = sequences.iter().map(|sequence| sequence.num_queries).sum();
    assert_eq!(q.len(), tokens * heads * head_dim, "queries of {tokens} tokens");
    assert_eq!(out.len(), tokens * heads * value_dim, "results of {tokens} tokens");
    for sequence in sequences {
        let SequenceKv { pages, length, num_queries } = sequence;
        assert!(num_queries <= length, "{num_queries} queries in {length} positions");
        let page_tokens = sequence.page_tokens(config);
        for KvPage { keys, values } in *pages {
            assert_eq!(keys.len(), page_tokens * kv_heads * head_dim, "pages of the same size");
            match values {
                Some(values) => {
                    let expected = page_tokens * kv_heads * value_dim;
                    assert_eq!(values.len(), expected, "as many values as keys");
                }
                None => assert!(value_dim <= head_dim, "values are parts of keys"),
            }
        }
        assert!(
            *length <= page_tokens * pages.len(),
            "{} pages of {page_tokens} hold {length} positions",
            pages.len()
        );
    }
}

impl SequenceKv<'_> {
    /// Returns the number of positions of a page.
    #[inline(always)]
    fn page_tokens(&self, config: &AttentionConfig<'_>) -> usize {
        self.pages.first().map_or(0, |page| page.keys.len() / (config.kv_heads * config.head_dim))
    }
}

/// Some queries of one sequence, with the heads that share one KV head.
struct Piece<'a> {
    queries: HeadQueries<'a>,
    /// Intermediate result of each span, if the spans are computed separately.
    spans: Vec<Gathered>,
    /// Destination of each query's results, `[num_heads, value_dim]` for the piece's heads.
    out: Vec<ElementsMut<'a>>,
}

/// A work item of one thread.
enum Work<'a, 'b> {
    /// The queries of a piece, the index of a span of keys, and the destination of their results.
    Span(HeadQueries<'a>, usize, &'b mut Gathered),
    Whole(Piece<'a>),
}

impl<'a> Piece<'a> {
    /// Returns the approximate cost: query rows times keys.
    fn cost(&self, config: &AttentionConfig<'_>) -> usize {
        self.queries.num_rows().max(MEMORY_ROWS) * self.queries.visible(config).len()
    }

    /// Divides the piece into spans, if there are several and their intermediate results are small
    /// enough.
    fn split(&mut self, config: &AttentionConfig<'_>) {
        let num_spans = self.queries.spans(config).len();
        let span_bytes = self.queries.num_rows() * value_stride(config) * size_of::<f32>();
        if num_spans > 1 && num_spans * span_bytes <= SPANS_BYTES {
            self.spans = vec![Gathered::nothing(&self.queries, config); num_spans];
        }
    }

    /// Returns a work item for each span.
    fn span_work(&mut self, config: &AttentionConfig<'_>) -> impl Iterator<Item = Work<'a, '_>> {
        let queries = self.queries;
        let spans = queries.spans(config).zip(&mut self.spans);
        spans.map(move |(span, gathered)| Work::Span(queries, span, gathered))
    }
}

/// Divides the work into pieces: one per sequence, run of queries, KV head and run of its query
/// heads; those with the highest cost first.
fn cut<'a>(
    q: Elements<'a>,
    sequences: &[SequenceKv<'a>],
    config: &AttentionConfig<'_>,
    out: ElementsMut<'a>,
    num_threads: usize,
) -> Vec<Piece<'a>> {
    let group_heads = config.group_heads();
    let piece_queries = (PIECE_ROWS / group_heads).max(1);
    let runs = sequences.iter().map(|it| it.num_queries.div_ceil(piece_queries));
    let num_pieces = runs.sum::<usize>() * config.kv_heads;
    // Without enough pieces for the threads, the heads of a group are divided too.
    let num_runs =
        num_threads.div_ceil(num_pieces).clamp(1, (group_heads / PIECE_HEADS_MIN).max(1));
    let piece_heads = group_heads.div_ceil(num_runs);
    let mut outs = out.chunks(config.heads * config.value_dim).into_iter();
    let mut pieces = Vec::new();
    let mut first_token = 0;
    for sequence in sequences {
        for start in (0..sequence.num_queries).step_by(piece_queries) {
            let num_queries = piece_queries.min(sequence.num_queries - start);
            let first_piece = pieces.len();
            let groups = (0..config.kv_heads).map(|kv_head| (kv_head, kv_head * group_heads));
            let runs = groups.flat_map(|(kv_head, first)| {
                let starts = (first..first + group_heads).step_by(piece_heads);
                starts.map(move |head| (kv_head, head, piece_heads.min(first + group_heads - head)))
            });
            pieces.extend(runs.map(|(kv_head, first_head, num_heads)| Piece {
                queries: HeadQueries {
                    q,
                    sequence: *sequence,
                    kv_head,
                    first_head,
                    num_heads,
                    first_token: first_token + start,
                    first_position: sequence.length - sequence.num_queries + start,
                    num_queries,
                },
                spans: Vec::new(),
                out: Vec::with_capacity(num_queries),
            }));
            for mut rest in outs.by_ref().take(num_queries) {
                for piece in &mut pieces[first_piece..] {
                    let (own, others) = rest.split_at(piece.queries.num_heads * config.value_dim);
                    piece.out.push(own);
                    rest = others;
                }
            }
        }
        first_token += sequence.num_queries;
    }
    // Long items come first, so that no thread starts one when the others are almost done.
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.cost(config)));
    pieces
}
