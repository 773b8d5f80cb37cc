//! Discovery of machines on the network, without names.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::checkpoint::shipped;
use crate::http::Server;
use crate::lab::{Lab, missing};
use crate::launching::lab_or_return;
use crate::program::{Program, wait_for};

/// Environment in which SSH always fails.
const NO_SSH: [(&str, &str); 1] = [("JACKALOPE_SSH", "/nonexistent/ssh")];

/// Runs a command on the first host, without SSH, and returns its JSON.
fn json_of(lab: &Lab, args: &[&str]) -> Value {
    let ended = lab.start_on(0, args, &NO_SSH).end();
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap_or_else(|err| panic!("{err}: {ended:?}"))
}

/// Returns the addresses of the machines that `discover` lists, those of this machine first.
fn found(lab: &Lab) -> Vec<Vec<String>> {
    let found = json_of(lab, &["discover", "--json", "--timeout", "1"]);
    let machines = found["machines"].as_array().unwrap().iter();
    assert!(machines.clone().all(|it| it["usable"] == true), "{found}");
    let ips = |it: &Value| -> Vec<String> {
        let addresses = it["addresses"].as_array().unwrap().iter();
        addresses.map(|it| it["ip"].as_str().unwrap().to_owned()).collect()
    };
    machines.map(ips).collect()
}

fn ips(lab: &Lab, hosts: &[usize]) -> Vec<Vec<String>> {
    hosts.iter().map(|&at| vec![lab.hosts[at].ip.clone()]).collect()
}

/// Starts agents with `--announce` on these hosts.
fn agents(lab: &Lab, hosts: &[usize]) -> Vec<Program> {
    let agents = hosts.iter().map(|&at| lab.start_on(at, &["agent", "--announce"], &[])).collect();
    let there = ips(lab, &[&[0], hosts].concat());
    wait_for("agents that answer", || (found(lab) == there).then_some(()));
    agents
}

#[test]
fn hosts_that_answer_are_found_and_become_a_hostfile() {
    let mut lab = lab_or_return!(4);
    lab.share_secret("5a".repeat(32).as_str());
    lab.set_secret(3, "a5".repeat(32).as_str());
    lab.trust_first();
    let _stranger = lab.start_on(3, &["agent", "--announce"], &[]);
    // An agent without `--announce` does not answer.
    let silent = lab.start_on(2, &["agent"], &[]);
    let _second = agents(&lab, &[1]);
    drop(silent);
    // With `=N`, discovery waits longer for the missing machines.
    let expecting = lab.start_on(0, &["hosts", "new", "--discover=3"], &NO_SSH);
    for _ in 0..3 {
        assert_eq!(found(&lab), ips(&lab, &[0, 1]));
    }
    let _third = lab.start_on(2, &["agent", "--announce"], &[]);
    wait_for("the third host", || (found(&lab) == ips(&lab, &[0, 1, 2])).then_some(()));

    let all = json_of(&lab, &["discover", "--json"]);
    let stranger = all["strangers"].as_array().unwrap();
    assert!(stranger.iter().any(|it| it["ip"] == json!(lab.hosts[3].ip)), "{all}");
    assert!(stranger.iter().all(|it| it["secret"] == "other"), "{all}");
    let second = &all["machines"][1];
    assert_eq!(second["addresses"][0]["interface"], "eth0");
    assert_eq!(second["addresses"][0]["kind"], "Ethernet");
    assert_eq!(second["version"], env!("CARGO_PKG_VERSION"));
    assert!(0 < second["memory_bytes"].as_u64().unwrap(), "{second}");
    let told = lab.run(&["discover"]);
    assert!(told.stdout.contains("jackalope serve --model MODEL --discover"), "{told:?}");
    assert!(told.stdout.contains("does not have our secret"), "{told:?}");

    let written = expecting.end();
    assert!(written.status.success(), "{written:?}");
    let written: Value = serde_json::from_str(&written.stdout).unwrap();
    let entry = |at: usize, ssh: &str| json!({"ssh": ssh, "ips": [lab.hosts[at].ip]});
    // All hosts of the lab report the same name, so that addresses are used instead.
    let [second, third] = [1, 2].map(|at| entry(at, &lab.hosts[at].ip));
    assert_eq!(written, json!([entry(0, "127.0.0.1"), second, third]));
    let model = shipped();
    let words = ["plan", "--discover", "--machines", "3", "--json", "--model"];
    let plan = json_of(&lab, &[&words[..], &[model.to_str().unwrap()]].concat());
    assert!(plan.to_string().contains(&lab.hosts[2].ip), "{plan}");

    // A machine that is gone is not listed, and the search does not wait for it.
    lab.switch_off(2);
    let began = Instant::now();
    assert_eq!(found(&lab), ips(&lab, &[0, 1]));
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    lab.cable_out(1);
    let alone = lab.run(&["hosts", "new", "--discover"]);
    assert!(!alone.status.success(), "{alone:?}");
    assert!(alone.stderr.contains("hint: on each machine run `jackalope agent"), "{alone:?}");
}

#[test]
fn a_flood_of_answers_adds_and_hides_no_machine() {
    let lab = lab_or_return!(4);
    lab.share_secret("5a".repeat(32).as_str());
    lab.trust_first();
    let _agents = agents(&lab, &[1, 2]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts/flood.py");
    let mut flood = lab.run_on(3, &["python3", script, &lab.hosts[3].ip, &lab.hosts[1].ip]);
    assert_eq!(flood.line(), "ready\n");
    let all = ips(&lab, &[0, 1, 2]);
    for _ in 0..3 {
        // On a busy machine the agents may answer after a search has ended.
        wait_for("both agents", || {
            let found = found(&lab);
            let is_ours = |it: &Vec<String>| it.is_empty() || all.contains(it);
            assert!(found.iter().all(is_ours), "{found:?}");
            (found == all).then_some(())
        });
    }
    let stranger = wait_for("the stranger", || {
        let all = json_of(&lab, &["discover", "--json"]);
        let strangers = all["strangers"].as_array().unwrap();
        assert!(strangers.len() <= 1, "{all}");
        strangers.first().cloned()
    });
    assert_eq!(stranger["ip"], json!(lab.hosts[3].ip));
    assert_eq!(flood.line(), "relayed\n", "an answer of ours came from elsewhere too");
}

/// LocalAI's workers by token: the machines share only the token.
#[test]
fn workers_of_a_token_are_found_and_serve() {
    const TOKEN: &str = "a-token-that-nobody-guesses-7f3a91";
    let lab = lab_or_return!(3);
    let worker = ["worker", "p2p-mlx", "--token", TOKEN];
    let _workers = [1, 2].map(|at| lab.start_on(at, &worker, &[]));
    let by_token = ["--token", TOKEN, "--agent-port", "5555", "--json"];
    let told = || json_of(&lab, &[&["discover"], &by_token[..]].concat());
    wait_for("two workers", || {
        let told = told();
        (told["machines"].as_array().unwrap().len() == 3).then_some(())
    });
    let other = json_of(&lab, &["discover", "--json", "--agent-port", "5555"]);
    assert_eq!(other["machines"].as_array().unwrap().len(), 1, "{other}");
    assert_eq!(other["strangers"].as_array().unwrap().len(), 2, "{other}");
    let model = shipped();
    let words = ["serve", "--discover=3", "--model", model.to_str().unwrap(), "--port", "8080"];
    let rest = ["--host", "0.0.0.0", "--insecure"];
    let words = [&words[..], &rest, &by_token].concat();
    let mut server = Server::of(lab.start_on(0, &words, &NO_SSH));
    server.url = format!("http://{}:8080", lab.hosts[0].ip);
    let answer = server
        .ask("/v1/completions", &json!({"prompt": "hello", "max_tokens": 5, "ignore_eos": true}));
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    assert_eq!(server.health()["world_size"], 3);
}

#[test]
fn a_cable_with_nothing_but_link_local_addresses_is_enough() {
    let lab = lab_or_return!(2);
    lab.share_secret("5a".repeat(32).as_str());
    lab.trust_first();
    let _agent = agents(&lab, &[1]);
    // The cable is connected while the agent runs.
    let cable = lab.join_first_two();
    let both: Vec<Vec<String>> =
        [0, 1].map(|at| vec![lab.hosts[at].ip.clone(), cable[at].to_owned()]).to_vec();
    wait_for("the second cable", || (found(&lab) == both).then_some(()));
    lab.forget_first_cable(1);
    wait_for("the second cable alone", || {
        (found(&lab) == cable.map(|ip| vec![ip.to_owned()])).then_some(())
    });
    let model = shipped();
    let words = ["serve", "--discover", "--model", model.to_str().unwrap(), "--port", "8080"];
    let rest = ["--host", "0.0.0.0", "--insecure", "--json"];
    let mut server = Server::of(lab.start_on(0, &[&words[..], &rest].concat(), &NO_SSH));
    server.url = format!("http://{}:8080", lab.hosts[0].ip);
    let answer = server
        .ask("/v1/completions", &json!({"prompt": "hello", "max_tokens": 5, "ignore_eos": true}));
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    assert_eq!(server.health()["world_size"], 2);
}

#[test]
fn a_model_is_served_on_hosts_that_were_found_without_ssh() {
    let lab = lab_or_return!(3);
    let prompt = json!({
        "prompt": "Paris is the", "max_tokens": 12, "temperature": 0, "return_token_ids": true,
    });
    let named = lab.serve(&shipped(), "");
    let wanted = named.complete(&prompt);
    named.program.signal(Signal::INT);
    assert!(named.program.end().status.success());
    for host in &lab.hosts[1..] {
        host.pids_of("jackalope agent")
            .iter()
            .for_each(|&it| crate::program::send(it, Signal::KILL));
        wait_for("its end", || host.pids_of("jackalope agent").is_empty().then_some(()));
    }
    let _agents = agents(&lab, &[1, 2]);

    let model = shipped();
    let words = ["serve", "--discover=3", "--model", model.to_str().unwrap(), "--json"];
    let rest = ["--host", "0.0.0.0", "--insecure", "--port", "8080"];
    let program = lab.start_on(0, &[&words[..], &rest].concat(), &NO_SSH);
    let mut server = Server::of(program);
    server.url = format!("http://{}:8080", lab.hosts[0].ip);
    assert_eq!(server.complete(&prompt), wanted);
    let health = server.health();
    let ranks = health["ranks"].as_array().unwrap();
    let hosts: Vec<&str> = ranks.iter().map(|it| it["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["127.0.0.1", &lab.hosts[1].ip, &lab.hosts[2].ip]);
    // `status` of the server lists the machines as well.
    let status = json_of(&lab, &["status", "--json"]);
    assert_eq!(status["agents"].as_array().unwrap().len(), 3, "{status}");
    server.program.signal(Signal::INT);
    assert!(server.program.end().status.success());
}
