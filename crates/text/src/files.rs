//! Reads a checkpoint's text files with a limit on their size.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use jackalope_spec::parse_config;
use serde::de::DeserializeOwned;

use crate::error::TextLoadError;

/// Maximum size of `tokenizer.json`. The largest one known has 34 MB (a vocabulary of 262,144 with
/// merges).
pub(crate) const TOKENIZER_BYTES_MAX: u64 = 256 << 20;

/// Maximum size of a configuration file. All stay below 1 MB, except `tokenizer_config.json` of
/// models with many added tokens, which reaches 1.2 MB.
pub(crate) const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Reads a whole file of at most `limit_bytes`; `None` if there is no such file.
pub(crate) fn read(path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, TextLoadError> {
    let read_error = |source| TextLoadError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read_error(error)),
    };
    let size_bytes = file.metadata().map_err(read_error)?.len();
    if size_bytes > limit_bytes {
        return Err(TextLoadError::TooLarge { path: path.to_owned(), size_bytes, limit_bytes });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size_bytes).unwrap_or(0));
    // A pipe or a device has no size, so the limit also applies to the bytes that are read.
    file.take(limit_bytes + 1).read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.len() as u64 > limit_bytes {
        let size_bytes = bytes.len() as u64;
        return Err(TextLoadError::TooLarge { path: path.to_owned(), size_bytes, limit_bytes });
    }
    Ok(Some(bytes))
}

/// Reads a file as text; `None` if there is no such file.
pub(crate) fn read_text(path: &Path, limit_bytes: u64) -> Result<Option<String>, TextLoadError> {
    let Some(bytes) = read(path, limit_bytes)? else { return Ok(None) };
    let text = String::from_utf8(bytes)
        .map_err(|source| TextLoadError::NotText { path: path.to_owned(), source })?;
    Ok(Some(text))
}

/// Reads a JSON file, in which Python may have written `NaN` or `Infinity`; `None` if there is no such
/// file.
pub(crate) fn read_json<T: DeserializeOwned>(
    path: &Path,
    limit_bytes: u64,
) -> Result<Option<T>, TextLoadError> {
    let Some(bytes) = read(path, limit_bytes)? else { return Ok(None) };
    let of_python = || T::deserialize(parse_config(&bytes).ok()?).ok();
    let value = serde_json::from_slice(&bytes)
        .or_else(|source| of_python().ok_or(source))
        .map_err(|source| TextLoadError::Json { path: path.to_owned(), source })?;
    Ok(Some(value))
}
