//! The key file: the accepted keys and their limits.
//!
//! ```json
//! {"keys": [
//!   {"name": "alice", "key": "sk-…"},
//!   {"name": "batch", "sha256": "<64 hexadecimal digits>", "requests_per_minute": 60,
//!    "tokens_per_minute": 100000, "concurrent_requests": 4, "priority": 10},
//!   {"name": "ops", "key": "sk-…", "admin": true},
//!   {"name": "web", "key": "sk-…", "cache_group": "team"},
//!   {"name": "cli", "key": "sk-…", "cache_group": "team"}
//! ]}
//! ```

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::quota::KeyLimits;

/// Maximum size of a key file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of keys.
const KEYS_MAX: usize = 4096;

/// Maximum length of a key's name in bytes.
const NAME_BYTES_MAX: usize = 64;

/// An error in a key file. It never contains a key.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error("the file of keys {} cannot be read: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The file is not a valid key file.
    #[error(
        "the file of keys {}: {reason}\n\
         hint: for example {{\"keys\": [{{\"name\": \"alice\", \"key\": \"…\"}}]}}",
        path.display()
    )]
    Broken {
        /// Path of the file.
        path: PathBuf,
        /// Position and reason of the error.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    keys: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    key: Option<String>,
    sha256: Option<String>,
    requests_per_minute: Option<u32>,
    tokens_per_minute: Option<u32>,
    concurrent_requests: Option<u32>,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    admin: bool,
    cache_group: Option<String>,
}

/// A key of the file, with its digest in place of the key itself.
#[derive(Clone, Debug)]
pub(super) struct FileKey {
    pub(super) name: String,
    pub(super) digest: [u8; 32],
    pub(super) limits: KeyLimits,
    pub(super) priority: i32,
    pub(super) is_admin: bool,
    /// Group of keys that share cached prefixes.
    pub(super) cache_group: Option<String>,
}

/// Metadata by which a change of the file is detected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Stamp {
    modified: Option<SystemTime>,
    len: u64,
    inode: u64,
}

impl Stamp {
    pub(super) fn of(path: &Path) -> Option<Stamp> {
        let metadata = std::fs::metadata(path).ok()?;
        let modified = metadata.modified().ok();
        Some(Stamp { modified, len: metadata.len(), inode: metadata.ino() })
    }
}

/// Returns whether the file's mode grants any permission to others than its owner.
pub(super) fn is_readable_by_others(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o077 != 0)
}

/// Reads the key file at `path`, checks it, and returns its keys.
pub(super) fn read(path: &Path) -> Result<Vec<FileKey>, KeyFileError> {
    let unreadable = |source| KeyFileError::Unreadable { path: path.to_owned(), source };
    let broken = |reason| KeyFileError::Broken { path: path.to_owned(), reason };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if FILE_BYTES_MAX < metadata.len() {
        return Err(broken(format!("it is longer than {FILE_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    parse(&text).map_err(broken)
}

pub(super) fn parse(text: &str) -> Result<Vec<FileKey>, String> {
    // The parser's message may quote what it found, which may be a key: only the position is
    // reported.
    let keys: Keys = serde_json::from_str(text).map_err(|err| {
        let unknown = err.to_string();
        let field = unknown.strip_prefix("unknown field `").and_then(|it| it.split('`').next());
        let known = field.filter(|it| it.len() <= NAME_BYTES_MAX);
        let what = known.map_or("is no list of keys".to_owned(), |it| format!("knows no {it:?}"));
        format!("it {what}, at line {}, column {}", err.line(), err.column())
    })?;
    if KEYS_MAX < keys.keys.len() {
        return Err(format!("it has more than {KEYS_MAX} keys"));
    }
    let mut found: Vec<FileKey> = Vec::with_capacity(keys.keys.len());
    for (idx, entry) in keys.keys.into_iter().enumerate() {
        let key = entry.check().map_err(|reason| format!("keys[{idx}] {reason}"))?;
        if found.iter().any(|it| it.name == key.name) {
            return Err(format!("keys[{idx}] has the name of another one, {:?}", key.name));
        }
        if let Some(other) = found.iter().find(|it| it.digest == key.digest) {
            return Err(format!("keys[{idx}] is the same key as {:?}", other.name));
        }
        found.push(key);
    }
    Ok(found)
}

impl Entry {
    fn check(self) -> Result<FileKey, String> {
        let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"._-@".contains(&it);
        let is_name = (1..=NAME_BYTES_MAX).contains(&self.name.len());
        if !is_name || !self.name.bytes().all(is_plain) {
            return Err(format!(
                "has a name that is not 1 to {NAME_BYTES_MAX} letters, digits and any of ._-@"
            ));
        }
        let digest = match (self.key.as_deref().map(str::trim), &self.sha256) {
            (Some(""), None) => return Err("has an empty key".to_owned()),
            (Some(key), None) => Sha256::digest(key.as_bytes()).into(),
            (None, Some(digits)) => {
                unhex(digits).ok_or("has a sha256 that is not 64 hexadecimal digits")?
            }
            (Some(_), Some(_)) | (None, None) => {
                return Err("needs either key or sha256".to_owned());
            }
        };
        let limits = KeyLimits {
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
            concurrent_requests: self.concurrent_requests,
        };
        let all =
            [limits.requests_per_minute, limits.tokens_per_minute, limits.concurrent_requests];
        if all.contains(&Some(0)) {
            return Err("has a limit of 0; leave it out for no limit".to_owned());
        }
        Ok(FileKey {
            name: self.name,
            digest,
            limits,
            priority: self.priority,
            is_admin: self.admin,
            cache_group: self.cache_group,
        })
    }
}

fn unhex(digits: &str) -> Option<[u8; 32]> {
    let digits = digits.trim().as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        parse(text).map(|keys| keys.len()).unwrap_err()
    }

    #[test]
    fn keys_and_their_hashes_are_the_same() {
        let digest = crate::ids::hex(&Sha256::digest(b"sekret"));
        let plain = parse(r#"{"keys": [{"name": "a", "key": " sekret "}]}"#).unwrap();
        let hashed = format!(r#"{{"keys": [{{"name": "a", "sha256": "{digest}"}}]}}"#);
        assert_eq!(plain[0].digest, parse(&hashed).unwrap()[0].digest);
    }

    #[test]
    fn errors_are_reported_without_the_key() {
        let cases = [
            ("sekret", "line 1"),
            (r#"{"keys": ["sekret"]}"#, "line 1"),
            (r#"{"keys": [{"name": "a", "key": "sekret", "rpm": 1}]}"#, "\"rpm\""),
            (r#"{"keys": [{"name": "a"}]}"#, "either key or sha256"),
            (r#"{"keys": [{"name": "", "key": "sekret"}]}"#, "keys[0] has a name"),
            (r#"{"keys": [{"name": "a", "key": " "}]}"#, "empty key"),
            (r#"{"keys": [{"name": "a", "sha256": "sekret"}]}"#, "64 hexadecimal"),
            (r#"{"keys": [{"name": "a", "key": "sekret", "concurrent_requests": 0}]}"#, "0"),
            (
                r#"{"keys": [{"name": "a", "key": "sekret"}, {"name": "b", "key": "sekret"}]}"#,
                "the same key as \"a\"",
            ),
            (
                r#"{"keys": [{"name": "a", "key": "sekret"}, {"name": "a", "key": "sekret2"}]}"#,
                "the name of another",
            ),
            (r#"{"keys": [{"name": "a", "key": "x", "priority": "sekret"}]}"#, "line 1"),
        ];
        for (text, expected) in cases {
            let found = refusal(text);
            assert!(found.contains(expected), "{text}: {found}");
            assert!(!found.contains("sekret"), "{found}");
        }
    }
}
