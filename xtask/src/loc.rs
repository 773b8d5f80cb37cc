//! `cargo xtask loc`: counts lines of code, tests and comments by crate. Blank lines do not count;
//! lines after `#[cfg(test)]` in a file, and files of tests, count as tests.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// Lines of one crate.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Lines {
    pub(crate) code: usize,
    tests: usize,
    comments: usize,
}

impl Lines {
    fn add(&mut self, other: Lines) {
        self.code += other.code;
        self.tests += other.tests;
        self.comments += other.comments;
    }
}

pub(crate) fn run(_: &[String]) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(root.join("crates")).context("listing crates")? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    println!("{:<12}{:>8}{:>8}{:>10}", "", "code", "tests", "comments");
    let mut all = Lines::default();
    let dirs = names.iter().map(|name| (name.as_str(), root.join("crates").join(name)));
    for (name, dir) in dirs.chain([("xtask", root.join("xtask"))]) {
        let lines = of_crate(&dir)?;
        println!("{name:<12}{:>8}{:>8}{:>10}", lines.code, lines.tests, lines.comments);
        all.add(lines);
    }
    println!("{:<12}{:>8}{:>8}{:>10}", "all", all.code, all.tests, all.comments);
    Ok(())
}

/// The lines of a crate.
pub(crate) fn of_crate(dir: &Path) -> anyhow::Result<Lines> {
    of_dir(dir, false)
}

fn of_dir(dir: &Path, is_test: bool) -> anyhow::Result<Lines> {
    let mut sum = Lines::default();
    for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|it| it.to_str()).unwrap_or_default();
        let is_test = is_test || name == "tests" || name == "tests.rs";
        if path.is_dir() {
            sum.add(of_dir(&path, is_test)?);
        } else if [".rs", ".cc", ".h"].iter().any(|end| name.ends_with(end)) {
            let text = fs::read_to_string(&path);
            let text = text.with_context(|| format!("reading {}", path.display()))?;
            sum.add(of_text(&text, is_test));
        }
    }
    Ok(sum)
}

fn of_text(text: &str, is_test: bool) -> Lines {
    let (mut lines, mut is_test) = (Lines::default(), is_test);
    let mut rest = text.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    while let Some(line) = rest.next() {
        // `mod tests;` refers to another file, so the code continues after it.
        let mut opens_tests = || rest.peek().is_some_and(|it| it.starts_with("mod tests {"));
        is_test |= line == "#[cfg(test)]" && opens_tests();
        match line {
            _ if line.starts_with("//") => lines.comments += 1,
            _ if is_test => lines.tests += 1,
            _ => lines.code += 1,
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_tests_and_comments_are_distinguished() {
        let text = "//! Doc.\n\nfn a() {}\n#[cfg(test)]\nmod lab;\n#[cfg(test)]\nmod tests {\n    // Why.\n    fn b() {}\n}\n";
        assert_eq!(of_text(text, false), Lines { code: 3, tests: 4, comments: 2 });
        assert_eq!(of_text(text, true), Lines { code: 0, tests: 7, comments: 2 });
    }
}
