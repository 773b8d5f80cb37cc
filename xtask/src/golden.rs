//! `cargo xtask golden`: regenerates the results of pinned versions of mlx-lm and mlx-vlm for the tiny
//! checkpoints with which models are tested, and the tensors that it gives to mixtures of
//! experts.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::mlx::wheels::MLX_VERSION;
use crate::{process, python};

/// The Python packages for the references: the MLX version that we link, and mlx-lm.
pub(crate) const PACKAGES: &[(&str, &str)] = &[("mlx", MLX_VERSION), ("mlx-lm", "0.32.2")];

/// The package for families that mlx-lm lacks (`vlm.py` beside `make.py`).
const VLM_PACKAGE: (&str, &str) = ("mlx-vlm", "0.7.10");

/// MLX for machines without a GPU, which is a separate wheel on Linux only.
const LINUX_PACKAGE: (&str, &str) = ("mlx-cpu", MLX_VERSION);

/// Each script, and the file or folder that it writes.
const SCRIPTS: &[(&str, &str)] = &[
    ("crates/models/tests/golden/make.py", OUTPUT),
    ("crates/families/tests/data/make.py", "crates/families/tests/data/tensors.json"),
];
const OUTPUT: &str = "crates/models/tests/data/golden";

/// Installs the pinned packages in an environment under `target/`, and runs the scripts. Arguments are
/// the families whose golden values are computed; all if there are none. With `--vary SEED` first, their
/// checkpoints get other dimensions, and the results stay under `target/`.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let wanted = [packages(), vec![VLM_PACKAGE]].concat();
    let python = environment(&process::target_dir().join("venv-golden"), &wanted)?;
    let root = process::workspace_dir();
    if args.first().is_some_and(|arg| arg == "--vary") {
        let seed = args.get(1).context("`--vary` needs a seed\nhint: any number is one")?;
        let folder = process::target_dir().join(format!("golden-varied-{seed}"));
        write(&python, &root.join(SCRIPTS[0].0), &folder, args)?;
        let folder = folder.display();
        println!("JACKALOPE_GOLDEN_FOLDER={folder} cargo test -p jackalope-models golden");
        return Ok(());
    }
    for (script, output) in SCRIPTS {
        write(&python, &root.join(script), &root.join(output), args)?;
    }
    Ok(())
}

/// Runs a script that writes to `output`.
fn write(python: &Path, script: &Path, output: &Path, args: &[String]) -> Result<()> {
    println!("writing {}", output.display());
    let mut command = process::command(&python.to_string_lossy());
    let status = command.arg(script).arg(output).args(args).status();
    let status = status.with_context(|| format!("starting {}", python.display()))?;
    if !status.success() {
        bail!("{} failed", script.display());
    }
    Ok(())
}

/// Returns the interpreter of an environment with the pinned packages, made if there is none.
pub(crate) fn python() -> Result<PathBuf> {
    environment(&process::target_dir().join("venv"), &packages())
}

fn packages() -> Vec<(&'static str, &'static str)> {
    let on_linux = std::env::consts::OS == "linux";
    PACKAGES.iter().copied().chain(on_linux.then_some(LINUX_PACKAGE)).collect()
}

/// Returns the interpreter of an environment that has the packages.
fn environment(dir: &Path, packages: &[(&str, &str)]) -> Result<PathBuf> {
    let python = dir.join("bin/python");
    if has_packages(&python, packages) {
        return Ok(python);
    }
    let wanted: Vec<String> =
        packages.iter().map(|(name, version)| format!("{name}=={version}")).collect();
    println!("installing {} in {}", wanted.join(" "), dir.display());
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    python::environment(dir, &wanted)
}

/// Returns true if the interpreter exists and has exactly these versions of the packages.
fn has_packages(python: &Path, packages: &[(&str, &str)]) -> bool {
    let program = probe(packages);
    let output = process::command(&python.to_string_lossy()).args(["-c", &program]).output();
    output.is_ok_and(|output| output.status.success())
}

/// Returns a Python program that fails unless the packages are installed.
fn probe(packages: &[(&str, &str)]) -> String {
    let checks = packages
        .iter()
        .map(|(name, version)| format!("assert version('{name}') == '{version}'"))
        .collect::<Vec<_>>();
    format!("from importlib.metadata import version\n{}\n", checks.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_references_are_of_the_pinned_versions() {
        for entry in std::fs::read_dir(process::workspace_dir().join(OUTPUT)).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let is_of_vlm = text[..200].contains("mlx_vlm");
            for (name, version) in PACKAGES.iter().chain(is_of_vlm.then_some(&VLM_PACKAGE)) {
                let stated = format!("\"{}\": \"{version}\"", name.replace('-', "_"));
                let is_stated = text.starts_with('{') && text[..200].contains(&stated);
                assert!(is_stated, "{}: {stated}", path.display());
            }
        }
    }
}
