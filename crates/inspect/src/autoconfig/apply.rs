//! Runs the commands of a plan one by one, and undoes them.

use std::time::Duration;

use jackalope_fleet::facts::at_once;
use jackalope_fleet::shell::{Shell, ShellError};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{PingCheck, Step};
use crate::probe::{self, Echo};

/// Time for one command; none of the commands waits for anything.
const STEP_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum number of pings to a new address, because a port takes a moment to come up.
const CHECK_TRIES: u32 = 3;

/// A command that undoes a step.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Undo {
    /// The machine.
    pub host: String,
    /// Command to run as root.
    pub command: String,
}

/// Reason why a command did not succeed.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum ApplyError {
    /// The script could not be run on the machine.
    #[error("{0}")]
    Shell(#[from] ShellError),
    /// `sudo` asks for a password, which cannot be entered because the command is not interactive.
    #[error("{host}: sudo wants a password for `{command}`")]
    Password {
        /// The machine.
        host: String,
        /// The command.
        command: String,
    },
    /// The command failed.
    #[error("{host}: `{command}` failed with status {status}: {output}")]
    Failed {
        /// The machine.
        host: String,
        /// The command.
        command: String,
        /// Exit status of the command.
        status: i32,
        /// Output of the command.
        output: String,
    },
}

impl Step {
    /// Returns the command that undoes this step.
    pub fn undo(&self) -> Undo {
        Undo { host: self.host.clone(), command: self.undo.clone() }
    }
}

/// Runs one command as root, without asking for a password.
///
/// # Errors
/// [`ApplyError`] if the command did not succeed.
pub fn run_as_root(shell: &dyn Shell, host: &str, command: &str) -> Result<(), ApplyError> {
    let (host_name, command_text) = (host.to_owned(), command.to_owned());
    let output = shell.run(host, &format!("sudo -n {command}"), b"", STEP_TIMEOUT)?;
    if output.status == 0 {
        return Ok(());
    }
    if output.stderr.contains("a password is required") {
        return Err(ApplyError::Password { host: host_name, command: command_text });
    }
    Err(ApplyError::Failed {
        host: host_name,
        command: command_text,
        status: output.status,
        output: output.stderr.trim().lines().last().unwrap_or_default().to_owned(),
    })
}

/// Runs all commands until one fails. After each of them, `done` is called with the commands that
/// undo everything so far, the last step first, so that the caller can store them before the next
/// command runs.
///
/// # Errors
/// [`ApplyError`] of the first command that failed.
pub fn apply(
    shell: &dyn Shell,
    steps: &[Step],
    mut done: impl FnMut(&Step, &[Undo]),
) -> Result<(), ApplyError> {
    let mut undos = Vec::new();
    for step in steps {
        run_as_root(shell, &step.host, &step.command)?;
        undos.insert(0, step.undo());
        done(step, &undos);
    }
    Ok(())
}

/// Pings along each cable; several times, because ports take a moment to come up.
pub fn verify(shell: &dyn Shell, checks: &[PingCheck]) -> Vec<(PingCheck, Echo)> {
    let echo = |check: &PingCheck| {
        let mut last = Echo::Untried;
        for _ in 0..CHECK_TRIES {
            let found = probe::echoes(shell, &check.host, &[check.ip], STEP_TIMEOUT);
            last = found.ok().and_then(|it| it.first().copied()).unwrap_or(Echo::Silent);
            if matches!(last, Echo::Answers { .. } | Echo::Untried) {
                break;
            }
        }
        (check.clone(), last)
    };
    at_once(checks, echo)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use jackalope_fleet::shell::Output;

    use super::*;

    /// Records the commands that it should run, and fails at those that contain a given word.
    struct Recorder {
        ran: Mutex<Vec<String>>,
        fails_at: &'static str,
        stderr: &'static str,
    }

    impl Shell for Recorder {
        fn run(
            &self,
            host: &str,
            script: &str,
            _input: &[u8],
            _timeout: Duration,
        ) -> Result<Output, ShellError> {
            self.ran.lock().unwrap().push(format!("{host}: {script}"));
            let fails = !self.fails_at.is_empty() && script.contains(self.fails_at);
            let status = i32::from(fails);
            Ok(Output { status, stdout: String::new(), stderr: self.stderr.to_owned() })
        }
    }

    fn steps() -> Vec<Step> {
        let step = |host: &str, number| Step {
            host: host.to_owned(),
            purpose: "test".to_owned(),
            command: format!("do {number}"),
            undo: format!("undo {number}"),
        };
        vec![step("a", 1), step("a", 2), step("b", 3)]
    }

    #[test]
    fn commands_run_in_order_without_a_password_and_are_taken_back_in_reverse() {
        let shell = Recorder { ran: Mutex::default(), fails_at: "", stderr: "" };
        let mut last = Vec::new();
        apply(&shell, &steps(), |_, undos| last = undos.to_vec()).unwrap();
        let ran = shell.ran.into_inner().unwrap();
        assert_eq!(ran, ["a: sudo -n do 1", "a: sudo -n do 2", "b: sudo -n do 3"]);
        let undone: Vec<&str> = last.iter().map(|it| it.command.as_str()).collect();
        assert_eq!(undone, ["undo 3", "undo 2", "undo 1"]);
    }

    #[test]
    fn the_first_failure_ends_it_and_what_was_done_can_be_taken_back() {
        let shell = Recorder { ran: Mutex::default(), fails_at: "do 2", stderr: "no such port\n" };
        let mut last = Vec::new();
        let err = apply(&shell, &steps(), |_, undos| last = undos.to_vec()).unwrap_err();
        assert_eq!(err.to_string(), "a: `do 2` failed with status 1: no such port");
        assert_eq!(last, [Undo { host: "a".to_owned(), command: "undo 1".to_owned() }]);
        assert_eq!(shell.ran.lock().unwrap().len(), 2);
    }

    #[test]
    fn a_password_that_cannot_be_typed_is_recognised() {
        let stderr = "sudo: a password is required\n";
        let shell = Recorder { ran: Mutex::default(), fails_at: "do", stderr };
        let err = apply(&shell, &steps(), |_, _| {}).unwrap_err();
        assert!(matches!(err, ApplyError::Password { .. }), "{err}");
    }
}
