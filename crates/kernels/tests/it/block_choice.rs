//! Blocks of positions that an indexer's heads choose.

use jackalope_kernels::{BlockQueries, Elements, Threads};

/// Returns what one query, the number one, attends to at the last position of keys whose products with it are those
/// of their blocks of three, in pages of `page_tokens`.
fn chosen(blocks: &[f32], position: usize, num_local: usize, page_tokens: usize) -> Vec<usize> {
    let keys: Vec<f32> =
        (0..=position).map(|key| blocks[key / 3] - 0.1 * (key % 3) as f32).collect();
    let (block_len, num_chosen) = (3, 2);
    let shape =
        BlockQueries { heads: 1, head_dim: 1, first: position, block_len, num_chosen, num_local };
    let pages = keys.chunks(page_tokens).map(Elements::F32);
    let mut all = shape.choose(&[1.0], pages, &Threads::new(1));
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn the_best_blocks_and_the_own_one_are_chosen_and_of_equal_ones_the_first() {
    for page_tokens in [1, 4, 64] {
        let chosen =
            |blocks: &[f32], position, num_local| chosen(blocks, position, num_local, page_tokens);
        assert_eq!(chosen(&[0.5, 2.0, -1.0, 1.0], 10, 1), [3, 4, 5, 9, 10]);
        assert_eq!(chosen(&[0.5, 0.5, 0.5, 0.5], 9, 1), [0, 1, 2, 9]);
        assert_eq!(chosen(&[0.5, -2.0, 3.0, -1.0], 10, 0), [0, 1, 2, 6, 7, 8]);
    }
}
