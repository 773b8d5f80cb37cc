//! Processes and agents, with the system's own programs.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod agents;
#[cfg(target_os = "linux")]
mod first_contact;
#[cfg(target_os = "linux")]
mod starting;

use std::ffi::OsString;
use std::io::Read;
use std::time::{Duration, Instant};

use jackalope_fleet::process::{Spawn, describe, output_of};

const LONG: Duration = Duration::from_secs(30);

fn shell(script: &str) -> Spawn {
    let mut spawn = Spawn::new("/bin/sh", "sh");
    spawn.args = ["-c", script].map(OsString::from).to_vec();
    spawn
}

fn deadline() -> Instant {
    Instant::now() + LONG
}

#[test]
fn the_last_words_are_the_end_of_standard_error() {
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22; do echo line $i >&2; done; exit 3";
    let mut child = shell(script).start().unwrap();
    let status = child.wait_until(deadline()).unwrap();
    assert_eq!(describe(status), "exit status 3");
    let words = child.last_words();
    assert!(words.starts_with("line 3\n"), "{words}");
    assert!(words.ends_with("line 22"), "{words}");
}

#[test]
fn a_killed_child_is_described_by_its_signal() {
    let mut child = shell("kill -9 $$").start().unwrap();
    let status = child.wait_until(deadline()).unwrap();
    assert!(describe(status).starts_with("killed by signal 9 (SIGKILL"), "{}", describe(status));
}

#[test]
fn a_child_sees_the_end_of_its_input_when_we_close_it() {
    let mut spawn = shell("read first; echo got $first; cat >/dev/null; echo end");
    spawn.input = b"hello\n".to_vec();
    spawn.reads_stdout = true;
    let mut child = spawn.start().unwrap();
    let mut stdout = child.take_stdout().unwrap();
    child.close_input();
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    assert_eq!(text, "got hello\nend\n");
    assert!(child.wait_until(deadline()).unwrap().success());
}

#[test]
fn a_child_that_ends_before_it_reads_its_input_says_why() {
    let mut spawn = shell("exec 0<&-; echo no memory >&2; exit 3");
    // More than a pipe holds.
    spawn.input = vec![b'x'; 1 << 20];
    let mut child = spawn.start().unwrap();
    assert_eq!(describe(child.wait_until(deadline()).unwrap()), "exit status 3");
    assert_eq!(child.last_words(), "no memory");
}

#[test]
fn dropping_a_child_ends_it() {
    let mut spawn = shell("echo ready; exec sleep 600");
    spawn.reads_stdout = true;
    let mut child = spawn.start().unwrap();
    let mut stdout = child.take_stdout().unwrap();
    drop(child);
    // The pipe ends when the last process that holds it does.
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    assert!(text.is_empty() || text == "ready\n");
}

#[test]
fn a_command_that_hangs_is_ended_at_its_deadline() {
    let err = output_of("sleep", &["600"], Duration::from_millis(50)).unwrap_err();
    assert!(err.to_string().contains("took longer"), "{err}");
    assert_eq!(output_of("echo", &["hi"], LONG).unwrap(), "hi\n");
    assert!(output_of("false", &[], LONG).unwrap_err().to_string().contains("exit status 1"));
}

#[test]
fn this_machine_reports_its_memory() {
    let memory = jackalope_fleet::platform::current::memory().expect("Linux and macOS tell");
    assert!(0 < memory.free_bytes && memory.free_bytes <= memory.total_bytes);
}
