//! `jackalope logs`.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure};
use jackalope_console::output;
use jackalope_deploy::log_file::{read_between, serve_log};
use jackalope_deploy::machines;
use jackalope_fleet::facts::at_once;
use jackalope_fleet::shell::Shell;
use jackalope_protocol::log::without_colours;

use crate::args::operate::LogsArgs;
use crate::environment::Environment;

/// Interval of polling a log that is followed.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);

/// Shell command that prints the end of an agent's log; nothing if there is none.
const AGENT_LOG: &str =
    "tail -c 2097152 \"${JACKALOPE_HOME:-$HOME/.jackalope}/logs/agent.log\" 2>/dev/null || :";

/// Maximum time in which a machine must return the end of its agent's log.
const AGENT_LOG_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the end of the log of a machine's agent.
pub(super) fn agent_log(shell: &dyn Shell, host: &str) -> anyhow::Result<String> {
    let ran = shell.run(host, AGENT_LOG, &[], AGENT_LOG_TIMEOUT)?;
    ensure!(!ran.stdout.is_empty(), "{host} has no log of an agent");
    Ok(ran.stdout)
}

/// Prints the last lines of every machine's agent, each after the name of its machine.
fn logs_of(hosts: &str, args: &LogsArgs, environment: &Environment) -> anyhow::Result<()> {
    let hosts = machines::hostfile(hosts)?.hosts;
    let shell = environment.shell(args.ssh.as_deref());
    let agent_logs = at_once(&hosts, |host| (host.name(), agent_log(&shell, &host.ssh)));
    let mut num_silent = 0;
    for (name, log) in agent_logs {
        match log {
            Ok(log) => {
                let lines: Vec<&str> = log.lines().collect();
                for line in &lines[lines.len().saturating_sub(args.lines as usize)..] {
                    output::line(format_args!("{name} | {line}"))?;
                }
            }
            Err(err) => {
                num_silent += 1;
                output::note(&format!("{name}: {}", crate::report::text(&err)));
            }
        }
    }
    ensure!(
        num_silent < hosts.len(),
        "no machine has a log of an agent\nhint: agents that `serve --hosts` starts write them"
    );
    Ok(())
}

pub(crate) async fn logs(args: LogsArgs, environment: &Environment) -> anyhow::Result<()> {
    if let Some(hosts) = &args.hosts {
        return logs_of(hosts, &args, environment);
    }
    let home = environment.home()?;
    let path = if args.agent { home.join("logs/agent.log") } else { serve_log(&home) };
    if !path.is_file() {
        bail!(
            "there is no log {}\nhint: `jackalope start` and agents in the background write logs",
            path.display()
        );
    }
    let filter = LogFilter { rank: args.rank };
    let mut from = std::fs::metadata(&path)?.len();
    for line in filter.last(&path, from, args.lines as usize)? {
        output::line(line)?;
    }
    let mut part = Vec::new();
    if !args.follow {
        return Ok(());
    }
    loop {
        let lines = follow(&path, &mut from, &mut part, &filter)?;
        for line in lines {
            output::line(line)?;
        }
        tokio::select! {
            () = tokio::time::sleep(FOLLOW_INTERVAL) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

/// Filter of the lines to show.
#[derive(Clone, Copy, Debug)]
struct LogFilter {
    rank: Option<u32>,
}

impl LogFilter {
    fn shows(self, line: &str) -> bool {
        let Some(rank) = self.rank else { return true };
        let plain = without_colours(line);
        let named = [format!("from=\"rank {rank}\""), format!("rank={rank}")];
        named.iter().any(|name| {
            plain.split(name.as_str()).nth(1).is_some_and(|rest| {
                rest.is_empty() || !rest.starts_with(|c: char| c.is_ascii_digit())
            })
        })
    }

    fn last(self, path: &Path, until: u64, num_lines: usize) -> io::Result<Vec<String>> {
        let bytes = read_between(path, 0, until)?;
        let text = String::from_utf8_lossy(&bytes);
        let shown: Vec<&str> = text.lines().filter(|line| self.shows(line)).collect();
        let skipped = shown.len().saturating_sub(num_lines);
        Ok(shown[skipped..].iter().map(|line| (*line).to_owned()).collect())
    }
}

/// Returns the complete lines written since `from`; an incomplete one stays in `part`.
fn follow(
    path: &Path,
    from: &mut u64,
    part: &mut Vec<u8>,
    filter: &LogFilter,
) -> io::Result<Vec<String>> {
    let length = std::fs::metadata(path)?.len();
    if length < *from {
        // The log was rotated and begins anew.
        *from = 0;
        part.clear();
    }
    part.extend(read_between(path, *from, length)?);
    *from = length;
    let end = part.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let whole: Vec<u8> = part.drain(..end).collect();
    let text = String::from_utf8_lossy(&whole);
    Ok(text.lines().filter(|line| filter.shows(line)).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::path::PathBuf;

    use jackalope_deploy::log_file::{rotate, tail_from};

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let name = format!("jackalope-{name}-{}.log", std::process::id());
            Scratch(std::env::temp_dir().join(name))
        }

        fn append(&self, text: &str) {
            let mut options = OpenOptions::new();
            let mut file = options.create(true).append(true).open(&self.0).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).ok();
            std::fs::remove_file(self.0.with_extension("log.1")).ok();
        }
    }

    #[test]
    fn a_log_is_followed_by_whole_lines_also_when_it_is_put_aside() {
        let (log, all) = (Scratch::new("follow"), LogFilter { rank: None });
        log.append("one\ntw");
        let (mut from, mut part) = (0, Vec::new());
        assert_eq!(follow(&log.0, &mut from, &mut part, &all).unwrap(), ["one"]);
        log.append("o\nthree\n");
        assert_eq!(follow(&log.0, &mut from, &mut part, &all).unwrap(), ["two", "three"]);
        rotate(&log.0, 100).unwrap();
        assert!(!log.0.with_extension("log.1").exists(), "it is short");
        rotate(&log.0, 10).unwrap();
        log.append("four\n");
        assert_eq!(follow(&log.0, &mut from, &mut part, &all).unwrap(), ["four"]);
        let aside = std::fs::read_to_string(log.0.with_extension("log.1")).unwrap();
        assert_eq!(aside, "one\ntwo\nthree\n");
    }

    #[test]
    fn lines_of_a_rank_are_distinguished_from_those_of_others() {
        let log = Scratch::new("ranks");
        log.append("INFO a: x from=\"rank 1\"\nINFO b: y from=\"rank 11\"\nINFO c: rank=1 z\n");
        log.append("INFO d: rank=12\nINFO \u{1b}[3mrank\u{1b}[0m\u{1b}[2m=\u{1b}[0m1 e\nplain\n");
        let length = std::fs::metadata(&log.0).unwrap().len();
        let lines = LogFilter { rank: Some(1) }.last(&log.0, length, 10).unwrap();
        assert_eq!(lines.len(), 3, "{lines:?}");
        let lines = LogFilter { rank: Some(1) }.last(&log.0, length, 1).unwrap();
        assert!(lines[0].ends_with("1 e"), "{lines:?}");
        assert_eq!(LogFilter { rank: None }.last(&log.0, length, 2).unwrap().len(), 2);
        assert_eq!(tail_from(&log.0, length - 6, 5).unwrap(), ["plain"]);
    }
}
