//! `cargo xtask tidy`: checks what the compiler does not. Also a test of this crate, so that `cargo
//! test` runs it.

mod cycles;
mod modules;
mod parameters;
mod structure;
mod syntax;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::process::{command, workspace_dir};

const FILE_LINES_MAX: usize = 800;

/// Maximum length of a file that describes a family of models; what families share lies beside them.
const FAMILY_LINES_MAX: usize = 120;

/// The list of families, and beside it the folder with a file or a folder for each.
const FAMILIES: &str = "crates/families/src/lib.rs";

/// For each crate, the crates of this workspace that it may use: the arrows of ARCHITECTURE.md.
const DIRECTIONS: &[(&str, &[&str])] = &[
    ("protocol", &[]),
    ("config", &["protocol"]),
    ("spec", &["config", "protocol"]),
    ("families", &["config", "protocol", "spec"]),
    ("engine", &["protocol"]),
    ("text", &["protocol", "spec"]),
    ("placement", &["families", "protocol", "spec"]),
    ("store", &["families", "protocol", "spec"]),
    ("fleet", &["protocol"]),
    ("inspect", &["fleet", "protocol"]),
    ("testing", &[]),
    ("serving", &["engine", "protocol", "text"]),
    ("web", &["engine", "protocol", "serving"]),
    ("server", &["engine", "protocol", "serving", "text", "web"]),
    ("deploy", &["engine", "fleet", "inspect", "placement", "protocol", "server", "store", "text"]),
    ("console", &["protocol"]),
    ("localai", &["deploy", "engine", "fleet", "protocol", "server", "serving", "text"]),
    (
        "cli",
        &[
            "console",
            "deploy",
            "engine",
            "fleet",
            "inspect",
            "localai",
            "placement",
            "protocol",
            "server",
            "spec",
            "store",
            "text",
        ],
    ),
    ("simd", &[]),
    ("kernels", &["simd"]),
    ("transport", &["protocol"]),
    ("mlx", &["transport"]),
    ("recurrence", &["mlx"]),
    ("weights", &["families", "mlx", "protocol", "simd", "spec"]),
    ("cache", &["kernels", "mlx", "protocol", "recurrence"]),
    ("parallel", &["kernels", "mlx", "protocol", "spec", "weights"]),
    (
        "models",
        &[
            "cache",
            "kernels",
            "mlx",
            "parallel",
            "protocol",
            "recurrence",
            "spec",
            "transport",
            "weights",
        ],
    ),
    ("runner", &["kernels", "mlx", "models", "protocol", "store", "transport", "weights"]),
];

/// The programs, and the part of `jackalope` that talks to people: their errors are only shown. Libraries
/// have typed errors.
const USES_ANYHOW: &[&str] = &["jackalope-cli", "jackalope-runner", "xtask", "jackalope-console"];

/// Words that mark unfinished work.
const LEFTOVERS: &[&str] = &["dbg!(", "todo!(", "unimplemented!(", "FIXME", "#[ignore"];

pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    ensure!(args.is_empty(), "`tidy` takes no options");
    let mut findings = Vec::new();
    let files = tracked_files()?;
    for path in files.iter().filter(|path| path.extension().is_some_and(|it| it == "rs")) {
        check_source(path, &mut findings)?;
    }
    check_families(&files, &mut findings)?;
    check_architecture(&mut findings)?;
    check_named_paths(&files, &mut findings)?;
    check_dependencies(&mut findings)?;
    check_test_data(&files, &mut findings)?;
    structure::check(&mut findings)?;
    crate::mutants::check_patches(&mut findings)?;
    if findings.is_empty() {
        println!("   tidy: {} files, nothing found", files.len());
        return Ok(());
    }
    bail!("{} findings:\n  {}", findings.len(), findings.join("\n  "))
}

/// Returns the files that git tracks or would add.
fn tracked_files() -> anyhow::Result<Vec<PathBuf>> {
    let output = command("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(workspace_dir())
        .output()
        .context("listing files with git")?;
    ensure!(output.status.success(), "git could not list the files");
    let text = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    Ok(text
        .lines()
        .map(PathBuf::from)
        .filter(|path| workspace_dir().join(path).is_file())
        .collect())
}

fn check_source(path: &Path, findings: &mut Vec<String>) -> anyhow::Result<()> {
    let text = read(path)?;
    let name = path.display();
    let num_lines = text.lines().count();
    if FILE_LINES_MAX < num_lines {
        findings.push(format!("{name}: {num_lines} lines, at most {FILE_LINES_MAX}"));
    }
    if !text.starts_with("//!") {
        findings.push(format!("{name}: does not open with `//!`"));
    }
    let is_list_of_words = path.ends_with("xtask/src/tidy.rs");
    for word in LEFTOVERS.iter().filter(|_| !is_list_of_words) {
        if let Some(at) = text.lines().position(|line| line.contains(word)) {
            findings.push(format!("{name}:{}: `{word}` is left over", at + 1));
        }
    }
    Ok(())
}

/// Checks the length of the files that describe families.
fn check_families(files: &[PathBuf], findings: &mut Vec<String>) -> anyhow::Result<()> {
    let list = read(Path::new(FAMILIES))?;
    let modules = list.lines().filter_map(|line| {
        let (_, reader) = line.trim().strip_prefix("family(")?.split_once(", ")?;
        reader.split("::").next()
    });
    let modules: Vec<&str> = modules.collect();
    ensure!(!modules.is_empty(), "{FAMILIES} lists no families");
    let folder = Path::new(FAMILIES).parent().context("the list lies in a folder")?;
    for path in files {
        let Ok(inside) = path.strip_prefix(folder) else { continue };
        let first = inside.components().next().map(|it| it.as_os_str().to_string_lossy());
        let module = first.as_deref().map(|it| it.trim_end_matches(".rs")).unwrap_or_default();
        let num_lines = read(path)?.lines().count();
        if modules.contains(&module) && FAMILY_LINES_MAX < num_lines {
            let name = path.display();
            findings.push(format!("{name}: {num_lines} lines, at most {FAMILY_LINES_MAX}"));
        }
    }
    Ok(())
}

/// Checks that ARCHITECTURE.md names every crate, and no crate that does not exist.
fn check_architecture(findings: &mut Vec<String>) -> anyhow::Result<()> {
    let text = read(Path::new("ARCHITECTURE.md"))?;
    for entry in fs::read_dir(workspace_dir().join("crates"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !text.contains(&format!("crates/{name}")) {
            findings.push(format!("ARCHITECTURE.md: does not name crates/{name}"));
        }
    }
    for part in text.split("crates/").skip(1) {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let name: String = part.chars().take_while(|&c| is_name(c)).collect();
        if !name.is_empty() && !workspace_dir().join("crates").join(&name).is_dir() {
            findings.push(format!("ARCHITECTURE.md: crates/{name} does not exist"));
        }
    }
    Ok(())
}

/// Checks that documents name no path of a crate that does not exist.
fn check_named_paths(files: &[PathBuf], findings: &mut Vec<String>) -> anyhow::Result<()> {
    for page in files.iter().filter(|path| path.extension().is_some_and(|it| it == "md")) {
        // Every second part is between two backticks.
        for named in
            read(page)?.split('`').skip(1).step_by(2).filter(|it| it.starts_with("crates/"))
        {
            for path in alternatives(named) {
                if !path.contains([' ', '\n']) && !workspace_dir().join(&path).exists() {
                    findings.push(format!("{}: {path} does not exist", page.display()));
                }
            }
        }
    }
    Ok(())
}

/// Returns the paths that a path with `{a,b}` in it stands for.
fn alternatives(path: &str) -> Vec<String> {
    let Some((before, (names, after))) =
        path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    else {
        return vec![path.to_owned()];
    };
    let each = names.split(',').flat_map(|name| alternatives(&format!("{before}{name}{after}")));
    each.collect()
}

/// Checks the direction of dependencies, the reasons beside them, and that sources use them.
fn check_dependencies(findings: &mut Vec<String>) -> anyhow::Result<()> {
    let output = command("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(workspace_dir())
        .output()
        .context("asking cargo for the workspace")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let allowed: BTreeMap<&str, &[&str]> = DIRECTIONS.iter().copied().collect();
    for package in metadata["packages"].as_array().context("cargo names no packages")? {
        let name = package["name"].as_str().unwrap_or_default();
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap_or_default());
        let dir = manifest.parent().context("a manifest lies in a folder")?;
        let sources = sources(dir)?;
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let used = dependency["name"].as_str().unwrap_or_default();
            if !sources.contains(&used.replace('-', "_")) {
                findings.push(format!("{name}: no source names its dependency {used}"));
            }
            let is_normal = dependency["kind"].is_null();
            if is_normal && used == "anyhow" && !USES_ANYHOW.contains(&name) {
                findings.push(format!("{name}: a library has typed errors instead of `anyhow`"));
            }
            if let (Some(crate_name), Some(used), true) =
                (name.strip_prefix("jackalope-"), used.strip_prefix("jackalope-"), is_normal)
            {
                let may = allowed.get(crate_name).is_some_and(|may| may.contains(&used));
                if !may {
                    findings.push(format!("{crate_name} must not depend on {used}"));
                }
            }
        }
        check_reasons(name, &manifest, findings)?;
    }
    Ok(())
}

fn check_reasons(name: &str, manifest: &Path, findings: &mut Vec<String>) -> anyhow::Result<()> {
    let text = fs::read_to_string(manifest)?;
    let mut in_dependencies = false;
    for line in text.lines() {
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies");
        } else if in_dependencies && line.contains("workspace = true") && !line.contains('#') {
            findings.push(format!("{name}: no reason beside `{}`", line.trim()));
        }
    }
    Ok(())
}

/// Returns all Rust text of a crate, including its build script and tests.
fn sources(dir: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                text += &fs::read_to_string(&path)?;
            }
        }
    }
    Ok(text)
}

/// Checks that a source or script names every folder or file directly under a `tests/data`.
fn check_test_data(files: &[PathBuf], findings: &mut Vec<String>) -> anyhow::Result<()> {
    for dir in fs::read_dir(workspace_dir().join("crates"))? {
        let dir = dir?.path();
        let data = dir.join("tests/data");
        if !data.is_dir() {
            continue;
        }
        let mut text = sources(&dir)?;
        for script in files.iter().filter(|it| it.extension().is_some_and(|it| it == "py")) {
            text += &read(script)?;
        }
        for entry in fs::read_dir(&data)? {
            let path = entry?.path();
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let is_script = path.extension().is_some_and(|it| it == "py" || it == "md");
            if !is_script && !text.contains(&stem) {
                findings.push(format!("{}: no test names it", path.display()));
            }
        }
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(workspace_dir().join(path))
        .with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn paths_with_alternatives_are_named_one_by_one() {
        assert_eq!(super::alternatives("a/{b,c}/{d,e}.rs").len(), 4);
        assert_eq!(super::alternatives("a/{b,c}.rs"), ["a/b.rs", "a/c.rs"]);
        assert_eq!(super::alternatives("a.rs"), ["a.rs"]);
    }

    #[test]
    fn the_workspace_is_tidy() {
        super::run(&[]).unwrap();
    }
}
