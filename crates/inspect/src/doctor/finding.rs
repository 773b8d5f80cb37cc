//! A result of the diagnosis.

use serde::Serialize;

use super::catalogue::{Entry, Severity};

/// One result of the diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Severity of the finding.
    pub severity: Severity,
    /// Code from the catalogue; `ok` if all is well.
    pub code: &'static str,
    /// Machine that the finding concerns; `None` if it concerns several.
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

impl Finding {
    /// Creates a finding without a problem. `about` is what was checked, `found` what was observed.
    pub(super) fn ok(node: &str, about: &'static str, found: impl Into<String>) -> Finding {
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
    pub(super) fn on(
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
    pub(super) fn of_all(
        entry: &'static Entry,
        found: impl Into<String>,
        blanks: &[(&str, &str)],
    ) -> Finding {
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
    pub(super) fn at_most(mut self, severity: Severity) -> Finding {
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
