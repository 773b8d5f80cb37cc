//! Queries the facts of a machine with scripts that need none of our programs there.
//!
//! A script prints one section for each tool: a marker, the tool's output, and how the tool ended.
//! A missing or stuck tool is reported and is not a failure: every tool has its own time limit, and
//! the whole script has that of the [`Shell`].

mod sections;

use std::thread;
use std::time::Duration;

use jackalope_protocol::machine::NodeFacts;

pub use sections::{Section, Sections, ToolEnding};

use crate::platform;
use crate::shell::{Shell, ShellError};

/// Shell functions that run each tool with a time limit and report how it ended.
pub const PRELUDE: &str = include_str!("facts/prelude.sh");
/// Queries hardware and system.
pub const FACTS: &str = include_str!("facts/facts.sh");

/// Time for collecting this machine's facts.
const FACTS_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns this machine's hardware and system; fields that the script cannot find out are empty.
pub fn facts_here() -> NodeFacts {
    let script = format!("{PRELUDE}\n{FACTS}");
    let text = crate::process::output_of("/bin/sh", &["-c", &script], FACTS_TIMEOUT);
    platform::facts_of(&Sections::parse(&text.unwrap_or_default()))
}

/// Returns a machine's hardware and system.
///
/// # Errors
/// If the script could not be run there.
pub fn facts(shell: &dyn Shell, host: &str, timeout: Duration) -> Result<NodeFacts, ShellError> {
    let output = shell.run(host, &format!("{PRELUDE}\n{FACTS}"), b"", timeout)?;
    Ok(platform::facts_of(&Sections::parse(&output.stdout)))
}

/// Runs `look` for all hosts at the same time; returns the results in the order of `hosts`.
pub fn at_once<H: Sync, T: Send>(hosts: &[H], look: impl Fn(&H) -> T + Sync) -> Vec<T> {
    let look = &look;
    thread::scope(|scope| {
        let threads: Vec<_> = hosts.iter().map(|host| scope.spawn(move || look(host))).collect();
        threads.into_iter().map(|it| it.join().expect("looking does not panic")).collect()
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_machine_reports_its_facts() {
        let facts = super::facts_here();
        assert!(0 < facts.cores && 0 < facts.free_bytes, "{facts:?}");
        assert!(facts.free_bytes <= facts.total_bytes, "{facts:?}");
        assert!(!facts.os.is_empty() && !facts.arch.is_empty(), "{facts:?}");
        assert!(facts.interfaces.iter().any(|it| !it.addrs.is_empty()), "{facts:?}");
    }
}
