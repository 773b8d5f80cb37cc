//! A copy of the workspace in which mutations are built.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

use crate::process::{command, workspace_dir};

/// Makes `target` a copy of the files of the workspace that git tracks or would add. Files with the
/// same content keep their times, so that cargo does not build them again.
pub(super) fn copy_workspace(target: &Path) -> anyhow::Result<()> {
    let output = command("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(workspace_dir())
        .output()
        .context("listing files with git")?;
    ensure!(output.status.success(), "git could not list the files");
    let text = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    let mut names = BTreeSet::new();
    for name in text.split_terminator('\0').map(Path::new) {
        let source = workspace_dir().join(name);
        // A file that was removed but is still in the index.
        if !source.is_file() {
            continue;
        }
        let copy = target.join(name);
        let content = fs::read(&source).with_context(|| format!("reading {}", source.display()))?;
        let dir = copy.parent().context("a file lies in a folder")?;
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        write_if_changed(&copy, &content)?;
        let permissions = fs::metadata(&source)?.permissions();
        fs::set_permissions(&copy, permissions)
            .with_context(|| format!("setting the permissions of {}", copy.display()))?;
        names.extend(name.ancestors());
    }
    remove_others(target, target, &names)
}

/// Removes the files and folders below `dir` that are not among `names`, relative to `root`.
fn remove_others(root: &Path, dir: &Path, names: &BTreeSet<&Path>) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let path = entry?.path();
        let name = path.strip_prefix(root).context("an entry lies below its folder")?;
        let is_kept = names.contains(name);
        if is_kept && path.is_dir() {
            remove_others(root, &path, names)?;
        } else if !is_kept {
            let removed =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.with_context(|| format!("removing {}", path.display()))?;
        }
    }
    Ok(())
}

pub(super) fn write_if_changed(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|it| it == content) {
        return Ok(());
    }
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_what_git_has_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("mutants-copy-{}", std::process::id()));
        fs::create_dir_all(dir.join("crates/of-before")).unwrap();
        fs::write(dir.join("crates/of-before/lib.rs"), "").unwrap();
        copy_workspace(&dir).unwrap();
        let manifest = dir.join("Cargo.toml");
        let written_at = fs::metadata(&manifest).unwrap().modified().unwrap();
        copy_workspace(&dir).unwrap();
        assert_eq!(fs::metadata(&manifest).unwrap().modified().unwrap(), written_at);
        assert!(!dir.join("crates/of-before").exists() && !dir.join("target").exists());
        assert!(dir.join("xtask/src/main.rs").is_file() && dir.join("Cargo.lock").is_file());
        fs::remove_dir_all(dir).unwrap();
    }
}
