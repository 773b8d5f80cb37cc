//! `jackalope bench --url`: a server of ours, and servers that misbehave.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::checkpoint::shipped;
use crate::http::Server;
use crate::ports::free_port;
use crate::program::{run, run_json};

const STREAM: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
const PIECE: &str = "data: {\"choices\": [{\"delta\": {\"content\": \"a\"}}]}\n\n";

/// Function that returns a server's response to a path and a body.
type Answering = fn(&str, &Value) -> Answered;

struct Answered {
    text: String,
    /// Whether the server sends nothing more and keeps the connection open.
    hangs: bool,
}

fn says(text: impl Into<String>) -> Answered {
    Answered { text: text.into(), hangs: false }
}

fn refuses(status: &str, message: &str) -> Answered {
    let body = json!({"error": {"message": message}}).to_string();
    says(format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    ))
}

/// Starts a foreign server. Its threads end with the test process.
fn peer(answering: Answering) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream, answering));
        }
    });
    url
}

fn answer(mut stream: TcpStream, answering: Answering) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut first, mut num_bytes) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            num_bytes = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; num_bytes];
    reader.read_exact(&mut body).unwrap();
    let path = first.split(' ').nth(1).unwrap_or_default();
    let answered = answering(path, &serde_json::from_slice(&body).unwrap_or_default());
    stream.write_all(answered.text.as_bytes()).ok();
    if answered.hangs {
        // Blocks until the client is gone.
        reader.read_to_end(&mut Vec::new()).ok();
    }
}

fn bench<'a>(url: &'a str, further: &[&'a str]) -> Vec<&'a str> {
    let words = ["bench", "--url", url, "--model", "m", "--warmup", "0", "--prompt-tokens", "16"];
    let words = [&words[..], &["--gen-tokens", "4", "--concurrency", "2", "--requests", "4"]];
    [&words.concat()[..], further].concat()
}

fn number(row: &Value, place: &str) -> f64 {
    row.pointer(place).and_then(Value::as_f64).unwrap_or_else(|| panic!("{place} in {row}"))
}

struct Report(PathBuf);

impl Report {
    fn write(report: &Value) -> Report {
        let name = format!("report-{}.json", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, report.to_string()).unwrap();
        Report(path)
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

#[test]
fn a_server_is_measured_in_every_shape_and_compared_with_an_earlier_report() {
    let server = Server::start(&shipped(), "--ranks 2 --api-key secret");
    let words = ["bench", "--url", &server.url, "--api-key", "secret", "--json"];
    let shapes = ["--prompt-tokens", "40,80", "--gen-tokens", "6", "--concurrency", "1,3"];
    let words = [&words[..], &shapes, &["--requests", "5"]].concat();
    let report = run_json(&words);
    assert_eq!(report["endpoint"], "/v1/completions");
    assert_eq!(report["answers_may_end_early"], false);
    let rows = report["rows"].as_array().unwrap();
    let shapes: Vec<(f64, f64)> =
        rows.iter().map(|it| (number(it, "/prompt_tokens"), number(it, "/concurrency"))).collect();
    assert_eq!(shapes, [(40.0, 1.0), (40.0, 3.0), (80.0, 1.0), (80.0, 3.0)]);
    for row in rows {
        assert_eq!(row["errors"], json!({}));
        assert_eq!((number(row, "/answered"), number(row, "/output_tokens")), (5.0, 30.0));
        let (wanted, told) = (number(row, "/prompt_tokens"), number(row, "/prompt_tokens_told"));
        assert!((told - wanted).abs() <= 0.5 * wanted, "{row}");
        for time in ["first_token_ms", "inter_token_ms", "time_per_output_token_ms", "request_ms"] {
            let at = |quantile: &str| number(row, &format!("/{time}/{quantile}"));
            assert!(0.0 < at("p50") && at("p50") <= at("p90") && at("p90") <= at("p99"), "{row}");
        }
        assert!(number(row, "/first_token_ms/p99") <= number(row, "/request_ms/p99"), "{row}");
        let speed = number(row, "/output_tokens") / number(row, "/seconds");
        assert!((number(row, "/tokens_per_s") - speed).abs() < 1e-6 * speed, "{row}");
    }
    // Two requests to learn the length of words, then 4 shapes of 5, each with one to warm up.
    let health = run_json(&["health", "--url", &server.url, "--api-key", "secret", "--json"]);
    assert_eq!(health["counters"]["requests"], 2 + 4 * 6, "{health}");

    let mut earlier = report.clone();
    let half = number(&earlier, "/rows/0/tokens_per_s") / 2.0;
    earlier["rows"][0]["tokens_per_s"] = json!(half);
    earlier["rows"].as_array_mut().unwrap().pop();
    let kept = Report::write(&earlier);
    let again = run_json(&[&words[..], &["--compare", kept.0.to_str().unwrap()]].concat());
    let ratio = number(&again, "/ratios/0/tokens_per_s");
    let wanted = number(&again, "/rows/0/tokens_per_s") / half;
    assert!((ratio - wanted).abs() < 1e-6 * wanted, "{again}");
    assert_eq!(again["ratios"][3], Value::Null, "it was not measured then");

    let refused = run(&["bench", "--url", &server.url, "--api-key", "wrong"]);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(
        refused.stderr.contains("http 401") && refused.stderr.contains("hint: pass `--api-key")
    );
}

#[test]
fn a_server_that_only_chats_and_refuses_what_it_does_not_know_is_measured() {
    let url = peer(|path, body| match path {
        "/v1/chat/completions"
            if body["ignore_eos"].is_null() && body["stream_options"].is_null() =>
        {
            says(format!("{STREAM}{PIECE}: alive\n\n{PIECE}{PIECE}data: [DONE]\n\n"))
        }
        "/v1/chat/completions" => refuses("400 Bad Request", "unknown parameter"),
        _ => refuses("404 Not Found", "no such path"),
    });
    let report = run_json(&bench(&url, &["--json"]));
    assert_eq!(report["endpoint"], "/v1/chat/completions");
    assert_eq!(report["answers_may_end_early"], true);
    let row = &report["rows"][0];
    assert_eq!((number(row, "/answered"), number(row, "/output_tokens")), (4.0, 12.0));
    assert_eq!(row["prompt_tokens_told"], Value::Null);
    let people = run(&bench(&url, &[]));
    assert!(people.status.success() && people.stdout.contains("does not know `ignore_eos`"));
}

/// The two small requests at the start are answered, whatever comes later.
fn is_first(body: &Value) -> bool {
    body["max_tokens"] == 2
}

fn well() -> Answered {
    says(format!("{STREAM}{PIECE}data: [DONE]\n\n"))
}

#[test]
fn what_goes_wrong_is_counted_by_its_name_and_nothing_is_waited_for_without_end() {
    let garbage: Answering =
        |_, body| if is_first(body) { well() } else { says(format!("{STREAM}data: {{]\n\n")) };
    let busy: Answering = |_, body| {
        if is_first(body) { well() } else { refuses("429 Too Many Requests", "the queue is full") }
    };
    let silent: Answering = |_, body| {
        if is_first(body) { well() } else { Answered { text: String::new(), hangs: true } }
    };
    let stuck: Answering = |_, body| {
        if is_first(body) {
            well()
        } else {
            Answered { text: format!("{STREAM}{PIECE}"), hangs: true }
        }
    };
    let cut: Answering =
        |_, body| if is_first(body) { well() } else { says(format!("{STREAM}{PIECE}")) };
    for (answering, name) in [
        (garbage, "not a stream"),
        (busy, "http 429"),
        (silent, "timeout"),
        (stuck, "timeout"),
        (cut, "stream ended early"),
    ] {
        let ended = run(&bench(&peer(answering), &["--timeout", "0.5", "--json"]));
        assert!(!ended.status.success(), "{name}: {ended:?}");
        assert!(ended.stderr.contains("no request was answered: 4 × "), "{name}: {ended:?}");
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(report["rows"][0]["errors"][name]["count"], 4, "{name}: {report}");
        assert_eq!(report["rows"][0]["answered"], 0);
    }
}

#[test]
fn an_address_without_a_server_is_reported_at_once() {
    for (answering, said) in [
        ((|_, _| says("hello\r\n\r\n")) as Answering, "not HTTP"),
        (|_, _| says("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n<html>"), "not a stream"),
        (|_, _| Answered { text: String::new(), hangs: true }, "timeout"),
    ] {
        let ended = run(&bench(&peer(answering), &["--timeout", "0.5"]));
        assert!(!ended.status.success(), "{ended:?}");
        assert!(ended.stderr.contains(said) && ended.stderr.contains("hint:"), "{ended:?}");
    }
    let ended = run(&bench(&format!("http://127.0.0.1:{}", free_port()), &[]));
    assert!(ended.stderr.contains("no connection"), "{ended:?}");
    let ended = run(&["bench", "--url", "http://127.0.0.1:1", "--ranks", "2"]);
    assert!(ended.stderr.contains("cannot be used with"), "{ended:?}");
}
