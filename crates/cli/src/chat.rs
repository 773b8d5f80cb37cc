//! `jackalope chat`: a conversation in the terminal, always over HTTP. With `--model` the program
//! starts its own server on a port that the system selects.

use std::io::{BufRead, BufReader, IsTerminal, Stdin};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use jackalope_deploy::Cluster;
use jackalope_deploy::models::locate_loadable;
use jackalope_deploy::served::{HttpServer, served};
use jackalope_server::{ServerConfig, ServerState};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::args::ChatArgs;
use crate::client::Server;
use crate::environment::Environment;
use crate::events::{next_data, read_line};
use crate::report::{self, interruptible};
use crate::{operate, output, progress};

/// Default server.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// Name of a server's default model in requests.
const DEFAULT_MODEL: &str = "default";

const COMMANDS: &str = "/clear starts a new conversation, /exit ends";

/// Timeout after which a silent server counts as gone; it sends comments while it computes.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) async fn run(args: ChatArgs, environment: &Environment) -> anyhow::Result<()> {
    let (true, Some(model)) = (args.url.is_none(), args.model.clone()) else {
        let url = args.url.as_deref().unwrap_or(DEFAULT_URL);
        let Server { url, api_key } = operate::named(url, &args.key, environment)?;
        let name = args.model.as_ref().map(|it| it.to_string_lossy().into_owned());
        let model = name.unwrap_or_else(|| DEFAULT_MODEL.to_owned());
        let served = Served { url, model, api_key };
        return converse_until_interrupted(args, served).await;
    };
    let model = locate_loadable(&model, &environment.local)?;
    let mut cluster =
        Cluster::start(&model, &args.ranks.config(environment)?, &environment.local).await?;
    let work = async {
        progress::ready(&mut cluster).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let served = served(&model.name, &cluster);
        let state = ServerState::new(served, ServerConfig::default());
        let server = HttpServer::start(listener, state)?;
        let url = format!("http://{}", server.addr);
        let served = Served { url, model: DEFAULT_MODEL.to_owned(), api_key: None };
        let result = converse_until_interrupted(args, served).await;
        server.stop().await;
        result
    };
    let result = interruptible(work).await;
    let stopped = cluster.stop().await;
    result.and(stopped.map_err(Into::into))
}

/// Runs the conversation on its own thread, because reading a terminal cannot be interrupted.
async fn converse_until_interrupted(args: ChatArgs, served: Served) -> anyhow::Result<()> {
    let conversation = tokio::task::spawn_blocking(move || Conversation::new(args, served).run());
    tokio::select! {
        result = conversation => result?,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// Server and model of the conversation.
struct Served {
    url: String,
    model: String,
    api_key: Option<String>,
}

/// Input lines: from a terminal with editing and a history, otherwise plain.
enum Lines {
    Edited(Box<DefaultEditor>),
    Plain(BufReader<Stdin>),
}

impl Lines {
    fn new(is_terminal: bool) -> anyhow::Result<Lines> {
        if !is_terminal {
            return Ok(Lines::Plain(BufReader::new(std::io::stdin())));
        }
        let config = rustyline::Config::builder().auto_add_history(true).build();
        Ok(Lines::Edited(Box::new(DefaultEditor::with_config(config)?)))
    }

    /// Returns the next line; `None` at the end of the input and after Ctrl-C.
    fn next(&mut self) -> anyhow::Result<Option<String>> {
        let editor = match self {
            Lines::Plain(lines) => return Ok(read_line(lines)?),
            Lines::Edited(editor) => editor,
        };
        match editor.readline("> ") {
            Ok(line) => Ok(Some(line)),
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
            Err(err) => Err(err).context("reading the terminal"),
        }
    }
}

/// Returns the first word if it looks like an unknown command: a slash and lower-case letters,
/// which is not a path.
fn unknown_command(line: &str) -> Option<&str> {
    let word = line.split_whitespace().next()?;
    let name = word.strip_prefix('/')?;
    (!name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase())).then_some(word)
}

struct Conversation {
    args: ChatArgs,
    served: Served,
    agent: ureq::Agent,
    messages: Vec<Value>,
}

impl Conversation {
    fn new(args: ChatArgs, served: Served) -> Conversation {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(5)))
            .timeout_recv_response(Some(READ_TIMEOUT))
            .build()
            .new_agent();
        let mut conversation = Conversation { args, served, agent, messages: Vec::new() };
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
            output::line(format_args!("talking to {} ({COMMANDS})", self.served.url))?;
        }
        let mut lines = Lines::new(is_terminal)?;
        loop {
            let Some(line) = lines.next()? else { return Ok(()) };
            match line.trim() {
                "" => {}
                "/exit" | "/quit" => return Ok(()),
                "/clear" => self.clear(),
                "/help" => output::line(COMMANDS)?,
                said if unknown_command(said).is_some() => {
                    let word = unknown_command(said).unwrap_or_default();
                    let reason = format!("there is no command {word}\nhint: {COMMANDS}");
                    ensure!(is_terminal, reason);
                    output::note(&reason);
                }
                said => {
                    self.messages.push(json!({"role": "user", "content": said}));
                    match self.answer() {
                        Ok(answer) => {
                            self.messages.push(json!({"role": "assistant", "content": answer}));
                        }
                        Err(err) if is_terminal => {
                            self.messages.pop();
                            output::note(&report::with_label(&report::text(&err), false));
                        }
                        Err(err) => return Err(err),
                    }
                }
            }
        }
    }

    /// Sends the conversation and prints the answer as it arrives.
    fn answer(&self) -> anyhow::Result<String> {
        let url = format!("{}/v1/chat/completions", self.served.url.trim_end_matches('/'));
        let mut body = json!({
            "model": self.served.model,
            "messages": self.messages,
            "stream": true,
            "max_tokens": self.args.max_tokens,
        });
        if let Some(temperature) = self.args.temperature {
            body["temperature"] = json!(temperature);
        }
        let mut request = self.agent.post(&url).header("content-type", "application/json");
        if let Some(key) = &self.served.api_key {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_command_is_no_message_and_a_path_is_one() {
        assert_eq!(unknown_command("/clera now"), Some("/clera"));
        for said in ["/etc/hosts: what is this?", "/", "a /b", "/ hello", "/Users", "// x"] {
            assert_eq!(unknown_command(said), None, "{said}");
        }
    }
}
