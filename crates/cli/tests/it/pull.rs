//! Pulling a model: complete and verified or not at all, and resumed after an interruption.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::checkpoint::{Copy, Tensor, shipped};
use crate::hub::{COMMIT, Fault, HEADER, Hub, REPO, blob_of};
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
        Machine::with_model(|copy| copy.edit_config(edit))
    }

    /// Creates a machine and a hub whose model differs from the shipped one.
    fn with_model(edit: impl FnOnce(&Copy)) -> Machine {
        let copy = Copy::new();
        edit(&copy);
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
    let interrupted_at = Instant::now();
    program.signal(Signal::INT);
    let ended = program.end();
    let seconds = interrupted_at.elapsed().as_secs_f32();
    assert!(seconds < 10.0, "it waited for the silent hub: {seconds} s");
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
    let machine = Machine::with_config(|config| config["model_type"] = "hy_v4".into());
    let causes = ["architecture: `hy_v4`", "no weights were fetched", "--unsupported"];
    machine.refuses(&["pull", REPO], &causes);
    assert_eq!(machine.hub.ranges(WEIGHTS), []);
    let pulled = machine.json(&["pull", REPO, "--unsupported", "--json"]);
    assert_eq!((&pulled["files"], &pulled["complete"]), (&6.into(), &true.into()));
    assert_eq!(machine.hub.ranges(WEIGHTS).len(), 1);
    let listed = &machine.json(&["models", "ls", "--json"])["models"][0];
    assert!(listed["unsupported"].as_str().unwrap().contains("hy_v4"), "{listed}");
}

/// A checkpoint that bitsandbytes has quantised.
#[test]
fn other_quantisations_are_refused_by_every_command_with_what_to_take_instead() {
    let stated = serde_json::json!({"quant_method": "bitsandbytes", "load_in_4bit": true});
    let machine = Machine::with_config(|config| {
        config.as_object_mut().unwrap().remove("quantization");
        config["quantization_config"] = stated;
    });
    let cause = "unsupported quantisation: `bitsandbytes`";
    let causes = [cause, "no weights were fetched", "conversion of mlx-community"];
    machine.refuses(&["pull", REPO], &causes);
    assert_eq!(machine.hub.ranges(WEIGHTS), []);
    machine.json(&["pull", REPO, "--unsupported", "--json"]);
    let hint = "hint: use a conversion of this model by mlx-community";
    for command in [
        &["models", "check", REPO][..],
        &["plan", "--model", REPO],
        &["serve", "--model", REPO, "--port", "0"],
    ] {
        let ended = machine.run(command);
        let is_refused = !ended.status.success() && ended.stderr.contains(cause);
        assert!(is_refused && ended.stderr.contains(hint), "{command:?}: {ended:?}");
    }
}

const INDEX: &str = "model.safetensors.index.json";

/// A tensor of the shipped model's last layer.
const TENSOR: &str = "model.layers.3.post_attention_layernorm.weight";

#[test]
fn weights_that_are_not_those_of_the_configuration_are_refused_before_they_come() {
    let missing = Machine::with_model(|copy| {
        copy.edit_weights(|weights| weights.tensors.retain(|it| it.name != TENSOR));
    });
    missing.refuses(&["pull", REPO], &[TENSOR, "is missing", "no weights were fetched", "hint:"]);
    let reshaped = Machine::with_model(|copy| {
        copy.edit_weights(|weights| weights.tensor(TENSOR).shape.insert(0, 2));
        copy.edit_weights(|weights| {
            let tensor = weights.tensor(TENSOR);
            tensor.data.extend(tensor.data.clone());
        });
    });
    reshaped.refuses(&["pull", REPO], &[TENSOR, "has shape [2, 256], expected [256]", "hint:"]);
    let unknown = Machine::with_model(|copy| {
        copy.edit_weights(|weights| {
            let packed =
                |idx| Tensor { name: format!("qzeros.{idx}"), ..weights.tensors[0].clone() };
            let packed: Vec<Tensor> = (0..20).map(packed).collect();
            weights.tensors.extend(packed);
        });
    });
    unknown.refuses(&["pull", REPO], &["20 tensors that `", "qzeros.0", "and 12 more", "hint:"]);
    let quantised = Machine::with_model(|copy| {
        copy.edit_weights(|weights| {
            let codes = weights.tensors.iter_mut().find(|it| it.dtype == "U32").unwrap();
            // From 4 bits to 7.
            let words = codes.shape.last_mut().unwrap();
            *words = *words * 7 / 4;
            codes.data.resize(codes.data.len() * 7 / 4, 0);
        });
    });
    quantised.refuses(&["pull", REPO], &["is quantised as", "expected affine", "hint:"]);
    for machine in [missing, reshaped, unknown, quantised] {
        assert_eq!(machine.hub.ranges(WEIGHTS), []);
        let ended = machine.run(&["pull", REPO, "--unsupported"]);
        assert!(ended.stderr.contains("all files were downloaded, but"), "{ended:?}");
        assert_eq!(machine.hub.ranges(WEIGHTS).len(), 1);
    }
}

#[test]
fn the_index_of_several_weight_files_is_compared_with_the_configuration() {
    let second = "model-00002-of-00002.safetensors";
    let split = |copy: &Copy| copy.split_weights(second, |name| name.contains(".layers.3."));
    let machine = Machine::with_model(split);
    assert_eq!(machine.pull()["files"], 7);
    assert!(machine.hub.seen(HEADER).is_empty());

    // Names of tensors and files that do not exist.
    let map = |copy: &Copy| -> Value {
        let index = fs::read(copy.path().join(INDEX)).unwrap();
        serde_json::from_slice::<Value>(&index).unwrap()["weight_map"].clone()
    };
    let edited = |edit: fn(&mut Value)| {
        Machine::with_model(|copy| {
            split(copy);
            let mut map = map(copy);
            edit(&mut map);
            copy.write_index(&map);
        })
    };
    let absent = edited(|map| map[TENSOR] = "model-00003-of-00003.safetensors".into());
    absent.refuses(&["pull", REPO], &["model-00003-of-00003.safetensors is missing", "hint:"]);
    let elsewhere = edited(|map| map[TENSOR] = "../../config.json".into());
    elsewhere.refuses(&["pull", REPO], &[INDEX, "is said to lie in", "hint:"]);
    let incomplete = edited(|map| {
        map.as_object_mut().unwrap().remove(TENSOR);
    });
    incomplete.refuses(&["pull", REPO], &[TENSOR, "is missing", "hint:"]);
    let empty = Machine::with_model(|copy| fs::write(copy.path().join(INDEX), "[]").unwrap());
    empty.refuses(&["pull", REPO], &[INDEX, "it is not a JSON object", "hint:"]);
    for machine in [absent, elsewhere, incomplete, empty] {
        assert_eq!(machine.hub.ranges(WEIGHTS), []);
        assert!(machine.hub.seen(second).is_empty());
    }

    // Nothing but the files show that a tensor is not where the index says; a single file is asked.
    let moved = edited(|map| map[TENSOR] = WEIGHTS.into());
    let ended = moved.run(&["pull", REPO]);
    assert!(ended.stderr.contains(&format!("does not hold {TENSOR}")), "{ended:?}");
    let lying = Machine::with_model(|copy| {
        let mut map = map(copy);
        map["model.layers.3.extra.weight"] = WEIGHTS.into();
        copy.write_index(&map);
    });
    lying.refuses(&["pull", REPO], &["does not hold model.layers.3.extra.weight", "hint:"]);
    assert_eq!(lying.hub.ranges(WEIGHTS), []);
}

#[test]
fn headers_are_read_from_any_server_and_within_their_limit() {
    let fetched = |machine: &Machine| {
        machine.pull();
        machine.has_all_of_it();
        assert_eq!(machine.hub.ranges(WEIGHTS).len(), 1);
        machine.hub.seen(HEADER).len()
    };
    let machine = Machine::new();
    assert_eq!(fetched(&machine), 1);
    assert_eq!(machine.hub.ranges(HEADER)[0].as_deref(), Some("bytes=0-262143"));
    // The whole file is announced, but no more of it than the header is waited for.
    let machine = Machine::new();
    machine.hub.fail(HEADER, Fault::IgnoreRange, 1);
    assert_eq!(fetched(&machine), 1);
    let machine = Machine::new();
    machine.hub.fail(HEADER, Fault::Cut(1000), 1);
    machine.hub.fail(HEADER, Fault::Status(503, ""), 1);
    assert_eq!(fetched(&machine), 3);

    let long = Machine::with_model(|copy| {
        let mut weights = fs::read(copy.weights_path()).unwrap();
        weights[..8].copy_from_slice(&100_000_001_u64.to_le_bytes());
        fs::write(copy.weights_path(), weights).unwrap();
    });
    long.refuses(&["pull", REPO], &[WEIGHTS, "at most 100000000 bytes", "hint:"]);
    let beyond = Machine::with_model(|copy| {
        let mut weights = fs::read(copy.weights_path()).unwrap();
        weights[..8].copy_from_slice(&50_000_000_u64.to_le_bytes());
        fs::write(copy.weights_path(), weights).unwrap();
    });
    beyond.refuses(&["pull", REPO], &[WEIGHTS, "is cut off", "of 50000008 bytes", "hint:"]);
    let malformed = Machine::with_model(|copy| {
        let mut weights = fs::read(copy.weights_path()).unwrap();
        weights[8] = b'[';
        fs::write(copy.weights_path(), weights).unwrap();
    });
    malformed.refuses(&["pull", REPO], &[WEIGHTS, "its header:", "hint:"]);
    let overflowing = Machine::with_model(|copy| {
        copy.edit_weights(|weights| weights.tensor(TENSOR).shape = vec![u64::MAX, 0, 2]);
    });
    overflowing.refuses(&["pull", REPO], &[TENSOR, "impossible dimensions", "hint:"]);
    for machine in [long, beyond, malformed, overflowing] {
        assert_eq!(machine.hub.ranges(WEIGHTS), []);
        assert_eq!(machine.hub.seen(HEADER).len(), 1);
    }
    // Padding, which the format allows, makes the header longer than what is requested at first.
    let padded = Machine::with_model(|copy| {
        let weights = fs::read(copy.weights_path()).unwrap();
        let len = u64::from_le_bytes(weights[..8].try_into().unwrap());
        let (header, data) = weights[8..].split_at(len as usize);
        let padding = vec![b' '; 300_000];
        let len = (len + 300_000).to_le_bytes();
        fs::write(copy.weights_path(), [&len, header, &padding, data].concat()).unwrap();
    });
    padded.pull();
    assert_eq!(padded.hub.seen(HEADER).len(), 2);
}

#[test]
fn weight_files_that_only_draft_are_not_fetched() {
    let drafter = "model-mtp.safetensors";
    for is_in_index in [true, false] {
        let machine = Machine::with_model(|copy| {
            copy.edit_config(|config| {
                *config = json!({"model_type": "qwen3_vl", "text_config": config.clone()});
            });
            copy.edit_weights(|weights| {
                let drafting = Tensor {
                    name: "mtp.norm.weight".to_owned(),
                    ..weights.tensor("model.norm.weight").clone()
                };
                weights.tensors.push(drafting);
            });
            copy.split_weights(drafter, |name| name.starts_with("mtp."));
            if !is_in_index {
                fs::remove_file(copy.path().join(INDEX)).unwrap();
            }
        });
        let pulled = machine.pull();
        assert_eq!(
            (&pulled["complete"], &pulled["problems"]),
            (&true.into(), &Value::Array(vec![]))
        );
        assert!(machine.hub.seen(drafter).is_empty(), "{is_in_index}");
        assert!(!Path::new(pulled["path"].as_str().unwrap()).join(drafter).exists());
        // `--unsupported` fetches the MTP layers too.
        machine.run(&["pull", REPO, "--unsupported"]);
        assert_eq!(machine.hub.seen(drafter).len(), 1);
    }
}
