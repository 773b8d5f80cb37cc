//! `jackalope config`, and the pages that are generated from the tables: `.env.example` and
//! `docs/commands.md`.

use std::fmt::Write;

use clap::{Arg, ArgMatches, Command, CommandFactory};
use serde_json::{Map, Value, json};

use super::table::{self, Effect, Variable};
use super::{Origin, PREFIX, Resolved, read_file, resolve_parts, serve_flags};
use crate::args::operate::ConfigArgs;
use crate::args::{Args, CompletionsArgs};
use crate::environment::Environment;
use crate::{keys, output};

const EXAMPLE_HEAD: &str = "\
# Settings of `jackalope serve` and `jackalope start`, read from a file `.env` in the folder they are
# started in. A flag comes before a variable of the environment, that before this file.
# `jackalope config` shows each setting's value and where it comes from.
# Made by `jackalope config --example`.
";

const COMMANDS_HEAD: &str = "\
# Commands

Made by `jackalope commands-page` from what `jackalope --help` says; a test compares them.
";

pub(crate) fn config(args: &ConfigArgs, environment: &Environment) -> anyhow::Result<()> {
    if args.example {
        return Ok(output::piece(example())?);
    }
    let mut words = vec!["jackalope".to_owned(), "serve".to_owned()];
    words.extend(args.serve.iter().map(|it| it.to_string_lossy().into_owned()));
    if let Some(profile) = args.profile {
        words.push(format!("--profile={}", profile.name()));
    }
    let file = read_file()?;
    let resolved = resolve_parts(words, environment.settings(), file.as_deref())?;
    let matches = super::with_optional_model().try_get_matches_from(&resolved.words)?;
    let (_, matches) = matches.subcommand().expect("`serve` was asked for");
    let settings: Vec<(String, String, Origin)> =
        serve_flags().filter_map(|flag| setting(&flag, matches, &resolved)).collect();
    for note in &resolved.notes {
        output::note(note);
    }
    if args.json {
        let of = |(flag, value, origin): &(String, String, Origin)| {
            (flag.clone(), json!({"value": value, "origin": origin.to_string()}))
        };
        let settings: Map<String, Value> = settings.iter().map(of).collect();
        return Ok(output::line(json!({"settings": settings, "notes": resolved.notes}))?);
    }
    let width = |of: fn(&(String, String, Origin)) -> &str| {
        settings.iter().map(|it| of(it).chars().count()).max().unwrap_or(0)
    };
    let (names, values) = (width(|it| &it.0), width(|it| &it.1).min(40));
    for (flag, value, origin) in &settings {
        output::line(format_args!("{flag:<names$}  {value:<values$}  {origin}"))?;
    }
    Ok(())
}

/// Returns the name of a flag, its value and the source of the value.
fn setting(
    flag: &str,
    matches: &ArgMatches,
    resolved: &Resolved,
) -> Option<(String, String, Origin)> {
    let id = flag.replace('-', "_");
    let raw = matches.try_get_raw(&id).ok()?;
    let values: Vec<String> =
        raw.into_iter().flatten().map(|it| it.to_string_lossy().into_owned()).collect();
    let value = match keys::SECRET_FLAGS.contains(&flag) && !values.is_empty() {
        true => "(not shown)".to_owned(),
        false => values.join(","),
    };
    let origin = match (resolved.set.get(flag), super::is_typed(matches, flag)) {
        (Some((_, origin)), _) => origin.clone(),
        (None, true) => Origin::Flag,
        (None, false) => Origin::Default,
    };
    Some((flag.to_owned(), value, origin))
}

/// Returns the content of `.env.example`.
fn example() -> String {
    let mut text = EXAMPLE_HEAD.to_owned();
    let mut section = |title: &str, variables: &[Variable]| {
        write!(text, "\n# {title}\n").expect("text takes all");
        for Variable { name, effect, default, about, .. } in variables {
            let effect = match effect {
                Effect::Flag(flag) => format!(" (--{flag})"),
                Effect::Read => String::new(),
                Effect::Nothing(why) => format!(" (no effect: {why})"),
            };
            writeln!(text, "\n# {about}{effect}\n# {name}={default}").expect("text takes all");
        }
    };
    section("With `--profile jaccl-cluster`", table::JACCL_CLUSTER);
    section("With `--profile ring`", table::RING);
    text.push_str("\n# Always: every flag of `jackalope serve`\n\n");
    for flag in serve_flags() {
        let name = flag.replace('-', "_").to_uppercase();
        writeln!(text, "# {PREFIX}{name}=").expect("text takes all");
    }
    text
}

/// Prints the page `docs/commands.md`.
pub(crate) fn commands_page() -> anyhow::Result<()> {
    let mut text = COMMANDS_HEAD.to_owned();
    let mut command = Args::command();
    command.build();
    let visible = |it: &&Command| !it.is_hide_set() && it.get_name() != "help";
    for subcommand in command.get_subcommands().filter(visible) {
        describe(subcommand, "jackalope", &mut text);
    }
    Ok(output::piece(text)?)
}

/// Prints a script that completes commands and options.
pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "jackalope", &mut script);
    Ok(output::piece(String::from_utf8(script)?)?)
}

fn describe(command: &Command, above: &str, text: &mut String) {
    let name = format!("{above} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    write!(text, "\n## `{name}`\n\n{about}\n").expect("text takes all");
    let is_told = |it: &&Arg| !it.is_hide_set() && !it.is_global_set() && it.get_id() != "help";
    let rows: Vec<String> = command.get_arguments().filter(is_told).map(row).collect();
    if !rows.is_empty() {
        text.push_str("\n| Argument | |\n|---|---|\n");
        rows.iter().for_each(|it| text.push_str(it));
    }
    let visible = |it: &&Command| !it.is_hide_set() && it.get_name() != "help";
    for subcommand in command.get_subcommands().filter(visible) {
        describe(subcommand, &name, text);
    }
}

fn row(arg: &Arg) -> String {
    let plain = |text: String| text.replace('\n', " ").replace('|', "\\|");
    let takes_value = arg.get_action().takes_values();
    let names = arg.get_value_names().unwrap_or_default();
    let value = names.iter().map(|it| it.as_str()).collect::<Vec<_>>().join(" ");
    let value = if takes_value { value } else { String::new() };
    let mut names: Vec<String> = arg.get_short().iter().map(|it| format!("-{it}")).collect();
    names.extend(arg.get_long().map(|it| format!("--{it}")));
    let aliases = arg.get_visible_aliases().unwrap_or_default();
    names.extend(aliases.iter().map(|it| format!("--{it}")));
    let shown = match (names.is_empty(), value.is_empty()) {
        (true, _) => value,
        (false, true) => names.join(", "),
        (false, false) => format!("{} {value}", names.join(", ")),
    };
    let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    if !help.is_empty() && !help.ends_with('.') {
        help.push('.');
    }
    let possible: Vec<String> = match takes_value {
        true => arg.get_possible_values().iter().map(|it| it.get_name().to_owned()).collect(),
        false => Vec::new(),
    };
    if !possible.is_empty() {
        write!(help, " One of {}.", possible.join(", ")).expect("text takes all");
    }
    let defaults: Vec<_> =
        arg.get_default_values().iter().map(|it| it.to_string_lossy().into_owned()).collect();
    if takes_value && !defaults.is_empty() {
        write!(help, " Default: {}.", defaults.join(",")).expect("text takes all");
    }
    let shown = plain(shown);
    format!("| `{shown}` | {} |\n", plain(help))
}
