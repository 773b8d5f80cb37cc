//! Tests of the measurements.

use std::time::Duration;

use jackalope_transport::bare::Bare;
use jackalope_transport::bench::{Effort, LinkOp, LinkRow, measure, measure_idle};

use super::{noise, together};

#[test]
fn a_bare_exchange_carries_the_bytes_both_ways_and_leaves_the_group_in_step() {
    together(
        2,
        |_| {},
        |mut group| {
            let (rank, peer) = (group.rank(), 1 - group.rank());
            for bytes in [0, 1, 4096, 5 << 20] {
                let mut into = vec![0; bytes];
                let mut bare = Bare::new(&mut group, peer).unwrap();
                bare.exchange(&noise(bytes, rank as u64), &mut into).unwrap();
                assert!(into == noise(bytes, peer as u64));
                group.barrier().unwrap();
            }
        },
    );
}

#[test]
fn a_row_reports_quantiles_of_its_times() {
    let mut times: Vec<Duration> = (1..=100).rev().map(Duration::from_micros).collect();
    let row = LinkRow::new(LinkOp::AllSum, 5000, &mut times);
    assert_eq!((row.median_us, row.p90_us, row.p99_us), (50.0, 90.0, 99.0));
    assert_eq!((row.iterations, row.bytes), (100, 5000));
    assert!((row.bytes_per_s - 1e8).abs() < 1.0);
    let row = LinkRow::new(LinkOp::Barrier, 0, &mut [Duration::from_micros(3)]);
    assert_eq!((row.median_us, row.p99_us), (3.0, 3.0));
}

#[test]
fn every_operation_is_measured_at_every_size_by_groups_of_every_size() {
    let effort = Effort { budget: Duration::from_millis(1), iterations_min: 3, iterations_max: 10 };
    for size in 1..=3 {
        let rows = together(
            size,
            |_| {},
            |mut group| measure(&mut group, &LinkOp::ALL, &[1, 4096, 200_000], &effort).unwrap(),
        );
        let measured: Vec<(LinkOp, usize)> =
            rows[0].iter().map(|row| (row.op, row.bytes)).collect();
        let pairwise = |op: &LinkOp| matches!(op, LinkOp::Bare | LinkOp::SendRecv);
        let expected: Vec<(LinkOp, usize)> = [4, 4096, 200_000]
            .into_iter()
            .flat_map(|bytes| LinkOp::ALL.map(|op| (op, bytes)))
            .filter(|(op, _)| size > 1 || !pairwise(op))
            .filter(|(op, bytes)| *op != LinkOp::Barrier || *bytes == 4)
            .collect();
        assert_eq!(measured, expected);
    }
}

#[test]
fn a_waiting_rank_sleeps() {
    let results = together(
        2,
        |_| {},
        |mut group| {
            let shares = measure_idle(&mut group, Duration::from_millis(500)).unwrap();
            (shares, group.stats().sleeps)
        },
    );
    // The threads of this process share its processor time with other tests, so only the number
    // of sleeps can be held to something here.
    for (shares, sleeps) in results {
        assert_eq!(shares.len(), 2);
        assert!(sleeps < 100, "{sleeps} sleeps in three barriers");
    }
}
