//! Formats errors for people: the causes in one line, each once, then the hints.

use thiserror::Error;

/// The user pressed Ctrl-C before the command had its result.
#[derive(Clone, Copy, Debug, Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Waits for the result of `work`, or for Ctrl-C.
pub(crate) async fn interruptible<T>(
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        result = work => result,
        _ = tokio::signal::ctrl_c() => Err(Interrupted.into()),
    }
}

/// Exit status of an interrupted command, as in shells: 128 plus the number of the signal.
pub(crate) const INTERRUPTED: u8 = 130;

/// Escape sequences for the beginnings of errors and hints, in the colours of the argument parser.
const RED_BOLD: &str = "\x1b[1m\x1b[31m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// Returns the causes of an error, and the hints.
pub(crate) fn text(err: &anyhow::Error) -> String {
    jackalope_deploy::error::text(err.as_ref())
}

/// Returns the text with `error: ` before it.
pub(crate) fn with_label(text: &str, has_colors: bool) -> String {
    if has_colors { colored(text) } else { format!("error: {text}") }
}

fn colored(text: &str) -> String {
    let text = text.replace("\nhint: ", &format!("\n{BOLD}hint:{PLAIN} "));
    format!("{RED_BOLD}error:{PLAIN} {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_labels_are_coloured() {
        let said = colored("a\nhint: b");
        assert_eq!(said, "\x1b[1m\x1b[31merror:\x1b[0m a\n\x1b[1mhint:\x1b[0m b");
    }
}
