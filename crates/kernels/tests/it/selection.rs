//! The positions that an indexer chooses.

use jackalope_kernels::{
    ChosenPositions, Elements, Floats, IndexBlocks, IndexQueries, KvPage, Threads,
    choose_positions, choose_with_blocks, gather_joined, key_place,
};

fn rows<'a>(queries: &'a [f32], weights: &'a [f32]) -> IndexQueries<'a> {
    let (heads, head_dim) = (2, 1);
    IndexQueries { queries, weights, heads, head_dim, num_visible: &[5, 6], num_chosen: 3 }
}

#[test]
fn the_best_positions_are_chosen_and_of_equal_ones_the_lower() {
    let threads = Threads::new(2);
    let keys = [[1.0, -2.0, 3.0, 0.5], [2.0, -1.0, 9.0, 9.0]];
    let keys = keys.each_ref().map(|page| Elements::F32(page));
    // Row 0 sees 5 positions: scores 1, 0, 3, 0.5, 2 by the first head.
    // Row 1 sees 6, of which only negative keys count, and these against it: all others are 0.
    let (queries, weights) = ([1.0, 1.0, 1.0, -1.0], [1.0, 0.0, 0.0, -1.0]);
    let found = choose_positions(&rows(&queries, &weights), &keys, &threads);
    assert_eq!(found, [[0, 2, 4], [0, 2, 3]]);
}

#[test]
fn positions_are_chosen_within_the_best_blocks_and_the_last_one() {
    let threads = Threads::new(1);
    let keys = [1.0, 5.0, 2.0, 2.5, 4.0, 3.0, 0.5, 9.0];
    let (queries, weights) = ([1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0]);
    let rows = IndexQueries { num_visible: &[7, 4], num_chosen: 2, ..rows(&queries, &weights) };
    let choose = |blocks| choose_with_blocks(&rows, &[Elements::F32(&keys)], blocks, &threads);
    let [positions, blocks] = choose(IndexBlocks::Choose { len: 2, num_chosen: 2 });
    // The last position of the last row's last block is not seen.
    assert_eq!(positions, [[1, 4], [1, 3]]);
    assert_eq!(blocks, [[0, 3], [0, 1]]);
    let within = IndexBlocks::Within { len: 2, blocks: &[vec![2, 3], vec![0, 1]] };
    assert_eq!(choose(within)[0], [[4, 5], [1, 3]]);
}

#[test]
fn a_row_that_sees_few_positions_chooses_all() {
    let threads = Threads::new(1);
    let keys = [1.0, 2.0, 3.0, 4.0];
    let few = IndexQueries { num_visible: &[2], ..rows(&[1.0, 1.0], &[1.0, 1.0]) };
    let found = choose_positions(&few, &[Elements::F32(&keys)], &threads);
    assert_eq!(found, [[0, 1]]);
}

#[test]
fn gathered_keys_are_those_of_their_positions() {
    let (head_dim, page_tokens) = (3, 40);
    let mut pages = vec![vec![0.0; page_tokens * head_dim]; 2];
    for position in 0..2 * page_tokens {
        let place = key_place(page_tokens, head_dim, 0, position % page_tokens);
        for element in 0..head_dim {
            let value = (position * 10 + element) as f32;
            pages[position / page_tokens][place.start + element * place.step] = value;
        }
    }
    let views: Vec<KvPage<'_>> =
        pages.iter().map(|keys| KvPage { keys: Elements::F32(keys), values: None }).collect();
    let positions: Vec<usize> = (0..80).step_by(2).collect();
    // The first positions of these pages, then others.
    let part = |positions: &[usize]| ChosenPositions {
        pages: views.clone(),
        positions: positions.to_vec(),
    };
    let parts = [part(&positions[..7]), part(&positions[7..])];
    let found = gather_joined(vec![&parts], head_dim, &Threads::new(1));
    let [Floats::F32(keys)] = &found[..] else { panic!("the pages are f32") };
    for (idx, position) in positions.iter().enumerate() {
        let place = key_place(positions.len(), head_dim, 0, idx);
        let found = [0, 1, 2].map(|element| keys[place.start + element * place.step]);
        assert_eq!(found, [0, 1, 2].map(|element| (position * 10 + element) as f32));
    }
}
