//! A model's files change under a running server; no client gets tokens of another model.

use std::fs;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::checkpoint::Copy;
use crate::http::{End, Server};
use crate::program::{send, wait_for};

/// A tensor that every rank reads as a whole.
const TENSOR: &str = "model.norm.weight";

fn request() -> Value {
    json!({
        "prompt": [20, 300, 41, 77], "max_tokens": 1500, "ignore_eos": true, "temperature": 0,
        "return_token_ids": true,
    })
}

/// Returns a model whose weights can be rewritten with an unchanged header.
fn model() -> Copy {
    let copy = Copy::new();
    copy.edit_weights(|_| ());
    copy
}

#[test]
fn other_weights_under_a_running_server_end_the_stream_and_the_same_ones_are_taken_back() {
    let model = model();
    let server = Server::start(model.path(), "--ranks 2");
    let expected = server.complete(&request());
    let original = fs::read(model.weights_path()).unwrap();
    let mut stream = server.stream(&request());
    stream.read_tokens(5);
    model.edit_weights(|weights| weights.tensor(TENSOR).data[3] ^= 1);
    send(server.rank(1), Signal::KILL);
    let (answer, end) = stream.read_all();
    let End::Error(error) = end else { panic!("the stream went on: {answer:?}") };
    let message = error["message"].as_str().unwrap();
    for part in ["rank 1", "model.safetensors", TENSOR, "hint:"] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    assert_eq!(answer.tokens, expected.tokens[..answer.tokens.len()], "all of the first model");
    let health = server.health();
    assert_eq!(health["status"], "failed", "{health}");
    assert!(health.to_string().contains(TENSOR), "{health}");
    let (status, refused) = server.post("/v1/completions", &request());
    assert_eq!(status, 503, "{refused}");
    // Another file with the same bytes.
    fs::remove_file(model.weights_path()).unwrap();
    fs::write(model.weights_path(), original).unwrap();
    wait_for("recovery with the first weights", || {
        (server.health()["status"] == "healthy").then_some(())
    });
    assert_eq!(server.complete(&request()), expected);
}

#[test]
fn weights_that_were_only_touched_are_loaded_again_and_the_stream_goes_on() {
    let model = model();
    let server = Server::start(model.path(), "--ranks 2");
    let expected = server.complete(&request());
    let mut stream = server.stream(&request());
    stream.read_tokens(5);
    let then = SystemTime::now() - Duration::from_secs(3600);
    let file = fs::File::options().write(true).open(model.weights_path()).unwrap();
    file.set_modified(then).unwrap();
    send(server.rank(1), Signal::KILL);
    assert_eq!(stream.read_all(), (expected, End::Done));
}
