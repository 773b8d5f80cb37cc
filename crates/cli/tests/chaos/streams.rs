//! Clients that repeat the same streamed requests and compare every token with the answer that the
//! server gave before any fault.

use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::Agent;

use crate::plan::Seen;

/// A stream that takes longer counts as lost.
const STREAM_TIMEOUT: Duration = Duration::from_secs(600);

/// How long an answer before any fault may take; large models on slow machines need the time.
const REFERENCE_TIMEOUT: Duration = Duration::from_secs(300);

/// Pause before a refused client retries.
const RETRY: Duration = Duration::from_millis(50);

/// Maximum number of characters of a reason.
const WHY_CHARS: usize = 240;

/// Returns requests that differ: greedy ones, and sampled ones with a seed.
pub(crate) fn request(idx: usize, max_tokens: u64) -> Value {
    let at = idx as u64;
    let prompt: Vec<u64> = (0..4 + at * 9).map(|it| (it * 53 + at * 307) % 1900 + 20).collect();
    let mut body = json!({
        "model": "default", "prompt": prompt, "max_tokens": max_tokens + at * 20,
        "ignore_eos": true, "temperature": 0, "return_token_ids": true,
    });
    if idx % 2 == 1 {
        body["temperature"] = json!(0.9);
        body["top_p"] = json!(0.95);
        body["seed"] = json!(1000 + at);
    }
    body
}

struct Shared {
    url: String,
    requests: Vec<(Value, Vec<u64>)>,
    agent: Agent,
    began: Instant,
    is_over: AtomicBool,
    /// By stream: whether it was lost and has had no token since, so that an outage counts it once.
    is_lost: Vec<AtomicBool>,
    seen: Mutex<Seen>,
    num_whole: Mutex<u64>,
}

/// Streams that are open all the time, until this is dropped.
pub(crate) struct Streams(Arc<Shared>);

impl Drop for Streams {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}

/// Creates the HTTP agent of a client.
pub(crate) fn agent(timeout: Duration) -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_global(Some(timeout))
        .build()
        .new_agent()
}

fn token_ids(body: &Value) -> Vec<u64> {
    let ids = body["choices"][0]["token_ids"].as_array();
    ids.into_iter().flatten().filter_map(Value::as_u64).collect()
}

impl Streams {
    /// Requests every answer once, one after the other, as a reference; then opens the streams.
    pub(crate) fn open(url: &str, num_streams: usize, max_tokens: u64) -> Streams {
        let reference = agent(REFERENCE_TIMEOUT);
        let requests = (0..num_streams).map(|idx| {
            let body = request(idx, max_tokens);
            let post = reference.post(format!("{url}/v1/completions"));
            let mut response =
                post.header("content-type", "application/json").send(body.to_string()).unwrap();
            let text = response.body_mut().read_to_string().unwrap();
            assert_eq!(response.status(), 200, "no answer before any fault: {text}");
            let tokens = token_ids(&serde_json::from_str(&text).unwrap());
            assert_eq!(Some(tokens.len() as u64), body["max_tokens"].as_u64(), "{text}");
            (body, tokens)
        });
        let shared = Arc::new(Shared {
            url: url.to_owned(),
            requests: requests.collect(),
            agent: agent(STREAM_TIMEOUT),
            began: Instant::now(),
            is_over: AtomicBool::new(false),
            is_lost: (0..num_streams).map(|_| AtomicBool::new(false)).collect(),
            seen: Mutex::new(Seen { tokens: vec![Vec::new(); num_streams], ..Seen::default() }),
            num_whole: Mutex::new(0),
        });
        for idx in 0..num_streams {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                while !shared.is_over.load(Ordering::SeqCst) {
                    shared.read(idx);
                }
            });
        }
        Streams(shared)
    }

    /// Seconds since the streams were opened.
    pub(crate) fn now_s(&self) -> f64 {
        self.0.now_s()
    }

    /// Returns the streams that have had fewer than `num_tokens` tokens since `at_s`.
    pub(crate) fn slow_after(&self, at_s: f64, num_tokens: usize) -> Vec<usize> {
        let seen = self.0.seen();
        let num_after = |it: &[f64]| it.iter().rev().take_while(|time| at_s < **time).count();
        let slow = seen.tokens.iter().enumerate().filter(|it| num_after(it.1) < num_tokens);
        slow.map(|it| it.0).collect()
    }

    /// Takes the observations, and starts anew.
    pub(crate) fn take(&self) -> Seen {
        let mut seen = self.0.seen();
        let none = Seen { tokens: vec![Vec::new(); seen.tokens.len()], ..Seen::default() };
        std::mem::replace(&mut *seen, none)
    }

    /// Number of streams that were answered completely and correctly.
    pub(crate) fn num_whole(&self) -> u64 {
        *self.0.num_whole.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, idx: usize, num_tokens: usize, why: &str) {
        if self.is_over.load(Ordering::SeqCst) {
            return;
        }
        if !self.is_lost[idx].swap(true, Ordering::SeqCst) {
            let why: String = why.replace("\\n", "; ").chars().take(WHY_CHARS).collect();
            let words = format!("stream {idx} at {:.1} s, token {num_tokens}: {why}", self.now_s());
            self.seen().lost.push(words);
        }
        std::thread::sleep(RETRY);
    }

    /// Counts a changed stream once for each fault, however often it is opened meanwhile.
    fn change(&self, idx: usize, what: &str) {
        let name = format!("stream {idx} ");
        let mut seen = self.seen();
        if !seen.changed.iter().any(|it| it.starts_with(&name)) {
            seen.changed.push(format!("{name}at {:.1} s, {what}", self.now_s()));
        }
    }

    /// Reads one stream from its beginning to its end.
    fn read(&self, idx: usize) {
        let (body, expected) = &self.requests[idx];
        let mut body = body.clone();
        body["stream"] = json!(true);
        let post = self.agent.post(format!("{}/v1/completions", self.url));
        let response = post.header("content-type", "application/json").send(body.to_string());
        let mut response = match response {
            Ok(response) => response,
            Err(err) => return self.lose(idx, 0, &format!("not opened: {err}")),
        };
        if response.status() != 200 {
            let said = response.body_mut().read_to_string().unwrap_or_default();
            let why = format!("not opened: http {}: {said}", response.status().as_u16());
            return self.lose(idx, 0, &why);
        }
        let mut num_tokens = 0;
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            let line = match line {
                Ok(line) => line,
                Err(err) => return self.lose(idx, num_tokens, &format!("cut: {err}")),
            };
            let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
            if data == "[DONE]" {
                return self.end(idx, num_tokens, expected.len());
            }
            let event: Value = serde_json::from_str(data).unwrap_or_default();
            if let Some(error) = event.get("error") {
                return self.lose(idx, num_tokens, &error["message"].to_string());
            }
            let tokens = token_ids(&event);
            if tokens.is_empty() {
                continue;
            }
            let now = self.now_s();
            self.is_lost[idx].store(false, Ordering::SeqCst);
            self.seen().tokens[idx].push(now);
            let rest = expected.get(num_tokens..).unwrap_or_default();
            if !rest.starts_with(&tokens) {
                return self.change(idx, &format!("token {num_tokens}: {tokens:?}"));
            }
            num_tokens += tokens.len();
        }
        self.lose(idx, num_tokens, "ended without saying so");
    }

    fn end(&self, idx: usize, num_tokens: usize, num_expected: usize) {
        if num_tokens == num_expected {
            *self.num_whole.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        } else {
            self.change(idx, &format!("ended after {num_tokens} of {num_expected} tokens"));
        }
    }
}

/// Opens a stream, reads some tokens and disconnects.
pub(crate) fn open_and_leave(url: &str, idx: usize, num_tokens: usize) {
    let mut body = request(idx, 200);
    body["stream"] = json!(true);
    let post = agent(Duration::from_secs(20)).post(format!("{url}/v1/completions"));
    let response = post.header("content-type", "application/json").send(body.to_string());
    let Ok(response) = response else { return };
    let lines = BufReader::new(response.into_body().into_reader()).lines();
    let tokens = lines.map_while(Result::ok).filter(|line| line.starts_with("data:"));
    // The content of the tokens does not matter.
    tokens.take(num_tokens).for_each(drop);
}
