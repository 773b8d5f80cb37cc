//! The programs that the checks run: built by Cargo here, or taken from an unpacked bundle.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{golden, process};

/// How a GPU is called in reports.
pub(super) const GPU: &str = "the GPU";

/// The programs, and the folders that they need.
pub(super) struct Programs {
    /// Tests of the models, of the recurrences and of the rank.
    pub(super) model_tests: PathBuf,
    pub(super) recurrence_tests: PathBuf,
    pub(super) rank_tests: PathBuf,
    /// Program that measures decode steps.
    pub(super) steps: PathBuf,
    /// `jackalope`, beside `jackalope-rank`.
    pub(super) jackalope: PathBuf,
    pub(super) rank: PathBuf,
    /// Folder with `mlx/lib`.
    pub(super) mlx: PathBuf,
    /// Root of the sources, whose test data, scripts and shipped model are used.
    pub(super) root: PathBuf,
    /// Folder of Python's packages with mlx-lm, if a bundle brought it.
    peer: Option<PathBuf>,
}

impl Programs {
    /// Builds everything with Cargo.
    pub(super) fn build() -> anyhow::Result<Programs> {
        let test = |target: &[&str], package: &str| {
            let args = ["test", "--release", "--no-run", "--message-format=json", "-p", package];
            artifact(&[args.as_slice(), target].concat(), |line| {
                line["profile"]["test"].as_bool() == Some(true)
            })
        };
        // All are built for the same packages: others would enable other features of dependencies,
        // which Cargo would then compile again.
        let build = |target: [&str; 2]| {
            let args = ["build", "--release", "--message-format=json", "-p", "jackalope-models"];
            let packages = ["-p", "jackalope-runner", "-p", "jackalope-cli"];
            artifact(&[args.as_slice(), &packages, &target].concat(), |_| true)
        };
        let mlx = process::target_dir().join("mlx");
        let selected = std::fs::read_to_string(mlx.join("selected")).context("no libmlx")?;
        Ok(Programs {
            model_tests: test(&["--test", "it"], "jackalope-models")?,
            recurrence_tests: test(&["--test", "it"], "jackalope-recurrence")?,
            rank_tests: test(&["--bin", "jackalope-rank"], "jackalope-runner")?,
            steps: build(["--example", "batched_steps"])?,
            rank: build(["--bin", "jackalope-rank"])?,
            jackalope: build(["--bin", "jackalope"])?,
            mlx: mlx.join(selected.trim()).join("mlx"),
            root: process::workspace_dir(),
            peer: None,
        })
    }

    /// Finds the programs of a bundle that was unpacked in `dir`.
    pub(super) fn unpacked(dir: &Path) -> anyhow::Result<Programs> {
        let dir = dir.canonicalize().with_context(|| format!("opening {}", dir.display()))?;
        let program = |name: &str| dir.join("bin").join(name);
        let programs = Programs {
            model_tests: program("model-tests"),
            recurrence_tests: program("recurrence-tests"),
            rank_tests: program("rank-tests"),
            steps: program("batched-steps"),
            jackalope: program("jackalope"),
            rank: program("jackalope-rank"),
            mlx: dir.join("bin/mlx"),
            root: dir.join("root"),
            peer: Some(dir.join("peer")).filter(|it| it.is_dir()),
        };
        for (_, path) in programs.named() {
            ensure!(path.is_file(), "{} is missing\nhint: unpack all parts", path.display());
        }
        Ok(programs)
    }

    /// Returns the programs with their names in a bundle.
    pub(super) fn named(&self) -> [(&'static str, &Path); 6] {
        [
            ("model-tests", &self.model_tests),
            ("recurrence-tests", &self.recurrence_tests),
            ("rank-tests", &self.rank_tests),
            ("batched-steps", &self.steps),
            ("jackalope", &self.jackalope),
            ("jackalope-rank", &self.rank),
        ]
    }

    /// Returns a command that finds libmlx, and computes with MLX's own operations on every device.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = process::command(&program.to_string_lossy());
        let variable =
            if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };
        command.env(variable, self.mlx.join("lib")).env("JACKALOPE_CPU", "stock");
        command.current_dir(&self.root);
        command
    }

    /// Returns a command of a Python that has mlx-lm, which is installed if no bundle brought it.
    pub(super) fn python(&self) -> anyhow::Result<Command> {
        let Some(peer) = &self.peer else {
            return Ok(process::command(&golden::python()?.to_string_lossy()));
        };
        let mut command = process::command("python3");
        command.env("PYTHONPATH", peer);
        Ok(command)
    }

    /// Returns the name of the device that is checked. `wants_cpu` refuses a GPU.
    pub(super) fn device(&self, wants_cpu: bool) -> anyhow::Result<&'static str> {
        let output = self.command(&self.rank).arg("libraries").output()?;
        let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "jackalope-rank does not start: {}", said.trim());
        let has_gpu = ["cuda", "metallib"].iter().any(|it| text.contains(it));
        ensure!(
            !(wants_cpu && has_gpu),
            "this libmlx computes on a GPU\nhint: `cargo xtask mlx` brings the one for CPUs"
        );
        Ok(if has_gpu { GPU } else { "the CPU with stock operations" })
    }
}

/// Runs Cargo and returns the last executable of a target that is wanted.
fn artifact(args: &[&str], is_wanted: impl Fn(&Value) -> bool) -> anyhow::Result<PathBuf> {
    eprintln!("cargo {}", args.join(" "));
    let output = process::command("cargo")
        .args(args)
        .current_dir(process::workspace_dir())
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("starting cargo")?;
    ensure!(output.status.success(), "the build failed; cargo's messages above say why");
    let text = String::from_utf8(output.stdout)?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut executables =
        lines.filter(is_wanted).filter_map(|line| line["executable"].as_str().map(PathBuf::from));
    executables.next_back().context("cargo built no program")
}
