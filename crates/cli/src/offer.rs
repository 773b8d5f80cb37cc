//! Determines the models that a server offers: from its arguments, a directory, and a file.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use jackalope_server::KnownModel;
use jackalope_store::{Check, Place, PlaceKind, Stores};
use serde::Deserialize;

use crate::args::{
    RankArgs, ServeArgs, ServedModelsArgs, parse_time, reasoning_parser, tool_parser,
};
use crate::environment::Environment;
use crate::models::{self, Located};
use crate::output;
use crate::serve::details;

/// Maximum size of a file of models.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of models of one server.
pub(crate) const MODELS_MAX: usize = 1024;

/// Models of a server; at least one.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) models: Vec<OfferedModel>,
    /// Id of the model for requests that name none.
    pub(crate) default: String,
    pub(crate) idle_unload: Option<Duration>,
    /// Directory whose models are all offered, if there is one.
    pub(crate) models_dir: Option<Place>,
}

/// A model of a server.
#[derive(Clone, Debug)]
pub(crate) struct OfferedModel {
    pub(crate) id: String,
    pub(crate) located: Located,
    pub(crate) settings: ModelSettings,
    /// Its own rank arguments; `None` to use those of the server.
    pub(crate) ranks: Option<RankArgs>,
}

/// Settings of a model in the file. Only the owner of the server chooses the path, never a client.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ModelSettings {
    id: Option<String>,
    /// Directory, or ORG/NAME.
    path: PathBuf,
    aliases: Vec<String>,
    pin: bool,
    idle_unload: Option<String>,
    pub(crate) context: Option<u32>,
    pub(crate) enable_thinking: Option<bool>,
    pub(crate) tool_parser: Option<String>,
    pub(crate) reasoning_parser: Option<String>,
    pub(crate) parse_special_tokens: Option<bool>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
}

/// The file of `--models-config`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ModelsFile {
    default: Option<String>,
    idle_unload: Option<String>,
    models: Vec<ModelSettings>,
}

impl Offer {
    /// Determines the models that the arguments of `serve` name.
    ///
    /// # Errors
    /// If a model does not exist, or two have the same name.
    pub(crate) fn of(args: &ServedModelsArgs, environment: &Environment) -> anyhow::Result<Offer> {
        let file = args.models_config.as_deref().map(ModelsFile::read).transpose()?;
        let file = file.unwrap_or_default();
        let (mut models, mut models_dir) = (Vec::new(), None);
        for (at, path) in args.model.iter().enumerate() {
            let located = models::locate_loadable(path, environment)?;
            let id = args.model_id.clone().filter(|_| at == 0);
            let id = id.unwrap_or_else(|| located.name.clone());
            models.push(OfferedModel {
                id,
                located,
                settings: ModelSettings::default(),
                ranks: None,
            });
        }
        for settings in file.models {
            models.push(OfferedModel::of_file(settings, environment)?);
        }
        if let Some(dir) = &args.models_dir {
            let place = folder(dir)?;
            add_folder(&place, &mut models)?;
            models_dir = Some(place);
        }
        let Some(first) = models.first() else {
            bail!("there is no model to serve\nhint: fetch one with `jackalope pull`")
        };
        ensure!(
            models.len() <= MODELS_MAX,
            "{} models are more than a server takes, {MODELS_MAX}\nhint: name fewer",
            models.len()
        );
        let default = args.default.clone().or(file.default).unwrap_or_else(|| first.id.clone());
        let idle_unload = args
            .idle_unload
            .map_or_else(|| time(file.idle_unload.as_deref()), |it| Ok(Some(it)))?;
        let mut offer = Offer { models, default, idle_unload, models_dir };
        offer.name(args)?;
        Ok(offer)
    }

    /// Adds the names from the command line, and checks that each name means one model.
    fn name(&mut self, args: &ServedModelsArgs) -> anyhow::Result<()> {
        for it in &args.alias {
            self.model(&it.model, "--alias")?.settings.aliases.push(it.alias.clone());
        }
        for id in &args.pin {
            self.model(id, "--pin")?.settings.pin = true;
        }
        let default = self.default.clone();
        self.default = self.model(&default, "--default")?.id.clone();
        let mut names = HashSet::new();
        for model in &self.models {
            for name in std::iter::once(&model.id).chain(&model.settings.aliases) {
                ensure!(
                    names.insert(name.as_str()),
                    "two models are called {name}\nhint: rename one with `--model-id`, or \
                     `id` in a file of `--models-config`"
                );
            }
        }
        Ok(())
    }

    fn model(&mut self, name: &str, flag: &str) -> anyhow::Result<&mut OfferedModel> {
        let answers =
            |it: &OfferedModel| it.id == name || it.settings.aliases.iter().any(|it| it == name);
        let ids: Vec<String> = self.models.iter().map(|it| it.id.clone()).collect();
        let found = self.models.iter_mut().find(|it| answers(it));
        found.with_context(|| {
            format!(
                "`{flag}` names {name}, which is no model of this server\nhint: there are {}",
                ids.join(", ")
            )
        })
    }

    /// Fills in the server's settings for everything that the file does not set.
    pub(crate) fn with_usual(mut self, args: &ServeArgs) -> Offer {
        for settings in self.models.iter_mut().map(|it| &mut it.settings) {
            settings.enable_thinking = settings.enable_thinking.or(args.thinking);
            settings.tool_parser.get_or_insert_with(|| args.tool_parser.clone());
            settings.reasoning_parser.get_or_insert_with(|| args.reasoning_parser.clone());
            settings.parse_special_tokens.get_or_insert(args.parse_special_tokens);
        }
        self
    }

    /// Whether there may be several models, now or later.
    pub(crate) fn is_several(&self) -> bool {
        1 < self.models.len() || self.models_dir.is_some()
    }

    /// Returns the models in the form that the server uses.
    pub(crate) fn known(&self) -> anyhow::Result<Vec<KnownModel>> {
        let known = |it: &OfferedModel| {
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
    pub(crate) fn at_start(&self) -> Vec<String> {
        let pinned = self.models.iter().filter(|it| it.settings.pin).map(|it| it.id.clone());
        let pinned = pinned.filter(|id| *id != self.default);
        std::iter::once(self.default.clone()).chain(pinned).collect()
    }
}

impl OfferedModel {
    /// Creates a model of a directory of models.
    pub(crate) fn of_folder(name: String, dir: PathBuf) -> OfferedModel {
        let located = Located { dir, name: name.clone(), by_name: false };
        OfferedModel { id: name, located, settings: ModelSettings::default(), ranks: None }
    }

    fn of_file(settings: ModelSettings, environment: &Environment) -> anyhow::Result<OfferedModel> {
        time(settings.idle_unload.as_deref())?;
        settings.tool_parser.as_deref().map(tool_parser).transpose()?;
        settings.reasoning_parser.as_deref().map(reasoning_parser).transpose()?;
        let located = models::locate(&settings.path, environment)?;
        let id = settings.id.clone().unwrap_or_else(|| located.name.clone());
        Ok(OfferedModel { id, located, settings, ranks: None })
    }
}

impl ModelsFile {
    fn read(path: &Path) -> anyhow::Result<ModelsFile> {
        let reading = || format!("reading {}", path.display());
        let length = std::fs::metadata(path).with_context(reading)?.len();
        ensure!(
            length <= CONFIG_BYTES_MAX,
            "{} has {length} bytes, which is too long for a file of models",
            path.display()
        );
        let text = std::fs::read_to_string(path).with_context(reading)?;
        let mut file: ModelsFile = serde_json::from_str(&text).with_context(reading)?;
        // A path is relative to the file, a name is searched in the directories of models.
        let folder = path.parent().unwrap_or(Path::new(""));
        for (at, model) in file.models.iter_mut().enumerate() {
            ensure!(
                !model.path.as_os_str().is_empty(),
                "{}: models[{at}] has no `path`\nhint: name its directory, or ORG/NAME",
                path.display()
            );
            let beside = folder.join(&model.path);
            if beside.is_dir() {
                model.path = beside;
            }
        }
        Ok(file)
    }
}

fn time(text: Option<&str>) -> anyhow::Result<Option<Duration>> {
    let parse = |text| {
        parse_time(text).map_err(|reason| anyhow::anyhow!("`idle_unload` is `{text}`: {reason}"))
    };
    text.map(parse).transpose()
}

/// Returns a directory of models, with its layout.
fn folder(dir: &Path) -> anyhow::Result<Place> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    let is_of_hub = |name: &str| name.starts_with("models--");
    let mut names = entries.flatten().map(|it| it.file_name());
    let is_hub = names.any(|name| name.to_str().is_some_and(is_of_hub));
    let kind = if is_hub { PlaceKind::HubCache } else { PlaceKind::Folder };
    Ok(Place { kind, root: dir.to_owned(), origin: "--models-dir" })
}

/// Adds every complete model of a directory that is not offered yet.
fn add_folder(place: &Place, models: &mut Vec<OfferedModel>) -> anyhow::Result<()> {
    let mut found = Stores::new([place.clone()]).list()?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    for model in found {
        let dir = std::fs::canonicalize(&model.dir).unwrap_or(model.dir);
        let is_there = |it: &OfferedModel| {
            it.located.dir == dir || it.id == model.name || it.located.name == model.name
        };
        if models.iter().any(is_there) {
            continue;
        }
        let problems = Check::of_dir(&dir).problems;
        if let Some(problem) = problems.first() {
            output::note(&format!("{} is left out, it is incomplete: {problem}", model.name));
            continue;
        }
        models.push(OfferedModel::of_folder(model.name, dir));
    }
    Ok(())
}
