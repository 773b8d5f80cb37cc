//! `jackalope-rank libraries`: lists the files that this program needs beside itself, so that it
//! can be installed on another machine. Loads no model and uses no device.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;

/// Directory in which the build found libmlx.
const BUILT_WITH: &str = env!("JACKALOPE_MLX_PREFIX");

/// Directories of libmlx relative to the program's, in the order in which it searches them after
/// the build's own.
const INSTALLED: [&str; 2] = ["mlx", "../lib/jackalope/mlx"];

/// Directory in which an installation keeps the libraries, relative to its root.
const PLACE: &str = "lib/jackalope";

/// The header with MLX's version, relative to its prefix.
const VERSION_HEADER: &str = "include/mlx/version.h";

/// Prints the path of each file, and its place in an installation, as a JSON list.
pub(crate) fn run() -> anyhow::Result<()> {
    let program = std::env::current_exe().context("finding this program")?;
    let beside = program.parent().context("a program lies in a folder")?;
    let built = PathBuf::from(BUILT_WITH);
    let installed = INSTALLED.iter().map(|dir| beside.join(dir));
    let prefix = std::iter::once(built)
        .chain(installed)
        .find(|dir| dir.join("lib").is_dir())
        .context("libmlx is loaded, but not from where this program looks for it")?;
    let prefix = fs::canonicalize(&prefix)?;
    let mut found = files(&prefix.join("lib"), &format!("{PLACE}/mlx/lib"))?;
    // Wheels keep the libraries that libmlx itself loads in a directory beside it, to which its run
    // path points.
    let parent = prefix.parent().context("libmlx lies in a folder")?;
    for entry in fs::read_dir(parent)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name.ends_with(".libs") {
            found.extend(files(&path, &format!("{PLACE}/{name}"))?);
        }
    }
    // The header records the version of MLX for people who inspect the machine.
    let header = prefix.join(VERSION_HEADER);
    if header.is_file() {
        found.push((format!("{PLACE}/mlx/{VERSION_HEADER}"), header));
    }
    found.sort();
    let list: Vec<_> =
        found.iter().map(|(place, path)| json!({"path": path, "place": place})).collect();
    writeln!(std::io::stdout(), "{}", json!(list)).context("writing to standard output")?;
    Ok(())
}

/// Returns the files that are loaded at run time, as `(place, path)`; static libraries are left
/// out.
fn files(dir: &Path, place: &str) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_library = name.contains(".so") || name.ends_with(".dylib");
        if path.is_file() && (is_library || name.ends_with(".metallib")) {
            found.push((format!("{place}/{name}"), path));
        }
    }
    Ok(found)
}
