//! Parsers for output that is the same on both systems.

use crate::report::{ListeningPort, Process};

/// Parses `ps -axo pid=,ppid=,rss=,command=`.
pub(super) fn engines(text: &str) -> Vec<Process> {
    let lines = text.lines().filter_map(|line| {
        let mut rest = line;
        let mut number = || -> Option<u64> {
            let (word, after) = rest.trim_start().split_once(char::is_whitespace)?;
            rest = after;
            word.parse().ok()
        };
        let (pid, parent_pid, resident_kib) = (number()?, number()?, number()?);
        let command = rest.trim().to_owned();
        Some(Process {
            pid: u32::try_from(pid).ok()?,
            parent_pid: u32::try_from(parent_pid).ok()?,
            resident_bytes: resident_kib * 1024,
            command,
        })
    });
    // Excludes the shell and the `grep` that searched, whose command lines contain the patterns.
    lines
        .filter(|it| !it.command.starts_with("sh -c ") && !it.command.contains("grep -E"))
        .collect()
}

/// Parses the fourth column of `df -Pk`: the free space, in bytes.
pub(super) fn disk_free(text: &str) -> Option<u64> {
    let kib: u64 = text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kib * 1024)
}

/// Parses the version from the output of `jackalope --version`, such as `jackalope 0.1.0`.
pub(super) fn jackalope_version(text: &str) -> Option<String> {
    Some(text.trim().strip_prefix("jackalope ")?.to_owned())
}

/// Parses the definitions in MLX's `version.h`.
pub(super) fn mlx_version(text: &str) -> Option<String> {
    let number = |name: &str| {
        let sign = format!("MLX_VERSION_{name} ");
        text.lines().find_map(|line| line.split_once(&sign)?.1.trim().parse::<u32>().ok())
    };
    Some(format!("{}.{}.{}", number("MAJOR")?, number("MINOR")?, number("PATCH")?))
}

/// Parses `lsof -nP -iTCP -sTCP:LISTEN`, which without privileges lists only the user's own
/// programs.
pub(super) fn lsof(text: &str) -> Vec<ListeningPort> {
    let lines = text.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace();
        let (program, pid) = (words.next()?, words.next()?.parse().ok()?);
        let port = words.find_map(|word| word.rsplit_once(':')?.1.parse().ok())?;
        Some(ListeningPort { port, pid: Some(pid), program: Some(program.to_owned()) })
    });
    lines.collect()
}

/// Keeps one entry for each port, preferably one with a program.
pub(super) fn merged(mut all: Vec<ListeningPort>) -> Vec<ListeningPort> {
    all.sort_by_key(|it| (it.port, it.pid.is_none()));
    all.dedup_by_key(|it| it.port);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_read_without_the_one_who_looks() {
        let text = "  4711     1 60123456 /Users/me/.jackalope/current/bin/jackalope-rank --rank 1\n\
                    12345 12344  1024 sh -c ps -axo pid= | grep -E x\nnonsense\n";
        let found = engines(text);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].pid, found[0].parent_pid), (4711, 1));
        assert_eq!(found[0].resident_bytes, 60_123_456 << 10);
        assert!(found[0].command.ends_with("--rank 1"));
    }

    #[test]
    fn disks_and_versions_are_read() {
        let text = "Filesystem   1024-blocks      Used Available Capacity  Mounted on\n\
                    /dev/disk3s5   971350180 612345678 345678901    64%    /System/Volumes/Data\n";
        assert_eq!(disk_free(text), Some(345_678_901 << 10));
        assert_eq!(jackalope_version("jackalope 0.1.0\n").as_deref(), Some("0.1.0"));
        let header = "#define MLX_VERSION_MAJOR 0\n#define MLX_VERSION_MINOR 32\n\
                      #define MLX_VERSION_PATCH 4\n";
        assert_eq!(mlx_version(header).as_deref(), Some("0.32.4"));
        assert_eq!(mlx_version(""), None);
    }

    #[test]
    fn listeners_are_named_where_they_can_be() {
        let text = "COMMAND   PID USER   FD   TYPE             DEVICE SIZE/OFF NODE NAME\n\
                    python3.1 812   me   12u  IPv4 0x1234567890abcdef      0t0  TCP *:8080 (LISTEN)\n\
                    rapportd  598   me    8u  IPv6 0x1234567890abcdee      0t0  TCP [::1]:49152 (LISTEN)\n";
        let mut all = vec![ListeningPort { port: 8080, ..ListeningPort::default() }];
        all.extend(lsof(text));
        let found = merged(all);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].port, found[0].pid), (8080, Some(812)));
        assert_eq!(found[1].port, 49152);
    }
}
