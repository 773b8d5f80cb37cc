//! Probes machines with scripts that need none of our programs there.
//!
//! A script prints one section for each tool: a marker, the tool's output, and how the tool ended.
//! A missing or stuck tool is reported and is not a failure: every tool has its own time limit, and
//! the whole script has that of the [`Shell`].

mod sections;

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jackalope_fleet::facts::{FACTS, PRELUDE, Sections, at_once};
use jackalope_fleet::shell::{Shell, ShellError, quote};

use crate::platform;
use crate::report::NodeReport;

/// Script that finds our own programs.
const PROGRAMS: &str = include_str!("probe/programs.sh");
/// Script that reports everything else.
const REPORT: &str = include_str!("probe/report.sh");

/// A file of a model on a machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ModelFile {
    /// Name within the model's folder.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal, if requested.
    pub sha256: Option<String>,
}

/// Result of a ping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Echo {
    /// The address answers.
    Answers {
        /// Mean round-trip time in microseconds.
        mean_us: f64,
    },
    /// The address does not answer.
    Silent,
    /// There is no route to the address.
    NoRoute,
    /// No ping was sent, because there is no `ping` program.
    Untried,
}

/// Probes one machine.
///
/// # Errors
/// If the script could not be run there.
pub fn report(shell: &dyn Shell, host: &str, timeout: Duration) -> Result<NodeReport, ShellError> {
    let script = format!("{PRELUDE}\n{PROGRAMS}\n{FACTS}\n{REPORT}");
    let before = SystemTime::now();
    let output = shell.run(host, &script, b"", timeout)?;
    let after = SystemTime::now();
    let sections = Sections::parse(&output.stdout);
    let mut report = platform::report_of(&sections);
    let clock = sections.text("clock").trim().parse().ok();
    report.clock_ahead_s = clock.and_then(|clock| clock_ahead(clock, before, after));
    Ok(report)
}

/// Probes several machines at the same time; returns the results in the order of `hosts`.
pub fn reports(
    shell: &dyn Shell,
    hosts: &[String],
    timeout: Duration,
) -> Vec<Result<NodeReport, ShellError>> {
    at_once(hosts, |host| report(shell, host, timeout))
}

/// Returns the files of a model's folder with their sizes; `None` if there is no such folder.
///
/// # Errors
/// If the script could not be run there.
pub fn model_files(
    shell: &dyn Shell,
    host: &str,
    folder: &str,
    timeout: Duration,
) -> Result<Option<Vec<ModelFile>>, ShellError> {
    run_model_script("", shell, host, folder, timeout)
}

/// Like [`model_files`], with a hash of each file. Takes as long as reading the files.
///
/// # Errors
/// If the script could not be run there.
pub fn model_hashes(
    shell: &dyn Shell,
    host: &str,
    folder: &str,
    timeout: Duration,
) -> Result<Option<Vec<ModelFile>>, ShellError> {
    run_model_script("HASH=1\n", shell, host, folder, timeout)
}

/// Runs the script that lists a model's files, after `settings`.
fn run_model_script(
    settings: &str,
    shell: &dyn Shell,
    host: &str,
    folder: &str,
    timeout: Duration,
) -> Result<Option<Vec<ModelFile>>, ShellError> {
    let script = include_str!("probe/model.sh").replace("@FOLDER@", &quote(folder));
    let output = shell.run(host, &format!("{settings}{script}"), b"", timeout)?;
    Ok(sections::model_files(&output.stdout))
}

/// Pings each address from a machine, all at the same time.
///
/// # Errors
/// If the script could not be run there.
pub fn echoes(
    shell: &dyn Shell,
    host: &str,
    ips: &[IpAddr],
    timeout: Duration,
) -> Result<Vec<Echo>, ShellError> {
    if ips.is_empty() {
        return Ok(Vec::new());
    }
    let list: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    let script = include_str!("probe/ping.sh").replace("@ADDRESSES@", &list.join(" "));
    let output = shell.run(host, &format!("{PRELUDE}\n{script}"), b"", timeout)?;
    let sections = Sections::parse(&output.stdout);
    Ok(list.iter().map(|ip| sections::echo(sections.get(&format!("ping {ip}")))).collect())
}

/// Returns by how many seconds a clock is ahead at least (negative: behind); 0 if it may be right.
/// The script may have read the clock at any moment between `before` and `after`.
fn clock_ahead(clock_s: i64, before: SystemTime, after: SystemTime) -> Option<i64> {
    let seconds = |time: SystemTime| {
        let since = time.duration_since(UNIX_EPOCH).ok()?;
        i64::try_from(since.as_secs()).ok()
    };
    let (before, after) = (seconds(before)?, seconds(after)?);
    Some(if clock_s < before {
        clock_s - before
    } else if after < clock_s {
        clock_s - after
    } else {
        0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use jackalope_fleet::shell::SystemShell;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn this_machine_reports_without_anything_installed() {
        let report = report(&SystemShell::new(Vec::new()), "127.0.0.1", LONG).unwrap();
        assert!(0 < report.facts.cores, "{report:?}");
        assert!(0 < report.facts.total_bytes, "{report:?}");
        assert_eq!(report.clock_ahead_s, Some(0));
        assert!(!report.facts.hostname.is_empty());
        assert!(report.facts.interfaces.iter().any(|it| it.name.starts_with("lo")), "{report:?}");
    }

    #[test]
    fn a_folder_is_listed_with_sizes_and_on_wish_with_hashes() {
        let folder = std::env::temp_dir().join(format!("jackalope model's {}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), "abc").unwrap();
        let shell = SystemShell::new(Vec::new());
        let path = folder.to_str().unwrap();
        let file = |sha256: Option<&str>| ModelFile {
            name: "config.json".to_owned(),
            bytes: 3,
            sha256: sha256.map(str::to_owned),
        };
        let found = model_files(&shell, "127.0.0.1", path, LONG).unwrap();
        assert_eq!(found, Some(vec![file(None)]));
        let found = model_hashes(&shell, "127.0.0.1", path, LONG).unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(found, Some(vec![file(Some(abc))]));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(model_files(&shell, "127.0.0.1", path, LONG).unwrap(), None);
    }

    #[test]
    fn a_clock_is_ahead_only_if_no_moment_explains_it() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(clock_ahead(105, at(100), at(110)), Some(0));
        assert_eq!(clock_ahead(90, at(100), at(110)), Some(-10));
        assert_eq!(clock_ahead(130, at(100), at(110)), Some(20));
    }
}
