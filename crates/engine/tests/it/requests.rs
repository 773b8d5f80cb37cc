//! Tests of requests: embeddings, records, and cancellation by id.

use std::time::Duration;

use jackalope_engine::testing::{
    FakeOptions, FakeOrder, NOT_A_NUMBER, fake_facts, pseudo_embedding,
};
use jackalope_engine::{
    CacheScope, EngineConfig, Event, FinishReason, Generation, OpenRequest, RequestEnd,
    RequestOptions, RequestRecord, TenantId,
};
use jackalope_protocol::{Pooling, RankFacts, TokenId};

use crate::engine::{Fixture, block_on, paced, read_all, seeded, start};

fn embedding(prompt: &[TokenId], pooling: Pooling) -> RequestOptions {
    let embed = Some(pooling);
    RequestOptions { prompt: prompt.to_vec(), embed, ..RequestOptions::default() }
}

/// Returns the vector and the record of its request.
fn read_vector(mut generation: Generation) -> (Vec<f32>, RequestRecord) {
    let mut vectors = Vec::new();
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Embedded { vector } => vectors.push(vector),
            Event::Started { .. } | Event::Finished { reason: FinishReason::Length, .. } => {}
            event => panic!("{event:?}"),
        }
    }
    assert_eq!(vectors.len(), 1);
    (vectors.remove(0), generation.record().expect("it has ended").clone())
}

#[test]
fn embeddings_are_those_of_the_prompt_alone_among_others_and_after_a_crash() {
    let config = EngineConfig { step_tokens: 64, ..EngineConfig::default() };
    let fixture = start(config, paced(Duration::from_millis(1)));
    let prompts: Vec<Vec<TokenId>> = (1..8).map(|len| (0..len * 60).collect()).collect();
    let poolings = [Pooling::Mean, Pooling::Last];
    let wanted = || prompts.iter().flat_map(|prompt| poolings.map(|pooling| (prompt, pooling)));
    let crowd: Vec<Generation> =
        (0..4).map(|seed| fixture.submit(seeded(vec![9; 30], 40, seed)).unwrap()).collect();
    let embeddings: Vec<Generation> = wanted()
        .map(|(prompt, pooling)| fixture.submit(embedding(prompt, pooling)).unwrap())
        .collect();
    fixture.control.order(FakeOrder::Crash { rank: 1 });
    for ((prompt, pooling), generation) in wanted().zip(embeddings) {
        let (vector, record) = read_vector(generation);
        assert_eq!(vector, pseudo_embedding(prompt, pooling), "{pooling:?} of {}", prompt.len());
        assert_eq!(record.usage.prompt_tokens as usize, prompt.len());
        assert_eq!((record.usage.completion_tokens, record.first_token), (0, None));
        assert!(record.prefill.is_some() && record.decode.is_none(), "{record:?}");
        if pooling == Pooling::Mean {
            assert_eq!(record.usage.cached_tokens, 0, "every position is needed");
        }
    }
    crowd.into_iter().for_each(|generation| assert_eq!(read_all(generation).0.len(), 40));
    let recovery = fixture.handle.status().recovery;
    assert_eq!(recovery.took, Some(recovery.total));
    assert_eq!(recovery.cause.expect("there was a crash").rank, Some(1));
    // An embedding leaves a prefix like any other request; with `Last`, only the last position is
    // computed again.
    let prompt = &prompts[6];
    let (vector, record) = read_vector(fixture.submit(embedding(prompt, Pooling::Last)).unwrap());
    assert_eq!(vector, pseudo_embedding(prompt, Pooling::Last));
    assert_eq!(record.usage.cached_tokens as usize, prompt.len() - 1);
    fixture.end();
}

#[test]
fn an_embedding_that_is_not_a_number_ends_its_request_alone() {
    let next_token =
        Box::new(|tokens: &[TokenId], _: &_| if tokens.contains(&13) { NOT_A_NUMBER } else { 5 });
    let options = FakeOptions { next_token, ..FakeOptions::default() };
    let fixture = start(EngineConfig::default(), options);
    let submit = |prompt: &[TokenId]| fixture.submit(embedding(prompt, Pooling::Mean)).unwrap();
    let (_, last) = read_all(submit(&[1, 13, 2]));
    assert_eq!(last, Event::NotANumber { completion_tokens: 0 });
    assert_eq!(read_vector(submit(&[1, 2])).0, pseudo_embedding(&[1, 2], Pooling::Mean));
    fixture.end();
}

fn held(config: EngineConfig) -> Fixture {
    let fixture = start(config, FakeOptions::default());
    fixture.control.order(FakeOrder::Hold);
    fixture
}

#[test]
fn a_request_is_ended_by_its_id_and_says_so() {
    let fixture = held(EngineConfig { running_max: 1, ..EngineConfig::default() });
    let submit = |seed| fixture.submit(seeded(vec![seed as TokenId, 2], 30, seed)).unwrap();
    let (running, waiting, other) = (submit(1), submit(2), submit(3));
    let cancel = |id| block_on(fixture.handle.cancel(id));
    assert!(cancel(running.id()) && cancel(waiting.id()));
    assert!(!cancel(running.id()), "it has ended already");
    fixture.control.order(FakeOrder::Resume);
    for generation in [running, waiting] {
        let (tokens, last) = read_all(generation);
        let Event::Finished { reason: FinishReason::Cancelled, usage } = last else {
            panic!("{last:?}")
        };
        assert_eq!((tokens.len(), usage.prompt_tokens), (0, 2));
    }
    let id = other.id();
    assert_eq!(read_all(other).0.len(), 30);
    assert!(!cancel(id));
    let status = fixture.handle.status();
    assert_eq!((status.counters.cancelled, status.counters.finished), (2, 1));
    assert_eq!((status.running, status.queued, status.kv.running_bytes), (0, 0, 0));
    fixture.end();
}

#[test]
fn prefixes_are_forgotten_on_demand() {
    let fixture = start(EngineConfig::default(), FakeOptions::default());
    let prompt: Vec<TokenId> = (0..300).collect();
    let cached = || {
        let (_, last) = read_all(fixture.submit(seeded(prompt.clone(), 2, 0)).unwrap());
        let Event::Finished { usage, .. } = last else { panic!("{last:?}") };
        usage.cached_tokens
    };
    assert_eq!([cached(), cached()], [0, 299]);
    assert_eq!(block_on(fixture.handle.clear_prefixes()), 1);
    let kv = fixture.handle.status().kv;
    assert_eq!((kv.num_kept, kv.kept_bytes), (0, 0));
    assert_eq!(block_on(fixture.handle.clear_prefixes()), 0);
    assert_eq!([cached(), cached()], [0, 299]);
    fixture.end();
}

#[test]
fn open_requests_are_listed_with_who_asks_and_whether_they_run() {
    let fixture = held(EngineConfig { running_max: 1, ..EngineConfig::default() });
    let submit = |tenant, priority| {
        let options = seeded(vec![1; 5], 10, 0);
        let tenant = Some(TenantId(tenant));
        fixture.submit(RequestOptions { tenant, priority, ..options }).unwrap()
    };
    let mut first = submit(4, 0);
    assert!(matches!(first.next_blocking(), Some(Event::Started { .. })));
    let open = [first, submit(5, -2)];
    let list: Vec<OpenRequest> = block_on(fixture.handle.open_requests());
    let told: Vec<_> =
        list.iter().map(|it| (it.id, it.tenant, it.priority, it.is_running)).collect();
    let expected = [(open[0].id(), 4, 0, true), (open[1].id(), 5, -2, false)]
        .map(|(id, tenant, priority, runs)| (id, Some(TenantId(tenant)), priority, runs));
    assert_eq!(told, expected);
    assert!(list[1].age <= list[0].age && list[0].usage.prompt_tokens == 5);
    fixture.control.order(FakeOrder::Resume);
    open.into_iter().for_each(|generation| _ = read_all(generation));
    assert_eq!(block_on(fixture.handle.open_requests()), []);
    fixture.end();
}

#[test]
fn every_request_is_counted_once_with_its_times() {
    let config = EngineConfig { eos_tokens: vec![999], ..EngineConfig::default() };
    let fixture = start(config, paced(Duration::from_millis(1)));
    let mut generation = fixture.submit(seeded(vec![1, 2, 3], 8, 0)).unwrap();
    assert_eq!(generation.record(), None);
    while generation.next_blocking().is_some() {}
    let record = generation.record().expect("it has ended");
    assert_eq!((record.end, record.usage.completion_tokens), (RequestEnd::Length, 8));
    // Eight steps of a millisecond each.
    assert!(Duration::from_millis(8) <= record.total, "{record:?}");
    let parts = [record.queue, record.prefill, record.decode].map(Option::unwrap);
    assert!(parts.iter().sum::<Duration>() <= record.total, "{record:?}");
    assert_eq!(record.first_token, Some(parts[0] + parts[1]));
    read_all(fixture.submit(seeded(vec![4], 1, 0)).unwrap());
    let status = fixture.handle.status();
    let requests = &status.requests;
    assert_eq!((requests.total_s.count(), requests.queue_s.count()), (2, 2));
    assert_eq!((requests.first_token_s.count(), requests.between_tokens_s.count()), (2, 7));
    assert_eq!((requests.prompt_tokens.sum(), requests.generation_tokens.sum()), (4.0, 9.0));
    assert_eq!(status.steps.iteration_tokens.count(), status.steps.steps);
    assert_eq!(ends(&fixture), [0, 2, 0, 0, 0, 0]);

    drop(fixture.submit(seeded(vec![1, 2, 3], 4000, 0)).unwrap());
    // The cancellation is before this request in the queue.
    read_all(fixture.submit(seeded(vec![4], 1, 0)).unwrap());
    assert_eq!(ends(&fixture), [0, 3, 0, 1, 0, 0]);
    fixture.end();
}

/// Returns the number of requests by kind of end.
fn ends(fixture: &Fixture) -> Vec<u64> {
    fixture.handle.status().requests.ended().map(|(_, count)| count).collect()
}

#[test]
fn prefixes_are_found_within_their_scope_only() {
    let fixture = start(EngineConfig::default(), FakeOptions::default());
    let prompt: Vec<TokenId> = (0..300).collect();
    let cached = |scope| {
        let options =
            RequestOptions { cache_scope: CacheScope(scope), ..seeded(prompt.clone(), 2, 0) };
        let (_, last) = read_all(fixture.submit(options).unwrap());
        let Event::Finished { usage, .. } = last else { panic!("{last:?}") };
        usage.cached_tokens
    };
    assert_eq!([1, 2, 1, 2, 0].map(cached), [0, 0, 299, 299, 0]);
    assert_eq!(block_on(fixture.handle.clear_prefixes()), 3);
    assert_eq!([1, 2].map(cached), [0, 0]);
    fixture.end();
}

#[test]
fn a_prompt_takes_fewer_steps_where_ranks_are_fast_and_have_memory() {
    let num_steps = |free_bytes: u64| {
        let config = EngineConfig {
            step_tokens: 64,
            prompt_step_tokens: Some(512),
            ..EngineConfig::default()
        };
        let facts = RankFacts { free_bytes, ..fake_facts(1000, 4096) };
        let fixture = start(config, FakeOptions { facts, ..FakeOptions::default() });
        assert_eq!(read_all(fixture.submit(seeded(vec![7; 2048], 1, 0)).unwrap()).0.len(), 1);
        let num_steps = fixture.handle.status().steps.steps;
        fixture.end();
        num_steps
    };
    assert_eq!(num_steps(1 << 30), 32, "2048 tokens, 64 in each step");
    assert!(num_steps(64 << 30) < 16);
}
