//! Tests of the admission policy over arbitrary orders of arrivals and departures.

use proptest::prelude::*;

use super::*;

const LIMITS: AdmissionLimits = AdmissionLimits { total: 12, per_source: 5, reserve: 4 };

fn ip(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

/// Admits a connection; returns its id and the evicted item.
fn admit(table: &mut Admission<u32>, from: u8, item: u32) -> (AdmissionId, Option<u32>) {
    let Admitted { id, evicted } = table.admit(ip(from), item);
    (id, evicted)
}

#[test]
fn a_source_that_floods_evicts_itself_only() {
    let mut table = Admission::new(LIMITS, []);
    admit(&mut table, 1, 100);
    let evicted: Vec<u32> = (0..20).filter_map(|item| admit(&mut table, 2, item).1).collect();
    assert_eq!(evicted, (0..15).collect::<Vec<u32>>(), "its own oldest first");
    assert!(table.iter().any(|(_, item)| *item == 100));
}

#[test]
fn strangers_leave_the_reserve_to_expected_peers() {
    let mut table = Admission::new(LIMITS, [ip(1)]);
    for item in 0..100 {
        admit(&mut table, 2 + (item % 50) as u8, item);
    }
    assert_eq!(table.len(), LIMITS.total - LIMITS.reserve);
    for item in 0..LIMITS.reserve {
        assert_eq!(admit(&mut table, 1, 200 + item as u32).1, None, "the reserve is free");
    }
    assert!(admit(&mut table, 1, 300).1.is_some_and(|item| item < 100), "then strangers give way");
}

#[test]
fn within_an_expected_address_the_newest_is_let_in() {
    let mut table = Admission::new(LIMITS, [ip(1), ip(2)]);
    admit(&mut table, 2, 1000);
    let evicted: Vec<u32> = (0..30).filter_map(|item| admit(&mut table, 1, item).1).collect();
    assert_eq!(evicted, (0..19).collect::<Vec<u32>>());
    assert!(table.iter().any(|(_, item)| *item == 1000), "another expected peer keeps its place");
    assert_eq!(admit(&mut table, 9, 7).1, Some(19), "strangers keep a few places");
    assert_eq!(admit(&mut table, 8, 8).1, Some(20));
    assert_eq!(admit(&mut table, 7, 9).1, Some(7), "and no more");
}

#[test]
fn who_has_proved_itself_is_expected() {
    let mut table = Admission::new(LIMITS, []);
    table.proved(ip(1));
    for item in 0..100 {
        admit(&mut table, 2 + (item % 50) as u8, item);
    }
    assert_eq!(admit(&mut table, 1, 500).1, None);
    for last in 0..=u8::MAX {
        table.proved([10, 0, 1, last].into());
    }
    assert_eq!(table.proved.len(), PROVED_MAX, "memory is bounded");
}

#[test]
fn a_64_of_ipv6_is_one_source_and_mapped_ipv4_is_ipv4() {
    let same = ["2001:db8::1", "2001:db8::ffff:1"].map(|it| source_of(it.parse().unwrap()));
    assert_eq!(same[0], same[1]);
    assert_ne!(same[0], source_of("2001:db8:0:1::1".parse().unwrap()));
    assert_eq!(source_of("::ffff:10.0.0.1".parse().unwrap()), ip(1));
}

proptest! {
    /// After every sequence of arrivals and departures, the limits hold. Every eviction is
    /// reported. Unexpected peers evict an expected one only below their guaranteed share. Only the
    /// source with the most connections of its kind, or the new connection's own source, loses one.
    #[test]
    fn the_bounds_hold(moves in prop::collection::vec((0_u8..8, any::<bool>()), 1..400)) {
        let mut table = Admission::new(LIMITS, [ip(0), ip(1)]);
        let mut held: Vec<(AdmissionId, u8, u32)> = Vec::new();
        for (item, (from, leaves)) in (0_u32..).zip(moves) {
            if leaves && let Some(at) = held.iter().position(|(_, source, _)| *source == from) {
                let (id, _, item) = held.remove(at);
                prop_assert_eq!(table.remove(id), Some(item));
                continue;
            }
            let count = |of: u8, held: &[(AdmissionId, u8, u32)]| {
                held.iter().filter(|(_, source, _)| *source == of).count()
            };
            let strangers = held.iter().filter(|(_, source, _)| 2 <= *source).count();
            let Admitted { id, evicted } = table.admit(ip(from), item);
            if let Some(evicted) = evicted {
                let at = held.iter().position(|(_, _, it)| *it == evicted).unwrap();
                let loser = held[at].1;
                let own_share = (LIMITS.total - LIMITS.reserve) / STRANGERS_OWN;
                match (from < 2, loser < 2) {
                    (false, true) => prop_assert!(strangers < own_share, "it displaced an expected peer"),
                    (true, false) => prop_assert!(own_share < strangers, "strangers have few places"),
                    _ => {}
                }
                let has_most = (0..8)
                    .filter(|other| (2 <= *other) == (2 <= loser))
                    .all(|other| count(other, &held) <= count(loser, &held));
                prop_assert!(loser == from || has_most, "not the one with most");
                held.remove(at);
            }
            held.push((id, from, item));
            let strangers = held.iter().filter(|(_, source, _)| 2 <= *source).count();
            prop_assert_eq!(table.len(), held.len());
            prop_assert!(held.len() <= LIMITS.total);
            prop_assert!(strangers <= LIMITS.total - LIMITS.reserve);
            prop_assert!((2..8).all(|from| count(from, &held) <= LIMITS.per_source));
        }
    }
}
