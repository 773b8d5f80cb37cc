//! Checks properties of the cuts for every number of ranks and units.

use proptest::prelude::*;

use super::*;

fn shares() -> impl Strategy<Value = Shares> {
    prop::collection::vec(1_u32..1000, 1..9).prop_map(|shares| Shares::new(shares).unwrap())
}

fn head_counts() -> impl Strategy<Value = HeadCounts> {
    (1_usize..17, 1_usize..17, 0_u32..4).prop_map(|(kv_heads, group, unit_log2)| HeadCounts {
        heads: kv_heads * group,
        kv_heads,
        heads_unit: 1 << unit_log2,
    })
}

/// Asserts that the parts follow one another and cover the whole.
fn assert_covers<'a>(full: usize, cuts: impl IntoIterator<Item = &'a Cut>) {
    let mut next = 0;
    for cut in cuts {
        assert_eq!(cut.full, full);
        if !cut.is_empty() {
            assert_eq!(cut.own.start, next, "a gap or an overlap");
            next = cut.own.end;
        }
    }
    assert_eq!(next, full, "not all is covered");
}

#[test]
fn shares_are_positive_and_never_empty() {
    assert_eq!(Shares::new(vec![]), None);
    assert_eq!(Shares::new(vec![1, 0]), None);
    assert_eq!(Shares::even(3), Shares::new(vec![1, 1, 1]).unwrap());
}

#[test]
fn units_follow_the_shares() {
    let counts = |shares: &[u32], units: usize| -> Vec<usize> {
        let shares = Shares::new(shares.to_vec()).unwrap();
        shares.cut(units).iter().map(ExactSizeIterator::len).collect()
    };
    assert_eq!(counts(&[1], 7), [7]);
    assert_eq!(counts(&[1, 1], 8), [4, 4]);
    assert_eq!(counts(&[1, 1, 1], 8), [3, 3, 2]);
    assert_eq!(counts(&[3, 1], 8), [6, 2]);
    assert_eq!(counts(&[3, 1], 2), [2, 0]);
    assert_eq!(counts(&[1, 3], 4), [1, 3]);
    assert_eq!(counts(&[1, 1, 1, 1], 2), [1, 1, 0, 0]);
    assert_eq!(counts(&[u32::MAX, 1], 1_000_000), [1_000_000, 0]);
}

#[test]
fn more_ranks_than_kv_heads_share_them() {
    let counts = HeadCounts { heads: 4, kv_heads: 2, heads_unit: 1 };
    let held = |num_ranks: usize| -> Vec<_> {
        let cuts = cut_heads(counts, &Shares::even(num_ranks)).into_iter();
        cuts.map(|cut| (cut.heads.own, cut.kv_heads.own)).collect()
    };
    assert_eq!(held(2), [(0..2, 0..1), (2..4, 1..2)]);
    assert_eq!(held(3), [(0..2, 0..1), (2..3, 1..2), (3..4, 1..2)]);
    assert_eq!(held(4), [(0..1, 0..1), (1..2, 0..1), (2..3, 1..2), (3..4, 1..2)]);
}

#[test]
fn heads_narrower_than_a_quantisation_group_stay_together() {
    let counts = HeadCounts { heads: 8, kv_heads: 8, heads_unit: 4 };
    let cuts = cut_heads(counts, &Shares::even(3));
    let held: Vec<_> = cuts.into_iter().map(|cut| cut.heads.own).collect();
    assert_eq!(held, [0..4, 4..8, 8..8]);
}

proptest! {
    #[test]
    fn a_dimension_is_covered_once_and_cut_at_units(
        shares in shares(), full in 0_usize..5000, unit in 1_usize..200,
    ) {
        let cuts = cut_dimension(full, unit, &shares);
        prop_assert_eq!(cuts.len(), shares.num_ranks());
        assert_covers(full, &cuts);
        for cut in &cuts {
            prop_assert!(cut.own.start.is_multiple_of(unit) || cut.own.start == full);
            prop_assert!(cut.own.end.is_multiple_of(unit) || cut.own.end == full);
        }
    }

    #[test]
    fn no_other_deal_loads_the_busiest_rank_less(
        shares in shares(), num_units in 1_usize..300,
    ) {
        // Moving a unit away from the busiest rank would make its receiver at least as busy.
        let counts: Vec<u128> = shares.cut(num_units).iter().map(|r| r.len() as u128).collect();
        let shares = shares.as_slice();
        for (from, &count) in counts.iter().enumerate().filter(|(_, count)| 0 < **count) {
            for to in 0..counts.len() {
                let moved = (counts[to] + u128::from(to != from)) * u128::from(shares[from]);
                prop_assert!(count * u128::from(shares[to]) <= moved || to == from);
            }
        }
    }

    #[test]
    fn a_larger_share_never_gets_less(
        shares in shares(), num_units in 0_usize..500, rank in 0_usize..8, more in 1_u32..1000,
    ) {
        let rank = rank % shares.num_ranks();
        let mut larger = shares.as_slice().to_vec();
        larger[rank] += more;
        let larger = Shares::new(larger).unwrap();
        let (before, after) = (shares.cut(num_units), larger.cut(num_units));
        prop_assert!(before[rank].len() <= after[rank].len());
        for other in (0..before.len()).filter(|&other| other != rank) {
            prop_assert!(after[other].len() <= before[other].len());
        }
    }

    #[test]
    fn equal_shares_differ_by_one_unit_at_most(num_ranks in 1_usize..17, units in 0_usize..500) {
        let lens: Vec<usize> =
            Shares::even(num_ranks).cut(units).iter().map(ExactSizeIterator::len).collect();
        prop_assert!(lens.iter().max().unwrap() - lens.iter().min().unwrap() <= 1);
    }

    #[test]
    fn query_heads_are_covered_once_and_find_their_keys(
        counts in head_counts(), shares in shares(),
    ) {
        let cuts = cut_heads(counts, &shares);
        prop_assert_eq!(cuts.len(), shares.num_ranks());
        assert_covers(counts.heads, cuts.iter().map(|cut| &cut.heads));
        let group = counts.heads / counts.kv_heads;
        for cut in &cuts {
            let (heads, kv_heads) = (&cut.heads.own, &cut.kv_heads.own);
            prop_assert_eq!(heads.is_empty(), kv_heads.is_empty());
            prop_assert!(heads.start.is_multiple_of(counts.heads_unit) || heads.is_empty());
            prop_assert!(
                heads.end.is_multiple_of(counts.heads_unit)
                    || heads.is_empty()
                    || heads.end == counts.heads
            );
            let per_kv = cut.heads_per_kv_head();
            prop_assert_eq!(per_kv * kv_heads.len(), heads.len());
            for (local, head) in heads.clone().enumerate() {
                prop_assert_eq!(kv_heads.start + local / per_kv, head / group);
            }
        }
    }

    #[test]
    fn every_rank_works_when_there_are_heads_enough(
        kv_heads in 1_usize..9, group in 1_usize..9, num_ranks in 1_usize..9,
    ) {
        let counts = HeadCounts { heads: kv_heads * group, kv_heads, heads_unit: 1 };
        let cuts = cut_heads(counts, &Shares::even(num_ranks));
        let idle = cuts.iter().filter(|cut| cut.heads.is_empty()).count();
        if num_ranks <= kv_heads {
            prop_assert_eq!(idle, 0);
        }
        if kv_heads == 1 {
            prop_assert_eq!(idle, num_ranks.saturating_sub(group));
        }
    }
}

#[test]
fn an_inner_unit_has_whole_groups_and_leaves_enough_units() {
    assert_eq!(inner_unit(128, None), 32);
    assert_eq!(inner_unit(128, Some(64)), 64);
    assert_eq!(inner_unit(3072, Some(64)), 256);
    assert_eq!(inner_unit(14_336, Some(128)), 512);
    for full in (32..20_000).step_by(32) {
        let unit = inner_unit(full, Some(32));
        assert!(unit.is_multiple_of(32) && unit <= 512);
        assert!(unit == 32 || 12 <= full / unit, "{full} in units of {unit}");
    }
}
