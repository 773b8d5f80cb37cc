//! `jackalope top`: shows a server's state in the terminal, repeatedly, until `q` or Ctrl-C.
//!
//! ```text
//!   /health, /metrics/snapshot ─▶ overview (what is shown) ─▶ screen (ratatui)
//!                                     └─▶ text, JSON (--once)
//! ```

mod overview;
mod screen;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};

use crate::client::Server;
use crate::output;
use overview::Overview;

/// Timeout of one query.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of speeds kept for the curve.
const SPEEDS_MAX: usize = 512;

/// Longest wait for a key before the next query is due.
const KEY_TIMEOUT: Duration = Duration::from_millis(200);

/// How often and in which form `top` shows a server's state.
#[derive(Clone, Copy, Debug)]
pub struct TopConfig {
    /// Time between two queries.
    pub interval: Duration,
    /// Print the state once instead of a screen.
    pub once: bool,
    /// Print JSON instead of text, with `once`.
    pub json: bool,
    /// Whether the screen may have colours.
    pub has_colors: bool,
}

/// The latest state of a server, and its speeds so far.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) overview: Overview,
    /// Tokens per second, the latest last.
    pub(crate) speeds: VecDeque<f64>,
    /// Why the latest query failed.
    pub(crate) failure: Option<String>,
    /// Number of sampled tokens at the latest query, and when that was.
    counted: Option<Counted>,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    num_tokens: u64,
    at: Instant,
}

impl Watch {
    /// Takes the next state. A query that fails leaves the state as it was.
    fn take(&mut self, asked: anyhow::Result<Overview>, describe: fn(&anyhow::Error) -> String) {
        match asked {
            Err(err) => self.failure = Some(describe(&err)),
            Ok(overview) => {
                let now = Counted { num_tokens: overview.num_tokens, at: Instant::now() };
                if let Some(before) = self.counted.replace(now) {
                    let seconds = now.at.duration_since(before.at).as_secs_f64();
                    let tokens = now.num_tokens.saturating_sub(before.num_tokens);
                    if self.speeds.len() == SPEEDS_MAX {
                        self.speeds.pop_front();
                    }
                    self.speeds.push_back(tokens as f64 / seconds.max(1e-3));
                }
                self.overview = overview;
                self.failure = None;
            }
        }
    }
}

fn ask(server: &Server) -> anyhow::Result<Overview> {
    let health = server.ask("/health", None, ASK_TIMEOUT)?;
    // A server that refuses requests describes itself with 503.
    anyhow::ensure!(health.body["status"].is_string(), "{}", health.refusal());
    let snapshot = server.ask("/metrics/snapshot", None, ASK_TIMEOUT)?;
    anyhow::ensure!(snapshot.is_ok(), "{}", snapshot.refusal());
    Ok(Overview::new(&server.url, &health.body, &snapshot.body))
}

/// Shows the state of the server until the user ends it; once, if the output is no terminal.
/// `describe` formats errors of later queries, which do not end the program.
///
/// # Errors
/// If the first query fails, or the terminal does.
pub fn run(
    server: &Server,
    config: TopConfig,
    describe: fn(&anyhow::Error) -> String,
) -> anyhow::Result<()> {
    let first = ask(server)?;
    if config.once || !std::io::stdout().is_terminal() {
        return match config.json {
            true => Ok(output::line(first.json())?),
            false => Ok(output::line(first.text())?),
        };
    }
    let mut watch = Watch::default();
    watch.take(Ok(first), describe);
    let mut terminal = ratatui::try_init().context("preparing the terminal")?;
    let shown = watch_until_quit(&mut terminal, server, &mut watch, config, describe);
    ratatui::try_restore().context("restoring the terminal")?;
    shown
}

fn watch_until_quit(
    terminal: &mut ratatui::DefaultTerminal,
    server: &Server,
    watch: &mut Watch,
    config: TopConfig,
    describe: fn(&anyhow::Error) -> String,
) -> anyhow::Result<()> {
    loop {
        let due = Instant::now() + config.interval;
        terminal.draw(|frame| screen::draw(frame, watch, config.has_colors))?;
        while let Some(left) = due.checked_duration_since(Instant::now()) {
            if !event::poll(left.min(KEY_TIMEOUT))? {
                continue;
            }
            match event::read()? {
                Event::Key(key) if is_quit(key) => return Ok(()),
                Event::Resize(..) => {
                    terminal.draw(|frame| screen::draw(frame, watch, config.has_colors))?;
                }
                _ => {}
            }
        }
        watch.take(ask(server), describe);
    }
}

fn is_quit(key: KeyEvent) -> bool {
    let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') => is_interrupt,
        KeyCode::Char('q') | KeyCode::Esc => true,
        _ => false,
    }
}
