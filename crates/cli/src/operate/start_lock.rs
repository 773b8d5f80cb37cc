//! The lock that one command holds while it starts or replaces the server of this machine.

use std::fs::File;
use std::time::Instant;

use anyhow::anyhow;
use jackalope_console::output;
use jackalope_fleet::home::{Home, HomeError};

/// File in the home folder that is locked.
const LOCK: &str = "start.lock";

/// The lock, held until this is dropped or the process ends.
pub(super) struct StartLock {
    _file: File,
}

impl StartLock {
    /// Takes the lock, and waits while another command holds it.
    ///
    /// # Errors
    /// If the other command holds it until the deadline, or if the file cannot be locked.
    pub(super) fn take(home: &Home, deadline: Instant) -> anyhow::Result<StartLock> {
        let on_wait =
            || output::note("another command starts the server of this machine; waiting for it");
        match home.lock(LOCK, deadline, on_wait) {
            Ok(file) => Ok(StartLock { _file: file }),
            Err(HomeError::Locked { .. }) => Err(anyhow!(
                "another command still starts the server of this machine\n\
                 hint: `jackalope status` shows the server; wait longer with `--wait`"
            )),
            Err(err) => Err(err.into()),
        }
    }
}
