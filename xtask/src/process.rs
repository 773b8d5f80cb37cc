//! Access of the tasks to the environment: child processes, variables, directories.
//!
//! Children run in the foreground of a developer's terminal and receive its interrupts, so they
//! need no other way to end with it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns a command to run in the foreground. It does not see the variables that describe this
/// package: build scripts of dependencies ask for them, and Cargo would run these scripts again, and
/// compile all that depends on them, whenever it is started otherwise than before.
pub(crate) fn command(program: &str) -> Command {
    #[expect(clippy::disallowed_methods, reason = "xtask runs developers' tools in the foreground")]
    let mut command = Command::new(program);
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|it| describes_package(it)) {
        command.env_remove(name);
    }
    command
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
