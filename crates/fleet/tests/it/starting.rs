//! A program that the system does not execute.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use jackalope_fleet::process::Spawn;
use rustix::process::{Pid, Signal, kill_process};

const LONG: Duration = Duration::from_secs(60);

/// A program that is searched for in millions of folders, so that its child exists for a while
/// before it executes anything.
fn searched_for() -> Spawn {
    let mut spawn = Spawn::new("jackalope-no-such-program", "searched for");
    spawn.env = vec![("PATH".to_owned(), "/x:".repeat(10_000_000).into())];
    spawn.start_timeout = Duration::from_millis(300);
    spawn
}

/// The child of a thread of ours. It has the thread's name until it executes a program.
fn child_of_thread(name: &str) -> Pid {
    let lines = [format!("Name:\t{name}"), format!("PPid:\t{}", std::process::id())];
    let began = Instant::now();
    loop {
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            if lines.iter().all(|wanted| status.lines().any(|line| line == wanted)) {
                let pid = entry.file_name().to_str().unwrap().parse().unwrap();
                return Pid::from_raw(pid).unwrap();
            }
        }
        assert!(began.elapsed() < LONG, "no child appeared");
    }
}

/// Nobody knows its process id, since the call that starts it does not return.
#[test]
fn a_process_that_is_stopped_before_its_program_is_killed_and_no_other_is() {
    let mut other = Spawn::new("/bin/sh", "other");
    other.args = ["-c", "read line"].map(Into::into).to_vec();
    let mut other = other.start().unwrap();
    let began = Instant::now();
    let starting = std::thread::Builder::new().name("is stuck".to_owned());
    let starting = starting.spawn(|| searched_for().start()).unwrap();
    let child = child_of_thread("is stuck");
    kill_process(child, Signal::STOP).unwrap();
    let err = starting.join().unwrap().unwrap_err();
    assert_eq!(err.kind(), io::ErrorKind::TimedOut, "{err}");
    assert!(err.to_string().starts_with("the system did not execute jackalope-no-such"), "{err}");
    assert!(began.elapsed() < LONG);
    assert!(kill_process(child, Signal::CONT).is_err(), "it is gone");
    assert!(other.try_wait().is_none(), "the other program runs");
}
