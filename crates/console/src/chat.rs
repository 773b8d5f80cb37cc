//! `jackalope chat`: a conversation with a server. Lines come from a terminal, with editing and a
//! history, or from a pipe, one message per line.

mod command;
mod lines;
mod params;
mod screen;
mod transcript;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::bail;
use serde_json::{Value, json};

use crate::answer_stream::{AnswerStream, Piece};
use crate::client::Server;
use crate::output;
use command::{COMMANDS, Command};
use lines::Lines;
pub use params::ChatParams;
use screen::Screen;

/// How a conversation begins, and the terminal's properties.
#[derive(Clone, Debug, Default)]
pub struct ChatConfig {
    /// Name of the model in requests.
    pub model: String,
    /// System prompt.
    pub system: Option<String>,
    /// Parameters of generation.
    pub params: ChatParams,
    /// Whether output may have colours, if it is a terminal.
    pub has_colors: bool,
    /// File of earlier input lines; none keeps no history.
    pub history: Option<PathBuf>,
}

/// Interrupts a running answer.
#[derive(Clone, Debug, Default)]
pub struct AnswerInterrupter(Arc<AtomicBool>);

impl AnswerInterrupter {
    /// Interrupts the running answer. Returns whether the previous interrupt was not used yet: then
    /// nothing was running, or the server is silent.
    pub fn interrupt(&self) -> bool {
        self.0.swap(true, Ordering::SeqCst)
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

/// A conversation with a server.
pub struct Chat {
    server: Server,
    config: ChatConfig,
    /// Messages after the system prompt.
    messages: Vec<Value>,
    interrupter: AnswerInterrupter,
}

impl std::fmt::Debug for Chat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chat").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Chat {
    /// Creates a conversation without messages.
    pub fn new(server: Server, config: ChatConfig) -> Chat {
        Chat { server, config, messages: Vec::new(), interrupter: AnswerInterrupter::default() }
    }

    /// Returns a handle with which another thread interrupts this conversation's answers.
    pub fn interrupter(&self) -> AnswerInterrupter {
        self.interrupter.clone()
    }

    /// Runs the conversation until its input ends. In a terminal, `describe` formats errors, which end
    /// only the answer.
    ///
    /// # Errors
    /// Without a terminal, the first error.
    pub fn run(mut self, describe: fn(&anyhow::Error) -> String) -> anyhow::Result<()> {
        let is_terminal = std::io::stdin().is_terminal();
        if is_terminal {
            let (url, model) = (&self.server.url, &self.config.model);
            output::line(format_args!("talking to {model} at {url}; /help lists commands"))?;
        }
        let mut lines = Lines::new(is_terminal, self.config.history.as_deref())?;
        while let Some(input) = lines.next()? {
            // An interrupt at the prompt is not one of the next answer.
            self.interrupter.take();
            let done = match Command::parse(&input) {
                Ok(Some(Command::Exit)) => return Ok(()),
                Ok(Some(command)) => self.obey(&command),
                Ok(None) if input.trim().is_empty() => Ok(()),
                Ok(None) => self.say(input.trim()),
                Err(err) => Err(err),
            };
            match done {
                Err(err) if is_terminal => output::note(&describe(&err)),
                done => done?,
            }
        }
        Ok(())
    }

    fn obey(&mut self, command: &Command) -> anyhow::Result<()> {
        match command {
            Command::Clear => {
                self.messages.clear();
                Ok(())
            }
            Command::System(None) => {
                let system = self.config.system.as_deref();
                Ok(output::line(system.unwrap_or("there is no system prompt"))?)
            }
            Command::System(Some(text)) => {
                self.config.system = Some(text.clone()).filter(|it| it != "none");
                Ok(())
            }
            Command::Params(None) => Ok(output::line(&self.config.params)?),
            Command::Params(Some(change)) => self.config.params.change(change),
            Command::Save(path) => {
                transcript::save(path, &self.all_messages())?;
                Ok(output::line(format_args!("saved: {}", path.display()))?)
            }
            Command::Retry => {
                let Some(at) = self.messages.iter().rposition(|it| it["role"] == "user") else {
                    bail!("there is no message to answer again");
                };
                let said = self.messages[at]["content"].as_str().unwrap_or_default().to_owned();
                self.messages.truncate(at);
                self.say(&said)
            }
            Command::Help => Ok(output::line(COMMANDS)?),
            Command::Exit => Ok(()),
        }
    }

    /// Sends a message and prints the answer. If the answer fails, removes the message again and
    /// returns the error.
    fn say(&mut self, said: &str) -> anyhow::Result<()> {
        self.messages.push(json!({"role": "user", "content": said}));
        match self.answer() {
            Ok(answer) => {
                self.messages.push(json!({"role": "assistant", "content": answer}));
                Ok(())
            }
            Err(err) => {
                self.messages.pop();
                Err(err)
            }
        }
    }

    fn all_messages(&self) -> Vec<Value> {
        let system = self.config.system.iter();
        let system = system.map(|text| json!({"role": "system", "content": text}));
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// Sends the conversation and prints the answer as it arrives. Returns its text, also if it was
    /// interrupted.
    fn answer(&self) -> anyhow::Result<String> {
        let mut body = json!({
            "model": self.config.model,
            "messages": self.all_messages(),
            "stream": true,
        });
        self.config.params.write(&mut body);
        let mut stream = AnswerStream::open(&self.server, &body)?;
        let mut screen = Screen::new(self.config.has_colors);
        let mut answer = String::new();
        while let Some(piece) = stream.next()? {
            match piece {
                Piece::Reasoning(text) => screen.reasoning(&text)?,
                Piece::Text(text) => {
                    screen.text(&text)?;
                    answer.push_str(&text);
                }
                Piece::ToolCall(call) => screen.tool_call(&call)?,
                Piece::Usage(_) => {}
            }
            if self.interrupter.take() {
                screen.interrupted()?;
                return Ok(answer);
            }
        }
        screen.end()?;
        Ok(answer)
    }
}
