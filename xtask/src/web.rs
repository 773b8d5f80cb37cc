//! `cargo xtask web`: rebuilds the web page and compares it with the committed one, and runs its tests
//! in a real browser.

pub(crate) mod packages;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

use anyhow::{Context, ensure};

use crate::process::{command, in_path, quietly, target_dir, workspace_dir};

/// Folders with packages of npm: the page, and its tests.
const PACKAGES: [&str; 2] = ["web", "tests/web"];

/// The committed files of the page.
const COMMITTED: &str = "crates/web/dist";

/// Names of the browser, whichever the distribution has.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// What the page and its tests need: packages of npm and a browser.
pub(crate) struct Tools {
    installing: JoinHandle<anyhow::Result<PathBuf>>,
}

impl Tools {
    /// Begins to install the packages and the browser.
    pub(crate) fn prepare() -> Tools {
        Tools { installing: std::thread::spawn(install) }
    }

    /// Rebuilds the page, and returns the command that tests it once it is as committed.
    pub(crate) fn tests(self, programs: &Path) -> anyhow::Result<Command> {
        let browser = self.installing.join().expect("installing does not panic");
        let browser = browser.context("installing what the web page needs")?;
        compare()?;
        let mut tests = command("node");
        tests.args(["--test", "--test-concurrency=1"]).args(test_files()?);
        tests.env("JACKALOPE_BIN", programs.join("jackalope")).env("CHROMIUM", browser);
        Ok(tests)
    }
}

pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let programs = target_dir().join("debug");
    let mut tests = match args {
        [] => Tools::prepare().tests(&programs)?,
        [word] if word == "build" => {
            install_packages("web")?;
            quietly(command("npm").args(["run", "build"]).current_dir(dir("web")))?;
            return packages::write(&packages::installed()?);
        }
        _ => anyhow::bail!("`web` takes no options but `build`, which writes {COMMITTED}"),
    };
    let status = tests.current_dir(workspace_dir()).status().context("starting node")?;
    ensure!(status.success(), "the tests of the web page failed: {status}");
    Ok(())
}

fn install() -> anyhow::Result<PathBuf> {
    for program in ["node", "npm"] {
        ensure!(
            in_path(program).is_some(),
            "there is no {program}\nhint: install Node.js, version 20 or newer"
        );
    }
    PACKAGES.into_iter().try_for_each(install_packages)?;
    browser()
}

/// Installs the packages of a folder in the versions of its lock file. `npm ci` would refuse a lock file
/// that leaves out optional packages of other platforms.
fn install_packages(folder: &str) -> anyhow::Result<()> {
    quietly(
        command("npm")
            .args(["install", "--no-save", "--no-audit", "--no-fund"])
            .current_dir(dir(folder)),
    )
}

/// Returns the browser, which root installs on Debian if there is none.
fn browser() -> anyhow::Result<PathBuf> {
    let find = || BROWSERS.iter().find_map(|name| in_path(name).map(|dir| dir.join(name)));
    if let Some(found) = find() {
        return Ok(found);
    }
    // Without rights, this fails at once, and the hint says what to do.
    if in_path("apt-get").is_some() {
        let install = ["install", "-y", "-qq", "--no-install-recommends", "chromium"];
        quietly(command("apt-get").args(install)).ok();
    }
    find().with_context(|| {
        format!("there is no browser: none of {BROWSERS:?}\nhint: apt-get install chromium")
    })
}

/// Builds the page beside the committed one, and fails if they differ.
fn compare() -> anyhow::Result<()> {
    let fresh = target_dir().join("web");
    let out_dir = std::path::absolute(&fresh)?;
    let mut build = command("npm");
    build.args(["run", "build", "--", "--outDir"]).arg(&out_dir).current_dir(dir("web"));
    quietly(&mut build)?;
    let (committed, built) = (files(&dir(COMMITTED))?, files(&fresh)?);
    let names = committed.keys().chain(built.keys());
    let differs: Vec<_> = names.filter(|&name| committed.get(name) != built.get(name)).collect();
    ensure!(
        differs.is_empty(),
        "{COMMITTED} is not what web/ builds: {differs:?}\nhint: cargo xtask web build, and commit it"
    );
    ensure!(
        packages::committed()? == packages::installed()?,
        "web/packages.json does not have the packages of the page\nhint: cargo xtask web build, and commit it"
    );
    println!("   web page: as committed, {} files", committed.len());
    Ok(())
}

/// The files with tests. Versions of node differ in how they search a folder for them.
fn test_files() -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir("tests/web")).context("listing tests/web")?;
    let paths = entries.map(|entry| entry.map(|it| it.path())).collect::<Result<Vec<_>, _>>()?;
    let is_test = |path: &PathBuf| path.to_string_lossy().ends_with(".test.mjs");
    let mut files: Vec<PathBuf> = paths.into_iter().filter(is_test).collect();
    files.sort();
    ensure!(!files.is_empty(), "tests/web has no tests");
    Ok(files)
}

/// The files of a folder and their content, by path.
fn files(root: &Path) -> anyhow::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in
            fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?
        {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(root)?.to_owned();
                found.insert(name, fs::read(&path)?);
            }
        }
    }
    Ok(found)
}

fn dir(folder: &str) -> PathBuf {
    workspace_dir().join(folder)
}
