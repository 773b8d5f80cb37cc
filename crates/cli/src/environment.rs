//! The environment, read once. Every variable that has a meaning for `jackalope` is named here; an
//! empty one counts as not set.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use jackalope_deploy::models::FixedLibrary;
use jackalope_deploy::server_record::variable_of;
use jackalope_deploy::{LocalContext, machines};
use jackalope_fleet::home::Home;
use jackalope_fleet::shell::SystemShell;
use jackalope_fleet::trust::Credentials;
use jackalope_store::pull::{HubAccess, HubToken};
use jackalope_store::{ModelStore, StoreKind, Stores};

use crate::progress::Terminal;

/// The home directory.
const HOME: &str = "HOME";
/// Directory of programs' caches. Default: `~/.cache`.
const XDG_CACHE_HOME: &str = "XDG_CACHE_HOME";
/// Hugging Face's cache of repositories.
const HF_HUB_CACHE: &str = "HF_HUB_CACHE";
/// Older name of `HF_HUB_CACHE`.
const HUGGINGFACE_HUB_CACHE: &str = "HUGGINGFACE_HUB_CACHE";
/// Hugging Face's cache of repositories, under the name that LocalAI and the scripts around it use.
const MODEL_CACHE_DIR: &str = "MODEL_CACHE_DIR";
/// Hugging Face's directory, whose `hub` is the cache. Default: `huggingface` in the directory of
/// caches.
const HF_HOME: &str = "HF_HOME";
/// Cache of older versions of transformers; only read.
const TRANSFORMERS_CACHE: &str = "TRANSFORMERS_CACHE";
/// Directory of models. Default: `~/models_mlx`.
const MODELS_DIR: &str = "MODELS_DIR";
/// URL of the hub to pull from.
const HF_ENDPOINT: &str = "HF_ENDPOINT";
/// Access token for the hub.
const HF_TOKEN: &str = "HF_TOKEN";
/// File with the access token for the hub. Default: `token` in Hugging Face's directory.
const HF_TOKEN_PATH: &str = "HF_TOKEN_PATH";
/// Forbids requests to the hub.
const HF_HUB_OFFLINE: &str = "HF_HUB_OFFLINE";
/// Forbids requests to the hub; the name that transformers reads.
const TRANSFORMERS_OFFLINE: &str = "TRANSFORMERS_OFFLINE";

/// Set by sshd for a session: the client's address and port, then the server's.
const SSH_CONNECTION: &str = "SSH_CONNECTION";
/// Jackalope's own directory. Default: `~/.jackalope`.
const JACKALOPE_HOME: &str = "JACKALOPE_HOME";
/// Rank of a process in its group, set by MLX's launchers.
const MLX_RANK: &str = "MLX_RANK";
/// File with the addresses of a ring.
const MLX_HOSTFILE: &str = "MLX_HOSTFILE";
/// Address on which rank 0 of JACCL listens, and the shorter name of that variable.
const MLX_JACCL_COORDINATOR: &str = "MLX_JACCL_COORDINATOR";
const JACCL_COORDINATOR: &str = "JACCL_COORDINATOR";
/// Variables that LocalAI's workers read: machines, transport, and the address of rank 0.
const MLX_DISTRIBUTED_HOSTFILE: &str = "MLX_DISTRIBUTED_HOSTFILE";
const MLX_DISTRIBUTED_BACKEND: &str = "MLX_DISTRIBUTED_BACKEND";
const MLX_DISTRIBUTED_ADDR: &str = "MLX_DISTRIBUTED_ADDR";
/// Token that LocalAI presents to its backends.
const LOCALAI_GRPC_AUTH_TOKEN: &str = "LOCALAI_GRPC_AUTH_TOKEN";
/// Token and port of a LocalAI worker.
const JACKALOPE_TOKEN: &str = "JACKALOPE_TOKEN";
const LOCALAI_TOKEN: &str = "LOCALAI_TOKEN";
const LOCALAI_P2P_TOKEN: &str = "LOCALAI_P2P_TOKEN";
const TOKEN: &str = "TOKEN";
const MLX_LISTEN_PORT: &str = "MLX_LISTEN_PORT";
/// Collector of traces, under OpenTelemetry's name.
const OTEL_EXPORTER_OTLP_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// Program to run as ssh.
const JACKALOPE_SSH: &str = "JACKALOPE_SSH";
/// Turns colours off, in every program that supports the convention.
const NO_COLOR: &str = "NO_COLOR";
/// Variables of MLX's launchers that describe a group. `serve` forms its own.
const OF_LAUNCHERS: [&str; 8] = [
    MLX_RANK,
    "MLX_WORLD_SIZE",
    MLX_HOSTFILE,
    "MLX_IBV_DEVICES",
    MLX_JACCL_COORDINATOR,
    JACCL_COORDINATOR,
    MLX_DISTRIBUTED_HOSTFILE,
    MLX_DISTRIBUTED_BACKEND,
];

const DEFAULT: &str = "default";
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Values read from the environment.
#[derive(Clone, Debug)]
pub(crate) struct Environment {
    /// Directories of this machine, and its hub.
    pub(crate) local: LocalContext,
    /// Variables that are settings of `serve`.
    settings: BTreeMap<String, String>,
    /// Collector of traces.
    pub(crate) otlp: Option<String>,
    /// Program to run as ssh.
    pub(crate) ssh: Option<String>,
    /// This machine's address at which the SSH session arrived, if this is one.
    pub(crate) ssh_came_to: Option<IpAddr>,
    /// Values that MLX's launchers pass to a rank.
    pub(crate) mlx: MlxEnvironment,
    /// Values that LocalAI passes to its workers and backends.
    pub(crate) localai: LocalAiEnvironment,
    /// Whether colours are turned off.
    pub(crate) no_color: bool,
    /// Names of variables that are set but that `serve` does not read.
    pub(crate) ignored_by_serve: Vec<&'static str>,
}

/// Values that MLX's launchers pass to a rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct MlxEnvironment {
    pub(crate) rank: Option<u32>,
    pub(crate) hostfile: Option<PathBuf>,
    /// Address of JACCL's rank 0, as `HOST:PORT`.
    pub(crate) coordinator: Option<String>,
}

/// Values that LocalAI passes to its workers and backends.
#[derive(Clone, Default)]
pub(crate) struct LocalAiEnvironment {
    pub(crate) hostfile: Option<String>,
    pub(crate) backend: Option<String>,
    /// `HOST:PORT`.
    pub(crate) addr: Option<String>,
    pub(crate) grpc_token: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) listen_port: Option<u16>,
}

impl fmt::Debug for LocalAiEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the secrets.
        f.debug_struct("LocalAiEnvironment")
            .field("hostfile", &self.hostfile)
            .field("backend", &self.backend)
            .field("addr", &self.addr)
            .field("listen_port", &self.listen_port)
            .finish_non_exhaustive()
    }
}

impl LocalAiEnvironment {
    fn from(text: impl Fn(&str) -> Option<String>) -> LocalAiEnvironment {
        LocalAiEnvironment {
            hostfile: text(MLX_DISTRIBUTED_HOSTFILE),
            backend: text(MLX_DISTRIBUTED_BACKEND),
            addr: text(MLX_DISTRIBUTED_ADDR),
            grpc_token: text(LOCALAI_GRPC_AUTH_TOKEN),
            token: [JACKALOPE_TOKEN, LOCALAI_TOKEN, LOCALAI_P2P_TOKEN, TOKEN]
                .into_iter()
                .find_map(&text),
            listen_port: text(MLX_LISTEN_PORT).and_then(|it| it.trim().parse().ok()),
        }
    }
}

impl Environment {
    /// Reads the environment of this process. `is_setting` returns true for the names of variables that
    /// are settings of Jackalope.
    pub(crate) fn read(is_setting: impl Fn(&str) -> bool) -> Environment {
        let all = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let settings = all.filter(|(name, value)| !value.is_empty() && is_setting(name)).collect();
        Environment { settings, ..Environment::from(|name| std::env::var_os(name)) }
    }

    /// Returns the variables that are settings of `serve`, with their values.
    pub(crate) fn settings(&self) -> &BTreeMap<String, String> {
        &self.settings
    }

    /// Returns the first key that is set for servers on this machine.
    pub(crate) fn client_key(&self) -> Option<String> {
        let keys = self.settings.get(&variable_of("api-key"))?;
        keys.split(',').map(str::trim).find(|key| !key.is_empty()).map(str::to_owned)
    }

    fn from(lookup: impl Fn(&str) -> Option<OsString>) -> Environment {
        let set = |name: &str| lookup(name).filter(|it| !it.is_empty());
        let text = |name: &str| set(name).and_then(|it| it.into_string().ok());
        let path = |name: &str| {
            set(name).map(|value| match value.to_str() {
                Some(value) => PathBuf::from(expand(value, &text)),
                None => PathBuf::from(value),
            })
        };
        let home = path(HOME);
        let below_home = |name: &str| home.as_ref().map(|home| home.join(name));
        let caches = path(XDG_CACHE_HOME).or_else(|| below_home(".cache"));
        let default_hub = caches.as_ref().map(|it| it.join("huggingface"));
        let hf_home = path(HF_HOME);
        let hub = |root: PathBuf, origin| ModelStore { kind: StoreKind::HubCache, root, origin };
        let named = |name| path(name).map(|root| hub(root, name));
        let in_home = hf_home.as_ref().map(|it| hub(it.join("hub"), HF_HOME));
        let in_default = default_hub.as_ref().map(|it| hub(it.join("hub"), DEFAULT));
        let folder = |(root, origin)| ModelStore { kind: StoreKind::Folder, root, origin };
        let models_dir = path(MODELS_DIR).map(|it| (it, MODELS_DIR));
        let models_dir = models_dir.or_else(|| Some((below_home("models_mlx")?, DEFAULT)));
        let places = [
            named(HF_HUB_CACHE),
            named(HUGGINGFACE_HUB_CACHE),
            named(MODEL_CACHE_DIR),
            in_home,
            in_default,
            named(TRANSFORMERS_CACHE),
            models_dir.map(folder),
        ];
        let is_true = |name: &&str| {
            text(name).is_some_and(|it| {
                matches!(it.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE")
            })
        };
        let endpoint = text(HF_ENDPOINT).unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let came_to = |connection: String| connection.split(' ').nth(2)?.parse().ok();
        let local = LocalContext {
            home: path(JACKALOPE_HOME).or_else(|| below_home(".jackalope")),
            places: places.into_iter().flatten().collect(),
            cache_dir: caches.map(|it| it.join("jackalope")),
            hub: HubAccess {
                endpoint: endpoint.trim_end_matches('/').to_owned(),
                token: text(HF_TOKEN).as_deref().and_then(HubToken::new),
                token_path: path(HF_TOKEN_PATH)
                    .or_else(|| Some(hf_home.or(default_hub)?.join("token"))),
                offline: [HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE]
                    .into_iter()
                    .find(is_true)
                    .map(str::to_owned),
            },
            observer: Arc::new(Terminal),
            fixed_library: FixedLibrary::default(),
        };
        Environment {
            local,
            ssh_came_to: text(SSH_CONNECTION).and_then(came_to),
            otlp: text(OTEL_EXPORTER_OTLP_ENDPOINT),
            ssh: text(JACKALOPE_SSH),
            mlx: MlxEnvironment {
                rank: text(MLX_RANK).and_then(|it| it.trim().parse().ok()),
                hostfile: path(MLX_HOSTFILE),
                coordinator: text(MLX_JACCL_COORDINATOR).or_else(|| text(JACCL_COORDINATOR)),
            },
            no_color: set(NO_COLOR).is_some(),
            ignored_by_serve: OF_LAUNCHERS.into_iter().filter(|it| set(it).is_some()).collect(),
            localai: LocalAiEnvironment::from(text),
            settings: BTreeMap::new(),
        }
    }

    /// Returns Jackalope's own directory on this machine.
    pub(crate) fn home(&self) -> anyhow::Result<Home> {
        Ok(self.local.home()?)
    }

    /// Returns the directories that are searched for models.
    pub(crate) fn stores(&self) -> Stores {
        self.local.stores()
    }

    /// Returns the program to run as ssh, with its arguments: the given one, or that of the
    /// environment.
    pub(crate) fn ssh_words(&self, given: Option<&str>) -> Vec<String> {
        let ssh = given.or(self.ssh.as_deref()).unwrap_or_default();
        ssh.split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the shell that runs commands on machines.
    pub(crate) fn shell(&self, given: Option<&str>) -> SystemShell {
        SystemShell::new(self.ssh_words(given))
    }

    /// Returns the token for agents: the given one, or that of the environment.
    pub(crate) fn agent_token(&self, given: Option<&str>) -> Option<String> {
        let set = || self.settings.get(&variable_of("token")).map(String::as_str);
        given.or_else(set).map(str::to_owned)
    }

    /// Returns the credentials that this machine presents to agents.
    pub(crate) fn credentials(&self, token: Option<&str>) -> anyhow::Result<Credentials> {
        Ok(machines::credentials(self.agent_token(token).as_deref(), &self.local)?)
    }
}

/// Replaces `~`, `$NAME` and `${NAME}` in a path, as shells and Python do.
fn expand(value: &str, lookup: &impl Fn(&str) -> Option<String>) -> String {
    let home = || lookup(HOME).unwrap_or_else(|| "~".to_owned());
    let mut rest = value;
    let mut expanded = String::new();
    if value == "~" || value.starts_with("~/") {
        expanded = home();
        rest = &value[1..];
    }
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let braced = after.strip_prefix('{').and_then(|it| it.split_once('}'));
        let (name, behind) = braced
            .unwrap_or_else(|| after.split_at(after.find(|c| !is_name(c)).unwrap_or(after.len())));
        match lookup(name) {
            Some(value) => expanded.push_str(&value),
            // Kept unchanged, so that a message shows which variable is not set.
            None => expanded.push_str(&rest[at..rest.len() - behind.len()]),
        }
        rest = behind;
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::from(|name| {
            let found = variables.iter().find(|(it, _)| *it == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    fn places(variables: &[(&str, &str)]) -> Vec<String> {
        let stores = environment(variables).stores();
        stores.places().iter().map(|it| it.root.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn models_are_looked_for_where_other_programs_leave_them() {
        let usual = places(&[("HOME", "/me")]);
        assert_eq!(usual, ["/me/.cache/huggingface/hub", "/me/models_mlx"]);
        let all = [
            ("HOME", "/me"),
            ("TRANSFORMERS_CACHE", "/t"),
            ("XDG_CACHE_HOME", "/x"),
            ("HF_HOME", "/h"),
            ("MODEL_CACHE_DIR", "/c"),
            ("HUGGINGFACE_HUB_CACHE", "/hhc"),
            ("HF_HUB_CACHE", ""),
            ("MODELS_DIR", "/d"),
        ];
        assert_eq!(places(&all), ["/hhc", "/c", "/h/hub", "/x/huggingface/hub", "/t", "/d"]);
        assert_eq!(environment(&all).local.pull_cache(), Some(Path::new("/hhc")));
        let expanded = [
            ("HOME", "/me"),
            ("USER", "u"),
            ("MODEL_CACHE_DIR", "/U/${USER}/$X"),
            ("HF_HOME", "~/h"),
        ];
        assert_eq!(places(&expanded)[..2], ["/U/u/$X", "/me/h/hub"]);
    }

    #[test]
    fn a_token_is_not_printed_and_offline_has_many_spellings() {
        let found = environment(&[("HF_TOKEN", " hf_secret\n"), ("TRANSFORMERS_OFFLINE", "Yes")]);
        assert_eq!(found.local.hub.token.clone().unwrap().bearer(), "Bearer hf_secret");
        assert!(!format!("{found:?}").contains("hf_secret"));
        assert_eq!(found.local.hub.offline.as_deref(), Some("TRANSFORMERS_OFFLINE"));
        assert_eq!(environment(&[("HF_HUB_OFFLINE", "0")]).local.hub.offline, None);
        assert_eq!(environment(&[("HF_ENDPOINT", "http://m/")]).local.hub.endpoint, "http://m");
    }
}
