//! The lock that one command holds while it starts or replaces the server of this machine.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use jackalope_console::output;
use jackalope_fleet::home::Home;

/// File in the home folder that is locked.
const LOCK: &str = "start.lock";
/// Interval of trying to lock a file that another command has locked.
const LOCK_POLL: Duration = Duration::from_millis(50);

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
        home.dir("")?;
        let path = home.join(LOCK);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.with_context(|| format!("opening {}", path.display()))?;
        let mut is_told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(StartLock { _file: file }),
                Err(TryLockError::WouldBlock) if deadline <= Instant::now() => bail!(
                    "another command still starts the server of this machine\n\
                     hint: `jackalope status` shows the server; wait longer with `--wait`"
                ),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(err)) => {
                    return Err(err).with_context(|| format!("locking {}", path.display()));
                }
            }
            if !is_told {
                output::note("another command starts the server of this machine; waiting for it");
                is_told = true;
            }
            std::thread::sleep(LOCK_POLL);
        }
    }
}
