//! What `ssh` says about a machine whose key it does not know, with OpenSSH's own server.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;

use jackalope_fleet::process::{Child, Spawn, output_of};
use jackalope_fleet::shell::{Shell, ShellErrorKind, SystemShell};
use jackalope_testing::Scratch;

use crate::LONG;

/// This machine under an address that stands for another one.
const ADDR: &str = "127.0.0.2";

const SSHD: &str = "/usr/sbin/sshd";

/// An SSH server with a key of its own.
struct Server {
    dir: Scratch,
    port: u16,
    _sshd: Child,
}

impl Server {
    fn start() -> Server {
        let dir = Scratch::new();
        let key = dir.path().join("host_key").display().to_string();
        output_of("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &key], LONG).unwrap();
        let port = TcpListener::bind((ADDR, 0)).unwrap().local_addr().unwrap().port();
        let config = format!(
            "ListenAddress {ADDR}:{port}\nHostKey {key}\nPidFile none\nUsePAM no\n\
             PasswordAuthentication no\n"
        );
        dir.write("sshd_config", config.as_bytes());
        // The server separates its privileges there.
        fs::create_dir_all("/run/sshd").ok();
        let mut spawn = Spawn::new(SSHD, "sshd");
        let config = dir.path().join("sshd_config");
        spawn.args = ["-D".into(), "-e".into(), "-f".into(), config.into()].to_vec();
        let sshd = spawn.start().unwrap();
        let began = Instant::now();
        while TcpStream::connect((ADDR, port)).is_err() {
            assert!(began.elapsed() < LONG, "sshd does not listen: {}", sshd.last_words());
            std::thread::yield_now();
        }
        Server { dir, port, _sshd: sshd }
    }

    /// Returns an `ssh` that knows only the keys of `known_hosts`.
    fn shell(&self) -> SystemShell {
        let known = format!("UserKnownHostsFile={}", self.dir.path().join("known_hosts").display());
        let port = self.port.to_string();
        let args = [
            "ssh",
            "-F",
            "/dev/null",
            "-p",
            &port,
            "-o",
            &known,
            "-o",
            "GlobalKnownHostsFile=/dev/null",
            "-o",
            "IdentityFile=/dev/null",
        ];
        SystemShell::new(args.map(str::to_owned).to_vec())
    }

    /// Returns the type and the fingerprint of its key, as `ssh-keygen` prints them.
    fn key(&self) -> String {
        let path = self.dir.path().join("host_key.pub").display().to_string();
        let printed = output_of("ssh-keygen", &["-lf", &path], LONG).unwrap();
        format!("ssh-ed25519 {}", printed.split(' ').nth(1).unwrap())
    }
}

/// Without OpenSSH's server, the messages that it was seen to cause are read by a test in `shell.rs`.
fn has_server() -> bool {
    let has = Path::new(SSHD).exists();
    if !has {
        eprintln!("NOT TESTED with a real server: {SSHD} is missing (package openssh-server)");
    }
    has
}

#[test]
fn the_fingerprint_of_a_machine_is_shown_at_first_contact() {
    if !has_server() {
        return;
    }
    let server = Server::start();
    let err = server.shell().run(ADDR, "true", b"", LONG).unwrap_err();
    assert_eq!(err.kind, ShellErrorKind::HostKey, "{err}");
    let shown = format!("It shows {}", server.key());
    assert!(err.to_string().ends_with(&shown), "{err}, not {shown}");

    // Another key is known: a warning with much other text comes before.
    let other = Server::start();
    let known = fs::read_to_string(other.dir.path().join("host_key.pub")).unwrap();
    let line = format!("[{ADDR}]:{} {known}", server.port);
    server.dir.write("known_hosts", line.as_bytes());
    let err = server.shell().run(ADDR, "true", b"", LONG).unwrap_err();
    assert_eq!(err.kind, ShellErrorKind::HostKey, "{err}");
    assert!(err.to_string().ends_with(&shown), "{err}, not {shown}");

    // With its own key known, it is the login that is refused.
    let known = fs::read_to_string(server.dir.path().join("host_key.pub")).unwrap();
    server.dir.write("known_hosts", format!("[{ADDR}]:{} {known}", server.port).as_bytes());
    let err = server.shell().run(ADDR, "true", b"", LONG).unwrap_err();
    assert_eq!(err.kind, ShellErrorKind::Refused, "{err}");
}
