//! A bundle of everything that the checks need, for a machine without a network and without Rust: parts
//! of limited size, their hashes, and a script that joins and runs them.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, ensure};

use super::programs::Programs;
use crate::mlx::cuda_wheel;
use crate::mlx::fetch::{self, Target, sha256_of};
use crate::{golden, process};

/// Maximum size of a part in bytes.
const PART_BYTES_MAX: usize = 40_000_000;

/// Versions of Python for which the bundle brings MLX, so that mlx-lm can be measured.
const PYTHON_VERSIONS: [&str; 4] = ["3.11", "3.12", "3.13", "3.14"];

/// Files and folders of the sources that the checks read.
const SOURCES: [&str; 5] = [
    "crates/models/tests/data",
    "models/jackalope-mini",
    "xtask/src/bench",
    // Tests name their data relative to the folder of their crate.
    "crates/models/Cargo.toml",
    "crates/runner/Cargo.toml",
];

/// Joins the parts, checks their hashes, and runs the checks. Tests find their data where they were
/// compiled, so that folder becomes a link to the bundle's. libmlx looks for CUDA's libraries in the folder
/// `nvidia` beside its own, which becomes a link to those of Python's packages. mlx-lm computes with the
/// bundle's libmlx.
const SCRIPT: &str = r#"#!/bin/sh
# Unpacks the bundle beside this script and runs `gpu-check` from it. Needs no network.
set -eu
cd "$(dirname "$0")"
sha256sum --check parts.sha256 2>/dev/null || shasum -a 256 -c parts.sha256
cat gpu-check.part-* | tar -xJf -
root="$(cat root-path)"
if [ ! -e "$root" ]; then
  mkdir -p "$(dirname "$root")" && ln -s "$PWD/root" "$root"
fi
if [ ! -e bin/nvidia ]; then
  libraries="$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)"
  if [ -n "$libraries" ]; then ln -s "$libraries" bin/nvidia; fi
fi
if [ -d wheels ] && [ ! -d peer ]; then
  if python3 -m pip install --quiet --no-index --no-deps --find-links wheels --target peer mlx mlx-lm; then
    ln -sfn ../../bin/mlx/lib peer/mlx/lib
    ln -sfn ../../bin/mlx/include peer/mlx/include
  else
    rm -rf peer
  fi
fi
exec bin/xtask gpu-check --prepared . "$@"
"#;

/// Writes the bundle to `dir`. For CUDA it brings the library for CUDA in place of that for CPUs, which has
/// the same interface, and mlx-lm.
pub(super) fn write(programs: &Programs, for_cuda: bool, dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let staging = process::target_dir().join("gpu-check");
    if staging.exists() {
        fs::remove_dir_all(&staging).context("removing the last bundle's files")?;
    }
    let bin = staging.join("bin");
    fs::create_dir_all(&bin).context("creating the bundle's folder")?;
    let own = std::env::current_exe().context("finding this program")?;
    for (name, path) in programs.named().into_iter().chain([("xtask", own.as_path())]) {
        copy_program(path, &bin.join(name))?;
    }
    if for_cuda {
        copy_libraries(&crate::mlx::cuda_library()?, &bin)?;
        bring_peer(&staging.join("wheels"))?;
    } else {
        copy_libraries(&programs.mlx, &bin)?;
    }
    for source in SOURCES {
        copy_folder(&programs.root.join(source), &staging.join("root").join(source))?;
    }
    let archive = process::target_dir().join("gpu-check.tar.xz");
    println!("packing");
    let packed = process::command("tar")
        .env("XZ_OPT", "-6 -T0")
        .arg("-cJf")
        .arg(&archive)
        .arg("-C")
        .arg(&staging)
        .arg(".")
        .status()
        .context("starting tar")?;
    ensure!(packed.success(), "tar ended with {packed}");
    let num_parts = split(&archive, dir)?;
    fs::remove_file(&archive).context("removing the archive")?;
    fs::write(dir.join("root-path"), programs.root.to_string_lossy().as_bytes())?;
    let script = dir.join("gpu-check.sh");
    fs::write(&script, SCRIPT)?;
    println!(
        "{num_parts} parts are in {}\nhint: copy the folder to the machine and run `sh gpu-check.sh` in it",
        dir.display()
    );
    fs::remove_dir_all(&staging).context("removing the bundle's files")
}

/// Copies a program without its debug information, if this machine can remove that.
fn copy_program(from: &Path, to: &Path) -> anyhow::Result<()> {
    let stripped =
        process::command("strip").args(["--strip-debug", "-o"]).args([to, from]).status();
    if !stripped.is_ok_and(|status| status.success()) {
        fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(())
}

/// Downloads mlx-lm, and MLX for several versions of Python.
fn bring_peer(dir: &Path) -> anyhow::Result<()> {
    let installer = fetch::find_installer()?;
    let packages = golden::PACKAGES.iter().map(|(name, version)| format!("{name}=={version}"));
    let packages: Vec<String> = packages.collect();
    let platform_tag = cuda_wheel()?.platform_tag();
    for python_version in PYTHON_VERSIONS {
        let target = Target { python_version, platform_tag };
        fetch::download_packages(installer, target, &packages, dir)?;
    }
    Ok(())
}

/// Copies libmlx with the headers that it compiles kernels with, and the libraries that a wheel brings in a
/// folder of its own beside it, to the folder of the programs.
fn copy_libraries(mlx: &Path, bin: &Path) -> anyhow::Result<()> {
    for part in ["lib", "include"] {
        copy_folder(&mlx.join(part), &bin.join("mlx").join(part))?;
    }
    let beside = mlx.parent().context("libmlx is in a folder")?;
    for entry in fs::read_dir(beside).with_context(|| format!("reading {}", beside.display()))? {
        let (path, name) = entry.map(|it| (it.path(), it.file_name()))?;
        if path.extension().is_some_and(|it| it == "libs") {
            copy_folder(&path, &bin.join(name))?;
        }
    }
    Ok(())
}

/// Copies a file, or a folder with its whole content, following links.
fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    if from.is_file() {
        fs::create_dir_all(to.parent().context("a file is in a folder")?)?;
        fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
        return Ok(());
    }
    fs::create_dir_all(to)?;
    let entries = fs::read_dir(from).with_context(|| format!("reading {}", from.display()))?;
    for entry in entries {
        let entry = entry?;
        copy_folder(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Cuts the archive into parts and writes their hashes. Returns the number of parts.
fn split(archive: &Path, dir: &Path) -> anyhow::Result<usize> {
    let mut archive = File::open(archive).context("opening the archive")?;
    let mut hashes = BufWriter::new(File::create(dir.join("parts.sha256"))?);
    let mut part = Vec::with_capacity(PART_BYTES_MAX);
    for idx in 0.. {
        part.clear();
        (&mut archive).take(PART_BYTES_MAX as u64).read_to_end(&mut part)?;
        if part.is_empty() {
            hashes.flush()?;
            return Ok(idx);
        }
        let name = format!("gpu-check.part-{idx:03}");
        let path = dir.join(&name);
        fs::write(&path, &part).with_context(|| format!("writing {name}"))?;
        writeln!(hashes, "{}  {name}", sha256_of(&path)?)?;
    }
    unreachable!("the archive ends")
}
