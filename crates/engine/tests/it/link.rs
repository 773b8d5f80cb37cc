//! Tests of the real link, with ranks in threads.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jackalope_engine::link::{Link, LinkConfig, LinkTimeouts, RankAssignment};
use jackalope_engine::testing::{fake_facts, pseudo_model};
use jackalope_engine::{
    Engine, EngineConfig, EngineError, EngineHandle, EngineState, EngineThread, Event, Failure,
    Generation, Request, RequestOptions, RetryPolicy, SamplingOptions, SubmitError,
};
use jackalope_protocol::secure::HintedKey;
use jackalope_protocol::split::Split;
use jackalope_protocol::{
    Backend, Device, FrameError, Hello, Phase, Secret, Setup, ToRank, TokenId, frame, secure,
};

use crate::engine::{LONG, read_all, wait_until};
use crate::threads::{Fault, Log, Threads, VOCAB_SIZE};

struct Case {
    faults: Vec<(usize, Vec<Fault>)>,
    backend: Backend,
    timeouts: LinkTimeouts,
    retry: RetryPolicy,
    released: Arc<OnceLock<()>>,
}

impl Case {
    /// Two ranks with the given faults; failures during the start are tolerated too.
    fn new(faults: Vec<(usize, Vec<Fault>)>) -> Case {
        Case {
            faults,
            backend: Backend::Tcp,
            timeouts: LinkTimeouts::default(),
            retry: RetryPolicy { start_failures_max: 1000, ..RetryPolicy::default() },
            released: Arc::default(),
        }
    }

    fn spawn(self) -> Fixture {
        let log = Arc::new(Log::default());
        let launcher = Threads {
            faults: self.faults.into_iter().collect(),
            log: Arc::clone(&log),
            meeting: Arc::default(),
            released: Arc::clone(&self.released),
        };
        // With tickets of their own, late ranks of one case cannot join another one on the same
        // port.
        let assignments = RankAssignment::local(&setup(self.backend));
        let tickets = assignments.iter().map(|assignment| assignment.ticket).collect();
        let config = LinkConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            expected: Vec::new(),
            assignments,
            timeouts: self.timeouts,
            first_epoch: 0,
        };
        let link = Link::bind(config, Box::new(launcher)).unwrap();
        let control_addr = link.control_addr();
        let config = EngineConfig { step_tokens: 8, retry: self.retry, ..EngineConfig::default() };
        let (handle, thread) = Engine::spawn(config, link);
        Fixture { handle, thread, log, control_addr, tickets }
    }

    fn start(self) -> Fixture {
        let fixture = self.spawn();
        assert!(fixture.handle.started_blocking(LONG), "{:?}", fixture.handle.status().state);
        fixture
    }
}

fn setup(backend: Backend) -> Setup {
    Setup {
        num_ranks: 2,
        model_dir: "tiny".to_owned(),
        model_source: None,
        split: Split::Tensor(vec![1, 1]),
        backend,
        device: Device::Cpu,
        num_threads: 1,
        sockets_per_peer: 1,
        checksums: false,
        exact_sums: true,
        collective_timeout_ms: 1000,
        join_timeout_ms: 1000,
        silence_timeout_ms: 10_000,
        orphan_ms: 0,
        profile: false,
        content: None,
        cache_costs: vec![fake_facts(VOCAB_SIZE, 4096).cache_cost; 2],
    }
}

struct Fixture {
    handle: EngineHandle,
    thread: EngineThread,
    log: Arc<Log>,
    control_addr: SocketAddr,
    /// The tickets of ranks 0 and 1.
    tickets: Vec<Secret>,
}

impl Fixture {
    fn submit(&self, max_tokens: u32) -> Result<Generation, SubmitError> {
        let limits = self.handle.limits().expect("known once started");
        let options = RequestOptions {
            prompt: (0..20).collect(),
            max_tokens: Some(max_tokens),
            sampling: SamplingOptions { seed: Some(1), ..SamplingOptions::default() },
            ..RequestOptions::default()
        };
        self.handle.submit(Request::new(options, &limits).unwrap())
    }

    /// Checks that a request gets exactly the tokens of an undisturbed run.
    fn check_undisturbed(&self) {
        let generation = self.submit(30).unwrap();
        let (tokens, last) = read_all(generation);
        assert!(matches!(last, Event::Finished { .. }), "{last:?}");
        assert_eq!(tokens, undisturbed(30));
    }

    fn end(self) -> Arc<Log> {
        self.handle.shutdown();
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || ended.send(self.thread.join()));
        let end = end.recv_timeout(LONG).expect("the engine ends in time");
        end.expect("the engine does not panic").expect("an orderly end");
        self.log
    }

    fn start_failure(self) -> (Failure, Arc<Log>) {
        match self.thread.join().expect("the engine does not panic") {
            Err(EngineError::Start(failure)) => (failure, self.log),
            other => panic!("{other:?}"),
        }
    }
}

fn undisturbed(num_tokens: usize) -> Vec<TokenId> {
    let mut model = pseudo_model(VOCAB_SIZE);
    let mut sampling = jackalope_protocol::Sampling::greedy(20);
    sampling.seed = 1;
    let mut tokens: Vec<TokenId> = (0..20).collect();
    for _ in 0..num_tokens {
        tokens.push(model(&tokens, &sampling));
    }
    tokens.split_off(20)
}

#[test]
fn ranks_are_set_up_joined_and_stopped() {
    let fixture = Case::new(vec![]).start();
    fixture.check_undisturbed();
    let status = fixture.handle.status();
    assert_eq!(status.state, EngineState::Ready);
    assert_eq!(status.limits.as_ref().map(|it| it.vocab_size), Some(VOCAB_SIZE));
    assert!(status.ranks.iter().all(|rank| rank.facts.is_some() && 0 < rank.steps));
    let log = fixture.end();
    for rank in 0..2 {
        assert_eq!(log.of(rank), ["launch", "setup tiny", "join 1 1000 2000", "stop"]);
    }
}

/// A rank treats a silent coordinator as lost, and would leave an idle group.
#[test]
fn idle_ranks_hear_that_the_coordinator_lives() {
    let mut case = Case::new(vec![]);
    case.timeouts.heartbeat_interval = Duration::from_millis(10);
    let fixture = case.start();
    let began = std::time::Instant::now();
    while fixture.log.num_beats.load(std::sync::atomic::Ordering::SeqCst) < 6 {
        assert!(began.elapsed() < LONG, "nothing was heard");
        std::thread::yield_now();
    }
    assert_eq!(fixture.handle.status().counters.recoveries, 0);
    fixture.end();
}

#[test]
fn strangers_are_dropped() {
    // The second rank arrives only after the strangers.
    let mut case = Case::new(vec![(1, vec![Fault::NeverConnects])]);
    case.timeouts.hello = Duration::from_millis(700);
    let fixture = case.spawn();
    let connect = || TcpStream::connect(fixture.control_addr).unwrap();
    let mut browser = connect();
    browser.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    // A ticket of another server, and rank 0's ticket used for rank 1.
    for ticket in [Secret([1; 32]), fixture.tickets[0]] {
        let thief = secure::dial(fixture.control_addr, &HintedKey::of_rank(1, ticket), LONG);
        assert!(matches!(thief, Err(FrameError::Ticket)), "{thief:?}");
    }
    // A peer with rank 0's ticket that claims to be rank 1, and a peer with rank 1's ticket that is
    // not the process that was started.
    for (rank, ticket) in [(0, fixture.tickets[0]), (1, fixture.tickets[1])] {
        let key = HintedKey::of_rank(rank, ticket);
        let (mut ghost, mut heard) = secure::dial(fixture.control_addr, &key, LONG).unwrap();
        let mlx = String::new();
        let hello = Hello { rank: 1, pid: 7, mlx, data_addr: fixture.control_addr };
        frame::write(&mut ghost, &hello).unwrap();
        heard.stream().set_read_timeout(Some(LONG)).unwrap();
        assert!(frame::read::<ToRank>(&mut heard).is_err());
    }
    let _silent = connect();
    // An unauthenticated peer learns nothing but the version.
    let mut bytes = Vec::new();
    browser.set_read_timeout(Some(LONG)).unwrap();
    match browser.read_to_end(&mut bytes) {
        Ok(_) => assert!(bytes.starts_with(b"JKLP") && bytes.len() < 20, "{bytes:?}"),
        Err(err) => assert_eq!(err.kind(), ErrorKind::ConnectionReset),
    }

    assert!(fixture.handle.started_blocking(LONG));
    fixture.check_undisturbed();
    assert_eq!(fixture.handle.status().counters.failures, 1);
    let log = fixture.end();
    assert_eq!(log.count(1, "setup tiny"), 1);
}

/// Injects a fault while generating, and checks that the stream continues unchanged.
fn check_recovery(case: Case) -> Arc<Log> {
    let fixture = case.start();
    fixture.check_undisturbed();
    let counters = fixture.handle.status().counters;
    assert!(1 <= counters.recoveries, "{counters:?}");
    fixture.check_undisturbed();
    fixture.end()
}

#[test]
fn a_dead_rank_is_replaced_and_the_others_keep_their_weights() {
    for step in [0, 1, 5, 20] {
        let log = check_recovery(Case::new(vec![(1, vec![Fault::DiesAt(step)])]));
        let survivor =
            ["launch", "setup tiny", "join 1 1000 2000", "leave 1", "join 2 1000 2001", "stop"];
        assert_eq!(log.of(0), survivor);
        assert_eq!(log.count(1, "setup tiny"), 2);
    }
}

#[test]
fn rank_0_is_replaced_like_any_other() {
    let log = check_recovery(Case::new(vec![(0, vec![Fault::DiesAt(4)])]));
    assert_eq!(log.count(1, "launch"), 1);
    assert_eq!(log.count(0, "launch"), 2);
}

#[test]
fn a_device_that_failed_gets_a_new_process() {
    let log = check_recovery(Case::new(vec![(1, vec![Fault::DeviceFailsAt(4)])]));
    assert_eq!((log.count(0, "launch"), log.count(1, "launch")), (1, 2));
}

#[test]
fn a_rank_that_stalls_is_replaced() {
    let mut case = Case::new(vec![(1, vec![Fault::StallsAt(4)])]);
    case.timeouts.step = Duration::from_millis(200);
    let log = check_recovery(case);
    assert!(2 <= log.count(1, "launch"));
}

#[test]
fn who_waits_for_a_stalled_rank_is_not_replaced_even_if_it_is_behind() {
    for at in [1, 4] {
        let mut case =
            Case::new(vec![(0, vec![Fault::StallsAt(at + 1)]), (1, vec![Fault::IsHeldUpAt(at)])]);
        case.timeouts.step = Duration::from_millis(1500);
        let log = check_recovery(case);
        assert_eq!((log.count(0, "launch"), log.count(1, "launch")), (2, 1));
    }
}

#[test]
fn ranks_that_all_wait_for_each_other_are_not_replaced() {
    let held_up = || vec![Fault::IsHeldUpAt(4)];
    let mut case = Case::new(vec![(0, held_up()), (1, held_up())]);
    case.timeouts.step = Duration::from_millis(1500);
    let log = check_recovery(case);
    assert_eq!((log.count(0, "launch"), log.count(1, "launch")), (1, 1));
    assert_eq!(log.count(0, "join 2 1000 2000"), 1);
}

#[test]
fn a_frozen_rank_is_replaced() {
    let mut case = Case::new(vec![(1, vec![Fault::FreezesAt(4)])]);
    case.timeouts.heartbeat = Duration::from_millis(400);
    let log = check_recovery(case);
    assert!(2 <= log.count(1, "launch"));
}

/// The engine continues meanwhile, and kills the process when it appears.
#[test]
fn a_process_that_the_system_does_not_start_is_abandoned() {
    let mut case =
        Case::new(vec![(1, vec![Fault::DiesAt(4), Fault::SticksBeforeExec, Fault::None])]);
    case.timeouts.spawn = Duration::from_millis(200);
    let released = Arc::clone(&case.released);
    let fixture = case.start();
    fixture.check_undisturbed();
    released.set(()).unwrap();
    wait_until(|| fixture.log.killed.lock().unwrap().contains(&2001));
    fixture.check_undisturbed();
    let log = fixture.end();
    assert_eq!(log.count(1, "launch"), 3);
}

#[test]
fn the_engine_ends_while_a_process_is_stuck_before_its_program() {
    let case = Case::new(vec![(1, vec![Fault::SticksBeforeExec])]);
    let released = Arc::clone(&case.released);
    let fixture = case.spawn();
    wait_until(|| fixture.log.count(1, "launch") == 1);
    let log = fixture.end();
    released.set(()).unwrap();
    wait_until(|| log.killed.lock().unwrap().contains(&2000));
}

#[test]
fn a_rank_that_somebody_else_starts_is_waited_for_and_the_others_are_not() {
    let faults =
        vec![(0, vec![Fault::NeverConnects, Fault::None]), (1, vec![Fault::IsStartedLater])];
    let mut case = Case::new(faults);
    case.timeouts.hello = Duration::from_millis(200);
    let fixture = case.start();
    fixture.check_undisturbed();
    let log = fixture.end();
    assert_eq!((log.count(0, "launch"), log.count(1, "launch")), (2, 1));
}

#[test]
fn why_the_first_start_is_tried_again_is_told_until_the_ranks_are_ready() {
    let mut case = Case::new(vec![(1, vec![Fault::ExitsAtOnce, Fault::SticksBeforeExec])]);
    case.timeouts.spawn = LONG;
    let released = Arc::clone(&case.released);
    let fixture = case.spawn();
    wait_until(|| fixture.handle.status().start_failure.is_some());
    let status = fixture.handle.status();
    assert_eq!(status.state, EngineState::Starting);
    let failure = status.start_failure.unwrap();
    assert_eq!((failure.rank, failure.last_words.as_str()), (Some(1), "rank 1 says goodbye"));
    released.set(()).unwrap();
    assert!(fixture.handle.started_blocking(LONG));
    fixture.check_undisturbed();
    assert_eq!(fixture.handle.status().start_failure, None);
    fixture.end();
}

#[test]
fn a_replacement_that_says_nothing_is_replaced_sooner_than_the_first_would_be() {
    let mut case = Case::new(vec![(1, vec![Fault::DiesAt(4), Fault::NeverConnects])]);
    case.timeouts.hello = LONG;
    case.timeouts.replacement_hello = Duration::from_millis(200);
    let log = check_recovery(case);
    assert_eq!(log.count(1, "launch"), 3);
}

/// The silence limit applies from the hello on, in every state.
#[test]
fn a_rank_that_freezes_while_it_loads_or_joins_is_replaced_for_its_silence() {
    for fault in [Fault::FreezesLoading, Fault::FreezesJoining] {
        let mut case = Case::new(vec![(1, vec![Fault::DiesAt(4), fault])]);
        case.timeouts.heartbeat = Duration::from_millis(400);
        case.timeouts.load_stall = LONG;
        case.timeouts.join_margin = LONG;
        let log = check_recovery(case);
        assert_eq!(log.count(1, "launch"), 3, "{fault:?}");
    }
}

/// Consecutive losses, as after several kills in quick succession: while the group computes, joins
/// and loads.
#[test]
fn losses_one_upon_the_other_are_a_pause() {
    let faults = [
        Fault::DiesAt(4),
        Fault::ExitsAtOnce,
        Fault::DiesAt(0),
        Fault::DiesAt(1),
        Fault::ExitsAtOnce,
        Fault::DiesAt(0),
    ];
    let case = Case::new(vec![(0, vec![Fault::DiesAt(4)]), (1, faults.to_vec())]);
    check_recovery(case);
}

#[test]
fn a_broken_group_is_formed_again_without_new_processes() {
    let log = check_recovery(Case::new(vec![(0, vec![Fault::GroupBreaksAt(4)])]));
    assert_eq!((log.count(0, "launch"), log.count(1, "launch")), (1, 1));
    assert_eq!(log.count(0, "join 2 1000 2000"), 1);
}

#[test]
fn a_rank_that_never_joins_is_replaced() {
    let mut case = Case::new(vec![(1, vec![Fault::NeverJoins])]);
    case.timeouts.join_margin = Duration::ZERO;
    let fixture = case.start();
    fixture.check_undisturbed();
    let log = fixture.end();
    assert!(2 <= log.count(1, "launch"));
}

#[test]
fn a_stock_backend_restarts_every_rank() {
    for fault in [Fault::DiesAt(4), Fault::GroupBreaksAt(4)] {
        let mut case = Case::new(vec![(1, vec![fault])]);
        case.backend = Backend::Ring;
        let log = check_recovery(case);
        assert_eq!((log.count(0, "launch"), log.count(1, "launch")), (2, 2));
        assert_eq!(log.count(0, "leave 1"), 0);
    }
}

/// Returns the only failure that the status reports.
fn check_blame(faults: Vec<(usize, Vec<Fault>)>) -> Failure {
    let fixture = Case::new(faults).start();
    fixture.check_undisturbed();
    let cause = fixture.handle.status().recovery.cause.expect("there was a failure");
    fixture.end();
    cause
}

#[test]
fn a_failure_names_the_rank_and_its_last_words() {
    let failure = check_blame(vec![(1, vec![Fault::DiesAt(6)])]);
    assert_eq!((failure.rank, failure.phase), (Some(1), Phase::Computing));
    assert!(failure.message.starts_with("the process ended: killed by signal 9"), "{failure}");
    assert_eq!(failure.last_words, "rank 1 says goodbye");
    assert!(failure.to_string().starts_with("rank 1 while computing: "), "{failure}");
}

#[test]
fn the_rank_that_died_is_blamed_not_the_one_that_noticed() {
    let faults = vec![(0, vec![Fault::NoticesDeathAt(6)]), (1, vec![Fault::DiesAt(6)])];
    assert_eq!(check_blame(faults).rank, Some(1));
    let failure = check_blame(vec![(0, vec![Fault::GroupBreaksAt(6)])]);
    assert_eq!(failure.rank, Some(0));
    assert!(failure.message.contains("the connection to a peer was lost"), "{failure}");
}

#[test]
fn a_standstill_ends_requests_and_the_engine_goes_on_trying() {
    let mut faults = vec![Fault::DiesAt(6)];
    faults.extend([Fault::ExitsAtOnce; 6]);
    let mut case = Case::new(vec![(1, faults)]);
    case.retry = RetryPolicy { standstill_max: Duration::from_millis(50), ..case.retry };
    let fixture = case.start();
    let (told, last) = read_all(fixture.submit(30).unwrap());
    assert!(!told.is_empty() && undisturbed(30).starts_with(&told));
    assert!(matches!(last, Event::Failed(Failure { rank: Some(1), .. })), "{last:?}");
    // Requests are refused until an attempt succeeds, and then served.
    let began = std::time::Instant::now();
    loop {
        match fixture.submit(30) {
            Ok(generation) => break assert_eq!(read_all(generation).0, undisturbed(30)),
            Err(SubmitError::Unavailable { reason }) => {
                assert!(reason.contains("rank 1"), "{reason}");
            }
            Err(err) => panic!("{err}"),
        }
        assert!(began.elapsed() < LONG);
        std::thread::yield_now();
    }
    assert_eq!(fixture.handle.status().counters.failed, 1);
    let log = fixture.end();
    assert_eq!(log.count(1, "launch"), 8);
}

/// Checks a start in which the ranks do not become ready.
fn check_start(fault: Fault, change: impl FnOnce(&mut Case)) -> (Failure, Arc<Log>) {
    let mut case = Case::new(vec![(1, vec![fault; 3])]);
    case.retry = RetryPolicy::default();
    change(&mut case);
    case.spawn().start_failure()
}

#[test]
fn a_rank_whose_caches_take_other_memory_is_refused() {
    let (failure, log) = check_start(Fault::OtherCacheCost, |_| {});
    assert_eq!((failure.rank, failure.phase), (Some(1), Phase::Loading));
    let expected = "caches take 1024 bytes per token and 8 bytes per state on rank 1, but 1024 \
                    bytes per token by the coordinator's description of the checkpoint\nhint: ";
    assert!(failure.message.starts_with(expected), "{}", failure.message);
    assert!(log.of(1).iter().all(|entry| !entry.starts_with("join")), "{:?}", log.of(1));
}

#[test]
fn an_unusable_checkpoint_ends_the_engine_at_once() {
    let (failure, log) = check_start(Fault::BadModel, |_| {});
    assert_eq!((failure.rank, failure.phase), (Some(1), Phase::Loading));
    assert_eq!(failure.message, "tensor model.norm.weight is missing");
    assert_eq!(log.count(1, "launch"), 1);
}

#[test]
fn a_missing_program_ends_the_engine_at_once() {
    let (failure, _) = check_start(Fault::NoProgram, |_| {});
    assert_eq!(failure.message, "jackalope-rank is not there\nhint: build it");
}

/// Returns the failure of a start that ends after one attempt.
fn retried(fault: Fault, change: impl FnOnce(&mut LinkTimeouts)) -> Failure {
    let (failure, log) = check_start(fault, |case| {
        change(&mut case.timeouts);
        case.retry.start_failures_max = 1;
    });
    assert_eq!(log.count(1, "launch"), 1);
    assert_eq!(failure.rank, Some(1));
    failure
}

#[test]
fn a_rank_that_does_not_come_up_is_reported_with_its_phase_and_time() {
    let failure = retried(Fault::ExitsAtOnce, |_| {});
    assert!(failure.message.starts_with("the process ended: exit status 1, "), "{failure}");
    assert_eq!(
        (failure.phase, failure.last_words.as_str()),
        (Phase::Starting, "rank 1 says goodbye")
    );

    let brief = Duration::from_millis(300);
    let failure = retried(Fault::NeverConnects, |timeouts| timeouts.hello = brief);
    assert!(failure.message.starts_with("it did not connect within 0.3 s, "), "{failure}");

    let failure = retried(Fault::StopsLoading, |timeouts| timeouts.load_stall = brief);
    assert_eq!(failure.phase, Phase::Loading);
    let expected = "loading stopped at 5 of 10 bytes within 0.3 s, ";
    assert!(failure.message.starts_with(expected), "{failure}");
    assert!(failure.message.ends_with(" s after it began loading"), "{failure}");

    let failure = retried(Fault::StopsWarmingUp, |timeouts| timeouts.warm_up = brief);
    assert_eq!(failure.phase, Phase::WarmingUp);
    let expected = "it did not compute its first steps within 0.3 s, ";
    assert!(failure.message.starts_with(expected), "{failure}");
}

#[test]
fn another_version_is_reported() {
    let failure = retried(Fault::OtherVersion, |_| {});
    let expected = "theirs is 9.9.9 (protocol 65535)\nhint:";
    assert!(failure.message.contains(expected), "{failure}");
}

#[test]
fn another_libmlx_is_reported_with_both_versions_and_not_retried() {
    let (failure, log) = check_start(Fault::OtherMlx, |_| {});
    assert!(failure.message.starts_with("libmlx versions differ: rank "), "{failure}");
    assert!(failure.message.contains("has 0.1") && failure.message.contains("has 0.2"));
    assert!(log.count(1, "launch") <= 1);
}

#[test]
fn a_ticket_that_is_not_accepted_is_named() {
    let failure = retried(Fault::WrongSecret, |_| {});
    assert!(failure.message.contains("the ticket is not accepted: "), "{failure}");
}

#[test]
fn a_rank_that_ignores_the_end_is_killed() {
    let mut case = Case::new(vec![(1, vec![Fault::IgnoresStop])]);
    case.timeouts.stop = Duration::from_millis(50);
    let log = case.start().end();
    assert_eq!(log.of(1).last().map(String::as_str), Some("stop"));
}

#[test]
fn open_requests_hear_that_the_engine_stops() {
    let fixture = Case::new(vec![(1, vec![Fault::StallsAt(3)])]).start();
    let generation = fixture.submit(30).unwrap();
    fixture.handle.shutdown();
    let (_, last) = read_all(generation);
    let Event::Failed(failure) = last else { panic!("{last:?}") };
    assert_eq!((failure.rank, failure.message.as_str()), (None, "the server is stopping"));
    assert!(matches!(fixture.submit(3), Err(SubmitError::Unavailable { .. })));
    fixture.end();
}
