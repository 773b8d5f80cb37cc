//! `cargo xtask mlx`: brings the pinned official MLX wheel and unpacks it under `target/mlx/`.
//!
//! ```text
//! target/mlx/selected            name of the folder the build links against
//! target/mlx/<platform>/wheels   the wheels unpacked there, with their hashes
//! target/mlx/<platform>/mlx/     the prefix: include/, lib/
//! ```
//!
//! A folder appears by one rename, so an interrupted run leaves nothing half done; a second run
//! with the same pins does nothing. `MLX_PREFIX` names another prefix and is only checked.

pub(crate) mod fetch;
pub(crate) mod wheels;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};

use crate::process;
use wheels::{MLX_VERSION, Platform, Wheel};

const USAGE: &str = "usage: cargo xtask mlx [--cuda] [--json]";

/// The compilers to try if `CXX` does not name one.
const COMPILERS: [&str; 3] = ["c++", "g++", "clang++"];

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    cuda: bool,
    json: bool,
}

/// Downloads the library, or reports why it cannot.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    let prefix = match process::env("MLX_PREFIX") {
        Some(prefix) => {
            let prefix = PathBuf::from(prefix);
            check_prefix(&prefix)?;
            eprintln!("using MLX_PREFIX {}", prefix.display());
            prefix
        }
        None => install(options.cuda)?,
    };
    check_compiler()?;
    if options.json {
        println!("{{\"prefix\": {:?}, \"version\": \"{MLX_VERSION}\"}}", prefix.display());
    }
    Ok(())
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options::default();
    for arg in args {
        match arg.as_str() {
            "--cuda" => options.cuda = true,
            "--json" => options.json = true,
            other => bail!("unknown option {other}\n{USAGE}"),
        }
    }
    Ok(options)
}

fn install(cuda: bool) -> Result<PathBuf> {
    let os = std::env::consts::OS;
    let macos_version = if os == "macos" { Some(macos_version()?) } else { None };
    let platform = Platform::of(os, std::env::consts::ARCH, macos_version, cuda)?;
    let root = process::target_dir().join("mlx");
    let folder = root.join(platform.folder());
    if holds(&folder, platform.wheels()) {
        eprintln!("MLX {MLX_VERSION} is already in {}", folder.display());
    } else {
        let started = Instant::now();
        bring(platform.wheels(), &root, &folder)?;
        eprintln!(
            "MLX {MLX_VERSION} is in {} ({:.1} s)",
            folder.display(),
            started.elapsed().as_secs_f32()
        );
    }
    select(&root, platform.folder())?;
    let prefix = folder.join("mlx");
    check_prefix(&prefix)?;
    Ok(prefix)
}

/// Returns the wheel of the library for CUDA on this machine's processor.
pub(crate) fn cuda_wheel() -> Result<&'static Wheel> {
    let platform = Platform::of(std::env::consts::OS, std::env::consts::ARCH, None, true)?;
    platform.wheels().first().context("no library for CUDA")
}

/// Returns the prefix of the library for CUDA without NVIDIA's own, brought if it is not here: for
/// machines that have those. The build goes on to link against what is selected.
pub(crate) fn cuda_library() -> Result<PathBuf> {
    let wheels = std::slice::from_ref(cuda_wheel()?);
    let root = process::target_dir().join("mlx");
    let folder = root.join("cuda-library");
    if !holds(&folder, wheels) {
        bring(wheels, &root, &folder)?;
    }
    let prefix = folder.join("mlx");
    check_prefix(&prefix)?;
    Ok(prefix)
}

/// Downloads, checks and unpacks into a scratch folder, then moves it to its place.
fn bring(wheels: &[Wheel], root: &Path, folder: &Path) -> Result<()> {
    let installer = fetch::find_installer()?;
    let scratch = Scratch::new(root)?;
    if holds(folder, wheels) {
        // Another run downloaded it while this one waited.
        return Ok(());
    }
    let unpacked = scratch.dir.join("unpacked");
    for (idx, wheel) in wheels.iter().enumerate() {
        let step = format!("[{}/{}]", idx + 1, wheels.len());
        eprintln!("{step} bringing {} with {}", wheel.file_name(), installer.join(" "));
        fetch::download(installer, wheel, &scratch.dir)?;
        eprintln!("{step} sha256 is as pinned, unpacking");
        let file = scratch.dir.join(wheel.file_name());
        fetch::unpack(&file, &unpacked)?;
        fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
    }
    fs::write(unpacked.join("wheels"), stamp_of(wheels)).context("writing the stamp")?;
    if folder.exists() {
        fs::rename(folder, scratch.dir.join("replaced"))
            .with_context(|| format!("replacing {}", folder.display()))?;
    }
    fs::rename(&unpacked, folder).with_context(|| format!("creating {}", folder.display()))
}

/// A folder beside the result, removed whatever happens. One run at a time holds it.
struct Scratch {
    dir: PathBuf,
    /// Lock of the folder; released when the file is closed, even if no destructor runs.
    _lock: File,
}

impl Scratch {
    fn new(root: &Path) -> Result<Scratch> {
        fs::create_dir_all(root).with_context(|| format!("creating {}", root.display()))?;
        let lock = File::create(root.join("lock")).context("creating the lock")?;
        if lock.try_lock().is_err() {
            eprintln!("waiting for another `cargo xtask mlx` to finish");
            lock.lock().context("waiting for the lock")?;
        }
        let dir = root.join("scratch");
        if dir.exists() {
            // Left over from a run that was killed.
            fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
        }
        fs::create_dir(&dir).with_context(|| format!("creating {}", dir.display()))?;
        Ok(Scratch { dir, _lock: lock })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next run removes what could not be removed now.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Returns the list of a folder's wheels: one line per wheel, with its hash and file name.
fn stamp_of(wheels: &[Wheel]) -> String {
    wheels.iter().map(|wheel| format!("{}  {}\n", wheel.sha256, wheel.file_name())).collect()
}

/// Returns whether a folder exists and came from exactly these wheels.
fn holds(folder: &Path, wheels: &[Wheel]) -> bool {
    fs::read_to_string(folder.join("wheels")).is_ok_and(|found| found == stamp_of(wheels))
}

/// Selects the folder that the build links against. Does nothing if it is selected already, because
/// the build watches the file.
fn select(root: &Path, folder: &str) -> Result<()> {
    let path = root.join("selected");
    if fs::read_to_string(&path).is_ok_and(|selected| selected == folder) {
        return Ok(());
    }
    fs::write(&path, folder).with_context(|| format!("writing {}", path.display()))
}

fn macos_version() -> Result<(u32, u32)> {
    let output = process::command("sw_vers")
        .arg("-productVersion")
        .output()
        .context("asking sw_vers for the macOS version")?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse_macos_version(&text)
        .with_context(|| format!("sw_vers gave {:?}, expected a version like 26.2", text.trim()))
}

fn parse_macos_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next().map_or(Some(0), |minor| minor.parse().ok())?;
    Some((major, minor))
}

/// Refuses a prefix that does not hold the headers of the pinned version.
fn check_prefix(prefix: &Path) -> Result<()> {
    let header = prefix.join("include/mlx/version.h");
    let text = fs::read_to_string(&header).map_err(|err| {
        anyhow!(
            "no MLX headers: {}: {err}\n\
             hint: MLX_PREFIX is the folder that holds include/ and lib/; unset it to use the \
             pinned wheel",
            header.display()
        )
    })?;
    check_version(&text)
}

fn check_version(header: &str) -> Result<()> {
    let found = header_version(header).context("mlx/version.h does not define a version")?;
    if found != MLX_VERSION {
        bail!(
            "found MLX {found}, this workspace needs {MLX_VERSION}\n\
             hint: unset MLX_PREFIX and run `cargo xtask mlx`"
        );
    }
    Ok(())
}

fn header_version(header: &str) -> Option<String> {
    let number = |name: &str| {
        let prefix = format!("#define MLX_VERSION_{name} ");
        header.lines().find_map(|line| line.strip_prefix(&prefix)).map(str::trim)
    };
    Some(format!("{}.{}.{}", number("MAJOR")?, number("MINOR")?, number("PATCH")?))
}

/// The shim is C++: a missing compiler is reported here instead of in the middle of a build.
fn check_compiler() -> Result<()> {
    let named = process::env("CXX").map(|cxx| cxx.to_string_lossy().into_owned());
    let candidates: Vec<String> = match named {
        // CXX may carry a wrapper and flags: the first word is the program.
        Some(cxx) => cxx.split_whitespace().next().map(str::to_owned).into_iter().collect(),
        None => COMPILERS.map(str::to_owned).to_vec(),
    };
    let answers = |program: &String| {
        let mut command = process::command(program);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if candidates.iter().any(answers) {
        return Ok(());
    }
    bail!(
        "no C++ compiler answers (tried {})\n\
         hint: install one (apt install g++, xcode-select --install), or point CXX at it",
        candidates.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_headers_is_checked_with_a_hint() {
        let header = |patch: &str| {
            format!(
                "#define MLX_VERSION_MAJOR 0\n#define MLX_VERSION_MINOR 32\n\
                 #define MLX_VERSION_PATCH {patch}\n"
            )
        };
        check_version(&header("4")).unwrap();
        let message = check_version(&header("2")).unwrap_err().to_string();
        assert!(message.contains("0.32.2") && message.contains("\nhint: "), "{message}");
        assert!(check_version("#pragma once").is_err());
    }

    #[test]
    fn a_prefix_without_headers_is_refused_with_a_hint() {
        let message = check_prefix(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(message.contains("/nonexistent") && message.contains("\nhint: "), "{message}");
    }

    #[test]
    fn macos_versions_are_read_as_sw_vers_writes_them() {
        assert_eq!(parse_macos_version("26.2\n"), Some((26, 2)));
        assert_eq!(parse_macos_version("14.7.1\n"), Some((14, 7)));
        assert_eq!(parse_macos_version("15\n"), Some((15, 0)));
        assert_eq!(parse_macos_version("Ventura"), None);
    }

    #[test]
    fn options_are_known_or_refused() {
        let parse =
            |args: &[&str]| parse(&args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>());
        assert_eq!(parse(&["--json"]).unwrap(), Options { cuda: false, json: true });
        assert_eq!(parse(&["--cuda"]).unwrap(), Options { cuda: true, json: false });
        assert!(parse(&["--metal"]).unwrap_err().to_string().contains("usage:"));
    }

    #[test]
    fn a_stamp_changes_with_any_pin() {
        let wheels = Platform::LinuxX86 { cuda: false }.wheels();
        let other = Platform::LinuxArm { cuda: false }.wheels();
        assert_ne!(stamp_of(wheels), stamp_of(other));
    }
}
