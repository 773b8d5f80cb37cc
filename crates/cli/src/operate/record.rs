//! What is written down about the server of this machine, in files that only its user reads.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jackalope_cluster::home::{Home, HomeError};
use jackalope_cluster::record::Recorded;
use serde_json::{Value, json};

use super::Server;
use crate::args::ServeArgs;
use crate::config::Resolved;
use crate::environment::Environment;

/// The record of the server that runs.
const RECORD: &str = "serve";

/// How the last server that became ready was started.
const LAST_START: &str = "last-start.json";

/// Everything that decides what a server does: two that agree in it do the same.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Start {
    /// The arguments of `serve`.
    pub(crate) words: Vec<String>,
    /// Where it was started.
    pub(crate) cwd: PathBuf,
    /// Variables that are settings of `serve`.
    pub(crate) env: BTreeMap<String, String>,
}

/// A server that is, or was, this machine's.
#[derive(Clone, Debug)]
pub(crate) struct ServeRecord {
    pub(crate) process: Recorded,
}

impl Start {
    /// Of this process.
    pub(crate) fn of(resolved: &Resolved, environment: &Environment) -> Start {
        Start {
            words: resolved.typed.clone(),
            cwd: std::env::current_dir().unwrap_or_default(),
            env: environment.settings().clone(),
        }
    }

    /// Its words without keys, for people.
    pub(super) fn public_words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut is_secret = false;
        for word in &self.words {
            let flag = word.split_once('=').map_or(word.as_str(), |it| it.0);
            let is_key = flag.starts_with("--") && flag.ends_with("-key");
            words.push(match (is_secret, is_key && word.contains('=')) {
                (true, _) => "***".to_owned(),
                (_, true) => format!("{flag}=***"),
                _ => word.clone(),
            });
            is_secret = is_key && !word.contains('=') && flag != "--tls-key";
        }
        words
    }

    fn to_json(&self) -> Value {
        json!({"words": self.words, "cwd": self.cwd.to_string_lossy(), "env": self.env})
    }

    fn from_json(value: &Value) -> Option<Start> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let words = value["words"].as_array()?.iter().map(text).collect::<Option<_>>()?;
        let env = value["env"].as_object()?.iter();
        let env =
            env.map(|(name, value)| Some((name.clone(), text(value)?))).collect::<Option<_>>();
        Some(Start { words, cwd: text(&value["cwd"])?.into(), env: env? })
    }

    /// How the last server was started that became ready.
    pub(crate) fn last(home: &Home) -> Option<Start> {
        let text = std::fs::read_to_string(home.join(LAST_START)).ok()?;
        Start::from_json(&serde_json::from_str(&text).ok()?)
    }

    /// To be found by [`Start::last`].
    pub(crate) fn remember(&self, home: &Home) -> Result<(), HomeError> {
        home.write(LAST_START, self.to_json().to_string().as_bytes())
    }
}

impl ServeRecord {
    /// Writes this process down, unless another server of this machine is.
    pub(crate) fn write(
        home: &Home,
        (args, start): (&ServeArgs, &Start),
        (url, model): (&str, &str),
    ) -> Result<Option<ServeRecord>, HomeError> {
        if ServeRecord::running(home).is_some() {
            return Ok(None);
        }
        let hosts = &args.ranks.hosts;
        // Whoever reads this may be in another folder.
        let named = hosts.hosts.as_ref().map(|named| match std::fs::canonicalize(named) {
            Ok(path) if path.is_file() => path.to_string_lossy().into_owned(),
            _ => named.clone(),
        });
        let process = Recorded::this(json!({
            "url": url,
            "model": model,
            "api_key": args.edge.admin_key.first().or(args.edge.api_key.first()),
            "hosts": named,
            "agent_port": hosts.reach.agent_port,
            "ssh": hosts.reach.ssh,
            "start": start.to_json(),
        }));
        process.write(home, RECORD)?;
        Ok(Some(ServeRecord { process }))
    }

    pub(crate) fn forget(&self, home: &Home) {
        self.process.forget(home, RECORD);
    }

    /// What is written down, whether it runs or not.
    pub(crate) fn read(home: &Home) -> Option<ServeRecord> {
        Some(ServeRecord { process: Recorded::read(home, RECORD)? })
    }

    /// The server that runs on this machine.
    pub(crate) fn running(home: &Home) -> Option<ServeRecord> {
        ServeRecord::read(home).filter(|it| it.process.runs())
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.process.about[key].as_str()
    }

    pub(crate) fn url(&self) -> &str {
        self.text("url").unwrap_or_default()
    }

    pub(crate) fn model(&self) -> &str {
        self.text("model").unwrap_or("a model")
    }

    /// The machines it was given, a hostfile or names, as it was told them.
    pub(crate) fn hosts(&self) -> Option<&str> {
        self.text("hosts")
    }

    pub(crate) fn ssh(&self) -> Option<&str> {
        self.text("ssh")
    }

    pub(crate) fn agent_port(&self) -> u16 {
        let port = self.process.about["agent_port"].as_u64();
        port.and_then(|it| it.try_into().ok()).unwrap_or(jackalope_cluster::agent::AGENT_PORT)
    }

    pub(crate) fn start(&self) -> Option<Start> {
        Start::from_json(&self.process.about["start"])
    }

    /// How it is asked.
    pub(super) fn server(&self) -> Server {
        let reached =
            self.url().replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:");
        Server { url: reached, api_key: self.text("api_key").map(str::to_owned) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_for_people() {
        let words = ["--model", "m", "--api-key", "one", "--admin-key=two", "--port", "1"];
        let start = Start { words: words.map(str::to_owned).to_vec(), ..Start::default() };
        let told = start.public_words().join(" ");
        assert_eq!(told, "--model m --api-key *** --admin-key=*** --port 1");
    }

    #[test]
    fn a_start_is_remembered_as_it_was() {
        let dir = std::env::temp_dir().join(format!("jackalope-start-{}", std::process::id()));
        let home = Home::new(&dir);
        assert_eq!(Start::last(&home), None);
        let start = Start {
            words: ["--model", "a b", "--api-key", "s\"ecret"].map(str::to_owned).to_vec(),
            cwd: "/some where".into(),
            env: [("MODEL_DIR".to_owned(), "x=y".to_owned())].into(),
        };
        start.remember(&home).unwrap();
        assert_eq!(Start::last(&home), Some(start));
        home.write(LAST_START, b"{}").unwrap();
        assert_eq!(Start::last(&home), None);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
