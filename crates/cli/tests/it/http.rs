//! Servers with real ranks, and clients that speak to them.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use ureq::Agent;

use crate::program::{PATIENCE, Program, RankProcess, ranks_of, wait_for};

/// A `jackalope serve` with its ranks ready.
pub(crate) struct Server {
    pub(crate) program: Program,
    pub(crate) url: String,
    /// The JSON that it printed when it was ready.
    pub(crate) announced: Value,
    agent: Agent,
}

impl Server {
    /// Serves `model` on a free port; `args` are separated by spaces.
    pub(crate) fn start(model: &Path, args: &str) -> Server {
        let mut words: Vec<OsString> = vec!["serve".into(), "--model".into(), model.into()];
        words.extend(["--port", "0", "--json"].map(OsString::from));
        words.extend(args.split_whitespace().map(OsString::from));
        Server::of(Program::start(&words, ""))
    }

    /// Waits until a `serve --json` that was just started is ready.
    pub(crate) fn of(mut program: Program) -> Server {
        let announced: Value = serde_json::from_str(&program.line()).unwrap();
        assert_eq!(announced["event"], "ready", "{announced}");
        let url = announced["url"].as_str().unwrap().to_owned();
        Server { program, url, announced, agent: agent() }
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        let mut response = self.agent.get(format!("{}{path}", self.url)).call().unwrap();
        (response.status().as_u16(), json_of(&response.body_mut().read_to_string().unwrap()))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = self.agent.post(format!("{}{path}", self.url));
        let request = request.header("content-type", "application/json");
        let mut response = request.send(body.to_string()).unwrap();
        (response.status().as_u16(), json_of(&response.body_mut().read_to_string().unwrap()))
    }

    /// Sends a POST request, which must succeed.
    pub(crate) fn ask(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body);
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Returns the tokens and the text of one completion.
    pub(crate) fn complete(&self, body: &Value) -> Answer {
        Answer::of(&self.ask("/v1/completions", body))
    }

    /// Opens a stream of a completion.
    pub(crate) fn stream(&self, body: &Value) -> Stream {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let (url, agent) = (format!("{}/v1/completions", self.url), self.agent.clone());
        let (sender, events) = channel();
        std::thread::spawn(move || {
            let request = agent.post(url).header("content-type", "application/json");
            let response = request.send(body.to_string()).unwrap();
            let mut lines = BufReader::new(response.into_body().into_reader()).lines();
            while let Some(Ok(line)) = lines.next() {
                // The test has stopped reading: the stream ends with the connection.
                if !line.is_empty() && sender.send(line).is_err() {
                    return;
                }
            }
        });
        Stream { events, answer: Answer::default(), end: None }
    }

    pub(crate) fn health(&self) -> Value {
        self.get("/health").1
    }

    /// Waits until `/health` satisfies a condition.
    pub(crate) fn wait_for_health(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, || Some(self.health()).filter(&is_so))
    }

    /// Returns the processes of all its ranks.
    pub(crate) fn ranks(&self) -> Vec<RankProcess> {
        ranks_of(self.program.pid())
    }

    /// Returns the plain-text answer of a path.
    pub(crate) fn text(&self, path: &str) -> String {
        let mut response = self.agent.get(format!("{}{path}", self.url)).call().unwrap();
        response.body_mut().read_to_string().unwrap()
    }

    /// Returns the process of one rank, if it runs.
    pub(crate) fn rank_if_any(&self, rank: usize) -> Option<u32> {
        self.ranks().into_iter().find(|process| process.rank == rank).map(|process| process.pid)
    }

    /// Returns the process of one rank, which must run.
    pub(crate) fn rank(&self, rank: usize) -> u32 {
        let found = self.ranks().into_iter().find(|process| process.rank == rank);
        found.expect("the rank runs").pid
    }
}

fn agent() -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_global(Some(PATIENCE))
        .build()
        .new_agent()
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|err| panic!("{err}: {text}"))
}

/// The answer of a model.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u64>,
    pub(crate) text: String,
}

impl Answer {
    fn of(body: &Value) -> Answer {
        let mut answer = Answer::default();
        answer.extend(&body["choices"][0]);
        answer
    }

    fn extend(&mut self, choice: &Value) {
        self.text += choice["text"].as_str().unwrap_or_default();
        self.tokens
            .extend(choice["token_ids"].as_array().into_iter().flatten().flat_map(Value::as_u64));
    }
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    /// With `[DONE]`.
    Done,
    /// With an error object.
    Error(Value),
}

/// An open stream of a completion.
pub(crate) struct Stream {
    events: Receiver<String>,
    pub(crate) answer: Answer,
    pub(crate) end: Option<End>,
}

impl Stream {
    /// Waits until this number of tokens has arrived.
    pub(crate) fn read_tokens(&mut self, num_tokens: usize) {
        while self.answer.tokens.len() < num_tokens {
            self.read_one();
            assert_eq!(self.end, None, "the stream ended after {:?}", self.answer);
        }
    }

    /// Reads the stream to its end.
    pub(crate) fn read_all(mut self) -> (Answer, End) {
        while self.go_on() {}
        (self.answer, self.end.expect("it has ended"))
    }

    /// Reads the next event. Returns false at the end.
    pub(crate) fn go_on(&mut self) -> bool {
        if self.end.is_none() {
            self.read_one();
        }
        self.end.is_none()
    }

    fn read_one(&mut self) {
        let line = self.events.recv_timeout(PATIENCE).expect("a stream says how it ends");
        // A body that is no stream is an error object.
        let data = line.strip_prefix("data:").map_or(line.as_str(), str::trim);
        if line.starts_with(':') {
            return;
        }
        if data == "[DONE]" {
            self.end = Some(End::Done);
            return;
        }
        let event = json_of(data);
        match event.get("error") {
            Some(error) => self.end = Some(End::Error(error.clone())),
            None => self.answer.extend(&event["choices"][0]),
        }
    }
}
