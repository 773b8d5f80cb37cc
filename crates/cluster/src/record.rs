//! Which processes are ours: written down when they start, so that they are ended by what is known of
//! them, never by a name.
//!
//! A process is the same one if its number *and* the moment it began are: numbers are used again.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::home::{Home, HomeError};
use crate::platform;

/// Between two looks at a process that shall end.
const END_POLL: Duration = Duration::from_millis(10);

/// How long a killed process may take to be gone; the system may still write its memory out.
pub const KILL_GRACE: Duration = Duration::from_secs(2);

/// What a process of ours is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Request {
    /// A polite end (SIGTERM).
    End,
    /// An end that leaves everything it looks after to whoever comes next (SIGUSR1).
    HandOver,
    /// An end at once (SIGKILL).
    Kill,
}

/// A process of ours.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Recorded {
    /// Its number.
    pub pid: u32,
    /// When it began, as the system tells.
    pub began: String,
    /// Version of the program.
    pub version: String,
    /// What else is worth knowing.
    #[serde(default)]
    pub about: Value,
}

impl Recorded {
    /// This process.
    pub fn this(about: Value) -> Recorded {
        let pid = std::process::id();
        let began = platform::current::process_began(pid).unwrap_or_default();
        Recorded { pid, began, version: env!("CARGO_PKG_VERSION").to_owned(), about }
    }

    /// Writes it down under a name: `agent`, `serve`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, home: &Home, name: &str) -> Result<(), HomeError> {
        let text = serde_json::to_string(self).expect("a record is plain data");
        home.write(&format!("{name}.json"), text.as_bytes())
    }

    /// What is written down under a name, if anything.
    pub fn read(home: &Home, name: &str) -> Option<Recorded> {
        let text = fs::read_to_string(home.join(&format!("{name}.json"))).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Forgets what is written down under a name, if it is still this process.
    pub fn forget(&self, home: &Home, name: &str) {
        if Recorded::read(home, name).as_ref() == Some(self) {
            // One that stays tells of a process that does not run, which is seen when it is read.
            fs::remove_file(home.join(&format!("{name}.json"))).ok();
        }
    }

    /// Whether it still runs.
    pub fn runs(&self) -> bool {
        let Some(pid) = Pid::from_raw(self.pid.cast_signed()) else { return false };
        test_kill_process(pid).is_ok()
            && platform::current::process_began(self.pid).is_none_or(|began| began == self.began)
    }

    /// Asks it to end (SIGTERM), after `grace` makes it (SIGKILL). False if it ran no more.
    pub fn end(&self, grace: Duration) -> bool {
        if !self.runs() {
            return false;
        }
        if !self.ask(Request::End, grace) {
            self.ask(Request::Kill, KILL_GRACE);
        }
        true
    }

    /// Sends it a signal, if it is still the process we know. True if it has ended within `grace`.
    pub fn ask(&self, request: Request, grace: Duration) -> bool {
        let signal = match request {
            Request::End => Signal::TERM,
            Request::HandOver => Signal::USR1,
            Request::Kill => Signal::KILL,
        };
        let deadline = Instant::now() + grace;
        if let (true, Some(pid)) = (self.runs(), Pid::from_raw(self.pid.cast_signed())) {
            // Fails only if it is gone already.
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
        assert!(!ours.began.is_empty(), "the system tells when a process began");
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
        assert!(!recorded.ask(Request::End, Duration::from_millis(50)), "it takes no notice");
        assert!(recorded.runs() && recorded.end(Duration::ZERO));
        assert!(recorded.ask(Request::End, Duration::ZERO), "it has ended already");
        assert_eq!(
            crate::process::describe(child.try_wait().unwrap()).split(' ').next(),
            Some("killed")
        );
    }
}
