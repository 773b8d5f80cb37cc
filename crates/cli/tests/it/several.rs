//! One server with several models, each with separate ranks.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::checkpoint::Copy;
use crate::http::{End, Server};
use crate::program::{run, send, wait_for};

/// Memory for one model of two ranks with 16 MiB of KV cache each, but not for two.
const ROOM_FOR_ONE: &str = "--memory-budget 800MiB";

fn name(copy: &Copy) -> String {
    copy.path().file_name().unwrap().to_str().unwrap().to_owned()
}

/// Starts a server of two models over two ranks each.
fn serve(models: [&Path; 2], more: &str) -> Server {
    let other = models[1].display();
    let args = format!("--ranks 2 --kv-mib 16 --model {other} --alias other=NAME {more}");
    let id = models[1].file_name().unwrap().to_str().unwrap();
    Server::start(models[0], &args.replace("NAME", id))
}

fn request(model: &str, max_tokens: u32) -> Value {
    json!({
        "model": model, "prompt": [20, 300, 41], "max_tokens": max_tokens, "ignore_eos": true,
        "temperature": 0, "return_token_ids": true,
    })
}

/// Returns the state of each model, in order.
fn states(server: &Server) -> Vec<String> {
    let models = server.get("/v1/models").1;
    let models = models["data"].as_array().unwrap();
    models.iter().map(|it| it["state"].as_str().unwrap().to_owned()).collect()
}

/// Returns the processes of a model's ranks.
fn pids(server: &Server, model_idx: usize) -> Vec<u32> {
    let ranks = server.health()["models"][model_idx]["ranks"].clone();
    let pid = |it: &Value| it["pid"].as_u64().unwrap().try_into().unwrap();
    ranks.as_array().unwrap().iter().map(pid).collect()
}

#[test]
fn models_are_loaded_on_demand_and_swapped_by_memory() {
    let copies = [Copy::new(), Copy::new()];
    let [first, second] = [name(&copies[0]), name(&copies[1])];
    let server = serve([copies[0].path(), copies[1].path()], ROOM_FOR_ONE);
    assert_eq!(server.announced["models"], json!([first, second]));
    assert_eq!(states(&server), ["ready", "unloaded"]);
    let expected = server.complete(&request("default", 20));
    let before = server.ranks();
    assert_eq!(before.len(), 2);
    // The same checkpoint under another name says the same, over other processes.
    assert_eq!(server.complete(&request("other", 20)), expected);
    assert_eq!(states(&server), ["unloaded", "ready"]);
    let after = server.ranks();
    assert_eq!(after.len(), 2, "the first model's ranks have ended");
    assert!(after.iter().all(|it| !before.contains(it)));
    assert_eq!(server.health()["status"], "idle");
    assert_eq!(server.complete(&request(&first, 20)), expected);
    assert_eq!(states(&server), ["ready", "unloaded"]);
    // A stream keeps its model loaded; the other model waits for its end.
    let mut stream = server.stream(&request(&first, 400));
    stream.read_tokens(5);
    assert_eq!(server.complete(&request("other", 20)), expected);
    let (answer, end) = stream.read_all();
    assert_eq!((answer.tokens.len(), end), (400, End::Done));
    // Unloading by command is allowed, because this server listens on loopback only.
    let (status, told) = server.post("/model/unload", &json!({"model": "other"}));
    assert_eq!((status, &told["status"]), (200, &json!("unloaded")), "{told}");
    assert!(server.ranks().is_empty());
    server.program.signal(Signal::INT);
    assert!(server.program.end().status.success());
}

#[test]
fn a_rank_of_one_model_dies_while_the_other_streams() {
    let copies = [Copy::new(), Copy::new()];
    let server =
        serve([copies[0].path(), copies[1].path()], &format!("--pin {}", name(&copies[1])));
    server.wait_for_health("pinned model", |it| it["models"][1]["state"] == "ready");
    assert_eq!(server.ranks().len(), 4);
    let undisturbed = server.complete(&request("default", 500));
    let recovers = server.complete(&request("other", 300));
    let mut stream = server.stream(&request("default", 500));
    let mut struck = server.stream(&request("other", 300));
    stream.read_tokens(5);
    struck.read_tokens(5);
    let bystanders = pids(&server, 0);
    let victim = pids(&server, 1)[1];
    send(victim, Signal::KILL);
    assert_eq!(stream.read_all(), (undisturbed, End::Done));
    assert_eq!(struck.read_all(), (recovers, End::Done));
    assert_eq!(pids(&server, 0), bystanders);
    wait_for("another rank", || (!pids(&server, 1).contains(&victim)).then_some(()));
    assert_eq!(server.health()["counters"]["failures"], 0, "the first model lost nothing");
    assert_eq!(states(&server), ["ready", "ready"]);
}

#[test]
fn a_file_says_more_of_models() {
    let copies = [Copy::new(), Copy::new()];
    let config = copies[0].path().join("models.json");
    let paths = copies.each_ref().map(|it| it.path().to_str().unwrap().to_owned());
    let write = |models: Value| std::fs::write(&config, models.to_string()).unwrap();
    let config = config.to_str().unwrap();
    write(json!({"default": "two", "idle_unload": "1h", "models": [
        {"id": "one", "path": paths[0], "aliases": ["uno"], "context": 512},
        {"id": "two", "path": paths[1], "temperature": 0, "pin": true},
    ]}));
    let program = crate::program::Program::start(
        &["serve", "--models-config", config, "--port", "0", "--json", "--kv-mib", "16"],
        "",
    );
    let server = Server::of(program);
    assert_eq!(server.announced["model"], "two");
    assert_eq!(states(&server), ["unloaded", "ready"]);
    let ask = |model: &str| {
        server.complete(&json!({"model": model, "prompt": "Hello", "max_tokens": 12}))
    };
    assert_eq!(ask("two"), ask("default"), "the file says that nothing is drawn by chance");
    ask("uno");
    let cards = server.get("/v1/models").1["data"].clone();
    assert_eq!((&cards[0]["max_model_len"], &cards[1]["pinned"]), (&json!(512), &json!(true)));
    assert!(server.health()["models"][0]["expires_in_seconds"].as_f64().unwrap() <= 3600.0);
    drop(server);
    for (models, reason) in [
        (json!({"models": [{"path": paths[0], "colour": "red"}]}), "unknown field `colour`"),
        (json!({"models": [{"id": "x"}]}), "models[0] has no `path`"),
        (json!({"models": [{"path": paths[0], "idle_unload": "soon"}]}), "`idle_unload` is `soon`"),
        (json!({"models": []}), "there is no model to serve"),
        (
            json!({"models": [{"id": "x", "path": paths[0]}, {"id": "x", "path": paths[1]}]}),
            "two models are called x",
        ),
        (json!({"default": "y", "models": [{"id": "x", "path": paths[0]}]}), "there are x"),
    ] {
        write(models);
        let ended = run(&["serve", "--models-config", config, "--port", "0"]);
        assert!(!ended.status.success() && ended.stderr.contains(reason), "{reason}: {ended:?}");
    }
}
