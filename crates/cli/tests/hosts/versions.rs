//! An older version on another host: a newer coordinator refuses or upgrades it, and the way back.
//!
//! The older version is this one with another version in its programs, so both have one protocol and
//! refuse each other for their versions alone.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use jackalope_protocol::secure::Build;
use rustix::process::Signal;
use serde_json::json;

use crate::checkpoint::shipped;
use crate::http::{Answer, Server};
use crate::lab::{Lab, missing};
use crate::launching::lab_or_return;

const OLD: &str = "0.0.0";

/// Length of a machine word that holds a part of a version.
const WORD_BYTES: usize = 4;

/// Writes the programs under test with the version [`OLD`] to a folder. Compilers copy a short text in
/// machine words, so the words that begin like the version are replaced, not the whole text.
fn write_old_programs(bin: &Path) {
    fs::create_dir_all(bin).unwrap();
    let ours = Build::ours().version;
    let (from, to) = (&ours.as_bytes()[..WORD_BYTES], &OLD.as_bytes()[..WORD_BYTES]);
    assert!(
        from != to && ours[WORD_BYTES..] == OLD[WORD_BYTES..],
        "choose another OLD than {ours}"
    );
    let program = Path::new(env!("CARGO_BIN_EXE_jackalope"));
    for name in ["jackalope", "jackalope-rank"] {
        let mut bytes = fs::read(program.with_file_name(name)).unwrap();
        for at in places_of(&bytes, from) {
            bytes[at..at + WORD_BYTES].copy_from_slice(to);
        }
        fs::write(bin.join(name), bytes).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn places_of(bytes: &[u8], part: &[u8]) -> Vec<usize> {
    let first = part[0];
    let mut places = Vec::new();
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == first) {
        if bytes[from + at..].starts_with(part) {
            places.push(from + at);
        }
        from += at + 1;
    }
    places
}

/// Two hosts of which both had the older version, and the first has the newer one now.
struct Upgrade {
    lab: Lab,
    /// Older program on the first host.
    old_program: PathBuf,
    /// Jackalope's folder on the second host.
    home: PathBuf,
}

impl Upgrade {
    fn new(lab: Lab) -> Upgrade {
        let old_program = lab.hosts[0].home.join("old/bin/jackalope");
        let home = lab.hosts[1].home.clone();
        fs::remove_dir_all(home.join("current")).unwrap();
        write_old_programs(&home.join("versions/old/bin"));
        symlink("versions/old", home.join("current")).unwrap();
        fs::create_dir_all(lab.hosts[0].home.join("old")).unwrap();
        symlink(home.join("versions/old/bin"), lab.hosts[0].home.join("old/bin")).unwrap();
        Upgrade { lab, old_program, home }
    }

    fn words<'a>(hosts: &'a str, model: &'a str) -> Vec<&'a str> {
        vec!["serve", "--hosts", hosts, "--model", model, "--port", "8080", "--json"]
    }

    /// Starts a server of the older version or of the newer one, and returns its answer to a prompt.
    fn serve(&self, program: Option<&Path>, more: &[&str]) -> (Server, Answer) {
        let (hosts, model) = (self.lab.hostfile(), shipped());
        let mut words = Upgrade::words(hosts.to_str().unwrap(), model.to_str().unwrap());
        words.extend(["--host", "0.0.0.0", "--insecure"]);
        words.extend(more);
        let program = program.unwrap_or(Path::new(env!("CARGO_BIN_EXE_jackalope")));
        let mut server = Server::of(self.lab.start_other(program, &words));
        server.url = format!("http://{}:8080", self.lab.hosts[0].ip);
        assert_eq!(server.health()["world_size"], 2);
        let prompt = json!({"prompt": "Paris is the", "max_tokens": 12, "temperature": 0});
        let answer = server.complete(&prompt);
        (server, answer)
    }

    /// Checks that the newer coordinator refuses the second host, which keeps its agent.
    fn assert_refused(&self) {
        let agents = self.lab.hosts[1].pids_of("jackalope agent");
        let (hosts, model) = (self.lab.hostfile(), shipped());
        let mut words = Upgrade::words(hosts.to_str().unwrap(), model.to_str().unwrap());
        words.push("--no-bootstrap");
        let ended = self.lab.run(&words);
        let ours = Build::ours();
        let wanted = format!(
            "host-b cannot be used: versions differ: ours is {ours}, theirs is {OLD} (protocol {})\n\
             hint: bring every machine to one version with `jackalope sync --hosts FILE`\n",
            ours.protocol
        );
        assert!(!ended.status.success(), "{ended:?}");
        assert!(ended.stderr.contains(&wanted), "{ended:?}");
        assert_eq!(ended.stderr.matches("hint:").count(), 1, "{ended:?}");
        if !agents.is_empty() {
            assert_eq!(self.lab.hosts[1].pids_of("jackalope agent"), agents, "it was replaced");
        }
    }

    /// Returns the program of the second host's only rank.
    fn rank_program(&self) -> PathBuf {
        let ranks = self.lab.hosts[1].pids_of("jackalope-rank");
        assert_eq!(ranks.len(), 1);
        fs::read_link(format!("/proc/{}/exe", ranks[0])).unwrap()
    }

    fn current(&self) -> String {
        fs::read_link(self.home.join("current")).unwrap().display().to_string()
    }
}

fn stop(server: Server) -> String {
    server.program.signal(Signal::INT);
    let ended = server.program.end();
    assert!(ended.status.success(), "{ended:?}");
    ended.stderr
}

#[test]
fn a_newer_coordinator_refuses_an_older_agent_or_upgrades_it_and_both_go_back() {
    let upgrade = Upgrade::new(lab_or_return!(2));
    let (lab, hostfile) = (&upgrade.lab, upgrade.lab.hostfile());
    let hosts = hostfile.to_str().unwrap();

    // The older version serves; then this host gets the newer one, and the other keeps its agent.
    let (server, before) = upgrade.serve(Some(&upgrade.old_program), &[]);
    assert!(upgrade.rank_program().starts_with(upgrade.home.join("versions/old")));
    stop(server);
    upgrade.assert_refused();
    let doctor = lab.run(&["doctor", "--hosts", hosts, "--json"]);
    assert!(doctor.stdout.contains("\"versions-differ\""), "{doctor:?}");

    // With SSH, `serve` installs itself there and replaces the agent.
    let (server, answer) = upgrade.serve(None, &[]);
    assert_eq!(answer, before);
    let new = upgrade.current();
    assert_ne!(new, "versions/old");
    assert!(upgrade.rank_program().starts_with(upgrade.home.join(&new)));
    let previous = fs::read_link(upgrade.home.join("previous")).unwrap();
    assert_eq!(previous, Path::new("versions/old"));
    let said = stop(server);
    assert!(said.contains("host-b: putting jackalope there"), "{said}");

    // Back to the older version on both: its coordinator serves, the newer one is refused again.
    let back = lab.run(&["bootstrap", "host-b", "--rollback"]);
    assert_eq!(back.stdout, "host-b: switched back to old, its agent was restarted\n", "{back:?}");
    upgrade.assert_refused();
    let (server, answer) = upgrade.serve(Some(&upgrade.old_program), &["--no-bootstrap"]);
    assert_eq!(answer, before);
    assert!(upgrade.rank_program().starts_with(upgrade.home.join("versions/old")));
    stop(server);

    // Forth again, with what the hint says; the newer version is still there.
    let synced = lab.run(&["sync", "--hosts", hosts, "--json"]);
    assert!(synced.status.success(), "{synced:?}");
    let row: serde_json::Value =
        serde_json::from_str(synced.stdout.lines().next().unwrap()).unwrap();
    assert_eq!((&row["host"], &row["bytes_sent"]), (&json!("host-b"), &json!(0)), "{row}");
    assert_eq!(upgrade.current(), new);
    let (server, answer) = upgrade.serve(None, &["--no-bootstrap"]);
    assert_eq!(answer, before);
    stop(server);
}

#[test]
fn an_older_coordinator_is_refused_by_a_newer_agent_which_serves_its_own() {
    let upgrade = Upgrade::new(lab_or_return!(2));
    let (lab, model) = (&upgrade.lab, shipped());
    let (server, answer) = upgrade.serve(None, &[]);
    let agents = lab.hosts[1].pids_of("jackalope agent");
    // Only the other host: a coordinator replaces the agent of its own machine.
    let host = format!("host-b={}", lab.hosts[1].ip);
    let mut words = Upgrade::words(&host, model.to_str().unwrap());
    words.extend(["--control-port", "0", "--no-bootstrap"]);
    words[6] = "8081";
    let refused = lab.start_other(&upgrade.old_program, &words).end();
    assert!(!refused.status.success(), "{refused:?}");
    let protocol = Build::ours().protocol;
    let wanted = format!(
        "versions differ: ours is {OLD} (protocol {protocol}), theirs is {}\nhint: ",
        Build::ours()
    );
    assert!(refused.stderr.contains(&wanted), "{refused:?}");
    assert_eq!(lab.hosts[1].pids_of("jackalope agent"), agents);
    let prompt = json!({"prompt": "Paris is the", "max_tokens": 12, "temperature": 0});
    assert_eq!(server.complete(&prompt), answer, "the running server goes on");
    stop(server);
}

#[test]
fn an_older_server_on_the_same_machine_keeps_its_agent_until_it_is_restarted() {
    let upgrade = Upgrade::new(lab_or_return!(2));
    let (lab, hostfile, model) = (&upgrade.lab, upgrade.lab.hostfile(), shipped());
    let hosts = hostfile.to_str().unwrap();
    let (server, before) = upgrade.serve(Some(&upgrade.old_program), &[]);
    let agents = lab.hosts[0].pids_of("jackalope agent");
    assert_eq!(agents.len(), 1);

    // A newer server beside it, with ports of its own.
    let mut words = Upgrade::words(hosts, model.to_str().unwrap());
    words.extend(["--control-port", "0", "--no-bootstrap"]);
    words[6] = "8081";
    let refused = lab.run(&words);
    let ours = Build::ours().version;
    let wanted = format!("a server of jackalope {OLD} (pid {})", server.program.pid());
    for part in [&*wanted, &format!("this is {ours}"), "hint: `jackalope restart --fresh`"] {
        assert!(refused.stderr.contains(part), "no {part:?} in {refused:?}");
    }
    assert!(!refused.status.success());
    assert_eq!(lab.hosts[0].pids_of("jackalope agent"), agents, "it was replaced");
    let prompt = json!({"prompt": "Paris is the", "max_tokens": 12, "temperature": 0});
    assert_eq!(server.complete(&prompt), before);

    // The documented steps.
    let synced = lab.run(&["sync", "--hosts", hosts]);
    assert!(synced.status.success(), "{synced:?}");
    let restarted = lab.run(&["restart", "--fresh", "--wait", "120"]);
    assert!(restarted.status.success(), "{restarted:?}");
    let ended = server.program.end();
    assert!(ended.status.success(), "{ended:?}");
    assert_ne!(lab.hosts[0].pids_of("jackalope agent"), agents);
    let status = lab.run(&["agent", "status"]);
    assert!(status.stdout.contains(&format!("version {ours}")), "{status:?}");
    let stopped = lab.run(&["stop"]);
    assert!(stopped.status.success(), "{stopped:?}");
}
