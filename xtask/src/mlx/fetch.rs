//! Downloads a wheel with the user's own installer, verifies it, and unpacks it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::wheels::Wheel;
use crate::process;

/// The ways to reach pip, in the order they are tried.
const INSTALLERS: [&[&str]; 4] = [
    &["python3", "-m", "pip"],
    &["pip3"],
    &["pip"],
    // uv has no download command of its own; it runs pip without installing it.
    &["uv", "tool", "run", "pip"],
];

/// The interpreter version named to pip. The wheels hold no Python; a pip that belongs to an
/// older interpreter (macOS ships 3.9) would otherwise refuse them.
const PYTHON_VERSION: &str = "3.12";

/// Returns the first installer that works.
pub(crate) fn find_installer() -> Result<&'static [&'static str]> {
    INSTALLERS.into_iter().find(|installer| answers(installer)).with_context(missing_installer)
}

fn answers(installer: &[&str]) -> bool {
    let mut command = process::command(installer[0]);
    command.args(&installer[1..]).arg("--version");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn missing_installer() -> String {
    "neither pip nor uv was found\n\
     hint: install one of them (apt install python3-pip, brew install uv, \
     https://docs.astral.sh/uv), or set MLX_PREFIX to an unpacked wheel"
        .to_owned()
}

/// The interpreter and the platform for which wheels are downloaded.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) python_version: &'a str,
    pub(crate) platform_tag: &'a str,
}

impl Target<'_> {
    /// Returns that of a wheel without Python.
    fn of(wheel: &Wheel) -> Target<'static> {
        Target { python_version: PYTHON_VERSION, platform_tag: wheel.platform_tag() }
    }
}

/// Returns the installer's arguments for downloading wheels of `packages`, without what they need, to `dir`.
fn download_args(target: Target<'_>, packages: &[String], dir: &Path) -> Vec<String> {
    let mut args: Vec<String> =
        ["download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
            .map(str::to_owned)
            .to_vec();
    for (flag, value) in [
        ("--python-version", target.python_version),
        ("--platform", target.platform_tag),
        ("--dest", &dir.to_string_lossy()),
    ] {
        args.extend([flag.to_owned(), value.to_owned()]);
    }
    args.extend_from_slice(packages);
    args
}

/// Downloads `wheel` into `dir` and checks its hash.
pub(crate) fn download(installer: &[&str], wheel: &Wheel, dir: &Path) -> Result<()> {
    download_packages(installer, Target::of(wheel), &[wheel.requirement()], dir)?;
    let found = sha256_of(&dir.join(wheel.file_name()))?;
    check_hash(&wheel.file_name(), wheel.sha256, &found)
}

/// Downloads wheels of `packages`, such as `mlx==0.32.4`, into `dir`.
pub(crate) fn download_packages(
    installer: &[&str],
    target: Target<'_>,
    packages: &[String],
    dir: &Path,
) -> Result<()> {
    let args = download_args(target, packages, dir);
    // The installer shows its own progress; our standard output stays clean for --json.
    let status = process::command(installer[0])
        .args(&installer[1..])
        .args(&args)
        .stdout(io::stderr())
        .status()
        .with_context(|| format!("running {}", installer[0]))?;
    if !status.success() {
        bail!(
            "`{} {}` failed ({status})\n\
             hint: check the network and pip's index settings, then run `cargo xtask mlx` again, \
             or set MLX_PREFIX to an unpacked wheel",
            installer.join(" "),
            args.join(" ")
        );
    }
    Ok(())
}

/// Refuses a file whose content is not the pinned one.
pub(crate) fn check_hash(file: &str, pinned: &str, found: &str) -> Result<()> {
    if found != pinned {
        bail!(
            "{file} has sha256 {found}, pinned is {pinned}\n\
             hint: the download is damaged or not the official wheel; check pip's index and cache \
             settings (`pip cache purge`) and run `cargo xtask mlx` again"
        );
    }
    Ok(())
}

/// Returns the SHA-256 of a file, in lower-case hex.
pub(crate) fn sha256_of(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let num_read =
            file.read(&mut buffer).with_context(|| format!("reading {}", path.display()))?;
        if num_read == 0 {
            break;
        }
        hasher.update(&buffer[..num_read]);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Unpacks a wheel (a zip archive) over `dir`. Paths that would leave `dir` are refused by the
/// archive reader.
pub(crate) fn unpack(wheel: &Path, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let file = File::open(wheel).with_context(|| format!("opening {}", wheel.display()))?;
    zip::ZipArchive::new(file)
        .and_then(|mut archive| archive.extract(dir))
        .with_context(|| format!("unpacking {}", wheel.display()))
}

#[cfg(test)]
mod tests {
    use super::super::wheels::Platform;
    use super::*;

    #[test]
    fn the_installer_is_asked_for_exactly_the_pinned_wheel() {
        let wheel = Platform::LinuxX86 { cuda: false }.wheels()[0];
        let packages = [wheel.requirement()];
        let args = download_args(Target::of(&wheel), &packages, Path::new("/tmp/w")).join(" ");
        assert_eq!(
            args,
            "download --no-deps --only-binary=:all: --disable-pip-version-check \
             --python-version 3.12 --platform manylinux_2_35_x86_64 --dest /tmp/w mlx-cpu==0.32.4"
        );
    }

    #[test]
    fn a_wrong_hash_names_the_file_both_hashes_and_a_remedy() {
        let message = check_hash("a.whl", "00ff", "1234").unwrap_err().to_string();
        for part in ["a.whl", "00ff", "1234", "\nhint: "] {
            assert!(message.contains(part), "{part} is missing from: {message}");
        }
        check_hash("a.whl", "00ff", "00ff").unwrap();
    }

    #[test]
    fn the_hash_of_a_file_is_its_sha256() {
        let path = std::env::temp_dir().join(format!("xtask-sha256-{}", std::process::id()));
        fs::write(&path, b"abc").unwrap();
        let hash = sha256_of(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_missing_installer_and_a_truncated_wheel_are_reported_with_a_hint() {
        assert!(missing_installer().contains("\nhint: "));
        let path = std::env::temp_dir().join(format!("xtask-zip-{}.whl", std::process::id()));
        fs::write(&path, b"PK\x03\x04 cut off").unwrap();
        let err = unpack(&path, &std::env::temp_dir().join("xtask-never")).unwrap_err();
        fs::remove_file(&path).unwrap();
        assert!(format!("{err:#}").contains("unpacking"), "{err:#}");
    }
}
