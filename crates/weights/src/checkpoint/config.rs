//! Reads `config.json`, and other small files.

use std::io;
use std::path::Path;

use jackalope_spec::parse_config;
use serde_json::Value;

use super::files::{Files, Pieces};
use crate::error::LoadError;

/// Name of the file.
pub(super) const NAME: &str = "config.json";

/// Maximum length of such a file; the largest published `config.json` are below 100 KB.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Reads and parses the file; errors name it `path`.
pub(super) fn read(path: &Path, files: &dyn Files) -> Result<Value, LoadError> {
    let text = read_text(path, NAME, files)?;
    parse_config(&text).map_err(|err| LoadError::Config {
        path: path.to_path_buf(),
        reason: format!("not valid JSON: {err}"),
    })
}

/// Reads the text of a small file of this name; errors name it `path`.
pub(super) fn read_text(path: &Path, name: &str, files: &dyn Files) -> Result<Vec<u8>, LoadError> {
    let failed = |source| LoadError::read(path, source);
    let found = files.list().map_err(failed)?.into_iter().find(|(found, _)| found == name);
    let (_, num_bytes) =
        found.ok_or_else(|| failed(io::Error::new(io::ErrorKind::NotFound, "No such file")))?;
    if MAX_CONFIG_BYTES < num_bytes {
        let reason = format!("file has {num_bytes} bytes, expected at most {MAX_CONFIG_BYTES}");
        return Err(LoadError::Config { path: path.to_path_buf(), reason });
    }
    let mut text = vec![0; usize::try_from(num_bytes).expect("checked against the limit")];
    files.read(name, Pieces::run(0, text.len()), &mut text).map_err(failed)?;
    Ok(text)
}
