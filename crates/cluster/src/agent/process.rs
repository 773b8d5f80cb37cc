//! The process of a program: a child of this agent, or one that an earlier agent of this machine started.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process};

use crate::platform;
use crate::process::{Child, describe, exit_code};

/// How often a process that is not our child is compared with what we know of it. Whether its number is in
/// use at all is asked each time.
const IDENTITY_INTERVAL: Duration = Duration::from_secs(1);

/// A killed process is gone within this time.
const KILL_GRACE: Duration = Duration::from_millis(500);
const KILL_POLL: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) enum Process {
    Child(Child),
    Adopted(Adopted),
}

/// A process known by its number and its beginning. What it writes is lost.
#[derive(Debug)]
pub(super) struct Adopted {
    pid: u32,
    began: String,
    /// None when it is due.
    compared_at: Option<Instant>,
    has_ended: bool,
}

impl Adopted {
    /// The process of this number, if it began then.
    pub(super) fn find(pid: u32, began: &str) -> Option<Adopted> {
        let (began, compared_at) = (began.to_owned(), Some(Instant::now()));
        let found = Adopted { pid, began, compared_at, has_ended: false };
        found.is_same().then_some(found)
    }

    fn is_same(&self) -> bool {
        platform::current::process_began(self.pid).is_some_and(|began| began == self.began)
    }

    fn has_ended(&mut self) -> bool {
        if self.has_ended {
            return true;
        }
        let is_free =
            Pid::from_raw(self.pid.cast_signed()).is_none_or(|pid| test_kill_process(pid).is_err());
        if is_free {
            self.has_ended = true;
        } else if self.compared_at.is_none_or(|at| IDENTITY_INTERVAL <= at.elapsed()) {
            self.compared_at = Some(Instant::now());
            self.has_ended = !self.is_same();
        }
        self.has_ended
    }

    /// Kills it, and the processes it has started, and waits until it is gone.
    pub(super) fn kill(&mut self) {
        self.signal(Signal::KILL.as_raw());
        let deadline = Instant::now() + KILL_GRACE;
        while self.is_same() && Instant::now() < deadline {
            std::thread::sleep(KILL_POLL);
        }
    }

    /// Sends a signal to it and the processes it has started, if it is still the same.
    fn signal(&mut self, signal: i32) {
        let signal = Signal::from_named_raw(signal);
        let group = Pid::from_raw(self.pid.cast_signed());
        if let (true, Some(group), Some(signal)) = (self.is_same(), group, signal) {
            // Fails only if the process is gone already.
            kill_process_group(group, signal).ok();
            self.compared_at = None;
        }
    }
}

impl Process {
    pub(super) fn pid(&self) -> u32 {
        match self {
            Process::Child(child) => child.pid(),
            Process::Adopted(adopted) => adopted.pid,
        }
    }

    /// Whether it is known to have ended; does not wait.
    pub(super) fn has_ended(&mut self) -> bool {
        match self {
            Process::Child(child) => child.try_wait().is_some(),
            Process::Adopted(adopted) => adopted.has_ended(),
        }
    }

    /// How a process that has ended did, in words and as shells count.
    pub(super) fn exit(&mut self) -> (String, i32) {
        match self {
            Process::Child(child) => {
                let status = child.try_wait().expect("it was just seen");
                (describe(status), exit_code(status))
            }
            // Only its parent is told.
            Process::Adopted(_) => {
                ("ended; how is not known, as its agent was replaced".to_owned(), 1)
            }
        }
    }

    pub(super) fn signal(&mut self, signal: i32) {
        match self {
            Process::Child(child) => child.signal(signal),
            Process::Adopted(adopted) => adopted.signal(signal),
        }
    }

    pub(super) fn kill(&mut self) {
        match self {
            Process::Child(child) => child.kill(),
            Process::Adopted(adopted) => adopted.kill(),
        }
    }

    /// Writes to its standard input, or closes it if there is nothing to write.
    pub(super) fn input(&mut self, bytes: &[u8]) {
        let Process::Child(child) = self else { return };
        match bytes {
            [] => child.close_input(),
            // One that does not read any more is about to end.
            bytes => child.send_input(bytes).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Spawn;

    #[test]
    fn a_process_is_adopted_by_its_number_and_its_beginning() {
        let mut spawn = Spawn::new("/bin/sh", "sleeper");
        spawn.args = ["-c", "exec sleep 600"].map(Into::into).to_vec();
        let mut child = spawn.start().unwrap();
        let began = platform::current::process_began(child.pid()).unwrap();
        assert!(Adopted::find(child.pid(), "another time").is_none());
        let mut adopted = Adopted::find(child.pid(), &began).unwrap();
        assert!(!adopted.has_ended());
        adopted.kill();
        assert!(adopted.has_ended() && child.wait_until(Instant::now() + KILL_GRACE).is_some());
        assert!(Adopted::find(child.pid(), &began).is_none());
        let (exit, code) = Process::Adopted(adopted).exit();
        assert!(exit.contains("not known") && code == 1, "{exit}");
    }
}
