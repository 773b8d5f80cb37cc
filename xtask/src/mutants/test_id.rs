//! Names of tests as documents write them: crate, test target or module, test.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::process::workspace_dir;

/// A test, written `crate::target::module::test`, or `crate::module::test` for a unit test. Modules
/// named `tests` are left out.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct TestId {
    pub(crate) program: TestProgram,
    /// The modules and the name, joined by `::`.
    path: String,
}

/// A test program that cargo builds.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct TestProgram {
    /// The folder of the crate in `crates`.
    pub(crate) crate_name: String,
    /// The integration test target; `None` for the unit tests of the library.
    pub(crate) target: Option<String>,
}

impl TestId {
    /// Parses a name and checks that the test exists in the workspace.
    pub(crate) fn parse(text: &str) -> anyhow::Result<TestId> {
        let mut parts = text.split("::");
        let crate_name = parts.next().unwrap_or_default().to_owned();
        let mut modules: Vec<&str> = parts.collect();
        let dir = Path::new("crates").join(&crate_name);
        let in_workspace = |path: &Path| workspace_dir().join(path).exists();
        let first = modules.first().copied().unwrap_or_default();
        let targets = dir.join("tests");
        let is_target = !first.is_empty()
            && (in_workspace(&targets.join(first).join("main.rs"))
                || in_workspace(&targets.join(format!("{first}.rs"))));
        let target = is_target.then(|| modules.remove(0).to_owned());
        let root = match &target {
            Some(target) => targets.join(target),
            None => dir.join("src"),
        };
        let hint = "hint: write CRATE::TARGET::MODULE::TEST, or CRATE::MODULE::TEST for a unit \
                    test, without modules named `tests`";
        let name = modules.pop().with_context(|| format!("`{text}` is no test\n{hint}"))?;
        let function = format!("fn {name}(");
        let has_test = |file: &PathBuf| {
            std::fs::read_to_string(workspace_dir().join(file))
                .is_ok_and(|it| it.contains(&function))
        };
        ensure!(
            sources(&root, &modules).iter().any(has_test),
            "there is no test {text}: {} has no `{function}`\n{hint}",
            root.join(modules.join("/")).display()
        );
        let path = modules.iter().chain([&name]).copied().collect::<Vec<_>>().join("::");
        Ok(TestId { program: TestProgram { crate_name, target }, path })
    }

    /// Finds, in the list of a test program's tests, the complete name of this one.
    pub(crate) fn full_name(&self, listed: &str) -> Option<String> {
        let mut names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        let is_this = |name: &&str| {
            let parts = name.split("::").filter(|it| *it != "tests");
            parts.eq(self.path.split("::"))
        };
        names.find(is_this).map(str::to_owned)
    }
}

/// Returns the files that may hold the tests of a module.
fn sources(root: &Path, modules: &[&str]) -> Vec<PathBuf> {
    let module = modules.iter().fold(root.to_owned(), |path, it| path.join(it));
    let mut files: Vec<PathBuf> =
        ["mod.rs", "tests.rs", "main.rs", "lib.rs"].map(|it| module.join(it)).into();
    files.push(module.with_extension("rs"));
    files
}

impl fmt::Display for TestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program.crate_name)?;
        if let Some(target) = &self.program.target {
            write!(f, "::{target}")?;
        }
        write!(f, "::{}", self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_tests_that_exist() {
        let of_target = "cli::it::recovery::both_ranks_killed_at_once_change_no_answer";
        let parsed = TestId::parse(of_target).unwrap();
        assert_eq!(parsed.program.target.as_deref(), Some("it"));
        assert_eq!(parsed.to_string(), of_target);
        let listed =
            "floods::a: test\nrecovery::both_ranks_killed_at_once_change_no_answer: test\n";
        assert!(parsed.full_name(listed).is_some_and(|it| it.starts_with("recovery::both")));
        assert_eq!(parsed.full_name("floods::a: test\n"), None);

        let unit = "protocol::secure::a_recorded_handshake_admits_no_peer";
        let parsed = TestId::parse(unit).unwrap();
        assert_eq!((parsed.program.target.as_deref(), parsed.to_string().as_str()), (None, unit));
        let listed = "secure::tests::a_recorded_handshake_admits_no_peer: test\n";
        assert!(parsed.full_name(listed).is_some());

        for wrong in ["", "cli", "cli::it::recovery::nothing", "nowhere::it::recovery::x"] {
            assert!(TestId::parse(wrong).is_err(), "{wrong}");
        }
    }
}
