//! The content of a model's directory: every file with its size and hash, so that two machines can
//! check whether they have the same model.

use std::cmp::Ordering;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use jackalope_protocol::{ContentHash, FilePath, counted};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::files::{self, ListError, write_whole};
use super::hashes::{HashCache, HashFailure, Hashing};

/// Path of the record in a directory that we filled: what the directory should hold.
const RECORD_PATH: &str = ".jackalope/manifest.json";

/// A file of a model.
#[derive(Clone, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub struct FileEntry {
    /// Path below the model's directory.
    pub path: FilePath,
    /// Size in bytes.
    pub bytes: u64,
    /// Hash of the file's content.
    pub sha256: ContentHash,
}

/// The files of a model, sorted by path, each path once. Serialised as a list of entries.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "Vec<FileEntry>", into = "Vec<FileEntry>")]
pub struct Manifest {
    files: Vec<FileEntry>,
}

/// What a directory that we filled should hold, and where its files come from.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Record {
    /// Repository: `org/name`.
    pub repo: String,
    /// Commit of the repository.
    pub commit: String,
    /// The files.
    pub manifest: Manifest,
}

/// A difference between a directory and its manifest.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Difference {
    /// A file is missing.
    Missing {
        /// The file.
        path: FilePath,
    },
    /// A file is not in the manifest.
    Extra {
        /// The file.
        path: FilePath,
    },
    /// A file has another size.
    Size {
        /// The file.
        path: FilePath,
        /// Size in the manifest.
        wanted: u64,
        /// Actual size.
        found: u64,
    },
    /// A file of the right size has another content.
    Content {
        /// The file.
        path: FilePath,
    },
}

/// Reason why no manifest can be made.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// The directory cannot be listed.
    #[error(transparent)]
    List(#[from] ListError),
    /// A file cannot be read.
    #[error("reading {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file changed while it was read.
    #[error("{} changed while it was read\nhint: wait until its download or copy has ended", .path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A path is listed twice.
    #[error("{path} is listed twice")]
    Twice {
        /// The path.
        path: FilePath,
    },
}

impl Manifest {
    /// Creates the manifest of these files, in any order.
    ///
    /// # Errors
    /// [`ManifestError::Twice`].
    pub fn new(mut files: Vec<FileEntry>) -> Result<Manifest, ManifestError> {
        files.sort_by(|one, other| one.path.cmp(&other.path));
        match files.windows(2).find(|pair| pair[0].path == pair[1].path) {
            Some(pair) => Err(ManifestError::Twice { path: pair[0].path.clone() }),
            None => Ok(Manifest { files }),
        }
    }

    /// Creates the manifest of the files in `dir`, without hidden and unfinished ones. Reads only
    /// files whose hash is not in `known`, in bounded memory, and adds their hashes to it.
    ///
    /// # Errors
    /// [`ManifestError`] if a file could not be read or changed meanwhile.
    pub fn of_dir(
        dir: &Path,
        known: &mut HashCache,
        hashing: Hashing<'_>,
    ) -> Result<Manifest, ManifestError> {
        let found = files::list(dir)?;
        let hashes = known.hash(&found, hashing).map_err(|failure| match failure {
            HashFailure::Read(path, source) => ManifestError::Read { path, source },
            HashFailure::Changed(path) => ManifestError::Changed { path },
        })?;
        let entries = found.into_iter().zip(hashes);
        let entries = entries
            .map(|(file, sha256)| FileEntry { path: file.path, bytes: file.bytes, sha256 })
            .collect();
        Manifest::new(entries)
    }

    /// Returns the files, sorted by path.
    pub fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// Returns the entry of a file.
    pub fn file(&self, path: &FilePath) -> Option<&FileEntry> {
        let at = self.files.binary_search_by(|entry| entry.path.cmp(path)).ok()?;
        Some(&self.files[at])
    }

    /// Returns the total size of all files in bytes.
    pub fn num_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Returns one hash of the whole manifest: equal on two machines that hold the same files.
    pub fn digest(&self) -> ContentHash {
        let lines = self.files.iter().map(|it| format!("{} {} {}\n", it.sha256, it.bytes, it.path));
        ContentHash::of(lines.collect::<String>().as_bytes())
    }

    /// Returns how `found` differs from this manifest, sorted by path. Empty if and only if both
    /// are equal.
    pub fn differences(&self, found: &Manifest) -> Vec<Difference> {
        let mut differences = Vec::new();
        merge(
            &self.files,
            &found.files,
            |it| &it.path,
            |wanted, found| {
                differences.extend(match (wanted, found) {
                    (Some(wanted), Some(found)) if wanted.bytes != found.bytes => {
                        Some(size(&wanted.path, wanted.bytes, found.bytes))
                    }
                    (Some(wanted), Some(found)) => (wanted.sha256 != found.sha256)
                        .then(|| Difference::Content { path: wanted.path.clone() }),
                    (Some(it), None) => Some(Difference::Missing { path: it.path.clone() }),
                    (None, Some(it)) => Some(Difference::Extra { path: it.path.clone() }),
                    (None, None) => None,
                });
            },
        );
        differences
    }

    /// Returns how the names and sizes of the files in `dir` differ from this manifest. Reads no
    /// file.
    ///
    /// # Errors
    /// [`ManifestError::List`].
    pub fn differences_of_sizes(&self, dir: &Path) -> Result<Vec<Difference>, ManifestError> {
        let found = files::list(dir)?;
        let found: Vec<FileEntry> = found
            .into_iter()
            .map(|it| {
                let sha256 = self.file(&it.path).map_or(ContentHash([0; 32]), |it| it.sha256);
                FileEntry { path: it.path, bytes: it.bytes, sha256 }
            })
            .collect();
        Ok(self.differences(&Manifest::new(found)?))
    }
}

fn size(path: &FilePath, wanted: u64, found: u64) -> Difference {
    Difference::Size { path: path.clone(), wanted, found }
}

/// Visits two lists that are sorted by `key` in parallel.
fn merge<'a, T, K: Ord>(
    mut one: &'a [T],
    mut other: &'a [T],
    key: impl Fn(&T) -> &K,
    mut visit: impl FnMut(Option<&'a T>, Option<&'a T>),
) {
    loop {
        let order = match (one.first(), other.first()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => key(a).cmp(key(b)),
        };
        let take = |list: &mut &'a [T], if_not: Ordering| {
            let (first, rest) = list.split_first().filter(|_| order != if_not)?;
            *list = rest;
            Some(first)
        };
        let pair = (take(&mut one, Ordering::Greater), take(&mut other, Ordering::Less));
        visit(pair.0, pair.1);
    }
}

impl Record {
    /// Reads the record that [`Record::write`] left in `dir`; `None` if it is absent or malformed.
    pub fn read(dir: &Path) -> Option<Record> {
        serde_json::from_slice(&std::fs::read(dir.join(RECORD_PATH)).ok()?).ok()
    }

    /// Writes this record into `dir`, atomically.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let content = serde_json::to_vec_pretty(self).expect("a record is JSON");
        write_whole(&dir.join(RECORD_PATH), &content)
    }
}

impl TryFrom<Vec<FileEntry>> for Manifest {
    type Error = ManifestError;

    fn try_from(files: Vec<FileEntry>) -> Result<Manifest, ManifestError> {
        Manifest::new(files)
    }
}

impl From<Manifest> for Vec<FileEntry> {
    fn from(manifest: Manifest) -> Vec<FileEntry> {
        manifest.files
    }
}

impl Difference {
    /// Returns the file that differs.
    pub fn path(&self) -> &FilePath {
        match self {
            Difference::Missing { path }
            | Difference::Extra { path }
            | Difference::Size { path, .. }
            | Difference::Content { path } => path,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Missing { path } => write!(f, "{path} is missing"),
            Difference::Extra { path } => write!(f, "{path} does not belong here"),
            Difference::Size { path, wanted, found } => {
                write!(f, "{path} has {} instead of {wanted}", counted(found, "byte"))
            }
            Difference::Content { path } => write!(f, "{path} has other content"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jackalope_testing::Scratch;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    fn of_dir(dir: &Scratch) -> Manifest {
        let mut fresh = HashCache::default();
        Manifest::of_dir(dir.path(), &mut fresh, Hashing::new(&|_| ())).unwrap()
    }

    /// Generates a few small files in folders.
    fn contents() -> impl Strategy<Value = BTreeMap<String, Vec<u8>>> {
        let content = prop::collection::vec(any::<u8>(), 1..50);
        prop::collection::btree_map("[a-c]{1,2}(/[d-f]{1,2}\\.json)?", content, 1..8).prop_map(
            |files| {
                // The same name cannot be both a file and a folder.
                let is_folder =
                    |name: &str| files.keys().any(|it| it.starts_with(&format!("{name}/")));
                let kept = files.iter().filter(|(name, _)| !is_folder(name));
                kept.map(|(name, content)| (name.clone(), content.clone())).collect()
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_changed_byte_and_every_missing_or_extra_file_is_found(
            contents in contents(), which in any::<Index>(), at in any::<Index>(), flip in 1..=255u8,
        ) {
            let dir = Scratch::new();
            for (path, content) in &contents {
                dir.write(path, content);
            }
            let wanted = of_dir(&dir);
            prop_assert_eq!(wanted.files().len(), contents.len());
            prop_assert_eq!(wanted.differences(&of_dir(&dir)), vec![]);
            let again: Manifest =
                serde_json::from_str(&serde_json::to_string(&wanted).unwrap()).unwrap();
            prop_assert_eq!(&again, &wanted);

            let (name, content) = which.get(&contents.iter().collect::<Vec<_>>()).to_owned();
            let path: FilePath = name.parse().unwrap();
            let mut changed = content.clone();
            changed[at.index(content.len())] ^= flip;
            dir.write(name, &changed);
            let found = of_dir(&dir);
            prop_assert_eq!(wanted.differences(&found), vec![Difference::Content { path: path.clone() }]);
            prop_assert_ne!(wanted.digest(), found.digest());
            prop_assert_eq!(wanted.differences_of_sizes(dir.path()).unwrap(), vec![]);

            dir.write(name, &content[..content.len() - 1]);
            let shorter = Difference::Size {
                path: path.clone(), wanted: content.len() as u64, found: content.len() as u64 - 1,
            };
            prop_assert_eq!(wanted.differences(&of_dir(&dir)), vec![shorter.clone()]);
            prop_assert_eq!(wanted.differences_of_sizes(dir.path()).unwrap(), vec![shorter]);

            std::fs::remove_file(path.below(dir.path())).unwrap();
            dir.write("zz", b"");
            let both =
                vec![Difference::Missing { path }, Difference::Extra { path: "zz".parse().unwrap() }];
            prop_assert_eq!(wanted.differences(&of_dir(&dir)), both.clone());
            prop_assert_eq!(wanted.differences_of_sizes(dir.path()).unwrap(), both);
        }
    }

    #[test]
    fn a_manifest_from_elsewhere_names_no_file_twice_and_none_outside() {
        let entry = |path: &str| {
            let sha256 = ContentHash::of(b"");
            format!(r#"{{"path": "{path}", "bytes": 0, "sha256": "{sha256}"}}"#)
        };
        let parse = |text: String| serde_json::from_str::<Manifest>(&text);
        assert!(parse(format!("[{},{}]", entry("b"), entry("a"))).is_ok());
        assert!(parse(format!("[{},{}]", entry("a"), entry("a"))).is_err());
        assert!(parse(format!("[{}]", entry("../a"))).is_err());
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_is_no_part_of_the_model() {
        let dir = Scratch::new();
        dir.write("a", b"one");
        let manifest = of_dir(&dir);
        let record = Record { repo: "o/n".to_owned(), commit: "c".to_owned(), manifest };
        record.write(dir.path()).unwrap();
        assert_eq!(Record::read(dir.path()), Some(record.clone()));
        assert_eq!(of_dir(&dir), record.manifest);
    }
}
