//! The programs of an archive: without debug information, and without paths of the machine that built
//! them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::output;
use crate::process::{command, target_dir};

const NAMES: [&str; 2] = ["jackalope", "jackalope-rank"];

/// Variables in which the system's loaders look for libraries.
const LIBRARY_PATHS: [&str; 2] = ["LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"];

/// Stripped programs and their debug information.
pub(super) struct Programs {
    /// Folder of the programs.
    bin: PathBuf,
    /// Folder of the programs' debug information.
    pub(super) symbols: PathBuf,
}

/// Copies the programs of `built` to `work`, and moves their debug information to files of its own.
pub(super) fn strip(built: &Path, work: &Path) -> anyhow::Result<Programs> {
    let programs = Programs { bin: work.join("bin"), symbols: work.join("symbols") };
    fs::create_dir_all(&programs.bin)?;
    fs::create_dir_all(&programs.symbols)?;
    for name in NAMES {
        let from = built.join(name);
        let path = programs.bin.join(name);
        fs::copy(&from, &path).with_context(|| format!("copying {}", from.display()))?;
        let program = path.to_str().context("the path is not UTF-8")?;
        if cfg!(target_os = "macos") {
            let symbols = programs.symbols.join(format!("{name}.dSYM"));
            let symbols = symbols.to_str().context("the path is not UTF-8")?;
            output("dsymutil", &[from.to_str().context("not UTF-8")?, "-o", symbols])?;
            output("strip", &["-x", program])?;
        } else {
            let symbols = programs.symbols.join(format!("{name}.debug"));
            let symbols = symbols.to_str().context("the path is not UTF-8")?;
            output("objcopy", &["--only-keep-debug", program, symbols])?;
            output(
                "objcopy",
                &["--strip-all", &format!("--add-gnu-debuglink={symbols}"), program],
            )?;
            forget_build(&path)?;
        }
    }
    Ok(programs)
}

/// Removes the build's own folder of libmlx from a program's run path, where it comes first. The other
/// folders are relative to the program.
fn forget_build(path: &Path) -> anyhow::Result<()> {
    let mut bytes = fs::read(path)?;
    let lib = mlx_lib_dir()?;
    let own = format!("{}:", lib.display()).into_bytes();
    let Some(at) = bytes.windows(own.len()).position(|it| it == own) else { return Ok(()) };
    let end = at + bytes[at..].iter().position(|it| *it == 0).context("the run path has no end")?;
    bytes.copy_within(at + own.len()..end, at);
    bytes[end - own.len()..end].fill(0);
    Ok(fs::write(path, bytes)?)
}

/// Returns the folder of the libmlx that the programs were built with.
fn mlx_lib_dir() -> anyhow::Result<PathBuf> {
    let prefix = match crate::process::env("MLX_PREFIX") {
        Some(prefix) => PathBuf::from(prefix),
        None => {
            let root = target_dir().join("mlx");
            let selected = fs::read_to_string(root.join("selected")).context("no libmlx")?;
            root.join(selected.trim()).join("mlx")
        }
    };
    Ok(fs::canonicalize(prefix)?.join("lib"))
}

/// Writes programs, libraries, man pages and completions below `tree`, and returns the program's
/// report.
pub(super) fn pack(programs: &Programs, tree: &Path) -> anyhow::Result<Value> {
    let program = programs.bin.join("jackalope");
    let mut pack = command(&program.to_string_lossy());
    for name in LIBRARY_PATHS {
        pack.env(name, mlx_lib_dir()?);
    }
    let packed = pack.arg("pack").arg(tree).output().context("starting jackalope")?;
    let said = String::from_utf8_lossy(&packed.stderr);
    ensure!(packed.status.success(), "`jackalope pack` failed: {said}");
    serde_json::from_slice(&packed.stdout).context("`jackalope pack` reports no JSON")
}
