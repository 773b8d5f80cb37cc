//! Paths of files below a folder, as machines send them to each other.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A path below a model's directory, with `/` between its parts. It is relative and has no `.` or
/// `..` parts, so that no path from an untrusted peer leads outside.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct FilePath(String);

/// A text that is not a safe path.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{path:?} is no path below a model's directory")]
pub struct FilePathError {
    /// The text.
    pub path: String,
}

impl FilePath {
    /// Returns the path with `/` between its parts.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the path below `dir`.
    pub fn below(&self, dir: &Path) -> PathBuf {
        dir.join(&self.0)
    }

    /// Returns the number of folders in the path.
    pub fn depth(&self) -> usize {
        self.0.matches('/').count()
    }
}

impl FromStr for FilePath {
    type Err = FilePathError;

    fn from_str(text: &str) -> Result<FilePath, FilePathError> {
        let is_part = |part: &str| {
            !matches!(part, "" | "." | "..") && !part.contains(['\\', ':']) && !has_control(part)
        };
        if text.split('/').all(is_part) {
            Ok(FilePath(text.to_owned()))
        } else {
            Err(FilePathError { path: text.to_owned() })
        }
    }
}

fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

impl TryFrom<String> for FilePath {
    type Error = FilePathError;

    fn try_from(text: String) -> Result<FilePath, FilePathError> {
        text.parse()
    }
}

impl From<FilePath> for String {
    fn from(path: FilePath) -> String {
        path.0
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_nowhere_else() {
        for good in ["config.json", "a/b/c.txt", "model-00001-of-00002.safetensors"] {
            assert_eq!(good.parse::<FilePath>().unwrap().as_str(), good);
        }
        for bad in ["", "/etc/passwd", "..", "a/../b", "a//b", "a/", "./a", "a\\b", "C:x", "a\nb"] {
            assert!(bad.parse::<FilePath>().is_err(), "{bad:?}");
        }
    }
}
