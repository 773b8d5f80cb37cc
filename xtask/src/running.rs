//! Programs that run until they end or a deadline has passed.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// The error of a program that was killed because its time was over.
#[derive(Debug)]
pub(crate) struct DeadlinePassed;

impl std::fmt::Display for DeadlinePassed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the time was over before it ended")
    }
}

impl std::error::Error for DeadlinePassed {}

/// Time between two looks at a running program.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// Runs a program until the deadline and returns what it prints.
///
/// # Errors
/// Fails if the program cannot be started or fails, with the last lines that it prints, and with [`DeadlinePassed`].
pub(crate) fn output(command: &mut Command, deadline: Instant) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    finished(child.with_context(|| format!("starting {name}"))?, deadline)
}

/// Waits for a program until the deadline and returns what it printed.
pub(crate) fn finished(
    mut child: std::process::Child,
    deadline: Instant,
) -> anyhow::Result<String> {
    let readers = [
        child
            .stdout
            .take()
            .map(|mut pipe| reader(move |text| std::io::Read::read_to_end(&mut pipe, text))),
        child
            .stderr
            .take()
            .map(|mut pipe| reader(move |text| std::io::Read::read_to_end(&mut pipe, text))),
    ];
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if deadline <= Instant::now() {
            child.kill().ok();
            child.wait().ok();
            bail!(DeadlinePassed);
        }
        std::thread::sleep(POLL);
    };
    let texts = readers.map(|reader| reader.and_then(|it| it.join().ok()).unwrap_or_default());
    let [printed, errors] = texts;
    let last = |text: &str| text.lines().rev().take(6).collect::<Vec<_>>().join(" < ");
    ensure!(status.success(), "it ended with {status}: {} {}", last(&errors), last(&printed));
    Ok(printed)
}

fn reader(
    read: impl FnOnce(&mut Vec<u8>) -> std::io::Result<usize> + Send + 'static,
) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        // What was read before an error is enough for a message.
        read(&mut text).ok();
        String::from_utf8_lossy(&text).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::command;

    fn shell(script: &str, limit: Duration) -> anyhow::Result<String> {
        output(command("sh").args(["-c", script]), Instant::now() + limit)
    }

    #[test]
    fn what_a_program_prints_is_returned_also_if_a_pipe_does_not_hold_it() {
        let printed = shell("head -c 300000 /dev/zero | tr '\\0' x; echo", Duration::from_secs(60));
        assert_eq!(printed.unwrap(), format!("{}\n", "x".repeat(300_000)));
    }

    #[test]
    fn a_failure_says_what_the_program_printed_last() {
        let err = shell("echo told; echo wrong >&2; exit 3", Duration::from_secs(60)).unwrap_err();
        let text = err.to_string();
        assert!(text.contains("exit status: 3") && text.contains("wrong") && text.contains("told"));
        assert!(!err.is::<DeadlinePassed>());
    }

    #[test]
    fn a_program_is_killed_at_the_deadline() {
        let err = shell("exec sleep 600", Duration::from_millis(50)).unwrap_err();
        assert!(err.is::<DeadlinePassed>());
    }
}
