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
}

/// Runs jobs in this order, as lanes become free, and prints the output of each when it has ended. All
/// jobs run, also after one has failed.
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
    let failed = results.iter().filter(|it| !it.has_passed).map(|it| it.name.as_str());
    let failed: Vec<&str> = failed.collect();
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
    let text = String::from_utf8_lossy(&said);
    let mark = if status.success() { "" } else { " FAILED" };
    println!("── {name}\n{}\n   {name} took {seconds} s{mark}", text.trim_end());
    Ok(JobResult { name: job.name, time, has_passed: status.success() })
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
}
