//! Hostfiles on the command line: checking, converting and creating them.

use serde_json::{Value, json};

use crate::checkpoint::{Copy, exact};
use crate::http::Server;
use crate::program::{Program, run, run_json};

#[test]
fn a_hostfile_with_faults_is_refused_with_the_place_of_each() {
    let copy = Copy::new();
    let path = copy.path().join("hosts.json");
    std::fs::write(&path, "[[null, \"rdma_en5\"],\n [null, \"rdma_en5\"]]").unwrap();
    let path = path.to_str().unwrap();
    let ended = run(&["hosts", "lint", path]);
    assert!(!ended.status.success());
    for place in [":2:3: [1][0]", ":2:9: [1][1]"] {
        assert!(ended.stderr.contains(&format!("{path}{place}")), "{ended:?}");
    }
    let ended = run(&["hosts", "lint", path, "--json"]);
    assert!(!ended.status.success());
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(told["legal"], false);
    assert_eq!(told["errors"][1]["column"], 9);
    assert_eq!(told["errors"][1]["entry"], "[1][1]");
}

#[test]
fn a_new_hostfile_is_legal_and_overwrites_nothing() {
    let copy = Copy::new();
    let path = copy.path().join("new.json");
    let path = path.to_str().unwrap();
    let args = ["hosts", "new", "--hosts", "127.0.0.1,me@mac2", "--ips", "10.0.0.1", "--out", path];
    assert!(run(&args).status.success());
    let told = run_json(&["hosts", "lint", path, "--json"]);
    assert_eq!(
        told,
        json!({"legal": true, "shape": "array", "num_hosts": 2, "backend": null, "errors": [],
               "warnings": []})
    );
    let again = run(&args);
    assert!(!again.status.success() && again.stderr.contains("--force"), "{again:?}");
    let forced = [&args[..], &["--force", "--backend", "ring"]].concat();
    assert!(run(&forced).status.success());
    let told = run_json(&["hosts", "lint", path, "--json"]);
    assert_eq!(told["backend"], "ring");
    assert_eq!(told["warnings"][0]["message"], "rank 1 has no address for the ring");
}

#[test]
fn a_ring_is_what_mlx_reads() {
    let copy = Copy::new();
    let path = copy.path().join("hosts.json");
    let hosts = json!([{"ssh": "a", "ips": ["10.0.0.1"]}, {"ssh": "b", "ips": ["10.0.0.2"]}]);
    std::fs::write(&path, hosts.to_string()).unwrap();
    let path = path.to_str().unwrap();
    let ring = run_json(&["hosts", "convert", path, "--to", "ring", "--port", "5555"]);
    assert_eq!(ring, json!([["10.0.0.1:5555"], ["10.0.0.2:5556"]]));
    let ended = run(&["hosts", "convert", path, "--to", "matrix"]);
    assert!(!ended.status.success() && ended.stderr.contains("hint: add \"rdma\""), "{ended:?}");
}

#[test]
fn the_old_launchers_words_serve() {
    let model = exact().to_str().unwrap();
    let words = ["distributed-launcher", "--backend", "any", "-n", "2", "--", "--model", model];
    let words = [&words[..], &["--port", "0", "--distributed", "--json"]].concat();
    let server = Server::of(Program::start(&words, ""));
    assert_eq!(server.health()["world_size"], 2);
    let refused = run(&["distributed-launcher", "--", "--model", model]);
    assert!(refused.stderr.contains("hint: give `-n N`"), "{refused:?}");
}
