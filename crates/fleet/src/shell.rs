//! Runs short scripts on the machines of a cluster: with `/bin/sh` on this one, and through the
//! user's own `ssh` on others, so that its configuration, keys and jump hosts apply. Never waits
//! for a password.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::process::{Spawn, exit_code, output_of};

/// How long `ssh` may take to connect.
const CONNECT_SECONDS: u32 = 5;

/// Time for reading the user's configuration of `ssh`.
const CONFIG_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for asking a machine for its host key.
const KEY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long after the script's deadline its output may end.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);

/// Maximum size of a script's output; the rest is discarded.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// Exit status of `ssh` when `ssh` itself failed, not the script.
const SSH_FAILED: i32 = 255;

/// Runs scripts on machines.
pub trait Shell: Send + Sync {
    /// Runs `script` with a POSIX shell on `host`, which is an argument of `ssh`, or `127.0.0.1`
    /// for this machine. `input` is the script's standard input.
    ///
    /// # Errors
    /// [`ShellError`] if the script did not run or did not end in time. A script that fails is not
    /// an error: see [`Output::status`].
    fn run(
        &self,
        host: &str,
        script: &str,
        input: &[u8],
        timeout: Duration,
    ) -> Result<Output, ShellError>;

    /// Returns the address or name behind a name in the user's `ssh` configuration, if there is
    /// one.
    fn address_of(&self, host: &str) -> Option<String> {
        let _ = host;
        None
    }
}

/// The result of a script that ran.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Output {
    /// Exit status; 128 or more if a signal ended the script.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A script that could not be run.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{host}: {kind}{}", .detail.as_ref().map(|it| format!(": {it}")).unwrap_or_default())]
pub struct ShellError {
    /// The machine.
    pub host: String,
    /// Kind of the failure.
    pub kind: ShellErrorKind,
    /// Message of the system or of `ssh`.
    pub detail: Option<String>,
}

/// Why a script could not be run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ShellErrorKind {
    /// This machine has no `ssh`.
    NoSsh,
    /// The name cannot be resolved.
    UnknownName,
    /// The machine's host key is not known yet, or has changed.
    HostKey,
    /// The machine asks for a password, or rejects our keys.
    Refused,
    /// Nothing listens on the machine's SSH port.
    NoServer,
    /// There is no route to the machine. On macOS, a program without the Local Network permission
    /// gets this error as well.
    NoRoute,
    /// The machine did not answer in time.
    Timeout,
    /// The connection broke, or another error occurred.
    Broken,
}

impl ShellErrorKind {
    /// Returns what the user should type next.
    pub fn hint(self, host: &str) -> String {
        match self {
            ShellErrorKind::NoSsh => "install OpenSSH's client, or name it with `--ssh`".to_owned(),
            ShellErrorKind::UnknownName => {
                format!("write the machine's address, or add `Host {host}` to ~/.ssh/config")
            }
            ShellErrorKind::HostKey => {
                format!(
                    "on that machine run `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`; if it \
                     prints the same key, run `ssh {host}` here once and accept it"
                )
            }
            ShellErrorKind::Refused => format!("run `ssh-copy-id {host}`, then `ssh {host} true`"),
            ShellErrorKind::NoServer => {
                "switch on Remote Login there (System Settings, General, Sharing)".to_owned()
            }
            ShellErrorKind::NoRoute => format!(
                "look at the cable and the address (`ping`); on macOS allow your terminal under \
                 System Settings, Privacy & Security, Local Network, then try `ssh {host} true`"
            ),
            ShellErrorKind::Timeout | ShellErrorKind::Broken => {
                format!("is it awake and connected? Try `ssh {host} true`")
            }
        }
    }
}

impl fmt::Display for ShellErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ShellErrorKind::NoSsh => "ssh cannot be started",
            ShellErrorKind::UnknownName => "no machine of this name is known",
            ShellErrorKind::HostKey => "its host key is not trusted",
            ShellErrorKind::Refused => "it accepts none of our keys",
            ShellErrorKind::NoServer => "its SSH port refuses connections",
            ShellErrorKind::NoRoute => "there is no route to it",
            ShellErrorKind::Timeout => "it did not answer in time",
            ShellErrorKind::Broken => "ssh failed",
        })
    }
}

/// Runs scripts on the real machines.
#[derive(Clone, Debug)]
pub struct SystemShell {
    /// Program and arguments to run in place of `ssh`.
    ssh: Vec<String>,
}

impl SystemShell {
    /// Creates a shell with this `ssh`: a program, possibly followed by arguments. If empty, `ssh`
    /// itself.
    pub fn new(ssh: Vec<String>) -> SystemShell {
        SystemShell { ssh: if ssh.is_empty() { vec!["ssh".to_owned()] } else { ssh } }
    }

    /// Returns the type and the fingerprint of the key that the machine shows. `ssh` prints it in
    /// its log before it refuses a key that is not trusted.
    fn shown_key(&self, host: &str) -> Option<String> {
        let mut spawn = self.spawn(host, "true", "DEBUG1");
        spawn.reads_stderr = true;
        let mut child = spawn.start().ok()?;
        child.close_input();
        let log = read_all(child.take_stderr().expect("asked for"));
        let deadline = Instant::now() + KEY_TIMEOUT;
        if child.wait_until(deadline).is_none() {
            child.kill();
        }
        let log = log.recv_timeout(OUTPUT_GRACE).ok()?;
        // The last one is the machine's own; those before it are those of jump hosts.
        let key = log.lines().rev().find_map(|line| line.split_once("Server host key: "))?.1.trim();
        let is_key = key.split(' ').count() == 2 && key.contains("SHA256:") && key.len() < 200;
        is_key.then(|| key.to_owned())
    }

    fn spawn(&self, host: &str, script: &str, log_level: &str) -> Spawn {
        if is_here(host) {
            let mut spawn = Spawn::new("/bin/sh", host);
            spawn.args = ["-c", script].map(OsString::from).to_vec();
            return spawn;
        }
        let mut spawn = Spawn::new(&self.ssh[0], host);
        let timeout = format!("ConnectTimeout={CONNECT_SECONDS}");
        let log_level = format!("LogLevel={log_level}");
        let options = [
            "-T",
            "-o",
            "BatchMode=yes",
            "-o",
            &timeout,
            "-o",
            "ServerAliveInterval=5",
            "-o",
            "ServerAliveCountMax=3",
            "-o",
            &log_level,
            "--",
            host,
        ];
        let command = format!("exec /bin/sh -c {}", quote(script));
        spawn.args = self.ssh[1..].iter().map(OsString::from).collect();
        spawn.args.extend(options.map(OsString::from));
        spawn.args.push(OsString::from(command));
        spawn
    }
}

/// Returns true for the names with which a hostfile means the machine that reads it.
pub fn is_here(host: &str) -> bool {
    matches!(host, "127.0.0.1" | "localhost" | "::1")
}

/// Quotes any text as one word of a shell command.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Shell for SystemShell {
    /// Returns the host name that `ssh -G` prints.
    fn address_of(&self, host: &str) -> Option<String> {
        let mut args: Vec<&str> = self.ssh[1..].iter().map(String::as_str).collect();
        args.extend(["-G", "--", host]);
        let printed = output_of(&self.ssh[0], &args, CONFIG_TIMEOUT).ok()?;
        let name = printed.lines().find_map(|line| line.strip_prefix("hostname "))?;
        Some(name.trim().to_owned())
    }

    fn run(
        &self,
        host: &str,
        script: &str,
        input: &[u8],
        timeout: Duration,
    ) -> Result<Output, ShellError> {
        let error =
            |kind, detail: Option<String>| ShellError { host: host.to_owned(), kind, detail };
        if host.is_empty() || host.starts_with('-') {
            return Err(error(ShellErrorKind::UnknownName, None));
        }
        let mut spawn = self.spawn(host, script, "ERROR");
        spawn.reads_stdout = true;
        spawn.reads_stderr = true;
        let mut child =
            spawn.start().map_err(|err| error(ShellErrorKind::NoSsh, Some(err.to_string())))?;
        let deadline = Instant::now() + timeout;
        let stdout = read_all(child.take_stdout().expect("asked for"));
        let stderr = read_all(child.take_stderr().expect("asked for"));
        // The input is written on its own thread, because a script may print before it has read all
        // of it.
        let fed = child.feed(input.to_vec());
        let Some(status) = child.wait_until(deadline) else {
            child.kill();
            return Err(error(ShellErrorKind::Timeout, Some(format!("{timeout:?}"))));
        };
        drop(fed);
        // A process that the script started may keep the script's output open.
        let left = || (deadline + OUTPUT_GRACE).saturating_duration_since(Instant::now());
        let (Ok(stdout), Ok(stderr)) = (stdout.recv_timeout(left()), stderr.recv_timeout(left()))
        else {
            let detail = "it has ended, and something it started keeps its output open";
            return Err(error(ShellErrorKind::Timeout, Some(detail.to_owned())));
        };
        if status.code() == Some(SSH_FAILED) && !is_here(host) {
            let mut last = stderr.trim().lines().last().map(str::to_owned);
            let kind = kind_of(&stderr);
            if kind == ShellErrorKind::HostKey
                && let Some(key) = self.shown_key(host)
            {
                last = Some(format!("{} It shows {key}", last.unwrap_or_default()));
            }
            return Err(error(kind, last));
        }
        Ok(Output { status: exit_code(status), stdout, stderr })
    }
}

fn read_all(stream: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, text) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let mut stream = stream.take(OUTPUT_BYTES_MAX);
        // After an error, the bytes that were read so far are the output.
        stream.read_to_end(&mut bytes).ok();
        // Drains the rest, so that a full pipe does not block the other end.
        io::copy(&mut stream.into_inner(), &mut io::sink()).ok();
        // The receiver is gone if its time was over.
        sender.send(String::from_utf8_lossy(&bytes).into_owned()).ok();
    });
    text
}

/// Derives the kind of error from OpenSSH's message, because its exit status is the same for all.
fn kind_of(stderr: &str) -> ShellErrorKind {
    const SIGNS: [(&str, ShellErrorKind); 14] = [
        ("Could not resolve hostname", ShellErrorKind::UnknownName),
        ("Host key verification failed", ShellErrorKind::HostKey),
        ("REMOTE HOST IDENTIFICATION HAS CHANGED", ShellErrorKind::HostKey),
        ("Permission denied", ShellErrorKind::Refused),
        ("Too many authentication failures", ShellErrorKind::Refused),
        ("No more authentication methods", ShellErrorKind::Refused),
        ("Connection refused", ShellErrorKind::NoServer),
        ("No route to host", ShellErrorKind::NoRoute),
        ("Network is unreachable", ShellErrorKind::NoRoute),
        ("Host is down", ShellErrorKind::NoRoute),
        ("Operation timed out", ShellErrorKind::Timeout),
        ("Connection timed out", ShellErrorKind::Timeout),
        ("timed out during banner exchange", ShellErrorKind::Timeout),
        ("not responding", ShellErrorKind::Timeout),
    ];
    let found = SIGNS.iter().find(|(sign, _)| stderr.contains(sign));
    found.map_or(ShellErrorKind::Broken, |(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn fake_ssh(script: &str) -> SystemShell {
        // `sh -c script sh …`: the script finds the arguments of `ssh` in "$@".
        SystemShell::new(["/bin/sh", "-c", script, "ssh"].map(str::to_owned).to_vec())
    }

    #[test]
    fn a_script_gets_its_input_and_gives_its_output_and_status() {
        let shell = SystemShell::new(Vec::new());
        let found = shell.run("127.0.0.1", "cat; echo no >&2; exit 3", b"yes", LONG).unwrap();
        let wanted = Output { status: 3, stdout: "yes".to_owned(), stderr: "no\n".to_owned() };
        assert_eq!(found, wanted);
        assert_eq!(shell.run("localhost", "kill -9 $$", b"", LONG).unwrap().status, 137);
    }

    /// A person compares the fingerprint before accepting a key.
    #[test]
    fn an_unknown_host_key_is_shown() {
        let shell = fake_ssh(
            r#"case "$*" in *LogLevel=DEBUG1*)
                   echo "debug1: Server host key: ssh-ed25519 SHA256:jump" >&2
                   echo "debug1: Server host key: ssh-ed25519 SHA256:qmo7+F/R" >&2;;
               esac
               echo "Host key verification failed." >&2; exit 255"#,
        );
        let err = shell.run("mac2", "true", b"", LONG).unwrap_err();
        assert_eq!(err.kind, ShellErrorKind::HostKey);
        assert_eq!(
            err.to_string(),
            "mac2: its host key is not trusted: Host key verification failed. \
             It shows ssh-ed25519 SHA256:qmo7+F/R"
        );
        assert!(err.kind.hint("mac2").contains("ssh_host_ed25519_key.pub"));
        let silent = fake_ssh("echo 'Host key verification failed.' >&2; exit 255");
        let err = silent.run("mac2", "true", b"", LONG).unwrap_err();
        assert_eq!(err.detail.as_deref(), Some("Host key verification failed."));
    }

    #[test]
    fn much_input_and_much_output_do_not_hold_each_other_up() {
        let shell = SystemShell::new(Vec::new());
        let input = vec![b'x'; 1 << 20];
        let found = shell.run("127.0.0.1", "cat; cat >/dev/null", &input, LONG).unwrap();
        assert_eq!(found.stdout.len(), input.len());
    }

    #[test]
    fn ssh_runs_without_prompts_and_the_script_survives_its_quoting() {
        let shell = fake_ssh(r#"for a in "$@"; do echo "<$a>"; done; eval "$(eval echo \${$#})""#);
        let script = r#"echo "it's $((1 + 1))""#;
        let found = shell.run("me@mac2", script, b"", LONG).unwrap().stdout;
        assert!(
            found.contains("<BatchMode=yes>") && found.contains("<ConnectTimeout=5>"),
            "{found}"
        );
        assert!(found.contains("<-->\n<me@mac2>\n"), "{found}");
        assert!(found.ends_with("it's 2\n"), "{found}");
    }

    #[test]
    fn errors_of_ssh_are_distinguished() {
        for (says, wanted) in [
            (
                "ssh: Could not resolve hostname mac9: nodename nor servname",
                ShellErrorKind::UnknownName,
            ),
            ("Host key verification failed.", ShellErrorKind::HostKey),
            ("me@mac2: Permission denied (publickey,password).", ShellErrorKind::Refused),
            ("ssh: connect to host mac2 port 22: Connection refused", ShellErrorKind::NoServer),
            ("ssh: connect to host mac2 port 22: No route to host", ShellErrorKind::NoRoute),
            ("ssh: connect to host mac2 port 22: Operation timed out", ShellErrorKind::Timeout),
            ("something new", ShellErrorKind::Broken),
        ] {
            let shell = fake_ssh(&format!("echo '{says}' >&2; exit 255"));
            let err = shell.run("mac2", "true", b"", LONG).unwrap_err();
            assert_eq!(err.kind, wanted, "{says}");
            assert!(err.to_string().starts_with("mac2: "), "{err}");
            assert!(err.to_string().ends_with(says), "{err}");
        }
    }

    #[test]
    fn a_child_that_keeps_the_output_open_blocks_no_caller() {
        let shell = SystemShell::new(Vec::new());
        let began = Instant::now();
        let timeout = Duration::from_millis(100);
        let err = shell.run("127.0.0.1", "sleep 3 & exit 0", b"", timeout).unwrap_err();
        assert_eq!(err.kind, ShellErrorKind::Timeout);
        assert!(began.elapsed() < LONG);
    }

    #[test]
    fn a_machine_that_does_not_answer_is_given_up() {
        let err = fake_ssh("exec sleep 600")
            .run("mac2", "true", b"", Duration::from_millis(50))
            .unwrap_err();
        assert_eq!(err.kind, ShellErrorKind::Timeout);
    }

    #[test]
    fn what_would_be_an_option_of_ssh_is_no_host() {
        let err = fake_ssh("echo ran").run("-oProxyCommand=x", "true", b"", LONG).unwrap_err();
        assert_eq!(err.kind, ShellErrorKind::UnknownName);
    }
}
