//! Memory used by other programs, with made-up readings.

use std::time::Duration;

use jackalope_engine::testing::{FakeOrder, pseudo_model};
use jackalope_engine::{
    EngineConfig, Event, Generation, MemoryReading, PressurePolicy, SubmitError,
};
use jackalope_protocol::{PressureTier, Sampling, TokenId};

use crate::engine::{paced, read_all, seeded, start, wait_until};

fn reading(tier: PressureTier) -> MemoryReading {
    MemoryReading { tier, host: "mac2".to_owned(), free_bytes: 300 << 20 }
}

fn policy(critical_max: Duration) -> EngineConfig {
    let pressure = PressurePolicy { hold: Duration::ZERO, critical_max, warns_at_rest: true };
    EngineConfig { pressure, ..EngineConfig::default() }
}

fn prompt(idx: u32) -> Vec<TokenId> {
    (idx..idx + 40).collect()
}

/// Returns the tokens of an undisturbed request.
fn alone(idx: u32, num_tokens: usize) -> Vec<TokenId> {
    let mut model = pseudo_model(1000);
    let sampling = Sampling { seed: 3, ..Sampling::greedy(40) };
    let mut tokens = prompt(idx);
    for _ in 0..num_tokens {
        tokens.push(model(&tokens, &sampling));
    }
    tokens.split_off(40)
}

#[test]
fn streams_stand_still_while_memory_is_short_and_lose_no_token() {
    let fixture = start(policy(Duration::from_secs(3600)), paced(Duration::from_micros(200)));
    let handle = fixture.handle.clone();
    // Its cached prefix is the first one to be evicted.
    read_all(fixture.submit(seeded(prompt(500), 2, 0)).unwrap());
    assert!(0 < handle.status().kv.kept_bytes);
    let generations: Vec<Generation> =
        (0..8).map(|idx| fixture.submit(seeded(prompt(idx), 3000, 3)).unwrap()).collect();
    wait_until(|| handle.status().running == 8);

    handle.report_memory(reading(PressureTier::Warn));
    wait_until(|| handle.status().kv.kept_bytes == 0);
    assert_eq!(handle.status().running, 8, "what runs goes on");
    handle.report_memory(reading(PressureTier::Critical));
    wait_until(|| handle.status().running == 4);
    let late = fixture.submit(seeded(prompt(8), 30, 3)).unwrap();
    for num_left in [2, 1, 1] {
        handle.report_memory(reading(PressureTier::Critical));
        wait_until(|| handle.status().running == num_left);
    }
    let status = handle.status();
    assert_eq!((status.queued, status.counters.preemptions), (8, 7));
    let told = &status.pressure.reading;
    assert_eq!((told.tier, told.host.as_str()), (PressureTier::Critical, "mac2"));
    let steps = status.steps.steps;
    wait_until(|| steps < handle.status().steps.steps);

    handle.report_memory(reading(PressureTier::Normal));
    wait_until(|| handle.status().running == 9);
    for (idx, generation) in generations.into_iter().enumerate() {
        assert_eq!(read_all(generation).0, alone(idx as u32, 3000), "request {idx}");
    }
    let (tokens, last) = read_all(late);
    assert_eq!(tokens, alone(8, 30));
    assert!(matches!(last, Event::Finished { .. }), "{last:?}");
    fixture.end();
}

#[test]
fn new_requests_are_refused_when_memory_is_critical_for_too_long_and_taken_again_afterwards() {
    let fixture = start(policy(Duration::ZERO), paced(Duration::ZERO));
    fixture.control.order(FakeOrder::Hold);
    let open = fixture.submit(seeded(prompt(0), 50, 3)).unwrap();
    assert!(fixture.handle.report_memory(reading(PressureTier::Critical)));
    wait_until(|| fixture.handle.status().pressure.reading.tier == PressureTier::Critical);
    let refused = fixture.submit(seeded(prompt(1), 5, 3)).unwrap_err();
    let SubmitError::MemoryShort { host, free_bytes, .. } = &refused else { panic!("{refused}") };
    assert_eq!((host.as_str(), *free_bytes), ("mac2", 300 << 20));
    let said = refused.to_string();
    assert!(said.starts_with("mac2 has 300 MiB of memory left"), "{said}");
    assert!(said.contains("hint: end other programs on mac2"), "{said}");
    assert_eq!(fixture.handle.status().counters.refused, 1);
    fixture.control.order(FakeOrder::Resume);
    assert_eq!(read_all(open).0, alone(0, 50), "what was taken is computed");

    fixture.handle.report_memory(reading(PressureTier::Warn));
    wait_until(|| fixture.handle.status().pressure.reading.tier == PressureTier::Warn);
    assert_eq!(read_all(fixture.submit(seeded(prompt(1), 5, 3)).unwrap()).0, alone(1, 5));
    fixture.end();
}
