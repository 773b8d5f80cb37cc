//! Models that are to be served: which directory a name means, and where each machine reads it.

mod copy;
mod member;
mod open_library;
mod sources;

use std::path::{Path, PathBuf};

use jackalope_store::{Check, ModelRef, Stores};

pub use copy::{
    CopyEnd, CopyEvent, CopyGroup, CopyMembers, CopyOrder, CopyOutcome, DEFAULT_CONNECTIONS,
    HostHolding,
};
pub use member::{Member, library_of};
pub use open_library::FixedLibrary;
pub(crate) use sources::{ModelMachines, ModelPlace, places};

use crate::context::LocalContext;
use crate::error::LocateError;

/// A model's directory and name.
#[derive(Clone, Debug)]
pub struct Located {
    /// Directory of the model.
    pub dir: PathBuf,
    /// Name of the model.
    pub name: String,
    /// Whether the model was requested by name rather than by directory.
    pub by_name: bool,
}

/// Returns the model that `--model` means: a directory, or the name of a complete model on this
/// machine. Never uses the network.
///
/// # Errors
/// If there is no such model, or it is incomplete.
pub fn locate(model: &Path, context: &LocalContext) -> Result<Located, LocateError> {
    let located = find(model, &context.stores())?;
    if model.is_dir() {
        return Ok(located);
    }
    let mut problems = Check::of_dir(&located.dir).problems.into_iter();
    let Some(first) = problems.next().map(Box::new) else { return Ok(located) };
    let (name, num_more, path) = (located.name, problems.len(), model.to_owned());
    Err(LocateError::Incomplete { name, first, num_more, path })
}

/// Like [`locate`], for a model that is to be loaded.
///
/// # Errors
/// As in [`locate`], and if this version cannot load the model.
pub fn locate_loadable(model: &Path, context: &LocalContext) -> Result<Located, LocateError> {
    let located = locate(model, context)?;
    match Check::unsupported(&located.dir) {
        None => Ok(located),
        Some(source) => {
            let (name, source) = (located.name, Box::new(source));
            Err(LocateError::Unsupported { name, source })
        }
    }
}

/// Returns the directory itself, or the model of this name in the stores.
///
/// # Errors
/// If there is no such model.
pub fn find(model: &Path, stores: &Stores) -> Result<Located, LocateError> {
    if model.is_dir() {
        let dir = std::fs::canonicalize(model)
            .map_err(|source| LocateError::Read { path: model.to_owned(), source })?;
        let own_name = || Some(dir.file_name()?.to_string_lossy().into_owned());
        let name = stores.owner(&dir).map(|found| found.name).or_else(own_name);
        let name = name.ok_or(LocateError::NoName)?;
        return Ok(Located { dir, name, by_name: false });
    }
    let Some(wanted) = reference(model) else {
        return Err(LocateError::NoCheckpoint { path: model.to_owned() });
    };
    let found = stores.resolve(&wanted)?;
    Ok(Located { dir: found.dir, name: found.name, by_name: true })
}

/// Parses the name of a model; `None` if it can only be a path.
pub fn reference(model: &Path) -> Option<ModelRef> {
    model.to_str().filter(|text| !text.starts_with(['/', '.', '~']))?.parse().ok()
}
