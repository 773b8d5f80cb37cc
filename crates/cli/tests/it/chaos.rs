//! Tests of the schedule and report of `cargo xtask chaos`, which has no test harness of its own.

use std::time::Duration;

use serde_json::json;

use plan::{Fault, Kind, Outcome, Phase, Report, Schedule};

#[expect(dead_code, reason = "shared with the run")]
#[path = "../chaos/plan.rs"]
mod plan;

#[test]
fn a_schedule_replays_from_its_seed_and_meets_every_kind() {
    let first = |seed, count| -> Vec<Fault> {
        Schedule::new(seed, &Kind::ON_ONE_MACHINE).take(count).collect()
    };
    assert_eq!(first(7, 100), first(7, 100));
    assert_ne!(first(7, 100), first(8, 100));
    let dealt = first(7, Kind::ON_ONE_MACHINE.len() + 2);
    for kind in Kind::ON_ONE_MACHINE {
        assert!(dealt.iter().any(|fault| fault.kind == kind), "{kind:?}");
        assert_eq!(Kind::of_name(kind.name()), Some(kind));
    }
    for fault in first(3, 300) {
        let num_victims = match fault.kind {
            Kind::Burst => 2..3,
            Kind::Storm => 3..7,
            _ => 1..2,
        };
        assert!(num_victims.contains(&fault.victims.len()), "{fault:?}");
        assert!(fault.length <= Duration::from_secs(10), "{fault:?}");
    }
}

#[test]
fn pauses_are_judged_from_the_harm_on_against_their_bounds() {
    let tokens = [vec![0.5, 1.0, 1.9, 5.0], vec![0.9, 4.0, 5.1]];
    let second = Duration::from_secs(1);
    let one = Outcome::of(&tokens, &[Phase { at_s: 1.0, bound: second }], 5.2);
    // Any stream pauses from 1.9 to 4, the second stream from 1.0 (the harm) to 4.
    assert!((one.any_s - 2.1).abs() < 1e-9 && (one.every_s - 3.1).abs() < 1e-9, "{one:?}");
    let (pause, bound) = one.over.unwrap();
    assert!((pause - 2.1).abs() < 1e-9 && (bound - 1.0).abs() < 1e-9);
    let phases =
        [Phase { at_s: 1.0, bound: 4 * second }, Phase { at_s: 3.9, bound: second + second }];
    let two = Outcome::of(&tokens, &phases, 5.2);
    assert_eq!(two.over, None, "until it was mended it had more time");
    assert!((two.any_s - 1.0).abs() < 1e-9 && (two.silence_s - 3.1).abs() < 1e-9, "{two:?}");
}

#[test]
fn a_report_counts_what_was_lost_and_is_well_only_without() {
    let mut report = Report::default();
    let outcome = |any_s| Outcome { any_s, every_s: any_s, silence_s: any_s, over: None };
    (1..=20).for_each(|idx| report.add(Kind::Kill, outcome(f64::from(idx)), 0, 0));
    assert!(report.is_well());
    let row = &report.json()["kinds"][0];
    let quantiles = json!({"median": 10.0, "p95": 19.0, "max": 20.0});
    assert_eq!((&row["any_stream_s"], &row["faults"]), (&quantiles, &json!(20)));
    report.add(Kind::Storm, outcome(1.0), 1, 0);
    assert!(!report.is_well());
    assert!(report.table().contains("| storm | 1 | 1 | 0 | 1.00 / 1.00 / 1.00 s |"));
}
