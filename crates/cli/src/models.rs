//! `jackalope models`: the models on this machine.

mod compare;
mod sync;

use std::io::BufRead;
use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use indicatif::HumanBytes;
use jackalope_console::output;
use jackalope_deploy::content_of_dir;
use jackalope_deploy::error::and_more;
use jackalope_deploy::models::{Located, find, reference};
use jackalope_protocol::counted;
use jackalope_store::verify::{expectations, verify};
use jackalope_store::{Check, FoundModel, Hashing, Problem, Removal, Stores, content};
use jackalope_text::{ChatTemplate, Tokenizer};
use serde_json::{Value, json};

use crate::args::{CheckArgs, ListArgs, ModelsArgs, ModelsCommand, RemoveArgs};
use crate::environment::Environment;
use crate::progress::Transfer;

pub(crate) use sync::run as sync;

/// Number of hexadecimal digits shown of a commit.
const COMMIT_CHARS: usize = 8;

/// Number of hexadecimal digits shown of a checkpoint's identity.
const IDENTITY_CHARS: usize = 12;

pub(crate) async fn run(args: ModelsArgs, environment: &Environment) -> anyhow::Result<()> {
    match args.command {
        ModelsCommand::Ls(args) => list(&args, environment),
        ModelsCommand::Check(args) if args.hosts.is_some() => compare::run(args, environment).await,
        ModelsCommand::Check(args) => check(&args, environment).await,
        ModelsCommand::Sync(args) => sync::run(args, environment).await,
        ModelsCommand::Rm(args) => remove(&args, &environment.stores()),
    }
}

fn list(args: &ListArgs, environment: &Environment) -> anyhow::Result<()> {
    let stores = &environment.stores();
    let models = stores.list()?;
    let rows: Vec<(FoundModel, Check)> = models
        .into_iter()
        .map(|model| {
            let check = Check::of_dir(&model.dir).of_published();
            (model, check)
        })
        .collect();
    if args.json {
        let row = |(model, check): &(FoundModel, Check)| {
            let mut row = row_json(model, check);
            row["identity"] = json!(identity(&model.dir, environment));
            row
        };
        let models: Vec<Value> = rows.iter().map(row).collect();
        let places = stores.places().iter();
        let places: Vec<Value> =
            places.map(|it| json!({"path": it.root, "origin": it.origin})).collect();
        return Ok(output::line(json!({"models": models, "places": places}))?);
    }
    if rows.is_empty() {
        output::line("no models on this machine; looked in")?;
        for place in stores.places() {
            output::line(format_args!("  {} ({})", place.root.display(), place.origin))?;
        }
        return Ok(output::line("fetch one: jackalope pull ORG/NAME")?);
    }
    let width = rows.iter().map(|(model, _)| title(model).len()).max().unwrap_or(0).max(4);
    output::line(format_args!(
        "{:width$}  {:>10}  {:10}  {:12}  {:8}  where",
        "name", "size", "weights", "architecture", "whole"
    ))?;
    for (model, check) in &rows {
        let weights = check.summary.quantization.as_ref().map(ToString::to_string);
        output::line(format_args!(
            "{:width$}  {:>10}  {:10}  {:12}  {:8}  {}",
            title(model),
            HumanBytes(check.summary.bytes).to_string(),
            weights.as_deref().unwrap_or("?"),
            check.summary.architecture.as_deref().unwrap_or("?"),
            if check.is_whole() { "yes" } else { "no" },
            model.dir.display()
        ))?;
    }
    for (model, check) in rows.iter().filter(|(_, check)| !check.is_whole()) {
        let more = and_more(check.problems.len() - 1);
        output::line(format_args!("{}: {}{more}", title(model), check.problems[0]))?;
    }
    for (model, check) in &rows {
        if let Some(unsupported) = &check.unsupported {
            output::line(format_args!("{}: {unsupported}", title(model)))?;
        }
    }
    Ok(())
}

/// Returns the name with the beginning of the commit.
fn title(model: &FoundModel) -> String {
    match &model.commit {
        Some(commit) => {
            let short: String = commit.chars().take(COMMIT_CHARS).collect();
            format!("{}@{short}", model.name)
        }
        None => model.name.clone(),
    }
}

fn row_json(model: &FoundModel, check: &Check) -> Value {
    json!({
        "name": model.name, "revision": model.commit, "path": model.dir,
        "origin": model.place.origin, "bytes": check.summary.bytes,
        "files": check.summary.num_files, "architecture": check.summary.architecture,
        "quantization": check.summary.quantization, "complete": check.is_whole(),
        "problems": texts(&check.problems),
        "unsupported": check.unsupported.as_ref().map(ToString::to_string),
    })
}

fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

/// Returns the identity of the checkpoint in `dir`, if it is cached.
fn identity(dir: &Path, environment: &Environment) -> Option<String> {
    let known = content::known(dir, &environment.local.trees_dir()?)?;
    Some(known.id.to_string())
}

async fn check(args: &CheckArgs, environment: &Environment) -> anyhow::Result<()> {
    let Located { dir, name, .. } = find(&args.model, &environment.stores())?;
    let Check { summary, mut problems, unsupported, unused, .. } =
        Check::of_dir(&dir).of_published();
    let mut unknown = None;
    if args.hash {
        let files = expectations(&dir)?;
        let known = files.iter().filter(|file| file.blob.is_some());
        let bar = Transfer::new("reading", known.clone().map(|file| file.bytes).sum());
        problems.extend(verify(&files, Hashing::new(&|num_bytes| bar.add(num_bytes)))?);
        bar.finish();
        unknown = Some(files.len() - known.count());
    }
    if args.hash && problems.is_empty() {
        if let Some(trees_dir) = environment.local.trees_dir() {
            content::forget(&dir, &trees_dir)?;
        }
        content_of_dir(&dir, &environment.local).await?;
    }
    let identity = identity(&dir, environment);
    let tokenizer_error = problems.is_empty().then(|| Tokenizer::load(&dir).err()).flatten();
    // Such a model is served, but for completions only.
    let template_error = ChatTemplate::check(&dir).err().map(|err| err.to_string());
    if args.json {
        output::line(json!({
            "name": name, "path": dir, "complete": problems.is_empty(), "bytes": summary.bytes,
            "files": summary.num_files, "problems": texts(&problems),
            "hashed": unknown.map(|it| summary.num_files.saturating_sub(it)),
            "without_known_hash": unknown, "identity": identity,
            "unsupported": unsupported.as_ref().map(ToString::to_string),
            "tokenizer_error": tokenizer_error.as_ref().map(ToString::to_string),
            "template_error": template_error,
        }))?;
    }
    ensure!(
        problems.is_empty(),
        "{name} in {} is incomplete:\n  {}\nhint: pull or copy it again, or run mlx_lm.convert",
        dir.display(),
        texts(&problems).join("\n  ")
    );
    if let Some(unsupported) = unsupported {
        let hint = unsupported.hint();
        bail!("{name} is complete, but cannot be loaded: {unsupported}\nhint: {hint}");
    }
    if let Some(err) = tokenizer_error {
        bail!("{name} has all weights, but cannot be loaded: {err}");
    }
    if !args.json {
        let read = match unknown {
            None => String::new(),
            Some(0) => ", all bytes as downloaded".to_owned(),
            Some(unknown) => {
                format!(", but there is no recorded hash of {}", counted(unknown, "file"))
            }
        };
        let size = HumanBytes(summary.bytes);
        let short: Option<String> = identity.map(|it| it.chars().take(IDENTITY_CHARS).collect());
        let identity = short.map(|it| format!(", identity {it}")).unwrap_or_default();
        let files = counted(summary.num_files, "file");
        output::line(format_args!("{name} is complete: {files}, {size}{read}{identity}{unused}"))?;
        if let Some(err) = template_error {
            output::line(format_args!("its chat template cannot be used: {err}"))?;
        }
    }
    Ok(())
}

fn remove(args: &RemoveArgs, stores: &Stores) -> anyhow::Result<()> {
    let removal = match reference(&args.model).filter(|_| !args.model.is_dir()) {
        Some(wanted) => Removal::of_name(stores, &wanted).map_err(|err| {
            // That error's hint says how to pull the model, which does not help to remove it.
            let said = err.to_string();
            let reason = said.split("\nhint: ").next().unwrap_or_default();
            anyhow!("{reason}\nhint: `jackalope models ls` lists the models here")
        })?,
        None => Removal::of_dir(stores, &args.model)?,
    };
    let Removal { name, dir, bytes, .. } = &removal;
    ensure!(
        removal.is_in_store || args.yes,
        "{} is outside the folders for models\nhint: pass `--yes` to remove it nevertheless",
        dir.display()
    );
    let size = HumanBytes(*bytes);
    if !args.yes {
        eprint!("remove {name} from {} ({size})? [y/N] ", dir.display());
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer).context("reading the answer")?;
        let is_yes = matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes");
        ensure!(is_yes, "nothing was removed\nhint: answer y, or pass `--yes`");
    }
    removal.carry_out()?;
    if args.json {
        return Ok(output::line(json!({"removed": name, "path": dir, "bytes": bytes}))?);
    }
    Ok(output::line(format_args!("removed {name}: {size} are free again"))?)
}
