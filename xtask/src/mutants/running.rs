//! Child processes of a task that tries mutations: with a deadline, and without leaving any behind.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::process::command;

/// Interval of polling a child process.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Runs a command with its output in two files. Returns none, and ends it, if the deadline passes.
pub(super) fn wait(
    command: &mut Command,
    stdout: &Path,
    stderr: &Path,
    deadline: Instant,
) -> anyhow::Result<Option<ExitStatus>> {
    let create =
        |path: &Path| File::create(path).with_context(|| format!("creating {}", path.display()));
    command.stdout(create(stdout)?).stderr(create(stderr)?);
    let mut child =
        command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
    loop {
        if let Some(status) = child.try_wait().context("waiting for a child process")? {
            return Ok(Some(status));
        }
        if deadline <= Instant::now() {
            child.kill().context("ending a child process")?;
            child.wait().context("waiting for a child process")?;
            return Ok(None);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Kills the processes of programs below `dir`: a test that fails may leave servers and agents
/// behind, which would disturb the next one. Does nothing on systems without `/proc`.
pub(super) fn end_programs_of(dir: &Path) {
    let Ok(entries) = fs::read_dir("/proc") else { return };
    let is_ours = |entry: &fs::DirEntry| {
        fs::read_link(entry.path().join("exe")).is_ok_and(|it| it.starts_with(dir))
    };
    let pids = entries.flatten().filter(is_ours);
    let pids: Vec<String> =
        pids.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if !pids.is_empty() {
        // Some may have ended meanwhile.
        let _ = command("kill").arg("-KILL").args(pids).output();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_does_not_end_is_ended_at_the_deadline() {
        let file = |name: &str| std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let (stdout, stderr) = (file("mutants-stdout"), file("mutants-stderr"));
        let mut sleep = command("sleep");
        let soon = Instant::now() + Duration::from_millis(50);
        assert_eq!(wait(sleep.arg("600"), &stdout, &stderr, soon).unwrap(), None);
        fs::remove_file(stdout).unwrap();
        fs::remove_file(stderr).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn programs_that_are_left_behind_are_ended() {
        let dir = std::env::temp_dir().join(format!("mutants-left-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let dir = fs::canonicalize(dir).unwrap();
        fs::copy("/bin/sleep", dir.join("sleep")).unwrap();
        let mut left = command(&dir.join("sleep").to_string_lossy()).arg("600").spawn().unwrap();
        end_programs_of(&dir);
        assert!(!left.wait().unwrap().success());
        fs::remove_dir_all(dir).unwrap();
    }
}
