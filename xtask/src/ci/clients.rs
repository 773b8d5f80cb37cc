//! Tests with clients and a real server, each set with Python packages of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread::JoinHandle;

use anyhow::{Context, anyhow, ensure};

use super::PROFILE;
use super::lanes::Job;
use crate::process::{command, env, target_dir, workspace_dir};

/// Sets of tests with clients and a real server: a name, and their folder.
pub(super) const ENVIRONMENTS: [(&str, &str); 6] = [
    ("clients", "tests/clients"),
    ("frameworks", "tests/clients/frameworks"),
    ("agents", "tests/clients/agents"),
    ("aider", "tests/clients/aider"),
    ("spec", "tests/spec"),
    ("packaging", "tests/packaging"),
];

/// Python with pip, which installs the packages of all sets.
static PIP: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// A separate set of Python packages, so that pins of one set do not hold back the others.
pub(super) struct Environment {
    name: &'static str,
    tests: &'static str,
    python: PathBuf,
    installing: JoinHandle<anyhow::Result<()>>,
}

impl Environment {
    /// Begins to install the packages.
    pub(super) fn prepare(name: &'static str, tests: &'static str) -> Environment {
        let venv = target_dir().join(name);
        let python = venv.join("bin/python");
        let program = python.to_string_lossy().into_owned();
        let installing = std::thread::spawn(move || {
            let pip = PIP.get_or_init(installer).as_ref().map_err(|reason| anyhow!("{reason}"))?;
            // Written at the end: what an interrupted installation has left cannot be mended by another one.
            let is_whole = venv.join("installed");
            if !is_whole.is_file() {
                make_venv(&venv, &["--without-pip"])?;
            }
            // Python compiles what tests use when they use it.
            let mut install = command(&pip.to_string_lossy());
            install.args(["-m", "pip", "--python", &program, "install", "--quiet", "--no-compile"]);
            quietly(install.args(["-r", &format!("{tests}/requirements.txt")]))?;
            std::fs::write(&is_whole, []).with_context(|| format!("writing {}", is_whole.display()))
        });
        Environment { name, tests, python, installing }
    }

    /// Returns the job that runs the tests, once the packages are installed.
    pub(super) fn job(self) -> anyhow::Result<Job> {
        let installed = self.installing.join().expect("installing does not panic");
        installed.with_context(|| format!("installing the packages of {}", self.tests))?;
        let mut pytest = command(&self.python.to_string_lossy());
        pytest.args(["-m", "pytest", "-q", self.tests]).current_dir(workspace_dir());
        pytest.env("JACKALOPE_DIST", target_dir().join("dist"));
        pytest.env("JACKALOPE_BIN", target_dir().join(PROFILE.folder()).join("jackalope"));
        Ok(Job { name: self.name.to_owned(), command: pytest, num_lanes: 1 })
    }
}

/// Makes a place for Python packages with pip, and returns its Python; or why there is none.
fn installer() -> Result<PathBuf, String> {
    let venv = target_dir().join("pip");
    let made = if venv.join("bin/pip").is_file() { Ok(()) } else { make_venv(&venv, &[]) };
    made.map_err(|err| format!("{err:#}"))?;
    Ok(venv.join("bin/python"))
}

fn make_venv(venv: &Path, options: &[&str]) -> anyhow::Result<()> {
    quietly(command(&system_python()).args(["-m", "venv", "--clear"]).args(options).arg(venv))
}

fn quietly(command: &mut Command) -> anyhow::Result<()> {
    let output = command.current_dir(workspace_dir()).output().context("starting Python")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {}\n{said}", output.status);
    Ok(())
}

/// Returns `PYTHON`, or the default name.
fn system_python() -> String {
    env("PYTHON").map_or_else(
        || PathBuf::from("python3").to_string_lossy().into_owned(),
        |python| python.to_string_lossy().into_owned(),
    )
}
