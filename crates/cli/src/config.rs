//! Where the settings of `serve` come from: a flag, else the environment, else a file `.env` in the
//! folder it is started in, else the profile's defaults, else our own.
//!
//! Every flag `--some-name` of `serve` is also the variable `JACKALOPE_SOME_NAME`. A profile adds
//! the variables of another program. What is found so becomes arguments, which are then parsed as if
//! they had been typed: there is one door for values, whoever says them.

mod dotenv;
mod launcher;
mod page;
mod rules;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, bail, ensure};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, ValueEnum};

use crate::args::Args;
use dotenv::Entry;
use table::{Effect, Variable};

pub(crate) use page::{commands_page, completions, config};

/// The file that is read beside the environment.
const DOT_ENV: &str = ".env";

/// Longest such file.
const DOT_ENV_BYTES_MAX: u64 = 1 << 20;

/// What our own variables begin with.
const PREFIX: &str = "JACKALOPE_";

/// Flags that no file of the working folder may set: what they name is run.
const NOT_FROM_FILES: &[&str] = &["ssh"];

/// Flags that only change what is told.
const NO_SETTINGS: &[&str] = &["json"];

/// Whose environment variables are read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Profile {
    /// The scripts around mlx-jaccl-cluster: MODEL_DIR, HOSTFILE, HTTP_PORT, …
    JacclCluster,
    /// Distributed inference over MLX's ring: MODEL_REPO, API_PORT, WORKER_SSH, …
    Ring,
}

impl Profile {
    fn variables(self) -> &'static [Variable] {
        match self {
            Profile::JacclCluster => table::JACCL_CLUSTER,
            Profile::Ring => table::RING,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Profile::JacclCluster => "jaccl-cluster",
            Profile::Ring => "ring",
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Origin {
    /// It was typed.
    Flag,
    /// A variable of the environment.
    Variable(String),
    /// A line of the file `.env`.
    File { line: usize, name: String },
    /// What the profile's program does unless told otherwise.
    Profile(&'static str, &'static str),
    /// What we do.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => f.write_str("flag"),
            Origin::Variable(name) => write!(f, "env {name}"),
            Origin::File { line, name } => write!(f, "{DOT_ENV} line {line}, {name}"),
            Origin::Profile(profile, name) => write!(f, "profile {profile}, {name}"),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// What the layers make of a command line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Resolved {
    /// To be parsed in place of what was typed.
    pub(crate) words: Vec<String>,
    /// Flags of `serve` that a layer below the command line has set, with their values.
    pub(crate) set: BTreeMap<String, (String, Origin)>,
    /// What people are told about variables that do nothing here.
    pub(crate) notes: Vec<String>,
    /// Filter of the log.
    pub(crate) log_level: Option<&'static str>,
    /// Open files: soft and hard limit.
    pub(crate) open_files: Option<(u64, u64)>,
    /// The profile's variable for the model, where no model is named.
    pub(crate) missing_model: Option<&'static str>,
    /// The arguments of `serve` or `start` as they were typed, but for those about the telling.
    pub(crate) typed: Vec<String>,
}

/// Everything that is asked for values, topmost layer first.
struct Layers<'a> {
    environment: &'a BTreeMap<String, String>,
    file: Vec<Entry>,
    profile: Option<Profile>,
}

/// Tells variables that are settings from others.
pub(crate) fn setting_names() -> impl Fn(&str) -> bool {
    let own = |flag: String| format!("{PREFIX}{}", flag.replace('-', "_").to_uppercase());
    let own: Vec<String> = serve_flags().map(own).collect();
    let profiles = [Profile::JacclCluster, Profile::Ring];
    move |name| {
        profiles.iter().any(|it| it.variables().iter().any(|it| it.name == name))
            || own.iter().any(|it| it == name)
    }
}

/// The long names of the flags of `serve`.
fn serve_flags() -> impl Iterator<Item = String> {
    let command = Args::command();
    let serve = command.find_subcommand("serve").expect("it is there");
    let told = serve.get_arguments().filter(|it| !it.is_hide_set() && !it.is_global_set());
    let names = told.filter_map(|it| it.get_long()).filter(|it| !NO_SETTINGS.contains(it));
    let flags: Vec<String> = names.map(str::to_owned).collect();
    flags.into_iter()
}

/// Resolves a command line. What is not about serving stays as it is.
///
/// # Errors
/// If a variable holds what it must not; says which, what it may hold, and a value that would do.
pub(crate) fn resolve(
    words: Vec<String>,
    environment: &BTreeMap<String, String>,
) -> anyhow::Result<Resolved> {
    let words = launcher::as_serve(words)?;
    let is_asked = |it: &String| it == "serve" || it == "start";
    let file = if words.iter().any(is_asked) { read_file()? } else { None };
    let resolved = resolve_parts(words, environment, file.as_deref())?;
    if let Some(name) = resolved.missing_model {
        bail!("{name} is not set\nhint: set it to the model, or pass `--model`");
    }
    Ok(resolved)
}

/// The command line, where models may be missing as they may be set elsewhere.
fn with_optional_model() -> clap::Command {
    let optional_model = |it: clap::Command| it.mut_group("offered", |it| it.required(false));
    let command = Args::command().mut_subcommand("serve", optional_model);
    command.mut_subcommand("start", optional_model)
}

/// Checks arguments of `serve`, of which the model may be missing.
pub(crate) fn check_serve(words: &[String]) -> Result<(), clap::Error> {
    with_optional_model().try_get_matches_from(words).map(drop)
}

fn resolve_parts(
    words: Vec<String>,
    environment: &BTreeMap<String, String>,
    file: Option<&str>,
) -> anyhow::Result<Resolved> {
    let mut resolved = Resolved { words, ..Resolved::default() };
    // What cannot be parsed is told when it is parsed in earnest.
    let parsed = with_optional_model().try_get_matches_from(&resolved.words);
    let Ok(matches) = parsed else { return Ok(resolved) };
    let Some((name @ ("serve" | "start"), matches)) = matches.subcommand() else {
        return Ok(resolved);
    };
    resolved.typed = typed_words(&resolved.words, name);
    let file = file.map(|text| file_entries(text, environment, matches)).transpose()?;
    let mut layers = Layers { environment, file: file.unwrap_or_default(), profile: None };
    layers.profile = layers.profile(matches)?;
    layers.check_names(&mut resolved)?;
    for flag in serve_flags() {
        if is_typed(matches, &flag) || is_excluded(matches, &flag) {
            continue;
        }
        if let Some((value, origin)) = layers.value_of(&flag)? {
            resolved.words.extend(as_argument(matches, &flag, &value, &origin)?);
            resolved.set.insert(flag, (value, origin));
        }
    }
    layers.special(&mut resolved)?;
    let is_offered = |flag: &&str| is_typed(matches, flag) || resolved.set.contains_key(*flag);
    if !["model", "models-dir", "models-config"].iter().any(is_offered) {
        let mut names = layers.variables().iter().filter(|it| it.is_flag("model"));
        resolved.missing_model = names.next().map(|it| it.name);
    }
    Ok(resolved)
}

/// The file in this folder, if there is one.
pub(crate) fn read_file() -> anyhow::Result<Option<String>> {
    let Ok(metadata) = std::fs::metadata(DOT_ENV) else { return Ok(None) };
    if !metadata.is_file() {
        return Ok(None);
    }
    ensure!(metadata.len() <= DOT_ENV_BYTES_MAX, "{DOT_ENV} is longer than a mebibyte");
    let text = std::fs::read_to_string(DOT_ENV).with_context(|| format!("reading {DOT_ENV}"))?;
    Ok(Some(text))
}

/// A file that does not speak of us is somebody else's.
fn file_entries(
    text: &str,
    environment: &BTreeMap<String, String>,
    matches: &ArgMatches,
) -> anyhow::Result<Vec<Entry>> {
    let profile = format!("{PREFIX}PROFILE");
    let is_asked_for = is_typed(matches, "profile") || environment.contains_key(&profile);
    if !is_asked_for && !text.contains(PREFIX) {
        return Ok(Vec::new());
    }
    let entries = dotenv::parse(text, &|name| environment.get(name).cloned());
    entries.map_err(|err| anyhow::anyhow!("{DOT_ENV} {err}"))
}

/// What was typed after the subcommand, but for what changes only what is told.
fn typed_words(words: &[String], subcommand: &str) -> Vec<String> {
    let at = words.iter().position(|it| it == subcommand).map_or(words.len(), |at| at + 1);
    let mut typed = Vec::new();
    let mut rest = words[at..].iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--wait" => drop(rest.next()),
            "--no-replace" | "--json" | "--verbose" | "-v" | "--detached" => {}
            word if word.starts_with("--wait=") => {}
            _ => typed.push(word.clone()),
        }
    }
    typed
}

/// The identifier of an argument is its long name with underscores.
fn is_typed(matches: &ArgMatches, flag: &str) -> bool {
    matches.value_source(&flag.replace('-', "_")) == Some(ValueSource::CommandLine)
}

/// Flags that do not go with what was typed.
fn is_excluded(matches: &ArgMatches, flag: &str) -> bool {
    match flag {
        "hosts" => is_typed(matches, "ranks") || is_typed(matches, "discover"),
        "ranks" => is_typed(matches, "hosts") || is_typed(matches, "discover"),
        "discover" => is_typed(matches, "ranks") || is_typed(matches, "hosts"),
        "profile" => true,
        _ => false,
    }
}

fn as_argument(
    matches: &ArgMatches,
    flag: &str,
    value: &str,
    origin: &Origin,
) -> anyhow::Result<Option<String>> {
    let is_switch =
        matches.try_get_one::<bool>(&flag.replace('-', "_")).is_ok_and(|it| it.is_some());
    if !is_switch {
        return Ok(Some(format!("--{flag}={value}")));
    }
    let is_on = rules::yes_or_no(value).with_context(|| {
        format!("{origin} is `{value}`, which is neither yes nor no\nhint: write 1 or 0")
    })?;
    Ok(is_on.then(|| format!("--{flag}")))
}

impl Layers<'_> {
    fn profile(&self, matches: &ArgMatches) -> anyhow::Result<Option<Profile>> {
        if let Ok(Some(profile)) = matches.try_get_one::<Profile>("profile") {
            return Ok(Some(*profile));
        }
        let Some((value, origin)) = self.named(&format!("{PREFIX}PROFILE")) else {
            return Ok(None);
        };
        let profile = Profile::from_str(&value, true).ok();
        let profile = profile
            .with_context(|| format!("{origin} is `{value}`\nhint: write jaccl-cluster or ring"))?;
        Ok(Some(profile))
    }

    /// A variable, wherever it is set.
    fn named(&self, name: &str) -> Option<(String, Origin)> {
        if let Some(value) = self.environment.get(name).filter(|it| !it.trim().is_empty()) {
            return Some((value.clone(), Origin::Variable(name.to_owned())));
        }
        let found = self.file.iter().rev().find(|it| it.name == name && !it.value.is_empty())?;
        let origin = Origin::File { line: found.line, name: name.to_owned() };
        Some((found.value.clone(), origin))
    }

    fn variables(&self) -> &'static [Variable] {
        self.profile.map_or(&[], Profile::variables)
    }

    /// What a flag is set to below the command line.
    fn value_of(&self, flag: &str) -> anyhow::Result<Option<(String, Origin)>> {
        let own = format!("{PREFIX}{}", flag.replace('-', "_").to_uppercase());
        let found = self.named(&own).filter(|(_, origin)| {
            !(matches!(origin, Origin::File { .. }) && NOT_FROM_FILES.contains(&flag))
        });
        let mut of_flag = self.variables().iter().filter(|it| it.is_flag(flag));
        let theirs: Option<(&Variable, String, Origin)> = of_flag
            .clone()
            .filter_map(|it| self.named(it.name).map(|(value, origin)| (it, value, origin)))
            .min_by_key(|(_, _, origin)| matches!(origin, Origin::File { .. }));
        let theirs = theirs.map(|(variable, value, origin)| {
            let value = variable.check(&value, &origin)?;
            // A name that means nothing to us is told of, and left out.
            let is_known = variable.warning(&value).is_none();
            let value = if flag == "env" { format!("{}={value}", variable.name) } else { value };
            anyhow::Ok(is_known.then_some((value, origin)))
        });
        let in_file = |it: &(String, Origin)| matches!(it.1, Origin::File { .. });
        Ok(match (found, theirs.transpose()?.flatten()) {
            // The environment comes before the file, whatever the names.
            (Some(own), Some(theirs)) if in_file(&own) && !in_file(&theirs) => Some(theirs),
            (Some(own), _) => Some(own),
            (None, Some(theirs)) => Some(theirs),
            (None, None) => {
                let applied = of_flag.find(|it| it.applies_default);
                applied.map(|it| {
                    let profile = self.profile.map_or("", Profile::name);
                    (it.default.to_owned(), Origin::Profile(profile, it.name))
                })
            }
        })
    }

    /// Names in the file that are nearly a variable's, and variables that do nothing here.
    fn check_names(&self, resolved: &mut Resolved) -> anyhow::Result<()> {
        for variable in self.variables() {
            let Some((value, origin)) = self.named(variable.name) else { continue };
            let value = variable.check(&value, &origin)?;
            if let Effect::Nothing(why) = variable.effect {
                resolved.notes.push(format!("{origin} has no effect: {why}"));
            }
            if let Some(warning) = variable.warning(&value) {
                resolved.notes.push(format!("{origin} is `{value}`: {warning}"));
            }
        }
        for entry in self.file.iter().filter(|it| !self.knows(&it.name)) {
            let known = self.variables().iter().map(|it| it.name);
            if let Some(near) = known.filter(|it| rules::is_near(it, &entry.name)).min() {
                resolved.notes.push(format!(
                    "{DOT_ENV} line {} sets {}, which means nothing here\nhint: did you mean {near}?",
                    entry.line, entry.name
                ));
            }
        }
        Ok(())
    }

    fn knows(&self, name: &str) -> bool {
        self.variables().iter().any(|it| it.name == name)
    }

    /// Settings that are no flag, or are made of several variables.
    fn special(&self, resolved: &mut Resolved) -> anyhow::Result<()> {
        let number = |name: &str| -> Option<(u64, Origin)> {
            self.named(name).and_then(|(value, origin)| Some((value.parse().ok()?, origin)))
        };
        if self.knows("LOG_LEVEL") {
            let level = self.named("LOG_LEVEL").map(|(value, _)| value.to_uppercase());
            resolved.log_level = level.map(|it| rules::log_filter(&it));
        }
        if self.knows("FILE_DESCRIPTOR_SOFT_LIMIT") {
            let soft = number("FILE_DESCRIPTOR_SOFT_LIMIT").map_or(2048, |it| it.0);
            let hard = number("FILE_DESCRIPTOR_HARD_LIMIT").map_or(4096, |it| it.0);
            ensure!(
                soft <= hard,
                "FILE_DESCRIPTOR_HARD_LIMIT is {hard}, below FILE_DESCRIPTOR_SOFT_LIMIT, {soft}\n\
                 hint: make the hard limit at least {soft}"
            );
            resolved.open_files = Some((soft, hard));
        }
        self.workers(resolved)
    }

    /// The machines of a ring: this one, and the workers.
    fn workers(&self, resolved: &mut Resolved) -> anyhow::Result<()> {
        if !self.knows("WORKER_HOSTS") {
            return Ok(());
        }
        let (hosts, ssh) = (self.named("WORKER_HOSTS"), self.named("WORKER_SSH"));
        let count = |it: &Option<(String, Origin)>| it.as_ref().map(|it| rules::names(&it.0).len());
        if let (Some(num_hosts), Some(num_ssh)) = (count(&hosts), count(&ssh)) {
            ensure!(
                num_hosts == num_ssh,
                "WORKER_HOSTS names {num_hosts} machines and WORKER_SSH {num_ssh}\n\
                 hint: give each worker an address and a name for ssh, in the same order"
            );
        }
        let num_devices = self
            .named("NUM_DEVICES")
            .and_then(|(value, origin)| Some((value.parse::<usize>().ok()?, origin)));
        // What was typed or said in our own words comes first.
        let is_said = |flag: &str| {
            resolved.set.contains_key(flag)
                || resolved
                    .typed
                    .iter()
                    .any(|it| it.split('=').next() == Some(&format!("--{flag}")))
        };
        if ["hosts", "ranks", "discover"].into_iter().any(is_said) {
            return Ok(());
        }
        if let Some((workers, origin)) = ssh.or(hosts) {
            let mut names = vec!["127.0.0.1".to_owned()];
            names.extend(rules::names(&workers));
            if let Some((num_devices, origin)) = num_devices
                && num_devices != names.len()
            {
                bail!(
                    "{origin} is {num_devices}, and this machine and its workers are {}\n\
                     hint: leave it out: it follows from the workers",
                    names.len()
                );
            }
            let names = names.join(",");
            resolved.words.push(format!("--hosts={names}"));
            resolved.set.insert("hosts".to_owned(), (names, origin));
        } else if let Some((num_devices, origin)) = num_devices {
            resolved.words.push(format!("--ranks={num_devices}"));
            resolved.set.insert("ranks".to_owned(), (num_devices.to_string(), origin));
        }
        Ok(())
    }
}
