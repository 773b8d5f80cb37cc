//! Changes to the key file on request of an administrator: new keys, other limits, revoked keys.
//!
//! The file stays the only place where keys are kept. Only the hash of a new key is written; the key
//! itself is returned once.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::key_file::{self, FileKey, Stamp};
use super::{ApiKeys, Ring};
use crate::ids::hex;

/// Number of random bytes of a key.
const KEY_BYTES: usize = 24;

/// Reason why keys were not changed.
#[derive(Debug, Error)]
pub enum KeyEditError {
    /// There is no key file.
    #[error("keys are not changed here\nhint: start the server with `--api-keys FILE`")]
    NoFile,
    /// The key file has no key of this name.
    #[error(
        "the file of keys has no key named {name}\n\
         hint: keys of --api-key and --admin-key are changed where the server is started"
    )]
    Unknown {
        /// The name that was not found.
        name: String,
    },
    /// The settings are invalid, or the name is in use.
    #[error("the key is refused: {reason}")]
    Refused {
        /// The reason.
        reason: String,
    },
    /// The file cannot be read or written.
    #[error("the file of keys was not changed: {source}")]
    Unwritten {
        /// The I/O error.
        source: io::Error,
    },
}

/// Settings of a key; an absent limit is unbounded.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct KeySettings {
    /// Limit on requests per minute.
    pub requests_per_minute: Option<u32>,
    /// Limit on tokens of prompts and answers per minute.
    pub tokens_per_minute: Option<u32>,
    /// Maximum number of the key's requests that are answered at the same time.
    pub concurrent_requests: Option<u32>,
    /// Best priority that the key's requests can have; lower values are scheduled earlier.
    #[serde(default)]
    pub priority: i32,
    /// Whether the key has administrator rights.
    #[serde(default)]
    pub admin: bool,
    /// Group of keys that share cached prefixes.
    pub cache_group: Option<String>,
}

impl KeySettings {
    /// Writes the settings into the entry of a key, and removes those that are absent.
    fn write_to(&self, entry: &mut Map<String, Value>) {
        let optional = [
            ("requests_per_minute", self.requests_per_minute.map(Value::from)),
            ("tokens_per_minute", self.tokens_per_minute.map(Value::from)),
            ("concurrent_requests", self.concurrent_requests.map(Value::from)),
            ("priority", (self.priority != 0).then(|| self.priority.into())),
            ("admin", self.admin.then(|| true.into())),
            ("cache_group", self.cache_group.clone().map(Value::from)),
        ];
        for (field, value) in optional {
            match value {
                Some(value) => entry.insert(field.to_owned(), value),
                None => entry.remove(field),
            };
        }
    }
}

impl ApiKeys {
    /// Lists the keys by name, with their limits and rights, as JSON. The list does not contain the
    /// keys themselves, of which only hashes are held.
    pub fn list(&self) -> Value {
        let mut ring = self.lock();
        ring.look_again();
        let entry = |key: &FileKey, is_in_file: bool| {
            json!({
                "name": key.name,
                "admin": key.is_admin,
                "priority": key.priority,
                "cache_group": key.cache_group,
                "requests_per_minute": key.limits.requests_per_minute,
                "tokens_per_minute": key.limits.tokens_per_minute,
                "concurrent_requests": key.limits.concurrent_requests,
                "editable": is_in_file,
            })
        };
        let fixed = ring.fixed.iter().map(|key| entry(key, false));
        fixed.chain(ring.from_file.iter().map(|key| entry(key, true))).collect()
    }

    /// Returns whether there is a file in which keys can be changed.
    pub fn is_editable(&self) -> bool {
        self.has_file
    }

    /// Creates a key and returns it. The file holds only the key's hash, so that the key cannot be
    /// read again.
    ///
    /// # Errors
    /// If there is no key file, it cannot be written, the settings are invalid, or the name is in use.
    pub fn create(&self, name: &str, settings: &KeySettings) -> Result<String, KeyEditError> {
        let mut secret = [0; KEY_BYTES];
        let unwritten = |err: getrandom::Error| KeyEditError::Unwritten { source: err.into() };
        getrandom::fill(&mut secret).map_err(unwritten)?;
        let key = format!("sk-{}", hex(&secret));
        let digest = hex(&Sha256::digest(key.as_bytes()));
        let mut entry = Map::new();
        entry.insert("name".to_owned(), name.into());
        entry.insert("sha256".to_owned(), digest.into());
        settings.write_to(&mut entry);
        self.edit(|ring, keys| {
            if ring.fixed.iter().any(|key| key.name == name) {
                let reason = format!("there is a key named {name}");
                return Err(KeyEditError::Refused { reason });
            }
            keys.push(entry.into());
            Ok(())
        })?;
        Ok(key)
    }

    /// Changes the limits and rights of a key.
    ///
    /// # Errors
    /// If there is no such key in the file, or the file cannot be written.
    pub fn change(&self, name: &str, settings: &KeySettings) -> Result<(), KeyEditError> {
        self.edit(|_, keys| {
            let idx = position(keys, name)?;
            if let Value::Object(entry) = &mut keys[idx] {
                settings.write_to(entry);
            }
            Ok(())
        })
    }

    /// Revokes a key. Requests that are being answered continue.
    ///
    /// # Errors
    /// If there is no such key in the file, or the file cannot be written.
    pub fn revoke(&self, name: &str) -> Result<(), KeyEditError> {
        self.edit(|_, keys| {
            let idx = position(keys, name)?;
            keys.remove(idx);
            Ok(())
        })
    }

    /// Calls `edit` with the list of keys in the file, then writes the file and accepts its keys at
    /// once. If the edited list is invalid, neither the file nor the accepted keys change.
    fn edit(
        &self,
        edit: impl FnOnce(&Ring, &mut Vec<Value>) -> Result<(), KeyEditError>,
    ) -> Result<(), KeyEditError> {
        let unwritten = |source| KeyEditError::Unwritten { source };
        let mut ring = self.lock();
        let path: PathBuf = ring.file.as_ref().ok_or(KeyEditError::NoFile)?.path.clone();
        let text = fs::read_to_string(&path).map_err(unwritten)?;
        let mut content: Value = serde_json::from_str(&text).map_err(|_| {
            let reason =
                "the file of keys is not valid JSON\nhint: correct it in an editor".to_owned();
            KeyEditError::Refused { reason }
        })?;
        let Some(Value::Array(keys)) = content.get_mut("keys") else {
            let reason = "the file of keys has no list `keys`".to_owned();
            return Err(KeyEditError::Refused { reason });
        };
        edit(&ring, keys)?;
        let text = format!("{content:#}\n");
        let keys = key_file::parse(&text).map_err(|reason| KeyEditError::Refused { reason })?;
        write(&path, &text).map_err(unwritten)?;
        ring.from_file = keys;
        if let Some(file) = &mut ring.file {
            file.stamp = Stamp::of(&path);
        }
        ring.rebuild();
        Ok(())
    }
}

fn position(keys: &[Value], name: &str) -> Result<usize, KeyEditError> {
    let found = keys.iter().position(|key| key["name"] == name);
    found.ok_or_else(|| KeyEditError::Unknown { name: name.to_owned() })
}

/// Replaces the file at `path` as a whole by one with this text, which only its owner can read.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let new = path.with_extension("new");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, &path)
}
