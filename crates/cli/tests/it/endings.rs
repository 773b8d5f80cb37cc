//! However a command ends, no rank outlives it.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::checkpoint::exact;
use crate::http::Server;
use crate::program::{Program, ranks_of, send, still_there, wait_for, wait_until};

/// Maximum time from Ctrl-C to the end, whatever the ranks do.
const END_MAX: Duration = Duration::from_secs(2);

/// Sends a signal to a server that is in the middle of an answer.
fn check_ends(signal: Signal) {
    let mut server = Server::start(exact(), "--ranks 2");
    let ranks = server.ranks();
    assert_eq!(ranks.len(), 2);
    let body = json!({
        "prompt": [20, 21, 22], "max_tokens": 1900, "ignore_eos": true, "return_token_ids": true
    });
    let mut stream = server.stream(&body);
    stream.read_tokens(3);
    server.program.signal(signal);
    let status = server.program.wait(Instant::now() + END_MAX).expect("it ends within two seconds");
    assert!(status.success(), "{status}");
    assert_eq!(still_there(&ranks), [0; 0]);
}

#[test]
fn ctrl_c_ends_a_busy_server_and_its_ranks_within_two_seconds() {
    check_ends(Signal::INT);
}

#[test]
fn terminating_ends_a_busy_server_and_its_ranks_within_two_seconds() {
    check_ends(Signal::TERM);
}

#[test]
fn ctrl_c_ends_a_server_whose_rank_is_frozen() {
    let mut server = Server::start(exact(), "--ranks 2");
    let ranks = server.ranks();
    send(ranks[1].pid, Signal::STOP);
    server.program.signal(Signal::INT);
    let status = server.program.wait(Instant::now() + END_MAX).expect("it ends within two seconds");
    assert!(status.success(), "{status}");
    assert_eq!(still_there(&ranks), [0; 0]);
}

#[test]
fn ranks_end_when_the_coordinator_is_killed() {
    let server = Server::start(exact(), "--ranks 3");
    let ranks = server.ranks();
    assert_eq!(ranks.len(), 3);
    server.program.signal(Signal::KILL);
    let is_gone = || still_there(&ranks).is_empty().then_some(());
    wait_for("end of the ranks", is_gone);
}

#[test]
fn busy_ranks_end_when_the_coordinator_is_killed() {
    let server = Server::start(exact(), "--ranks 2");
    let ranks = server.ranks();
    let body = json!({
        "prompt": [20, 21, 22], "max_tokens": 1900, "ignore_eos": true, "return_token_ids": true
    });
    server.stream(&body).read_tokens(3);
    server.program.signal(Signal::KILL);
    wait_for("end of the ranks", || still_there(&ranks).is_empty().then_some(()));
}

#[test]
fn ctrl_c_ends_generating_with_an_error_and_no_rank() {
    let model = exact().to_str().unwrap();
    let args = ["generate", "--model", model, "--ranks", "2", "--prompt-ids", "20,21"];
    let args = [&args[..], &["--ignore-eos", "--max-tokens", "2000"]].concat();
    let mut program = Program::start(&args, "");
    let ranks =
        wait_for("ranks", || Some(ranks_of(program.pid())).filter(|ranks| ranks.len() == 2));
    program.signal(Signal::INT);
    let status = program.wait(Instant::now() + END_MAX).expect("it ends within two seconds");
    assert!(!status.success());
    let deadline = Instant::now() + END_MAX;
    assert_eq!(wait_until(deadline, || still_there(&ranks).is_empty().then_some(())), Some(()));
}
