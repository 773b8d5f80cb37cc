//! Sends one request to a server and records when its tokens arrive.

use std::io::{BufReader, Read};
use std::time::{Duration, Instant};

use jackalope_console::client::{CONNECT_TIMEOUT, Server};
use jackalope_console::events::next_data;
use jackalope_protocol::counted;
use serde_json::{Value, json};
use ureq::Agent;

/// Maximum size of the stream of one answer.
const STREAM_BYTES_MAX: u64 = 64 << 20;

/// Maximum size of an error response.
const REFUSAL_BYTES_MAX: u64 = 64 << 10;

/// Form of the requests to a server; the same for all requests of a measurement.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    pub(super) model: String,
    pub(super) is_chat: bool,
    /// Whether the request sets `ignore_eos`, an extension that most servers have.
    pub(super) ignores_end: bool,
    /// Whether the request asks for the usage (token counts) at the end of the stream.
    pub(super) wants_usage: bool,
}

impl Asking {
    pub(super) fn path(&self) -> &'static str {
        if self.is_chat { "/v1/chat/completions" } else { "/v1/completions" }
    }

    fn body(&self, prompt: &str, max_tokens: u32) -> Value {
        let mut body = json!({
            "model": self.model, "max_tokens": max_tokens, "temperature": 0, "stream": true,
        });
        if self.is_chat {
            body["messages"] = json!([{"role": "user", "content": prompt}])
        } else {
            body["prompt"] = json!(prompt)
        }
        if self.ignores_end {
            body["ignore_eos"] = json!(true);
        }
        if self.wants_usage {
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }
}

/// Times at which the tokens of one request arrived.
#[derive(Debug)]
pub(super) struct TimedAnswer {
    pub(super) sent: Instant,
    /// Arrival times of the pieces of text; a piece is usually one token.
    pub(super) pieces: Vec<Instant>,
    pub(super) end: Instant,
    /// Number of output tokens as the server reports it, or else the number of pieces.
    pub(super) output_tokens: u64,
    pub(super) prompt_tokens: Option<u64>,
}

/// Reason why a request was not answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Fault {
    /// Name under which the fault is counted: `http 429`, `timeout`.
    pub(super) name: String,
    pub(super) detail: String,
}

impl Fault {
    fn new(name: impl Into<String>, detail: impl Into<String>) -> Fault {
        Fault { name: name.into(), detail: detail.into() }
    }

    /// Returns the HTTP status if the server refused the request.
    pub(super) fn status(&self) -> Option<u16> {
        self.name.strip_prefix("http ")?.parse().ok()
    }

    fn of_call(err: &ureq::Error) -> Fault {
        let name = match err {
            ureq::Error::Timeout(_) => "timeout",
            ureq::Error::Io(err) => return Fault::of_io(err),
            ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => "no connection",
            _ => "not HTTP",
        };
        Fault::new(name, err.to_string())
    }

    fn of_io(err: &std::io::Error) -> Fault {
        use std::io::ErrorKind::{ConnectionRefused, InvalidData, TimedOut, WouldBlock};
        // Errors while a body is read are wrapped.
        if let Some(inner) = err.get_ref().and_then(|it| it.downcast_ref()) {
            return Fault::of_call(inner);
        }
        let name = match err.kind() {
            TimedOut | WouldBlock => "timeout",
            ConnectionRefused => "no connection",
            InvalidData => "not a stream",
            _ => "connection lost",
        };
        Fault::new(name, err.to_string())
    }
}

/// A server to measure. Every wait for it is bounded by the timeout.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    server: Server,
    agent: Agent,
}

impl Peer {
    pub(super) fn new(server: Server, timeout: Duration, connections_max: usize) -> Peer {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT.min(timeout)))
            .timeout_global(Some(timeout))
            .max_idle_connections(connections_max)
            .max_idle_connections_per_host(connections_max)
            .tls_config(server.tls())
            .build()
            .new_agent();
        Peer { server, agent }
    }

    /// Returns the first model that the server lists.
    pub(super) fn first_model(&self) -> Option<String> {
        let mut request = self.agent.get(format!("{}/v1/models", self.server.url));
        if let Some(key) = &self.server.api_key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut response = request.call().ok()?;
        let text = response.body_mut().with_config().limit(STREAM_BYTES_MAX).read_to_string();
        let body: Value = serde_json::from_str(&text.ok()?).ok()?;
        Some(body["data"][0]["id"].as_str()?.to_owned())
    }

    /// Sends one request and reads the answer to its end.
    pub(super) fn ask(
        &self,
        asking: &Asking,
        prompt: &str,
        max_tokens: u32,
    ) -> Result<TimedAnswer, Fault> {
        let body = asking.body(prompt, max_tokens).to_string();
        let mut request = self.agent.post(format!("{}{}", self.server.url, asking.path()));
        request = request.header("content-type", "application/json");
        if let Some(key) = &self.server.api_key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let sent = Instant::now();
        let mut response = request.send(body).map_err(|err| Fault::of_call(&err))?;
        let status = response.status().as_u16();
        if status != 200 {
            let text = response.body_mut().with_config().limit(REFUSAL_BYTES_MAX).read_to_string();
            let text = text.unwrap_or_default();
            let refusal: Value = serde_json::from_str(&text).unwrap_or_default();
            let message = refusal["error"]["message"].as_str().unwrap_or(&text);
            return Err(Fault::new(format!("http {status}"), message));
        }
        listen(response.into_body().into_reader(), sent)
    }
}

/// Reads a stream to its `[DONE]`.
fn listen(stream: impl Read, sent: Instant) -> Result<TimedAnswer, Fault> {
    let mut stream = BufReader::new(stream.take(STREAM_BYTES_MAX));
    let (mut pieces, mut silent, mut usage) = (Vec::new(), Vec::new(), Value::Null);
    loop {
        let data = next_data(&mut stream).map_err(|err| Fault::of_io(&err))?;
        let now = Instant::now();
        let Some(data) = data else {
            let name = if pieces.is_empty() { "not a stream" } else { "stream ended early" };
            return Err(Fault::new(
                name,
                format!("after {} of text", counted(pieces.len(), "piece")),
            ));
        };
        if data == "[DONE]" {
            let output_tokens = usage["completion_tokens"].as_u64().filter(|it| 0 < *it);
            // Some tokens have no text, such as end-of-sequence tokens when `ignore_eos` is set.
            if pieces.is_empty() && output_tokens.is_some() {
                pieces = silent;
            }
            if pieces.is_empty() {
                return Err(Fault::new("no text", "the stream ended without any text"));
            }
            return Ok(TimedAnswer {
                sent,
                end: now,
                output_tokens: output_tokens.unwrap_or(pieces.len() as u64),
                prompt_tokens: usage["prompt_tokens"].as_u64(),
                pieces,
            });
        }
        let Ok(chunk) = serde_json::from_str::<Value>(&data) else {
            return Err(Fault::new("not a stream", "an event holds no JSON"));
        };
        if !chunk["error"].is_null() {
            let message = chunk["error"]["message"].as_str().unwrap_or("without a message");
            return Err(Fault::new("error in the stream", message));
        }
        if chunk["usage"].is_object() {
            usage = chunk["usage"].clone();
        }
        if has_text(&chunk["choices"][0]) {
            pieces.push(now);
        } else if chunk["choices"][0].is_object() {
            silent.push(now);
        }
    }
}

fn has_text(choice: &Value) -> bool {
    let delta = &choice["delta"];
    let texts =
        [&choice["text"], &delta["content"], &delta["reasoning_content"], &delta["reasoning"]];
    let is_call = delta["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
    is_call || texts.iter().any(|it| it.as_str().is_some_and(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Result<TimedAnswer, Fault> {
        listen(text.as_bytes(), Instant::now())
    }

    fn fault_of(text: &str) -> String {
        answer(text).unwrap_err().name
    }

    #[test]
    fn pieces_are_counted_and_the_servers_own_numbers_win() {
        let completion = "data: {\"choices\": [{\"text\": \"a\"}]}\n\n: alive\n\n\
             data: {\"choices\": [{\"text\": \"\"}]}\n\n\
             data: {\"choices\": [{\"delta\": {\"content\": \"b\"}}]}\n\n";
        let plain = answer(&format!("{completion}data: [DONE]\n")).unwrap();
        assert_eq!((plain.pieces.len(), plain.output_tokens, plain.prompt_tokens), (2, 2, None));
        let usage = "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 9, \"completion_tokens\": 5}}\n";
        let reported = answer(&format!("{completion}{usage}data: [DONE]\n")).unwrap();
        let silent = "data: {\"choices\": [{\"text\": \"\"}]}\n\n";
        let mute = answer(&format!("{silent}{usage}data: [DONE]\n")).unwrap();
        assert_eq!((mute.pieces.len(), mute.output_tokens), (1, 5), "tokens without a text");
        assert_eq!(fault_of(&format!("{silent}data: [DONE]\n")), "no text");
        assert_eq!(
            (reported.pieces.len(), reported.output_tokens, reported.prompt_tokens),
            (2, 5, Some(9))
        );
    }

    #[test]
    fn what_is_no_answer_has_a_name() {
        assert_eq!(fault_of("<html>hello</html>\n"), "not a stream");
        assert_eq!(fault_of("data: hello\n"), "not a stream");
        assert_eq!(fault_of("data: {\"choices\": [{\"text\": \"a\"}]}\n"), "stream ended early");
        assert_eq!(fault_of("data: [DONE]\n"), "no text");
        let broken = "data: {\"error\": {\"message\": \"rank 1 is gone\"}}\n";
        assert_eq!(
            answer(broken).unwrap_err(),
            Fault::new("error in the stream", "rank 1 is gone")
        );
        assert_eq!(Fault::new("http 429", "").status(), Some(429));
        assert_eq!(Fault::new("timeout", "").status(), None);
    }
}
