//! Jackalope on machines that have nothing but a login: homes on this machine, reached through a
//! stand-in for `ssh`, each with an agent on a loopback address of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::checkpoint::shipped;
use crate::ports::free_port;
use crate::program::{Ended, Program, ranks_of, wait_for};

/// Does what `ssh` does, with another home and another address on this machine. Host `mac7` is
/// 127.0.0.7.
const SSH: &str = r#"
asked=run
while [ "$1" != -- ]; do [ "$1" != -G ] || asked=config; shift; done
host=$2; ip=127.0.0.${host#mac}
if [ $asked = config ]; then echo "hostname $ip"; exit 0; fi
HOME="$ROOT/$host"; export HOME
unset JACKALOPE_HOME JACKALOPE_SSH XDG_CACHE_HOME MODELS_DIR HF_HOME HF_HUB_CACHE RUST_LOG
[ -d "$HOME" ] || { echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255; }
echo run >>"$ROOT/$host.log"
exec /bin/sh -c "$(printf '%s' "$3" | sed "s/agent --start/agent --start --listen $ip/")"
"#;

/// Machines with empty homes; this machine has a home as well.
pub(crate) struct Machines {
    pub(crate) root: PathBuf,
    pub(crate) port: u16,
    ssh: String,
}

impl Machines {
    pub(crate) fn new(hosts: &[&str]) -> Machines {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("hosts-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        for host in hosts.iter().chain(&["ours"]) {
            fs::create_dir_all(root.join(host)).unwrap();
        }
        let root = fs::canonicalize(root).unwrap();
        let script = root.join("ssh.sh");
        fs::write(&script, format!("ROOT='{}'\n{SSH}", root.display())).unwrap();
        let ssh = format!("/bin/sh {}", script.display());
        let port = free_port();
        Machines { root, port, ssh }
    }

    pub(crate) fn start(&self, args: &[&str]) -> Program {
        let ours = self.root.join("ours");
        let home = ours.join(".jackalope");
        let env = [
            ("HOME", ours.to_str().unwrap()),
            ("JACKALOPE_HOME", home.to_str().unwrap()),
            ("JACKALOPE_SSH", &self.ssh),
            ("XDG_CACHE_HOME", ""),
            ("MODELS_DIR", ""),
            ("HF_HOME", ""),
            ("HF_HUB_CACHE", ""),
        ];
        Program::start_with(args, "", &env)
    }

    /// Returns the command to run as ssh.
    pub(crate) fn ssh(&self) -> &str {
        &self.ssh
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        self.start(args).end()
    }

    /// Returns the JSON objects that a command prints, one per line.
    pub(crate) fn rows(&self, args: &[&str]) -> Vec<Value> {
        let ended = self.run(args);
        let rows = ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(ended.status.success(), "{ended:?}");
        rows
    }

    pub(crate) fn home(&self, host: &str) -> PathBuf {
        self.root.join(host).join(".jackalope")
    }

    /// Runs the installed program of a host.
    pub(crate) fn there(&self, host: &str, args: &str) -> Ended {
        let script = format!(
            "ROOT='{}'; set -- -- {host} '\"$HOME\"/.jackalope/current/bin/jackalope {args}'\n{SSH}",
            self.root.display()
        );
        sh(&script)
    }

    /// Returns the process of a host's agent.
    pub(crate) fn agent(&self, host: &str) -> Option<u32> {
        let record = fs::read(self.home(host).join("agent.json")).ok()?;
        let record: Value = serde_json::from_slice(&record).ok()?;
        u32::try_from(record["pid"].as_u64()?).ok()
    }

    /// Lists the files of a host.
    fn files(&self, host: &str) -> String {
        sh(&format!("cd '{}' && find . -mindepth 1", self.root.join(host).display())).stdout
    }
}

fn sh(script: &str) -> Ended {
    #[expect(clippy::disallowed_methods, reason = "tests watch the machines from outside")]
    let ran = std::process::Command::new("/bin/sh").args(["-c", script]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended { status: ran.status, stdout: text(&ran.stdout), stderr: text(&ran.stderr) }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if let Some(pid) = entry.file_name().to_str().and_then(|host| self.agent(host)) {
                crate::program::send(pid, rustix::process::Signal::KILL);
            }
        }
        fs::remove_dir_all(&self.root).ok();
    }
}

#[test]
fn machines_are_bootstrapped_synced_rolled_back_and_cleared() {
    let machines = Machines::new(&["mac2", "mac3"]);
    let first = machines.rows(&["bootstrap", "mac2", "--json"]);
    assert_eq!(first[0]["activated"]["secret_changed"], true, "{first:?}");
    let id = first[0]["id"].as_str().unwrap().to_owned();
    let secret = |host: &str| fs::read_to_string(machines.home(host).join("secret")).unwrap();
    assert_eq!(secret("mac2"), secret("ours"));
    let mode = fs::metadata(machines.home("mac2").join("secret")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = machines.run(&["bootstrap", "mac2,mac2"]);
    assert_eq!(again.stdout, format!("mac2: {id} is installed already\n"), "{again:?}");
    // One of three machines is away: the others are updated nevertheless.
    let hosts = machines.root.join("hosts.json");
    let list = json!([{"ssh": "127.0.0.1", "ips": ["10.0.0.1"]}, {"ssh": "mac2"}, {"ssh": "mac3"}, {"ssh": "mac4"}]);
    fs::write(&hosts, list.to_string()).unwrap();
    let synced = machines.run(&["sync", "--hosts", hosts.to_str().unwrap(), "--json"]);
    assert!(!synced.status.success(), "{synced:?}");
    let rows: Vec<Value> =
        synced.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ok: Vec<_> = rows.iter().map(|row| (row["host"].as_str(), row["ok"] == true)).collect();
    let wanted = [(Some("mac2"), true), (Some("mac3"), true), (Some("mac4"), false)];
    assert_eq!(ok, wanted, "{rows:?}");
    assert!(rows[2]["error"].as_str().unwrap().contains("there is no route"), "{rows:?}");
    assert!(synced.stderr.contains("failed on 1 of 3 machines"), "{synced:?}");
    assert_eq!(secret("mac3"), secret("ours"));
    // First there is no version to go back to, then an older one.
    let refused = machines.run(&["bootstrap", "mac2", "--rollback"]);
    assert!(refused.stderr.contains("mac2 has no earlier version"), "{refused:?}");
    let home = machines.home("mac2");
    sh(&format!(
        "cd '{}' && cp -r versions/{id} versions/old && ln -s versions/old previous",
        home.display()
    ));
    let back = machines.run(&["bootstrap", "mac2", "--rollback"]);
    assert_eq!(back.stdout, "mac2: switched back to old\n", "{back:?}");
    assert_eq!(fs::read_link(home.join("current")).unwrap(), Path::new("versions/old"));
    let forth = machines.rows(&["bootstrap", "mac2", "--json"]);
    assert_eq!(
        (forth[0]["bytes_sent"].as_u64(), &forth[0]["activated"]["switched"]),
        (Some(0), &json!(true))
    );
    let removed = machines.run(&["uninstall", "mac2", "mac3", "--yes"]);
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!((machines.files("mac2"), machines.files("mac3")), (String::new(), String::new()));
}

#[test]
fn a_changed_secret_reaches_a_running_agent() {
    let machines = Machines::new(&["mac5"]);
    machines.rows(&["bootstrap", "mac5", "--json"]);
    let port = machines.port.to_string();
    let start = format!("agent --start --port {port} <\"$HOME/.jackalope/secret\"");
    let started = machines.there("mac5", &start);
    assert!(started.status.success(), "{started:?}");
    let before = machines.agent("mac5").unwrap();
    fs::write(machines.home("ours").join("secret"), "ab".repeat(32)).unwrap();
    let rows = machines.rows(&["sync", "--hosts", "mac5", "--json"]);
    assert_eq!(rows[0]["activated"]["secret_changed"], true, "{rows:?}");
    assert_eq!(rows[0]["activated"]["agent_restarted"], true, "{rows:?}");
    let after = wait_for("agent", || machines.agent("mac5"));
    assert_ne!(before, after);
    let removed = machines.run(&["uninstall", "--hosts", "mac5", "--yes"]);
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(machines.files("mac5"), "");
    // A zombie that was not reaped yet has no program.
    assert!(fs::read_link(format!("/proc/{after}/exe")).is_err(), "the agent has ended");
}

#[test]
fn serve_puts_itself_on_a_machine_that_has_nothing_or_something_old() {
    let machines = Machines::new(&["mac6"]);
    let model = shipped();
    let port = machines.port.to_string();
    let control = free_port().to_string();
    let args =
        ["serve", "--model", model.to_str().unwrap(), "--hosts", "mac6", "--json", "--port", "0"];
    let args = [&args[..], &["--agent-port", &port, "--control-port", &control]].concat();
    let refused = machines.run(&[&args[..], &["--no-bootstrap"]].concat());
    assert!(
        refused.stderr.contains("mac6 has no jackalope\nhint: `jackalope bootstrap mac6`"),
        "{refused:?}"
    );
    // The previous version does not even start.
    let old = machines.home("mac6").join("versions/old/bin");
    fs::create_dir_all(&old).unwrap();
    fs::write(old.join("jackalope"), "#!/bin/sh\necho too old >&2; exit 1\n").unwrap();
    fs::set_permissions(old.join("jackalope"), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("versions/old", machines.home("mac6").join("current")).unwrap();
    let mut serving = machines.start(&args);
    let ready: Value = serde_json::from_str(&serving.line()).unwrap();
    assert_eq!(ready["event"], "ready", "{ready}");
    let ranks = ranks_of(machines.agent("mac6").unwrap());
    let pid = ranks[0].pid;
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert!(program.starts_with(machines.home("mac6").join("versions")), "{program:?}");
    serving.signal(rustix::process::Signal::TERM);
    let ended = serving.end();
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stderr.contains("mac6: putting jackalope there"), "{ended:?}");
    let previous = fs::read_link(machines.home("mac6").join("previous")).unwrap();
    assert_eq!(previous, Path::new("versions/old"), "the way back is kept");
    let removed = machines.run(&["uninstall", "mac6", "--yes"]);
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(machines.files("mac6"), "");
}
