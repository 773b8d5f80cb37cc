//! Clients download and remove models while a server runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::Agent;

use crate::checkpoint::shipped;
use crate::http::Server;
use crate::hub::{Fault, HEADER, Hub, REPO, blob_of};
use crate::program::{Program, wait_for};

const WEIGHTS: &str = "model.safetensors";

/// Seconds within which a cancelled download ends; a silent hub is waited for sixty.
const CANCEL_SECONDS_MAX: f32 = 10.0;

/// A machine with one model in its folder of models, and a hub with another one.
struct Machine {
    home: PathBuf,
    hub: Hub,
}

impl Machine {
    fn new(name: &str) -> Machine {
        let name = format!("registry-{name}-{}", std::process::id());
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let base = home.join("models/base");
        fs::create_dir_all(&base).unwrap();
        for entry in fs::read_dir(shipped()).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, base.join(path.file_name().unwrap())).unwrap();
        }
        Machine { home: fs::canonicalize(home).unwrap(), hub: Hub::start() }
    }

    fn models(&self) -> PathBuf {
        self.home.join("models")
    }

    /// Returns a file of the model that is being fetched, as it is called beside the folder's own.
    fn fetched(&self, name: &str, end: &str) -> PathBuf {
        self.models().join(REPO).join(".jackalope").join(format!("{name}.{end}"))
    }

    /// Returns the number of bytes of a file that have arrived.
    fn arrived(&self, name: &str) -> u64 {
        let path = self.fetched(name, &format!("{}.incomplete", blob_of(name)));
        fs::metadata(path).map_or(0, |it| it.len())
    }

    /// Returns whether no pull holds a file.
    fn is_free(&self, name: &str) -> bool {
        let lock = fs::File::options().write(true).open(self.fetched(name, "lock"));
        lock.is_ok_and(|it| it.try_lock().is_ok())
    }

    /// Starts a server with `args`, in which `DIR` stands for the folder of models.
    fn serve(&self, args: &str) -> Server {
        let args = args.replace("DIR", self.models().to_str().unwrap());
        let all = format!("serve --port 0 --json --ranks 2 --kv-mib 16 {args}");
        let words: Vec<&str> = all.split_whitespace().collect();
        // The user who runs the tests may have models, tokens and proxies.
        let clean = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "MODEL_CACHE_DIR"];
        let clean = clean.iter().chain(&["TRANSFORMERS_CACHE", "XDG_CACHE_HOME", "MODELS_DIR"]);
        let clean = clean.chain(&["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"]);
        let mut env: Vec<(&str, &str)> = clean.map(|name| (*name, "")).collect();
        env.extend([("TRANSFORMERS_OFFLINE", ""), ("HOME", self.home.to_str().unwrap())]);
        env.extend([("NO_PROXY", "*"), ("HF_ENDPOINT", self.hub.url.as_str())]);
        Server::of(Program::start_with(&words, "", &env))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.home).ok();
    }
}

fn agent(timeout: Duration) -> Agent {
    let config = Agent::config_builder().http_status_as_error(false);
    config.timeout_global(Some(timeout)).build().new_agent()
}

/// Returns the lines of a pull, or `None` if it takes longer than the timeout.
fn pull_within(server: &Server, name: &str, timeout: Duration) -> Option<Vec<Value>> {
    let request = agent(timeout).post(format!("{}/api/pull", server.url));
    let request = request.header("content-type", "application/json");
    let mut response = request.send(json!({"model": name}).to_string()).ok()?;
    let text = response.body_mut().read_to_string().ok()?;
    Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn pull(server: &Server, name: &str) -> Vec<Value> {
    pull_within(server, name, Duration::from_secs(120)).unwrap()
}

fn delete(server: &Server, name: &str) -> (u16, String) {
    let request = agent(Duration::from_secs(60)).delete(format!("{}/api/delete", server.url));
    let request = request.header("content-type", "application/json").force_send_body();
    let mut response = request.send(json!({"model": name}).to_string()).unwrap();
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
}

fn served(server: &Server) -> Vec<String> {
    let models = server.get("/v1/models").1;
    let models = models["data"].as_array().unwrap();
    models.iter().map(|it| it["id"].as_str().unwrap().to_owned()).collect()
}

fn request(model: &str) -> Value {
    json!({
        "model": model, "prompt": [20, 300, 41], "max_tokens": 12, "ignore_eos": true,
        "temperature": 0, "return_token_ids": true,
    })
}

#[test]
fn a_model_is_fetched_served_and_removed_while_the_server_runs() {
    let machine = Machine::new("folder");
    let server = machine.serve("--models-dir DIR");
    let expected = server.complete(&request("base"));
    let lines = pull(&server, REPO);
    assert_eq!(lines.first(), Some(&json!({"status": "pulling manifest"})), "{lines:?}");
    assert_eq!(lines.last(), Some(&json!({"status": "success"})), "{lines:?}");
    let whole =
        lines.iter().filter(|it| it["digest"].is_string() && it["completed"] == it["total"]);
    assert_eq!(whole.count(), 6, "every file comes to its end: {lines:?}");
    assert!(machine.models().join(REPO).join(WEIGHTS).is_file());
    assert_eq!(served(&server), ["base", REPO]);
    // The model is the same checkpoint, which the request loads.
    assert_eq!(server.complete(&request(REPO)), expected);
    let num_seen = machine.hub.seen("").len();
    assert_eq!(pull(&server, REPO), [json!({"status": "success"})]);
    assert_eq!(machine.hub.seen("").len(), num_seen, "what is there is not asked for again");

    for (name, why) in [("base", "loaded"), (REPO, "loaded")] {
        let (status, told) = delete(&server, name);
        assert!(status == 400 && told.contains(why), "{name}: {status} {told}");
    }
    server.ask("/model/unload", &json!({"model": REPO}));
    server.ask("/model/unload", &json!({"model": "base"}));
    let (status, told) = delete(&server, "base");
    assert!(status == 400 && told.contains("default"), "{status} {told}");
    assert_eq!(delete(&server, REPO), (200, String::new()));
    assert!(!machine.models().join(REPO).exists());
    assert_eq!(served(&server), ["base"]);
    assert_eq!(server.post("/v1/completions", &request(REPO)).0, 404);
    assert_eq!(delete(&server, REPO).0, 404);
    assert_eq!(pull(&server, REPO).last(), Some(&json!({"status": "success"})));
    assert_eq!(server.complete(&request(REPO)), expected);
}

#[test]
fn names_are_never_paths_and_a_pull_ends_with_its_client() {
    let machine = Machine::new("names");
    let server = machine.serve("--models-dir DIR");
    for name in ["../x", "/etc/passwd", "a/b/c", "..", "a/..", "~/x", "jack/mini@../../x"] {
        let lines = pull(&server, name);
        assert!(lines.last().unwrap()["error"].is_string(), "{name}: {lines:?}");
    }
    assert!(machine.hub.seen("").is_empty(), "the hub was not even asked");
    let lines = pull(&server, "jack/none");
    assert!(lines.last().unwrap()["error"].as_str().unwrap().contains("jack/none"), "{lines:?}");

    machine.hub.fail(WEIGHTS, Fault::Stall(1000), 1);
    // Where programs are slow, a client may leave before the weights begin.
    wait_for("a client that leaves in the middle of the weights", || {
        pull_within(&server, REPO, Duration::from_secs(2));
        (machine.arrived(WEIGHTS) == 1000).then_some(())
    });
    let left_at = Instant::now();
    wait_for("end of the pull", || machine.is_free(WEIGHTS).then_some(()));
    let seconds = left_at.elapsed().as_secs_f32();
    assert!(seconds < CANCEL_SECONDS_MAX, "it waited for the hub: {seconds} s");
    // The next pull continues.
    wait_for("the given up pull to end", || {
        let lines = pull(&server, REPO);
        (lines.last() == Some(&json!({"status": "success"}))).then_some(())
    });
    let ranges = machine.hub.ranges(WEIGHTS);
    assert!(ranges.contains(&Some("bytes=1000-".to_owned())), "{ranges:?}");
}

#[test]
fn a_cancelled_download_ends_at_once_while_the_hub_is_silent_and_is_resumed() {
    let machine = Machine::new("silent");
    let server = machine.serve("--models-dir DIR");
    let state = || server.get("/v1/pulls").1["pulls"][0]["state"].clone();
    let began = || server.ask("/v1/pulls", &json!({"model": REPO}))["id"].clone();
    let cancel = |id: &Value| {
        let path = format!("{}/v1/pulls/{}", server.url, id.as_str().unwrap());
        let reply = agent(Duration::from_secs(60)).delete(path).call().unwrap();
        assert_eq!((reply.status().as_u16(), state()), (200, json!("cancelled")));
    };
    // The hub says nothing after a request for the header, which no file is locked for.
    machine.hub.fail(HEADER, Fault::Stall(0), 1);
    let id = began();
    wait_for("request for the header", || (!machine.hub.seen(HEADER).is_empty()).then_some(()));
    cancel(&id);

    machine.hub.fail(WEIGHTS, Fault::Stall(600_000), 1);
    let id = began();
    wait_for("part of the file", || (machine.arrived(WEIGHTS) == 600_000).then_some(()));
    assert!(!machine.is_free(WEIGHTS), "the download holds its file");
    let cancelled_at = Instant::now();
    cancel(&id);
    wait_for("end of the download", || machine.is_free(WEIGHTS).then_some(()));
    let seconds = cancelled_at.elapsed().as_secs_f32();
    assert!(seconds < CANCEL_SECONDS_MAX, "it waited for the hub: {seconds} s");
    assert_eq!(machine.arrived(WEIGHTS), 600_000, "what has arrived is kept");
    // A record of the model would be written now.
    std::thread::sleep(Duration::from_millis(300));
    assert!(!machine.models().join(REPO).join(".jackalope/manifest.json").exists());
    assert_eq!(served(&server), ["base"]);

    let id = began();
    wait_for("end of the resumed download", || (state() == "done").then_some(()));
    assert_eq!(server.get("/v1/pulls").1["pulls"][0]["id"], id);
    let ranges = machine.hub.ranges(WEIGHTS);
    assert_eq!(ranges, [None, Some("bytes=600000-".to_owned())]);
    assert_eq!(server.complete(&request(REPO)), server.complete(&request("base")));
}

#[test]
fn without_a_folder_of_models_a_pull_says_how_to_serve_it() {
    let machine = Machine::new("cache");
    let server = machine.serve("--model DIR/base");
    let lines = pull(&server, REPO);
    let told: Vec<&str> = lines.iter().filter_map(|it| it["status"].as_str()).collect();
    assert!(
        told.iter().any(|it| it.contains(&format!("jackalope serve --model {REPO}"))),
        "{told:?}"
    );
    assert_eq!(told.last(), Some(&"success"));
    assert!(machine.home.join(".cache/huggingface/hub/models--jack--mini/refs/main").is_file());
    assert_eq!(served(&server), ["base"]);
    let (status, told) = delete(&server, "base");
    assert!(status == 400 && told.contains("jackalope models rm base"), "{status} {told}");
}

#[test]
fn whoever_can_reach_a_server_without_keys_fetches_nothing() {
    let machine = Machine::new("open");
    let server = machine.serve("--models-dir DIR --host 0.0.0.0 --insecure");
    let (status, told) = server.post("/api/pull", &json!({"model": REPO}));
    assert!(status == 400 && told["error"].as_str().unwrap().contains("jackalope pull"), "{told}");
    assert!(machine.hub.seen("").is_empty());
}
