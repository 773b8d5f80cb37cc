//! Names of models as people type them: `org/name` or `org/name@revision`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Maximum length of a repository's name.
const REPO_CHARS_MAX: usize = 96;

/// Maximum length of a revision's name.
const REVISION_CHARS_MAX: usize = 200;

/// The revision that is used if none is named.
const DEFAULT_REVISION: &str = "main";

/// A repository of a model hub: `org/name`, or just `name` as in the hub's early years. Safe as a
/// part of a path and of a URL.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RepoId(String);

/// A branch, tag or commit of a repository. Safe as a relative path; a URL needs its slashes encoded.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Revision(String);

/// A repository, optionally with a revision: `org/name@revision`.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ModelRef {
    /// The repository.
    pub repo: RepoId,
    /// The requested revision.
    pub revision: Option<Revision>,
}

/// Reason why a text does not name a model.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum NameError {
    /// The text is not the name of a repository.
    #[error("{name:?} is no repository\nhint: write ORG/NAME, as in its address on the hub")]
    Repo {
        /// The text.
        name: String,
    },
    /// The text is not the name of a revision.
    #[error("{name:?} is no revision\nhint: name a branch, a tag or a commit")]
    Revision {
        /// The text.
        name: String,
    },
}

impl RepoId {
    /// Returns the name as `org/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the part after the owner.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().expect("a split has a last part")
    }
}

impl Revision {
    /// Returns the name: `main`, `refs/pr/1`, or a commit.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Revision {
    fn default() -> Revision {
        Revision(DEFAULT_REVISION.to_owned())
    }
}

impl FromStr for RepoId {
    type Err = NameError;

    /// Follows the hub's rules, which forbid `--`, so that `--` can stand for a slash.
    fn from_str(text: &str) -> Result<RepoId, NameError> {
        let is_part = |part: &str| {
            let is_edge = |c: char| c == '-' || c == '.';
            !part.is_empty()
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
                && !part.starts_with(is_edge)
                && !part.ends_with(is_edge)
                && !part.contains("--")
                && !part.contains("..")
        };
        let is_repo = text.len() <= REPO_CHARS_MAX
            && text.split('/').count() <= 2
            && text.split('/').all(is_part);
        if is_repo {
            Ok(RepoId(text.to_owned()))
        } else {
            Err(NameError::Repo { name: text.to_owned() })
        }
    }
}

impl FromStr for Revision {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Revision, NameError> {
        let is_part = |part: &str| {
            !part.is_empty()
                && !part.starts_with(['.', '-'])
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c))
        };
        if text.len() <= REVISION_CHARS_MAX && text.split('/').all(is_part) {
            Ok(Revision(text.to_owned()))
        } else {
            Err(NameError::Revision { name: text.to_owned() })
        }
    }
}

impl FromStr for ModelRef {
    type Err = NameError;

    fn from_str(text: &str) -> Result<ModelRef, NameError> {
        let (repo, revision) = match text.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision.parse()?)),
            None => (text, None),
        };
        Ok(ModelRef { repo: repo.parse()?, revision })
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.revision {
            Some(revision) => write!(f, "{}@{revision}", self.repo),
            None => write!(f, "{}", self.repo),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_hubs_and_nothing_that_leads_elsewhere() {
        for good in ["gpt2", "Qwen/Qwen3-0.6B", "mlx-community/Llama-3.2_1B", "a/b@refs/pr/1"] {
            assert_eq!(good.parse::<ModelRef>().unwrap().to_string(), good);
        }
        let long = format!("a/{}", "b".repeat(100));
        for bad in [
            "",
            "/",
            "a/",
            "/a",
            "a/b/c",
            "../a",
            "a/..",
            "a/b--c",
            "-a/b",
            "a/.b",
            "a/b.",
            "a b/c",
            "a/b@",
            "a/b@../x",
            "a/b@x/",
            "a/b@-x",
            "a/b@x/../y",
            "a\\b",
            &long,
        ] {
            assert!(bad.parse::<ModelRef>().is_err(), "{bad:?}");
        }
    }
}
