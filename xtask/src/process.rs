//! Access of the tasks to the environment: child processes, variables, directories.
//!
//! Children run in the foreground of a developer's terminal and receive its interrupts, so they
//! need no other way to end with it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// Returns a command to run in the foreground. It does not inherit the variables by which Cargo
/// describes this package to it: some build scripts of dependencies depend on them, so a build that
/// inherits them would compile again what a build from the command line has compiled.
pub(crate) fn command(program: &str) -> Command {
    #[expect(clippy::disallowed_methods, reason = "xtask runs developers' tools in the foreground")]
    let mut command = Command::new(program);
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|it| describes_package(it)) {
        command.env_remove(name);
    }
    command
}

/// Runs a command, and fails with what it printed if it fails.
pub(crate) fn quietly(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    let said = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    ensure!(output.status.success(), "{command:?} failed: {}\n{}", output.status, said.concat());
    Ok(())
}

/// Whether Cargo sets this variable to describe the package that it runs.
fn describes_package(name: &str) -> bool {
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// Returns an environment variable, if it is set and not empty.
pub(crate) fn env(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns the root of the workspace.
pub(crate) fn workspace_dir() -> PathBuf {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest_dir.parent().expect("xtask is a folder of the workspace").to_path_buf()
}

/// Returns Cargo's target directory.
pub(crate) fn target_dir() -> PathBuf {
    match env("CARGO_TARGET_DIR") {
        Some(dir) => workspace_dir().join(dir),
        None => workspace_dir().join("target"),
    }
}

/// Returns the folder of a program in `PATH`.
pub(crate) fn in_path(program: &str) -> Option<PathBuf> {
    let path = env("PATH")?;
    std::env::split_paths(&path).find(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_do_not_inherit_the_description_of_this_package() {
        let command = command("cargo");
        let is_removed = |name: &str| command.get_envs().any(|it| it == (name.as_ref(), None));
        assert!(is_removed("CARGO_MANIFEST_DIR"), "Cargo sets it for tests");
        assert!(!is_removed("PATH") && !is_removed("CARGO_HOME"));
    }
}
