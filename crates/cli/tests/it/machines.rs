//! `doctor`, `autoconfig`, `cluster-info` and `fingerprint`: on this machine, and on two Macs that are
//! not there. The Macs are stubs of macOS's tools on the path, which print what was recorded, behind
//! a stub of `ssh`; the scripts that look at them are the real ones.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::program::{Ended, Program, run, run_json};

/// Two Macs, joined by one cable.
struct Macs {
    folder: PathBuf,
}

impl Macs {
    fn new(name: &str) -> Macs {
        let folder = std::env::temp_dir().join(format!("jackalope-{name}-{}", std::process::id()));
        let macs = Macs { folder };
        macs.mac("studio", "Mac15,14", "Apple M3 Ultra", "hardware-ports-studio.txt");
        macs.mac("macbook", "Mac17,7", "Apple M5 Max", "hardware-ports-studio.txt");
        // The last argument is what to run, the one before the machine; sudo writes down its words.
        let ssh = format!(
            "for word; do host=$command; command=$word; done\n\
             [ -d {0}/$host ] || {{ echo 'Permission denied (publickey).' >&2; exit 255; }}\n\
             PATH={0}/$host:$PATH eval \"$command\"\n",
            macs.folder.display()
        );
        fs::write(macs.folder.join("ssh"), ssh).unwrap();
        macs
    }

    fn mac(&self, name: &str, model: &str, chip: &str, ports: &str) {
        let folder = self.folder.join(name);
        fs::create_dir_all(&folder).unwrap();
        let recorded = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../inspect/tests/recorded"));
        let cat = |file: &str| format!("cat {}", recorded.join(file).display());
        let address = if name == "studio" { "192.168.1.11" } else { "192.168.1.12" };
        let sysctl = format!(
            "echo 'hw.model: {model}'; echo 'machdep.cpu.brand_string: {chip}'; \
             echo 'hw.memsize: 103079215104'; echo 'hw.logicalcpu: 28'"
        );
        let ifconfig = format!(
            "printf 'en0: flags=8863<UP> mtu 1500\\n\\tinet {address} netmask 0xffffff00\\n'; \
             printf 'bridge0: flags=8863<UP> mtu 1500\\n\\tmember: en2 flags=3<L>\\n\\tmember: en3 flags=3<L>\\n'"
        );
        let sudo = format!("echo {name} \"$@\" >> {}/sudo.log", self.folder.display());
        for (tool, script) in [
            ("uname", "[ \"$1\" = -s ] && echo Darwin || echo Darwin 25.3.0 arm64".to_owned()),
            ("hostname", format!("echo {name}.local")),
            ("sw_vers", "printf 'ProductVersion:\\t26.3\\nBuildVersion:\\t25D125\\n'".to_owned()),
            ("sysctl", sysctl),
            (
                "vm_stat",
                "echo 'Mach Virtual Memory Statistics: (page size of 16384 bytes)'; \
                 echo 'Pages free: 4000000.'; echo 'Pages inactive: 1.'; \
                 echo 'Pages speculative: 1.'; echo 'Pages wired down: 150000.'"
                    .to_owned(),
            ),
            ("ifconfig", ifconfig),
            ("system_profiler", cat(&format!("thunderbolt-{name}.json"))),
            ("networksetup", cat(ports)),
            ("rdma_ctl", "echo disabled".to_owned()),
            ("ibv_devices", cat("ibv-devices-empty.txt")),
            ("ibv_devinfo", "echo No IB devices found; exit 255".to_owned()),
            ("pmset", "exit 0".to_owned()),
            ("netstat", "echo 'default 192.168.1.1 UGScg en0'".to_owned()),
            ("lsof", "exit 1".to_owned()),
            ("ping", "echo 'round-trip min/avg/max/stddev = 0.3/0.4/0.5/0.1 ms'".to_owned()),
            ("sudo", sudo),
        ] {
            let path = folder.join(tool);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    fn ssh(&self) -> String {
        format!("/bin/sh {}/ssh", self.folder.display())
    }

    fn run(&self, args: &[&str]) -> Ended {
        let ssh = self.ssh();
        run(&[args, &["--ssh", &ssh]].concat())
    }

    /// Like `run`, on a machine with a separate home.
    fn run_at(&self, home: &Path, args: &[&str]) -> Ended {
        let ssh = self.ssh();
        let args = [args, &["--ssh", &ssh]].concat();
        Program::start_with(&args, "", &[("JACKALOPE_HOME", home.to_str().unwrap())]).end()
    }

    /// Returns the commands that were run as root.
    fn sudo_log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join("sudo.log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Macs {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).ok();
    }
}

#[test]
fn this_machine_is_examined_with_nothing_installed() {
    let found = run_json(&["doctor", "--json"]);
    assert_eq!(found["errors"], 0, "{found}");
    assert!(0 < found["nodes"][0]["report"]["facts"]["cores"].as_u64().unwrap());
    let print = run_json(&["fingerprint", "--json"]);
    assert_eq!(print["cpu_cores"], found["nodes"][0]["report"]["facts"]["cores"]);
    let folder = std::env::temp_dir().join(format!("jackalope-print-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let saved = run(&["fingerprint", "--save", folder.to_str().unwrap()]);
    assert!(saved.status.success() && saved.stdout.contains("architecture"), "{saved:?}");
    let name = format!(".node_fingerprint_{}.json", print["hostname"].as_str().unwrap());
    let text = fs::read_to_string(folder.join(name)).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["chip"], print["chip"]);
    fs::remove_dir_all(&folder).unwrap();
    let info = run(&["cluster-info"]);
    assert!(info.status.success() && info.stdout.contains("architecture"), "{info:?}");
}

#[test]
fn a_machine_that_refuses_our_key_is_an_error_with_something_to_type() {
    let macs = Macs::new("refused");
    let ended = macs.run(&["doctor", "--host", "studio,elsewhere"]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stdout.contains("[ssh-refused]"), "{ended:?}");
    assert!(ended.stdout.contains("> ssh-copy-id elsewhere"), "{ended:?}");
    assert!(ended.stdout.contains("macOS 26.3 (25D125), Apple M3 Ultra, 28 cores"), "{ended:?}");
}

#[test]
fn a_log_is_explained() {
    let path = std::env::temp_dir().join(format!("jackalope-log-{}", std::process::id()));
    fs::write(&path, "step 4\n[jaccl] Couldn't allocate protection domain\n").unwrap();
    let path_text = path.to_str().unwrap();
    let ended = run(&["doctor", "--log", path_text]);
    assert!(ended.status.success() && ended.stdout.contains("[protection-domain]"), "{ended:?}");
    let found = run_json(&["doctor", "--json", "--log", path_text]);
    assert_eq!(found["found"][0]["code"], "protection-domain");
    fs::remove_file(&path).unwrap();
}

#[test]
fn cables_are_shown_and_nothing_runs_before_the_user_agrees() {
    let macs = Macs::new("agree");
    let hosts = ["autoconfig", "--hosts", "studio,macbook"];
    let shown = macs.run(&[&hosts[..], &["--dry-run"]].concat());
    assert!(shown.status.success(), "{shown:?}");
    assert!(shown.stdout.contains("port 2 en3   ━━ 80 Gbit/s ━━▶ macbook port 1 en2"), "{shown:?}");
    assert!(shown.stdout.contains("RDMA is not switched on at studio"), "{shown:?}");
    assert!(shown.stdout.contains("sudo ifconfig bridge0 deletem en3"), "{shown:?}");
    let refused = macs.run(&hosts);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("--yes"), "{refused:?}");
    assert_eq!(macs.sudo_log(), [] as [&str; 0]);
    let dot = macs.run(&[&hosts[..], &["--dot"]].concat());
    assert!(dot.stdout.starts_with("graph cabling {"), "{dot:?}");
}

#[test]
fn commands_run_once_agreed_and_can_be_taken_back() {
    let macs = Macs::new("undo");
    let (out, undo) = (macs.folder.join("hosts.json"), macs.folder.join("undo.json"));
    let (out_text, undo_text) = (out.to_str().unwrap(), undo.to_str().unwrap());
    let args = ["autoconfig", "--hosts", "studio,macbook", "--yes", "--out", out_text];
    let done = macs.run(&[&args[..], &["--undo-out", undo_text]].concat());
    assert!(done.status.success(), "{done:?}");
    let wanted = [
        "studio -n ifconfig bridge0 deletem en3",
        "studio -n ifconfig en3 inet 10.254.0.1 netmask 255.255.255.252 up",
        "macbook -n ifconfig bridge0 deletem en2",
        "macbook -n ifconfig en2 inet 10.254.0.2 netmask 255.255.255.252 up",
    ];
    assert_eq!(macs.sudo_log(), wanted);
    let hostfile: Value = serde_json::from_str(&fs::read_to_string(&out).unwrap()).unwrap();
    assert_eq!(hostfile["backend"], "tcp");
    assert_eq!(hostfile["hosts"][1]["ips"][0], "10.254.0.2");
    let back = macs.run(&["autoconfig", "--undo", undo_text, "--yes"]);
    assert!(back.status.success(), "{back:?}");
    let log = macs.sudo_log();
    assert_eq!(log[4], "macbook -n ifconfig en2 inet 10.254.0.2 delete");
    assert_eq!(log[7], "studio -n ifconfig bridge0 addm en3");
    // The hostfile's addresses were never really assigned, which the doctor reports.
    let sick = macs.run(&["doctor", "--hosts", out_text]);
    assert_eq!(sick.status.code(), Some(1), "{sick:?}");
    assert!(sick.stdout.contains("[address-lost]"), "{sick:?}");
}

/// These Macs forget every address at once, as if they had just started anew.
#[test]
fn resume_gives_cables_the_addresses_they_had_and_runs_nothing_unasked() {
    let macs = Macs::new("resume");
    let home = macs.folder.join("home");
    let (out, undo) = (macs.folder.join("hosts.json"), macs.folder.join("undo.json"));
    let args = ["autoconfig", "--hosts", "studio,macbook", "--yes", "--out", out.to_str().unwrap()];
    let args = [&args[..], &["--undo-out", undo.to_str().unwrap()]].concat();
    let done = macs.run_at(&home, &args);
    assert!(done.status.success(), "{done:?}");
    let kept = home.join("addresses.json");
    let given = fs::read_to_string(&kept).unwrap();
    assert!(given.contains("10.254.0.1") && given.contains("10.254.0.2"), "{given}");
    // A different network than a new plan would use.
    fs::write(&kept, given.replace("10.254.0.", "10.254.7.")).unwrap();
    let start = json!({"words": ["--model", "/nothing"], "cwd": "/", "env": {}});
    fs::write(home.join("last-start.json"), start.to_string()).unwrap();

    let num_run = macs.sudo_log().len();
    let dry = macs.run_at(&home, &["resume", "--dry-run"]);
    assert!(dry.status.success(), "{dry:?}");
    assert!(dry.stdout.contains("sudo ifconfig en3 inet 10.254.7.1 netmask"), "{dry:?}");
    assert!(dry.stdout.contains("in /: jackalope serve --model /nothing"), "{dry:?}");
    let unasked = macs.run_at(&home, &["resume"]);
    assert!(unasked.stderr.contains("no terminal to ask"), "{unasked:?}");
    assert_eq!(macs.sudo_log().len(), num_run);
    let resumed = macs.run_at(&home, &["resume", "--yes"]);
    let log = macs.sudo_log();
    assert_eq!(
        log[num_run + 1],
        "studio -n ifconfig en3 inet 10.254.7.1 netmask 255.255.255.252 up"
    );
    assert_eq!(log.len(), num_run + 4);
    assert!(resumed.stderr.contains("the server ended before it was ready"), "{resumed:?}");

    let mut wants_rdma: Value = serde_json::from_str(&given).unwrap();
    wants_rdma["backend"] = json!("jaccl");
    fs::write(&kept, wants_rdma.to_string()).unwrap();
    let off = macs.run_at(&home, &["resume", "--yes"]);
    assert!(off.stderr.contains("RDMA is switched off on studio, macbook"), "{off:?}");
    assert!(off.stderr.contains("hint: start it in Recovery"), "{off:?}");
    assert_eq!(macs.sudo_log().len(), num_run + 4);
    let back = macs.run_at(&home, &["autoconfig", "--undo", undo.to_str().unwrap(), "--yes"]);
    assert!(back.status.success() && !kept.exists(), "{back:?}");
}

#[test]
fn hardware_is_watched_again_and_again() {
    let macs = Macs::new("hardware");
    let hosts = ["cluster-info", "--host", "studio,macbook", "--hardware"];
    let once = macs.run(&hosts);
    assert!(once.stdout.contains("free") && !once.stdout.contains("architecture"), "{once:?}");
    let often = macs.run(&[&hosts[..], &["--every", "1", "--count", "2"]].concat());
    assert!(often.status.success(), "{often:?}");
    assert_eq!(often.stdout.matches("hostname").count(), 2, "{often:?}");
    // A machine that cannot be reached now is queried again.
    let away = ["cluster-info", "--host", "studio,elsewhere", "--hardware", "--every", "1"];
    let away = macs.run(&[&away[..], &["--count", "2"]].concat());
    assert!(away.status.success(), "{away:?}");
    assert_eq!(away.stderr.matches("could not inspect 1 machine").count(), 2, "{away:?}");
}
