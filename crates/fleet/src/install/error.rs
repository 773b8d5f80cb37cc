//! Errors of installing a version on a machine.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::shell::{Output, ShellError, ShellErrorKind};

/// Reason why a machine does not have the version. The previous version stays in use.
#[derive(Debug, Error)]
pub enum InstallError {
    /// Nothing can be run on the machine.
    #[error("{source}\nhint: {}", .source.kind.hint(&.source.host))]
    Shell {
        /// The shell's error.
        source: ShellError,
    },
    /// The machine has another platform.
    #[error(
        "{host} is `{theirs}`, these programs are for `{ours}`\n\
         hint: build jackalope on a machine like {host} and bootstrap it from there"
    )]
    Platform {
        /// The machine.
        host: String,
        /// Output of `uname -sm` on this machine.
        ours: String,
        /// Output of `uname -sm` on the other machine.
        theirs: String,
    },
    /// The machine has no tool that can verify files.
    #[error("{host} has neither `sha256sum` nor `shasum`\nhint: install GNU coreutils, or perl")]
    NoHashTool {
        /// The machine.
        host: String,
    },
    /// The machine has too little free disk space.
    #[error(
        "{host} has {} MiB free at {home}, {id} takes {} MiB\n\
         hint: free some there, or set JACKALOPE_HOME for its non-interactive shells",
        .free_bytes >> 20,
        .needed_bytes.div_ceil(1 << 20)
    )]
    NoRoom {
        /// The machine.
        host: String,
        /// Jackalope's folder on the machine.
        home: String,
        /// The version.
        id: String,
        /// Space in bytes that the installation needs, with a reserve.
        needed_bytes: u64,
        /// Free space in bytes.
        free_bytes: u64,
    },
    /// A file arrived with another content.
    #[error(
        "{place} arrived damaged on {host}; what was installed there is as it was\n\
         hint: run the same again, only this file is sent once more"
    )]
    Damaged {
        /// The machine.
        host: String,
        /// The file, as a path below the version's folder.
        place: String,
    },
    /// A local file changed while it was sent.
    #[error("{} changed while it was sent\nhint: wait until its build has ended", .path.display())]
    Changed {
        /// Path of the file.
        path: PathBuf,
    },
    /// The programs arrived intact but do not start.
    #[error(
        "the programs do not start on {host}; what was installed there is as it was\n  {}\n\
         hint: its system may be older than this one's: build jackalope there",
        .reason.replace('\n', "\n  ")
    )]
    NoStart {
        /// The machine.
        host: String,
        /// Output of the programs.
        reason: String,
    },
    /// There is no previous version.
    #[error("{host} has no earlier version of jackalope")]
    NoPrevious {
        /// The machine.
        host: String,
    },
    /// The folder to remove belongs to another program.
    #[error(
        "{host}: {home} does not look like jackalope's folder, so nothing was removed\n\
         hint: look at JACKALOPE_HOME there"
    )]
    NotOurs {
        /// The machine.
        host: String,
        /// Path of the folder.
        home: String,
    },
    /// A local file cannot be read.
    #[error("reading {}: {source}", .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another installation sends the same file at the same time, or the connection broke within
    /// it.
    #[error(
        "{host}: {place} does not have the size sent so far (another installation may be running)"
    )]
    Offset {
        /// The machine.
        host: String,
        /// The file, as a path below the version's folder.
        place: String,
    },
    /// A script failed on the machine.
    #[error("{host}: {doing} failed with status {status}: {reason}")]
    Script {
        /// The machine.
        host: String,
        /// Purpose of the script.
        doing: &'static str,
        /// Exit status of the script.
        status: i32,
        /// The last lines of the script's output.
        reason: String,
    },
}

impl InstallError {
    pub(super) fn script(host: String, doing: &'static str, ran: &Output) -> InstallError {
        let text = if ran.stderr.trim().is_empty() { &ran.stdout } else { &ran.stderr };
        let last: Vec<&str> = text.trim().lines().rev().take(5).collect();
        let reason = last.into_iter().rev().collect::<Vec<_>>().join("\n  ");
        InstallError::Script { host, doing, status: ran.status, reason }
    }

    /// Returns true if the same attempt may succeed a moment later.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            InstallError::Offset { .. } => true,
            InstallError::Shell { source } => {
                matches!(source.kind, ShellErrorKind::Timeout | ShellErrorKind::Broken)
            }
            _ => false,
        }
    }
}
