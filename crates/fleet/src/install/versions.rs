//! Selects the version that is used on this machine: the links `current` and `previous`.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::home::{Home, HomeError};

/// Names of the folder of versions, and of the links to two of them.
const VERSIONS: &str = "versions";
const CURRENT: &str = "current";
const PREVIOUS: &str = "previous";

/// The result of switching to a version.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Switched {
    /// The version in use now.
    pub current: String,
    /// The version that a rollback returns to.
    pub previous: Option<String>,
    /// Whether another version was in use before.
    pub changed: bool,
}

/// Reason why a version cannot be used.
#[derive(Debug, Error)]
pub enum VersionError {
    /// The version is not installed.
    #[error(
        "there is no version {id} in {}\nhint: its folder `versions` has a folder for each version",
        .home.display()
    )]
    Absent {
        /// The version.
        id: String,
        /// Jackalope's folder.
        home: PathBuf,
    },
    /// There is no version to roll back to.
    #[error(
        "there is no earlier version in {}\nhint: one is kept only after an installation replaced it",
        .home.display()
    )]
    NoPrevious {
        /// Jackalope's folder.
        home: PathBuf,
    },
    /// A file or folder cannot be used.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Path of the file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The folder cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
}

/// Returns the version in use, if there is one.
pub fn current(home: &Home) -> Option<String> {
    target(home, CURRENT)
}

/// Switches to a version. Keeps the previous one and removes all others. At any moment, `current`
/// points to the old version or to the new one.
///
/// # Errors
/// [`VersionError`].
pub fn activate(home: &Home, id: &str) -> Result<Switched, VersionError> {
    let is_name = !id.is_empty() && !id.starts_with('.') && !id.contains('/');
    if !is_name || !home.join(VERSIONS).join(id).is_dir() {
        return Err(VersionError::Absent { id: id.to_owned(), home: home.path().to_owned() });
    }
    let before = current(home);
    let changed = before.as_deref() != Some(id);
    if changed {
        if let Some(before) = before.filter(|it| home.join(VERSIONS).join(it).is_dir()) {
            point(home, PREVIOUS, &before)?;
        }
        point(home, CURRENT, id)?;
    }
    let previous =
        target(home, PREVIOUS).filter(|it| it != id && home.join(VERSIONS).join(it).is_dir());
    remove_others(home, &[Some(id), previous.as_deref()])?;
    Ok(Switched { current: id.to_owned(), previous, changed })
}

/// Switches to the version that was used before the last switch. Calling it twice restores the
/// first state.
///
/// # Errors
/// [`VersionError`].
pub fn roll_back(home: &Home) -> Result<Switched, VersionError> {
    match target(home, PREVIOUS) {
        Some(previous) => activate(home, &previous),
        None => Err(VersionError::NoPrevious { home: home.path().to_owned() }),
    }
}

fn target(home: &Home, link: &str) -> Option<String> {
    let target = fs::read_link(home.join(link)).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// Points a link to a version. A link cannot be changed atomically, but a new one can replace it.
fn point(home: &Home, link: &str, id: &str) -> Result<(), VersionError> {
    let path = home.join(link);
    let failed = |source| VersionError::Io { path: path.clone(), source };
    let draft = home.join(&format!(".{link}.{}", std::process::id()));
    // A process that was killed and had the same pid may have left this draft.
    fs::remove_file(&draft).ok();
    symlink(Path::new(VERSIONS).join(id), &draft).map_err(failed)?;
    fs::rename(&draft, &path).map_err(failed)
}

fn remove_others(home: &Home, kept: &[Option<&str>]) -> Result<(), VersionError> {
    let dir = home.join(VERSIONS);
    let failed = |path: &Path, source| VersionError::Io { path: path.to_owned(), source };
    for entry in fs::read_dir(&dir).map_err(|source| failed(&dir, source))? {
        let entry = entry.map_err(|source| failed(&dir, source))?;
        let name = entry.file_name();
        if kept.iter().flatten().all(|it| name.to_str() != Some(*it)) {
            let path = entry.path();
            fs::remove_dir_all(&path).map_err(|source| failed(&path, source))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_two_versions_are_kept_and_the_way_back_leads_to_the_earlier() {
        let path = std::env::temp_dir().join(format!("jackalope-versions-{}", std::process::id()));
        fs::remove_dir_all(&path).ok();
        let home = Home::new(&path);
        let make = |id: &str| drop(home.dir(&format!("versions/{id}")).unwrap());
        let ids = || {
            let entries = fs::read_dir(home.join(VERSIONS)).unwrap();
            let mut ids: Vec<_> =
                entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
            ids.sort();
            ids
        };
        make("1");
        make(".9.part");
        let first = activate(&home, "1").unwrap();
        assert_eq!((first.previous.as_deref(), first.changed), (None, true));
        assert_eq!(ids(), ["1"]);
        assert!(roll_back(&home).unwrap_err().to_string().contains("no earlier version"));
        make("2");
        activate(&home, "2").unwrap();
        make("3");
        assert_eq!(activate(&home, "3").unwrap().previous.as_deref(), Some("2"));
        assert!(!activate(&home, "3").unwrap().changed);
        assert_eq!(ids(), ["2", "3"]);
        assert!(home.join("current").join(".").is_dir());
        let back = roll_back(&home).unwrap();
        assert_eq!((back.current.as_str(), back.previous.as_deref()), ("2", Some("3")));
        for bad in ["", "4", "../2", ".9.part"] {
            assert!(activate(&home, bad).is_err(), "{bad}");
        }
        assert_eq!(current(&home).as_deref(), Some("2"));
        fs::remove_dir_all(&path).unwrap();
    }
}
