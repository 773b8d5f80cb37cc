//! The process of a program: a child of this agent, or one that an earlier agent of this machine
//! started.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process};

use crate::platform;
use crate::process::{Child, describe, exit_code};

/// How often the start time of an adopted process is compared. Whether its pid is in use at all is
/// checked every time.
const IDENTITY_INTERVAL: Duration = Duration::from_secs(1);

/// How long to wait for a killed process to disappear.
const KILL_GRACE: Duration = Duration::from_millis(500);
const KILL_POLL: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) enum Process {
    Child(Child),
    Adopted(Adopted),
}

/// A process that is not our child, identified by its pid and start time. Its output is lost.
#[derive(Debug)]
pub(super) struct Adopted {
    pid: u32,
    began: String,
    /// When the start time was last compared; `None` if the comparison is due.
    compared_at: Option<Instant>,
    has_ended: bool,
}

impl Adopted {
    /// Returns the process with this pid if it has this start time.
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

    /// Kills the process group, and waits up to `KILL_GRACE` until the process is gone.
    pub(super) fn kill(&mut self) {
        self.signal(Signal::KILL.as_raw());
        let deadline = Instant::now() + KILL_GRACE;
        while self.is_same() && Instant::now() < deadline {
            std::thread::sleep(KILL_POLL);
        }
    }

    /// Sends a signal to the process group if the pid still belongs to the same process.
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

    /// Whether the process is known to have ended. Does not block.
    pub(super) fn has_ended(&mut self) -> bool {
        match self {
            Process::Child(child) => child.try_wait().is_some(),
            Process::Adopted(adopted) => adopted.has_ended(),
        }
    }

    /// Returns a description of how an ended process has exited, and the exit code as shells count
    /// it. The code of an adopted process is unknown; 1 is returned for it.
    pub(super) fn exit(&mut self) -> (String, i32) {
        match self {
            Process::Child(child) => {
                let status = child.try_wait().expect("it was just seen");
                (describe(status), exit_code(status))
            }
            // Only the parent of a process gets its exit status.
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

    /// Writes `bytes` to the standard input of a child, or closes that if `bytes` is empty. Does
    /// nothing for an adopted process.
    pub(super) fn input(&mut self, bytes: &[u8]) {
        let Process::Child(child) = self else { return };
        match bytes {
            [] => child.close_input(),
            // A process that no longer reads its input is about to end.
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
