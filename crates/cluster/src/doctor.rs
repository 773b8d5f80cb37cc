//! Says what is wrong with a cluster and what to type. Pure: what was looked at goes in, findings
//! come out. Every finding has a code of the [`catalogue`], from which `docs/troubleshooting.md` is
//! printed, so that a code seen anywhere can be looked up.

pub mod catalogue;
mod checks;
mod look;

use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

pub use catalogue::Entry;
pub use look::{Ask, names};

use crate::hostfile::Hostfile;
use crate::probe::{Echo, ModelFile};
use crate::report::NodeReport;
use crate::shell::ShellError;

/// How bad something is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Will hurt some day, or makes things slow.
    Warn,
    /// Ranks will not start or not compute.
    Error,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// A code of the catalogue, or what was checked if all is well.
    pub code: &'static str,
    /// The machine; `None` for what concerns several.
    pub node: Option<String>,
    /// What was looked at.
    pub about: &'static str,
    /// What was found there.
    pub found: String,
    /// What that means.
    pub explain: &'static str,
    /// What to type, one command or step each.
    pub type_this: Vec<String>,
}

/// A machine and what is known of it.
#[derive(Clone, Debug)]
pub struct Node {
    /// What `ssh` is given.
    pub name: String,
    /// What it told.
    pub report: Result<NodeReport, ShellError>,
    /// The files of the model's folder there: `None` if nobody asked, `Some(None)` without a folder.
    pub model: Option<Option<Vec<ModelFile>>>,
    /// What its pings found.
    pub echoes: Vec<Ping>,
}

/// A ping of another machine's address.
#[derive(Clone, Debug, PartialEq)]
pub struct Ping {
    /// The machine that was pinged.
    pub to: String,
    /// Its address.
    pub ip: IpAddr,
    /// What came back.
    pub echo: Echo,
}

/// All that is known.
#[derive(Clone, Copy, Debug)]
pub struct Examination<'a> {
    /// The machines as they should be.
    pub hostfile: Option<&'a Hostfile>,
    /// The machines as they are, each once.
    pub nodes: &'a [Node],
    /// The model's folder, if a model is meant to run.
    pub model: Option<&'a str>,
    /// Pings from this machine to those that could not be asked.
    pub here: &'a [Ping],
    /// Links between machines that this machine's server knows to be broken, each in a sentence.
    pub broken_links: &'a [String],
}

/// Says what is wrong, and what is right, machine by machine and then with all of them.
pub fn examine(examination: &Examination<'_>) -> Vec<Finding> {
    checks::all(examination)
}

/// Recognises known troubles in a log, in the order of the catalogue.
pub fn explain(log: &str) -> Vec<&'static Entry> {
    let log = log.to_lowercase();
    catalogue::all().filter(|entry| entry.signs.iter().any(|sign| has_sign(&log, sign))).collect()
}

/// True if `log`, in small letters, contains the sign and the sign's last number is a whole number
/// there: `errno 6` is not in `errno 60`.
fn has_sign(log: &str, sign: &str) -> bool {
    let sign = sign.to_lowercase();
    let ends_with_digit = sign.ends_with(|it: char| it.is_ascii_digit());
    log.match_indices(&sign).any(|(at, _)| {
        let next = log[at + sign.len()..].chars().next();
        !(ends_with_digit && next.is_some_and(|it| it.is_ascii_digit()))
    })
}

impl Severity {
    /// The word for people.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Warn => "warning",
            Severity::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Finding {
    /// Something is as it should be.
    fn ok(node: &str, about: &'static str, found: impl Into<String>) -> Finding {
        Finding {
            severity: Severity::Ok,
            code: "ok",
            node: Some(node.to_owned()),
            about,
            found: found.into(),
            explain: "",
            type_this: Vec::new(),
        }
    }

    /// An entry of the catalogue applies to a machine. `blanks` fill what stands in braces in what
    /// to type; `{node}` is always known.
    fn on(
        entry: &'static Entry,
        node: &str,
        found: impl Into<String>,
        blanks: &[(&str, &str)],
    ) -> Finding {
        let blanks: Vec<(&str, &str)> = [&[("node", node)], blanks].concat();
        let mut finding = Finding::of_all(entry, found, &blanks);
        finding.node = Some(node.to_owned());
        finding
    }

    /// An entry of the catalogue applies to the machines together.
    fn of_all(entry: &'static Entry, found: impl Into<String>, blanks: &[(&str, &str)]) -> Finding {
        Finding {
            severity: entry.severity,
            code: entry.code,
            node: None,
            about: entry.title,
            found: found.into(),
            explain: entry.explain,
            type_this: entry.type_this.iter().map(|line| filled(line, blanks)).collect(),
        }
    }

    /// The same, but not worse than this.
    fn at_most(mut self, severity: Severity) -> Finding {
        self.severity = self.severity.min(severity);
        self
    }
}

fn filled(line: &str, blanks: &[(&str, &str)]) -> String {
    let mut line = line.to_owned();
    for (name, value) in blanks {
        line = line.replace(&format!("{{{name}}}"), value);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(log: &str) -> Vec<&'static str> {
        explain(log).iter().map(|entry| entry.code).collect()
    }

    #[test]
    fn logs_of_the_stock_transports_are_recognised() {
        for (log, wanted) in [
            ("[jaccl] Changing queue pair to RTR failed with errno 22", "rtr-errno-22"),
            ("[jaccl] Changing queue pair to RTR failed with errno 60", "rtr-errno-60"),
            ("[jaccl] Changing queue pair to RTR failed with errno 16", "rdma-busy"),
            (
                "RuntimeError: [jaccl] Changing queue pair to RTR failed with errno 96",
                "rtr-errno-96",
            ),
            ("ValueError: [jaccl] Couldn't allocate protection domain", "protection-domain"),
            ("ibv_post_send failed with errno 12", "rdma-no-memory"),
            ("[jaccl] Recv failed with errno=57", "connection-stale"),
            ("[jaccl] Recv failed with errno=2", "other-rank-failed"),
            ("[jaccl] Couldn't connect (error: 60)", "connect-timeout"),
            ("connect: No route to host (errno 65)", "no-route"),
            ("BATCH DESYNC at step 22", "batch-desync"),
            ("OSError: [Errno 48] Address already in use", "address-in-use"),
            ("zsh: killed     python server.py\nKilled: 9", "out-of-memory"),
            ("[METAL] Command buffer execution failed: Caused GPU Timeout Error", "gpu-timeout"),
            ("[ring] sum_scatter not supported.", "ring-limits"),
            ("[distributed] Couldn't initialize any backend", "no-backend"),
            ("[jaccl] No IPv4-mapped GID for this device.", "rdma-no-ipv4-gid"),
            ("[jaccl] Could not find device rdma_en9 (3 available)", "rdma-device-missing"),
        ] {
            assert!(codes(log).contains(&wanted), "{log}: {:?}", codes(log));
        }
        assert_eq!(codes("loaded 4 shards in 3.1 s, errno 0"), [] as [&str; 0]);
    }

    #[test]
    fn a_number_is_recognised_whole() {
        assert!(has_sign("failed with errno 6.", "errno 6"));
        assert!(!has_sign("failed with errno 60", "errno 6"));
        assert!(has_sign("errno 60, then errno 6", "errno 6"));
    }
}
