//! How crates are built inside: no parameter is a tuple, no files import each other in a circle, no
//! crate is larger than a person can know, and every public type has a name of its own.
//!
//! Crates that do not hold these rules yet have an allowance: what they had when the rule came. It
//! only shrinks; files that move to another crate may take their part with them. Functions above 70
//! lines are clippy's to find (`clippy.toml`).

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

/// What a crate may still have.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    crate_name: &'static str,
    /// Parameters that are tuples.
    tuples: usize,
    /// Files that lie on import cycles.
    files_on_cycles: usize,
    /// Lines of code above the limit.
    excess_lines: usize,
}

const ALLOWANCES: &[Allowance] = &[
    Allowance { crate_name: "kernels", tuples: 29, files_on_cycles: 23, excess_lines: 0 },
    Allowance { crate_name: "mlx", tuples: 0, files_on_cycles: 5, excess_lines: 0 },
    Allowance { crate_name: "models", tuples: 11, files_on_cycles: 0, excess_lines: 0 },
    Allowance { crate_name: "server", tuples: 0, files_on_cycles: 0, excess_lines: 150 },
];

/// Names that stand for several public types of the workspace. This list only shrinks, too.
const SHARED_TYPE_NAMES: &[&str] = &["Backend", "Device", "Dtype", "Group", "Mask", "Span"];

/// A crate as these rules read it.
struct Crate {
    dir: PathBuf,
    allowance: Allowance,
    /// One for a library, one for a program.
    roots: Vec<Modules>,
}

pub(super) fn check(findings: &mut Vec<String>) -> anyhow::Result<()> {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for dir in crate_dirs()? {
        let checked = Crate::read(dir)?;
        check_cycles(&checked, findings);
        check_tuples(&checked, findings);
        check_size(&checked, findings)?;
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
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let none = Allowance { crate_name: "", tuples: 0, files_on_cycles: 0, excess_lines: 0 };
        let allowance = ALLOWANCES.iter().find(|it| it.crate_name == name).copied().unwrap_or(none);
        let roots = ["src/lib.rs", "src/main.rs"].map(|name| dir.join(name));
        let roots = roots.iter().filter(|path| path.is_file()).map(|path| Modules::read(path));
        let roots = roots.collect::<anyhow::Result<_>>()?;
        Ok(Self { dir, allowance, roots })
    }

    fn files(&self) -> impl Iterator<Item = &SourceFile> {
        self.roots.iter().flat_map(|root| &root.files)
    }
}

/// All crates, and this one.
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
    let (num, most) =
        (found.iter().map(|it| it.num_files).sum(), checked.allowance.files_on_cycles);
    if most < num {
        let list = found.iter().map(|it| format!("\n    {} files: {}", it.num_files, it.example));
        let (dir, list) = (shown(&checked.dir), list.collect::<String>());
        findings.push(format!("{dir}: {num} files import in a circle, at most {most}{list}"));
    }
}

fn check_tuples(checked: &Crate, findings: &mut Vec<String>) {
    let mut found = Vec::new();
    for file in checked.files() {
        let of_file = parameters::tuples(&file.tokens);
        let place = shown(&file.path);
        found.extend(of_file.iter().map(|it| format!("\n    {place}:{} {}", it.line, it.function)));
    }
    let (num, most) = (found.len(), checked.allowance.tuples);
    if most < num {
        let (dir, list) = (shown(&checked.dir), found.concat());
        findings.push(format!("{dir}: {num} parameters are tuples, at most {most}{list}"));
    }
}

fn check_size(checked: &Crate, findings: &mut Vec<String>) -> anyhow::Result<()> {
    let lines = loc::of_crate(&checked.dir)?.code;
    let most = CRATE_LINES_MAX + checked.allowance.excess_lines;
    if most < lines {
        let dir = shown(&checked.dir);
        findings.push(format!("{dir}: {lines} lines of code, at most {most}"));
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
