//! The mutations: patch files of one mistake each, and what git says about them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use crate::process::{command, workspace_dir};

/// The folder of the patch files, from the root of the workspace.
const MUTATIONS: &str = "crates/engine/tests/mutations";

/// Mutations change files in this folder only.
const PRODUCT: &str = "crates/engine/src";

/// Files in it that belong to the tests, which a mutation must not weaken.
const TESTS: [&str; 4] =
    ["fairness.rs", "simulation.rs", "simulation/random_guide.rs", "testing.rs"];

/// A patch file that makes one mistake in the engine.
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
}

impl Mutation {
    /// Reads all mutations, sorted by name.
    pub(crate) fn load_all() -> anyhow::Result<Vec<Mutation>> {
        let dir = workspace_dir().join(MUTATIONS);
        let mut all = Vec::new();
        for entry in fs::read_dir(&dir).with_context(|| format!("listing {}", dir.display()))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let name = name.strip_suffix(".patch").with_context(|| {
                format!("{MUTATIONS}/{name} is no patch\nhint: remove it, or name it NAME.patch")
            })?;
            let path = Path::new(MUTATIONS).join(format!("{name}.patch"));
            let text = fs::read_to_string(workspace_dir().join(&path))
                .with_context(|| format!("reading {}", path.display()))?;
            all.push(Mutation::parse(name, path, &text)?);
        }
        ensure!(!all.is_empty(), "{MUTATIONS} has no mutations");
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn parse(name: &str, path: PathBuf, text: &str) -> anyhow::Result<Mutation> {
        let before = text.split("--- a/").next().unwrap_or_default();
        let about = before.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(
            about.ends_with('.'),
            "mutation {name} does not begin with a sentence\n\
             hint: before the patch, say what the mistake is and which invariant it breaks"
        );
        let changed = text.lines().filter_map(|line| line.strip_prefix("+++ b/"));
        let files: Vec<PathBuf> = changed.map(PathBuf::from).collect();
        ensure!(!files.is_empty(), "mutation {name} changes no file");
        for file in &files {
            let in_product = file.strip_prefix(PRODUCT);
            ensure!(
                in_product.is_ok_and(|it| TESTS.iter().all(|test| it != Path::new(test))),
                "mutation {name} changes {}\nhint: mutations change product code of {PRODUCT} only",
                file.display()
            );
        }
        Ok(Mutation { name: name.to_owned(), about, path, files })
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

    /// Returns true if one of these files is its patch or one that it changes.
    pub(crate) fn is_about(&self, changed: &[PathBuf]) -> bool {
        changed.iter().any(|it| *it == self.path || self.files.contains(it))
    }
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

    fn parse(text: &str) -> anyhow::Result<Mutation> {
        Mutation::parse("a-mistake", PathBuf::from("a-mistake.patch"), text)
    }

    #[test]
    fn a_mutation_is_a_sentence_and_a_patch_of_product_code() {
        let patch = "--- a/crates/engine/src/kv_cache.rs\n+++ b/crates/engine/src/kv_cache.rs\n";
        let mutation = parse(&format!("Leaks\na cache.\n\n{patch}")).unwrap();
        assert_eq!(mutation.about, "Leaks a cache.");
        assert_eq!(mutation.files, [PathBuf::from("crates/engine/src/kv_cache.rs")]);
        assert!(mutation.is_about(&mutation.files) && !mutation.is_about(&[]));
        assert!(parse(patch).unwrap_err().to_string().contains("a sentence"));
        assert!(parse("Leaks.\n").unwrap_err().to_string().contains("no file"));
        for outside in ["crates/engine/src/simulation.rs", "crates/text/src/lib.rs"] {
            let text = format!("Leaks.\n--- a/{outside}\n+++ b/{outside}\n");
            assert!(parse(&text).unwrap_err().to_string().contains("product code"));
        }
    }
}
