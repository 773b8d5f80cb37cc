//! Blocks of positions that the heads of an indexer choose by their keys (MiniMax 2026, "MiniMax-M3").
//!
//! The score of a block is the largest product of a query and the keys that it sees, which does not depend
//! on how prompts are cut into chunks; of equal blocks the first is chosen.

use jackalope_simd::{DenseMatrix, Elements, ElementsMut, Threads};

use crate::matmul::matmul;

/// Queries of consecutive rows of a sequence, each of whose heads chooses blocks.
#[derive(Clone, Copy, Debug)]
pub struct BlockQueries {
    /// Number of heads.
    pub heads: usize,
    /// Width of a query and of a key.
    pub head_dim: usize,
    /// Position of the first row.
    pub first: usize,
    /// Number of positions of a block.
    pub block_len: usize,
    /// Number of blocks that a head of a row chooses.
    pub num_chosen: usize,
    /// Number of blocks among them that need no score: those with the last positions that a row sees.
    pub num_local: usize,
}

impl BlockQueries {
    /// Returns the positions that each head of each row attends to, in ascending order, for `queries`
    /// `[rows, heads, head_dim]`. `pages` are the keys of consecutive positions, `[positions, head_dim]` each.
    pub fn choose<'k>(
        &self,
        queries: &[f32],
        pages: impl Iterator<Item = Elements<'k>>,
        threads: &Threads,
    ) -> Vec<Vec<usize>> {
        let BlockQueries { heads, head_dim, first, block_len, .. } = *self;
        let num_queries = queries.len() / head_dim;
        let num_positions = first + num_queries / heads;
        let num_blocks = num_positions.div_ceil(block_len);
        let mut best = vec![f32::NEG_INFINITY; num_queries * num_blocks];
        let mut start = 0;
        for keys in pages {
            let page_tokens = keys.len() / head_dim;
            let mut products = vec![0.0; num_queries * page_tokens];
            let matrix = DenseMatrix { out: page_tokens, input: head_dim, values: keys };
            let out = ElementsMut::F32(&mut products);
            matmul(Elements::F32(queries), &matrix, out, threads);
            let rows = best.chunks_exact_mut(num_blocks).zip(products.chunks_exact(page_tokens));
            for (idx, (best, products)) in rows.enumerate() {
                let num_visible = first + idx / heads + 1;
                for (position, product) in (start..num_visible).zip(products) {
                    let block = &mut best[position / block_len];
                    *block = block.max(*product);
                }
            }
            start += page_tokens;
            if num_positions <= start {
                break;
            }
        }
        let of_queries = best.chunks_exact(num_blocks).enumerate();
        of_queries.map(|(idx, scores)| self.attended(scores, first + idx / heads)).collect()
    }

    /// Returns the positions up to `position` in the blocks with the largest scores, in ascending order.
    fn attended(&self, scores: &[f32], position: usize) -> Vec<usize> {
        let last = position / self.block_len;
        let score = |block: usize| {
            if last < block + self.num_local { f32::INFINITY } else { scores[block] }
        };
        let mut chosen: Vec<usize> = (0..=last).collect();
        chosen.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
        chosen.truncate(self.num_chosen);
        chosen.sort_unstable();
        let positions =
            |block: usize| block * self.block_len..((block + 1) * self.block_len).min(position + 1);
        chosen.into_iter().flat_map(positions).collect()
    }
}
