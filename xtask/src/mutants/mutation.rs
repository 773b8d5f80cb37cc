//! The mutations: patch files of one mistake each, the tests that must find it, and what git says
//! about them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use super::test_id::TestId;
use crate::process::{command, workspace_dir};

/// The folder of the mutations of the engine that the mutation search must find.
const SEARCHED: &str = "crates/engine/tests/mutations";

/// The folder of the mutations that name the tests that must find them.
const ATTACKS: &str = "tests/mutations";

/// The only folder that searched mutations change.
const SEARCHED_SOURCES: &str = "crates/engine/src";

/// Sources that belong to the tests, which a mutation must not weaken.
const TESTS: [&str; 5] = [
    "crates/engine/src/fairness.rs",
    "crates/engine/src/simulation.rs",
    "crates/engine/src/simulation/",
    "crates/engine/src/testing.rs",
    "crates/testing/",
];

/// Begins the line that names a test, in the notation of [`TestId`].
const CAUGHT_BY: &str = "Caught-by: ";

/// Begins the line after it: a part of what the failing test prints.
const FAILS_WITH: &str = "Fails-with: ";

/// A patch file that makes one mistake in the product.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Mutation {
    /// The name of the file without its ending.
    pub(crate) name: String,
    /// The sentence before the patch: the mistake and the invariant it breaks.
    pub(crate) about: String,
    /// The patch file, from the root of the workspace.
    pub(crate) path: PathBuf,
    /// The files it changes, from the root of the workspace.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) expectation: Expectation,
}

/// What must find a mutation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Expectation {
    /// Some seed of the engine's simulation or fairness tests.
    Search,
    /// Each of these tests.
    Tests(Vec<ExpectedFailure>),
}

/// A test that must fail, and how.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ExpectedFailure {
    pub(crate) test: TestId,
    /// A part of what it prints when it fails because of the mutation.
    pub(crate) text: String,
}

impl Mutation {
    /// Reads all mutations, sorted by name.
    pub(crate) fn load_all() -> anyhow::Result<Vec<Mutation>> {
        let mut all = Vec::new();
        for folder in [SEARCHED, ATTACKS] {
            let dir = workspace_dir().join(folder);
            for entry in fs::read_dir(&dir).with_context(|| format!("listing {}", dir.display()))? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                let name = name.strip_suffix(".patch").with_context(|| {
                    format!("{folder}/{name} is no patch\nhint: remove it, or name it NAME.patch")
                })?;
                let path = Path::new(folder).join(format!("{name}.patch"));
                let text = fs::read_to_string(workspace_dir().join(&path))
                    .with_context(|| format!("reading {}", path.display()))?;
                all.push(Mutation::parse(name, path, &text)?);
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        for pair in all.windows(2) {
            ensure!(pair[0].name != pair[1].name, "two mutations are named {}", pair[0].name);
        }
        Ok(all)
    }

    fn parse(name: &str, path: PathBuf, text: &str) -> anyhow::Result<Mutation> {
        let before = text.split("--- a/").next().unwrap_or_default();
        let is_header = |line: &&str| line.starts_with(CAUGHT_BY) || line.starts_with(FAILS_WITH);
        let (headers, sentences): (Vec<&str>, Vec<&str>) = before.lines().partition(is_header);
        let about = sentences.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(
            about.ends_with('.'),
            "mutation {name} does not begin with a sentence\n\
             hint: before the patch, say what the mistake is and which invariant it breaks"
        );
        let expectation =
            Expectation::parse(&headers).with_context(|| format!("mutation {name}"))?;
        let is_searched = path.starts_with(SEARCHED);
        ensure!(
            is_searched == (expectation == Expectation::Search),
            "mutation {name} {}\nhint: those in {ATTACKS} name them, with `{CAUGHT_BY}TEST` and \
             `{FAILS_WITH}TEXT`; those in {SEARCHED} do not",
            if is_searched { "names tests" } else { "names no tests" }
        );
        let changed = text.lines().filter_map(|line| line.strip_prefix("+++ b/"));
        let files: Vec<PathBuf> = changed.map(PathBuf::from).collect();
        ensure!(!files.is_empty(), "mutation {name} changes no file");
        for file in &files {
            ensure!(
                is_product(file, is_searched),
                "mutation {name} changes {}\nhint: mutations change product code only{}",
                file.display(),
                if is_searched { format!(", here of {SEARCHED_SOURCES}") } else { String::new() }
            );
        }
        Ok(Mutation { name: name.to_owned(), about, path, files, expectation })
    }

    /// Applies the patch to the files under `root`.
    ///
    /// # Errors
    /// If it does not apply; no file is changed then.
    pub(crate) fn apply(&self, root: &Path) -> anyhow::Result<()> {
        self.git_apply(root, &[])
    }

    /// Checks that the patch applies to the workspace.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.git_apply(&workspace_dir(), &["--check"])
    }

    fn git_apply(&self, root: &Path, options: &[&str]) -> anyhow::Result<()> {
        let mut git = command("git");
        git.arg("apply").args(options).arg(workspace_dir().join(&self.path)).current_dir(root);
        // Inside a repository, git would take the paths as relative to its root.
        git.env("GIT_CEILING_DIRECTORIES", root.parent().unwrap_or(root));
        git.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE");
        let output = git.output().context("starting git")?;
        if output.status.success() {
            return Ok(());
        }
        bail!(
            "mutation {} no longer applies: {}\n\
             hint: make the same mistake in today's code, and write its diff to {}: {}",
            self.name,
            String::from_utf8_lossy(&output.stderr).trim(),
            self.path.display(),
            self.about
        )
    }

    /// Returns the tests that must find it; none if the mutation search does.
    pub(crate) fn tests(&self) -> impl Iterator<Item = &TestId> {
        let failures = match &self.expectation {
            Expectation::Search => &[][..],
            Expectation::Tests(failures) => failures,
        };
        failures.iter().map(|it| &it.test)
    }

    /// Returns true if the mutation search must find it, which is cheap.
    pub(crate) fn is_searched(&self) -> bool {
        self.expectation == Expectation::Search
    }

    /// Returns true if one of these files is its patch or one that it changes.
    pub(crate) fn is_about(&self, changed: &[PathBuf]) -> bool {
        changed.iter().any(|it| *it == self.path || self.files.contains(it))
    }
}

impl Expectation {
    fn parse(headers: &[&str]) -> anyhow::Result<Expectation> {
        if headers.is_empty() {
            return Ok(Expectation::Search);
        }
        let failures = headers.chunks(2).map(|pair| {
            let test = pair[0].strip_prefix(CAUGHT_BY);
            let text = pair.get(1).and_then(|it| it.strip_prefix(FAILS_WITH)).map(str::trim);
            let (Some(test), Some(text)) = (test, text.filter(|it| !it.is_empty())) else {
                bail!("`{}` is not one of a pair `{CAUGHT_BY}TEST`, `{FAILS_WITH}TEXT`", pair[0]);
            };
            Ok(ExpectedFailure { test: TestId::parse(test.trim())?, text: text.to_owned() })
        });
        Ok(Expectation::Tests(failures.collect::<anyhow::Result<_>>()?))
    }
}

fn is_product(file: &Path, is_searched: bool) -> bool {
    let text = file.to_string_lossy();
    let parts: Vec<&str> = text.split('/').collect();
    let is_source = parts.len() > 3 && parts[0] == "crates" && parts[2] == "src";
    is_source
        && parts.last() != Some(&"tests.rs")
        && TESTS.iter().all(|it| !text.starts_with(it))
        && (!is_searched || file.starts_with(SEARCHED_SOURCES))
}

/// Returns the files that differ from the merge base with `base`, relative to the root of the
/// workspace.
pub(crate) fn changed_since(base: &str) -> anyhow::Result<Vec<PathBuf>> {
    let fork = git(&["merge-base", base, "HEAD"])?;
    let names = git(&["diff", "--name-only", "--no-renames", fork.trim()])?;
    Ok(names.lines().map(PathBuf::from).collect())
}

/// Returns the name of the default branch, if this repository knows it.
pub(crate) fn default_branch() -> Option<String> {
    if let Ok(name) = git(&["symbolic-ref", "--quiet", "refs/remotes/origin/HEAD"]) {
        return Some(name.trim().to_owned());
    }
    let names = ["refs/remotes/origin/main", "refs/heads/main"];
    let mut known = names.into_iter().filter(|it| git(&["rev-parse", "--verify", it]).is_ok());
    known.next().map(str::to_owned)
}

fn git(args: &[&str]) -> anyhow::Result<String> {
    let output =
        command("git").args(args).current_dir(workspace_dir()).output().context("starting git")?;
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(output.status.success(), "git {} failed: {stderr}", args.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str =
        "--- a/crates/engine/src/kv_cache.rs\n+++ b/crates/engine/src/kv_cache.rs\n";

    const TEST: &str = "cli::it::recovery::both_ranks_killed_at_once_change_no_answer";

    fn parse(folder: &str, text: &str) -> anyhow::Result<Mutation> {
        Mutation::parse("a-mistake", Path::new(folder).join("a-mistake.patch"), text)
    }

    #[test]
    fn a_mutation_is_a_sentence_and_a_patch_of_product_code() {
        let searched = |text: &str| parse(SEARCHED, text);
        let mutation = searched(&format!("Leaks\na cache.\n\n{PATCH}")).unwrap();
        assert_eq!(mutation.about, "Leaks a cache.");
        assert_eq!(mutation.files, [PathBuf::from("crates/engine/src/kv_cache.rs")]);
        assert!(mutation.is_about(&mutation.files) && !mutation.is_about(&[]));
        assert!(mutation.is_searched());
        assert!(searched(PATCH).unwrap_err().to_string().contains("a sentence"));
        assert!(searched("Leaks.\n").unwrap_err().to_string().contains("no file"));
        for outside in ["crates/engine/src/simulation.rs", "crates/text/src/lib.rs"] {
            let text = format!("Leaks.\n--- a/{outside}\n+++ b/{outside}\n");
            assert!(searched(&text).unwrap_err().to_string().contains("product code"));
        }
    }

    #[test]
    fn an_attack_names_the_tests_that_must_fail_and_how() {
        let attack = |text: &str| parse(ATTACKS, text);
        let headers = format!("Caught-by: {TEST}\nFails-with: a stream\n");
        let mutation = attack(&format!("Leaks.\n\n{headers}\n{PATCH}")).unwrap();
        assert_eq!(mutation.about, "Leaks.");
        let Expectation::Tests(failures) = &mutation.expectation else { panic!("{mutation:?}") };
        assert_eq!((failures[0].test.to_string().as_str(), &*failures[0].text), (TEST, "a stream"));
        let err = attack(&format!("Leaks.\n{PATCH}")).unwrap_err().to_string();
        assert!(err.contains("names no tests"), "{err}");
        assert!(parse(SEARCHED, &format!("Leaks.\n{headers}{PATCH}")).is_err());
        for wrong in
            [format!("Caught-by: {TEST}\n"), format!("Caught-by: {TEST}x\nFails-with: a\n")]
        {
            assert!(attack(&format!("Leaks.\n{wrong}{PATCH}")).is_err(), "{wrong}");
        }
    }
}
