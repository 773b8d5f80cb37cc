//! Models that are to be served: which directory a name means, and where each machine reads it.

mod member;
mod sources;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use jackalope_store::{Check, ModelRef, Stores};

pub use member::{Member, library_of};
pub(crate) use sources::{ModelMachines, ModelPlace, places};

use crate::context::LocalContext;

/// Hint for a model that this version cannot load.
pub const UNSUPPORTED_HINT: &str = "choose a model of one of these kinds, convert this one with mlx_lm.convert, or take a version of \
     jackalope that loads it";

/// A model's directory and name.
#[derive(Clone, Debug)]
pub struct Located {
    /// Its directory.
    pub dir: PathBuf,
    /// Its name.
    pub name: String,
    /// Whether the model was requested by name rather than by directory.
    pub by_name: bool,
}

/// Returns the model that `--model` means: a directory, or the name of a complete model on this
/// machine. Never uses the network.
pub fn locate(model: &Path, context: &LocalContext) -> anyhow::Result<Located> {
    let located = find(model, &context.stores())?;
    if model.is_dir() {
        return Ok(located);
    }
    let problems = Check::of_dir(&located.dir).problems;
    let Some(first) = problems.first() else { return Ok(located) };
    bail!(
        "{} is incomplete: {first}{}\nhint: jackalope pull {}",
        located.name,
        and_more(problems.len() - 1),
        model.display()
    )
}

/// Like [`locate`], for a model that is to be loaded.
///
/// # Errors
/// As in [`locate`], and if this version cannot load the model.
pub fn locate_loadable(model: &Path, context: &LocalContext) -> anyhow::Result<Located> {
    let located = locate(model, context)?;
    let reason = Check::unsupported(&located.dir);
    refuse(located, reason)
}

fn refuse(located: Located, reason: Option<impl Display>) -> anyhow::Result<Located> {
    match reason {
        None => Ok(located),
        Some(reason) => bail!("{}: {reason}\nhint: {UNSUPPORTED_HINT}", located.name),
    }
}

/// Returns the directory itself, or the model of this name in the stores.
pub fn find(model: &Path, stores: &Stores) -> anyhow::Result<Located> {
    if model.is_dir() {
        let dir = std::fs::canonicalize(model)?;
        let own_name = || {
            let name = dir.file_name().context("the model's directory has no name")?;
            anyhow::Ok(name.to_string_lossy().into_owned())
        };
        let name = stores.owner(&dir).map_or_else(own_name, |found| Ok(found.name))?;
        return Ok(Located { dir, name, by_name: false });
    }
    let Some(wanted) = reference(model) else {
        bail!(
            "no checkpoint at {}\nhint: give a directory, or ORG/NAME of a model on this machine \
             (`jackalope models ls`)",
            model.display()
        )
    };
    let found = stores.resolve(&wanted).context("no such directory")?;
    Ok(Located { dir: found.dir, name: found.name, by_name: true })
}

/// Parses the name of a model; `None` if it can only be a path.
pub fn reference(model: &Path) -> Option<ModelRef> {
    model.to_str().filter(|text| !text.starts_with(['/', '.', '~']))?.parse().ok()
}

/// Returns words for further items of a list; empty if there are none.
pub fn and_more(num_more: usize) -> String {
    if num_more == 0 { String::new() } else { format!(", and {num_more} more") }
}
