//! Why a machine was not brought to a version.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::shell::{Output, ShellError, ShellErrorKind};

/// Why a machine does not have the version. What it used before it uses still.
#[derive(Debug, Error)]
pub enum InstallError {
    /// No way to run anything there.
    #[error("{source}\nhint: {}", .source.kind.hint(&.source.host))]
    Shell {
        /// What the shell says.
        source: ShellError,
    },
    /// It is another kind of machine.
    #[error(
        "{host} is `{theirs}`, these programs are for `{ours}`\n\
         hint: build jackalope on a machine like {host} and bootstrap it from there"
    )]
    Platform {
        /// The machine.
        host: String,
        /// What `uname -sm` says here.
        ours: String,
        /// What it says there.
        theirs: String,
    },
    /// Nothing there can verify files.
    #[error("{host} has neither `sha256sum` nor `shasum`\nhint: install GNU coreutils, or perl")]
    NoHashTool {
        /// The machine.
        host: String,
    },
    /// The disk is too full.
    #[error(
        "{host} has {} MiB free at {home}, {id} takes {} MiB\n\
         hint: free some there, or set JACKALOPE_HOME for its non-interactive shells",
        .free_bytes >> 20,
        .needed_bytes.div_ceil(1 << 20)
    )]
    NoRoom {
        /// The machine.
        host: String,
        /// Its folder for jackalope.
        home: String,
        /// The version.
        id: String,
        /// What is missing there, with some room to spare.
        needed_bytes: u64,
        /// What is free.
        free_bytes: u64,
    },
    /// A file arrived with other bytes.
    #[error(
        "{place} arrived damaged on {host}; what was installed there is as it was\n\
         hint: run the same again, only this file is sent once more"
    )]
    Damaged {
        /// The machine.
        host: String,
        /// The file.
        place: String,
    },
    /// A file of ours changed while it was sent.
    #[error("{} changed while it was sent\nhint: wait until its build has ended", .path.display())]
    Changed {
        /// Which.
        path: PathBuf,
    },
    /// The programs arrived whole, but do not start.
    #[error(
        "the programs do not start on {host}; what was installed there is as it was\n  {}\n\
         hint: its system may be older than this one's: build jackalope there",
        .reason.replace('\n', "\n  ")
    )]
    NoStart {
        /// The machine.
        host: String,
        /// What they say.
        reason: String,
    },
    /// There is nothing to roll back to.
    #[error("{host} has no earlier version of jackalope")]
    NoPrevious {
        /// The machine.
        host: String,
    },
    /// Another program's folder would be removed.
    #[error(
        "{host}: {home} does not look like jackalope's folder, so nothing was removed\n\
         hint: look at JACKALOPE_HOME there"
    )]
    NotOurs {
        /// The machine.
        host: String,
        /// The folder.
        home: String,
    },
    /// A file of ours cannot be read.
    #[error("reading {}: {source}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody else sends the same file at the same time, or the connection was cut in the middle of it.
    #[error("{host} has not got {place} as far as it was sent")]
    Offset {
        /// The machine.
        host: String,
        /// The file.
        place: String,
    },
    /// A script failed there.
    #[error("{host}: {doing} failed with status {status}: {reason}")]
    Script {
        /// The machine.
        host: String,
        /// What it was for.
        doing: &'static str,
        /// How it ended.
        status: i32,
        /// The end of what it said.
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

    /// True if the same may go well a moment later.
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
