//! Trust between machines: which machine may use which.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use jackalope_protocol::secure::{self, HintedKey, Introduction};
use jackalope_protocol::{FrameError, Identity, PublicKey, Secret};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::checkpoint::{exact, shipped};
use crate::lab::{Lab, missing, mode_of};
use crate::launching::lab_or_return;
use crate::program::{send, wait_for};

const NO_SSH: (&str, &str) = ("JACKALOPE_SSH", "/nonexistent/ssh");
const LONG: Duration = Duration::from_secs(20);

fn key(shown: &Value) -> &str {
    shown["key"].as_str().unwrap()
}

/// Returns the name and key of the only entry of a list.
fn only<'a>(shown: &'a Value, list: &str) -> (&'a str, &'a str) {
    let entries = shown[list].as_array().unwrap();
    assert_eq!(entries.len(), 1, "{shown}");
    (entries[0]["name"].as_str().unwrap(), key(&entries[0]))
}

fn end_agent(lab: &Lab, at: usize) {
    let host = &lab.hosts[at];
    host.pids_of("jackalope agent").into_iter().for_each(|pid| send(pid, Signal::KILL));
    wait_for("its end", || host.pids_of("jackalope agent").is_empty().then_some(()));
}

#[test]
fn ssh_makes_machines_known_to_each_other_and_a_changed_key_is_refused_by_name() {
    let lab = lab_or_return!(2);
    let server = lab.serve(&shipped(), "");
    let [ours, theirs] = [0, 1].map(|at| lab.trust_of(at));
    assert_eq!(only(&ours, "machines"), ("host-b", key(&theirs["this"])));
    assert_eq!(only(&theirs, "coordinators").1, key(&ours["this"]));
    assert_eq!(ours["coordinators"], json!([]), "nobody commands the coordinator");
    for file in ["identity", "trust.json"] {
        assert_eq!(mode_of(&lab.hosts[1].home.join(file)), 0o600, "{file}");
    }
    server.program.signal(Signal::INT);
    assert!(server.program.end().status.success());

    // As if another machine had replaced it, with everything of ours except the key.
    end_agent(&lab, 1);
    fs::remove_file(lab.hosts[1].home.join("identity")).unwrap();
    let (hostfile, model) = (lab.hostfile(), shipped());
    let words = ["serve", "--model", model.to_str().unwrap(), "--json", "--hosts"];
    let words = [&words[..], &[hostfile.to_str().unwrap()]].concat();
    // The first start notices the change over SSH, the second one by the agent that then runs.
    for _ in 0..2 {
        let refused = lab.run(&words);
        assert!(!refused.status.success(), "{refused:?}");
        assert!(refused.stderr.contains("the key of host-b has changed from"), "{refused:?}");
        assert!(refused.stderr.contains("`jackalope trust accept host-b`"), "{refused:?}");
        assert!(lab.hosts[1].pids_of("jackalope-rank").is_empty());
    }
    let accepted = lab.run(&["trust", "accept", "host-b"]);
    assert!(accepted.status.success(), "{accepted:?}");
    let server = lab.serve(&shipped(), "");
    assert_eq!(server.health()["world_size"], 2);
}

#[test]
fn a_machine_whose_key_is_revoked_is_left_out_at_once_and_taken_back_when_it_is_accepted() {
    let lab = lab_or_return!(3);
    let server = lab.serve(exact(), "--absent-after 100");
    let prompt = json!({"prompt": "Paris is the", "max_tokens": 12, "temperature": 0});
    let before = server.complete(&prompt);
    let began = Instant::now();
    let revoked = lab.run(&["trust", "revoke", "host-c"]);
    assert!(revoked.status.success(), "{revoked:?}");
    let of = |num_ranks: u64| {
        move |it: &Value| it["world_size"] == num_ranks && it["status"] == "healthy"
    };
    let health = server.wait_for_health("two ranks", of(2));
    println!("two ranks go on after {:.1} s", began.elapsed().as_secs_f32());
    assert!(health["ranks"].as_array().unwrap().iter().all(|it| it["host"] != "host-c"));
    assert!(began.elapsed() < Duration::from_secs(60), "nobody waited for the machine");
    let its_ranks = || lab.hosts[2].pids_of("jackalope-rank");
    wait_for("end of the rank", || its_ranks().is_empty().then_some(()));
    assert_eq!(server.complete(&prompt), before);
    let accepted = lab.run(&["trust", "accept", "host-c"]);
    assert!(accepted.status.success(), "{accepted:?}");
    server.wait_for_health("three ranks", of(3));
    assert_eq!(its_ranks().len(), 1);
    assert_eq!(server.complete(&prompt), before);
}

/// The secrets in a machine's home folder.
struct Stolen {
    secret: Secret,
    identity: Identity,
}

impl Stolen {
    fn from(home: &Path) -> Stolen {
        let read = |name: &str| {
            let text = fs::read_to_string(home.join(name)).unwrap();
            Secret::from_hex(&text).unwrap()
        };
        Stolen { secret: read("secret"), identity: Identity::from_private(read("identity"), "x") }
    }

    fn dial(&self, addr: SocketAddr) -> Result<PublicKey, FrameError> {
        let Stolen { secret, identity } = self;
        let introduction = Introduction { secret, identity, check: &|_: &PublicKey| Ok(()) };
        secure::dial_machine(addr, introduction, LONG).map(|(key, ..)| key)
    }
}

#[test]
fn a_hostile_worker_commands_neither_the_others_nor_the_coordinator() {
    let lab = lab_or_return!(3);
    let server = lab.serve(&shipped(), "");
    let prompt = json!({"prompt": "Paris is the", "max_tokens": 12, "temperature": 0});
    let before = server.complete(&prompt);
    let ranks = || -> Vec<u32> {
        lab.hosts.iter().flat_map(|host| host.pids_of("jackalope-rank")).collect()
    };
    let (pids, marker) = (ranks(), lab.hosts[1].home.with_file_name("marker"));
    let addr = |at: usize, port: u16| -> SocketAddr {
        format!("{}:{port}", lab.hosts[at].ip).parse().unwrap()
    };
    // With our own program, as the machine's owner could run it.
    for victim in [0, 2] {
        let target = format!("victim={}", lab.hosts[victim].ip);
        let touch = ["launch", "--hosts", &target, "--", "touch", marker.to_str().unwrap()];
        let ended = lab.start_on(1, &touch, &[NO_SSH]).end();
        assert!(!ended.status.success(), "{ended:?}");
        assert!(ended.stderr.contains("victim cannot be used"), "{ended:?}");
    }
    // With a hostile program, which skips every check on its side.
    let hostile = Stolen::from(&lab.hosts[1].home);
    for victim in [0, 2] {
        let err = hostile.dial(addr(victim, 18081)).unwrap_err();
        assert!(matches!(err, FrameError::Untrusted { .. }), "{err}");
        let refused = lab.trust_of(victim)["pending"].clone();
        assert!(refused.to_string().contains(&hostile.identity.public().to_hex()), "{refused}");
    }
    // As a rank, with every secret that the worker holds.
    for ticket in [hostile.secret, *hostile.identity.private()] {
        for rank in 0..3 {
            let key = HintedKey::of_rank(rank, ticket);
            let err = secure::dial(addr(0, 18080), &key, LONG).unwrap_err();
            assert!(matches!(err, FrameError::Ticket), "{err}");
        }
    }
    let err = hostile.dial(addr(0, 18080)).unwrap_err();
    assert!(matches!(err, FrameError::Secret), "{err}");
    // The same works for the coordinator, so the attacks fail for the right reason.
    let ours = Stolen::from(&lab.hosts[0].home);
    ours.dial(addr(2, 18081)).unwrap();

    assert!(!marker.exists());
    assert_eq!(ranks(), pids);
    assert_eq!(server.complete(&prompt), before);
}

#[test]
fn without_ssh_people_accept_on_both_machines_and_can_take_it_back() {
    let lab = lab_or_return!(2);
    lab.share_secret("5a".repeat(32).as_str());
    let _agent = lab.start_on(1, &["agent", "--announce"], &[]);
    let discover = || {
        let words = ["discover", "--json", "--timeout", "1"];
        let ended = lab.start_on(0, &words, &[NO_SSH]).end();
        let found: Value = serde_json::from_str(&ended.stdout).unwrap();
        found["machines"][1].clone()
    };
    let found = wait_for("the agent", || Some(discover()).filter(|it| !it.is_null()));
    assert_eq!(found["usable"], false, "{found}");
    assert!(found.to_string().contains("is not known here"), "{found}");
    let ip = lab.hosts[1].ip.as_str();
    let shown = lab.trust_of(0);
    assert_eq!(only(&shown, "pending"), (ip, key(&lab.trust_of(1)["this"])));
    let type_on = |at: usize, words: &[&str]| {
        let ended = lab.start_on(at, words, &[]).end();
        assert!(ended.status.success(), "{ended:?}");
    };
    type_on(0, &["trust", "accept", ip]);
    let found = discover();
    assert!(found.to_string().contains("does not trust this machine"), "{found}");
    let pending = lab.trust_of(1);
    assert_eq!(only(&pending, "pending").1, key(&lab.trust_of(0)["this"]));
    type_on(1, &["trust", "accept", pending["pending"][0]["fingerprint"].as_str().unwrap()]);
    assert_eq!(discover()["usable"], true);

    let model = shipped();
    let words = ["serve", "--discover", "--model", model.to_str().unwrap(), "--port", "8080"];
    let rest = ["--host", "0.0.0.0", "--insecure", "--json"];
    let program = lab.start_on(0, &[&words[..], &rest].concat(), &[NO_SSH]);
    let mut server = crate::http::Server::of(program);
    server.url = format!("http://{}:8080", lab.hosts[0].ip);
    assert_eq!(server.health()["world_size"], 2);
    let rank = lab.hosts[1].pids_of("jackalope-rank");
    assert_eq!(rank.len(), 1);
    // Trust is revoked: ordered programs end, and no new ones start.
    type_on(1, &["trust", "revoke", key(&lab.trust_of(0)["this"])]);
    wait_for("end of the rank", || lab.hosts[1].pids_of("jackalope-rank").is_empty().then_some(()));
    let found = discover();
    assert!(found.to_string().contains("does not trust this machine"), "{found}");
}

#[test]
fn a_token_gives_ranks_to_a_worker_and_runs_nothing_else() {
    const TOKEN: &str = "a-token-that-nobody-guesses-7f3a92";
    let lab = lab_or_return!(2);
    let _worker = lab.start_on(1, &["worker", "p2p-mlx", "--token", TOKEN], &[]);
    let marker = lab.hosts[1].home.with_file_name("marker");
    let target = format!("victim={}", lab.hosts[1].ip);
    let touch = format!("touch {}", marker.display());
    let reach = ["--token", TOKEN, "--agent-port", "5555"];
    let words = [&["launch", "--hosts", &target], &reach[..], &["--", "sh", "-c", &touch]].concat();
    let refused = wait_for("the worker", || {
        let ended = lab.start_on(0, &words, &[NO_SSH]).end();
        ended.stderr.contains("a token starts ranks alone").then_some(ended)
    });
    assert!(!refused.status.success() && !marker.exists(), "{refused:?}");
}
