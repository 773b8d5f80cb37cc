//! Operates the server of this machine: which process it is, how it was started, and what it
//! reports.
//!
//! ```text
//!   serve   writes ~/.jackalope/serve.json, and last-start.json once it is ready
//!   start   runs serve in the background     stop, restart, kill-all   end exactly that process
//!   resume  gives cables their addresses again after a reboot, then as start
//!   status, monitor, logs, health, metrics, queue, served, test, support   look at it
//! ```

mod ask;
mod kill;
mod logs;
mod monitor;
mod ready;
mod resume;
mod start;
mod start_lock;
mod status;
mod support;

pub(crate) use ask::{health, metrics, named, queue, served, server, test};
pub(crate) use kill::kill_all;
pub(crate) use logs::logs;
pub(crate) use monitor::monitor;
pub(crate) use resume::resume;
pub(crate) use start::{restart, start, stop};
pub(crate) use status::status;
pub(crate) use support::support;
