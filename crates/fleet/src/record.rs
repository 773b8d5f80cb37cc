//! Records of our processes, written when they start, so that a process is ended by what is known
//! about it and never by its name.
//!
//! A process is the same one if its process id *and* its start time match, because process ids are
//! reused.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::home::{Home, HomeError};
use crate::platform;

/// Pause between two checks of a process that should end.
const END_POLL: Duration = Duration::from_millis(10);

/// How long to wait for a killed process; the system may still write its memory out.
pub const KILL_GRACE: Duration = Duration::from_secs(2);

/// Ways to end a recorded process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EndRequest {
    /// Asks the process to end (SIGTERM).
    End,
    /// Asks the process to end and to leave its programs running for the next agent (SIGUSR1).
    HandOver,
    /// Kills the process (SIGKILL).
    Kill,
}

/// The record of one of our processes.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Recorded {
    /// Process id.
    pub pid: u32,
    /// Start time of the process, as the system reports it.
    pub began: String,
    /// Version of the process's program.
    pub version: String,
    /// Further data about the process, whose fields depend on the program.
    #[serde(default)]
    pub about: Value,
}

/// Returns whether a child of this process has not ended; one that has ended but was not waited for
/// does not count.
pub fn is_alive(pid: u32) -> bool {
    platform::current::process_began(pid).is_some_and(|it| it != "ended")
}

impl Recorded {
    /// Creates the record of this process.
    pub fn this(about: Value) -> Recorded {
        let pid = std::process::id();
        let began = platform::current::process_began(pid).unwrap_or_default();
        Recorded { pid, began, version: env!("CARGO_PKG_VERSION").to_owned(), about }
    }

    /// Writes the record under a name: `agent` or `serve`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, home: &Home, name: &str) -> Result<(), HomeError> {
        let text = serde_json::to_string(self).expect("a record is plain data");
        home.write(&format!("{name}.json"), text.as_bytes())
    }

    /// Reads the record with this name; `None` if it is absent or malformed.
    pub fn read(home: &Home, name: &str) -> Option<Recorded> {
        let text = fs::read_to_string(home.join(&format!("{name}.json"))).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Removes the record with this name, unless it is that of another process.
    pub fn forget(&self, home: &Home, name: &str) {
        if Recorded::read(home, name).as_ref() == Some(self) {
            // A record that stays describes a process that no longer runs, which readers check.
            fs::remove_file(home.join(&format!("{name}.json"))).ok();
        }
    }

    /// Returns whether the process still runs.
    pub fn runs(&self) -> bool {
        let Some(pid) = Pid::from_raw(self.pid.cast_signed()) else { return false };
        test_kill_process(pid).is_ok()
            && platform::current::process_began(self.pid).is_none_or(|began| began == self.began)
    }

    /// Asks the process to end (SIGTERM) and kills it (SIGKILL) after `grace`. Returns false if it
    /// was not running.
    pub fn end(&self, grace: Duration) -> bool {
        if !self.runs() {
            return false;
        }
        if !self.ask(EndRequest::End, grace) {
            self.ask(EndRequest::Kill, KILL_GRACE);
        }
        true
    }

    /// Sends the signal of a request, if the recorded process still runs. Returns true if it has
    /// ended within `grace`.
    pub fn ask(&self, request: EndRequest, grace: Duration) -> bool {
        let signal = match request {
            EndRequest::End => Signal::TERM,
            EndRequest::HandOver => Signal::USR1,
            EndRequest::Kill => Signal::KILL,
        };
        let deadline = Instant::now() + grace;
        if let (true, Some(pid)) = (self.runs(), Pid::from_raw(self.pid.cast_signed())) {
            // Fails only if the process is gone already.
            kill_process(pid, signal).ok();
        }
        while self.runs() {
            if deadline <= Instant::now() {
                return false;
            }
            std::thread::sleep(END_POLL);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_its_beginning() {
        let ours = Recorded::this(Value::Null);
        assert!(!ours.began.is_empty(), "the system reports when a process began");
        assert!(ours.runs());
        let reused = Recorded { began: "another time".to_owned(), ..ours.clone() };
        assert!(!reused.runs(), "its number belongs to somebody else now");
        assert!(!reused.end(Duration::ZERO));
        assert!(!Recorded { pid: 0, ..ours }.runs());
    }

    #[test]
    fn who_does_not_end_when_asked_is_killed() {
        let mut spawn = crate::process::Spawn::new("/bin/sh", "stubborn");
        spawn.args = ["-c", "trap '' TERM; echo ready; exec sleep 600"].map(Into::into).to_vec();
        spawn.reads_stdout = true;
        let mut child = spawn.start().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(&mut child.take_stdout().unwrap(), &mut ready).unwrap();
        let began = platform::current::process_began(child.pid()).unwrap();
        let version = String::new();
        let recorded = Recorded { pid: child.pid(), began, version, about: Value::Null };
        assert!(!recorded.ask(EndRequest::End, Duration::from_millis(50)), "it takes no notice");
        assert!(recorded.runs() && recorded.end(Duration::ZERO));
        assert!(recorded.ask(EndRequest::End, Duration::ZERO), "it has ended already");
        assert_eq!(
            crate::process::describe(child.try_wait().unwrap()).split(' ').next(),
            Some("killed")
        );
    }
}
