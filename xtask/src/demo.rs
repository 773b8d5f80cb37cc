//! `cargo xtask demo`: builds everything and runs `jackalope demo`.

use std::process::Command;

use anyhow::{Context, ensure};

use crate::process::{command, target_dir, workspace_dir};

/// The programs to use: those that users build, or those that tests have built.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Profile {
    Release,
    Dev,
}

pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    ensure!(args.is_empty(), "`demo` takes no options");
    println!("1/3  libmlx");
    crate::mlx::run(&[])?;
    println!("2/3  building jackalope (the first time takes a few minutes)");
    build(Profile::Release)?;
    println!("3/3  jackalope demo");
    show(Profile::Release)
}

/// Runs the demonstration of programs that are built.
pub(crate) fn show(profile: Profile) -> anyhow::Result<()> {
    let program = target_dir().join(profile.folder()).join("jackalope");
    let status = command(&program.to_string_lossy())
        .arg("demo")
        .status()
        .with_context(|| format!("starting {}", program.display()))?;
    ensure!(status.success(), "the demonstration ended with {status}");
    Ok(())
}

impl Profile {
    /// Returns the folder of this profile's programs in `target`.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Dev => "debug",
        }
    }

    /// Builds both programs.
    fn build(self) -> Command {
        let mut build = command("cargo");
        build.args(["build", "-p", "jackalope-cli", "-p", "jackalope-runner"]);
        if self == Profile::Release {
            build.arg("--release");
        }
        build
    }
}

pub(crate) fn build(profile: Profile) -> anyhow::Result<()> {
    let status = profile.build().current_dir(workspace_dir()).status().context("starting cargo")?;
    ensure!(status.success(), "the build failed; cargo's messages above say why");
    Ok(())
}
