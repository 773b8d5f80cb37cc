//! Copying a model to other machines through the HTTP API.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::checkpoint::shipped;
use crate::http::Server;
use crate::lab::{Lab, missing};
use crate::launching::lab_or_return;
use crate::program::wait_for;

const ADMIN: &str = "admin-key-of-the-test";
const USER: &str = "user-key-of-the-test";
const MODEL: &str = "org/big";

/// Port from which the other machines copy: questions and copies share it.
const COPY_PORT: u16 = 18082;

/// Bytes that make the model large enough to be interrupted: eight ranges.
const FILLER_BYTES: usize = 64 << 20;

/// Creates a folder with one model.
fn models(lab: &Lab) -> PathBuf {
    let folder = lab.hosts[0].home.join("served");
    let dir = folder.join(MODEL);
    fs::create_dir_all(&dir).unwrap();
    for entry in fs::read_dir(shipped()).unwrap().map(Result::unwrap) {
        if entry.path().is_file() {
            fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
        }
    }
    let filler: Vec<u8> =
        (0..FILLER_BYTES as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    fs::write(dir.join("filler.bin"), filler).unwrap();
    folder
}

fn ask(server: &Server, key: &str, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
    let mut request = ureq::http::Request::builder()
        .method(method)
        .uri(format!("{}{path}", server.url))
        .header("authorization", format!("Bearer {key}"));
    if body.is_some() {
        request = request.header("content-type", "application/json");
    }
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let text = body.map(Value::to_string).unwrap_or_default();
    let mut answer = agent.run(request.body(text).unwrap()).unwrap();
    let text = answer.body_mut().read_to_string().unwrap();
    (answer.status().as_u16(), serde_json::from_str(&text).unwrap())
}

fn start(server: &Server) -> String {
    let body = json!({"model": MODEL, "hosts": ["host-c", "host-b"]});
    let (status, started) = ask(server, ADMIN, "POST", "/v1/copies", Some(&body));
    assert_eq!(status, 200, "{started}");
    started["id"].as_str().unwrap().to_owned()
}

/// Returns the first copy of the list that is so, as the stream of events reports it.
fn follow(server: &Server, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let request = ureq::get(format!("{}/v1/copies/events", server.url));
    let answer = request.header("authorization", format!("Bearer {ADMIN}")).call().unwrap();
    let mut lines = BufReader::new(answer.into_body().into_reader()).lines();
    let mut last = Value::Null;
    wait_for(what, || {
        let line = lines.next().unwrap().unwrap();
        let list: Value = serde_json::from_str(line.strip_prefix("data: ")?).unwrap();
        last = list["copies"][0].clone();
        Some(last.clone()).filter(&is_so)
    })
}

/// Returns what the machines hold: state and bytes of each.
fn holdings(server: &Server) -> Vec<(String, String, u64)> {
    let path = format!("/v1/copies/machines?model={MODEL}");
    let (status, held) = ask(server, ADMIN, "GET", &path, None);
    assert_eq!(status, 200, "{held}");
    let text = |it: &Value| it.as_str().unwrap().to_owned();
    let machine = |it: &Value| {
        (text(&it["host"]), text(&it["state"]), it["completed_bytes"].as_u64().unwrap())
    };
    held["machines"].as_array().unwrap().iter().map(machine).collect()
}

fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let files = fs::read_dir(dir).unwrap().map(Result::unwrap).filter(|it| it.path().is_file());
    let mut all: Vec<_> = files
        .map(|it| (it.file_name().into_string().unwrap(), fs::read(it.path()).unwrap()))
        .collect();
    all.sort();
    all
}

#[test]
fn a_copy_over_http_is_cancelled_resumed_and_ends_with_equal_files() {
    let mut lab = lab_or_return!(3);
    let folder = models(&lab);
    // The first machine of the hostfile is full; it fails from every source.
    let full = lab.hosts[1].models_dir();
    fs::create_dir_all(&full).unwrap();
    lab.hide(1, &full);
    let keys = format!("--admin-key {ADMIN} --api-key {USER} --copy-port {COPY_PORT}");
    let server = lab.serve(&shipped(), &format!("{keys} --models-dir {}", folder.display()));

    let body = json!({"model": MODEL});
    for (method, path) in [
        ("POST", "/v1/copies"),
        ("GET", "/v1/copies"),
        ("GET", "/v1/copies/events"),
        ("GET", "/v1/copies/machines"),
        ("DELETE", "/v1/copies/x"),
    ] {
        let (status, refused) = ask(&server, USER, method, path, Some(&body));
        assert_eq!(
            (status, &refused["error"]["code"]),
            (403, &json!("admin_key_needed")),
            "{path}"
        );
        assert_eq!(ask(&server, "wrong", method, path, Some(&body)).0, 401, "{path}");
    }
    let unknown = json!({"model": MODEL, "hosts": ["host-z"]});
    let (status, refused) = ask(&server, ADMIN, "POST", "/v1/copies", Some(&unknown));
    let message = refused["error"]["message"].as_str().unwrap();
    assert_eq!(status, 400);
    assert!(message.contains("host-z") && message.contains("host-b, host-c"), "{message}");
    let absent = |host: &str| (host.to_owned(), "absent".to_owned(), 0);
    assert_eq!(holdings(&server), [absent("host-b"), absent("host-c")]);

    lab.throttle(0, "60mbit");
    let id = start(&server);
    // Machines are in the order of the hostfile.
    let is_under_way =
        |it: &Value| (8 << 20) <= it["machines"][1]["completed_bytes"].as_u64().unwrap_or(0);
    let running = follow(&server, "progress", is_under_way);
    assert_eq!((&running["id"], &running["state"]), (&json!(id), &json!("running")), "{running}");
    assert_eq!(start(&server), id, "it runs already");
    assert_eq!(holdings(&server).len(), 2, "a question during the copy");
    assert!(lab.listens(0, COPY_PORT));
    let (_, list) = ask(&server, ADMIN, "DELETE", &format!("/v1/copies/{id}"), None);
    assert_eq!(list["copies"][0]["state"], "cancelled", "{list}");
    assert_eq!(list["copies"][0]["machines"][1]["state"], "cancelled", "{list}");
    let copy = lab.hosts[2].models_dir().join(MODEL);
    assert!(!copy.join("config.json").exists(), "an unfinished copy is no model");
    let held = holdings(&server);
    let (_, state, part_bytes) = held[1].clone();
    assert_eq!(state, "partial");
    assert!((8 << 20..FILLER_BYTES as u64).contains(&part_bytes), "{held:?}");

    let again = start(&server);
    assert_ne!(again, id);
    let first = follow(&server, "resumed copy", |it| {
        it["state"] != "running" || it["machines"][1]["completed_bytes"] != 0
    });
    assert!(part_bytes <= first["machines"][1]["completed_bytes"].as_u64().unwrap(), "{first}");
    lab.mend(0);
    let ended = follow(&server, "end", |it| it["state"] != "running");
    assert_eq!(ended["machines"][1]["state"], "done", "{ended}");
    let error = ended["machines"][0]["error"].as_str().unwrap();
    assert!(error.contains("are to be copied") && error.contains("hint: free some"), "{error}");
    assert_eq!(
        (&ended["state"], &ended["status"]),
        (&json!("failed"), &json!("failed on 1 of 2 machines"))
    );
    assert_eq!(ended["machines"][1]["path"], copy.to_str().unwrap());
    assert!(contents(&copy) == contents(&folder.join(MODEL)), "every byte is the same");
    assert_eq!(holdings(&server)[1].1, "complete");
    let (_, list) = ask(&server, ADMIN, "DELETE", &format!("/v1/copies/{again}"), None);
    assert_eq!(list["copies"], json!([]));
    server.program.signal(rustix::process::Signal::INT);
    assert!(server.program.end().status.success());
}
