//! Every answer leaves one record, from which metrics, the request log and traces are written.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use jackalope_engine::testing::FakeOrder;
use jackalope_server::{Models, Reporting, RequestLog, RunningModel, ServerState, SpanExporter};
use serde_json::{Value, json};

use crate::support::{MODEL, Server, Setup, chat_body, completion_body, post};

async fn recent(server: &Server) -> Vec<Value> {
    server.get("/requests").await.ok()["requests"].as_array().unwrap().clone()
}

#[tokio::test]
async fn an_answer_leaves_one_record_however_it_ends() {
    let server = Setup::says("Hello").start().await;
    let body = completion_body(json!({"max_tokens": 5}));
    server.post("/v1/completions", &body).await.ok();
    server.chat(json!({"stream": true, "n": 2})).await.chunks();
    server.control.order(FakeOrder::Hold);
    let mut request = post("/v1/chat/completions", chat_body(json!({"stream": true})).to_string());
    request.headers_mut().insert("x-request-id", "leaver".parse().unwrap());
    let live = server.open(request).await;
    drop(live);
    let late = server.chat(json!({"timeout": 0.01})).await;
    server.control.order(FakeOrder::Resume);
    assert_eq!((late.status.as_u16(), &late.error()["code"]), (504, &json!("timeout")));
    // What never began leaves none.
    assert_eq!(server.chat(json!({"top_p": 7})).await.status, 400);

    let records = recent(&server).await;
    let told: Vec<(&str, &str)> = records
        .iter()
        .rev()
        .map(|it| (it["kind"].as_str().unwrap(), it["status"].as_str().unwrap()))
        .collect();
    assert_eq!(
        told,
        [("completions", "ok"), ("chat", "ok"), ("chat", "cancelled"), ("chat", "timeout")]
    );
    let first = &records[3];
    assert_eq!((&first["model_id"], &first["max_tokens_requested"]), (&json!(MODEL), &json!(5)));
    assert_eq!((&first["finish_reason"], &first["is_stream"]), (&json!("stop"), &json!(false)));
    assert!(first["prompt_tokens"].as_u64().unwrap() > 0 && first["wall_time_s"].is_number());
    assert!(first["answer_id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!((&records[2]["num_choices"], &records[2]["is_stream"]), (&json!(2), &json!(true)));
    assert_eq!(records[1]["request_id"], "leaver");

    let stats = server.get("/requests/stats").await.ok();
    assert_eq!(
        (&stats["ok"], &stats["timeouts"], &stats["cancelled"]),
        (&json!(2), &json!(1), &json!(1))
    );
    assert_eq!((&stats["total_requests"], &stats["error_rate"]), (&json!(4), &json!(0.25)));
    let only = server.get("/requests/recent?status=timeout").await.ok();
    assert_eq!(only["count"], 1);
    let errors = server.get("/errors").await.ok();
    assert_eq!((&errors["count"], &errors["errors"][0]["code"]), (&json!(1), &json!("timeout")));
    assert!(server.get("/v1/status").await.ok()["requests"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn embeddings_leave_a_record_too() {
    let server = Setup::says("Hello").start().await;
    let list =
        server.post("/v1/embeddings", &json!({"input": ["Hello", "Hello world"]})).await.ok();
    let texts = json!({"model": MODEL, "input": "Hello"});
    server.post("/api/embed", &texts).await.ok();
    // What never began leaves none.
    assert_eq!(server.post("/v1/embeddings", &json!({"input": []})).await.status, 400);
    let records = recent(&server).await;
    let told: Vec<&Value> = records.iter().map(|it| &it["kind"]).collect();
    assert_eq!(told, ["embeddings", "embeddings"]);
    assert_eq!(records[1]["prompt_tokens"], list["usage"]["prompt_tokens"]);
    assert_eq!((&records[1]["num_choices"], &records[1]["status"]), (&json!(0), &json!("ok")));
}

#[tokio::test]
async fn an_error_within_a_stream_is_kept_once() {
    let setup = Setup::answers(|_| vec![33; 1_000_000]).limited(|config| {
        config.limits.request_timeout = Some(Duration::from_millis(200));
        config.limits.keep_alive = Duration::from_millis(10);
    });
    let server = setup.start().await;
    server.control.order(FakeOrder::Hold);
    let reply = server.chat(json!({"stream": true})).await;
    assert_eq!(reply.status, 200);
    assert!(reply.body.contains("\"code\":\"timeout\""), "{}", reply.body);
    server.control.order(FakeOrder::Resume);
    let errors = server.get("/errors").await.ok();
    assert_eq!((&errors["count"], &errors["errors"][0]["status"]), (&json!(1), &json!(504)));
    assert_eq!(recent(&server).await[0]["status"], "timeout");
}

type Samples = Vec<(String, f64)>;
type Kinds = Vec<(String, String)>;

/// Samples by name with labels, and the kind of each family.
fn parse(text: &str) -> (Samples, Kinds) {
    let (mut samples, mut kinds) = (Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            kinds.push((name.to_owned(), kind.to_owned()));
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            samples.push((name.to_owned(), value.parse().unwrap()));
        }
    }
    (samples, kinds)
}

#[tokio::test]
async fn metrics_have_the_names_that_dashboards_ask_for() {
    let server = Setup::says("Hello").start().await;
    server.chat(json!({})).await.ok();
    server.chat(json!({"max_tokens": 1})).await.ok();
    server.get("/nowhere").await;
    server.until("both have ended", |status| status.counters.finished == 2).await;
    let reply = server.get("/metrics").await;
    assert_eq!(reply.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let (samples, kinds) = parse(&reply.body);
    let value = |name: &str| {
        let found = samples.iter().find(|it| it.0 == name);
        found.unwrap_or_else(|| panic!("{name} is missing in {}", reply.body)).1
    };
    let of_model = |name: &str| value(&format!("{name}{{model_name=\"{MODEL}\",engine=\"0\"}}"));
    assert_eq!(of_model("vllm:num_requests_running"), 0.0);
    assert_eq!(of_model("vllm:e2e_request_latency_seconds_count"), 2.0);
    assert_eq!(of_model("vllm:time_to_first_token_seconds_count"), 2.0);
    assert_eq!(of_model("vllm:request_params_n_count"), 2.0);
    assert!(of_model("vllm:prompt_tokens_total") > 0.0);
    let ended = |reason: &str| {
        value(&format!(
            "vllm:request_success_total{{model_name=\"{MODEL}\",finished_reason=\"{reason}\"}}"
        ))
    };
    assert_eq!((ended("stop"), ended("length"), ended("abort")), (1.0, 1.0, 0.0));
    assert_eq!(value("mlx_cluster_requests_total"), 2.0);
    assert_eq!(of_model("llamacpp:requests_processing"), 0.0);
    assert_eq!(of_model("jackalope_up"), 1.0);
    let http = |route: &str, method: &str, status: u16| {
        value(&format!(
            "jackalope_http_requests_total{{method=\"{method}\",path=\"{route}\",status=\"{status}\"}}"
        ))
    };
    assert_eq!(http("/v1/chat/completions", "POST", 200), 2.0);
    assert_eq!(http("unknown", "GET", 404), 1.0);
    for rank in 0..2 {
        let labels = format!("{{model_name=\"{MODEL}\",rank=\"{rank}\",host=\"\"}}");
        assert!(value(&format!("jackalope_rank_steps_total{labels}")) > 0.0);
        value(&format!("jackalope_rank_sent_bytes_total{labels}"));
        value(&format!("mlx_cluster_memory_used_bytes{labels}"));
    }
    let mut names: Vec<&String> = kinds.iter().map(|it| &it.0).collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all, "a family stands twice");
    let mut lines: Vec<&String> = samples.iter().map(|it| &it.0).collect();
    let all = lines.len();
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), all, "a sample stands twice");
}

/// A server that reports elsewhere.
async fn reporting(reporting: Reporting) -> Server {
    let mut server = Setup::says("Hello").start().await;
    let model = RunningModel::new(MODEL, server.engine.clone(), server.text.clone());
    server.state = ServerState::reporting(Models::fixed(model), Default::default(), reporting);
    server
}

#[tokio::test]
async fn the_request_log_has_a_line_per_answer_and_no_word_of_it() {
    let path =
        std::env::temp_dir().join(format!("jackalope-requests-{}.jsonl", std::process::id()));
    std::fs::remove_file(&path).ok();
    let log = RequestLog::open(&path).unwrap();
    let mut server = reporting(Reporting { request_log: Some(log), spans: None }).await;
    let question = "a question nobody else may read";
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": question}]});
    server.post("/v1/chat/completions", &body).await.ok();
    server.complete(json!({"stream": true})).await;
    // The log is whole once the server is gone.
    let model = RunningModel::new(MODEL, server.engine.clone(), server.text.clone());
    server.state = ServerState::new(model, Default::default());
    let log = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&Value> = lines.iter().map(|line| &line["kind"]).collect();
    assert_eq!(kinds, ["chat", "completions"]);
    for word in ["question", "Hello"] {
        assert!(!log.contains(word), "{log}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_gets_a_span_per_answer_within_the_clients_trace() {
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", collector.local_addr().unwrap());
    let collected = std::thread::spawn(move || {
        let (mut socket, _) = collector.accept().unwrap();
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let len = socket.read(&mut buffer).unwrap();
            seen.extend_from_slice(&buffer[..len]);
            let text = String::from_utf8_lossy(&seen).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            if let Ok(body) = serde_json::from_str::<Value>(body) {
                socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
                return (head.to_owned(), body);
            }
        }
    });
    let spans = Some(SpanExporter::new(&url).unwrap());
    let server = reporting(Reporting { request_log: None, spans }).await;
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let mut request = post("/v1/chat/completions", chat_body(json!({})).to_string());
    let header = format!("00-{trace}-{parent}-01").parse().unwrap();
    request.headers_mut().insert("traceparent", header);
    server.send(request).await.ok();
    let (head, body) = collected.join().unwrap();
    assert!(head.starts_with("POST /v1/traces "), "{head}");
    let span = &body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!((&span["traceId"], &span["parentSpanId"]), (&json!(trace), &json!(parent)));
    assert_eq!((&span["name"], &span["status"]["code"]), (&json!("chat"), &json!(1)));
    let names: Vec<&Value> =
        span["events"].as_array().unwrap().iter().map(|event| &event["name"]).collect();
    assert_eq!(names, ["queued", "started", "first_token", "end"]);
    assert!(!body.to_string().contains("Hello"), "{body}");
    let times = span["events"].as_array().unwrap().iter();
    let times: Vec<u128> =
        times.map(|event| event["timeUnixNano"].as_str().unwrap().parse().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
}
