//! Programs that run until they end or a deadline has passed.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// Time between two looks at a running program.
pub(super) const POLL: Duration = Duration::from_millis(50);

/// Runs a program until the deadline and returns what it prints.
pub(super) fn output(command: &mut Command, deadline: Instant) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    finished(child.with_context(|| format!("starting {name}"))?, deadline)
}

/// Waits for a program until the deadline and returns what it printed.
pub(super) fn finished(
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
            bail!("the time was over before it ended");
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
