//! Tests with clients and a real server, each set with Python packages of its own.

use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;

use anyhow::{Context, ensure};

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
            // Written at the end: what an interrupted installation has left cannot be mended by another one.
            let is_whole = venv.join("installed");
            if !is_whole.is_file() {
                quietly(command(&system_python()).args(["-m", "venv", "--clear"]).arg(&venv))?;
            }
            let requirements = format!("{tests}/requirements.txt");
            let arguments = ["-m", "pip", "install", "--quiet", "-r", &requirements];
            quietly(command(&program).args(arguments))?;
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
