//! How crates are built inside: no parameter is a tuple, no files import each other in a circle, no
//! crate is larger than a person can know, and every public type has a name of its own.
//!
//! Functions above 70 lines are clippy's to find (`clippy.toml`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::cycles::{self, Cycle};
use super::modules::{Modules, SourceFile};
use super::parameters;
use super::syntax::Token;
use crate::loc;
use crate::process::workspace_dir;

/// Lines of code of a crate, without comments and tests.
const CRATE_LINES_MAX: usize = 10_000;

/// Names that stand for two public types of the workspace, because both are the usual word: MLX's own
/// names in `mlx`, and types of the protocol or of the transport for the same thing. Code that
/// needs both qualifies them. This list only shrinks.
const SHARED_TYPE_NAMES: &[&str] = &["Backend", "Device", "Dtype", "Group"];

/// A crate whose structure is checked.
struct Crate {
    dir: PathBuf,
    /// The modules below `lib.rs`, and those below `main.rs`, where these files exist.
    roots: Vec<Modules>,
}

pub(super) fn check(findings: &mut Vec<String>) -> anyhow::Result<()> {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for dir in crate_dirs()? {
        let checked = Crate::read(dir)?;
        check_cycles(&checked, findings);
        check_tuples(&checked, findings);
        check_size(&checked, findings)?;
        check_tests_run(&checked, findings)?;
        for file in checked.files() {
            for name in public_types(&file.tokens) {
                types.entry(name.to_owned()).or_default().push(shown(&file.path));
            }
        }
    }
    let shared = types.iter().filter(|(_, places)| 1 < places.len());
    for (name, places) in shared.filter(|(name, _)| !SHARED_TYPE_NAMES.contains(&name.as_str())) {
        findings.push(format!("several public types are named {name}: {}", places.join(", ")));
    }
    Ok(())
}

impl Crate {
    fn read(dir: PathBuf) -> anyhow::Result<Self> {
        let roots = ["src/lib.rs", "src/main.rs"].map(|name| dir.join(name));
        let roots = roots.iter().filter(|path| path.is_file()).map(|path| Modules::read(path));
        let roots = roots.collect::<anyhow::Result<_>>()?;
        Ok(Self { dir, roots })
    }

    fn files(&self) -> impl Iterator<Item = &SourceFile> {
        self.roots.iter().flat_map(|root| &root.files)
    }
}

/// Returns the folders of all crates, including this one.
fn crate_dirs() -> anyhow::Result<Vec<PathBuf>> {
    let mut dirs = vec![workspace_dir().join("xtask")];
    for entry in fs::read_dir(workspace_dir().join("crates")).context("listing crates")? {
        dirs.push(entry?.path());
    }
    dirs.sort();
    Ok(dirs)
}

fn check_cycles(checked: &Crate, findings: &mut Vec<String>) {
    let found: Vec<Cycle> = checked.roots.iter().flat_map(cycles::find).collect();
    if !found.is_empty() {
        let list = found.iter().map(|it| format!("\n    {} files: {}", it.num_files, it.example));
        let (dir, list) = (shown(&checked.dir), list.collect::<String>());
        findings.push(format!("{dir}: files import in a circle{list}"));
    }
}

fn check_tuples(checked: &Crate, findings: &mut Vec<String>) {
    let mut found = Vec::new();
    for file in checked.files() {
        let of_file = parameters::tuples(&file.tokens);
        let place = shown(&file.path);
        found.extend(of_file.iter().map(|it| format!("\n    {place}:{} {}", it.line, it.function)));
    }
    if !found.is_empty() {
        let (dir, list) = (shown(&checked.dir), found.concat());
        findings.push(format!("{dir}: parameters are tuples{list}"));
    }
}

fn check_size(checked: &Crate, findings: &mut Vec<String>) -> anyhow::Result<()> {
    let lines = loc::of_crate(&checked.dir)?.code;
    if CRATE_LINES_MAX < lines {
        let dir = shown(&checked.dir);
        findings.push(format!("{dir}: {lines} lines of code, at most {CRATE_LINES_MAX}"));
    }
    Ok(())
}

/// Finds tests beside the code of a crate whose manifest says that it has none there.
fn check_tests_run(checked: &Crate, findings: &mut Vec<String>) -> anyhow::Result<()> {
    let path = checked.dir.join("Cargo.toml");
    let manifest = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let library = manifest.lines().skip_while(|line| *line != "[lib]").skip(1);
    let mut library = library.take_while(|line| !line.starts_with('['));
    let is_untested = library.any(|line| line.starts_with("test = false"));
    for file in checked.files().filter(|_| is_untested) {
        let text = fs::read_to_string(&file.path).with_context(|| shown(&file.path))?;
        if text.contains("#[cfg(test)]") {
            let name = shown(&file.path);
            findings.push(format!("{name}: has tests that never run: its library is not tested"));
        }
    }
    Ok(())
}

/// The types that are public where they are defined.
fn public_types(tokens: &[Token]) -> impl Iterator<Item = &str> {
    let kinds = ["struct", "enum", "union", "trait", "type"];
    tokens.windows(3).filter_map(move |window| {
        let is_kind = window[1].word().is_some_and(|it| kinds.contains(&it));
        window[2].word().filter(|_| is_kind && window[0].is_word("pub"))
    })
}

fn shown(path: &Path) -> String {
    path.strip_prefix(workspace_dir()).unwrap_or(path).display().to_string()
}
