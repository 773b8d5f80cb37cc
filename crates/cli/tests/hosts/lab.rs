//! Hosts that are network namespaces.
//!
//! ```text
//!   this machine ── 10.77.K.254 ─┐
//!                                │ bridge in a namespace of its own
//!   host a ── 10.77.K.1 ─────────┤
//!   host b ── 10.77.K.2 ─────────┤   each with an sshd, a home for jackalope, and nothing else
//!   host c ── 10.77.K.3 ─────────┘
//! ```
//!
//! All see the same files and processes; what they do not share is the network.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;

use crate::http::Server;
use crate::program::{Ended, Program, wait_for};

/// Reason why there can be no hosts here; each test prints it once.
pub(crate) fn missing() -> Option<String> {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    MISSING.get_or_init(look_for_means).clone()
}

fn look_for_means() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may make network namespaces".to_owned());
    }
    let tools = [
        ("ip", "iproute2"),
        ("tc", "iproute2"),
        ("sshd", "openssh-server"),
        ("python3", "python3"),
    ];
    let lacks = |tool: &str| !Path::new("/usr/sbin").join(tool).exists() && !has(tool);
    let packages: Vec<&str> =
        tools.iter().filter(|(tool, _)| lacks(tool)).map(|(_, package)| *package).collect();
    if !packages.is_empty() {
        println!("installing {packages:?}");
        run("apt-get", &["update", "-q"]);
        let mut args = vec!["install", "-y", "-q", "--no-install-recommends"];
        args.extend(&packages);
        let installed = output("apt-get", &args);
        assert!(installed.status.success(), "{packages:?} cannot be installed: {installed:?}");
    }
    let name = format!("jkprobe{}", std::process::id());
    let made = output("ip", &["netns", "add", &name]);
    run("ip", &["netns", "del", &name]);
    (!made.status.success())
        .then(|| format!("no network namespaces: {}", String::from_utf8_lossy(&made.stderr).trim()))
}

fn has(tool: &str) -> bool {
    output("sh", &["-c", &format!("command -v {tool}")]).status.success()
}

fn command(program: impl AsRef<OsStr>) -> Command {
    #[expect(clippy::disallowed_methods, reason = "tests watch the processes from outside")]
    Command::new(program)
}

fn output(program: &str, args: &[&str]) -> Output {
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    command(program).args(args).env("PATH", path).stdin(Stdio::null()).output().unwrap()
}

/// Runs a command whose failure does not matter.
fn run(program: &str, args: &[&str]) {
    output(program, args);
}

/// Runs a command that must succeed; its words are separated by blanks.
#[track_caller]
fn must(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let done = output(words[0], &words[1..]);
    assert!(done.status.success(), "`{line}`: {}", String::from_utf8_lossy(&done.stderr));
}

/// Some hosts, which are removed when this is dropped.
pub(crate) struct Lab {
    /// Prefix of the names of namespaces and links.
    name: String,
    subnet: String,
    dir: PathBuf,
    pub(crate) hosts: Vec<LabHost>,
}

/// One of the hosts.
pub(crate) struct LabHost {
    /// Host name for ssh.
    pub(crate) ssh: String,
    pub(crate) ip: String,
    namespace: String,
    /// Name of the bridge's end of the host's cable.
    port: String,
    /// Jackalope's folder on the host.
    pub(crate) home: PathBuf,
    sshd: Option<Child>,
    /// Process that forwards the host's frames while its cable is bad.
    bad_link: Option<Child>,
    /// Folders that look empty on the host, and have room for a mebibyte; all hosts share one disk otherwise.
    hidden: Vec<PathBuf>,
}

impl Lab {
    /// Creates hosts with Jackalope installed. Commands run on the first one.
    pub(crate) fn new(num_hosts: usize) -> Lab {
        Lab::of(num_hosts, false)
    }

    /// Like [`Lab::new`], on a network without IPv4 addresses.
    pub(crate) fn with_ipv6_only(num_hosts: usize) -> Lab {
        Lab::of(num_hosts, true)
    }

    fn of(num_hosts: usize, is_ipv6: bool) -> Lab {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = (std::process::id() + 97 * NEXT.fetch_add(1, Ordering::Relaxed)) % 250 + 1;
        let name = format!("jk{number}");
        // A /64 within fd00::/8, the unique local addresses of private networks (RFC 4193).
        let subnet = if is_ipv6 { format!("fd77:{number}:") } else { format!("10.77.{number}") };
        let dir = std::env::temp_dir().join(format!("jackalope-lab-{number}"));
        sweep(&name);
        fs::remove_dir_all(&dir).ok();
        fs::create_dir_all(&dir).unwrap();
        must(&format!("ip netns add {name}sw"));
        must(&format!("ip -n {name}sw link add br0 type bridge"));
        must(&format!("ip -n {name}sw link set br0 up"));
        must(&format!("ip link add {name}r type veth peer name {name}rp"));
        must(&format!("ip link set {name}rp netns {name}sw"));
        must(&format!("ip -n {name}sw link set {name}rp master br0 up"));
        must(&format!("ip addr add {} dev {name}r", with_prefix(&address_in(&subnet, 254))));
        must(&format!("ip link set {name}r up"));
        for kind in ["client", "host"] {
            let key = dir.join(format!("{kind}_key"));
            let made = output(
                "ssh-keygen",
                &["-q", "-t", "ed25519", "-N", "", "-f", key.to_str().unwrap()],
            );
            assert!(made.status.success(), "{made:?}");
        }
        let public = fs::read_to_string(dir.join("client_key.pub")).unwrap();
        fs::write(dir.join("authorized_keys"), public).unwrap();
        let mut lab = Lab { name, subnet, dir, hosts: Vec::new() };
        for idx in 0..num_hosts {
            lab.add_host(idx);
        }
        lab.write_ssh_config();
        lab
    }

    fn add_host(&mut self, idx: usize) {
        let letter = ["a", "b", "c", "d"][idx];
        let (name, subnet) = (&self.name, &self.subnet);
        let namespace = format!("{name}{letter}");
        let port = format!("{name}{letter}p");
        let ip = address_in(subnet, idx + 1);
        must(&format!("ip netns add {namespace}"));
        must(&format!("ip -n {namespace} link set lo up"));
        must(&format!("ip -n {namespace} link add eth0 type veth peer name {port}"));
        must(&format!("ip -n {namespace} link set {port} netns {name}sw"));
        must(&format!("ip -n {name}sw link set {port} master br0 up"));
        must(&format!("ip -n {namespace} addr add {} dev eth0", with_prefix(&ip)));
        must(&format!("ip -n {namespace} link set eth0 up"));
        let home = self.dir.join(format!("home-{letter}"));
        let ssh = format!("host-{letter}");
        let mut host = LabHost {
            ssh,
            ip,
            namespace,
            port,
            home,
            sshd: None,
            bad_link: None,
            hidden: Vec::new(),
        };
        host.install();
        host.start_sshd(&self.dir);
        self.hosts.push(host);
    }

    fn write_ssh_config(&self) {
        let dir = self.dir.display();
        let host_key = fs::read_to_string(self.dir.join("host_key.pub")).unwrap();
        let known: Vec<String> =
            self.hosts.iter().map(|host| format!("{} {}", host.ip, host_key.trim())).collect();
        fs::write(self.dir.join("known_hosts"), known.join("\n") + "\n").unwrap();
        let mut config = String::new();
        for host in &self.hosts {
            config += &format!(
                "Host {}\n  HostName {}\n  User root\n  IdentityFile {dir}/client_key\n  \
                 IdentitiesOnly yes\n  UserKnownHostsFile {dir}/known_hosts\n",
                host.ssh, host.ip
            );
        }
        fs::write(self.dir.join("ssh_config"), config).unwrap();
    }

    /// Returns the command to run as ssh.
    pub(crate) fn ssh(&self) -> String {
        format!("ssh -F {}", self.dir.join("ssh_config").display())
    }

    /// Writes a hostfile with all hosts; commands run on the first one.
    pub(crate) fn hostfile(&self) -> PathBuf {
        let entry = |(idx, host): (usize, &LabHost)| {
            let ssh = if idx == 0 { "127.0.0.1" } else { host.ssh.as_str() };
            json!({"ssh": ssh, "ips": [host.ip]})
        };
        let hosts: Vec<_> = self.hosts.iter().enumerate().map(entry).collect();
        let path = self.dir.join("hosts.json");
        fs::write(&path, json!(hosts).to_string()).unwrap();
        path
    }

    /// Starts `jackalope` on the first host.
    pub(crate) fn start(&self, args: &[&str], input: &str) -> Program {
        Program::start_command(self.command(0, args), input)
    }

    /// Starts `jackalope` on any host, with these variables.
    pub(crate) fn start_on(&self, at: usize, args: &[&str], env: &[(&str, &str)]) -> Program {
        let mut command = self.command(at, args);
        command.envs(env.iter().copied());
        Program::start_command(command, "")
    }

    /// Starts any other program on any host.
    pub(crate) fn run_on(&self, at: usize, words: &[&str]) -> Program {
        let mut command = command("ip");
        command.args(["netns", "exec", &self.hosts[at].namespace]).args(words);
        Program::start_command(command, "")
    }

    /// Starts another `jackalope` than the tested one on the first host.
    pub(crate) fn start_other(&self, program: &Path, args: &[&str]) -> Program {
        Program::start_command(self.command_of(program, 0, args), "")
    }

    fn command(&self, at: usize, args: &[&str]) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_jackalope")), at, args)
    }

    fn command_of(&self, program: &Path, at: usize, args: &[&str]) -> Command {
        let host = &self.hosts[at];
        let mut command = command("ip");
        command.args(["netns", "exec", &host.namespace]).arg(program);
        command.env_remove("RUST_LOG").env_remove("JACKALOPE_CPU");
        command.args(args).env("JACKALOPE_HOME", &host.home).env("JACKALOPE_SSH", self.ssh());
        command
    }

    /// Makes `model` look empty on a host.
    pub(crate) fn hide(&mut self, at: usize, model: &Path) {
        self.hosts[at].hide(model, &self.dir);
    }

    /// Stores the cluster's secret on all hosts.
    pub(crate) fn share_secret(&self, secret: &str) {
        (0..self.hosts.len()).for_each(|at| self.set_secret(at, secret));
    }

    /// Stores a secret on one host.
    pub(crate) fn set_secret(&self, at: usize, secret: &str) {
        let path = self.hosts[at].home.join("secret");
        fs::write(&path, secret).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Returns what `trust list` shows on a host.
    pub(crate) fn trust_of(&self, at: usize) -> serde_json::Value {
        let ended = self.start_on(at, &["trust", "list", "--json"], &[]).end();
        assert!(ended.status.success(), "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    }

    /// Writes the trust lists as if a person had accepted the first host on all others, and them on
    /// the first.
    pub(crate) fn trust_first(&self) {
        let keys: Vec<String> = (0..self.hosts.len())
            .map(|at| self.trust_of(at)["this"]["key"].as_str().unwrap().to_owned())
            .collect();
        let entry = |name: &str, key: &str| json!({"name": name, "key": key, "since": 0});
        let others = self.hosts.iter().zip(&keys).skip(1);
        let machines: Vec<_> = others.map(|(host, key)| entry(&host.ip, key)).collect();
        let write = |at: usize, list: serde_json::Value| {
            fs::write(self.hosts[at].home.join("trust.json"), list.to_string()).unwrap();
        };
        write(0, json!({ "machines": machines }));
        for at in 1..self.hosts.len() {
            write(at, json!({"coordinators": [entry("host-a", &keys[0])]}));
        }
    }

    /// Whether a program of this host listens on a TCP port.
    pub(crate) fn listens(&self, at: usize, port: u16) -> bool {
        let table = self.run_on(at, &["cat", "/proc/net/tcp", "/proc/net/tcp6"]).end().stdout;
        let port = format!(":{port:04X}");
        // 0A means LISTEN.
        let is_it = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(1).is_some_and(|it| it.ends_with(&port)) && words.get(3) == Some(&"0A")
        };
        table.lines().any(is_it)
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        self.start(args, "").end()
    }

    /// Starts `jackalope serve` over all hosts, reachable from the tests.
    pub(crate) fn serve(&self, model: &Path, args: &str) -> Server {
        let (hostfile, model) = (self.hostfile(), model.to_str().unwrap());
        let mut words = vec!["serve", "--hosts", hostfile.to_str().unwrap(), "--model", model];
        let ip = &self.hosts[0].ip;
        let any = if ip.contains(':') { "::" } else { "0.0.0.0" };
        words.extend(["--host", any, "--insecure", "--port", "8080", "--json"]);
        words.extend(args.split_whitespace());
        let mut server = Server::of(self.start(&words, ""));
        server.url = if ip.contains(':') {
            format!("http://[{ip}]:8080")
        } else {
            format!("http://{ip}:8080")
        };
        server
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            host.end_everything();
        }
        sweep(&self.name);
        fs::remove_dir_all(&self.dir).ok();
    }
}

/// Returns an address in a subnet of these tests.
fn address_in(subnet: &str, last: usize) -> String {
    if subnet.contains(':') { format!("{subnet}:{last}") } else { format!("{subnet}.{last}") }
}

/// Appends the prefix length. `nodad` makes the address usable at once, without duplicate
/// detection.
fn with_prefix(ip: &str) -> String {
    if ip.contains(':') { format!("{ip}/64 nodad") } else { format!("{ip}/24") }
}

/// Removes what an earlier run of this name may have left.
fn sweep(name: &str) {
    for letter in ["a", "b", "c", "d", "sw"] {
        run("ip", &["netns", "del", &format!("{name}{letter}")]);
    }
    run("ip", &["link", "del", &format!("{name}r")]);
}

impl LabHost {
    /// Installs the programs under test in the place that `bootstrap` uses.
    fn install(&self) {
        let bin = self.home.join("current/bin");
        fs::create_dir_all(&bin).unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_jackalope"));
        for name in ["jackalope", "jackalope-rank"] {
            let built = program.with_file_name(name);
            assert!(built.is_file(), "{} is not built", built.display());
            std::os::unix::fs::symlink(built, bin.join(name)).unwrap();
        }
    }

    /// Starts its SSH server, as at boot.
    fn start_sshd(&mut self, dir: &Path) {
        fs::create_dir_all("/run/sshd").unwrap();
        let config = dir.join(format!("sshd-{}", self.ssh));
        let dir = dir.display();
        let text = format!(
            "ListenAddress {}\nHostKey {dir}/host_key\nAuthorizedKeysFile {dir}/authorized_keys\n\
             StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\n\
             PermitRootLogin yes\nSetEnv JACKALOPE_HOME={} MODELS_DIR={}\n",
            self.ip,
            self.home.display(),
            self.models_dir().display()
        );
        fs::write(&config, text).unwrap();
        let mut command = command("ip");
        // Only processes that are started here see the mounts.
        let script = "config=$1; shift\n\
                      for dir; do mount -t tmpfs -o size=1m none \"$dir\" || exit 1; done\n\
                      exec /usr/sbin/sshd -D -f \"$config\"";
        command.args(["netns", "exec", &self.namespace, "/bin/sh", "-c", script, "sshd"]);
        command
            .arg(&config)
            .args(&self.hidden)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.sshd = Some(command.spawn().unwrap());
        let addr = format!("{}:22", self.ip);
        wait_for("ssh server", || std::net::TcpStream::connect(&addr).ok());
    }

    /// Returns the folder that models are copied to on this host.
    pub(crate) fn models_dir(&self) -> PathBuf {
        self.home.join("models")
    }

    /// Makes `dir` look empty on this host from now on.
    pub(crate) fn hide(&mut self, dir: &Path, lab_dir: &Path) {
        self.end_everything();
        self.hidden.push(dir.to_owned());
        self.start_sshd(lab_dir);
    }

    /// Returns its processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let listed = output("ip", &["netns", "pids", &self.namespace]);
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        listed.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// Returns its processes whose command line contains `text`.
    pub(crate) fn pids_of(&self, text: &str) -> Vec<u32> {
        let is_meant = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ").contains(text)
        };
        self.pids().into_iter().filter(is_meant).collect()
    }

    /// Kills all its processes, as when its power is cut.
    pub(crate) fn end_everything(&mut self) {
        for pid in self.pids() {
            crate::program::send(pid, rustix::process::Signal::KILL);
        }
        for mut child in self.sshd.take().into_iter().chain(self.bad_link.take()) {
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// Drops what this host sends to `to`, or stops dropping it: the entry in the neighbour table has an
    /// address that no host has.
    pub(crate) fn lose(&self, to: &LabHost, is_lost: bool) {
        let (namespace, ip) = (&self.namespace, &to.ip);
        match is_lost {
            true => must(&format!(
                "ip -n {namespace} neigh replace {ip} lladdr 02:00:00:00:00:01 dev eth0 nud permanent"
            )),
            // The entry may have been removed before.
            false => run("ip", &["-n", namespace, "neigh", "del", ip, "dev", "eth0"]),
        }
    }

    /// Limits its sending rate.
    fn throttle(&self, rate: &str) {
        let limit = format!("tbf rate {rate} burst 16kbit latency 200ms");
        must(&format!("ip netns exec {} tc qdisc replace dev eth0 root {limit}", self.namespace));
    }
}

/// Faults of the network.
impl Lab {
    /// Pulls a host's cable.
    pub(crate) fn cable_out(&self, at: usize) {
        must(&format!("ip -n {}sw link set {} down", self.name, self.hosts[at].port));
    }

    /// Drops everything that a host sends to the others.
    pub(crate) fn mute(&self, at: usize) {
        self.others(at).for_each(|other| self.hosts[at].lose(other, true));
    }

    /// Drops everything that the others send to a host.
    pub(crate) fn deafen(&self, at: usize) {
        self.others(at).for_each(|other| other.lose(&self.hosts[at], true));
    }

    /// Drops everything that one host sends to another.
    pub(crate) fn cut_way(&self, from: usize, to: usize) {
        self.hosts[from].lose(&self.hosts[to], true);
    }

    /// Cuts the link between two hosts in both directions.
    pub(crate) fn cut_link(&self, one: usize, other: usize) {
        self.cut_way(one, other);
        self.cut_way(other, one);
    }

    /// Restores the link between two hosts.
    pub(crate) fn mend_link(&self, one: usize, other: usize) {
        self.hosts[one].lose(&self.hosts[other], false);
        self.hosts[other].lose(&self.hosts[one], false);
    }

    /// Limits the sending rate of a host to 1 Mbit/s.
    pub(crate) fn slow_down(&self, at: usize) {
        self.throttle(at, "1mbit");
    }

    /// Limits the sending rate of a host, in the notation of `tc`.
    pub(crate) fn throttle(&self, at: usize, rate: &str) {
        self.hosts[at].throttle(rate);
    }

    /// Delays each frame to and from a host by `delay_ms`, and drops `loss_percent` percent of them.
    pub(crate) fn worsen(&mut self, at: usize, delay_ms: u32, loss_percent: u32) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts/bad_link.py");
        let (switch, host) = (format!("{}sw", self.name), &mut self.hosts[at]);
        let (namespace, port) = (&host.namespace, &host.port);
        must(&format!("ip -n {switch} link set {port} nomaster"));
        must(&format!("ip -n {switch} link add {port}x type veth peer name {port}y"));
        must(&format!("ip -n {switch} link set {port}y master br0 up"));
        must(&format!("ip -n {switch} link set {port}x up"));
        must(&format!("ip netns exec {namespace} python3 {script} --plain eth0"));
        must(&format!("ip netns exec {switch} python3 {script} --plain {port} {port}x {port}y"));
        let mut command = command("ip");
        command.args(["netns", "exec", &switch, "python3", script, port, &format!("{port}x")]);
        command.args([delay_ms.to_string(), loss_percent.to_string(), "1".to_owned()]);
        host.bad_link = Some(command.stdin(Stdio::null()).spawn().unwrap());
    }

    /// Ends the delays and losses of a host's cable.
    pub(crate) fn replace_cable(&mut self, at: usize) {
        let (switch, host) = (format!("{}sw", self.name), &mut self.hosts[at]);
        let mut bad_link = host.bad_link.take().expect("the cable is bad");
        bad_link.kill().unwrap();
        bad_link.wait().unwrap();
        let port = &host.port;
        must(&format!("ip -n {switch} link del {port}x"));
        must(&format!("ip -n {switch} link set {port} master br0 up"));
    }

    /// Repairs the network of a host.
    pub(crate) fn mend(&self, at: usize) {
        let host = &self.hosts[at];
        must(&format!("ip -n {}sw link set {} up", self.name, host.port));
        for other in self.others(at) {
            host.lose(other, false);
            other.lose(host, false);
        }
        run("ip", &["netns", "exec", &host.namespace, "tc", "qdisc", "del", "dev", "eth0", "root"]);
    }

    /// Adds a cable between the first two hosts alone, which have only the link-local addresses that machines
    /// assign to themselves.
    pub(crate) fn join_first_two(&self) -> [&'static str; 2] {
        let [first, second] = [0, 1].map(|at| self.hosts[at].namespace.as_str());
        must(&format!("ip -n {first} link add bridge0 type veth peer name bridge0 netns {second}"));
        let ips = ["169.254.7.1", "169.254.7.2"];
        for (namespace, ip) in [(first, ips[0]), (second, ips[1])] {
            must(&format!("ip -n {namespace} addr add {ip}/16 dev bridge0"));
            must(&format!("ip -n {namespace} link set bridge0 up"));
        }
        ips
    }

    /// Lays a cable between the first two hosts, in a subnet for two machines. Returns the name of
    /// its interface.
    pub(crate) fn lay_private_cable(&self) -> &'static str {
        let [first, second] = [0, 1].map(|at| self.hosts[at].namespace.as_str());
        must(&format!("ip -n {first} link add cable0 type veth peer name cable0 netns {second}"));
        for (namespace, ip) in [(first, "10.254.0.1"), (second, "10.254.0.2")] {
            must(&format!("ip -n {namespace} addr add {ip}/30 dev cable0"));
            must(&format!("ip -n {namespace} link set cable0 up"));
        }
        "cable0"
    }

    /// Pulls a host's first cable and removes its address, as happens on a Mac.
    pub(crate) fn forget_first_cable(&self, at: usize) {
        self.cable_out(at);
        must(&format!("ip -n {} addr flush dev eth0", self.hosts[at].namespace));
    }

    fn others(&self, at: usize) -> impl Iterator<Item = &LabHost> {
        self.hosts.iter().enumerate().filter(move |(idx, _)| *idx != at).map(|(_, host)| host)
    }

    /// Starts a host's SSH server, as at boot.
    pub(crate) fn switch_on(&mut self, at: usize) {
        self.mend(at);
        let dir = self.dir.clone();
        self.hosts[at].start_sshd(&dir);
    }

    /// Cuts a host's power and cable at once.
    pub(crate) fn switch_off(&mut self, at: usize) {
        self.cable_out(at);
        self.hosts[at].end_everything();
    }
}

/// Returns the permission bits of a file.
pub(crate) fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}
