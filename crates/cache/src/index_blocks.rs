//! Blocks of positions that the heads of an indexer choose by the keys in its pages (MiniMax 2026, "MiniMax-M3").
//!
//! The score of a block is the largest product of a query and the keys that it sees, which does not depend
//! on how prompts are cut into chunks; of equal blocks the first is chosen.

use std::sync::Arc;

use jackalope_kernels::{self as kernels, DenseMatrix, Elements, ElementsMut, Threads};
use jackalope_mlx::choice::Blocks;

use super::pages::Page;

/// Queries of consecutive rows of a sequence, each of whose heads chooses blocks.
#[derive(Clone, Copy, Debug)]
pub struct BlockQueries {
    /// Number of heads.
    pub heads: usize,
    /// Width of a query and of a key.
    pub head_dim: usize,
    /// Position of the first row.
    pub first: usize,
    /// How blocks are chosen.
    pub blocks: Blocks,
}

impl BlockQueries {
    /// Returns the positions that each head of each row attends to, for `queries`
    /// `[rows, heads, head_dim]`.
    pub fn choose(
        &self,
        queries: &[f32],
        pages: &[Arc<Page>],
        threads: &Threads,
    ) -> Vec<Vec<usize>> {
        let BlockQueries { heads, head_dim, first, blocks } = *self;
        let num_queries = queries.len() / head_dim;
        let num_positions = first + num_queries / heads;
        let num_blocks = num_positions.div_ceil(blocks.len);
        let mut best = vec![f32::NEG_INFINITY; num_queries * num_blocks];
        let mut start = 0;
        for page in pages {
            let keys = page.index();
            let page_tokens = keys.len() / head_dim;
            let mut products = vec![0.0; num_queries * page_tokens];
            let matrix = DenseMatrix { out: page_tokens, input: head_dim, values: keys };
            let out = ElementsMut::F32(&mut products);
            kernels::matmul(Elements::F32(queries), &matrix, out, threads);
            let rows = best.chunks_exact_mut(num_blocks).zip(products.chunks_exact(page_tokens));
            for (idx, (best, products)) in rows.enumerate() {
                let num_visible = first + idx / heads + 1;
                for (position, product) in (start..num_visible).zip(products) {
                    let block = &mut best[position / blocks.len];
                    *block = block.max(*product);
                }
            }
            start += page_tokens;
            if num_positions <= start {
                break;
            }
        }
        let of_queries = best.chunks_exact(num_blocks).enumerate();
        of_queries.map(|(idx, scores)| attended(scores, first + idx / heads, blocks)).collect()
    }
}

/// Returns the positions up to `position` in the blocks with the largest scores, in ascending order.
fn attended(scores: &[f32], position: usize, blocks: Blocks) -> Vec<usize> {
    let last = position / blocks.len;
    let score = |block: usize| {
        if last < block + blocks.num_local { f32::INFINITY } else { scores[block] }
    };
    let mut chosen: Vec<usize> = (0..=last).collect();
    chosen.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
    chosen.truncate(blocks.num_chosen);
    chosen.sort_unstable();
    let positions = |block: usize| block * blocks.len..((block + 1) * blocks.len).min(position + 1);
    chosen.into_iter().flat_map(positions).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_blocks_and_the_own_one_are_chosen_and_of_equal_ones_the_first() {
        let blocks = Blocks { len: 3, num_chosen: 2, num_local: 1 };
        assert_eq!(attended(&[0.5, 2.0, -1.0, 1.0], 10, blocks), [3, 4, 5, 9, 10]);
        assert_eq!(attended(&[0.5, 0.5, 0.5, 0.5], 9, blocks), [0, 1, 2, 9]);
        let none = Blocks { num_local: 0, ..blocks };
        assert_eq!(attended(&[0.5, -2.0, 3.0, -1.0], 10, none), [0, 1, 2, 6, 7, 8]);
    }
}
