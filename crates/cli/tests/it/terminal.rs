//! Commands in a pseudo-terminal, and without one.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::checkpoint::{exact, shipped};
use crate::http::Server;
use crate::program::{PATIENCE, Program, command, run, send, wait_until};

/// How long the last bytes of a program that has ended are waited for, where the terminal's end is not seen.
const LAST_BYTES_TIMEOUT: Duration = Duration::from_secs(5);

/// A `jackalope` whose standard streams are a terminal.
struct Terminal {
    child: Child,
    keyboard: File,
    seen: Arc<Mutex<Vec<u8>>>,
    /// Reads until no program has the terminal open, on Linux.
    reader: JoinHandle<()>,
    home: PathBuf,
}

impl Terminal {
    fn start(args: &[&str], columns: u16, env: &[(&str, &str)]) -> Terminal {
        let name = format!("jackalope-terminal-{}-{:?}", std::process::id(), Instant::now());
        let home =
            std::env::temp_dir().join(name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).unwrap();
        let stream = || Stdio::from(slave.try_clone().unwrap());
        let mut command = command(env!("CARGO_BIN_EXE_jackalope"));
        command.args(args).envs(env.iter().copied());
        command.env("JACKALOPE_HOME", &home).env("TERM", "xterm-256color").env("HOME", &home);
        for name in ["HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "MODELS_DIR"] {
            command.env_remove(name);
        }
        let child = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
        let keyboard = File::from(master);
        let mut screen = keyboard.try_clone().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&seen);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // On Linux, reading fails once no program has the terminal open.
            while let Ok(num_read) = screen.read(&mut bytes)
                && 0 < num_read
            {
                all.lock().unwrap().extend(&bytes[..num_read]);
            }
        });
        Terminal { child, keyboard, seen, reader, home }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    fn type_line(&mut self, line: &str) {
        write!(self.keyboard, "{line}\r").unwrap();
    }

    /// Waits until the text has appeared `times` times in the terminal's output.
    fn shows(&self, text: &str, times: usize) {
        let deadline = Instant::now() + PATIENCE;
        let shown =
            wait_until(deadline, || (times <= self.text().matches(text).count()).then_some(()));
        assert!(shown.is_some(), "`{text}` is not shown {times} times: {}", self.text());
    }

    /// Waits for the prompt of this number, and types a line there.
    fn answer_prompt(&mut self, number: usize, line: &str) {
        // The editor announces itself before each prompt.
        self.shows("\u{1b}[?2004h", number);
        self.type_line(line);
    }

    /// Waits for the end, and returns all output.
    fn end(&mut self) -> (bool, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = wait_until(deadline, || self.child.try_wait().unwrap());
        let status = status.unwrap_or_else(|| panic!("it does not end: {}", self.text()));
        // The last bytes may still be on their way through the terminal.
        let deadline = Instant::now() + LAST_BYTES_TIMEOUT;
        wait_until(deadline, || self.reader.is_finished().then_some(()));
        (status.success(), self.text())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.home).ok();
    }
}

#[test]
fn without_arguments_a_terminal_gets_ten_lines_and_a_pipe_the_usage() {
    for columns in [80, 24] {
        let (is_success, text) = Terminal::start(&[], columns, &[]).end();
        assert!(is_success, "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert!((6..=10).contains(&lines.len()), "{text}");
        let widest = lines.iter().map(|it| it.trim_end().chars().count()).max().unwrap();
        assert!(widest <= usize::from(columns), "{text}");
        assert!(text.contains("none is running") || columns < 80, "{text}");
        assert!(text.contains("jackalope demo"), "{text}");
    }
    let piped = run::<&str>(&[]);
    assert_eq!(piped.status.code(), Some(2), "{piped:?}");
    assert!(piped.stderr.contains("Usage: jackalope"), "{piped:?}");
}

#[test]
fn the_demonstration_answers_and_shows_what_each_rank_holds() {
    let ended = run(&["demo"]);
    assert!(ended.status.success(), "{ended:?}");
    for part in ["> Who are you?", "Jackalope", "tokens/s", "rank 0: ", "rank 1: "] {
        assert!(ended.stdout.contains(part), "{part} in {ended:?}");
    }
    let alone = run(&["demo", "--ranks", "1", "--model", shipped().to_str().unwrap()]);
    assert!(alone.status.success() && !alone.stdout.contains("rank 1: "), "{alone:?}");
}

#[test]
fn a_chat_in_a_terminal_has_commands_several_lines_and_a_history() {
    let server = Server::start(exact(), "");
    let dir = std::env::temp_dir().join(format!("jackalope-talk-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("talk.json");
    let args = ["chat", "--url", &server.url, "--max-tokens", "8", "--temperature", "0"];
    let mut terminal = Terminal::start(&args, 30, &[]);
    terminal.answer_prompt(1, "/system Be brief.");
    terminal.answer_prompt(2, "/params seed 7");
    terminal.answer_prompt(3, "/params");
    terminal.shows("max_tokens           8", 1);
    terminal.answer_prompt(4, "/warmth");
    terminal.shows("hint: /help", 1);
    terminal.answer_prompt(5, "Who are\\");
    terminal.answer_prompt(6, "you?");
    terminal.answer_prompt(7, &format!("/save {}", path.display()));
    terminal.shows("saved: ", 1);
    terminal.answer_prompt(8, "/exit");
    let (is_success, text) = terminal.end();
    assert!(is_success, "{text}");
    let saved: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let contents: Vec<&str> = saved["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["content"].as_str().unwrap())
        .collect();
    assert_eq!(contents[..2], ["Be brief.", "Who are\nyou?"]);
    assert!(!contents[2].is_empty(), "{saved}");
    let history = std::fs::read_to_string(terminal.home.join("chat-history")).unwrap();
    assert!(history.contains("/params seed 7\n") && history.contains("you?\n"), "{history}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn an_interrupt_ends_an_answer_and_not_the_chat() {
    let server = Server::start(exact(), "");
    let args = ["chat", "--url", &server.url, "--max-tokens", "3000", "--temperature", "1"];
    let mut terminal = Terminal::start(&args, 80, &[("NO_COLOR", "1")]);
    terminal.answer_prompt(1, "Tell me a very long story about a fox, a bird and a whale.");
    // The request is running; an answer that has ended already shows the prompt again.
    let deadline = Instant::now() + PATIENCE;
    wait_until(deadline, || (1 <= server.health()["running"].as_u64()?).then_some(()));
    send(terminal.child.id(), Signal::INT);
    terminal.answer_prompt(2, "/exit");
    let (is_success, text) = terminal.end();
    assert!(is_success, "{text}");
    assert!(!text.contains("\u{1b}[2m"), "{text}");
}

#[test]
fn a_message_of_several_lines_comes_through_a_pipe() {
    let server = Server::start(exact(), "");
    let path = std::env::temp_dir().join(format!("jackalope-piped-{}.md", std::process::id()));
    let input = format!("\"\"\"\nWho\nare you?\n\"\"\"\n/save {}\n", path.display());
    let args = ["chat", "--url", &server.url, "--max-tokens", "5"];
    let ended = Program::start(&args, &input).end();
    assert!(ended.status.success(), "{ended:?}");
    let saved = std::fs::read_to_string(&path).unwrap();
    assert!(saved.starts_with("**user**\n\nWho\nare you?\n\n**assistant**\n\n"), "{saved}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn top_shows_a_server_once_for_programs_and_again_and_again_for_people() {
    let server = Server::start(exact(), "--ranks 2");
    let once = run(&["top", "--url", &server.url, "--once", "--json"]);
    assert!(once.status.success(), "{once:?}");
    let state: serde_json::Value = serde_json::from_str(&once.stdout).unwrap();
    assert_eq!(
        (&state["status"], state["ranks"].as_array().unwrap().len()),
        (&"healthy".into(), 2)
    );
    let piped = run(&["top", "--url", &server.url]);
    assert!(piped.status.success() && piped.stdout.contains("rank 1: here, "), "{piped:?}");

    for (columns, no_color) in [(120, ""), (30, "1")] {
        let args = ["top", "--url", &server.url, "--interval", "100"];
        let mut terminal = Terminal::start(&args, columns, &[("NO_COLOR", no_color)]);
        terminal.shows("tokens/s", 1);
        // ratatui moves the cursor instead of writing spaces, so a phrase never appears in one piece.
        terminal.shows("machine", 1);
        write!(terminal.keyboard, "q").unwrap();
        let (is_success, text) = terminal.end();
        assert!(is_success, "{text}");
        // The screen is left as it was found.
        assert!(text.contains("\u{1b}[?1049h") && text.contains("\u{1b}[?1049l"), "{text}");
    }
    let nowhere = run(&["top", "--url", "http://127.0.0.1:1", "--once"]);
    assert!(!nowhere.status.success() && nowhere.stderr.contains("hint: "), "{nowhere:?}");
}
