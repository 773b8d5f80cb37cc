//! Which of the versions on this machine is used: the links `current` and `previous`.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::home::{Home, HomeError};

/// The folder of versions, and the links to two of them.
const VERSIONS: &str = "versions";
const CURRENT: &str = "current";
const PREVIOUS: &str = "previous";

/// Which versions are used.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Switched {
    /// The one that is used now.
    pub current: String,
    /// The one to roll back to.
    pub previous: Option<String>,
    /// Whether another one was used before.
    pub changed: bool,
}

/// Why a version is not used.
#[derive(Debug, Error)]
pub enum VersionError {
    /// It is not there.
    #[error("there is no version {id} in {}", .home.display())]
    Absent {
        /// Which.
        id: String,
        /// Where.
        home: PathBuf,
    },
    /// There is none to roll back to.
    #[error("there is no earlier version in {}", .home.display())]
    NoPrevious {
        /// Where.
        home: PathBuf,
    },
    /// A file or folder cannot be used.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The folder cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
}

/// The version that is used, if one is.
pub fn current(home: &Home) -> Option<String> {
    target(home, CURRENT)
}

/// Uses a version from now on. Keeps the one that was used, and removes all others. Whoever looks at
/// any moment finds the old version or the new one.
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

/// Uses the version from before the last switch. Doing it twice is as if nothing had been done.
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

/// A link cannot be changed, but another one can take its name.
fn point(home: &Home, link: &str, id: &str) -> Result<(), VersionError> {
    let path = home.join(link);
    let failed = |source| VersionError::Io { path: path.clone(), source };
    let draft = home.join(&format!(".{link}.{}", std::process::id()));
    // Left over from one that was killed and had our number.
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
