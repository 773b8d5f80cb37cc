//! `cargo xtask demo`: builds everything and runs a model over two ranks.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use crate::process::{command, target_dir, workspace_dir};

const MODEL: &str = "models/jackalope-mini";

const QUESTIONS: [&str; 3] =
    ["Who are you?", "What is the capital of France?", "Tell me a short story about a fox."];

/// Time after which a server that is not ready is reported.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time from an interrupt to the end of all processes.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// The programs to use: those that users build, or those that tests have built.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Profile {
    Release,
    Dev,
}

pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    ensure!(args.is_empty(), "`demo` takes no options");
    show(Profile::Release)
}

pub(crate) fn show(profile: Profile) -> anyhow::Result<()> {
    println!("1/4  libmlx");
    crate::mlx::run(&[])?;
    println!("2/4  building jackalope (the first time takes a few minutes)");
    build(profile)?;
    println!("3/4  starting two ranks with {MODEL}");
    let mut server = Server::start(profile)?;
    let ready = server.wait_ready()?;
    let url = ready["url"].as_str().context("the server did not say where it is")?.to_owned();
    println!("4/4  asking over {url}/v1/chat/completions\n");
    let agent =
        ureq::Agent::config_builder().timeout_global(Some(ANSWER_TIMEOUT)).build().new_agent();
    for question in QUESTIONS {
        ask(&agent, &url, question)?;
    }
    print_split(&agent, &url)?;
    server.stop()?;
    let folder = profile.folder();
    println!(
        "\nEverything has ended. To serve a model of your own:\n  \
         target/{folder}/jackalope serve --model DIR --ranks 2\n  \
         target/{folder}/jackalope chat"
    );
    Ok(())
}

impl Profile {
    /// Returns the folder of its programs in `target`.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Dev => "debug",
        }
    }

    /// Builds both programs.
    pub(crate) fn build(self) -> Command {
        let mut build = command("cargo");
        build.args(["build", "-p", "jackalope-cli", "-p", "jackalope-runner"]);
        if self == Profile::Release {
            build.arg("--release");
        }
        build
    }
}

fn build(profile: Profile) -> anyhow::Result<()> {
    let status = profile.build().current_dir(workspace_dir()).status().context("starting cargo")?;
    ensure!(status.success(), "the build failed; cargo's messages above say why");
    Ok(())
}

/// The server of the demonstration, which is killed if the demo ends early.
struct Server {
    child: Child,
}

impl Server {
    fn start(profile: Profile) -> anyhow::Result<Server> {
        let program = target_dir().join(profile.folder()).join("jackalope");
        let child = command(&program.to_string_lossy())
            .args(["serve", "--model", MODEL, "--ranks", "2", "--port", "0", "--json"])
            .current_dir(workspace_dir())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        Ok(Server { child })
    }

    /// Returns the line with the server's address.
    fn wait_ready(&mut self) -> anyhow::Result<Value> {
        let stdout = self.child.stdout.take().context("the server's output is read once")?;
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let mut line = String::new();
            // A send fails only if the receiver has stopped waiting.
            if BufReader::new(stdout).read_line(&mut line).is_ok() {
                sender.send(line).ok();
            }
        });
        let line = receiver
            .recv_timeout(START_TIMEOUT)
            .with_context(|| format!("the server was not ready within {START_TIMEOUT:?}"))?;
        serde_json::from_str(&line).context("the server ended early; its message is above")
    }

    /// Interrupts the server as Ctrl-C would.
    fn stop(mut self) -> anyhow::Result<()> {
        let pid = self.child.id().to_string();
        let started = Instant::now();
        let sent =
            command("kill").args(["-INT", &pid]).status().context("sending the interrupt")?;
        ensure!(sent.success(), "the server could not be interrupted");
        while started.elapsed() < STOP_TIMEOUT {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the server ended with {status}");
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("the server did not end within {STOP_TIMEOUT:?} of an interrupt")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails only if the server is gone already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Streams one answer to the terminal, with its speed.
fn ask(agent: &ureq::Agent, url: &str, question: &str) -> anyhow::Result<()> {
    println!("> {question}");
    let body = json!({
        "model": "default",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 120,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    let response = agent
        .post(&format!("{url}/v1/chat/completions"))
        .header("content-type", "application/json")
        .send(body.to_string())
        .context("asking the server")?;
    let started = Instant::now();
    let (mut first, mut tokens) = (None, 0);
    for line in BufReader::new(response.into_body().into_reader()).lines() {
        let line = line?;
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            break;
        }
        let chunk: Value = serde_json::from_str(data).context("reading the stream")?;
        if let Some(message) = chunk["error"]["message"].as_str() {
            bail!("{message}");
        }
        if let Some(piece) = chunk["choices"][0]["delta"]["content"].as_str() {
            first.get_or_insert_with(Instant::now);
            print!("{piece}");
            std::io::stdout().flush()?;
        }
        tokens = chunk["usage"]["completion_tokens"].as_u64().unwrap_or(tokens);
    }
    ensure!(0 < tokens, "no token came");
    let seconds = first.unwrap_or(started).elapsed().as_secs_f64();
    println!("\n  ({tokens} tokens, {:.0} tokens/s)\n", tokens as f64 / seconds.max(1e-6));
    Ok(())
}

/// Prints which rank holds which part, and how its time was spent.
fn print_split(agent: &ureq::Agent, url: &str) -> anyhow::Result<()> {
    let text = agent.get(&format!("{url}/health")).call()?.body_mut().read_to_string()?;
    let health: Value = serde_json::from_str(&text).context("reading /health")?;
    println!("How the model was split:");
    for rank in health["ranks"].as_array().context("/health names no ranks")? {
        let facts = &rank["facts"];
        let range = |key: &str| format!("{}..{}", facts[key]["start"], facts[key]["end"]);
        let micros = |key: &str| rank[key].as_f64().unwrap_or(0.0);
        println!(
            "  rank {}: {} bytes of weights; heads {}, kv heads {}, mlp {}, vocabulary {}; \
             {} steps, {:.0} % of their time in collectives",
            rank["rank"],
            facts["weights_bytes"],
            range("heads"),
            range("kv_heads"),
            range("mlp"),
            range("vocab"),
            rank["steps"],
            100.0 * micros("collectives_us") / micros("total_us").max(1.0),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_that_is_shown_is_there() {
        assert!(workspace_dir().join(MODEL).join("config.json").is_file());
    }
}
