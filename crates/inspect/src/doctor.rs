//! Diagnoses a cluster and recommends commands. Pure: reports go in, findings come out. Every
//! finding has a code from the [`catalogue`], from which `docs/troubleshooting.md` is generated, so
//! that every code can be looked up there.

pub mod catalogue;
mod checks;
mod look;

use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

pub use catalogue::Entry;
pub use look::{Ask, names};

use jackalope_fleet::hostfile::Hostfile;
use jackalope_fleet::shell::ShellError;

use crate::probe::{Echo, ModelFile};
use crate::report::NodeReport;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// No problem.
    Ok,
    /// Information that needs no action.
    Note,
    /// A risk, or a cause of slowness.
    Warn,
    /// Ranks cannot start or cannot compute.
    Error,
}

/// One result of the diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Severity of the finding.
    pub severity: Severity,
    /// Code from the catalogue; `ok` if all is well.
    pub code: &'static str,
    /// Machine that it concerns; `None` if it concerns several.
    pub node: Option<String>,
    /// Title of the catalogue's entry, or what was checked.
    pub about: &'static str,
    /// What was observed.
    pub found: String,
    /// What the observation means.
    pub explain: &'static str,
    /// Commands or steps to take, one each.
    pub type_this: Vec<String>,
}

/// A machine and all data that was collected about it.
#[derive(Clone, Debug)]
pub struct Node {
    /// Name of the machine, as given to `ssh`.
    pub name: String,
    /// The machine's report, or why there is none.
    pub report: Result<NodeReport, ShellError>,
    /// The files of the model's folder there. `None` if they were not requested, `Some(None)` if
    /// there is no such folder.
    pub model: Option<Option<Vec<ModelFile>>>,
    /// Results of the pings that it sent.
    pub echoes: Vec<Ping>,
}

/// A ping of another machine's address.
#[derive(Clone, Debug, PartialEq)]
pub struct Ping {
    /// The machine that was pinged.
    pub to: String,
    /// Address that was pinged.
    pub ip: IpAddr,
    /// Result of the ping.
    pub echo: Echo,
}

/// Everything that a diagnosis is based on.
#[derive(Clone, Copy, Debug)]
pub struct Examination<'a> {
    /// The machines as the hostfile describes them.
    pub hostfile: Option<&'a Hostfile>,
    /// The machines as they report themselves, each of them once.
    pub nodes: &'a [Node],
    /// Folder of the model to run, if any.
    pub model: Option<&'a str>,
    /// Pings from this machine to machines that could not report.
    pub here: &'a [Ping],
    /// Broken links between machines that this machine's server knows of, each described in a
    /// sentence.
    pub broken_links: &'a [String],
}

/// Returns all findings, good and bad: first machine by machine, then those of all machines
/// together.
pub fn examine(examination: &Examination<'_>) -> Vec<Finding> {
    checks::all(examination)
}

/// Recognises known problems in a log; in the order of the catalogue.
pub fn explain(log: &str) -> Vec<&'static Entry> {
    let log = log.to_lowercase();
    catalogue::all().filter(|entry| entry.signs.iter().any(|sign| has_sign(&log, sign))).collect()
}

/// Returns true if `log`, in lowercase, contains the sign. A number at the end of the sign must
/// match a whole number: `errno 6` does not match `errno 60`.
fn has_sign(log: &str, sign: &str) -> bool {
    let sign = sign.to_lowercase();
    let ends_with_digit = sign.ends_with(|it: char| it.is_ascii_digit());
    log.match_indices(&sign).any(|(at, _)| {
        let next = log[at + sign.len()..].chars().next();
        !(ends_with_digit && next.is_some_and(|it| it.is_ascii_digit()))
    })
}

impl Severity {
    /// Returns the word that is shown to people.
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
    /// Creates a finding that something is as it should be.
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

    /// Creates a finding from an entry of the catalogue for one machine. `blanks` replace the names
    /// in braces in the commands; `{node}` is always defined.
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

    /// Creates a finding from an entry of the catalogue for all machines together.
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

    /// Lowers the severity to `severity` if it is higher.
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
