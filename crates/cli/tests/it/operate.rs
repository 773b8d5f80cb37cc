//! Operating a cluster: starting in the background, status, restarting, stopping.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::{Value, json};

use crate::checkpoint::{Copy, exact};
use crate::ports::free_port;
use crate::program::{Ended, PATIENCE, Program, send, wait_for};

/// A machine's home folder and the processes that use it; all end when this is dropped.
struct Machine {
    home: PathBuf,
    ports: [u16; 3],
}

impl Machine {
    fn new() -> Machine {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("machine-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::remove_dir_all(&home).ok();
        Machine { home, ports: [(); 3].map(|()| free_port()) }
    }

    fn begin(&self, words: &[&str]) -> Program {
        Program::start_with(words, "", &[("JACKALOPE_HOME", self.home.to_str().unwrap())])
    }

    fn run(&self, words: &[&str]) -> Ended {
        self.begin(words).end()
    }

    /// Runs a command that prints one object and succeeds.
    fn json(&self, words: &[&str]) -> Value {
        let ended = self.run(words);
        assert!(ended.status.success(), "{words:?}: {ended:?}");
        serde_json::from_str(&ended.stdout).unwrap_or_else(|err| panic!("{err}: {ended:?}"))
    }

    /// Words of `start` or `serve` with this machine's ports.
    fn serving(&self, command: &str, further: &[&str]) -> Vec<String> {
        let model = exact().to_str().unwrap();
        let [port, agent, control] = self.ports.map(|it| it.to_string());
        let words = [command, "--model", model, "--port", &port, "--agent-port", &agent];
        let words = [&words[..], &["--control-port", &control], further].concat();
        words.into_iter().map(str::to_owned).collect()
    }

    fn start(&self, further: &[&str]) -> Value {
        let words = self.serving("start", &[further, &["--json"]].concat());
        self.json(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Returns the processes of the ranks, as the server reports them.
    fn ranks(&self) -> Vec<u32> {
        let status = self.json(&["status", "--json"]);
        let ranks = status["health"]["ranks"].as_array().unwrap();
        ranks.iter().map(|rank| rank["pid"].as_u64().unwrap() as u32).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.run(&["kill-all"]);
        std::fs::remove_dir_all(&self.home).ok();
    }
}

fn pid_of(value: &Value) -> u32 {
    value["pid"].as_u64().unwrap() as u32
}

fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    let is_buried = stat.is_ok_and(|it| it.rsplit(')').next().is_some_and(|it| it.contains('Z')));
    test_kill_process(Pid::from_raw(pid.cast_signed()).unwrap()).is_ok() && !is_buried
}

fn wait_for_end(pids: &[u32]) {
    wait_for("end", || pids.iter().all(|&pid| !runs(pid)).then_some(()));
}

/// Returns the lines of a long stream as they arrive.
fn stream(url: &str) -> Receiver<String> {
    let (sender, lines) = channel();
    let url = format!("{url}/v1/completions");
    let body = json!({"prompt": [20, 21], "max_tokens": 1900, "ignore_eos": true, "stream": true});
    std::thread::spawn(move || {
        let request = ureq::post(url).header("content-type", "application/json");
        let response = request.send(body.to_string()).unwrap();
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

const TWO_RANKS: [&str; 2] = ["--hosts", "127.0.0.1,127.0.0.1"];

#[test]
fn a_restart_replaces_the_server_and_the_ranks_keep_their_weights() {
    let machine = Machine::new();
    let started = machine.start(&TWO_RANKS);
    assert_eq!(started["event"], "started");
    let ranks = machine.ranks();
    let lines = stream(started["url"].as_str().unwrap());
    for _ in 0..4 {
        lines.recv_timeout(PATIENCE).unwrap();
    }
    let restarted = machine.json(&["restart", "--json"]);
    assert_eq!(restarted["event"], "restarted");
    assert_ne!(pid_of(&restarted), pid_of(&started));
    assert_eq!(restarted["url"], started["url"]);
    assert_eq!(machine.ranks(), ranks, "ranks outlive the server");
    let rest: Vec<String> = lines.iter().collect();
    assert!(rest.iter().any(|line| line.contains("the server is being replaced")), "{rest:?}");
    let tested = machine.json(&["test", "--json"]);
    assert!(0 < tested["completion_tokens"].as_u64().unwrap(), "{tested}");

    let fresh = machine.json(&["restart", "--fresh", "--json"]);
    assert_ne!(pid_of(&fresh), pid_of(&restarted));
    assert!(machine.ranks().iter().all(|pid| !ranks.contains(pid)), "fresh ranks");
    wait_for_end(&ranks);
    let ranks = machine.ranks();
    let stopped = machine.json(&["stop", "--json"]);
    assert_eq!(
        (pid_of(&stopped["ended"]), stopped["ended"]["killed"].as_bool()),
        (pid_of(&fresh), Some(false))
    );
    assert_eq!(stopped["ended"]["ranks"].as_array().unwrap().len(), 2);
    wait_for_end(&ranks);
    let again = machine.run(&["stop"]);
    assert!(again.status.success() && again.stdout.contains("no server runs here"), "{again:?}");
    // The arguments are remembered nevertheless.
    assert_eq!(machine.json(&["restart", "--json"])["url"], started["url"]);
}

#[test]
fn after_a_reboot_one_command_starts_what_ran_before() {
    let machine = Machine::new();
    let nothing = machine.run(&["resume"]);
    assert!(nothing.stderr.contains("nothing was started on this machine yet"), "{nothing:?}");
    let started = machine.start(&[&TWO_RANKS[..], &["--api-key", "sekret"]].concat());
    let pids: Vec<u32> = machine.ranks().into_iter().chain([pid_of(&started)]).collect();
    // After a reboot, there are records of processes that no longer exist.
    let agent = std::fs::read_to_string(machine.home.join("agent.json")).unwrap();
    let agent = pid_of(&serde_json::from_str(&agent).unwrap());
    for pid in pids.iter().copied().chain([agent]) {
        send(pid, Signal::KILL);
    }
    wait_for_end(&pids);
    let dry = machine.run(&["resume", "--dry-run"]);
    assert!(dry.status.success(), "{dry:?}");
    let command = "JACKALOPE_API_KEY=*** jackalope serve --model";
    assert!(dry.stdout.contains(command) && !dry.stdout.contains("sekret"), "{dry:?}");
    assert!(dry.stderr.contains("autoconfig has assigned no addresses"), "{dry:?}");
    assert!(!machine.run(&["health"]).status.success(), "a dry run starts nothing");
    let resumed = machine.json(&["resume", "--yes", "--json"]);
    assert_eq!((&resumed["event"], &resumed["url"]), (&json!("resumed"), &started["url"]));
    assert!(!pids.contains(&pid_of(&resumed)));
    let tested = machine.json(&["test", "--json"]);
    assert!(0 < tested["completion_tokens"].as_u64().unwrap(), "{tested}");
    let again = machine.json(&["resume", "--yes", "--json"]);
    assert_eq!((&again["event"], pid_of(&again)), (&json!("runs"), pid_of(&resumed)));
    let stopped = machine.json(&["stop", "--json"]);
    assert_eq!(stopped["rdma_busy"], json!([]), "no RDMA, no wait");
}

#[test]
fn agents_tell_how_short_of_memory_their_machines_are() {
    let machine = Machine::new();
    machine.start(&[&TWO_RANKS[..], &["--memory-critical", "8000TiB"]].concat());
    let told = wait_for("reading of an agent", || {
        let health = machine.json(&["health", "--json"]);
        Some(health["memory_pressure"].clone()).filter(|it| it["tier"] == "critical")
    });
    assert_eq!(told["host"], "127.0.0.1");
    assert!(0 < told["free_bytes"].as_u64().unwrap(), "{told}");
    let tested = machine.json(&["test", "--json"]);
    assert!(0 < tested["completion_tokens"].as_u64().unwrap(), "one request goes on: {tested}");
}

#[test]
fn starting_twice_is_starting_once_and_other_arguments_replace() {
    let machine = Machine::new();
    let first = machine.start(&[]);
    assert_eq!(machine.start(&[])["event"], "runs");
    let other = machine.serving("start", &["--queue-max", "3", "--no-replace"]);
    let refused = machine.run(&other.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(!refused.status.success(), "{refused:?}");
    assert!(refused.stderr.contains("a server with other arguments runs"), "{refused:?}");
    for wrong in [["--model", "/no/such"], ["--api-key-file", "/no/such"]] {
        let words = machine.serving("start", &[]);
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        if wrong[0] == words[1] {
            words[2] = wrong[1];
        } else {
            words.extend(wrong);
        }
        let refused = machine.run(&words);
        assert!(!refused.status.success() && refused.stderr.contains("/no/such"), "{refused:?}");
    }
    assert_eq!(pid_of(&machine.start(&[])), pid_of(&first));
    let second = machine.start(&["--queue-max", "3"]);
    assert_eq!(second["event"], "replaced");
    assert_ne!(pid_of(&second), pid_of(&first));
    assert!(!runs(pid_of(&first)));
    assert_eq!(machine.json(&["queue", "--json"])["max"], 3);
    assert_eq!(machine.json(&["health", "--json"])["status"], "healthy");
    assert!(machine.json(&["metrics", "--json"]).is_object());
    let served = machine.run(&["served"]).stdout;
    assert_eq!(served.trim(), "jackalope-mini-f32");
    let logs = machine.run(&["logs", "-n", "1000"]);
    assert!(logs.status.success() && logs.stdout.contains("ranks ready"), "{logs:?}");
    let of_rank = machine.run(&["logs", "--rank", "0"]).stdout;
    assert!(of_rank.lines().count() < logs.stdout.lines().count(), "{of_rank}");
    assert!(of_rank.contains("shard loaded") && !of_rank.contains("ranks ready"), "{of_rank}");
    let seen = machine.run(&["monitor", "--interval", "1", "--count", "2", "--json"]);
    let seen: Vec<Value> =
        seen.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|it| it["ok"] == true && pid_of(&it["serve"]) == pid_of(&second)));
}

#[test]
fn starts_at_once_are_one_after_another() {
    let machine = Machine::new();
    let words = machine.serving("start", &["--json"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let starts: Vec<Program> = (0..3).map(|_| machine.begin(&words)).collect();
    let ended: Vec<Ended> = starts.into_iter().map(Program::end).collect();
    let mut events: Vec<String> = ended
        .iter()
        .map(|it| {
            assert!(it.status.success(), "{it:?}");
            let told: Value = serde_json::from_str(&it.stdout).unwrap();
            told["event"].as_str().unwrap().to_owned()
        })
        .collect();
    events.sort();
    assert_eq!(events, ["runs", "runs", "started"]);
    assert!(ended.iter().any(|it| it.stderr.contains("another command starts")), "{ended:?}");
}

#[test]
fn a_start_does_not_wait_for_a_server_that_failed_or_stands_still() {
    let machine = Machine::new();
    let model = Copy::new();
    let words = machine.serving("start", &["--json"]);
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words[2] = model.path().to_str().unwrap();
    let server = pid_of(&machine.json(&words));
    send(server, Signal::STOP);
    let silent = machine.run(&words);
    send(server, Signal::CONT);
    assert!(silent.stderr.contains("has not answered for"), "{silent:?}");
    let weights = model.path().join("model.safetensors");
    std::fs::remove_file(&weights).unwrap();
    // The pause may have ended the ranks already.
    wait_for("failed server", || {
        let status = machine.run(&["status", "--json"]);
        let status: Value = serde_json::from_str(&status.stdout).unwrap();
        if status["health"]["status"] == "failed" {
            return Some(());
        }
        let ranks = status["health"]["ranks"].as_array().into_iter().flatten();
        ranks.filter_map(|it| it["pid"].as_u64()).for_each(|pid| send(pid as u32, Signal::KILL));
        None
    });
    let failed = machine.run(&words);
    assert!(!failed.status.success(), "{failed:?}");
    assert!(failed.stderr.contains("runs but has failed: "), "{failed:?}");
    assert!(failed.stderr.contains("hint: `jackalope restart`"), "{failed:?}");
    // What cannot be served does not replace what runs, however little that is worth.
    std::fs::remove_file(model.path().join("config.json")).unwrap();
    let refused = machine.run(&["restart"]);
    assert!(refused.stderr.contains("config.json"), "{refused:?}");
    assert!(!refused.status.success() && runs(server), "{refused:?}");
}

#[test]
fn a_start_that_fails_ends_with_what_the_server_said_last() {
    let machine = Machine::new();
    let broken = Copy::new();
    broken.edit_config(|config| config["model_type"] = json!("nothing known"));
    let model = broken.path().to_str().unwrap();
    let ended = machine.run(&["start", "--model", model, "--port", "0"]);
    assert!(!ended.status.success(), "{ended:?}");
    assert!(ended.stderr.contains("the server ended before it was ready"), "{ended:?}");
    assert!(ended.stderr.contains("nothing known"), "{ended:?}");
    let status = machine.run(&["status", "--json"]);
    assert!(!status.status.success(), "{status:?}");
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!((&status["ok"], &status["serve"]), (&json!(false), &Value::Null));
    let restart = machine.run(&["restart"]);
    assert!(restart.stderr.contains("nothing was started yet"), "{restart:?}");
    let nobody = machine.run(&["health", "--url", "http://127.0.0.1:9"]);
    assert!(!nobody.status.success() && nobody.stderr.contains("hint: "), "{nobody:?}");
}

#[test]
fn a_server_in_the_foreground_is_known_and_can_be_stopped() {
    let machine = Machine::new();
    let words = machine.serving("serve", &["--json", "--api-key", "secret"]);
    let mut server = machine.begin(&words.iter().map(String::as_str).collect::<Vec<_>>());
    server.line();
    let status = machine.json(&["status", "--json"]);
    assert_eq!(pid_of(&status["serve"]), server.pid());
    assert_eq!(status["health"]["status"], "healthy", "its key is known");
    assert!(!status.to_string().contains("secret"), "and not told");
    let stopped = machine.run(&["stop"]);
    assert!(stopped.stdout.contains("has ended with 1 rank"), "{stopped:?}");
    assert!(server.end().status.success());
    assert!(!machine.home.join("serve.json").exists());
}

/// Returns the name and content of every file in a folder.
fn files(dir: &Path) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(dir).unwrap().map(|it| it.unwrap().path());
    let files = entries.filter(|it| it.is_file()).map(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned())
    });
    files.collect()
}

fn status_with_key(url: &str, key: &str) -> u16 {
    let request = ureq::get(format!("{url}/v1/models")).header("x-api-key", key);
    let request = request.config().http_status_as_error(false).build();
    request.call().unwrap().status().as_u16()
}

#[test]
#[cfg(target_os = "linux")]
fn a_key_that_was_typed_is_in_no_list_of_processes_and_in_no_record() {
    let machine = Machine::new();
    let words = machine.serving("start", &["--json", "--api-key", "sekret-typed"]);
    let started = machine.run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(
        started.stderr.contains("can read `--api-key` in the list of processes"),
        "{started:?}"
    );
    assert!(started.stderr.contains("hint: pass `--api-key-file FILE`"), "{started:?}");
    let told: Value = serde_json::from_str(&started.stdout).unwrap();
    let url = told["url"].as_str().unwrap().to_owned();
    let check = |pid: u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        assert!(!line.contains("sekret"), "{line}");
        for (name, text) in files(&machine.home) {
            assert_eq!(
                name.ends_with("-keys.json"),
                text.contains("sekret-typed"),
                "{name}: {text}"
            );
        }
        assert_eq!(
            [status_with_key(&url, "sekret-typed"), status_with_key(&url, "no")],
            [200, 401]
        );
        assert_eq!(machine.json(&["status", "--json"])["health"]["status"], "healthy");
    };
    check(pid_of(&told));
    assert_eq!(machine.start(&["--api-key", "sekret-typed"])["event"], "runs");
    check(pid_of(&machine.json(&["restart", "--json"])));
    let listed =
        machine.json(&["support", "--json", "--out", machine.home.join("out").to_str().unwrap()]);
    assert!(listed["files"].to_string().contains("health.json"), "the operator's key opens all");
    assert!(files(&machine.home.join("out")).iter().all(|(_, text)| !text.contains("sekret")));
    assert_eq!(machine.start(&[])["event"], "replaced");
    assert!(files(&machine.home).iter().all(|(_, text)| !text.contains("sekret")), "none stays");
}

#[test]
fn keys_come_from_a_file_or_the_environment() {
    let machine = Machine::new();
    std::fs::create_dir_all(&machine.home).unwrap();
    let file = machine.home.join("keys");
    std::fs::write(&file, "# clients\nsekret-one\nsekret-two\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let path = file.to_str().unwrap();
    let words = machine.serving("serve", &["--json", "--api-key-file", path]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let home = machine.home.to_str().unwrap();
    let env = [("JACKALOPE_HOME", home), ("JACKALOPE_ADMIN_KEY", "sekret-admin")];
    let mut server = Program::start_with(&words, "", &env);
    let ready: Value = serde_json::from_str(&server.line()).unwrap();
    let url = ready["url"].as_str().unwrap();
    let codes = ["sekret-one", "sekret-two", "sekret-admin", "# clients", "no"];
    assert_eq!(codes.map(|key| status_with_key(url, key)), [200, 200, 200, 401, 401]);
    let ask = ["health", "--json", "--url", url];
    // A home without a key of this server.
    let elsewhere = machine.home.join("elsewhere");
    let ask_with = |more: &[&str], key: (&str, &str)| {
        let env = [("JACKALOPE_HOME", elsewhere.to_str().unwrap()), key];
        Program::start_with(&[&ask[..], more].concat(), "", &env).end()
    };
    let none = ("JACKALOPE_API_KEY", "");
    assert!(!ask_with(&[], none).status.success());
    assert!(ask_with(&["--api-key-file", path], none).status.success());
    assert!(ask_with(&[], ("JACKALOPE_API_KEY", "sekret-two,other")).status.success());
    let both = ask_with(&["--api-key-file", path, "--api-key", "x"], none);
    assert!(!both.status.success(), "{both:?}");
    server.signal(Signal::TERM);
    let ended = server.end();
    assert!(ended.stderr.contains(&format!("others can read the keys in {path}")), "{ended:?}");
    assert!(ended.stderr.contains(&format!("hint: chmod 600 {path}")), "{ended:?}");
    assert!(!ended.stderr.contains("list of processes"), "nothing was typed: {ended:?}");
    assert!(!machine.home.join("serve-keys.json").exists());
}

/// Returns the doctor's findings about these processes, as `severity code`.
fn findings_about(machine: &Machine, pids: &[u32]) -> Vec<String> {
    let seen = machine.json(&["doctor", "--json"]);
    let is_about = |it: &&Value| {
        let found = it["found"].as_str().unwrap_or_default();
        let numbers = found.split(|c: char| !c.is_ascii_digit());
        numbers.filter_map(|it| it.parse().ok()).any(|number: u32| pids.contains(&number))
    };
    let findings = seen["findings"].as_array().unwrap().iter().filter(is_about);
    let words = |it: &Value| {
        let word = |name: &str| it[name].as_str().unwrap_or_default().to_owned();
        format!("{} {} {}", word("severity"), word("code"), word("about"))
    };
    findings.map(words).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn the_doctor_judges_our_programs_by_what_they_answer() {
    let machine = Machine::new();
    let started = machine.start(&[&TWO_RANKS[..], &["--api-key", "sekret"]].concat());
    // Another home; the server's parent ends at once, as with nohup.
    let other = Machine::new();
    let words = other.serving("serve", &["--json"]);
    let mut command = crate::program::command("sh");
    command.env("JACKALOPE_HOME", &other.home).env_remove("RUST_LOG");
    command.args(["-c", "\"$0\" --verbose \"$@\" >/dev/null 2>&1 & echo $!"]);
    command.arg(env!("CARGO_BIN_EXE_jackalope")).args(&words);
    let mut shell = Program::start_command(command, "");
    let orphan: u32 = shell.line().trim().parse().unwrap();
    shell.end();
    wait_for("other server", || other.run(&["status", "--json"]).status.success().then_some(()));
    let agent = std::fs::read_to_string(machine.home.join("agent.json")).unwrap();
    let agent = pid_of(&serde_json::from_str(&agent).unwrap());
    let ours: Vec<u32> =
        machine.ranks().into_iter().chain([pid_of(&started), orphan, agent]).collect();
    let mut found = findings_about(&machine, &ours);
    found.dedup();
    assert_eq!(found.len(), 4, "two servers, an agent, a line of ranks: {found:?}");
    assert!(found.iter().all(|it| it.starts_with("ok ")), "{found:?}");

    send(orphan, Signal::STOP);
    wait_for("stop", || {
        let found = findings_about(&machine, &[orphan]);
        (found.len() == 1 && found[0].starts_with("warn program-stopped")).then_some(())
    });
    send(orphan, Signal::CONT);
    let found = findings_about(&machine, &[orphan]);
    assert_eq!(found, ["ok ok server"]);
}

#[test]
fn what_a_report_needs_is_put_together_without_words_or_keys() {
    let machine = Machine::new();
    machine.start(&["--admin-key", "sekret-of-this-server"]);
    let test = machine.run(&["test"]);
    assert!(test.status.success(), "{test:?}");
    let out = machine.home.join("report");
    let found = machine.json(&["support", "--json", "--out", out.to_str().unwrap()]);
    let files: Vec<&str> =
        found["files"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    for name in ["doctor.json", "health.json", "requests.json", "metrics.json", "serve.log"] {
        assert!(files.contains(&name), "{found}");
    }
    for name in &files {
        let text = std::fs::read_to_string(out.join(name)).unwrap();
        for word in ["sekret-of-this-server", "Say hello"] {
            assert!(!text.contains(word), "{name} tells {word}");
        }
    }
    let requests = std::fs::read_to_string(out.join("requests.json")).unwrap();
    assert!(requests.contains("wall_time_s"), "{requests}");
    assert!(machine.run(&["stop"]).status.success());
    let nobody = machine.json(&["support", "--json", "--out", out.to_str().unwrap()]);
    assert!(nobody["missing"].to_string().contains("none runs on this machine"), "{nobody}");
}

#[test]
fn kill_all_ends_what_is_written_down_on_every_machine() {
    let machine = Machine::new();
    let started = machine.start(&TWO_RANKS);
    let ranks = machine.ranks();
    // A stopped process reacts only to SIGKILL.
    send(ranks[1], Signal::STOP);
    send(pid_of(&started), Signal::STOP);
    let ssh = machine.home.join("ssh");
    std::fs::write(&ssh, "#!/bin/sh\ncase \"$*\" in *bad*) exit 255;; esac\necho it is done\n")
        .unwrap();
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755)).unwrap();
    let reach = ["--hosts", "127.0.0.1,other,bad", "--ssh", ssh.to_str().unwrap()];
    let logs = machine.run(&[&["logs", "--agent", "-n", "3"], &reach[..]].concat());
    assert!(logs.status.success(), "{logs:?}");
    assert!(logs.stdout.contains("127.0.0.1 | "), "{logs:?}");
    assert!(logs.stdout.contains("other | it is done"), "{logs:?}");
    assert!(logs.stdout.lines().count() <= 4, "{logs:?}");
    assert!(logs.stderr.contains("bad: "), "{logs:?}");
    let words = [&["kill-all"], &reach[..]].concat();
    let ended = machine.run(&words);
    assert!(!ended.status.success(), "one machine was not reached: {ended:?}");
    assert!(ended.stdout.contains("was killed"), "{ended:?}");
    assert!(ended.stdout.contains("127.0.0.1: the agent has ended"), "{ended:?}");
    assert!(ended.stdout.contains("other: it is done"), "{ended:?}");
    assert!(ended.stdout.contains("bad: "), "{ended:?}");
    wait_for_end(&[ranks[0], ranks[1], pid_of(&started)]);
    let again = machine.json(&["kill-all", "--json"]);
    assert_eq!(again["serve"]["ended"], Value::Null);
    assert_eq!(again["hosts"][0]["said"], "no agent runs here");
}

#[test]
fn a_token_is_made_once_shown_again_and_replaced_only_on_request() {
    let machine = Machine::new();
    let token = |args: &[&str]| machine.run(&[&["token"][..], args].concat());
    let none = token(&["show"]);
    assert!(!none.status.success() && none.stderr.contains("jackalope token new"), "{none:?}");
    let made = token(&["new"]);
    let text = made.stdout.trim().to_owned();
    assert!(made.status.success() && text.len() == 64, "{made:?}");
    assert_eq!(token(&["show"]).stdout.trim(), text);
    let again = token(&["new"]);
    assert!(!again.status.success() && again.stdout.is_empty(), "{again:?}");
    assert!(again.stderr.contains("--replace"), "{again:?}");
    let other = token(&["new", "--replace", "--json"]).stdout;
    assert!(other.starts_with("{\"token\":\"") && !other.contains(&text), "{other}");
}
