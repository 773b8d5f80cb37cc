//! Tests with clients and a real server, each set with Python packages of its own.

use std::path::PathBuf;
use std::thread::JoinHandle;

use anyhow::Context;

use super::PROFILE;
use super::lanes::Job;
use crate::process::{command, target_dir, workspace_dir};
use crate::python;

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
    installing: JoinHandle<anyhow::Result<PathBuf>>,
}

impl Environment {
    /// Begins to install the packages.
    pub(super) fn prepare(name: &'static str, tests: &'static str) -> Environment {
        let installing = std::thread::spawn(move || {
            let requirements = format!("{tests}/requirements.txt");
            python::environment(&target_dir().join(name), &["-r", &requirements])
        });
        Environment { name, tests, installing }
    }

    /// Returns the job that runs the tests, once the packages are installed.
    pub(super) fn job(self) -> anyhow::Result<Job> {
        let installed = self.installing.join().expect("installing does not panic");
        let python =
            installed.with_context(|| format!("installing the packages of {}", self.tests))?;
        let mut pytest = command(&python.to_string_lossy());
        pytest.args(["-m", "pytest", "-q", self.tests]).current_dir(workspace_dir());
        pytest.env("JACKALOPE_DIST", target_dir().join("dist"));
        pytest.env("JACKALOPE_BIN", target_dir().join(PROFILE.folder()).join("jackalope"));
        Ok(Job { name: self.name.to_owned(), command: pytest, num_lanes: 1 })
    }
}
