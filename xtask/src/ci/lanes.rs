//! Runs commands in lanes: several at a time, each from its beginning to its end. Most tests wait for
//! processes more than they compute, so one program of tests alone leaves a core idle.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::process::target_dir;

/// Number of commands that run at the same time.
const NUM_LANES: usize = 2;

/// Number of bytes that are printed of a job's output, from its end: all of it is in the job's log.
const MAX_PRINTED_BYTES: usize = 16 << 10;

/// A command of a lane.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) name: String,
    pub(super) command: Command,
}

/// What became of a job.
#[derive(Debug)]
pub(super) struct JobResult {
    pub(super) name: String,
    pub(super) time: Duration,
    has_passed: bool,
    /// The end of what it printed.
    said: String,
}

/// Runs jobs in this order, as lanes become free, and prints the end of each one's output when it has
/// ended. All jobs run, also after one has failed; the outputs of those that failed are printed last.
///
/// # Errors
/// Fails if a job fails or cannot be started; the message names all that failed.
pub(super) fn run(jobs: Vec<Job>) -> anyhow::Result<Vec<JobResult>> {
    let folder = target_dir().join("ci");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let queue = Mutex::new(VecDeque::from(jobs));
    let results = Mutex::new(Vec::new());
    let lane = || -> anyhow::Result<()> {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(job) = next else { return Ok(()) };
            let result = run_job(job, &folder)?;
            results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        }
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..NUM_LANES).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().try_for_each(|it| it.join().expect("a lane does not panic"))
    })?;
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let failed: Vec<&JobResult> = results.iter().filter(|it| !it.has_passed).collect();
    for job in &failed {
        println!("── {} FAILED\n{}", job.name, job.said);
    }
    let failed: Vec<&str> = failed.into_iter().map(|it| it.name.as_str()).collect();
    let (folder, list) = (folder.display(), failed.join(", "));
    ensure!(failed.is_empty(), "failed: {list}\nhint: {folder} has the output of each");
    Ok(results)
}

fn run_job(mut job: Job, folder: &Path) -> anyhow::Result<JobResult> {
    let path = folder.join(format!("{}.log", job.name.replace('/', "-")));
    let output = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    let started = Instant::now();
    let status = job
        .command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .with_context(|| format!("starting {:?}", job.command.get_program()))?;
    let time = started.elapsed();
    let said = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    // One call, so that outputs of two lanes do not mix.
    let (name, seconds) = (&job.name, time.as_secs());
    let has_passed = status.success();
    let said = end_of(&said);
    let shown = if has_passed { said.as_str() } else { "   FAILED; its output follows below" };
    println!("── {name}\n{shown}\n   {name} took {seconds} s");
    Ok(JobResult { name: job.name, time, has_passed, said })
}

/// Returns the last lines of an output, at most [`MAX_PRINTED_BYTES`].
fn end_of(output: &[u8]) -> String {
    let output = output.trim_ascii_end();
    let Some(cut) = output.len().checked_sub(MAX_PRINTED_BYTES).filter(|&cut| cut > 0) else {
        return String::from_utf8_lossy(output).into_owned();
    };
    let rest = &output[cut..];
    let line = rest.iter().position(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    format!("[…]\n{}", String::from_utf8_lossy(&rest[line..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::command;

    fn shell(name: &str, script: &str) -> Job {
        let mut command = command("sh");
        command.args(["-c", script]);
        Job { name: name.to_owned(), command }
    }

    #[test]
    fn every_job_runs_and_all_that_fail_are_named() {
        let jobs = vec![
            shell("lanes-test/first", "echo first; exit 3"),
            shell("lanes-test/second", "exit 0"),
            shell("lanes-test/third", "false"),
        ];
        let err = run(jobs).expect_err("two fail").to_string();
        assert!(err.contains("lanes-test/first") && err.contains("lanes-test/third"), "{err}");
        assert!(!err.contains("second"), "{err}");
        let results = run(vec![shell("lanes-test/alone", "exit 0")]).expect("passes");
        assert_eq!(results.len(), 1);
    }

    #[test]
    fn the_end_of_a_long_output_is_kept() {
        assert_eq!(end_of(b"one\ntwo\n\n"), "one\ntwo");
        let long = "another line\n".repeat(MAX_PRINTED_BYTES) + "the reason\n";
        let end = end_of(long.as_bytes());
        assert!(end.starts_with("[…]\nanother line\n"), "{}", &end[..40]);
        assert!(end.ends_with("\nthe reason") && end.len() <= MAX_PRINTED_BYTES + 8);
        let umlauts = "ä".repeat(MAX_PRINTED_BYTES);
        assert!(end_of(umlauts.as_bytes()).len() <= MAX_PRINTED_BYTES + 8);
    }
}
