//! Parses the output of the scripts.

use std::collections::BTreeMap;

/// The output of a script, by the names of its sections.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Sections(BTreeMap<String, Section>);

/// The output of one tool.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Section {
    /// Standard output and standard error of the tool.
    pub text: String,
    /// How the tool ended.
    pub ending: ToolEnding,
}

/// How a tool ended.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum ToolEnding {
    /// The tool ended with this status.
    Status(i32),
    /// The tool was killed because it took too long.
    Stuck,
    /// There is no tool of this name.
    Missing(String),
    /// The script's output ends before the tool's end.
    #[default]
    CutOff,
}

impl Sections {
    /// Parses a script's output. Text before the first marker, such as a server's greeting, is
    /// skipped.
    pub fn parse(text: &str) -> Sections {
        let mut sections = BTreeMap::new();
        for piece in text.split("\n@@section ").skip(1) {
            let (name, rest) = piece.split_once('\n').unwrap_or((piece, ""));
            sections.insert(name.to_owned(), Section::parse(rest));
        }
        Sections(sections)
    }

    /// Returns the section of this name.
    pub fn get(&self, name: &str) -> Option<&Section> {
        self.0.get(name)
    }

    /// Returns the output of a tool that ended with status 0, and an empty text otherwise.
    pub fn text(&self, name: &str) -> &str {
        let section = self.get(name).filter(|it| it.ending == ToolEnding::Status(0));
        section.map_or("", |it| &it.text)
    }

    /// Returns the output of a tool, however the tool ended.
    pub fn any_text(&self, name: &str) -> &str {
        self.get(name).map_or("", |it| &it.text)
    }

    /// Returns true if the tool is not installed.
    pub fn is_missing(&self, name: &str) -> bool {
        self.get(name).is_none_or(|it| matches!(it.ending, ToolEnding::Missing(_)))
    }

    /// Returns the sections with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Section)> {
        self.0.iter().map(|(name, section)| (name.as_str(), section))
    }
}

impl Section {
    fn parse(rest: &str) -> Section {
        // Searches for the last marker, because the tool's output may contain anything.
        let rest = rest.trim_end();
        let start = rest.rfind("@@status ").or_else(|| rest.rfind("@@missing "));
        let Some(start) = start else {
            return Section { text: rest.to_owned(), ending: ToolEnding::CutOff };
        };
        let (text, marker) = rest.split_at(start);
        let ending = match marker.split_once(' ') {
            Some(("@@status", status)) => match status.trim().parse() {
                // 128 plus SIGKILL, which only the time limit sends.
                Ok(137) => ToolEnding::Stuck,
                Ok(status) => ToolEnding::Status(status),
                Err(_) => ToolEnding::CutOff,
            },
            Some((_, tool)) => ToolEnding::Missing(tool.trim().to_owned()),
            None => ToolEnding::CutOff,
        };
        Section { text: text.trim_end_matches('\n').to_owned(), ending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::output_of;
    use std::time::{Duration, Instant};

    #[test]
    fn tools_that_fail_hang_or_are_missing_are_distinguished() {
        let script = format!(
            "{}\nsay good 5 echo '@@status 9'\nsay bad 5 sh -c 'echo oops >&2; exit 3'\n\
             say stuck 1 sleep 60\nsay gone 5 no-such-tool-here",
            super::super::PRELUDE
        );
        let start = Instant::now();
        let text = output_of("/bin/sh", &["-c", &script], Duration::from_secs(20)).unwrap();
        assert!(start.elapsed() < Duration::from_secs(15));
        let sections = Sections::parse(&text);
        assert_eq!(sections.text("good"), "@@status 9");
        assert_eq!(sections.get("bad").unwrap().ending, ToolEnding::Status(3));
        assert_eq!((sections.text("bad"), sections.any_text("bad")), ("", "oops"));
        assert_eq!(sections.get("stuck").unwrap().ending, ToolEnding::Stuck);
        assert!(sections.is_missing("gone") && sections.is_missing("never asked"));
    }

    #[test]
    fn a_script_that_was_cut_off_keeps_what_it_said() {
        let sections = Sections::parse(
            "Welcome!\n\n@@section uname\nLinux 6\n\n@@status 0\n\n@@section ip_addr\n1: lo",
        );
        assert_eq!(sections.text("uname"), "Linux 6");
        assert_eq!(sections.text("ip_addr"), "");
        assert_eq!(sections.get("ip_addr").unwrap().ending, ToolEnding::CutOff);
    }
}
