//! Serves models from a program, without the command line.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Longer than anything takes, even on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(120);

/// Directory of the model that ships with the sources.
fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/jackalope-mini")
}

/// A running example; killed when dropped.
struct Example {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Example {
    fn start(name: &str, args: &[PathBuf]) -> Example {
        // The test's own program lies in `deps`, beside `examples`.
        let own = std::env::current_exe().unwrap();
        let program = own.parent().unwrap().parent().unwrap().join("examples").join(name);
        #[expect(clippy::disallowed_methods, reason = "tests watch the processes from outside")]
        let mut command = Command::new(&program);
        let spawned = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|err| panic!("{}: {err}", program.display()));
        let stdout = child.stdout.take().map(BufReader::new);
        Example { child, stdout }
    }

    /// Returns the next line that the example prints.
    fn line(&mut self) -> String {
        let mut stdout = self.stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            // The receiver is gone if the test has failed.
            sender.send((line, stdout)).ok();
        });
        let (line, stdout) = lines.recv_timeout(PATIENCE).expect("a line in time");
        self.stdout = Some(stdout);
        line
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Sends a request and returns the whole answer.
fn post(addr: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let len = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {addr}\r\nContent-Type: application/json\r\n\
         Content-Length: {len}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_example_serves_a_model_with_two_ranks() {
    let mut example = Example::start("two_ranks", &[model()]);
    let line = example.line();
    let addr = line.strip_prefix("2 ranks serve http://").unwrap_or_else(|| panic!("{line}"));
    let addr = addr.split('/').next().unwrap();
    let body = r#"{"model": "default", "prompt": "Hello", "max_tokens": 4}"#;
    let answer = post(addr, "/v1/completions", body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("\"completion_tokens\""), "{answer}");
    drop(example.child.stdin.take());
    assert!(example.child.wait().unwrap().success());
}
