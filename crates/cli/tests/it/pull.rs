//! Pulling a model: complete and verified or not at all, and resumed after an interruption.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Signal;
use serde_json::Value;

use crate::checkpoint::{Copy, shipped};
use crate::hub::{COMMIT, Fault, Hub, REPO, blob_of};
use crate::install::Machines;
use crate::program::{Ended, Program, wait_for};

const WEIGHTS: &str = "model.safetensors";

/// A machine without models, and a hub.
struct Machine {
    home: PathBuf,
    hub: Hub,
}

impl Machine {
    fn new() -> Machine {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("home-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&home).unwrap();
        Machine { home: fs::canonicalize(home).unwrap(), hub: Hub::start() }
    }

    /// Creates a machine and a hub whose model has another configuration.
    fn with_config(edit: impl FnOnce(&mut Value)) -> Machine {
        let copy = Copy::new();
        copy.edit_config(edit);
        let mut machine = Machine::new();
        machine.hub = Hub::with(copy.path());
        machine
    }

    fn start(&self, args: &[&str], input: &str, env: &[(&str, &str)]) -> Program {
        let home = self.home.to_str().unwrap();
        // Keys that are pinned here must not be known to the next run.
        let ours = self.home.join(".jackalope");
        // The user who runs the tests may have models, tokens and proxies.
        let clean = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "MODEL_CACHE_DIR"];
        let clean = clean.iter().chain(&["TRANSFORMERS_CACHE", "XDG_CACHE_HOME", "MODELS_DIR"]);
        let clean = clean.chain(&["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"]);
        let mut all: Vec<(&str, &str)> = clean.map(|name| (*name, "")).collect();
        all.extend([("TRANSFORMERS_OFFLINE", ""), ("HOME", home), ("NO_PROXY", "*")]);
        all.push(("JACKALOPE_HOME", ours.to_str().unwrap()));
        all.push(("HF_ENDPOINT", &self.hub.url));
        all.extend(env);
        Program::start_with(args, input, &all)
    }

    fn run(&self, args: &[&str]) -> Ended {
        self.start(args, "", &[]).end()
    }

    fn json(&self, args: &[&str]) -> Value {
        let ended = self.run(args);
        assert!(ended.status.success(), "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap_or_else(|err| panic!("{err}: {ended:?}"))
    }

    fn pull(&self) -> Value {
        self.json(&["pull", REPO, "--json"])
    }

    /// Checks that the command fails, reports all of `causes`, and leaves no model.
    fn refuses(&self, args: &[&str], causes: &[&str]) {
        let ended = self.run(args);
        assert!(!ended.status.success() && ended.stdout.is_empty(), "{ended:?}");
        for cause in causes {
            assert!(ended.stderr.contains(cause), "no {cause:?} in {ended:?}");
        }
        assert!(!ended.stderr.contains("panicked"), "{ended:?}");
        assert_eq!(self.json(&["models", "ls", "--json"])["models"], serde_json::json!([]));
    }

    fn repo_dir(&self) -> PathBuf {
        self.home.join(".cache/huggingface/hub/models--jack--mini")
    }

    fn blob(&self, name: &str) -> PathBuf {
        self.repo_dir().join("blobs").join(blob_of(name))
    }

    fn partial(&self, name: &str) -> PathBuf {
        self.repo_dir().join("blobs").join(format!("{}.incomplete", blob_of(name)))
    }

    /// Checks that every file is the same as on the hub.
    fn has_all_of_it(&self) {
        let checked = self.json(&["models", "check", REPO, "--hash", "--json"]);
        assert_eq!((&checked["complete"], &checked["hashed"]), (&true.into(), &6.into()));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.home).ok();
    }
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |it| it.len())
}

#[test]
fn a_pulled_model_lies_where_others_look_for_it_and_is_served_by_its_name() {
    let machine = Machine::new();
    let pulled = machine.pull();
    assert_eq!(pulled["revision"], COMMIT);
    assert_eq!(pulled["files"], 6, "{pulled}");
    assert_eq!(pulled["bytes"], pulled["fetched_bytes"]);
    assert!(machine.hub.seen("README.md").is_empty());

    let repo = machine.repo_dir();
    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    for name in [WEIGHTS, "config.json", "tokenizer.json"] {
        let link = repo.join("snapshots").join(COMMIT).join(name);
        let target = fs::read_link(&link).unwrap();
        assert_eq!(target, Path::new("../../blobs").join(blob_of(name)));
        assert_eq!(fs::read(&link).unwrap(), fs::read(shipped().join(name)).unwrap());
    }
    machine.has_all_of_it();
    let listed = &machine.json(&["models", "ls", "--json"])["models"][0];
    assert_eq!(listed["name"], REPO);
    assert_eq!((&listed["complete"], &listed["bytes"]), (&true.into(), &pulled["bytes"]));
    let table = machine.run(&["models", "ls"]).stdout;
    assert!(table.contains(REPO) && table.contains("4 bits"), "{table}");

    let again = machine.pull();
    assert_eq!(again["fetched_bytes"], 0);
    assert_eq!(machine.hub.seen(WEIGHTS).len(), 1);

    let args =
        ["generate", "--model", REPO, "--prompt-ids", "20,21", "--max-tokens", "3", "--json"];
    assert_eq!(machine.json(&args)["usage"]["completion_tokens"], 3);
    let mut server = machine.start(&["serve", "--model", REPO, "--port", "0", "--json"], "", &[]);
    let ready: Value = serde_json::from_str(&server.line()).unwrap();
    assert_eq!(ready["model"], REPO);
    server.signal(Signal::TERM);
    assert!(server.end().status.success());
}

#[test]
fn one_command_fetches_a_model_and_copies_it_to_other_machines() {
    let (machine, others) = (Machine::new(), Machines::new(&["mac6"]));
    let port = others.port.to_string();
    let args = ["pull", REPO, "--hosts", "mac6", "--agent-port", &port, "--ssh", others.ssh()];
    let ended = machine.run(&args);
    assert!(ended.status.success(), "{ended:?}");
    machine.has_all_of_it();
    assert!(ended.stdout.contains(&format!("mac6: {REPO} is there")), "{ended:?}");
    let copy = others.root.join("mac6/models_mlx").join(REPO).join(WEIGHTS);
    assert_eq!(fs::read(copy).unwrap(), fs::read(shipped().join(WEIGHTS)).unwrap());
}

#[test]
fn a_cut_connection_goes_on_where_it_was_cut() {
    let machine = Machine::new();
    machine.hub.fail(WEIGHTS, Fault::Cut(500_000), 1);
    machine.hub.fail(WEIGHTS, Fault::Cut(0), 1);
    machine.pull();
    let on = Some("bytes=500000-".to_owned());
    assert_eq!(machine.hub.ranges(WEIGHTS), [None, on.clone(), on]);
    machine.has_all_of_it();
}

#[test]
fn another_run_goes_on_where_one_gave_up() {
    let machine = Machine::new();
    machine.hub.fail(WEIGHTS, Fault::Cut(700_000), 1);
    machine.refuses(&["pull", REPO, "--retries", "0"], &[WEIGHTS, "gave up", "pull again"]);
    assert_eq!(len(&machine.partial(WEIGHTS)), 700_000);
    let pulled = machine.pull();
    assert!(pulled["fetched_bytes"].as_u64().unwrap() < len(&machine.blob(WEIGHTS)), "{pulled}");
    assert_eq!(machine.hub.ranges(WEIGHTS)[1].as_deref(), Some("bytes=700000-"));
    machine.has_all_of_it();
}

#[test]
fn an_interrupted_run_leaves_what_the_next_goes_on_with() {
    let machine = Machine::new();
    machine.hub.fail(WEIGHTS, Fault::Stall(600_000), 1);
    let program = machine.start(&["pull", REPO], "", &[]);
    wait_for("part of the file", || (len(&machine.partial(WEIGHTS)) == 600_000).then_some(()));
    program.signal(Signal::INT);
    let ended = program.end();
    assert!(
        !ended.status.success() && ended.stderr.contains("hint: the same command"),
        "{ended:?}"
    );
    machine.pull();
    assert_eq!(machine.hub.ranges(WEIGHTS)[1].as_deref(), Some("bytes=600000-"));
    machine.has_all_of_it();
}

#[test]
fn a_server_without_ranges_sends_all_of_it_again() {
    let machine = Machine::new();
    machine.hub.fail(WEIGHTS, Fault::Cut(500_000), 1);
    machine.hub.fail(WEIGHTS, Fault::IgnoreRange, 1);
    machine.pull();
    assert_eq!(machine.hub.seen(WEIGHTS).len(), 2);
    machine.has_all_of_it();
}

#[test]
fn wrong_bytes_are_never_kept() {
    for name in [WEIGHTS, "tokenizer.json"] {
        let machine = Machine::new();
        machine.hub.fail(name, Fault::WrongByte, 1);
        machine.refuses(&["pull", REPO], &[name, &blob_of(name), "hint:"]);
        assert!(!machine.blob(name).exists() && !machine.partial(name).exists());
        assert!(!machine.repo_dir().join("refs/main").exists());
        // A wrong partial file of an earlier run is replaced.
        fs::write(machine.partial(name), "something else").unwrap();
        machine.pull();
        assert_eq!(machine.hub.ranges(name), [None, Some("bytes=14-".to_owned()), None]);
        machine.has_all_of_it();
    }
}

#[test]
fn a_file_of_another_size_than_listed_is_refused() {
    let machine = Machine::new();
    machine.hub.fail(WEIGHTS, Fault::Longer, 1);
    machine.refuses(&["pull", REPO], &[WEIGHTS, "the hub lists", "hint:"]);
    assert!(!machine.blob(WEIGHTS).exists());
}

#[test]
fn a_silent_connection_is_given_up_and_tried_again() {
    let machine = Machine::new();
    machine.hub.fail(WEIGHTS, Fault::Stall(400_000), 1);
    machine.json(&["pull", REPO, "--stall-timeout", "1", "--json"]);
    assert_eq!(machine.hub.ranges(WEIGHTS)[1].as_deref(), Some("bytes=400000-"));
    let machine = Machine::new();
    machine.hub.fail("revision/main", Fault::Status(503, ""), 1);
    machine.hub.fail("config.json", Fault::Stall(0), 1);
    let args = ["pull", REPO, "--stall-timeout", "1", "--retries", "0"];
    machine.refuses(&args, &["503", "gave up after 1"]);
    machine.refuses(&args, &["config.json", "gave up after 1", "timeout"]);
}

#[test]
fn a_hub_that_asks_for_patience_gets_it_within_a_bound() {
    let machine = Machine::new();
    machine.hub.fail(WEIGHTS, Fault::Status(429, "Retry-After: 86400"), 1);
    machine.refuses(&["pull", REPO], &["429", "86400 seconds"]);
    machine.hub.fail(WEIGHTS, Fault::Status(429, "Retry-After: 0"), 2);
    machine.hub.fail("revision/main", Fault::Status(429, "Retry-After: 0"), 1);
    machine.pull();
    assert_eq!(machine.hub.seen(WEIGHTS).len(), 4);
    machine.has_all_of_it();
}

#[test]
fn refusals_say_what_to_do() {
    let machine = Machine::new();
    let other = ["hint:", "models?search=nothing"];
    machine
        .refuses(&["pull", "jack/nothing"], &[&["there is no jack/nothing"], &other[..]].concat());
    machine.refuses(&["pull", REPO, "--revision", "v9"], &["no revision v9", "hint:"]);
    machine.refuses(&["pull", "jack/mini@v9"], &["no revision v9", "hint:"]);
    machine.refuses(&["pull", "../x"], &["ORG/NAME"]);
    machine.hub.fail("revision/main", Fault::Status(401, "X-Error-Code: GatedRepo"), 2);
    machine.refuses(&["pull", REPO], &["gated", "no HF_TOKEN is set", "hint: accept"]);
    let with = machine.start(&["pull", REPO], "", &[("HF_TOKEN", "hf_secret")]).end();
    assert!(with.stderr.contains("the owner of this HF_TOKEN"), "{with:?}");
    assert!(!with.stderr.contains("hf_secret"), "{with:?}");
    machine.hub.fail(WEIGHTS, Fault::Status(403, "X-Error-Code: GatedRepo"), 1);
    machine.refuses(&["pull", REPO], &["gated"]);
}

#[test]
fn a_redirect_is_followed_with_the_range_and_without_the_token() {
    let machine = Machine::new();
    machine.hub.fail(WEIGHTS, Fault::Redirect, 1);
    machine.hub.fail(WEIGHTS, Fault::Cut(300_000), 1);
    machine.hub.fail(WEIGHTS, Fault::Redirect, 1);
    let env = [("HF_TOKEN", "hf_secret")];
    let ended = machine.start(&["pull", REPO], "", &env).end();
    assert!(ended.status.success(), "{ended:?}");
    let seen = machine.hub.seen(WEIGHTS);
    assert_eq!(seen.len(), 4, "{seen:?}");
    for pair in seen.chunks(2) {
        assert_eq!(pair[0].authorization.as_deref(), Some("Bearer hf_secret"));
        assert!(pair[1].host.starts_with("localhost:"), "{pair:?}");
        assert_eq!(pair[1].authorization, None);
        assert_eq!(pair[0].range, pair[1].range);
    }
    assert_eq!(seen[3].range.as_deref(), Some("bytes=300000-"));
    machine.has_all_of_it();
}

#[test]
fn offline_means_no_word_to_the_hub() {
    let machine = Machine::new();
    for variable in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
        let ended = machine.start(&["pull", REPO], "", &[(variable, "1")]).end();
        assert!(!ended.status.success() && ended.stderr.contains(variable), "{ended:?}");
        assert!(ended.stderr.contains("hint:"), "{ended:?}");
    }
    // Serving never contacts the hub, even if it could.
    machine.refuses(
        &["generate", "--model", REPO, "--prompt", "x"],
        &["there is no model jack/mini", "hint: jackalope pull jack/mini"],
    );
    assert!(machine.hub.seen("").is_empty());
}

#[test]
fn what_will_not_fit_is_refused_before_anything_comes() {
    let machine = Machine::new();
    machine.hub.fail("revision/main", Fault::Huge, 1);
    machine.refuses(&["pull", REPO], &["must be fetched", "are free at", "hint: free some"]);
    assert_eq!(machine.hub.seen("").len(), 1);
}

#[test]
fn a_file_that_another_program_fetches_is_left_to_it() {
    let machine = Machine::new();
    let name = format!("{}.lock", blob_of(WEIGHTS));
    let locks = machine.home.join(".cache/huggingface/hub/.locks/models--jack--mini");
    fs::create_dir_all(&locks).unwrap();
    let lock = fs::File::create(locks.join(name)).unwrap();
    lock.lock().unwrap();
    machine.refuses(&["pull", REPO], &["another program", "hint: wait"]);
    lock.unlock().unwrap();
    machine.pull();
}

#[test]
fn a_directory_of_its_own_is_filled_verified_and_known_by_name() {
    let machine = Machine::new();
    let dir = machine.home.join("models_mlx/mini");
    let to = ["pull", REPO, "--json", "--to", dir.to_str().unwrap()];
    machine.hub.fail(WEIGHTS, Fault::Cut(500_000), 1);
    assert_eq!(machine.json(&to)["path"], *dir.to_str().unwrap());
    assert!(!machine.repo_dir().exists());
    machine.has_all_of_it();
    // A file of the right size with wrong bytes is detected and downloaded again.
    let mut weights = fs::read(dir.join(WEIGHTS)).unwrap();
    *weights.last_mut().unwrap() ^= 1;
    fs::write(dir.join(WEIGHTS), &weights).unwrap();
    let damaged = machine.run(&["models", "check", dir.to_str().unwrap(), "--hash"]);
    assert!(damaged.stderr.contains("model.safetensors is not what was fetched"), "{damaged:?}");
    assert_eq!(machine.json(&to)["fetched_bytes"], weights.len());
    machine.has_all_of_it();
}

#[test]
fn a_directory_that_holds_another_model_is_left_alone() {
    let machine = Machine::new();
    let dir = machine.home.join("other");
    let other = |name: &str, content: &str| {
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(name), content).unwrap();
    };
    let pull = ["pull", REPO, "--to", dir.to_str().unwrap()];
    let refused = ["holds another model", "hint:"];
    other("config.json", "{}");
    machine.refuses(&pull, &refused);
    fs::remove_file(dir.join("config.json")).unwrap();
    other("model-00001-of-00001.safetensors", "");
    machine.refuses(&pull, &refused);
    assert!(machine.hub.seen(WEIGHTS).is_empty());
    fs::remove_file(dir.join("model-00001-of-00001.safetensors")).unwrap();
    // Files that only an earlier revision had are removed with the next one.
    machine.json(&["pull", REPO, "--json", "--to", dir.to_str().unwrap()]);
    let record = dir.join(".jackalope/manifest.json");
    let text = fs::read_to_string(&record).unwrap().replace("tokenizer.json", "former.json");
    fs::write(&record, text).unwrap();
    other("former.json", "{}");
    assert!(machine.run(&pull).status.success());
    assert!(!dir.join("former.json").exists() && dir.join("tokenizer.json").exists());
    let text = fs::read_to_string(&record).unwrap().replace(REPO, "someone/else");
    fs::write(&record, text).unwrap();
    machine.refuses(&pull, &refused);
}

#[test]
fn a_model_that_lacks_bytes_is_named_and_not_served() {
    let machine = Machine::new();
    machine.pull();
    let file = fs::File::options().write(true).open(machine.blob(WEIGHTS)).unwrap();
    file.set_len(1000).unwrap();
    let checked = machine.run(&["models", "check", REPO]);
    assert!(!checked.status.success(), "{checked:?}");
    assert!(checked.stderr.contains("model.safetensors is cut off: 1000 of"), "{checked:?}");
    let served = machine.run(&["serve", "--model", REPO, "--port", "0"]);
    assert!(served.stderr.contains("hint: jackalope pull jack/mini"), "{served:?}");
    let listed = machine.run(&["models", "ls"]);
    assert!(listed.stdout.contains("is cut off"), "{listed:?}");
    // A file of the wrong size is downloaded again.
    machine.pull();
    machine.has_all_of_it();
}

#[test]
fn removing_asks_once_and_says_what_comes_free() {
    let machine = Machine::new();
    let bytes = machine.pull()["bytes"].as_u64().unwrap();
    for answer in ["n\n", "\n", ""] {
        let kept = machine.start(&["models", "rm", REPO], answer, &[]).end();
        assert!(!kept.status.success() && kept.stderr.contains("[y/N]"), "{kept:?}");
    }
    machine.has_all_of_it();
    let gone = machine.start(&["models", "rm", REPO, "--json"], "y\n", &[]).end();
    assert!(gone.status.success(), "{gone:?}");
    let gone: Value = serde_json::from_str(&gone.stdout).unwrap();
    assert!(bytes <= gone["bytes"].as_u64().unwrap(), "{gone}");
    assert!(!machine.repo_dir().exists());

    let outside = machine.home.join("elsewhere");
    let to = ["pull", REPO, "--to", outside.to_str().unwrap()];
    assert!(machine.run(&to).status.success());
    let outside = outside.to_str().unwrap();
    machine.refuses(&["models", "rm", outside], &["outside", "--yes"]);
    machine.refuses(&["models", "rm", machine.home.to_str().unwrap(), "--yes"], &["no model"]);
    assert!(machine.run(&["models", "rm", outside, "--yes"]).status.success());
    assert!(!Path::new(outside).exists());
}

#[test]
fn weights_that_this_version_cannot_load_are_fetched_only_on_request() {
    let machine = Machine::with_config(|config| config["model_type"] = "deepseek_v4".into());
    let causes = ["architecture: `deepseek_v4`", "no weights were fetched", "--unsupported"];
    machine.refuses(&["pull", REPO], &causes);
    assert_eq!(machine.hub.ranges(WEIGHTS), []);
    let pulled = machine.json(&["pull", REPO, "--unsupported", "--json"]);
    assert_eq!((&pulled["files"], &pulled["complete"]), (&6.into(), &true.into()));
    assert_eq!(machine.hub.ranges(WEIGHTS).len(), 1);
    let listed = &machine.json(&["models", "ls", "--json"])["models"][0];
    assert!(listed["unsupported"].as_str().unwrap().contains("deepseek_v4"), "{listed}");
}
