//! Determines the models that a server offers: from its arguments, a directory, and a file.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jackalope_server::KnownModel;
use jackalope_store::{Check, ModelStore, StoreKind, Stores};
use jackalope_text::{ReasoningFormat, ToolFormat};
use serde::Deserialize;

use crate::config::RankConfig;
use crate::context::{LocalContext, Observer};
use crate::error::{MODELS_MAX, ServedModelsError};
use crate::models::{self, Located};
use crate::served::details;

/// Maximum size of a file of models.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Which models a server offers.
#[derive(Clone, Debug, Default)]
pub struct ServedModelsConfig {
    /// Directories of checkpoints, or names of models on this machine.
    pub models: Vec<PathBuf>,
    /// Name of the first model in the API. Default: its name, or that of its directory.
    pub model_id: Option<String>,
    /// Directory whose models are all offered.
    pub models_dir: Option<PathBuf>,
    /// JSON file that lists models, each with settings.
    pub models_config: Option<PathBuf>,
    /// Further names of models.
    pub aliases: Vec<ModelAlias>,
    /// Names of models that are loaded at the start and stay.
    pub pinned: Vec<String>,
    /// The model for requests that name none. Default: the first one.
    pub default: Option<String>,
    /// Time without requests after which a model is unloaded. Default: never.
    pub idle_unload: Option<Duration>,
}

/// A further name of a model.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ModelAlias {
    /// The further name.
    pub alias: String,
    /// The model's id.
    pub model: String,
}

/// Settings for the models that do not set them themselves.
#[derive(Clone, Debug)]
pub struct ModelDefaults {
    /// Whether models that can reason do so. Absent: their chat templates decide.
    pub enable_thinking: Option<bool>,
    /// Name of the parser of tool calls.
    pub tool_parser: String,
    /// Name of the parser of reasoning.
    pub reasoning_parser: String,
    /// Whether control tokens in the text of messages are parsed as such.
    pub parse_special_tokens: bool,
}

/// Maximum time that an argument accepts.
const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Models of a server; at least one.
#[derive(Debug)]
pub struct ServedModels {
    /// The models.
    pub models: Vec<ServedModel>,
    /// Id of the model for requests that name none.
    pub default: String,
    /// Time without requests after which a model is unloaded.
    pub idle_unload: Option<Duration>,
    /// Directory whose models are all offered, if there is one.
    pub models_dir: Option<ModelStore>,
}

/// A model of a server.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// Name of the model in the API.
    pub id: String,
    /// Directory and name of the model's checkpoint.
    pub located: Located,
    /// Settings of this model alone.
    pub settings: ModelSettings,
    /// How the model's ranks compute; `None` to use the configuration of the server.
    pub ranks: Option<RankConfig>,
}

/// Settings of a model in the file. Only the owner of the server chooses the path, never a client.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSettings {
    id: Option<String>,
    /// Directory, or ORG/NAME.
    path: PathBuf,
    aliases: Vec<String>,
    pin: bool,
    idle_unload: Option<String>,
    /// Maximum number of tokens of a sequence.
    pub context: Option<u32>,
    /// Whether the model reasons before it answers.
    pub enable_thinking: Option<bool>,
    /// Name of the parser of tool calls.
    pub tool_parser: Option<String>,
    /// Name of the parser of reasoning.
    pub reasoning_parser: Option<String>,
    /// Whether control tokens in the text of messages are parsed as such.
    pub parse_special_tokens: Option<bool>,
    /// Sampling temperature.
    pub temperature: Option<f32>,
    /// Cumulative probability of the tokens to sample from.
    pub top_p: Option<f32>,
    /// Number of tokens to sample from.
    pub top_k: Option<u32>,
    /// Minimum probability relative to the most likely token.
    pub min_p: Option<f32>,
    /// Penalty of tokens that occurred before.
    pub repetition_penalty: Option<f32>,
}

/// The file of `--models-config`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ModelsFile {
    default: Option<String>,
    idle_unload: Option<String>,
    models: Vec<ModelSettings>,
}

impl ServedModels {
    /// Determines the models that a configuration names.
    ///
    /// # Errors
    /// If a model does not exist, or two have the same name.
    pub fn of(
        config: &ServedModelsConfig,
        context: &LocalContext,
    ) -> Result<ServedModels, ServedModelsError> {
        let file = config.models_config.as_deref().map(ModelsFile::read).transpose()?;
        let file = file.unwrap_or_default();
        let (mut models, mut models_dir) = (Vec::new(), None);
        for (at, path) in config.models.iter().enumerate() {
            let located = models::locate_loadable(path, context)?;
            let id = config.model_id.clone().filter(|_| at == 0);
            let id = id.unwrap_or_else(|| located.name.clone());
            models.push(ServedModel {
                id,
                located,
                settings: ModelSettings::default(),
                ranks: None,
            });
        }
        for settings in file.models {
            models.push(ServedModel::of_file(settings, context)?);
        }
        if let Some(dir) = &config.models_dir {
            let place = folder(dir)?;
            add_folder(&place, &mut models, &*context.observer)?;
            models_dir = Some(place);
        }
        let first = models.first().ok_or(ServedModelsError::None)?;
        if MODELS_MAX < models.len() {
            return Err(ServedModelsError::TooMany { num_models: models.len() });
        }
        let default = config.default.clone().or(file.default).unwrap_or_else(|| first.id.clone());
        let of_file = || time(file.idle_unload.as_deref());
        let idle_unload = config.idle_unload.map_or_else(of_file, |it| Ok(Some(it)))?;
        let mut served = ServedModels { models, default, idle_unload, models_dir };
        served.name(config)?;
        Ok(served)
    }

    /// Adds the names from the command line, and checks that each name means one model.
    fn name(&mut self, config: &ServedModelsConfig) -> Result<(), ServedModelsError> {
        for it in &config.aliases {
            self.model(&it.model, "--alias")?.settings.aliases.push(it.alias.clone());
        }
        for id in &config.pinned {
            self.model(id, "--pin")?.settings.pin = true;
        }
        let default = self.default.clone();
        self.default = self.model(&default, "--default")?.id.clone();
        let mut names = HashSet::new();
        for model in &self.models {
            for name in std::iter::once(&model.id).chain(&model.settings.aliases) {
                if !names.insert(name.as_str()) {
                    return Err(ServedModelsError::SameName { name: name.clone() });
                }
            }
        }
        Ok(())
    }

    fn model(
        &mut self,
        name: &str,
        flag: &'static str,
    ) -> Result<&mut ServedModel, ServedModelsError> {
        let answers =
            |it: &ServedModel| it.id == name || it.settings.aliases.iter().any(|it| it == name);
        let known: Vec<String> = self.models.iter().map(|it| it.id.clone()).collect();
        let found = self.models.iter_mut().find(|it| answers(it));
        found.ok_or_else(|| ServedModelsError::Unknown { flag, name: name.to_owned(), known })
    }

    /// Fills in the defaults for everything that the models' own settings leave open.
    #[must_use]
    pub fn with_defaults(mut self, defaults: &ModelDefaults) -> ServedModels {
        for settings in self.models.iter_mut().map(|it| &mut it.settings) {
            settings.enable_thinking = settings.enable_thinking.or(defaults.enable_thinking);
            settings.tool_parser.get_or_insert_with(|| defaults.tool_parser.clone());
            settings.reasoning_parser.get_or_insert_with(|| defaults.reasoning_parser.clone());
            settings.parse_special_tokens.get_or_insert(defaults.parse_special_tokens);
        }
        self
    }

    /// Whether there may be several models, now or later.
    pub fn is_several(&self) -> bool {
        1 < self.models.len() || self.models_dir.is_some()
    }

    /// Returns the models in the form that the server uses.
    ///
    /// # Errors
    /// If a time in their settings is malformed.
    pub fn known(&self) -> Result<Vec<KnownModel>, ServedModelsError> {
        let known = |it: &ServedModel| {
            Ok(KnownModel {
                aliases: it.settings.aliases.clone(),
                is_pinned: it.settings.pin,
                idle_unload: time(it.settings.idle_unload.as_deref())?,
                details: details(&it.located.dir),
                ..KnownModel::new(&it.id)
            })
        };
        self.models.iter().map(known).collect()
    }

    /// Returns the ids of the models that are loaded at the start, the default one first.
    pub fn at_start(&self) -> Vec<String> {
        let pinned = self.models.iter().filter(|it| it.settings.pin).map(|it| it.id.clone());
        let pinned = pinned.filter(|id| *id != self.default);
        std::iter::once(self.default.clone()).chain(pinned).collect()
    }
}

impl ServedModel {
    /// Creates a model of a directory of models.
    pub fn of_folder(name: String, dir: PathBuf) -> ServedModel {
        let located = Located { dir, name: name.clone(), by_name: false };
        ServedModel { id: name, located, settings: ModelSettings::default(), ranks: None }
    }

    fn of_file(
        settings: ModelSettings,
        context: &LocalContext,
    ) -> Result<ServedModel, ServedModelsError> {
        time(settings.idle_unload.as_deref())?;
        settings.tool_parser.as_deref().map(|it| ToolFormat::chosen(it, None)).transpose()?;
        let reasoning = settings.reasoning_parser.as_deref();
        reasoning.map(|it| ReasoningFormat::chosen(it, None)).transpose()?;
        let located = models::locate(&settings.path, context)?;
        let id = settings.id.clone().unwrap_or_else(|| located.name.clone());
        Ok(ServedModel { id, located, settings, ranks: None })
    }
}

impl ModelsFile {
    fn read(path: &Path) -> Result<ModelsFile, ServedModelsError> {
        let reading = |source| ServedModelsError::Read { path: path.to_owned(), source };
        let num_bytes = std::fs::metadata(path).map_err(reading)?.len();
        if CONFIG_BYTES_MAX < num_bytes {
            return Err(ServedModelsError::TooLong { path: path.to_owned(), num_bytes });
        }
        let text = std::fs::read_to_string(path).map_err(reading)?;
        let mut file: ModelsFile = serde_json::from_str(&text)
            .map_err(|source| ServedModelsError::Malformed { path: path.to_owned(), source })?;
        // A path is relative to the file, a name is searched in the directories of models.
        let folder = path.parent().unwrap_or(Path::new(""));
        for (idx, model) in file.models.iter_mut().enumerate() {
            if model.path.as_os_str().is_empty() {
                return Err(ServedModelsError::NoPath { path: path.to_owned(), idx });
            }
            let beside = folder.join(&model.path);
            if beside.is_dir() {
                model.path = beside;
            }
        }
        Ok(file)
    }
}

/// Parses a number with a unit; without a unit it is seconds.
///
/// # Errors
/// Says what is expected.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 5] =
        [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)];
    let text = text.trim();
    let unit = UNITS.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, unit) = unit.unwrap_or((text, &1.0));
    let seconds = number.trim().parse::<f64>().ok().map(|number| number * unit);
    let seconds = seconds.filter(|it| (0.0..=TIME_MAX.as_secs_f64()).contains(it));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected a time such as 90s, 10m or 2h".to_owned())
}

fn time(text: Option<&str>) -> Result<Option<Duration>, ServedModelsError> {
    let parse = |text: &str| {
        let refused = |reason| ServedModelsError::Time { text: text.to_owned(), reason };
        parse_time(text).map_err(refused)
    };
    text.map(parse).transpose()
}

/// Returns a directory of models, with its layout.
fn folder(dir: &Path) -> Result<ModelStore, ServedModelsError> {
    let entries = std::fs::read_dir(dir)
        .map_err(|source| ServedModelsError::Read { path: dir.to_owned(), source })?;
    let is_of_hub = |name: &str| name.starts_with("models--");
    let mut names = entries.flatten().map(|it| it.file_name());
    let is_hub = names.any(|name| name.to_str().is_some_and(is_of_hub));
    let kind = if is_hub { StoreKind::HubCache } else { StoreKind::Folder };
    Ok(ModelStore { kind, root: dir.to_owned(), origin: "--models-dir" })
}

/// Adds every complete model of a directory that is not offered yet.
fn add_folder(
    place: &ModelStore,
    models: &mut Vec<ServedModel>,
    observer: &dyn Observer,
) -> Result<(), ServedModelsError> {
    let mut found = Stores::new([place.clone()]).list()?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    for model in found {
        let dir = std::fs::canonicalize(&model.dir).unwrap_or(model.dir);
        let is_there = |it: &ServedModel| {
            it.located.dir == dir || it.id == model.name || it.located.name == model.name
        };
        if models.iter().any(is_there) {
            continue;
        }
        let problems = Check::of_dir(&dir).problems;
        if let Some(problem) = problems.first() {
            observer.note(&format!("{} is left out, it is incomplete: {problem}", model.name));
            continue;
        }
        models.push(ServedModel::of_folder(model.name, dir));
    }
    Ok(())
}
