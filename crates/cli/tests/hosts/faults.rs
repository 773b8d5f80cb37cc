//! Three hosts under every fault, at random moments, with streams open all the time: none fails,
//! hangs or changes a token.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::checkpoint::exact;
use crate::http::{Answer, End, Server};
use crate::lab::{Lab, missing};
use crate::launching::lab_or_return;
use crate::program::{send, wait_for};
use crate::random::Random;

const NUM_HOSTS: usize = 3;
const NUM_STREAMS: usize = 8;
/// Faults of a run; `JACKALOPE_FAULTS` sets another number.
const NUM_FAULTS: usize = 60;
/// Maximum duration of a stream, whatever faults it meets.
const STREAM_BOUND: Duration = Duration::from_secs(180);
/// Seconds after which a rank counts as frozen, here.
const STALL: &str = "--stall-timeout 3";

/// A fault of a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fault {
    /// SIGKILL to its rank.
    RankKilled,
    /// SIGABRT to its rank.
    RankAborted,
    /// SIGSTOP to its rank.
    RankFrozen,
    /// SIGKILL to its agent, and so to its rank.
    AgentKilled,
    /// The ranks of all hosts at once.
    AllKilled,
    /// Its cable is pulled and connected again.
    CableOut,
    /// Nothing arrives at the host.
    Deaf,
    /// Nothing that the host sends arrives.
    Mute,
    /// A bad network: frames from the host are lost at moments.
    Lossy,
    /// A slow network: 1 Mbit/s.
    Slow,
    /// Unauthenticated peers connect to every port.
    Strangers,
    /// Its link to one other host is cut.
    LinkCut,
    /// Its agent is stopped (SIGSTOP) for a while.
    AgentPaused,
}

/// Relative frequency of each fault.
const WEIGHTS: [(Fault, u64); 13] = [
    (Fault::RankKilled, 30),
    (Fault::RankAborted, 10),
    (Fault::RankFrozen, 8),
    (Fault::AgentKilled, 8),
    (Fault::AllKilled, 6),
    (Fault::CableOut, 4),
    (Fault::Deaf, 3),
    (Fault::Mute, 3),
    (Fault::Lossy, 6),
    (Fault::Slow, 4),
    (Fault::Strangers, 10),
    (Fault::LinkCut, 5),
    (Fault::AgentPaused, 4),
];

impl Random {
    fn fault(&mut self) -> Fault {
        let total = WEIGHTS.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.below(total);
        for (fault, weight) in WEIGHTS {
            match drawn.checked_sub(weight) {
                Some(rest) => drawn = rest,
                None => return fault,
            }
        }
        unreachable!("the weights add up")
    }
}

fn number(name: &str) -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "a person repeats a run by its seed")]
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    number("JACKALOPE_SEED").unwrap_or(now.as_nanos() as u64) | 1
}

/// Returns a different request for each index, long enough for a fault in the middle.
pub(crate) fn request(idx: usize) -> Value {
    let idx = idx as u64;
    let prompt: Vec<u64> = (0..4 + idx * 9).map(|at| (at * 53 + idx * 307) % 1900 + 20).collect();
    json!({
        "prompt": prompt, "max_tokens": 300 + idx * 20, "ignore_eos": true, "temperature": 0,
        "return_token_ids": true,
    })
}

/// Streams that are opened repeatedly until the test stops them.
struct Readers<'a> {
    server: &'a Server,
    expected: Vec<Answer>,
    is_over: AtomicBool,
    num_done: AtomicU64,
    /// Number of events that each stream has read.
    num_read: [AtomicU64; NUM_STREAMS],
    wrong: Mutex<Vec<String>>,
}

impl Readers<'_> {
    fn read(&self, idx: usize) {
        while !self.is_over.load(Ordering::SeqCst) {
            let began = Instant::now();
            let mut stream = self.server.stream(&request(idx));
            while stream.go_on() {
                self.num_read[idx].fetch_add(1, Ordering::SeqCst);
            }
            let (answer, end) = stream.read_all();
            let took = began.elapsed();
            if end != End::Done || answer != self.expected[idx] || STREAM_BOUND < took {
                let same = answer.tokens.iter().zip(&self.expected[idx].tokens);
                let num_same = same.take_while(|(a, b)| a == b).count();
                let what = format!(
                    "stream {idx} ended with {end:?} after {} tokens, of which {num_same} are \
                     right, in {took:?}",
                    answer.tokens.len()
                );
                self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(what);
            }
            self.num_done.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn num_read(&self) -> Vec<u64> {
        self.num_read.iter().map(|it| it.load(Ordering::SeqCst)).collect()
    }

    fn check(&self, faults: &[String]) {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(wrong.is_empty(), "{wrong:#?}\nafter {faults:#?}\n{}", self.server.health());
    }
}

pub(crate) fn is_there(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// Inflicts one fault on one host and undoes it. Returns the processes that must disappear.
fn inflict(lab: &Lab, server: &Server, fault: Fault, at: usize, random: &mut Random) -> Vec<u32> {
    let host = &lab.hosts[at];
    let mut victims = Vec::new();
    let mut signal = |text: &str, signal| {
        victims = host.pids_of(text);
        victims.iter().for_each(|pid| send(*pid, signal));
    };
    let moment = |random: &mut Random, least: u64, most: u64| {
        std::thread::sleep(Duration::from_millis(least + random.below(most - least)));
    };
    match fault {
        Fault::RankKilled => signal("jackalope-rank", Signal::KILL),
        Fault::RankAborted => signal("jackalope-rank", Signal::ABORT),
        Fault::RankFrozen => signal("jackalope-rank", Signal::STOP),
        Fault::AgentKilled => signal("jackalope agent", Signal::KILL),
        Fault::AllKilled => {
            victims = lab.hosts.iter().flat_map(|it| it.pids_of("jackalope-rank")).collect();
            victims.iter().for_each(|pid| send(*pid, Signal::KILL));
        }
        Fault::CableOut => {
            lab.cable_out(at);
            moment(random, 500, 8000);
        }
        Fault::Deaf => {
            lab.deafen(at);
            moment(random, 500, 8000);
        }
        Fault::Mute => {
            lab.mute(at);
            moment(random, 500, 8000);
        }
        Fault::Lossy => {
            for _ in 0..10 {
                lab.mute(at);
                moment(random, 5, 60);
                lab.mend(at);
                moment(random, 50, 400);
            }
        }
        Fault::Slow => {
            lab.slow_down(at);
            moment(random, 1000, 4000);
        }
        Fault::Strangers => knock(lab, server),
        Fault::LinkCut => {
            lab.cut_link(at, (at + 1) % NUM_HOSTS);
            moment(random, 500, 8000);
        }
        Fault::AgentPaused => {
            let agents = host.pids_of("jackalope agent");
            agents.iter().for_each(|pid| send(*pid, Signal::STOP));
            moment(random, 500, 12_000);
            // The agent may have been replaced meanwhile.
            agents.iter().for_each(|pid| send(*pid, Signal::CONT));
        }
    }
    lab.mend(at);
    victims
}

/// Sends random bytes to the ports of agents, coordinator and ranks.
fn knock(lab: &Lab, server: &Server) {
    use std::io::Write;
    let mut ports = vec![18080, 18081];
    ports.extend(22_000..22_010);
    for host in &lab.hosts {
        for port in &ports {
            let addr = format!("{}:{port}", host.ip).parse().unwrap();
            let patience = Duration::from_millis(200);
            let Ok(mut stream) = std::net::TcpStream::connect_timeout(&addr, patience) else {
                continue;
            };
            // The peer may close the connection at once.
            stream.write_all(b"JKLP\x02\x00\x050.1.0\xff\xff\xff\xff rubbish").ok();
        }
    }
    assert_eq!(server.get("/health/live").0, 200);
}

#[test]
fn no_fault_fails_hangs_or_changes_a_stream() {
    let lab = lab_or_return!(NUM_HOSTS);
    let seed = seed();
    let num_faults = number("JACKALOPE_FAULTS").map_or(NUM_FAULTS, |it| it as usize);
    println!("JACKALOPE_SEED={seed} JACKALOPE_FAULTS={num_faults}");
    let mut random = Random(seed);
    disturb(&lab, "--split tensor", num_faults.div_ceil(2), &mut random);
    disturb(&lab, "--split pipeline", num_faults / 2, &mut random);
}

/// Causes `num_faults` faults one after the other at a new server, and checks all of its streams.
fn disturb(lab: &Lab, split: &str, num_faults: usize, random: &mut Random) {
    let server = lab.serve(exact(), &format!("{STALL} {split}"));
    let expected = (0..NUM_STREAMS).map(|idx| server.complete(&request(idx))).collect();
    let readers = Readers {
        server: &server,
        expected,
        is_over: AtomicBool::new(false),
        num_done: AtomicU64::new(0),
        num_read: Default::default(),
        wrong: Mutex::default(),
    };
    let mut inflicted = Vec::new();
    std::thread::scope(|scope| {
        let readers = &readers;
        for idx in 0..NUM_STREAMS {
            scope.spawn(move || readers.read(idx));
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in 0..num_faults {
                let (fault, at) = (random.fault(), random.below(NUM_HOSTS as u64) as usize);
                std::thread::sleep(Duration::from_millis(random.below(700)));
                inflicted.push(format!("{number}: {fault:?} on {at}"));
                let began = Instant::now();
                let victims = inflict(lab, &server, fault, at, random);
                let mut then = None;
                wait_for("end of the fault", || {
                    readers.check(&inflicted);
                    let is_mended = victims.iter().all(|pid| !is_there(*pid))
                        && server.get("/health/ready").0 == 200;
                    // Every stream has continued.
                    let now = readers.num_read();
                    let then = is_mended.then(|| then.get_or_insert_with(|| now.clone()))?;
                    now.iter().zip(then).all(|(now, then)| *then + 5 <= *now).then_some(())
                });
                println!("{number}: {fault:?} on {at}: {:.1} s", began.elapsed().as_secs_f32());
            }
        }));
        readers.is_over.store(true, Ordering::SeqCst);
        if let Err(panic) = result {
            println!("health: {}", server.health());
            std::panic::resume_unwind(panic);
        }
    });
    readers.check(&inflicted);
    let health = server.health();
    assert_eq!(health["counters"]["failed"], 0, "{health}");
    println!(
        "{split}: {} streams, {} recoveries",
        readers.num_done.load(Ordering::SeqCst),
        health["recoveries"]
    );
}

#[test]
fn a_cable_that_delays_and_loses_costs_time_and_nothing_else() {
    const DELAY_MS: u32 = 15;
    let mut lab = lab_or_return!(2);
    let server = lab.serve(exact(), "--stall-timeout 5");
    let short = |idx: usize| {
        let mut request = request(idx);
        request["max_tokens"] = json!(40);
        request
    };
    let requests: Vec<Value> = (0..4).map(short).collect();
    let expected: Vec<Answer> = requests.iter().map(|it| server.complete(it)).collect();
    let mut streams: Vec<_> = requests.iter().map(|it| server.stream(it)).collect();
    streams.iter_mut().for_each(|stream| stream.read_tokens(2));
    lab.worsen(1, DELAY_MS, 1);
    let way_and_back = u64::from(2 * DELAY_MS * 1000);
    server.wait_for_health("a slow way to rank 1", |it| {
        way_and_back <= it["ranks"][1]["round_trip_us"].as_u64().unwrap_or(0)
    });
    for (stream, expected) in streams.into_iter().zip(&expected) {
        assert_eq!(stream.read_all(), (expected.clone(), End::Done));
    }
    lab.replace_cable(1);
    server.wait_for_health("a fast way to rank 1", |it| {
        it["ranks"][1]["round_trip_us"].as_u64().is_some_and(|it| it < way_and_back)
    });
    assert_eq!(server.complete(&requests[0]), expected[0]);
    let health = server.health();
    assert_eq!((&health["counters"]["failed"], &health["world_size"]), (&json!(0), &json!(2)));
}

#[test]
fn a_host_that_stays_away_is_done_without_and_taken_back() {
    let mut lab = lab_or_return!(NUM_HOSTS);
    let server = lab.serve(exact(), "--stall-timeout 3 --absent-after 4");
    let requests: Vec<Value> = (0..4).map(request).collect();
    let expected: Vec<Answer> = requests.iter().map(|it| server.complete(it)).collect();
    let open = || {
        let mut streams: Vec<_> = requests.iter().map(|it| server.stream(it)).collect();
        streams.iter_mut().for_each(|stream| stream.read_tokens(5));
        streams
    };
    let streams = open();
    lab.switch_off(2);
    for (stream, expected) in streams.into_iter().zip(&expected) {
        assert_eq!(stream.read_all(), (expected.clone(), End::Done));
    }
    let health = server.wait_for_health("two ranks", |it| it["world_size"] == 2);
    assert_eq!(health["ranks"][1]["host"], "host-b");
    // The machine boots with its SSH server and nothing else; the coordinator starts the agent again.
    lab.switch_on(2);
    let streams = open();
    server.wait_for_health("three ranks", |it| it["world_size"] == 3 && it["status"] == "healthy");
    for (stream, expected) in streams.into_iter().zip(&expected) {
        assert_eq!(stream.read_all(), (expected.clone(), End::Done));
    }
    assert_eq!(server.health()["counters"]["failed"], 0);
}

#[test]
fn what_cannot_be_mended_ends_with_its_rank_host_and_cause() {
    let mut lab = lab_or_return!(2);
    let server = lab.serve(exact(), "--stall-timeout 3 --no-elastic --give-up-after 8");
    let mut stream = server.stream(&request(0));
    stream.read_tokens(5);
    lab.switch_off(1);
    server.wait_for_health("a pause", |it| it["status"] == "recovering");
    assert_eq!(server.get("/health/ready").0, 503);
    let (_, end) = stream.read_all();
    let End::Error(error) = end else { panic!("{end:?}") };
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("rank 1 on host-b"), "{message}");
    assert!(message.contains("its machine cannot be reached"), "{message}");
    let (status, refused) = server.post("/v1/completions", &request(0));
    assert_eq!(status, 503, "{refused}");
    assert!(refused.to_string().contains("host-b"), "{refused}");
    // It comes back without intervention.
    lab.switch_on(1);
    server.wait_for_health("health", |it| it["status"] == "healthy");
    assert_eq!(server.post("/v1/completions", &request(0)).0, 200);
}

#[test]
fn a_rank_whose_weights_are_on_a_machine_that_is_away_says_so_and_goes_on_when_it_is_back() {
    let mut lab = lab_or_return!(3);
    lab.hide(2, exact());
    let args = "--models-from host-b --stall-timeout 3 --absent-after 2 --give-up-after 24";
    let server = lab.serve(exact(), args);
    let expected = server.complete(&request(0));
    let mut stream = server.stream(&request(0));
    stream.read_tokens(5);
    // The model is split again over the two remaining hosts, one of which has nothing to read.
    lab.switch_off(1);
    let (_, end) = stream.read_all();
    let End::Error(error) = end else { panic!("{end:?}") };
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("host-b"), "{message}");
    let (status, refused) = server.post("/v1/completions", &request(0));
    assert_eq!(status, 503, "{refused}");
    lab.switch_on(1);
    server.wait_for_health("health", |it| it["status"] == "healthy");
    assert_eq!(server.complete(&request(0)), expected);
}
