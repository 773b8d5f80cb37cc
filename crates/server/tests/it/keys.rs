//! Keys with names, limits and rights.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Method, Request};
use jackalope_engine::testing::FakeOrder;
use jackalope_server::ApiKeys;
use serde_json::{Value, json};
use tracing::subscriber::NoSubscriber;
use tracing_subscriber::fmt::MakeWriter;

use crate::support::{Reply, Server, Setup, chat_body, post};

/// A file of keys that is gone with the value.
struct KeyFile {
    path: PathBuf,
}

impl KeyFile {
    fn new(keys: &Value) -> KeyFile {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("jackalope-keys-{}-{count}.json", std::process::id());
        let file = KeyFile { path: std::env::temp_dir().join(name) };
        file.write(&json!({"keys": keys}).to_string());
        file
    }

    fn write(&self, text: &str) {
        // In place of the old one at once, as programs that manage secrets do it.
        let fresh = self.path.with_extension("new");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(&fresh, &self.path).unwrap();
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok();
    }
}

fn keyed(path: &Path) -> Setup {
    let keys = ApiKeys::default().with_file(path).unwrap();
    Setup::says("Hello").limited(|config| config.api_keys = keys)
}

/// One request with a key.
async fn ask(server: &Server, method: Method, path: &str, key: &str) -> Reply {
    let request = Request::builder().method(method).uri(path).header("x-api-key", key);
    server.send(request.body(Body::empty()).unwrap()).await
}

fn chat_request(key: &str, more: Value) -> Request<Body> {
    let mut request = post("/v1/chat/completions", chat_body(more).to_string());
    request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    request
}

#[tokio::test]
async fn only_administrators_touch_what_is_others() {
    let file = KeyFile::new(&json!([
        {"name": "alice", "key": "sekret-alice"},
        {"name": "ops", "key": "sekret-ops", "admin": true},
    ]));
    let mut setup = keyed(&file.path);
    setup.server.model_control = true;
    let server = setup.start().await;
    let cases = [
        (Method::GET, "/errors", 200),
        (Method::GET, "/requests", 200),
        (Method::GET, "/requests/recent", 200),
        (Method::GET, "/requests/stats", 200),
        (Method::GET, "/v1/logs", 200),
        (Method::DELETE, "/v1/cache", 200),
        (Method::DELETE, "/v1/requests/nobody", 404),
        (Method::POST, "/v1/requests/nobody/cancel", 404),
        (Method::POST, "/model/load", 200),
    ];
    for (method, path, status) in cases {
        let reply = ask(&server, method.clone(), path, "sekret-alice").await;
        assert_eq!(reply.status, 403, "{method} {path}: {}", reply.body);
        assert_eq!(reply.error()["code"], "admin_key_needed");
        assert_eq!(ask(&server, method.clone(), path, "nobody").await.status, 401, "{path}");
        let reply = ask(&server, method, path, "sekret-ops").await;
        assert_eq!(reply.status, status, "{path}: {}", reply.body);
    }
    for path in ["/v1/models", "/health", "/metrics", "/metrics/snapshot", "/v1/status", "/memory"]
    {
        assert_eq!(ask(&server, Method::GET, path, "sekret-alice").await.status, 200, "{path}");
        assert_eq!(ask(&server, Method::GET, path, "").await.status, 401, "{path}");
    }
}

#[tokio::test]
async fn a_file_of_keys_is_read_again_when_it_changes() {
    let alice = json!({"name": "alice", "key": "sekret-alice"});
    let file = KeyFile::new(&json!([alice]));
    let server = keyed(&file.path).start().await;
    let status = async |key: &str| ask(&server, Method::GET, "/v1/models", key).await.status;
    let until = async |key: &str, wanted: u16| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while status(key).await != wanted {
            assert!(Instant::now() < deadline, "{key} never gets {wanted}");
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(
        (status("sekret-alice").await.as_u16(), status("sekret-bob").await.as_u16()),
        (200, 401)
    );
    file.write(r#"{"keys": [{"name": "bob", "key": "sekret-bob"}]}"#);
    until("sekret-bob", 200).await;
    assert_eq!(status("sekret-alice").await, 401);
    // What is broken changes nothing.
    file.write("{");
    file.write(r#"{"keys": [{"name": "bob", "key": "sekret-bob"}, {"name": "bob"}]}"#);
    assert_eq!(status("sekret-bob").await, 200);
    file.write(r#"{"keys": []}"#);
    until("sekret-bob", 401).await;
}

#[test]
fn a_file_that_is_no_list_of_keys_is_refused() {
    let file = KeyFile::new(&json!([{"name": "a b", "key": "sekret"}]));
    let err = ApiKeys::default().with_file(&file.path).unwrap_err().to_string();
    assert!(err.contains("keys[0]") && err.contains("hint:") && !err.contains("sekret"), "{err}");
    let err = ApiKeys::default().with_file(Path::new("/nowhere/keys.json")).unwrap_err();
    assert!(err.to_string().contains("/nowhere/keys.json"), "{err}");
}

#[tokio::test]
async fn a_key_has_so_many_requests_a_minute_and_others_have_theirs() {
    let file = KeyFile::new(&json!([
        {"name": "alice", "key": "sekret-alice", "requests_per_minute": 2, "tokens_per_minute": 1000},
        {"name": "bob", "key": "sekret-bob"},
    ]));
    let server = keyed(&file.path).start().await;
    for left in ["1", "0"] {
        let reply = server.send(chat_request("sekret-alice", json!({}))).await;
        reply.ok();
        assert_eq!(reply.headers["x-ratelimit-limit-requests"], "2");
        assert_eq!(reply.headers["x-ratelimit-remaining-requests"], left);
        assert_eq!(reply.headers["x-ratelimit-limit-tokens"], "1000");
        assert!(reply.headers.contains_key("x-ratelimit-reset-requests"));
    }
    let reply = server.send(chat_request("sekret-alice", json!({}))).await;
    assert_eq!(reply.status, 429);
    assert_eq!(reply.error()["code"], "rate_limit_exceeded");
    assert_eq!(reply.headers["x-ratelimit-remaining-requests"], "0");
    assert!(reply.headers.contains_key("x-ratelimit-reset-requests"));
    let wait: u64 = reply.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((25..=30).contains(&wait), "{wait}");
    // Listing models does not count against the limit, and each key has its own limit.
    assert_eq!(ask(&server, Method::GET, "/v1/models", "sekret-alice").await.status, 200);
    let reply = server.send(chat_request("sekret-bob", json!({}))).await;
    reply.ok();
    assert!(!reply.headers.contains_key("x-ratelimit-limit-requests"));
}

#[tokio::test]
async fn a_key_that_used_up_its_tokens_waits() {
    let file = KeyFile::new(&json!([{"name": "a", "key": "sekret", "tokens_per_minute": 3}]));
    let server = keyed(&file.path).start().await;
    server.send(chat_request("sekret", json!({}))).await.ok();
    let reply = server.send(chat_request("sekret", json!({}))).await;
    assert_eq!(reply.status, 429);
    assert!(reply.error()["message"].as_str().unwrap().contains("3 tokens per minute"));
}

#[tokio::test]
async fn embeddings_use_up_tokens_as_well() {
    let file = KeyFile::new(&json!([{"name": "a", "key": "sekret", "tokens_per_minute": 1}]));
    let server = keyed(&file.path).start().await;
    let embed = || {
        let mut request = post("/v1/embeddings", json!({"input": "Hello world again"}).to_string());
        request.headers_mut().insert("authorization", "Bearer sekret".parse().unwrap());
        request
    };
    server.send(embed()).await.ok();
    assert_eq!(server.send(embed()).await.status, 429);
}

#[tokio::test]
async fn a_key_has_so_many_requests_at_once() {
    let file = KeyFile::new(&json!([{"name": "a", "key": "sekret", "concurrent_requests": 1}]));
    let server = keyed(&file.path).start().await;
    server.control.order(FakeOrder::Hold);
    let live = server.open(chat_request("sekret", json!({"stream": true}))).await;
    assert_eq!(live.status, 200);
    let reply = server.send(chat_request("sekret", json!({}))).await;
    assert_eq!(reply.status, 429, "{}", reply.body);
    assert!(reply.headers.contains_key("retry-after"));
    drop(live);
    server.control.order(FakeOrder::Resume);
    server.send(chat_request("sekret", json!({}))).await.ok();
}

#[tokio::test]
async fn a_request_goes_under_its_keys_name_and_never_before_its_priority() {
    let file = KeyFile::new(&json!([
        {"name": "a", "key": "sekret-a", "priority": 5},
        {"name": "b", "key": "sekret-b"},
    ]));
    let server = keyed(&file.path).start().await;
    server.control.order(FakeOrder::Hold);
    let mut open = Vec::new();
    for (key, wished) in
        [("sekret-a", None), ("sekret-a", Some(-9)), ("sekret-a", Some(9)), ("sekret-b", Some(-1))]
    {
        let more = json!({"stream": true, "priority": wished});
        open.push(server.open(chat_request(key, more)).await);
    }
    let found = server.engine.open_requests().await;
    let priorities: Vec<i32> = found.iter().map(|it| it.priority).collect();
    assert_eq!(priorities, [5, 5, 9, 0]);
    assert!(found.iter().all(|it| it.tenant.is_some()));
    assert_eq!(found[0].tenant, found[2].tenant);
    assert_ne!(found[0].tenant, found[3].tenant);
    server.control.order(FakeOrder::Resume);
}

/// Everything that is logged while it lives.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Logged {
    type Writer = Logged;

    fn make_writer(&'a self) -> Logged {
        self.clone()
    }
}

#[tokio::test]
async fn a_key_is_never_shown_but_its_name_is() {
    let logged = Logged::default();
    // While a process has one subscriber only, tracing asks the thread that reaches a log line first
    // whether anyone listens to it: another test's thread would silence the line for this one.
    let _second = tracing::Dispatch::new(NoSubscriber::new());
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(logged.clone())
        .with_ansi(false)
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let file = KeyFile::new(&json!([
        {"name": "alice", "key": "sekret-alice", "requests_per_minute": 1},
        {"name": "ops", "key": "sekret-ops", "admin": true},
    ]));
    let server = keyed(&file.path).start().await;
    let mut told = String::new();
    for key in ["sekret-alice", "sekret-alice", "sekret-wrong", "sekret-ops"] {
        let reply = server.send(chat_request(key, json!({}))).await;
        write!(told, "{:?} {}", reply.headers, reply.body).unwrap();
    }
    for path in
        ["/metrics", "/requests/recent", "/errors", "/health", "/v1/status", "/metrics/snapshot"]
    {
        let reply = ask(&server, Method::GET, path, "sekret-ops").await;
        assert_eq!(reply.status, 200, "{path}");
        write!(told, "{:?} {}", reply.headers, reply.body).unwrap();
    }
    write!(
        told,
        "{:?} {:?}",
        server.state,
        ask(&server, Method::GET, "/errors", "sekret-alice").await
    )
    .unwrap();
    let logged = String::from_utf8(logged.0.lock().unwrap().clone()).unwrap();
    assert!(!told.contains("sekret"), "{told}");
    assert!(!logged.contains("sekret"), "{logged}");
    assert!(logged.contains("key=\"alice\""), "{logged}");
    assert!(logged.contains("engine_ids=[0]"), "{logged}");
    assert!(told.contains("jackalope_key_requests_total{key=\"alice\"} 1.0"), "{told}");
    assert!(told.contains("jackalope_key_limited_total{key=\"alice\"} 1.0"), "{told}");
}

#[tokio::test]
async fn browsers_read_the_description_without_a_key_and_run_nothing_else_there() {
    let file = KeyFile::new(&json!([{"name": "ann", "key": "sk-ann"}]));
    let server = keyed(&file.path).start().await;
    assert_eq!(server.get("/openapi.json").await.ok()["info"]["title"], "Jackalope");
    for path in ["/docs/", "/docs/index.html", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css"]
    {
        let reply = server.get(path).await;
        assert_eq!(reply.status, 200, "{path}");
        let policy = reply.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; "), "{policy}");
        if path == "/docs/" {
            assert!(reply.body.contains("name=\"viewport\""), "{}", reply.body);
            assert!(!reply.body.contains("<script>"), "the policy runs no script in the page");
        }
    }
    assert_eq!(server.get("/v1/models").await.status, 401);
}

#[tokio::test]
async fn keys_do_not_see_each_others_requests_names_or_prompts() {
    let file = KeyFile::new(&json!([
        {"name": "alice", "key": "sk-alice"},
        {"name": "bob", "key": "sk-bob"},
        {"name": "web", "key": "sk-web", "cache_group": "team"},
        {"name": "cli", "key": "sk-cli", "cache_group": "team"},
        {"name": "ops", "key": "sk-ops", "admin": true},
    ]));
    let keys = ApiKeys::default().with_file(&file.path).unwrap();
    let server = Setup::babbles().limited(|config| config.api_keys = keys).start().await;
    let prompt = "A long question about the sea. ".repeat(5);
    let cached = async |key: &str, more: Value| {
        let message = json!([{"role": "user", "content": prompt}]);
        let more = crate::support::merge(json!({"messages": message, "max_tokens": 2}), more);
        let answer = server.send(chat_request(key, more)).await.ok();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached("sk-alice", json!({})).await, 0);
    assert!(0 < cached("sk-alice", json!({})).await);
    assert_eq!(cached("sk-bob", json!({})).await, 0, "bob learns what alice has asked");
    assert_eq!(cached("sk-alice", json!({"cache_salt": "x"})).await, 0);
    assert!(0 < cached("sk-alice", json!({"cache_salt": "x"})).await);
    assert_eq!(cached("sk-web", json!({})).await, 0);
    assert!(0 < cached("sk-cli", json!({})).await, "a group shares");

    let mut stream = server.open(chat_request("sk-alice", json!({"stream": true}))).await;
    stream.next_frame().await;
    for (key, is_seen) in [("sk-bob", false), ("sk-alice", true), ("sk-ops", true)] {
        let open = ask(&server, Method::GET, "/v1/status", key).await.ok()["requests"].clone();
        assert_eq!(open.as_array().unwrap().len(), usize::from(is_seen), "{key}: {open}");
        let metrics = ask(&server, Method::GET, "/metrics", key).await.body;
        assert_eq!(metrics.contains("key=\"alice\""), is_seen, "{key}: {metrics}");
    }
}

/// A request of an administrator with a body.
async fn command(server: &Server, path: &str, body: Value) -> Reply {
    let mut request = post(path, body.to_string());
    request.headers_mut().insert("x-api-key", "sekret-ops".parse().unwrap());
    server.send(request).await
}

#[tokio::test]
async fn administrators_create_limit_and_revoke_keys() {
    let file = KeyFile::new(&json!([{"name": "ops", "key": "sekret-ops", "admin": true}]));
    let server = keyed(&file.path).start().await;
    let new = json!({"name": "carol", "requests_per_minute": 2, "cache_group": "team"});
    let created = command(&server, "/v1/keys", new).await.ok();
    let key = created["key"].as_str().unwrap().to_owned();
    // Only its hash is stored.
    let stored = std::fs::read_to_string(&file.path).unwrap();
    assert!(stored.contains("carol") && !stored.contains(&key), "{stored}");
    server.send(chat_request(&key, json!({}))).await.ok();
    let listed = ask(&server, Method::GET, "/v1/keys", "sekret-ops").await.ok();
    assert_eq!((&listed["required"], &listed["editable"]), (&json!(true), &json!(true)));
    let carol = &listed["keys"][1];
    assert_eq!((&carol["name"], &carol["requests_per_minute"]), (&json!("carol"), &json!(2)));
    assert_eq!((&carol["requests"], &carol["admin"]), (&json!(1), &json!(false)));
    assert!(!listed.to_string().contains("sekret") && !listed.to_string().contains(&key));

    // A limit that is absent is removed.
    let changed = command(&server, "/v1/keys/carol", json!({"tokens_per_minute": 9})).await.ok();
    assert_eq!(changed["keys"][1]["requests_per_minute"], Value::Null);
    assert_eq!(changed["keys"][1]["tokens_per_minute"], 9);

    for (path, body, status, words) in [
        ("/v1/keys", json!({"name": "carol"}), 400, "the name of another one"),
        ("/v1/keys", json!({"name": "a b"}), 400, "letters, digits"),
        ("/v1/keys", json!({"name": "dan", "concurrent_requests": 0}), 400, "limit of 0"),
        ("/v1/keys", json!({}), 400, "name"),
        ("/v1/keys/nobody", json!({}), 404, "no key named nobody"),
    ] {
        let reply = command(&server, path, body).await;
        assert_eq!(reply.status.as_u16(), status, "{path}: {}", reply.body);
        assert!(reply.body.contains(words), "{path}: {}", reply.body);
    }
    // Users see and change nothing.
    for method in [Method::GET, Method::DELETE] {
        let path = if method == Method::GET { "/v1/keys" } else { "/v1/keys/ops" };
        assert_eq!(ask(&server, method, path, &key).await.status, 403);
    }
    ask(&server, Method::DELETE, "/v1/keys/carol", "sekret-ops").await.ok();
    assert_eq!(server.send(chat_request(&key, json!({}))).await.status, 401);
    assert_eq!(ask(&server, Method::DELETE, "/v1/keys/carol", "sekret-ops").await.status, 404);
}

#[tokio::test]
async fn without_a_file_no_keys_are_created() {
    let server = Setup::says("Hello").start().await;
    let listed = server.get("/v1/keys").await.ok();
    assert_eq!(listed, json!({"required": false, "editable": false, "keys": []}));
    let reply = server.post("/v1/keys", &json!({"name": "carol"})).await;
    assert_eq!((reply.status.as_u16(), reply.error()["code"].clone()), (403, json!("no_key_file")));
}

#[tokio::test]
async fn administrators_read_the_last_lines_of_the_log() {
    let file = KeyFile::new(&json!([{"name": "ops", "key": "sk-ops", "admin": true}]));
    let server = keyed(&file.path).start().await;
    jackalope_protocol::log::line("\u{1b}[33mWARN\u{1b}[0m rank 1 <b>stumbles</b>");
    let reply = ask(&server, Method::GET, "/v1/logs", "sk-ops").await;
    let lines = reply.ok()["lines"].as_array().unwrap().clone();
    let found = lines.iter().find(|it| it["text"] == "WARN rank 1 <b>stumbles</b>");
    let number = found.expect("the line is there, without colours")["number"].as_u64().unwrap();
    let later = ask(&server, Method::GET, &format!("/v1/logs?after={number}"), "sk-ops").await;
    let later = later.ok()["lines"].as_array().unwrap().clone();
    assert!(later.iter().all(|it| number < it["number"].as_u64().unwrap()), "{later:?}");
    let wrong = ask(&server, Method::GET, "/v1/logs?after=x", "sk-ops").await;
    assert_eq!(wrong.status, 400, "{}", wrong.body);
}
