//! The vectors of pools.

use jackalope_kernels::PoolRule;

#[test]
fn a_pool_that_overlaps_reads_the_other_lane_of_the_pool_before_it() {
    // Vectors of one element; lanes, then their gates.
    let places = std::sync::Arc::from([0.0, 0.0, 100.0, 0.0]);
    let rule = PoolRule { len: 2, dim: 1, lanes: 2, places };
    let row = |values: [f32; 2], gates: [f32; 2]| [&[9.0][..], &values, &gates].concat();
    let own = [row([7.0, 1.0], [0.0, 0.0]), row([7.0, 3.0], [0.0, 0.0])];
    assert_eq!(rule.mean(&own, 1), [2.0]);
    // The weight of a place makes the second position of the earlier pool the only one that counts.
    let earlier = [row([5.0, 7.0], [0.0, 0.0]), row([6.0, 7.0], [0.0, 0.0])];
    assert_eq!(rule.mean(&[earlier, own].concat(), 1), [6.0]);
}
