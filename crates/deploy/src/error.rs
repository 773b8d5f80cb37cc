//! Formats errors for people: the causes in one line, each once, then the hints.

use std::io;

/// Returns the causes of an error, outermost first, followed by all hints on lines of their own.
pub fn text(err: &anyhow::Error) -> String {
    let mut said = String::new();
    let mut below: Vec<String> = Vec::new();
    for cause in err.chain() {
        let message = message_of(cause);
        let (head, rest) = message.split_once('\n').unwrap_or((&message, ""));
        // Many errors name their cause already.
        if !said.contains(head) {
            said.push_str(if said.is_empty() { "" } else { ": " });
            said.push_str(head);
        }
        for line in rest.lines().filter(|it| !it.is_empty()) {
            if !below.iter().any(|it| it == line) {
                below.push(line.to_owned());
            }
        }
    }
    // A stable sort: hints come last, and everything else stays in its order.
    below.sort_by_key(|line| line.starts_with("hint: "));
    below.insert(0, said);
    below.join("\n")
}

/// Returns the message of a cause. Errors of the system become a clause without their number.
fn message_of(cause: &(dyn std::error::Error + 'static)) -> String {
    let message = cause.to_string();
    let is_of_system =
        cause.downcast_ref::<io::Error>().is_some_and(|it| it.raw_os_error().is_some());
    match message.split_once(" (os error ") {
        Some((message, _)) if is_of_system => message[..1].to_lowercase() + &message[1..],
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn causes_come_before_hints_and_each_once() {
        let taken = io::Error::from(rustix::io::Errno::ADDRINUSE);
        let err = anyhow::Error::new(taken).context("cannot listen on 1:2\nhint: choose another");
        assert_eq!(
            text(&err),
            "cannot listen on 1:2: address already in use\nhint: choose another"
        );
        let inner = anyhow!("no such file\nhint: pull it\nits log:\n  a line");
        let err = inner.context("reading x: no such file\nhint: pull it").context("starting");
        assert_eq!(
            text(&err),
            "starting: reading x: no such file\nits log:\n  a line\nhint: pull it"
        );
        assert_eq!(text(&anyhow!("plain")), "plain");
    }
}
