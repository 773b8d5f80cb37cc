//! Resolves the settings of `serve`: from a flag, else the environment, else a file `.env` in the
//! working directory, else the profile's defaults, else Jackalope's own defaults.
//!
//! Every flag `--some-name` of `serve` is also the variable `JACKALOPE_SOME_NAME`. A profile adds
//! the variables of another program. The values found are converted to arguments, which are then
//! parsed as if they had been typed, so every value is checked in the same way.

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
use jackalope_protocol::counted;

use crate::args::{Args, Profile};
use dotenv::Entry;
use table::{Effect, Variable};

pub(crate) use page::{commands_page, completions, config};

/// File that is read beside the environment.
const DOT_ENV: &str = ".env";

/// Maximum size of the file `.env` in bytes.
const DOT_ENV_BYTES_MAX: u64 = 1 << 20;

/// Prefix of Jackalope's own variables.
const PREFIX: &str = "JACKALOPE_";

/// Flags that no file in the working directory may set, because their values are executed.
const NOT_FROM_FILES: &[&str] = &["ssh"];

/// Flags that only change the output.
const NO_SETTINGS: &[&str] = &["json"];

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

/// Source of a value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Origin {
    /// A flag on the command line.
    Flag,
    /// An environment variable.
    Variable(String),
    /// A line of the file `.env`.
    File { line: usize, name: String },
    /// A default of the profile's program: profile and variable.
    Profile(&'static str, &'static str),
    /// Jackalope's own default.
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

/// Command line after all layers were applied.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Resolved {
    /// Arguments to parse instead of those that were typed.
    pub(crate) words: Vec<String>,
    /// Flags of `serve` that a layer below the command line has set, with their values.
    pub(crate) set: BTreeMap<String, (String, Origin)>,
    /// Messages for the user about variables that have no effect.
    pub(crate) notes: Vec<String>,
    /// Filter of the log.
    pub(crate) log_level: Option<&'static str>,
    /// Limits of open files: soft and hard.
    pub(crate) open_files: Option<(u64, u64)>,
    /// The profile's variable for the model, if no model is given.
    pub(crate) missing_model: Option<&'static str>,
    /// The arguments of `serve` or `start` as they were typed, without those that only affect
    /// output, waiting, replacing and detaching.
    pub(crate) typed: Vec<String>,
}

/// The layers that provide values, topmost first.
struct Layers<'a> {
    environment: &'a BTreeMap<String, String>,
    file: Vec<Entry>,
    profile: Option<Profile>,
}

/// Returns a predicate that is true for the names of variables that are settings.
pub(crate) fn setting_names() -> impl Fn(&str) -> bool {
    let own = |flag: String| format!("{PREFIX}{}", flag.replace('-', "_").to_uppercase());
    let own: Vec<String> = serve_flags().map(own).collect();
    let profiles = [Profile::JacclCluster, Profile::Ring];
    move |name| {
        profiles.iter().any(|it| it.variables().iter().any(|it| it.name == name))
            || own.iter().any(|it| it == name)
    }
}

/// Returns the long names of the flags of `serve` that variables can set.
fn serve_flags() -> impl Iterator<Item = String> {
    let command = Args::command();
    let serve = command.find_subcommand("serve").expect("it is there");
    let listed = serve.get_arguments().filter(|it| !it.is_hide_set() && !it.is_global_set());
    let names = listed.filter_map(|it| it.get_long()).filter(|it| !NO_SETTINGS.contains(it));
    let flags: Vec<String> = names.map(str::to_owned).collect();
    flags.into_iter()
}

/// Resolves a command line. Subcommands other than `serve` and `start` are left unchanged.
///
/// # Errors
/// If the value of a variable is invalid; the error names the variable, the values allowed, and an
/// example.
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

/// Returns the command-line parser with an optional model, because another layer may set it.
fn with_optional_model() -> clap::Command {
    let optional_model = |it: clap::Command| it.mut_group("offered", |it| it.required(false));
    let command = Args::command().mut_subcommand("serve", optional_model);
    command.mut_subcommand("start", optional_model)
}

/// Checks the arguments of `serve`; the model may be missing.
pub(crate) fn check_serve(words: &[String]) -> Result<(), clap::Error> {
    with_optional_model().try_get_matches_from(words).map(drop)
}

fn resolve_parts(
    words: Vec<String>,
    environment: &BTreeMap<String, String>,
    file: Option<&str>,
) -> anyhow::Result<Resolved> {
    let mut resolved = Resolved { words, ..Resolved::default() };
    // Invalid arguments are reported later, by the actual parse.
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

/// Reads the file in the working directory, if there is one.
pub(crate) fn read_file() -> anyhow::Result<Option<String>> {
    let Ok(metadata) = std::fs::metadata(DOT_ENV) else { return Ok(None) };
    if !metadata.is_file() {
        return Ok(None);
    }
    ensure!(metadata.len() <= DOT_ENV_BYTES_MAX, "{DOT_ENV} is longer than a mebibyte");
    let text = std::fs::read_to_string(DOT_ENV).with_context(|| format!("reading {DOT_ENV}"))?;
    Ok(Some(text))
}

/// Parses the file. A file without any of Jackalope's variables belongs to another program and is
/// ignored, unless a profile was requested.
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

/// Returns the arguments typed after the subcommand, without those that only affect output,
/// waiting, replacing and detaching.
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

/// Whether a flag was typed. The identifier of an argument is its long name with underscores.
fn is_typed(matches: &ArgMatches, flag: &str) -> bool {
    matches.value_source(&flag.replace('-', "_")) == Some(ValueSource::CommandLine)
}

/// Whether a flag conflicts with those typed, or is resolved elsewhere.
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

    /// Returns the value of a variable from the environment or else the file.
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

    /// Returns the value of a flag from the layers below the command line.
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
            // A value that is not known here is reported in a note and left out.
            let is_known = variable.warning(&value).is_none();
            let value = if flag == "env" { format!("{}={value}", variable.name) } else { value };
            anyhow::Ok(is_known.then_some((value, origin)))
        });
        let in_file = |it: &(String, Origin)| matches!(it.1, Origin::File { .. });
        Ok(match (found, theirs.transpose()?.flatten()) {
            // The environment takes precedence over the file, whatever the names.
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

    /// Reports names in the file that nearly match a variable, and variables that have no effect.
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
                    "{DOT_ENV} line {} sets {}, which is no setting\nhint: did you mean {near}?",
                    entry.line, entry.name
                ));
            }
        }
        Ok(())
    }

    fn knows(&self, name: &str) -> bool {
        self.variables().iter().any(|it| it.name == name)
    }

    /// Resolves settings that are not flags, or that combine several variables.
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

    /// Resolves the machines of a ring: this one, and the workers.
    fn workers(&self, resolved: &mut Resolved) -> anyhow::Result<()> {
        if !self.knows("WORKER_HOSTS") {
            return Ok(());
        }
        let (hosts, ssh) = (self.named("WORKER_HOSTS"), self.named("WORKER_SSH"));
        let count = |it: &Option<(String, Origin)>| it.as_ref().map(|it| rules::names(&it.0).len());
        if let (Some(num_hosts), Some(num_ssh)) = (count(&hosts), count(&ssh)) {
            ensure!(
                num_hosts == num_ssh,
                "WORKER_HOSTS names {} and WORKER_SSH {num_ssh}\n\
                 hint: give each worker an address and a name for ssh, in the same order",
                counted(num_hosts, "machine")
            );
        }
        let num_devices = self
            .named("NUM_DEVICES")
            .and_then(|(value, origin)| Some((value.parse::<usize>().ok()?, origin)));
        // Flags and Jackalope's own variables take precedence.
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
                     hint: leave it out: the number follows from the workers",
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
