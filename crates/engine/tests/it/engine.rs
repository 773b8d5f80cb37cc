//! Requests over fake ranks.

use std::sync::mpsc;
use std::time::Duration;

use jackalope_engine::testing::{
    FakeControl, FakeOptions, FakeOrder, FakeRanks, NOT_A_NUMBER, pseudo_model, scripted_model,
};
use jackalope_engine::{
    Engine, EngineConfig, EngineHandle, EngineState, EngineThread, Event, FinishReason, Generation,
    KvBudget, Request, RequestOptions, RetryPolicy, SamplingOptions, SubmitError,
};
use jackalope_protocol::{Sampling, TokenId};

pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Fixture {
    pub(crate) handle: EngineHandle,
    thread: EngineThread,
    pub(crate) control: FakeControl,
}

pub(crate) fn start(config: EngineConfig, options: FakeOptions) -> Fixture {
    let (ranks, control) = FakeRanks::new(options);
    let (handle, thread) = Engine::spawn(config, ranks);
    assert!(handle.started_blocking(LONG), "{:?}", handle.status().state);
    Fixture { handle, thread, control }
}

impl Fixture {
    pub(crate) fn submit(&self, options: RequestOptions) -> Result<Generation, SubmitError> {
        let limits = self.handle.limits().expect("known once started");
        self.handle.submit(Request::new(options, &limits).expect("a legal request"))
    }

    pub(crate) fn end(self) {
        self.handle.shutdown();
        self.thread.join().expect("the engine does not panic").expect("an orderly end");
    }
}

fn options(prompt: Vec<TokenId>, max_tokens: u32) -> RequestOptions {
    RequestOptions {
        prompt,
        max_tokens: Some(max_tokens),
        sampling: SamplingOptions::greedy(),
        ..RequestOptions::default()
    }
}

/// Returns the tokens and the last event, which must arrive in time.
pub(crate) fn read_all(mut generation: Generation) -> (Vec<TokenId>, Event) {
    let (sender, heard) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        while let Some(event) = generation.next_blocking() {
            sender.send(event).unwrap();
        }
    });
    let mut tokens = Vec::new();
    loop {
        match heard.recv_timeout(LONG).expect("a last event comes") {
            Event::Token { token, .. } => tokens.push(token),
            event if event.is_last() => {
                reader.join().unwrap();
                assert!(heard.try_recv().is_err(), "nothing follows the last event");
                return (tokens, event);
            }
            Event::Started { .. } | Event::PromptScored { .. } => {}
            event => panic!("{event:?}"),
        }
    }
}

fn says(answer: &'static [TokenId]) -> FakeOptions {
    let next_token = scripted_model(move |_| answer.to_vec(), 999);
    FakeOptions { next_token, ..FakeOptions::default() }
}

#[test]
fn a_request_hears_its_tokens_and_its_end() {
    let config = EngineConfig { eos_tokens: vec![999], ..EngineConfig::default() };
    let fixture = start(config, says(&[5, 6, 7]));
    let (tokens, last) = read_all(fixture.submit(options(vec![1, 2, 3], 10)).unwrap());
    assert_eq!(tokens, [5, 6, 7, 999]);
    let Event::Finished { reason: FinishReason::Stop, usage } = last else { panic!("{last:?}") };
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 4));
    let (tokens, last) = read_all(fixture.submit(options(vec![1, 2, 3], 2)).unwrap());
    assert_eq!(tokens, [5, 6]);
    assert!(matches!(last, Event::Finished { reason: FinishReason::Length, .. }));
    fixture.end();
}

/// Returns the tokens of [`pseudo_model`] after `prompt`.
fn alone(prompt: &[TokenId], num_tokens: usize, seed: u64) -> Vec<TokenId> {
    let mut model = pseudo_model(1000);
    let sampling = Sampling { seed, ..Sampling::greedy(prompt.len() as u32) };
    let mut tokens = prompt.to_vec();
    for _ in 0..num_tokens {
        tokens.push(model(&tokens, &sampling));
    }
    tokens.split_off(prompt.len())
}

pub(crate) fn seeded(prompt: Vec<TokenId>, max_tokens: u32, seed: u64) -> RequestOptions {
    let mut options = options(prompt, max_tokens);
    options.sampling.seed = Some(seed);
    options
}

pub(crate) fn paced(step_time: Duration) -> FakeOptions {
    FakeOptions { step_time, ..FakeOptions::default() }
}

#[test]
fn requests_side_by_side_hear_what_each_would_alone() {
    let fixture = start(EngineConfig::default(), paced(Duration::from_micros(100)));
    let prompts: Vec<Vec<TokenId>> = (1..20).map(|len| (0..len * 7).collect()).collect();
    let generations: Vec<Generation> = prompts
        .iter()
        .map(|prompt| fixture.submit(seeded(prompt.clone(), 40, 3)).unwrap())
        .collect();
    for (prompt, generation) in prompts.iter().zip(generations) {
        assert_eq!(read_all(generation).0, alone(prompt, 40, 3));
    }
    let status = fixture.handle.status();
    assert_eq!((status.queued, status.running, status.counters.finished), (0, 0, 19));
    assert_eq!(status.counters.sampled_tokens, 19 * 40);
    assert_eq!(status.kv.running_bytes, 0);
    fixture.end();
}

#[test]
fn a_crash_is_a_pause_and_nothing_else() {
    let fixture = start(EngineConfig::default(), paced(Duration::from_millis(1)));
    let prompt: Vec<TokenId> = (0..50).collect();
    let mut generation = fixture.submit(seeded(prompt.clone(), 40, 3)).unwrap();
    let mut tokens = Vec::new();
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Token { token, .. } => tokens.push(token),
            Event::Failed(failure) => panic!("{failure}"),
            _ => {}
        }
        if tokens.len() == 10 {
            fixture.control.order(FakeOrder::Crash { rank: 1 });
        }
    }
    assert_eq!(tokens, alone(&prompt, 40, 3));
    assert_eq!(fixture.handle.status().counters.recoveries, 1);
    fixture.end();
}

/// Keys and values after a non-finite result may be damaged, so no request reuses them.
#[test]
fn a_request_whose_numbers_are_none_ends_alone_and_leaves_no_cache() {
    let poisoned = |tokens: &[TokenId], _: &_| if tokens.contains(&13) { NOT_A_NUMBER } else { 5 };
    let options = FakeOptions { next_token: Box::new(poisoned), ..FakeOptions::default() };
    let fixture = start(EngineConfig::default(), options);
    let prompt: Vec<TokenId> = (20..400).chain([13]).collect();
    let neighbour = fixture.submit(seeded((500..600).collect(), 40, 0)).unwrap();
    let (tokens, last) = read_all(fixture.submit(seeded(prompt.clone(), 40, 0)).unwrap());
    assert_eq!((tokens, last), (vec![], Event::NotANumber { completion_tokens: 0 }));
    assert_eq!(read_all(neighbour).0, [5; 40]);
    let sound = read_all(fixture.submit(seeded(prompt[..380].to_vec(), 2, 0)).unwrap()).1;
    let Event::Finished { usage, .. } = sound else { panic!("{sound:?}") };
    assert_eq!(usage.cached_tokens, 0);
    let counters = fixture.handle.status().counters;
    assert_eq!((counters.not_a_number, counters.failures), (1, 0));
    fixture.end();
}

#[test]
fn ranks_that_get_no_further_end_requests_and_come_back() {
    let retry = RetryPolicy { standstill_max: Duration::from_millis(20), ..RetryPolicy::default() };
    let options = FakeOptions { start_time: Duration::from_millis(2), ..paced(Duration::ZERO) };
    let config = EngineConfig { retry, ..EngineConfig::default() };
    let fixture = start(config, options);
    fixture.control.order(FakeOrder::Hold);
    let generation = fixture.submit(seeded(vec![1], 4000, 0)).unwrap();
    // The attempts to replace rank 0 fail because of rank 1; the cause is the rank that was lost
    // first.
    fixture.control.order(FakeOrder::CrashAgain { rank: 0, attempts: 3 });
    let (_, last) = read_all(generation);
    let Event::Failed(failure) = last else { panic!("{last:?}") };
    assert_eq!((failure.rank, &*failure.last_words), (Some(0), "the end is near"));
    fixture.control.order(FakeOrder::Resume);
    wait_until(|| fixture.handle.status().state == EngineState::Ready);
    assert_eq!(read_all(fixture.submit(seeded(vec![1], 5, 0)).unwrap()).0, alone(&[1], 5, 0));
    fixture.end();
}

/// Other requests, long and short, submitted before and after it, are not affected.
#[test]
fn a_request_that_makes_ranks_fail_is_ended_alone_and_by_name() {
    let options = FakeOptions { deadly_token: Some(999), ..paced(Duration::from_millis(1)) };
    let fixture = start(EngineConfig::default(), options);
    let prompts: Vec<Vec<TokenId>> = (1..9).map(|len| (0..len * 90).collect()).collect();
    let submit = |prompt: &Vec<TokenId>| fixture.submit(seeded(prompt.clone(), 30, 7)).unwrap();
    let mut generations: Vec<Generation> = prompts[..4].iter().map(submit).collect();
    let poisonous = fixture.submit(seeded([(0..600).collect(), vec![999]].concat(), 9, 0)).unwrap();
    generations.extend(prompts[4..].iter().map(submit));
    let (tokens, last) = read_all(poisonous);
    let Event::Poisonous(failure) = last else { panic!("{last:?}") };
    assert_eq!((tokens, failure.rank), (vec![], Some(1)));
    assert!(failure.message.starts_with("this request makes ranks fail: "), "{failure}");
    assert!(failure.message.contains("killed by signal 9\nhint: "), "{failure}");
    assert_eq!(failure.last_words, "the end is near");
    for (prompt, generation) in prompts.iter().zip(generations) {
        assert_eq!(read_all(generation).0, alone(prompt, 30, 7));
    }
    let status = fixture.handle.status();
    assert_eq!((status.counters.failed, status.counters.finished), (1, 8));
    assert!(status.counters.failures <= 8, "{:?}", status.counters);
    assert_eq!(status.state, EngineState::Ready);
    fixture.end();
}

#[test]
fn an_idle_engine_whose_losses_were_mended_takes_requests() {
    let fixture = start(EngineConfig::default(), FakeOptions::default());
    for num_losses in 1..=6 {
        fixture.control.order(FakeOrder::Crash { rank: 1 });
        wait_until(|| fixture.handle.status().counters.recoveries == num_losses);
    }
    wait_until(|| fixture.handle.status().state == EngineState::Ready);
    assert_eq!(read_all(fixture.submit(seeded(vec![1], 5, 0)).unwrap()).0, alone(&[1], 5, 0));
    assert_eq!(fixture.handle.status().counters.failures, 6);
    fixture.end();
}

#[test]
fn a_connection_that_closes_later_does_not_hide_why_an_outage_began() {
    let options = FakeOptions { start_time: Duration::from_millis(100), ..FakeOptions::default() };
    let fixture = start(EngineConfig::default(), options);
    // Returns the rank that is reported after these losses; none if the outage is over already.
    let rank_at_fault = |orders: Vec<FakeOrder>| {
        let expected = fixture.handle.status().counters.failures + orders.len() as u64;
        orders.into_iter().for_each(|order| fixture.control.order(order));
        wait_until(|| expected <= fixture.handle.status().counters.failures);
        // The engine has handled the last loss once it responds.
        block_on(fixture.handle.responds());
        let state = fixture.handle.status().state;
        wait_until(|| fixture.handle.status().state == EngineState::Ready);
        match state {
            EngineState::Recovering { failure, .. } => failure.rank,
            _ => None,
        }
    };
    let observed = |orders: &dyn Fn() -> Vec<FakeOrder>| {
        std::iter::repeat_with(|| rank_at_fault(orders())).flatten().next()
    };
    let crash = |rank| FakeOrder::Crash { rank };
    let disconnect = |rank| FakeOrder::Disconnect { rank };
    assert_eq!(observed(&|| vec![disconnect(0)]), Some(0));
    assert_eq!(observed(&|| vec![crash(1), disconnect(0)]), Some(1));
    assert_eq!(observed(&|| vec![disconnect(0), crash(1)]), Some(1));
    fixture.end();
}

/// Bursts of losses at any time; most of them hit ranks that are still coming back up.
#[test]
fn bursts_of_losses_end_no_request() {
    let options =
        FakeOptions { start_time: Duration::from_millis(3), ..paced(Duration::from_millis(1)) };
    let fixture = start(EngineConfig::default(), options);
    let prompts: Vec<Vec<TokenId>> = (1..9).map(|len| (0..len * 30).collect()).collect();
    let submit = |prompt: &Vec<TokenId>| fixture.submit(seeded(prompt.clone(), 400, 5)).unwrap();
    let generations: Vec<Generation> = prompts.iter().map(submit).collect();
    for burst in 0..8_u64 {
        let before = fixture.handle.status().counters.sampled_tokens;
        wait_until(|| {
            let counters = fixture.handle.status().counters;
            assert_eq!(counters.failed, 0, "requests ended: {counters:?}");
            before + 8 * 4 <= counters.sampled_tokens || counters.finished == 8
        });
        for rank in 0..2 + burst as usize % 5 {
            fixture.control.order(FakeOrder::Crash { rank: rank % 2 });
        }
    }
    for (prompt, generation) in prompts.iter().zip(generations) {
        assert_eq!(read_all(generation).0, alone(prompt, 400, 5));
    }
    let counters = fixture.handle.status().counters;
    assert!(2 <= counters.failures && counters.failed == 0, "{counters:?}");
    fixture.end();
}

#[test]
fn the_engine_says_when_a_step_is_due() {
    let options = FakeOptions { step_timeout: Duration::ZERO, ..FakeOptions::default() };
    let fixture = start(EngineConfig::default(), options);
    assert_eq!(fixture.handle.status().due_at, None, "nothing is to be computed");
    assert!(block_on(fixture.handle.responds()));
    fixture.control.order(FakeOrder::Hold);
    let generation = fixture.submit(seeded(vec![1], 5, 0)).unwrap();
    wait_until(|| fixture.handle.status().due_at.is_some());
    fixture.control.order(FakeOrder::Resume);
    read_all(generation);
    wait_until(|| fixture.handle.status().due_at.is_none());
    fixture.end();
}

pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(began.elapsed() < LONG, "what is waited for does not come");
        // Leaves the cores to the threads under test.
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

#[test]
fn a_generation_that_its_caller_completes_is_finished() {
    let fixture = start(EngineConfig::default(), paced(Duration::from_millis(2)));
    let mut generation = fixture.submit(seeded(vec![1, 2], 4000, 0)).unwrap();
    while !matches!(generation.next_blocking().unwrap(), Event::Token { .. }) {}
    generation.complete();
    // The message is before this request in the queue.
    read_all(fixture.submit(seeded(vec![3], 4, 0)).unwrap());
    let status = fixture.handle.status();
    assert_eq!((status.counters.cancelled, status.counters.finished), (0, 2));
    assert_eq!((status.running, status.kv.running_bytes), (0, 0));
    fixture.end();
}

#[test]
fn a_dropped_generation_is_cancelled_within_a_step() {
    let fixture = start(EngineConfig::default(), paced(Duration::from_millis(2)));
    let mut generation = fixture.submit(seeded(vec![1, 2], 4000, 0)).unwrap();
    let mut num_tokens = 0;
    while num_tokens < 3 {
        let event = generation.next_blocking().unwrap();
        num_tokens += u64::from(matches!(event, Event::Token { .. }));
    }
    drop(generation);
    // The cancellation is before this request in the queue.
    read_all(fixture.submit(seeded(vec![3], 4, 0)).unwrap());
    let status = fixture.handle.status();
    assert_eq!((status.counters.cancelled, status.running, status.kv.running_bytes), (1, 0, 0));
    // One reported after the third, and two that were in flight.
    let sampled = status.counters.sampled_tokens + status.counters.dropped_tokens;
    assert!(sampled <= 4 + 3 + 1 + 2 + 1, "{:?}", status.counters);
    fixture.end();
}

#[test]
fn a_full_queue_refuses_with_the_time_to_wait() {
    let config = EngineConfig { running_max: 1, queue_max: 2, ..EngineConfig::default() };
    let fixture = start(config, FakeOptions::default());
    fixture.control.order(FakeOrder::Hold);
    let submit = || fixture.submit(seeded(vec![1], 3, 0));
    let taken = [submit().unwrap(), submit().unwrap(), submit().unwrap()];
    match submit() {
        Err(SubmitError::QueueFull { queued: 2, limit: 2, retry_after }) => {
            assert!(Duration::from_secs(1) <= retry_after);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.handle.status().counters.refused, 1);
    fixture.control.order(FakeOrder::Resume);
    for generation in taken {
        assert_eq!(read_all(generation).0.len(), 3);
    }
    assert_eq!(read_all(submit().unwrap()).0.len(), 3);
    fixture.end();
}

#[test]
fn what_memory_can_never_hold_is_refused_with_numbers() {
    // Both ranks have 1024 bytes per token: two blocks.
    let kv_budget = KvBudget::BytesPerRank(2 * 256 * 1024);
    let fixture =
        start(EngineConfig { kv_budget, ..EngineConfig::default() }, FakeOptions::default());
    let expected = SubmitError::NeverFits {
        needed_tokens: 513,
        needed_bytes: 513 * 2048,
        budget_bytes: 512 * 2048,
        capacity_tokens: 512,
    };
    assert_eq!(fixture.submit(options(vec![1; 500], 14)).unwrap_err(), expected);
    assert_eq!(read_all(fixture.submit(options(vec![1; 500], 13)).unwrap()).0.len(), 13);
    let open = RequestOptions { max_tokens: None, ..options(vec![1; 500], 0) };
    assert_eq!(read_all(fixture.submit(open).unwrap()).0.len(), 13);
    fixture.end();
}

#[test]
fn choices_of_one_prompt_compute_it_once() {
    let fixture = start(EngineConfig::default(), paced(Duration::from_micros(100)));
    let prompt: Vec<TokenId> = (0..900).collect();
    fixture.control.order(FakeOrder::Hold);
    let choices: Vec<Generation> =
        (0..4).map(|seed| fixture.submit(seeded(prompt.clone(), 5, seed)).unwrap()).collect();
    fixture.control.order(FakeOrder::Resume);
    for (seed, generation) in choices.into_iter().enumerate() {
        assert_eq!(read_all(generation).0, alone(&prompt, 5, seed as u64));
    }
    let status = fixture.handle.status();
    assert_eq!((status.prefix.found_tokens, status.prefix.forked), (3 * 899, 3));
    assert!(status.steps.computed_tokens < 900 + 4 * 6 + 8, "{:?}", status.steps.computed_tokens);
    fixture.end();
}

#[test]
fn the_next_turn_goes_on_in_place() {
    let fixture = start(EngineConfig::default(), FakeOptions::default());
    let mut prompt: Vec<TokenId> = (0..200).collect();
    for turn in 0..4 {
        let (tokens, last) = read_all(fixture.submit(seeded(prompt.clone(), 30, 1)).unwrap());
        let Event::Finished { usage, .. } = last else { panic!("{last:?}") };
        // All but the tokens that were added since, and the last sampled token, which was never computed.
        let expected = if turn == 0 { 0 } else { prompt.len() - 11 };
        assert_eq!(usage.cached_tokens as usize, expected);
        prompt.extend(tokens);
        prompt.extend(500..510);
    }
    let prefix = fixture.handle.status().prefix;
    assert_eq!((prefix.taken_over, prefix.forked), (3, 0));
    fixture.end();
}

#[test]
fn nothing_is_taken_before_the_ranks_are_ready() {
    let options = FakeOptions { start_time: LONG, ..FakeOptions::default() };
    let (ranks, _) = FakeRanks::new(options);
    let (handle, thread) = Engine::spawn(EngineConfig::default(), ranks);
    assert_eq!(handle.limits(), None);
    assert!(!handle.started_blocking(Duration::from_millis(1)));
    handle.shutdown();
    assert_eq!(thread.join().unwrap(), Ok(()));
    assert!(!handle.started_blocking(LONG));
}

#[test]
fn the_engine_ends_with_its_last_handle() {
    let fixture = start(EngineConfig::default(), FakeOptions::default());
    let generation = fixture.submit(seeded(vec![1], 5, 0)).unwrap();
    drop(fixture.handle);
    assert_eq!(read_all(generation).0.len(), 5);
    assert_eq!(fixture.thread.join().unwrap(), Ok(()));
}

#[test]
fn events_are_read_from_an_executor_too() {
    let fixture = start(EngineConfig::default(), FakeOptions::default());
    let mut generation = fixture.submit(seeded(vec![1], 5, 0)).unwrap();
    let read = async move {
        let mut num_events = 0;
        while generation.next().await.is_some() {
            num_events += 1;
        }
        num_events
    };
    assert_eq!(block_on(read), 7);
    fixture.end();
}

pub(crate) fn block_on<T>(future: impl std::future::Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn an_event_keeps_the_time_when_it_was_sent() {
    let fixture = start(EngineConfig::default(), paced(Duration::from_millis(2)));
    let mut generation = fixture.submit(seeded(vec![1, 2], 5, 0)).unwrap();
    wait_until(|| fixture.handle.status().counters.finished == 1);
    let read = std::time::Instant::now();
    let mut times = vec![generation.event_at()];
    while generation.next_blocking().is_some() {
        times.push(generation.event_at());
    }
    assert!(times.is_sorted() && times[0] < times[times.len() - 1], "{times:?}");
    // The last one is counted before it is sent.
    assert!(times[times.len() - 2] < read, "{times:?}");
    fixture.end();
}
