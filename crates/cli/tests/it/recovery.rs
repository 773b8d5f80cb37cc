//! Ranks that die, freeze, or die again and again, while answers are being streamed.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::checkpoint::{Copy, Tensor, Weights, exact, shipped_weights};
use crate::http::{Answer, End, Server, Stream};
use crate::program::{PATIENCE, Program, ranks_of, send, wait_for};

/// Returns requests that run long enough for a fault in the middle.
fn requests(max_tokens: u32) -> Vec<Value> {
    let request = |idx: u64| {
        let prompt: Vec<u64> =
            (0..4 + idx * 9).map(|at| (at * 53 + idx * 307) % 1900 + 20).collect();
        json!({
            "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "temperature": 0,
            "return_token_ids": true,
        })
    };
    (0..4).map(request).collect()
}

/// Opens all streams and waits until each has begun.
fn open(server: &Server, requests: &[Value]) -> Vec<Stream> {
    let mut streams: Vec<Stream> = requests.iter().map(|it| server.stream(it)).collect();
    for stream in &mut streams {
        stream.read_tokens(5);
    }
    streams
}

/// Requests answers one after the other, without faults.
fn undisturbed(server: &Server, requests: &[Value]) -> Vec<Answer> {
    requests.iter().map(|it| server.complete(it)).collect()
}

fn num_of(health: &Value, counter: &str) -> u64 {
    health["counters"][counter].as_u64().unwrap()
}

/// Sends `signal` to `rank` during streams: no client may notice anything but the pause.
fn check(args: &str, rank: usize, signal: Signal) {
    let server = Server::start(exact(), &format!("--ranks 2 {args}"));
    let requests = requests(400);
    let expected = undisturbed(&server, &requests);
    // Nothing that takes time stands between the first tokens and the fault: it must come in mid-stream.
    let victim = server.rank(rank);
    let survivor = server.rank(1 - rank);
    let streams = open(&server, &requests);
    send(victim, signal);
    for (idx, (stream, expected)) in streams.into_iter().zip(expected).enumerate() {
        let (answer, end) = stream.read_all();
        assert_eq!(end, End::Done, "stream {idx}");
        assert_eq!(answer, expected, "stream {idx}");
    }
    let health = server.health();
    assert_eq!(num_of(&health, "recoveries"), 1, "the signal came in mid-stream");
    assert_eq!(health["status"], "healthy");
    assert_ne!(server.rank(rank), victim);
    assert_eq!(server.rank(1 - rank), survivor, "the other rank keeps its weights");
    assert_eq!(health["ranks"][rank]["pid"], server.rank(rank));
}

#[test]
fn killing_rank_0_in_mid_stream_changes_no_answer() {
    check("", 0, Signal::KILL);
}

#[test]
fn killing_rank_1_in_mid_stream_changes_no_answer() {
    check("", 1, Signal::KILL);
}

#[test]
fn aborting_rank_0_in_mid_stream_changes_no_answer() {
    check("", 0, Signal::ABORT);
}

#[test]
fn aborting_rank_1_in_mid_stream_changes_no_answer() {
    check("", 1, Signal::ABORT);
}

#[test]
fn a_frozen_rank_0_is_replaced_and_changes_no_answer() {
    check("--stall-timeout 2", 0, Signal::STOP);
}

#[test]
fn a_frozen_rank_1_is_replaced_and_changes_no_answer() {
    check("--stall-timeout 2", 1, Signal::STOP);
}

#[test]
fn killing_the_last_stage_in_mid_stream_changes_no_answer() {
    check("--split pipeline", 0, Signal::KILL);
}

#[test]
fn killing_the_first_stage_in_mid_stream_changes_no_answer() {
    check("--split pipeline", 1, Signal::KILL);
}

#[test]
fn a_frozen_last_stage_is_replaced_and_changes_no_answer() {
    check("--split pipeline --stall-timeout 2", 0, Signal::STOP);
}

#[test]
fn a_frozen_first_stage_is_replaced_and_changes_no_answer() {
    check("--split pipeline --stall-timeout 2", 1, Signal::STOP);
}

/// A rank gets no more memory from the system while it computes other answers.
#[cfg(target_os = "linux")]
#[test]
fn a_rank_out_of_memory_is_replaced_and_changes_no_answer() {
    let server = Server::start(exact(), "--ranks 2");
    let mut requests = requests(400);
    let prompt: Vec<u64> = (0..1500).map(|at| (at * 59 + 11) % 1900 + 20).collect();
    requests.push(json!({
        "prompt": prompt, "max_tokens": 40, "ignore_eos": true, "temperature": 0,
        "return_token_ids": true,
    }));
    let (large, small) = requests.split_last().unwrap();
    let mut streams = open(&server, small);
    let (victim, survivor) = (server.rank(1), server.rank(0));
    crate::memory::forbid_growth(victim);
    // Needs more memory than the rank has allocated before.
    streams.push(server.stream(large));
    let answers: Vec<_> = streams.into_iter().map(|stream| stream.read_all()).collect();
    assert_eq!(num_of(&server.health(), "recoveries"), 1);
    assert_ne!(server.rank(1), victim);
    assert_eq!(server.rank(0), survivor);
    for (idx, (answer, expected)) in
        answers.into_iter().zip(undisturbed(&server, &requests)).enumerate()
    {
        assert_eq!(answer, (expected, End::Done), "stream {idx}");
    }
}

#[test]
fn both_ranks_killed_at_once_change_no_answer() {
    let server = Server::start(exact(), "--ranks 2");
    let requests = requests(400);
    let expected = undisturbed(&server, &requests);
    let victims = server.ranks();
    let streams = open(&server, &requests);
    for rank in victims {
        send(rank.pid, Signal::KILL);
    }
    for (stream, expected) in streams.into_iter().zip(expected) {
        assert_eq!(stream.read_all(), (expected, End::Done));
    }
    assert!(1 <= num_of(&server.health(), "recoveries"));
}

/// Kills rank 1 whenever the engine logs that it planned a step of at least `num_tokens_min` tokens.
/// Returns the number of kills once the log ends.
fn kill_in_large_steps(
    log: impl Read + Send + 'static,
    server: u32,
    num_tokens_min: u64,
) -> JoinHandle<u32> {
    std::thread::spawn(move || {
        let mut num_kills = 0;
        for line in BufReader::new(log).lines() {
            let Ok(line) = line else { break };
            let num_tokens = line.rsplit_once(" num_tokens=").and_then(|it| it.1.parse().ok());
            if num_tokens.is_some_and(|it: u64| num_tokens_min <= it) {
                let victims = ranks_of(server).into_iter().filter(|it| it.rank == 1);
                victims.for_each(|it| send(it.pid, Signal::KILL));
                num_kills += 1;
            }
        }
        num_kills
    })
}

/// The step of one request's long prompt ends a rank each time, like one that needs more memory
/// than there is.
#[test]
fn a_request_that_ends_a_rank_in_every_step_of_its_own_ends_by_name_and_the_others_go_on() {
    let mut words: Vec<OsString> = vec!["serve".into(), "--model".into(), exact().into()];
    let options = ["--port", "0", "--json", "--ranks", "2", "--threads", "1"];
    words.extend(options.iter().chain(&["--step-tokens", "4096"]).map(OsString::from));
    let mut program = Program::start_unread(&words, &[("RUST_LOG", "jackalope_engine=debug")]);
    let log = program.take_unread();
    let killer = kill_in_large_steps(log, program.pid(), 1800);
    let server = Server::of(program);
    let sound = &requests(700)[..2];
    let expected = undisturbed(&server, sound);
    let streams = open(&server, sound);
    let prompt: Vec<u64> = (0..1900).map(|at| (at * 59 + 11) % 1900 + 20).collect();
    let poisonous = server.stream(&json!({"prompt": prompt, "max_tokens": 9, "temperature": 0}));
    let (answer, end) = poisonous.read_all();
    assert_eq!(answer, Answer::default(), "it got no token");
    let End::Error(error) = end else { panic!("{end:?}") };
    assert_eq!(error["code"], "poisonous_request", "{error}");
    assert!(error["message"].as_str().is_some_and(|it| it.contains("rank 1")), "{error}");
    for (stream, expected) in streams.into_iter().zip(expected) {
        assert_eq!(stream.read_all(), (expected, End::Done));
    }
    let health = server.health();
    assert_eq!((num_of(&health, "failed"), &health["status"]), (1, &json!("healthy")));
    server.program.signal(Signal::TERM);
    assert!(server.program.end().status.success());
    let num_kills = killer.join().unwrap();
    assert!((4..=8).contains(&num_kills), "{num_kills}");
}

/// A token whose embedding is damaged makes an answer impossible, for those who use it alone: the
/// ranks live on, the other streams are not disturbed, and no request reuses the damaged cache.
#[test]
fn a_request_whose_numbers_are_none_ends_alone() {
    const POISON: u64 = 1777;
    let copy = Copy::new();
    copy.edit_weights(|weights| {
        let scales = weights.tensor("model.embed_tokens.scales");
        let row = scales.data.len() / scales.shape[0] as usize;
        for half in scales.data[POISON as usize * row..][..row].chunks_exact_mut(2) {
            half.copy_from_slice(&0x7fc0_u16.to_le_bytes());
        }
    });
    // A separate head, or every answer would use the damaged row.
    copy.edit_config(|config| config["tie_word_embeddings"] = json!(false));
    copy.edit_weights(untie);
    let server = Server::start(copy.path(), "--ranks 2");
    let requests = requests(200);
    let expected = undisturbed(&server, &requests);
    let streams = open(&server, &requests);
    let ranks = server.ranks();
    let prompt: Vec<u64> = (100..180).chain([POISON]).chain(200..280).collect();
    for body in [
        json!({"prompt": prompt, "max_tokens": 9}),
        json!({"prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": 1}),
    ] {
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!((status, &answer["error"]["code"]), (500, &json!("not_a_number")), "{answer}");
    }
    for (stream, expected) in streams.into_iter().zip(expected) {
        assert_eq!(stream.read_all(), (expected, End::Done));
    }
    let sound: Vec<u64> = (100..180).chain(200..280).collect();
    // At any other temperature it may draw the damaged token itself.
    server.complete(&json!({
        "prompt": sound, "max_tokens": 9, "temperature": 0, "return_token_ids": true,
    }));
    assert_eq!(server.ranks(), ranks, "no rank was replaced");
    let health = server.health();
    assert_eq!((num_of(&health, "not_a_number"), num_of(&health, "failures")), (2, 0));
}

/// Gives the head the embedding's rows, before they were damaged.
fn untie(weights: &mut Weights) {
    let sound = shipped_weights();
    for part in ["weight", "scales", "biases"] {
        let name = format!("model.embed_tokens.{part}");
        let found = sound.tensors.iter().find(|it| it.name == name).unwrap();
        let tensor = Tensor { name: format!("lm_head.{part}"), ..found.clone() };
        weights.tensors.push(tensor);
    }
}

/// Open requests end with an error that names the rank; the server continues, refuses requests, and recovers.
fn check_gives_up_and_mends(server: &Server, streams: Vec<Stream>, rank: usize) {
    for stream in streams {
        let (_, end) = stream.read_all();
        let End::Error(error) = end else { panic!("a stream ended as if complete") };
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&format!("rank {rank}")), "{error}");
        assert!(error["type"].is_string(), "{error}");
    }
    assert_eq!(server.get("/health/live").0, 200);
    let body = json!({"prompt": [20, 21], "max_tokens": 3, "return_token_ids": true});
    // Requests are refused until the next attempt to restart the ranks has finished.
    let mut refused = 0;
    let answer = wait_for("an answer after the ranks have been mended", || {
        let (status, answer) = server.post("/v1/completions", &body);
        if status == 200 {
            return Some(answer);
        }
        assert_eq!(status, 503, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("rank"), "{answer}");
        refused += 1;
        None
    });
    assert!(answer["usage"]["completion_tokens"].as_u64().is_some(), "{answer}");
    assert!(0 < refused, "requests were refused in between");
}

/// Kills ranks one after the other, whatever they are doing; `random` decides which and when.
fn storm(server: &Server, num_kills: usize, random: &mut u64) {
    let mut below = |most: u64| {
        // Knuth's generator: the same choices in every run.
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*random >> 33) % most
    };
    for _ in 0..num_kills {
        let ranks = server.ranks();
        if !ranks.is_empty() {
            let idx = below(ranks.len() as u64) as usize;
            send(ranks[idx].pid, Signal::KILL);
        }
        // No synchronisation: the storm meets ranks that compute, join, load and start.
        std::thread::sleep(Duration::from_millis(below(250)));
    }
}

/// Kills two, and later three to six ranks within about a second, again and again, under twelve
/// streams.
#[test]
fn bursts_and_storms_of_kills_change_no_answer() {
    let server = Server::start(exact(), "--ranks 2");
    let requests: Vec<Value> = (0..3).flat_map(|_| requests(900)).collect();
    let expected = undisturbed(&server, &requests[..4]);
    let streams = open(&server, &requests);
    let mut random = 20_261;
    for num_kills in [2, 2, 3, 4, 5, 6] {
        let before = num_of(&server.health(), "sampled_tokens");
        storm(&server, num_kills, &mut random);
        // The storm is over once a stream has made progress.
        server.wait_for_health("tokens after a storm", |health| {
            assert_eq!(num_of(health, "failed"), 0, "streams ended: {health}");
            before < num_of(health, "sampled_tokens") && health["status"] == "healthy"
        });
    }
    for (idx, stream) in streams.into_iter().enumerate() {
        assert_eq!(stream.read_all(), (expected[idx % 4].clone(), End::Done), "stream {idx}");
    }
    let health = server.health();
    assert_eq!(num_of(&health, "failed"), 0);
    assert!(6 <= num_of(&health, "failures"), "{}", health["counters"]);
}

#[test]
fn an_idle_server_whose_ranks_are_killed_again_and_again_still_answers() {
    let server = Server::start(exact(), "--ranks 2");
    let request = &requests(20)[1];
    let expected = server.complete(request);
    for num_lost in 1..=6 {
        send(server.rank(num_lost % 2), Signal::KILL);
        server.wait_for_health("recovery", |health| {
            assert_ne!(health["status"], "failed", "{num_lost} losses: {health}");
            num_of(health, "recoveries") == num_lost as u64
        });
    }
    assert_eq!(server.get("/health/ready").0, 200);
    assert_eq!(server.complete(request), expected);
}

/// Waits for the process that replaces this one.
fn replacement(server: &Server, rank: usize, before: u32) -> u32 {
    wait_for("replacement", || {
        let found = server.ranks().into_iter().find(|it| it.rank == rank && it.pid != before);
        found.map(|it| it.pid)
    })
}

/// The replacement may be frozen before its first message, while it loads or while it joins. It is
/// replaced far sooner than the half minute that the first start of a rank may take.
#[test]
fn a_replacement_that_freezes_is_replaced_within_the_stall_timeout() {
    let server = Server::start(exact(), "--ranks 2 --stall-timeout 3");
    let requests = requests(900);
    let expected = undisturbed(&server, &requests);
    let first = server.rank(1);
    let streams = open(&server, &requests);
    send(first, Signal::KILL);
    let frozen = replacement(&server, 1, first);
    send(frozen, Signal::STOP);
    let began = Instant::now();
    server.wait_for_health("another replacement", |health| {
        health["status"] == "healthy" && server.rank_if_any(1).is_some_and(|pid| pid != frozen)
    });
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "it was replaced after {took:?}");
    for (stream, expected) in streams.into_iter().zip(expected) {
        assert_eq!(stream.read_all(), (expected, End::Done));
    }
}

/// Standard error is not read, as with a paused terminal. The log is much longer than the pipe.
#[test]
fn an_unread_log_blocks_no_rank() {
    let words = ["serve", "--model", exact().to_str().unwrap(), "--port", "0", "--json"];
    let words = [&words[..], &["--ranks", "2"]].concat();
    let mut server = Server::of(Program::start_unread(&words, &[("RUST_LOG", "trace")]));
    let requests = requests(400);
    let expected = undisturbed(&server, &requests);
    let victim = server.rank(1);
    let streams = open(&server, &requests);
    send(victim, Signal::KILL);
    for (stream, expected) in streams.into_iter().zip(expected) {
        assert_eq!(stream.read_all(), (expected, End::Done));
    }
    let dropped = wait_for("count of lines that were dropped", || {
        let metrics = server.text("/metrics");
        let line =
            metrics.lines().find_map(|it| it.strip_prefix("jackalope_log_lines_dropped_total "));
        let dropped: f64 = line.expect("it is counted").parse().unwrap();
        // Lines are dropped only once the queue is full.
        server.complete(&requests[0]);
        (0.0 < dropped).then_some(dropped)
    });
    assert!(1.0 <= dropped);
    assert_eq!(server.get("/health/ready").0, 200);
    server.program.signal(Signal::TERM);
    assert!(server.program.wait(Instant::now() + PATIENCE).is_some_and(|it| it.success()));
}

#[test]
fn a_rank_that_dies_whenever_it_appears_ends_open_requests_and_not_the_server() {
    let server = Server::start(exact(), "--ranks 2 --give-up-after 4");
    let streams = open(&server, &requests(1900));
    wait_for("end of the attempts", || {
        for rank in server.ranks().into_iter().filter(|it| it.rank == 1) {
            send(rank.pid, Signal::KILL);
        }
        (server.health()["status"] == "failed").then_some(())
    });
    check_gives_up_and_mends(&server, streams, 1);
}
