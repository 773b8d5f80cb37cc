//! Children that have not executed their program yet.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Kills the children of this process that have not executed a program `age` after they were
/// created, and returns their process ids. A child that was stopped, or that hangs in opening its
/// program, is in this state, and the thread that started it waits for it. macOS has no such
/// children, because it creates a process and executes its program in one call, and no `/proc`.
pub fn kill_unexecuted_children(age: Duration) -> Vec<u32> {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = uptime.split_whitespace().next().and_then(|it| it.parse().ok());
    let uptime = Duration::try_from_secs_f64(seconds.unwrap_or(0.0)).unwrap_or_default();
    let (own, began_before) = (std::process::id(), uptime.saturating_sub(age));
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_stuck = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        stat.is_some_and(|stat| is_unexecuted_child(&stat, own, began_before))
    };
    let kill = |pid: &u32| {
        let process = Pid::from_raw(pid.cast_signed());
        process.is_some_and(|process| kill_process(process, Signal::KILL).is_ok())
    };
    pids.filter(is_stuck).filter(kill).collect()
}

/// True if `/proc/PID/stat` describes a child of `parent` that was created before this time since
/// the start of the system and has not executed a program.
fn is_unexecuted_child(stat: &str, parent: u32, began_before: Duration) -> bool {
    /// `PF_FORKNOEXEC`; the kernel clears it when a program is executed.
    const FORKED_ONLY: u64 = 0x40;
    /// Ticks per second of the times in `/proc` (`USER_HZ`).
    const TICKS_PER_S: u32 = 100;
    // The program's name, in parentheses, may contain any character; the state follows it.
    let Some((_, fields)) = stat.rsplit_once(')') else { return false };
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |idx: usize| fields.get(idx)?.parse::<u64>().ok();
    let (Some(its_parent), Some(flags), Some(ticks)) = (number(1), number(6), number(19)) else {
        return false;
    };
    let began = Duration::from_secs(ticks) / TICKS_PER_S;
    its_parent == u64::from(parent) && flags & FORKED_ONLY != 0 && began <= began_before
}
