//! Keys from a file, HTTPS, origins and the request log of a server.

use std::path::PathBuf;

use serde_json::{Value, json};
use ureq::Agent;
use ureq::tls::TlsConfig;

use crate::checkpoint::{exact, shipped};
use crate::http::Server;
use crate::program::{Program, run, wait_for};

/// A folder that is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("jackalope-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Returns the path of a certificate from the tests of the server crate.
fn certificate(name: &str) -> String {
    format!("{}/../server/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Creates an HTTP client that does not verify certificates; tests of the server crate do.
fn agent() -> Agent {
    let tls = TlsConfig::builder().disable_verification(true).build();
    Agent::config_builder().http_status_as_error(false).tls_config(tls).build().into()
}

fn get(url: &str, header: (&str, &str)) -> (u16, String) {
    let mut response = agent().get(url).header(header.0, header.1).call().unwrap();
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
}

#[test]
fn keys_https_origins_and_the_request_log_are_flags() {
    let folder = Folder::new("edge");
    let keys = json!({"keys": [
        {"name": "alice", "key": "sekret-alice"},
        {"name": "ops", "key": "sekret-ops", "admin": true},
    ]});
    let keys = folder.write("keys.json", &keys.to_string());
    let (cert, key) = (certificate("localhost.pem"), certificate("localhost.key"));
    let log = folder.path("requests.jsonl");
    let server = Server::start(
        exact(),
        &format!(
            "--api-keys {keys} --admin-key sekret-root --tls-cert {cert} --tls-key {key} \
             --cors https://chat.example --request-log {log} --max-body 1 --max-open-streams 7"
        ),
    );
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let ask = |path: &str, key: &str| get(&format!("{}{path}", server.url), ("x-api-key", key));
    assert_eq!(ask("/v1/models", "nobody").0, 401);
    assert_eq!(ask("/v1/models", "sekret-alice").0, 200);
    assert_eq!(ask("/requests", "sekret-alice").0, 403);
    for admin in ["sekret-ops", "sekret-root"] {
        assert_eq!(ask("/requests", admin).0, 200);
    }
    let url = format!("{}/v1/completions", server.url);
    let send = |body: String| {
        let request = agent().post(&url).header("content-type", "application/json");
        let request = request.header("xi-api-key", "sekret-alice");
        let mut response = request.header("origin", "https://chat.example").send(body).unwrap();
        let allowed = response.headers().get("access-control-allow-origin").cloned();
        assert_eq!(allowed.unwrap(), "https://chat.example");
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    };
    let (status, answer) = send(json!({"prompt": [20, 21], "max_tokens": 2}).to_string());
    assert_eq!(status, 200, "{answer}");
    assert_eq!(send(" ".repeat(2 << 20)).0, 413);
    let line = wait_for("line in the log", || {
        let text = std::fs::read_to_string(&log).ok()?;
        text.lines().next().and_then(|line| serde_json::from_str::<Value>(line).ok())
    });
    assert_eq!((&line["key"], &line["status"]), (&json!("alice"), &json!("ok")));
    let metrics = ask("/metrics", "sekret-alice").1;
    assert!(metrics.contains("vllm:request_success_total"), "{metrics}");
    assert!(!metrics.contains("sekret") && !line.to_string().contains("sekret"));
}

#[test]
fn what_cannot_guard_a_server_is_refused_before_it_starts() {
    let folder = Folder::new("edge-refused");
    let broken = folder.write("keys.json", r#"{"keys": [{"name": "a"}]}"#);
    let cert = certificate("localhost.pem");
    let model = exact().to_str().unwrap();
    for (args, cause) in [
        (vec!["--api-keys", "/nowhere/keys.json"], "/nowhere/keys.json"),
        (vec!["--api-keys", &broken], "either key or sha256"),
        (vec!["--tls-cert", &cert], "--tls-key"),
        (vec!["--tls-cert", &cert, "--tls-key", &cert], "hint:"),
        (vec!["--cors", "chat.example"], "https://chat.example"),
        (vec!["--otlp", "collector:4317"], "hint:"),
        (vec!["--request-log", "/nowhere/log"], "/nowhere/log"),
        (vec!["--admin-key", "a,,b"], "--admin-key"),
        (vec!["--host", "0.0.0.0"], "--insecure"),
        (vec!["--max-body", "0"], "--max-body"),
    ] {
        let ended = run(&[&["serve", "--model", model, "--port", "0"], &args[..]].concat());
        assert!(!ended.status.success(), "{args:?}: {ended:?}");
        assert!(ended.stderr.contains(cause), "no {cause:?} in {ended:?}");
        assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    }
}

#[test]
fn a_server_for_this_machine_answers_to_no_foreign_name() {
    let server = Server::start(exact(), "--allow-host studio.example");
    let ask = |host: &str| get(&format!("{}/v1/models", server.url), ("host", host)).0;
    assert_eq!((ask("localhost"), ask("studio.example"), ask("evil.example")), (200, 200, 421));
}

#[test]
fn the_parser_of_a_model_can_be_selected_by_name() {
    let told = |args: &str| {
        let server = Server::start(&shipped(), args);
        let (status, shown) = server.post("/api/show", &json!({"model": "default"}));
        assert_eq!(status, 200, "{shown}");
        shown["capabilities"].clone()
    };
    assert_eq!(told(""), json!(["completion", "tools"]));
    assert_eq!(told("--tool-parser none"), json!(["completion"]));
    let both = "--tool-parser llama3_json --reasoning-parser deepseek_r1";
    assert_eq!(told(both), json!(["completion", "tools", "thinking"]));

    let folder = Folder::new("parsers");
    let file = |parser: &str| {
        let model = json!({"id": "a", "path": shipped(), "tool_parser": parser});
        folder.write("models.json", &json!({"models": [model]}).to_string())
    };
    let refused = |args: &[&str]| {
        let ended = run(&[&["serve", "--port", "0"], args].concat());
        assert!(!ended.status.success(), "{ended:?}");
        assert!(ended.stderr.contains("hint: known are none, auto, "), "{ended:?}");
    };
    let model = shipped().to_str().unwrap().to_owned();
    refused(&["--model", &model, "--tool-parser", "parrot"]);
    refused(&["--model", &model, "--reasoning-parser", "parrot"]);
    refused(&["--models-config", &file("parrot")]);
    let path = file("none");
    let words =
        ["serve", "--port", "0", "--json", "--models-config", &path, "--tool-parser", "hermes"];
    let server = Server::of(Program::start(&words, ""));
    let (_, shown) = server.post("/api/show", &json!({"model": "a"}));
    assert_eq!(shown["capabilities"], json!(["completion"]), "the file is nearer to the model");
}
