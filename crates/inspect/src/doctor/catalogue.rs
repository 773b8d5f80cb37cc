//! All known problems in one table, grouped by subject.

mod table;

use std::fmt::{self, Write as _};

use serde::Serialize;

pub use table::*;

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

/// A known problem.
#[derive(Debug, Eq, PartialEq)]
pub struct Entry {
    /// Permanent code, such as `ssh-refused`.
    pub code: &'static str,
    /// Severity of the problem; a check may report it with a lower one.
    pub severity: Severity,
    /// Title, used as a heading.
    pub title: &'static str,
    /// Cause and effect.
    pub explain: &'static str,
    /// Commands or steps to take, one each; names in braces are replaced.
    pub type_this: &'static [&'static str],
    /// Texts by which the problem is recognised in a log.
    pub signs: &'static [&'static str],
}

/// Returns `name` in lowercase, with hyphens in place of underscores.
const fn kebab_case<const LEN: usize>(name: &str) -> [u8; LEN] {
    let mut kebab = [0; LEN];
    let mut idx = 0;
    while idx < LEN {
        let byte = name.as_bytes()[idx];
        kebab[idx] = if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
        idx += 1;
    }
    kebab
}

/// Returns all entries.
pub fn all() -> impl Iterator<Item = &'static Entry> {
    GROUPS.iter().flat_map(|(_, entries)| entries.iter().copied())
}

/// Returns the entry with this code.
pub fn entry(code: &str) -> Option<&'static Entry> {
    all().find(|entry| entry.code == code)
}

/// Renders the whole catalogue as `docs/troubleshooting.md`.
pub fn markdown() -> String {
    let mut text = "# Troubleshooting\n\n\
        `jackalope doctor` detects most of these problems and reports them with these codes;\n\
        `jackalope doctor --log FILE` recognises it in a log. Words in braces are placeholders.\n\
        This page is printed by `jackalope doctor --catalogue`; it is not edited by hand.\n"
        .to_owned();
    for (heading, entries) in GROUPS {
        write!(text, "\n## {heading}\n").expect("a String takes everything");
        for entry in *entries {
            section(&mut text, entry).expect("a String takes everything");
        }
    }
    text
}

fn section(text: &mut String, entry: &Entry) -> fmt::Result {
    write!(text, "\n### `{}`: {}\n\n{}\n", entry.code, entry.title, entry.explain)?;
    if !entry.signs.is_empty() {
        let signs: Vec<String> = entry.signs.iter().map(|it| format!("`{it}`")).collect();
        write!(text, "\nIn logs: {}\n", signs.join(", "))?;
    }
    writeln!(text)?;
    for line in entry.type_this {
        writeln!(text, "- {line}")?;
    }
    writeln!(text, "\n*{}*", entry.severity)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_entry_has_a_code_of_its_own_an_explanation_and_something_to_type() {
        let mut codes = BTreeSet::new();
        for entry in all() {
            assert!(codes.insert(entry.code), "{} is there twice", entry.code);
            assert!(entry.explain.ends_with('.'), "{}", entry.code);
            assert!(!entry.type_this.is_empty(), "{}", entry.code);
            assert!(!entry.title.ends_with('.'), "{}", entry.code);
        }
        assert_eq!(entry("ssh-refused"), Some(&SSH_REFUSED));
    }

    #[test]
    fn the_page_of_troubles_is_the_catalogue() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/troubleshooting.md");
        let page = std::fs::read_to_string(path).unwrap_or_default();
        let hint = "run `jackalope doctor --catalogue > docs/troubleshooting.md`";
        assert!(page == markdown(), "docs/troubleshooting.md is not the catalogue: {hint}");
    }
}
