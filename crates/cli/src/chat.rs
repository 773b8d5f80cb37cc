//! `jackalope chat`: a conversation in the terminal, always over HTTP; with `--model` the server is
//! our own, on a port that the system picks.

use std::io::{BufRead, BufReader, IsTerminal};
use std::time::Duration;

use anyhow::{Context, bail};
use jackalope_server::{ServerConfig, ServerState};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::args::ChatArgs;
use crate::args::keys::ClientKeyArgs;
use crate::cluster::Cluster;
use crate::environment::Environment;
use crate::events::{next_data, read_line};
use crate::serve::{HttpServer, served};
use crate::{models, operate, output};

/// A server that sends nothing for this long is gone; it sends comments while it computes.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) async fn run(args: ChatArgs, environment: &Environment) -> anyhow::Result<()> {
    let Some(model) = args.model.clone() else {
        let server = operate::named(&args.url, &args.key, environment)?;
        let key = ClientKeyArgs { api_key: server.api_key, api_key_file: None };
        return converse_until_interrupted(ChatArgs { key, ..args }).await;
    };
    let model = models::locate_loadable(&model, environment)?;
    let mut cluster = Cluster::start(&model, &args.ranks, environment).await?;
    let work = async {
        cluster.ready().await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let served = served(&model.name, &cluster);
        let state = ServerState::new(served, ServerConfig::default());
        let server = HttpServer::start(listener, state)?;
        let url = format!("http://{}", server.addr);
        let result = converse_until_interrupted(ChatArgs { url, ..args }).await;
        server.stop().await;
        result
    };
    let result = tokio::select! {
        result = work => result,
        _ = tokio::signal::ctrl_c() => Ok(()),
    };
    let stopped = cluster.stop().await;
    result.and(stopped)
}

/// Reading a terminal cannot be interrupted, so the conversation has a thread of its own.
async fn converse_until_interrupted(args: ChatArgs) -> anyhow::Result<()> {
    let conversation = tokio::task::spawn_blocking(move || Conversation::new(args).run());
    tokio::select! {
        result = conversation => result?,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

struct Conversation {
    args: ChatArgs,
    agent: ureq::Agent,
    messages: Vec<Value>,
}

impl Conversation {
    fn new(args: ChatArgs) -> Conversation {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(5)))
            .timeout_recv_response(Some(READ_TIMEOUT))
            .build()
            .new_agent();
        let mut conversation = Conversation { args, agent, messages: Vec::new() };
        conversation.clear();
        conversation
    }

    fn clear(&mut self) {
        let system = self.args.system.iter();
        self.messages = system.map(|text| json!({"role": "system", "content": text})).collect();
    }

    fn run(mut self) -> anyhow::Result<()> {
        let is_terminal = std::io::stdin().is_terminal();
        if is_terminal {
            let url = &self.args.url;
            output::line(format_args!("talking to {url} (/clear starts anew, /exit ends)"))?;
        }
        let mut lines = BufReader::new(std::io::stdin());
        loop {
            if is_terminal {
                output::piece("> ")?;
            }
            let Some(line) = read_line(&mut lines)? else { return Ok(()) };
            match line.trim() {
                "" => {}
                "/exit" | "/quit" => return Ok(()),
                "/clear" => self.clear(),
                said => {
                    self.messages.push(json!({"role": "user", "content": said}));
                    match self.answer() {
                        Ok(answer) => {
                            self.messages.push(json!({"role": "assistant", "content": answer}));
                        }
                        Err(err) if is_terminal => {
                            self.messages.pop();
                            eprintln!("error: {err:#}");
                        }
                        Err(err) => return Err(err),
                    }
                }
            }
        }
    }

    /// Sends the conversation and prints the answer as it comes.
    fn answer(&self) -> anyhow::Result<String> {
        let url = format!("{}/v1/chat/completions", self.args.url.trim_end_matches('/'));
        let mut body = json!({
            "model": "default",
            "messages": self.messages,
            "stream": true,
            "max_tokens": self.args.max_tokens,
        });
        if let Some(temperature) = self.args.temperature {
            body["temperature"] = json!(temperature);
        }
        let mut request = self.agent.post(&url).header("content-type", "application/json");
        if let Some(key) = &self.args.key.api_key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut response = request.send(body.to_string()).with_context(|| {
            format!("asking {url}\nhint: start a server with `jackalope serve --model DIR`, or pass `--url`")
        })?;
        if !response.status().is_success() {
            let status = response.status();
            let text = response.body_mut().read_to_string().unwrap_or_default();
            let error: Value = serde_json::from_str(&text).unwrap_or_default();
            bail!("{status}: {}", error["error"]["message"].as_str().unwrap_or(&text));
        }
        print_stream(BufReader::new(response.into_body().into_reader()))
    }
}

fn print_stream(mut stream: impl BufRead) -> anyhow::Result<String> {
    let mut answer = String::new();
    while let Some(data) = next_data(&mut stream)? {
        if data == "[DONE]" {
            output::line("")?;
            return Ok(answer);
        }
        let chunk: Value = serde_json::from_str(&data).context("reading the stream")?;
        if let Some(message) = chunk["error"]["message"].as_str() {
            bail!("{message}");
        }
        let delta = &chunk["choices"][0]["delta"];
        if let Some(piece) = delta["content"].as_str() {
            output::piece(piece)?;
            answer.push_str(piece);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            output::line(&call["function"])?;
        }
    }
    bail!("the stream ended early")
}
