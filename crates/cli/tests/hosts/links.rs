//! Broken links between two workers that the coordinator still reaches, and hung agents beside
//! healthy ranks.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::checkpoint::exact;
use crate::faults::{is_there, request};
use crate::http::{Answer, End, Server, Stream};
use crate::lab::{Lab, missing};
use crate::launching::lab_or_return;
use crate::program::{send, wait_for};

/// A hung agent is replaced within 20 s on an idle machine: five seconds of silence, two attempts
/// of two seconds each, and four seconds to answer on its own machine. This bound is for busy
/// machines.
const AGENT_BOUND: Duration = Duration::from_secs(60);

struct Requests {
    requests: Vec<Value>,
    expected: Vec<Answer>,
}

impl Requests {
    /// Creates four requests, with their answers before any fault.
    fn of(server: &Server) -> Requests {
        let requests: Vec<Value> = (0..4).map(request).collect();
        let expected = requests.iter().map(|it| server.complete(it)).collect();
        Requests { requests, expected }
    }

    fn open(&self, server: &Server) -> Vec<Stream> {
        let mut streams: Vec<_> = self.requests.iter().map(|it| server.stream(it)).collect();
        streams.iter_mut().for_each(|stream| stream.read_tokens(5));
        streams
    }

    fn check(&self, streams: Vec<Stream>) {
        for (stream, expected) in streams.into_iter().zip(&self.expected) {
            assert_eq!(stream.read_all(), (expected.clone(), End::Done));
        }
    }
}

fn ranks(lab: &Lab) -> Vec<u32> {
    lab.hosts.iter().flat_map(|host| host.pids_of("jackalope-rank")).collect()
}

/// Waits until the server names the broken link.
fn wait_for_broken_link(lab: &Lab, server: &Server, ends: [usize; 2]) -> String {
    let health = server.wait_for_health("name of the link", |it| {
        it["reason"].as_str().is_some_and(|it| it.contains("the link between"))
    });
    let reason = health["reason"].as_str().unwrap();
    for end in ends.map(|at| &lab.hosts[at]) {
        let named = format!("{} ({})", end.ssh, end.ip);
        assert!(reason.contains(&named), "{named}: {reason}");
    }
    assert!(!reason.contains("rank 0"), "nobody is blamed: {reason}");
    assert!(reason.contains("hint: "), "{reason}");
    reason.to_owned()
}

#[test]
fn two_workers_that_do_not_reach_each_other_cost_one_of_them_until_they_do() {
    let lab = lab_or_return!(3);
    let server = lab.serve(exact(), "--stall-timeout 3 --absent-after 4");
    let requests = Requests::of(&server);
    let streams = requests.open(&server);
    let began = Instant::now();
    lab.cut_link(1, 2);
    println!("{}", wait_for_broken_link(&lab, &server, [1, 2]));
    println!("the link is named after {:.1} s", began.elapsed().as_secs_f32());
    let health = server
        .wait_for_health("two ranks", |it| it["world_size"] == 2 && it["status"] == "healthy");
    println!("two ranks go on after {:.1} s", began.elapsed().as_secs_f32());
    assert_eq!(health["ranks"][0]["host"], "127.0.0.1", "{health}");
    requests.check(streams);
    // `/health` reports the link as long as it is broken, although no rank uses it now.
    let between = health["broken_links"][0]["between"].as_str().unwrap_or_default().to_owned();
    let ends = ["host-b", "host-c"].map(|end| between.contains(end));
    assert_eq!(ends, [true; 2], "{health}");
    let status = lab.run(&["status"]);
    assert!(status.stdout.contains(&format!("link     {between} do not reach")), "{status:?}");
    let doctor = lab.run(&["doctor"]);
    assert!(doctor.stdout.contains("[link-broken]"), "{doctor:?}");
    assert!(doctor.stdout.contains(&between), "{doctor:?}");
    let streams = requests.open(&server);
    let began = Instant::now();
    lab.mend_link(1, 2);
    server.wait_for_health("three ranks", |it| it["world_size"] == 3 && it["status"] == "healthy");
    println!("the third is taken back after {:.1} s", began.elapsed().as_secs_f32());
    requests.check(streams);
    let health = server.health();
    assert_eq!((&health["counters"]["failed"], &health["broken_links"]), (&json!(0), &json!([])));
}

#[test]
fn a_link_that_heals_soon_costs_a_pause_and_no_process() {
    let lab = lab_or_return!(3);
    let server = lab.serve(exact(), "--stall-timeout 3 --absent-after 60");
    let requests = Requests::of(&server);
    let before = ranks(&lab);
    assert_eq!(before.len(), 3);
    // In both directions, and in each direction alone.
    for ways in [&[(1, 2), (2, 1)][..], &[(1, 2)], &[(2, 1)]] {
        let streams = requests.open(&server);
        ways.iter().for_each(|(from, to)| lab.cut_way(*from, *to));
        wait_for_broken_link(&lab, &server, [1, 2]);
        lab.mend_link(1, 2);
        let mended = Instant::now();
        server.wait_for_health("all ranks", |it| it["status"] == "healthy");
        println!("{ways:?}: on {:.2} s after the mend", mended.elapsed().as_secs_f32());
        requests.check(streams);
        assert_eq!(ranks(&lab), before, "every rank kept its weights");
    }
    let health = server.health();
    assert_eq!((&health["counters"]["failed"], &health["world_size"]), (&json!(0), &json!(3)));
}

#[test]
fn a_hung_agent_is_replaced_beside_its_rank_which_computes_on() {
    let lab = lab_or_return!(2);
    let server = lab.serve(exact(), "--stall-timeout 3 --absent-after 3");
    let requests = Requests::of(&server);
    let before = ranks(&lab);
    let agent = agent_of(&lab, 1);
    let began = Instant::now();
    send(agent, Signal::STOP);
    let replaced = wait_for("another agent", || {
        requests.check(requests.open(&server));
        let now = lab.hosts[1].pids_of("agent --detached");
        assert!(began.elapsed() < AGENT_BOUND, "the agent is not replaced: {now:?}");
        now.into_iter().find(|pid| *pid != agent && !is_there(agent))
    });
    println!("the agent is replaced after {:.1} s", began.elapsed().as_secs_f32());
    requests.check(requests.open(&server));
    assert_eq!(ranks(&lab), before, "nobody replaced a rank");
    let health = server.health();
    assert_eq!((&health["recoveries"], &health["counters"]["failed"]), (&json!(0), &json!(0)));
    // The new agent supervises the rank: it notices the rank's end, and starts the next one.
    let rank = lab.hosts[1].pids_of("jackalope-rank")[0];
    let streams = requests.open(&server);
    send(rank, Signal::KILL);
    requests.check(streams);
    let rank = wait_for("one rank", || {
        let ranks = lab.hosts[1].pids_of("jackalope-rank");
        (ranks.len() == 1 && ranks[0] != rank).then(|| ranks[0])
    });
    assert_eq!(parent_of(rank), replaced);
}

#[test]
fn a_rank_that_is_frozen_beside_a_hung_agent_is_killed_by_the_next_agent() {
    let lab = lab_or_return!(2);
    let server = lab.serve(exact(), "--stall-timeout 3 --absent-after 120 --give-up-after 120");
    let requests = Requests::of(&server);
    let streams = requests.open(&server);
    let frozen = lab.hosts[1].pids_of("jackalope-rank")[0];
    send(agent_of(&lab, 1), Signal::STOP);
    send(frozen, Signal::STOP);
    requests.check(streams);
    wait_for("the end of the frozen rank", || (!is_there(frozen)).then_some(()));
    assert_eq!(lab.hosts[1].pids_of("jackalope-rank").len(), 1);
}

fn agent_of(lab: &Lab, at: usize) -> u32 {
    let agents = lab.hosts[at].pids_of("agent --detached");
    assert_eq!(agents.len(), 1, "{agents:?}");
    agents[0]
}

fn parent_of(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().nth(1).unwrap().parse().unwrap()
}
