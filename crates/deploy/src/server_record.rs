//! Records of the server of this machine, in files that only its user can read.
//!
//! The records hold no client keys. The keys that `restart` needs are in files beside the records
//! (`serve-keys.json`, `last-start-keys.json`), which no command prints. Commands on this machine
//! use an operator key of the server, which is valid until the server ends.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use jackalope_fleet::home::{Home, HomeError};
use jackalope_fleet::record::Recorded;
use serde_json::{Value, json};

/// Name of the record of the running server.
const RECORD: &str = "serve";

/// File with the keys that the record omits.
const RECORD_KEYS: &str = "serve-keys.json";

/// File of the arguments of the last server that became ready.
const LAST_START: &str = "last-start.json";

/// File with the keys that `last-start.json` omits.
const LAST_START_KEYS: &str = "last-start-keys.json";

/// Flags of `serve` with secret values, without the leading dashes.
pub const SECRET_FLAGS: [&str; 3] = ["api-key", "admin-key", "token"];

/// Everything that determines what a server does: two servers with equal values do the same.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ServerStart {
    /// The arguments of `serve`, without secrets.
    pub words: Vec<String>,
    /// Directory in which the server was started.
    pub cwd: PathBuf,
    /// Variables that set options of `serve`, without secrets.
    pub env: BTreeMap<String, String>,
    secrets: Secrets,
}

/// Variables that hold keys and tokens, from flags or from the environment.
#[derive(Clone, Default, Eq, PartialEq)]
struct Secrets(BTreeMap<String, String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A recorded server of this machine, which may have ended.
#[derive(Clone, Debug)]
pub struct ServeRecord {
    /// Process of the server.
    pub process: Recorded,
    secrets: Secrets,
    /// Key with which commands on this machine access the server, if it requires keys.
    operator_key: Option<String>,
}

/// Properties of a running server, from which its record is written.
#[derive(Clone, Copy, Debug)]
pub struct ServeDescription<'a> {
    /// How the server was started.
    pub start: &'a ServerStart,
    /// URL at which the server listens.
    pub url: &'a str,
    /// Name of the server's default model.
    pub model: &'a str,
    /// The server's machines as they were given: a hostfile or names.
    pub hosts: Option<&'a str>,
    /// Port of the machines' agents.
    pub agent_port: u16,
    /// Command that was given to run as ssh.
    pub ssh: Option<&'a str>,
    /// Key of the server's operator; see [`jackalope_server::ApiKeys::with_operator`].
    pub operator_key: &'a str,
}

impl ServerStart {
    /// Returns the values of this process, which was started with the arguments `words` of `serve`
    /// and the variables `env`.
    pub fn here(words: &[String], env: &BTreeMap<String, String>) -> ServerStart {
        ServerStart::new(words, std::env::current_dir().unwrap_or_default(), env)
    }

    fn new(words: &[String], cwd: PathBuf, env: &BTreeMap<String, String>) -> ServerStart {
        let mut start = ServerStart { cwd, ..ServerStart::default() };
        start.set(env);
        // Flags override variables; a flag that takes several keys may be given several times.
        let mut typed: BTreeMap<String, String> = BTreeMap::new();
        let mut rest = words.iter().peekable();
        while let Some(word) = rest.next() {
            let (flag, value) = match (secret_flag(word), word.split_once('=')) {
                (Some(flag), Some((_, value))) => (flag, Some(value)),
                (Some(flag), None) => (flag, rest.peek().map(|it| it.as_str())),
                (None, _) => ("", None),
            };
            // `serve` refuses an empty key, whereas an empty variable means no key: keep the flag.
            match value.filter(|it| !it.trim().is_empty()) {
                Some(value) => {
                    let keys = typed.entry(variable_of(flag)).or_default();
                    keys.push_str(if keys.is_empty() { "" } else { "," });
                    keys.push_str(value);
                    if !word.contains('=') {
                        rest.next();
                    }
                }
                None => start.words.push(word.clone()),
            }
        }
        start.secrets.0.extend(typed);
        start
    }

    /// Adds the variables `env`; those with keys or tokens are stored apart from the rest.
    pub fn set(&mut self, env: &BTreeMap<String, String>) {
        let is_secret = |name: &str| SECRET_FLAGS.iter().any(|it| variable_of(it) == name);
        let (secrets, env): (BTreeMap<_, _>, BTreeMap<_, _>) =
            env.clone().into_iter().partition(|(name, _)| is_secret(name));
        self.secrets.0.extend(secrets);
        self.env.extend(env);
    }

    /// Returns the environment of a process that is started like this, including secrets.
    pub fn environment(&self) -> impl Iterator<Item = (String, String)> {
        let all = self.env.iter().chain(&self.secrets.0);
        all.map(|(name, value)| (name.clone(), value.clone()))
    }

    /// Returns the command for people: with the names of the variables that hold secrets, not their
    /// values.
    pub fn public_command(&self) -> String {
        let secrets = self.secrets.0.keys().map(|name| format!("{name}=*** "));
        format!("{}jackalope serve {}", secrets.collect::<String>(), self.words.join(" "))
    }

    fn to_json(&self) -> Value {
        json!({"words": self.words, "cwd": self.cwd.to_string_lossy(), "env": self.env})
    }

    fn from_json(value: &Value, secrets: Secrets) -> Option<ServerStart> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let words = value["words"].as_array()?.iter().map(text).collect::<Option<Vec<String>>>()?;
        // Earlier versions stored secrets among the arguments and variables.
        let mut start =
            ServerStart::new(&words, text(&value["cwd"])?.into(), &texts(&value["env"])?);
        start.secrets.0.extend(secrets.0);
        Some(start)
    }

    /// Returns how the last server that became ready was started.
    pub fn last(home: &Home) -> Option<ServerStart> {
        let value = read_json(home, LAST_START)?;
        let secrets = read_json(home, LAST_START_KEYS).and_then(|it| texts(&it));
        ServerStart::from_json(&value, Secrets(secrets.unwrap_or_default()))
    }

    /// Stores the values for [`ServerStart::last`].
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn remember(&self, home: &Home) -> Result<(), HomeError> {
        if self.secrets.0.is_empty() {
            // An error means that there is no such file.
            std::fs::remove_file(home.join(LAST_START_KEYS)).ok();
        } else {
            home.write(LAST_START_KEYS, json!(self.secrets.0).to_string().as_bytes())?;
        }
        home.write(LAST_START, self.to_json().to_string().as_bytes())
    }
}

fn read_json(home: &Home, name: &str) -> Option<Value> {
    serde_json::from_str(&std::fs::read_to_string(home.join(name)).ok()?).ok()
}

/// Parses an object whose values are all strings.
fn texts(value: &Value) -> Option<BTreeMap<String, String>> {
    let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
    value.as_object()?.iter().map(text).collect()
}

impl ServeRecord {
    /// Records this process and returns the record; `None` if another server of this machine is
    /// running.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn write(
        home: &Home,
        serving: ServeDescription<'_>,
    ) -> Result<Option<ServeRecord>, HomeError> {
        let ServeDescription { start, url, model, hosts, agent_port, ssh, operator_key } = serving;
        if ServeRecord::running(home).is_some() {
            return Ok(None);
        }
        // The reader may be in another directory.
        let named = hosts.map(|named| match std::fs::canonicalize(named) {
            Ok(path) if path.is_file() => path.to_string_lossy().into_owned(),
            _ => named.to_owned(),
        });
        let process = Recorded::this(json!({
            "url": url,
            "model": model,
            "hosts": named,
            "agent_port": agent_port,
            "ssh": ssh,
            "start": start.to_json(),
        }));
        let keys = json!({"operator_key": operator_key, "start": start.secrets.0});
        home.write(RECORD_KEYS, keys.to_string().as_bytes())?;
        process.write(home, RECORD)?;
        let secrets = start.secrets.clone();
        Ok(Some(ServeRecord { process, secrets, operator_key: Some(operator_key.to_owned()) }))
    }

    /// Removes the record, unless another server has replaced it.
    pub fn forget(&self, home: &Home) {
        if Recorded::read(home, RECORD).as_ref() == Some(&self.process) {
            // If the file stays, its keys are useless: their server is gone.
            std::fs::remove_file(home.join(RECORD_KEYS)).ok();
        }
        self.process.forget(home, RECORD);
    }

    /// Returns the recorded server, whether it runs or not.
    pub fn read(home: &Home) -> Option<ServeRecord> {
        let process = Recorded::read(home, RECORD)?;
        let keys = read_json(home, RECORD_KEYS).unwrap_or_default();
        let secrets = Secrets(texts(&keys["start"]).unwrap_or_default());
        // Earlier versions recorded a client key.
        let key = keys["operator_key"].as_str().or(process.about["api_key"].as_str());
        let operator_key = key.map(str::to_owned);
        Some(ServeRecord { process, secrets, operator_key })
    }

    /// Returns the server that runs on this machine.
    pub fn running(home: &Home) -> Option<ServeRecord> {
        ServeRecord::read(home).filter(|it| it.process.runs())
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.process.about[key].as_str()
    }

    /// Returns the URL at which the server listens.
    pub fn url(&self) -> &str {
        self.text("url").unwrap_or_default()
    }

    /// Returns the name of the server's default model.
    pub fn model(&self) -> &str {
        self.text("model").unwrap_or("a model")
    }

    /// Returns the server's machines as they were given: a hostfile or names.
    pub fn hosts(&self) -> Option<&str> {
        self.text("hosts")
    }

    /// Returns the command that was given to run as ssh.
    pub fn ssh(&self) -> Option<&str> {
        self.text("ssh")
    }

    /// Returns the port of the agents on the server's machines.
    pub fn agent_port(&self) -> u16 {
        let port = self.process.about["agent_port"].as_u64();
        port.and_then(|it| it.try_into().ok()).unwrap_or(jackalope_fleet::agent::AGENT_PORT)
    }

    /// Returns how the server was started, if the record has that.
    pub fn start(&self) -> Option<ServerStart> {
        ServerStart::from_json(&self.process.about["start"], self.secrets.clone())
    }

    /// Returns the URL at which programs of this machine reach the server.
    pub fn local_url(&self) -> String {
        self.url().replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    }

    /// Returns the key with which commands on this machine access the server, if it requires keys.
    pub fn operator_key(&self) -> Option<&str> {
        self.operator_key.as_deref()
    }
}

/// Returns the secret flag that a word (`--flag` or `--flag=VALUE`) sets, without dashes.
pub fn secret_flag(word: &str) -> Option<&'static str> {
    let name = word.strip_prefix("--")?;
    let name = name.split_once('=').map_or(name, |it| it.0);
    SECRET_FLAGS.into_iter().find(|flag| *flag == name)
}

/// Returns the environment variable that corresponds to a flag of `serve`.
pub fn variable_of(flag: &str) -> String {
    format!("JACKALOPE_{}", flag.replace('-', "_").to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(words: &[&str], env: &[(&str, &str)]) -> ServerStart {
        let words: Vec<String> = words.iter().map(|it| (*it).to_owned()).collect();
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        ServerStart::new(&words, "/some where".into(), &env.collect())
    }

    #[test]
    fn secrets_are_recognised_by_their_flags() {
        for (word, flag) in [
            ("--api-key", Some("api-key")),
            ("--admin-key=x", Some("admin-key")),
            ("--token=a=b", Some("token")),
            ("--api-key-file", None),
            ("--api-keys=x", None),
            ("api-key", None),
        ] {
            assert_eq!(secret_flag(word), flag, "{word}");
        }
        assert_eq!(variable_of("admin-key"), "JACKALOPE_ADMIN_KEY");
    }

    #[test]
    fn keys_are_kept_apart_from_what_people_and_records_see() {
        let start = started(
            &["--model", "m", "--api-key", "one", "--admin-key=two", "--port", "1", "--api-key=3"],
            &[("JACKALOPE_API_KEY", "replaced"), ("MODEL_DIR", "x=y")],
        );
        assert_eq!(start.words, ["--model", "m", "--port", "1"]);
        assert_eq!(
            start.public_command(),
            "JACKALOPE_ADMIN_KEY=*** JACKALOPE_API_KEY=*** jackalope serve --model m --port 1"
        );
        assert_eq!(start.to_json()["env"], json!({"MODEL_DIR": "x=y"}));
        let env: BTreeMap<String, String> = start.environment().collect();
        assert_eq!((&*env["JACKALOPE_API_KEY"], &*env["JACKALOPE_ADMIN_KEY"]), ("one,3", "two"));
        assert!(!format!("{start:?}").contains("two"), "{start:?}");
        // `serve` rejects these, so they are not dropped.
        assert_eq!(started(&["--api-key", " "], &[]).words, ["--api-key", " "]);
        assert_eq!(started(&["--api-key"], &[]).words, ["--api-key"]);
    }

    #[test]
    fn a_start_is_remembered_as_it_was() {
        let dir = std::env::temp_dir().join(format!("jackalope-start-{}", std::process::id()));
        let home = Home::new(&dir);
        assert_eq!(ServerStart::last(&home), None);
        let start = started(&["--model", "a b", "--api-key", "s\"ecret"], &[("MODEL_DIR", "x=y")]);
        start.remember(&home).unwrap();
        assert_eq!(ServerStart::last(&home), Some(start));
        let without = started(&["--model", "a b"], &[]);
        without.remember(&home).unwrap();
        assert_eq!(ServerStart::last(&home), Some(without), "no key stays behind");
        home.write(LAST_START, b"{}").unwrap();
        assert_eq!(ServerStart::last(&home), None);
        // The format of earlier versions.
        let earlier = json!({"words": ["--api-key", "old"], "cwd": "/", "env": {}});
        home.write(LAST_START, earlier.to_string().as_bytes()).unwrap();
        let start = ServerStart::last(&home).unwrap();
        assert!(start.words.is_empty());
        assert!(start.environment().any(|it| it == ("JACKALOPE_API_KEY".into(), "old".into())));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
