//! Chooses the positions that a query attends to, with an indexer (DeepSeek-AI 2025,
//! "DeepSeek-V3.2", section 2.1), and copies what the cache holds of them for attention.
//!
//! A score is computed head by head in ascending order, and of equal scores the lower position is
//! chosen, so that a row's choice does not depend on what else is computed.

use jackalope_simd::{DenseMatrix, Elements, ElementsMut, Floats, Threads};

use crate::attention::{KvPage, key_place};
use crate::matmul::matmul;
use crate::router::largest;

/// The rows of a sequence that choose positions.
#[derive(Clone, Copy, Debug)]
pub struct IndexQueries<'a> {
    /// Queries of each row, `[rows, heads, head_dim]`.
    pub queries: &'a [f32],
    /// Factor of each head, `[rows, heads]`.
    pub weights: &'a [f32],
    /// Number of heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of positions that each row sees, from the first one on.
    pub num_visible: &'a [usize],
    /// Number of positions that a row chooses.
    pub num_chosen: usize,
}

/// Blocks of neighbouring positions, between a choice of blocks and a choice of positions.
#[derive(Clone, Copy, Debug)]
pub enum IndexBlocks<'a> {
    /// Each row also chooses its best blocks of `len` positions.
    Choose {
        /// Number of positions of a block.
        len: usize,
        /// Number of blocks: those with the largest scores, and the last one that the row sees.
        num_chosen: usize,
    },
    /// Each row chooses among the positions of these blocks.
    Within {
        /// Number of positions of a block.
        len: usize,
        /// Blocks of each row, which have more positions than it chooses, or all that it sees.
        blocks: &'a [Vec<usize>],
    },
}

/// Returns the positions that each row chooses, in ascending order: those with the largest scores
/// `Σ weight · max(query · key, 0)` over the heads; all that the row sees if they are no more. The keys
/// are pages `[positions, head_dim]` of equal length.
///
/// # Panics
/// Panics if a length does not fit, or the pages hold fewer positions than the rows see.
#[track_caller]
pub fn choose_positions(
    rows: &IndexQueries<'_>,
    keys: &[Elements<'_>],
    threads: &Threads,
) -> Vec<Vec<usize>> {
    let _span = threads.span("indexer", 0);
    best_of_rows(rows, &index_scores(rows, keys, threads), threads)
}

/// As [`choose_positions`], with blocks. Returns the positions and the blocks of each row.
///
/// # Panics
/// As for [`choose_positions`].
#[track_caller]
pub fn choose_with_blocks(
    rows: &IndexQueries<'_>,
    keys: &[Elements<'_>],
    blocks: IndexBlocks<'_>,
    threads: &Threads,
) -> [Vec<Vec<usize>>; 2] {
    let _span = threads.span("indexer", 0);
    let num_positions = rows.num_visible.iter().copied().max().unwrap_or(0);
    let mut scores = index_scores(rows, keys, threads);
    let of_rows = || scores.chunks_exact(num_positions.max(1)).zip(rows.num_visible);
    let chosen = match blocks {
        IndexBlocks::Choose { len, num_chosen } => {
            let best = |(scores, visible): (&[f32], &usize)| {
                best_blocks(&scores[..*visible], len, num_chosen)
            };
            of_rows().map(best).collect()
        }
        IndexBlocks::Within { len, blocks } => {
            assert_eq!(blocks.len(), rows.num_visible.len(), "blocks of each row");
            for (scores, blocks) in scores.chunks_exact_mut(num_positions.max(1)).zip(blocks) {
                for (block, scores) in scores.chunks_mut(len).enumerate() {
                    if blocks.binary_search(&block).is_err() {
                        scores.fill(f32::NEG_INFINITY);
                    }
                }
            }
            blocks.to_vec()
        }
    };
    [best_of_rows(rows, &scores, threads), chosen]
}

/// Returns the blocks with the largest scores and the last one, in ascending order.
fn best_blocks(scores: &[f32], len: usize, num_chosen: usize) -> Vec<usize> {
    let of_blocks = scores.chunks(len);
    let of_blocks = of_blocks.map(|it| it.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let mut of_blocks: Vec<f32> = of_blocks.collect();
    of_blocks.iter_mut().rev().take(1).for_each(|last| *last = f32::INFINITY);
    let mut chosen = largest(&of_blocks, num_chosen);
    chosen.sort_unstable();
    chosen
}

/// Returns the scores of the positions that rows see, `[rows, positions]`.
fn index_scores(rows: &IndexQueries<'_>, keys: &[Elements<'_>], threads: &Threads) -> Vec<f32> {
    let &IndexQueries { queries, weights, heads, head_dim, num_visible, .. } = rows;
    let num_rows = num_visible.len();
    assert!(0 < heads * head_dim && weights.len() == num_rows * heads, "a factor for each head");
    assert_eq!(queries.len(), num_rows * heads * head_dim, "a query for each head");
    let page_tokens = keys.first().map_or(0, |page| page.len() / head_dim);
    let num_positions = num_visible.iter().copied().max().unwrap_or(0);
    assert!(num_positions <= page_tokens * keys.len(), "keys of {num_positions} positions");
    let num_pages = num_positions.div_ceil(page_tokens.max(1));
    let mut scores = vec![0.0; num_rows * num_positions];
    let mut products = vec![0.0; num_rows * heads * page_tokens];
    for (page_idx, page) in keys[..num_pages].iter().enumerate() {
        let matrix = DenseMatrix { out: page_tokens, input: head_dim, values: *page };
        matmul(Elements::F32(queries), &matrix, ElementsMut::F32(&mut products), threads);
        let first = page_idx * page_tokens;
        let len = page_tokens.min(num_positions - first);
        let jobs: Vec<_> = scores.chunks_exact_mut(num_positions).enumerate().collect();
        threads.for_each(jobs, |(row, scores): (usize, &mut [f32])| {
            for head in row * heads..(row + 1) * heads {
                let products = &products[head * page_tokens..][..len];
                for (score, product) in scores[first..first + len].iter_mut().zip(products) {
                    *score += weights[head] * product.max(0.0);
                }
            }
        });
    }
    scores
}

/// Returns the positions with the largest scores of each row, in ascending order.
fn best_of_rows(rows: &IndexQueries<'_>, scores: &[f32], threads: &Threads) -> Vec<Vec<usize>> {
    let num_positions = rows.num_visible.iter().copied().max().unwrap_or(0);
    let mut chosen = vec![Vec::new(); rows.num_visible.len()];
    let of_rows = scores.chunks_exact(num_positions.max(1)).zip(&mut chosen);
    let jobs: Vec<_> = of_rows.enumerate().collect();
    threads.for_each(jobs, |(row, (scores, chosen)): (usize, (&[f32], &mut Vec<usize>))| {
        *chosen = largest(&scores[..rows.num_visible[row]], rows.num_chosen);
        chosen.sort_unstable();
    });
    chosen
}

/// Chosen positions of a sequence.
#[derive(Clone, Debug)]
pub struct ChosenPositions<'a> {
    /// The sequence's pages, of one head.
    pub pages: Vec<KvPage<'a>>,
    /// The chosen positions, in ascending order.
    pub positions: Vec<usize>,
}

/// Returns the keys at chosen positions, as the keys of a page with these positions only.
///
/// # Panics
/// Panics if a position is not in its pages.
#[track_caller]
pub fn gather_keys(
    chosen: &[ChosenPositions<'_>],
    head_dim: usize,
    threads: &Threads,
) -> Vec<Floats> {
    gather_joined(chosen.iter().map(std::slice::from_ref).collect(), head_dim, threads)
}

/// Returns, for each item, the keys at the chosen positions of its parts, one part after the other, as the
/// keys of a page with these only. The pages of a part have one length, those of several parts perhaps not.
///
/// # Panics
/// Panics if a position is not in its pages.
#[track_caller]
pub fn gather_joined(
    chosen: Vec<&[ChosenPositions<'_>]>,
    head_dim: usize,
    threads: &Threads,
) -> Vec<Floats> {
    let _span = threads.span("kv_cache", 0);
    let mut copies = vec![Floats::F32(Vec::new()); chosen.len()];
    let jobs: Vec<_> = chosen.into_iter().zip(&mut copies).collect();
    threads.for_each(jobs, |(parts, copy): (&[ChosenPositions<'_>], &mut Floats)| {
        *copy = gathered(parts, head_dim);
    });
    copies
}

fn gathered(parts: &[ChosenPositions<'_>], head_dim: usize) -> Floats {
    fn copy<'a, E: Copy + 'a>(
        elements: impl Fn(Elements<'a>) -> Option<&'a [E]>,
        out: &mut [E],
        head_dim: usize,
        parts: &[ChosenPositions<'a>],
    ) {
        let num_positions = out.len() / head_dim;
        let mut idx = 0;
        for ChosenPositions { pages, positions } in parts {
            for position in positions {
                let page_tokens = pages[0].keys.len() / head_dim;
                let from = elements(pages[position / page_tokens].keys);
                let from = from.expect("all pages have one type");
                let place = key_place(page_tokens, head_dim, 0, position % page_tokens);
                let own = key_place(num_positions, head_dim, 0, idx);
                for element in 0..head_dim {
                    out[own.start + element * own.step] = from[place.start + element * place.step];
                }
                idx += 1;
            }
        }
    }
    let num_positions: usize = parts.iter().map(|part| part.positions.len()).sum();
    let first = parts.iter().find_map(|part| part.pages.first());
    let first = first.expect("chosen positions are kept").keys;
    let mut keys = Floats::zeros(first.float(), num_positions * head_dim);
    match &mut keys {
        Floats::F32(out) => {
            let elements = |it| if let Elements::F32(values) = it { Some(values) } else { None };
            copy(elements, out, head_dim, parts);
        }
        Floats::F16(out) => {
            let elements = |it| if let Elements::F16(values) = it { Some(values) } else { None };
            copy(elements, out, head_dim, parts);
        }
        Floats::Bf16(out) => {
            let elements = |it| if let Elements::Bf16(values) = it { Some(values) } else { None };
            copy(elements, out, head_dim, parts);
        }
    }
    keys
}
