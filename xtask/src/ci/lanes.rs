//! Runs commands in lanes: several at a time, each from its beginning to its end. Most tests wait for
//! processes more than they compute, so one program of tests alone leaves a core idle.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::process::target_dir;

/// Number of commands that run at the same time, if each takes one lane.
const NUM_LANES: usize = 3;

/// Number of bytes that are printed of a job's output, from its end: all of it is in the job's log.
const MAX_PRINTED_BYTES: usize = 16 << 10;

/// A command of a lane.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) name: String,
    pub(super) command: Command,
    /// Number of lanes that it takes: more than one if it computes all the time.
    pub(super) num_lanes: usize,
}

/// The lanes that no job takes.
struct FreeLanes {
    num: Mutex<usize>,
    has_changed: Condvar,
}

impl FreeLanes {
    fn take(&self, num: usize) {
        let free = self.num.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self
            .has_changed
            .wait_while(free, |free| *free < num)
            .unwrap_or_else(PoisonError::into_inner);
        *free -= num;
    }

    fn give_back(&self, num: usize) {
        *self.num.lock().unwrap_or_else(PoisonError::into_inner) += num;
        self.has_changed.notify_all();
    }
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
    let lanes = FreeLanes { num: Mutex::new(NUM_LANES), has_changed: Condvar::new() };
    let results = thread::scope(|scope| -> anyhow::Result<Vec<JobResult>> {
        let mut running = Vec::new();
        for job in jobs {
            let num_lanes = job.num_lanes.min(NUM_LANES);
            lanes.take(num_lanes);
            let (lanes, folder) = (&lanes, &folder);
            running.push(scope.spawn(move || {
                let result = run_job(job, folder);
                lanes.give_back(num_lanes);
                result
            }));
        }
        running.into_iter().map(|it| it.join().expect("a job does not panic")).collect()
    })?;
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
        Job { name: name.to_owned(), command, num_lanes: 1 }
    }

    #[test]
    fn jobs_that_need_more_lanes_wait_for_them() {
        let folder = std::env::temp_dir().join(format!("jackalope-lanes-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let marks = folder.display();
        // Each of the first two ends only if the other one runs; the last begins when all others have ended.
        let beside = |own: &str, other: &str| {
            format!(
                "cd {marks}; touch {own}; for i in $(seq 300); do [ -e {other} ] && exit; sleep 0.1; done; exit 1"
            )
        };
        let mut alone = shell("lanes-test/wide", &format!("cd {marks}; [ -e done ]"));
        alone.num_lanes = NUM_LANES;
        let jobs = vec![
            shell("lanes-test/one", &beside("one", "two")),
            shell("lanes-test/two", &beside("two", "one")),
            shell("lanes-test/busy", &format!("cd {marks}; sleep 0.3; touch done")),
            alone,
        ];
        let results = run(jobs).expect("passes");
        assert_eq!(results.len(), 4);
        fs::remove_dir_all(&folder).expect("the folder");
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
